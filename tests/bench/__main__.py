"""Benchmarks: `python tests/bench [name …]`, all of them by default. Ratios, never a test."""

from __future__ import annotations

import sys

import attention
import backbones
import decode
import language

BENCHES = {
    "language": language.main,
    "attention": attention.main,
    "decode": decode.main,
    "backbones": backbones.main,
}


def main(names: list[str]) -> None:
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        sys.exit(f"no bench called {', '.join(unknown)}; there are {', '.join(BENCHES)}")
    for name in names or BENCHES:
        print(f"== {name}")
        BENCHES[name]()


if __name__ == "__main__":
    asked = sys.argv[1:]
    del sys.argv[1:]  # some peers parse the command line when they are called
    main(asked)
