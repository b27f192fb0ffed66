"""What a token costs: a composed GPT-2, step by step, against transformers' generate in PyTorch.

Both have the same random weights and draw the same tokens, greedily, one sequence on the CPU.
Beside it: the whole forward run again for a token, and all weights read once, which no step can
undercut.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch
from measure import interleaved
from transformers import GPT2Config, GPT2LMHeadModel

from combinax.combinators import (
    Term,
    aggregate,
    causal,
    compose,
    embed,
    gelu_tanh,
    heads,
    identity,
    layer_norm,
    linear,
    mask,
    normalize,
    position_embed,
    project,
    scaled_dot,
    score,
    softmax,
    stepwise,
    tied,
    unstack,
)  # fmt: skip
from combinax.models import generate, greedy

PROMPT, COUNT = 16, 64


class Shape(NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int


SHAPES = (Shape(4, 128, 4, 256), Shape(12, 768, 12, 50257))


def gpt2(shape: Shape) -> Term:
    """GPT-2 (Radford et al. 2019) as an equation: norms before, biases everywhere."""
    dense = partial(linear, bias=True)
    attention = compose(
        aggregate(), normalize(softmax), mask(causal), score(scaled_dot),
        project(dense(shape.width // shape.heads)),
    )  # fmt: skip
    first = identity + dense(shape.width) @ heads(shape.heads, attention) @ layer_norm()
    mlp = dense(shape.width) @ gelu_tanh @ dense(4 * shape.width)
    body = layer_norm() @ ((identity + mlp @ layer_norm()) @ first) ** shape.layers
    return tied(embed(shape.vocabulary, shape.width), body @ position_embed(1024))


def peer(shape: Shape) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=shape.layers, n_embd=shape.width, n_head=shape.heads,
        vocab_size=shape.vocabulary, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


def parameters(model: GPT2LMHeadModel, shape: Shape) -> dict[str, Any]:
    """The weights of the peer, under the names that the term has for them."""
    state = {k.removeprefix("transformer."): v.numpy() for k, v in model.state_dict().items()}

    def dense(name: str) -> dict[str, Any]:
        return {"kernel": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def norm(name: str) -> dict[str, Any]:
        return {"scale": state[f"{name}.weight"], "bias": state[f"{name}.bias"]}

    def block(h: str) -> dict[str, Any]:
        kernel, bias = (np.split(part, 3, -1) for part in dense(f"{h}.attn.c_attn").values())
        split = (shape.heads, shape.width // shape.heads)
        project = {
            name: {"kernel": k.reshape(-1, *split), "bias": b.reshape(split)}
            for name, k, b in zip(("query", "key", "value"), kernel, bias, strict=True)
        }
        attention = {
            "layer_norm": norm(f"{h}.ln_1"), "heads": {"project": project},
            "linear": dense(f"{h}.attn.c_proj"),
        }  # fmt: skip
        mlp = {
            "layer_norm": norm(f"{h}.ln_2"), "linear": dense(f"{h}.mlp.c_fc"),
            "linear_2": dense(f"{h}.mlp.c_proj"),
        }  # fmt: skip
        return {"add": attention, "add_2": mlp}

    tree = {
        "embed": {"table": state["wte.weight"]},
        "position_embed": {"table": state["wpe.weight"]},
        "repeat": {str(i): block(f"h.{i}") for i in range(shape.layers)},
        "layer_norm": norm("ln_f"),
    }
    return jax.tree.map(jnp.asarray, tree)


def state_bytes(term: Term, params: Any) -> int:
    """The bytes of state that one more token takes."""
    start = stepwise(term).start
    token = jax.ShapeDtypeStruct((1,), jnp.int32)
    less, more = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(start(params, token, n))) for n in (8, 9)
    )
    return more - less


@torch.no_grad()
def peers_bytes(model: GPT2LMHeadModel, prompt: torch.Tensor) -> float:
    cache: Any = model(prompt, use_cache=True).past_key_values
    tensors = [t for layer in cache.layers for t in (layer.keys, layer.values)]
    return sum(t.numel() * t.element_size() for t in tensors) / prompt.shape[1]


def against_transformers(shape: Shape, rounds: int) -> None:
    term, model = gpt2(shape), peer(shape)
    params = parameters(model, shape)
    tokens = np.random.default_rng(0).integers(1, shape.vocabulary, PROMPT).astype(np.int32)
    theirs = torch.from_numpy(tokens[None].astype(np.int64))
    settings = dict(do_sample=False, max_new_tokens=COUNT, min_new_tokens=COUNT)
    run = partial(model.generate, theirs, attention_mask=torch.ones_like(theirs), **settings)
    ours = partial(generate, term, params, tokens, COUNT, choose=greedy)

    with torch.no_grad():
        logits = model(theirs).logits[0].numpy()
    apart = float(np.abs(np.asarray(jax.jit(term)(params, tokens)) - logits).max())
    drawn, expected = np.asarray(ours().tokens), run()[0, PROMPT:].numpy()
    # With min_new_tokens transformers forbids the end token until then; ours is free to draw it.
    same = int((drawn == expected).cumprod().sum())

    mine, other, ratio = interleaved(ours, run, rounds)
    whole = jax.jit(lambda params, x: term(params, x)[-1])
    full = jnp.zeros(PROMPT + COUNT, jnp.int32)
    once = jax.jit(lambda params: sum(leaf.sum() for leaf in jax.tree.leaves(params)))
    token = median(partial(one_step(term, params, tokens)), rounds)
    forward, reading = (
        median(f, rounds) for f in (partial(whole, params, full), partial(once, params))
    )
    bytes_ours, bytes_theirs = state_bytes(term, params), peers_bytes(model, theirs)
    lines = (
        f"{shape.layers} x {shape.width}, vocabulary {shape.vocabulary}: "
        f"logits differ by {apart:.0e}; {same} of {COUNT} tokens the same",
        f"  tokens a second     {COUNT / mine:8.0f}     transformers {COUNT / other:.0f}; "
        f"{1 / ratio:.2f} x as many",
        f"  one step            {1e3 * token:8.3f} ms",
        f"  the whole forward   {1e3 * forward:8.3f} ms  {forward / token:.2f} x a step",
        f"  reading the weights {1e3 * reading:8.3f} ms  a step takes {token / reading:.2f} x",
        f"  bytes of state      {bytes_ours:8d}     transformers {bytes_theirs:.0f}, each token",
    )
    print(*lines, sep="\n", flush=True)


def one_step(term: Term, params: Any, tokens: np.ndarray) -> Callable[[], Any]:
    """A step in the middle of generation: with state for as many rows, half of them filled."""
    start, step = stepwise(term)
    params = unstack(term, params)
    state = start(params, tokens, PROMPT + COUNT)
    run: Any = jax.jit(step, donate_argnums=1)
    held = [run(params, state, tokens)[0]]

    def one() -> Any:
        held[0], y = run(params, held[0], tokens[:1], positions=jnp.asarray(PROMPT))
        return y

    return one


def median(run: Callable[[], Any], rounds: int) -> float:
    jax.block_until_ready(run())
    seconds = []
    for _ in range(4 * rounds):
        start = time.perf_counter()
        jax.block_until_ready(run())
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def main(rounds: int = 7) -> None:
    for shape in SHAPES:
        against_transformers(shape, rounds)
