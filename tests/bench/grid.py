"""Right before fast: every mask with every score, normalizer and length, streamed and on one table.

The suite draws a few of these; here are all of them, which takes hours. Not run by default.
"""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from rich.progress import track

sys.path.insert(0, str(Path(__file__).parent.parent))

from streams import LENGTHS, MASKS, SCORES, STREAMING, both, lookup

BLOCKS = (3, (64, 32), 128, None)


def main() -> None:
    everything = [
        (seen, scores, how, lengths, block)
        for seen, scores, how, lengths, block in itertools.product(
            MASKS, SCORES, STREAMING, LENGTHS, BLOCKS
        )
        if (how != "row_sum" or scores == "a function")  # a sum of mixed signs may be 0
        and (block != 3 or max(lengths) < 40)
    ]
    wrong = 0
    for seen, scores, how, (t, s), block in track(everything, f"{len(everything):,} cases"):
        try:
            both(lookup(STREAMING[how], MASKS[seen], SCORES[scores]), block, t, s)
        except AssertionError as error:
            wrong += 1
            print(f"{seen}, {scores}, {how}, T {t}, S {s}, block {block}: {error}")
    print(f"{len(everything) - wrong:,} of {len(everything):,} agree")
