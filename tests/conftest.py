"""What every test runs under."""

from hypothesis import settings

# The same examples on every run and machine; compiling makes a first example slow, so no deadline.
settings.register_profile("combinax", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("combinax")
