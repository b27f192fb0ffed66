"""Claims of papers, as runs: each a function that trains a few models and gives a table.

    finding = CLAIMS["depth"](seed=0, steps=700)
    finding.rows, finding.panel

matrices     two matrices without an activation are one; with one between they are more
depth        to go on as before takes two layers: one cannot find the token before
identity     attention begins near an even mixture, and departs, layer by layer
entropy      while a model learns, its weights become sharp
pretraining  an encoder that filled in masked characters learns from few labels
"""

from .attention import entropy, identity
from .encoders import pretraining
from .finding import Finding
from .networks import depth, matrices

__all__ = ["CLAIMS", "Finding", "depth", "entropy", "identity", "matrices", "pretraining"]

CLAIMS = {run.__name__: run for run in (matrices, depth, identity, entropy, pretraining)}
"""All claims by their names: functions of a seed and a number of steps."""
