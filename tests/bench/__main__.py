"""Benchmarks: `python tests/bench [name …]`, all of them by default. Ratios, never a test."""

from __future__ import annotations

import importlib
import sys

BENCHES = ("language", "algebra", "train", "attention", "decode", "backbones")
EXTRA = ("grid",)
"""Takes hours, and so runs only where it is named."""


def main(names: list[str]) -> None:
    known = (*BENCHES, *EXTRA)
    unknown = [name for name in names if name not in known]
    if unknown:
        sys.exit(f"no bench called {', '.join(unknown)}; there are {', '.join(known)}")
    for name in names or BENCHES:
        print(f"== {name}", flush=True)
        importlib.import_module(name).main()  # only then, for each has peers of its own


if __name__ == "__main__":
    asked = sys.argv[1:]
    del sys.argv[1:]  # some peers parse the command line when they are called
    main(asked)
