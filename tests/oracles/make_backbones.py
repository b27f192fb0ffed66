"""Makes backbones.npz: tiny random backbones of transformers, and what they answer.

    pip install torch transformers
    python tests/oracles/make_backbones.py

Each variant has its config.json, its weights as transformers saves them, what goes in, and what
comes out: logits or hidden states, every layer's hidden state, and every attention map.
"""
# pyright: reportMissingImports=false

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file
from transformers import BertConfig, GPT2Config, LlamaConfig

BERT = dict(
    vocab_size=23, hidden_size=12, num_hidden_layers=2, num_attention_heads=3,
    intermediate_size=20, max_position_embeddings=16,
)  # fmt: skip
GPT2 = dict(vocab_size=23, n_embd=12, n_layer=2, n_head=3, n_positions=16)
LLAMA = dict(
    vocab_size=23, hidden_size=24, num_hidden_layers=2, num_attention_heads=6,
    num_key_value_heads=2, intermediate_size=20, max_position_embeddings=64,
)  # fmt: skip
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)  # fmt: skip

VARIANTS = {
    "bert": ("BertModel", BertConfig(**BERT), 9, 6),
    "bert_tanh": ("BertModel", BertConfig(**BERT, hidden_act="gelu_new", type_vocab_size=3), 7, 7),
    "bert_masked": ("BertForMaskedLM", BertConfig(**BERT, hidden_act="relu"), 5, 3),
    "gpt2": ("GPT2LMHeadModel", GPT2Config(**GPT2), 13, 13),
    "gpt2_untied": (
        "GPT2LMHeadModel",
        GPT2Config(
            **GPT2, activation_function="gelu", n_inner=17, layer_norm_epsilon=1e-3,
            tie_word_embeddings=False,
        ),
        7, 7,
    ),
    "llama_tied": ("LlamaForCausalLM", LlamaConfig(**LLAMA, tie_word_embeddings=True), 13, 13),
    "llama_untied": (
        "LlamaForCausalLM", LlamaConfig(**LLAMA, rope_parameters=LLAMA3, rms_norm_eps=1e-3), 33, 33,
    ),
    "llama_biased": (
        "LlamaForCausalLM",
        LlamaConfig(
            **{**LLAMA, "num_key_value_heads": 6}, attention_bias=True, hidden_act="gelu",
            rope_parameters=dict(rope_type="linear", factor=4.0, rope_theta=100.0),
        ),
        7, 7,
    ),
    "llama_one_key": (
        "LlamaForCausalLM", LlamaConfig(**{**LLAMA, "num_key_value_heads": 1}), 1, 1,
    ),
}  # fmt: skip


def answers(name: str) -> dict[str, np.ndarray]:
    kind, config, size, length = VARIANTS[name]
    torch.manual_seed(len(name))
    config._attn_implementation = "eager"
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():  # biases and scales, too
        torch.nn.init.normal_(parameter, std=0.3)
    rng = np.random.default_rng(len(name))
    tokens = rng.integers(config.vocab_size, size=size)
    asked = {"input_ids": torch.tensor(tokens)[None]}
    made = {"tokens": tokens.astype(np.int32), "length": np.int32(length)}
    if "Bert" in kind:
        types = rng.integers(config.type_vocab_size, size=size)
        asked["token_type_ids"] = torch.tensor(types)[None]
        asked["attention_mask"] = (torch.arange(size) < length)[None].long()
        made["token_types"] = types.astype(np.int32)
    with torch.no_grad():
        out = model(**asked, output_hidden_states=True, output_attentions=True)
    if kind == "BertModel":
        made["output"], made["pooled"] = (
            out.last_hidden_state[0].numpy(), out.pooler_output.numpy(),
        )  # fmt: skip
    else:
        made["output"] = out.logits[0].numpy()
    made["hidden"] = np.stack([layer[0].numpy() for layer in out.hidden_states])
    made["attention"] = np.stack([layer[0].numpy() for layer in out.attentions])
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        made["config"] = np.array(json.dumps(json.loads(Path(folder, "config.json").read_text())))
        for key, value in load_file(Path(folder, "model.safetensors")).items():
            made[f"weights/{key}"] = value
    return made


if __name__ == "__main__":
    arrays: dict[str, Any] = {
        f"{name}/{key}": value for name in VARIANTS for key, value in answers(name).items()
    }
    np.savez_compressed(Path(__file__).parent / "backbones.npz", **arrays)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
