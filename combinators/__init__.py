"""combinax.combinators: the vocabulary and the grammar, on one screen.

    attention  = compose(aggregate(), normalize(softmax), mask(causal), score(scaled_dot), project(16))
    dictionary = compose(aggregate(), normalize(gelu), score(dot), slots(256))

The five words: an input is projected to entries, scored, masked, normalized, and aggregated.
"""

from .aggregate import aggregate, largest, weighted_sum
from .compose import add, compose, fanout, join, multiply, parallel, pick, subtract
from .embed import embed, half_split, interleaved, position_embed, rotary, sinusoidal, tied
from .errors import CompositionError, ContextError, ParameterError, TermError
from .layers import stack, unstack
from .mask import (
    Predicate,
    block_causal,
    causal,
    dilated,
    mask,
    predicate,
    prefix,
    same,
    valid,
    window,
)  # fmt: skip
from .norm import dropout, layer_norm, rms_norm
from .normalize import (
    RowNormalizer,
    entmax15,
    gelu,
    gelu_tanh,
    hardmax,
    log_sum_exp,
    normalize,
    relu,
    relu_squared,
    row_sum,
    sigmoid,
    silu,
    softmax,
    sparsemax,
    top_k,
)  # fmt: skip
from .parameters import axes
from .project import linear, project, slots
from .records import Entries, Marks, Range, Rows, Scores, Weights
from .repeat import copies, each, heads, repeat
from .score import (
    additive,
    alibi,
    alibi_slopes,
    bias,
    bilinear,
    cosine,
    distance,
    dot,
    features,
    relative,
    scaled_dot,
    score,
    softcap,
    t5_buckets,
    temperature,
)  # fmt: skip
from .term import Leaf, Parameter, Stage, Term
from .union import sink, union
from .values import (
    constant,
    given,
    identity,
    learned,
    lift,
    named,
    pointwise,
    precision,
    read,
    shared,
)  # fmt: skip
