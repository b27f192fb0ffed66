"""combinax.combinators: the vocabulary and the grammar, on one screen.

    attention  = aggregate() @ normalize(softmax) @ mask(causal) @ score(scaled_dot) @ project(16)
    dictionary = aggregate() @ normalize(gelu)                   @ score(dot)        @ slots(256)

The five words: an input is projected to entries, scored, masked, normalized, and aggregated.

A term is a pure function to every transformation of JAX, on one device and on a mesh. Where JAX
needs to be told something, so does a term:

- `jax.vmap` and `jax.shard_map` show a term one row, or one part, of a batch: dropout draws by the
  place in that part, and what is chosen for a lookup counts only the copies made inside the term.
- On a mesh with explicit axes JAX refuses operations whose result it cannot place, such as
  `join(f, g, axis=0)` along divided rows: `jax.sharding.auto_axes(term, out_sharding=…)` leaves the
  inside of a term to the compiler.
- For a length that is a symbol of `jax.export`, lookups run on one table. A stream, a step and
  `describe` need a number, a table of positions a bound: `constraints=["t <= 128"]`.
"""

from .activations import gelu, gelu_tanh, relu, relu_squared, sigmoid, silu
from .aggregate import aggregate, largest, weighted_sum
from .algebra.check import check
from .algebra.cost import Cost, Machine, cost
from .algebra.derivation import Derivation
from .algebra.derive import derive, simplify
from .algebra.equal import equal
from .algebra.surgery import carry, diff, replace, select
from .algebra.verdict import Verdict
from .arithmetic import add, multiply, subtract
from .bias import Bias, bias, softcap, temperature
from .branches import columns, fanout, join, parallel, pick
from .compose import compose
from .core.context import Context
from .core.declare import axes
from .core.errors import CompositionError, ContextError, ParameterError, TermError
from .core.layers import stack, unstack
from .core.leaf import Leaf, Stage
from .core.marks import Marks, Range, Rows
from .core.parameter import Parameter
from .core.records import Entries, Scores, Weights
from .core.term import Term
from .describe import describe
from .description import Description
from .dropout import dropout
from .embed import embed, tied
from .heads import copies, heads, total
from .laws import LAWS, law
from .logic import Predicate, predicate
from .mask import mask
from .norm import layer_norm, rms_norm
from .normalize import normalize
from .observe import observe
from .operators import install
from .position_bias import alibi, alibi_slopes, relative, t5_buckets
from .positions import (
    by_wavelength,
    half_split,
    interleaved,
    interpolated,
    position_embed,
    rotary,
    sinusoidal,
)
from .predicates import block_causal, causal, dilated, prefix, same, valid, window
from .primitives import constant, identity, learned, lift, pointwise, read
from .project import linear, project, slots
from .repeat import each, repeat
from .rules.law import Change, Law, Refusal, Sample, windowed
from .score import additive, bilinear, cosine, distance, dot, features, scaled_dot, score
from .softmax import RowNormalizer, Streaming, log_sum_exp, row_sum, softmax
from .sparse import entmax15, hardmax, sparsemax, top_k
from .stepping.stepwise import Stepwise, stepwise
from .streaming.partial import Partial, merge
from .streaming.pins import materialized, streamed
from .union import sink, union
from .wrappers import given, named, precision, shared

install()

__all__ = [
    # project: where queries, keys and values come from
    "project", "slots", "linear", "embed", "position_embed", "sinusoidal", "rotary", "half_split",
    "interleaved", "interpolated", "by_wavelength",
    # score: how well a query matches a key
    "score", "dot", "scaled_dot", "cosine", "distance", "bilinear", "additive", "features", "bias",
    "alibi", "alibi_slopes", "relative", "t5_buckets", "Bias", "softcap", "temperature",
    # mask: which keys a query may see
    "mask", "causal", "window", "prefix", "dilated", "block_causal", "same", "valid", "predicate",
    "Predicate",
    # normalize: scores become weights
    "normalize", "softmax", "sigmoid", "relu", "relu_squared", "gelu", "gelu_tanh", "silu",
    "row_sum", "sparsemax", "entmax15", "top_k", "hardmax", "RowNormalizer", "Streaming",
    "log_sum_exp",
    # aggregate: weights are applied to values
    "aggregate", "weighted_sum", "largest",
    # compose: the combining forms
    "compose", "identity", "fanout", "join", "parallel", "pick", "columns", "add", "subtract",
    "multiply", "union", "sink", "repeat", "each", "copies", "heads", "total", "shared", "named",
    "tied", "read", "given", "learned", "constant", "precision", "lift", "pointwise", "rms_norm",
    "layer_norm", "dropout",
    # how lookups run: on one table, as a stream, chunk after chunk with what is kept
    "materialized", "streamed", "Partial", "merge", "stepwise", "Stepwise",
    # looking at terms and parameters
    "describe", "Description", "observe", "axes", "stack", "unstack",
    # the algebra: laws that rewrite terms and move their parameters
    "LAWS", "law", "Law", "Sample", "Change", "Refusal", "windowed", "check", "Verdict",
    "simplify", "derive", "Derivation", "cost", "Cost", "Machine", "equal", "diff", "select",
    "replace", "carry",
    # what terms are made of, and what flows
    "Term", "Leaf", "Stage", "Parameter", "Context", "Entries", "Scores", "Weights", "Marks",
    "Rows", "Range", "TermError", "CompositionError", "ContextError", "ParameterError",
]  # fmt: skip
