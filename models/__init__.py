"""combinax.models: networks in a handful of point-free lines, written with combinax.combinators.

    attention  = multi_head(64, 4, scores=causal_scores)
    mlp        = gated_dictionary(256)
    backbone   = transformer(4, attention=attention, dictionary=mlp)
    language   = gpt(256, 64, 128, backbone)

    term, params, tokenizer = combinax.models.pretrained.load("path/to/model")

`bert`, `gpt2` and `llama` are backbones by the fields of a config.json; `pretrained` loads the
weights that others trained. A variant is a term or a function from terms to terms that you pass in;
where none is offered, write the line itself.
"""

from .attention import (
    causal_scores,
    cross_attention,
    from_context,
    grouped_heads,
    head,
    multi_head,
    one_memory,
)
from .bert import bert, first, mean_pool, sentence, unit
from .dictionary import biased_dictionary, dictionary, gated_dictionary, keys
from .generate import Generated, generate, stream_tokens
from .gpt2 import gpt2
from .llama import llama
from .sampling import greedy, keep_top_k, keep_top_p, log_probability
from .speculate import speculate
from .transformer import (
    block,
    decoder,
    encoder,
    encoder_decoder,
    gpt,
    post_norm,
    pre_norm,
    reading_decoder,
    transformer,
)

__all__ = [
    "head", "multi_head", "grouped_heads", "cross_attention",
    "causal_scores", "from_context", "one_memory",
    "dictionary", "biased_dictionary", "gated_dictionary", "keys",
    "block", "pre_norm", "post_norm", "transformer",
    "encoder", "decoder", "reading_decoder", "encoder_decoder", "gpt",
    "bert", "first", "mean_pool", "unit", "sentence", "gpt2", "llama",
    "generate", "stream_tokens", "speculate", "Generated",
    "greedy", "keep_top_k", "keep_top_p", "log_probability",
]  # fmt: skip
