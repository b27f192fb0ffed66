"""What every test runs under."""

import os
from importlib.metadata import version
from pathlib import Path

from hypothesis import settings

# Values do not depend on how well XLA optimizes, and a test waits for the compiler alone.
CHEAP = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
if version("jaxlib").startswith("0.10."):  # later ones have no other way to emit fusions
    CHEAP.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([*CHEAP, os.environ.get("XLA_FLAGS", "")])

# The same examples on every run and machine; compiling makes a first example slow, so no deadline.
settings.register_profile("combinax", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("combinax")

import jax  # noqa: E402  now that the flags are set
import pytest  # noqa: E402
from examples import this  # noqa: E402, F401  fixtures
from prose import prose  # noqa: E402, F401

MAPS = Path("/proc/self/maps")
MOST_MAPS = 30_000
"""Linux gives a process 65,530 maps of memory. Each compiled program takes some, and where none is
left, the compiler crashes."""


@pytest.fixture(scope="module", autouse=True)
def room_for_programs():
    """Forget what was compiled, between files of tests, before a process runs out of maps."""
    if MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
