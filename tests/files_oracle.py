"""Small model folders for tests of files: a tiny Llama, and what a process may use at most."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

CONFIG: dict[str, Any] = dict(
    model_type="llama", architectures=["LlamaForCausalLM"], vocab_size=5, hidden_size=4,
    intermediate_size=3, num_hidden_layers=1, num_attention_heads=2, tie_word_embeddings=False,
)  # fmt: skip

with np.load(Path(__file__).parent / "oracles" / "torch_files.npz") as arrays:
    TORCH: dict[str, np.ndarray] = dict(arrays)

WEIGHTS = {
    key.removeprefix("read/llama/"): value
    for key, value in TORCH.items()
    if key.startswith("read/llama/")
}
"""The weights that CONFIG describes; `oracles/make_torch.py` drew them."""


def folder(path: Path, config: dict[str, Any] = CONFIG, **weights: np.ndarray) -> Path:
    """A folder of Hugging Face's layout, with other weights beside or in place of its own."""
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    save_file({**WEIGHTS, **weights}, path / "model.safetensors")
    return path


BOUNDED = """
import json, resource, signal, sys, time
import numpy as np
from pathlib import Path
from combinax.models import files, gguf_file, pretrained, torch_file
from combinax.train import checkpoint
{first}
def peak():
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // unit
read = {read}
before = peak()
for path in map(Path, json.loads(sys.stdin.read())):
    signal.alarm({seconds})
    start = time.process_time()
    try:
        read(path)
        said = "read"
    except (ValueError, FileNotFoundError) as error:
        said = f"{{type(error).__name__}}: {{error}}"
    print(json.dumps([str(path), said, time.process_time() - start, peak() - before]), flush=True)
"""


def bounded(paths: list[Path], read: str, first: str = "", seconds: int = 10) -> list[list[Any]]:
    """What a reader says of each path, in a process of its own: (path, what it says, seconds of the
    processor, megabytes above the start). A path that hangs ends the process."""
    code = BOUNDED.format(read=read, first=first, seconds=seconds)
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(list(map(str, paths))), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.returncode}: {done.stdout[-500:]}\n{done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines()]
