"""Files that chance has damaged: cut short, bytes flipped, sizes that lie. None of them crashes or
hangs a reader, or costs it more than a hundred megabytes, and what refuses one names it.

A flipped byte may leave a file as good as before: numbers have no checksum in most formats.
"""

from __future__ import annotations

import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from files_oracle import TORCH, WEIGHTS, bounded, folder
from safetensors.numpy import save_file
from test_gguf_header import gguf
from tokenizers import Tokenizer, models, pre_tokenizers

from combinax.train import checkpoint

EACH = 40
MEGABYTES, SECONDS = 100, 2
LIES = (0, 1, 2**8 - 1, 2**16, 2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1)


def damaged(whole: bytes, draw: random.Random, head: int) -> bytes:
    """Bytes after one accident, most of which befall the first `head` of them."""
    end = min(len(whole), head if draw.random() < 0.8 else len(whole))
    at = draw.randrange(end)
    match draw.randrange(5):
        case 0:
            return whole[: draw.randrange(len(whole))]
        case 1:
            changed = bytearray(whole)
            for _ in range(draw.choice((1, 1, 4))):
                changed[draw.randrange(end)] ^= draw.randrange(1, 256)
            return bytes(changed)
        case 2:
            lie = draw.choice(LIES).to_bytes(8, "little")[: draw.choice((1, 2, 4, 8))]
            return whole[:at] + lie + whole[at + len(lie) :]
        case 3:  # a digit of a number in JSON, many times
            digits = [i for i in range(end) if chr(whole[i]).isdigit()]
            at = draw.choice(digits) if digits else at
            return whole[:at] + b"9" * draw.choice((1, 9, 19, 400)) + whole[at + 1 :]
        case _:
            start = draw.randrange(end)
            return whole[:at] + whole[start : start + draw.randrange(64)] + whole[at:]


def tokenizer(file: Path) -> None:
    made = Tokenizer(models.BPE({"a": 0, "b": 1, "ab": 2}, [("a", "b")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel()
    made.enable_padding(length=8)
    made.save(str(file))


def sharded(place: Path) -> None:
    names = sorted(WEIGHTS)
    halves = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, keys in halves.items():
        save_file({key: WEIGHTS[key] for key in keys}, place / file)
    index = {"weight_map": {key: file for file, keys in halves.items() for key in keys}}
    (place / "model.safetensors.index.json").write_text(json.dumps(index))


def models_of(place: Path) -> Iterator[tuple[Path, Path]]:
    """Model folders, and in each the file that is damaged next."""
    whole = folder(place / "whole")
    tokenizer(whole / "tokenizer.json")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        yield whole, whole / name
    index = folder(place / "index")
    (index / "model.safetensors").unlink()
    sharded(index)
    yield index, index / "model.safetensors.index.json"
    yield index, index / "a.safetensors"
    for name in ("llama", "llama_old"):
        archive = folder(place / name)
        (archive / "model.safetensors").unlink()
        (archive / "pytorch_model.bin").write_bytes(TORCH[f"good/{name}"].tobytes())
        yield archive, archive / "pytorch_model.bin"
    yield gguf(place / "a.gguf"), place / "a.gguf"


def copies(
    place: Path, whole: Path, file: Path, draw: random.Random, head: int, each: int = EACH
) -> Iterator[Path]:
    """Copies of a folder, or of a file alone, each with one damaged file."""
    name = f"{whole.name}-{file.relative_to(place)}".replace("/", "-")
    for number in range(each):
        copy = place / f"{name}-{number}{whole.suffix}"
        if whole.is_dir():
            shutil.copytree(whole, copy)
        target = copy / file.relative_to(whole) if whole.is_dir() else copy
        target.write_bytes(damaged(file.read_bytes(), draw, head))
        yield copy


def consistent(run: Path) -> None:
    """The checksums of a run, as one who damages it on purpose writes them."""
    words = run / "model.json"
    held = json.loads(words.read_text())
    kept = held["checkpoint"]
    for name in kept["files"]:
        held_bytes = (run / kept["folder"] / name).read_bytes()
        kept["files"][name] = [len(held_bytes), zlib.crc32(held_bytes)]
    words.write_text(json.dumps(held))


def check(paths: list[Path], read: str, refused: Callable[[int], bool]) -> None:
    outcomes = bounded(paths, read)
    assert len(outcomes) == len(paths)
    for path, said, seconds, size in outcomes:
        named = said.startswith(("ValueError", "CompositionError", "ParameterError", "FileNot"))
        assert said == "read" or (named and path in said), said
        assert not any(sign in said for sign in "\x00\x1b\x7f"), said
        assert seconds < SECONDS and size < MEGABYTES, f"{path}: {seconds} s, {size} MB: {said}"
    assert refused(sum(said != "read" for _, said, _, _ in outcomes))


def test_models(tmp_path):
    draw, paths = random.Random(0), []
    for whole, file in models_of(tmp_path):
        head = 400 if file.suffix in (".safetensors", ".bin") else 2000
        paths += copies(tmp_path, whole, file, draw, head)
    check(paths, "pretrained.load", lambda count: count > len(paths) // 2)


@pytest.mark.parametrize("knows", [False, True])
def test_runs(knows, tmp_path):
    """By chance, which a checksum finds; and on purpose, checksums and all."""
    run = tmp_path / "run"
    checkpoint.save(run, {"a": np.arange(60.0), "b": (np.ones((2, 3), "f4"), {})}, {"width": 2})
    draw, paths = random.Random(1), []
    for file in sorted(file for file in run.rglob("*") if file.is_file()):
        if knows and file.name == "model.json":
            continue
        made = list(copies(tmp_path, run, file, draw, 10**6, 10 if knows else 6))
        if knows:
            for copy in made:
                consistent(copy)
        paths += made
    least = len(paths) // 8 if knows else len(paths) - 8  # orbax names files by chance
    check(paths, "checkpoint.load", lambda count: count > least)
