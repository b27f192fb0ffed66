"""What every test runs under."""

import os
from importlib.metadata import version

from hypothesis import settings

# Values do not depend on how well XLA optimizes, and a test waits for the compiler alone.
CHEAP = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if version("jaxlib").startswith("0.10."):  # later ones have no other way to emit fusions
    CHEAP.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*CHEAP, os.environ.get("XLA_FLAGS", "")])

# The same examples on every run and machine; compiling makes a first example slow, so no deadline.
settings.register_profile("combinax", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("combinax")

from examples import this  # noqa: E402, F401  fixtures, now that JAX may be imported
from prose import prose  # noqa: E402, F401
