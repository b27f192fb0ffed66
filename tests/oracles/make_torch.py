"""Makes torch_files.npz: small files of torch.save, in both of its formats, good and bad.

    pip install torch
    python tests/oracles/make_torch.py

Each is kept as bytes; `good/…` also as the arrays that torch reads from it.
"""
# pyright: reportMissingImports=false

import io
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch

DRAW = torch.Generator().manual_seed(0)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=DRAW)


def written(held: Any, **options: Any) -> np.ndarray:
    file = io.BytesIO()
    torch.save(held, file, **options)
    return np.frombuffer(file.getvalue(), np.uint8)


def llama() -> dict[str, torch.Tensor]:
    """The weights of vocab_size 5, hidden_size 4, intermediate_size 3, two heads, one layer."""
    layer = {
        "input_layernorm.weight": (4,), "self_attn.q_proj.weight": (4, 4),
        "self_attn.k_proj.weight": (4, 4), "self_attn.v_proj.weight": (4, 4),
        "self_attn.o_proj.weight": (4, 4), "post_attention_layernorm.weight": (4,),
        "mlp.gate_proj.weight": (3, 4), "mlp.up_proj.weight": (3, 4),
        "mlp.down_proj.weight": (4, 3),
    }  # fmt: skip
    return {
        "model.embed_tokens.weight": random(5, 4),
        "model.norm.weight": random(4),
        "lm_head.weight": random(5, 4),
        **{f"model.layers.0.{name}": random(*shape) for name, shape in layer.items()},
    }


def kinds() -> dict[str, torch.Tensor]:
    """Every type that is read, views of storages, and two names of one tensor."""
    whole = random(4, 6)
    return OrderedDict(
        double=random(2).double(), float=random(2, 3), half=random(3).half(),
        brain=random(3).bfloat16(), long=torch.arange(4), int=torch.arange(3).int(),
        short=torch.arange(2).short(), char=torch.tensor([-1]).char(),
        byte=torch.tensor([255]).byte(), bool=torch.tensor([True, False]),
        transposed=whole.T, sliced=whole[1:3, 2:], one=whole, other=whole,
        empty=torch.zeros(0, 3), scalar=torch.tensor(1.5),
    )  # fmt: skip


class Module(torch.nn.Module):
    """One whose state_dict carries versions, as every module's does."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 3)


OLD = dict(_use_new_zipfile_serialization=False)
MANY = torch.zeros(1).expand(1000, 1000, 1000)

if __name__ == "__main__":
    weights, everything, module = llama(), kinds(), Module()
    good = {
        "llama": written(weights),
        "llama_old": written(weights, **OLD),
        "kinds": written(everything),
        "kinds_old": written(everything, **OLD),
        "module": written(module.state_dict()),
    }
    bad = {
        "protocol_4": written(everything, pickle_protocol=4),
        "list": written([torch.ones(1)]),
        "list_inside": written({"x": [torch.ones(1)]}),
        "int": written({"x": 5}),
        "int_name": written({5: torch.ones(1)}),
        "text": written({"x": "text"}),
        "nested": written({"model": {"x": torch.ones(1)}, "epoch": 3}),
        "tensor": written(torch.ones(1)),
        "sparse": written({"x": torch.eye(2).to_sparse()}),
        "gradient": written({"x": torch.ones(1, requires_grad=True)}),
        "parameter": written({"x": torch.nn.Parameter(torch.ones(1))}),
        "float8": written({"x": torch.ones(1).to(torch.float8_e4m3fn)}),
        "complex": written({"x": torch.ones(1, dtype=torch.complex64)}),
        "whole_module": written(torch.nn.Sequential()),
        "expanded": written({"x": MANY}),
        "many_names": written({str(i): torch.ones(1) for i in range(3)} | dict.fromkeys(
            map(chr, range(97, 123)), torch.ones(500)
        )),
    }  # fmt: skip
    bad |= {f"{name}_old": written(held, **OLD) for name, held in {
        "list": [torch.ones(1)], "int": {"x": 5},
        "gradient": {"x": torch.ones(1, requires_grad=True)},
        "sparse": {"x": torch.eye(2).to_sparse()}, "expanded": {"x": MANY},
    }.items()}  # fmt: skip
    arrays: dict[str, Any] = {}
    for name, held in good.items():
        arrays[f"good/{name}"] = held
        for key, tensor in torch.load(io.BytesIO(held.tobytes()), weights_only=True).items():
            tensor = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            arrays[f"read/{name}/{key}"] = tensor.numpy()
    arrays |= {f"bad/{name}": held for name, held in bad.items()}
    np.savez_compressed(Path(__file__).parent / "torch_files.npz", **arrays)
    print(f"torch {torch.__version__}")
