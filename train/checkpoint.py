"""What a run keeps in its folder: its arrays, saved by orbax, and in words what they belong to.

    model.json              the words, the tree of the arrays, and the files of the arrays
    parameters-3f2a1b0c/    the arrays, as orbax writes them

A save writes a new folder of arrays, then renames a new model.json into place: at that moment the
run changes. Orbax refuses arrays without numbers and forgets which sequences were tuples, so it
gets the arrays in a row, and the tree stands in model.json. Nothing is compressed: the files bound
what they may ask for.
"""

from __future__ import annotations

import json
import math
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..models.disk import flush, legible, locked, read_fields, regular, replaced, steady, writing
from .described import Leaf, described, differences, leaf_from, rebuilt, unicode

__all__ = ["Mismatch", "load", "save"]

WORDS, ARRAYS, FIELD = "model.json", "parameters-", "checkpoint"
DAMAGES = (
    ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, OverflowError,
    RecursionError,
)  # fmt: skip
"""What Python and orbax raise about a tree, or arrays, that `save` did not write."""


class Mismatch(ValueError):
    """Raised for a whole save that belongs to another model or run."""


def save(folder: Path, params: Any, words: dict[str, Any]) -> Path:
    """Write parameters and what is needed to build their term again: JSON, beside the arrays.

    `params` is any tree of arrays; random keys are arrays, too. A killed writer leaves what was
    saved before or what is saved now, and two writers wait for each other. Raises ValueError, by
    its path, for a leaf that is no array of numbers or a name that is not Unicode, and OSError,
    which names the file, where it cannot be written; what was saved before is then still whole.
    """
    if FIELD in words:
        raise ValueError(f"the word {FIELD!r} is taken: it says where the arrays are")
    nodes, values, leaves = described(params)
    arrays = {str(i): numbers(*pair) for i, pair in enumerate(zip(leaves, values, strict=True))}
    kept: dict[str, Any] = {"tree": nodes, "leaves": leaves}
    json.dumps(kept)  # raises before anything is written
    for name, word in words.items():
        if not unicode(json.dumps({name: word}, ensure_ascii=False)):
            raise ValueError(f"the word {name!r} holds a text that is not Unicode")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder), ExitStack() as undo:
        new = folder / f"{ARRAYS}{secrets.token_hex(4)}"
        undo.callback(remove, folder, new.name)
        with writing(new):
            write(new, {name: array for name, array in arrays.items() if array.size})
            kept |= {"folder": new.name, "files": dict(written(new))}
        with replaced(folder / WORDS) as file:
            text = json.dumps({**words, FIELD: kept}, indent=2, ensure_ascii=False)
            file.write_text(text, "utf-8")
        undo.pop_all()
        remove(folder, ARRAYS, new)
    return new


def remove(folder: Path, beginning: str, but: Path | None = None) -> None:
    """Remove the folders of arrays, whole ones and what orbax left of others, but one."""
    for other in folder.glob(f"{beginning}*"):
        if other != but:
            shutil.rmtree(other)


def load(folder: Path, like: Any = None, /, **kinds: type) -> tuple[Any, dict[str, Any]]:
    """The parameters and the words that `save` wrote; those named are there, and of their type.

    `like` is a tree of arrays, abstract ones too, whose nodes, shapes and types the parameters have
    to have, or a function that makes it from the words; without it, trees of dicts, lists, tuples
    and None are read. Raises FileNotFoundError for a folder in which no run was saved, ValueError
    for a file that is not what `save` writes, by its name, and Mismatch, a ValueError, for what
    differs from `like`, by its path.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = save(Path(folder), {"a": {"b": np.ones(2)}}, {"width": 2})
    ...     load(Path(folder), width=int)
    ({'a': {'b': array([1., 1.])}}, {'width': 2})
    """
    file = folder / WORDS
    if not file.exists():
        raise FileNotFoundError(
            f"no run was saved in {str(folder)!r}: {WORDS} is missing; `combinax text` saves one"
        )
    return steady(folder, (WORDS,), partial(read, file, like, kinds))


def read(file: Path, like: Any, kinds: Mapping[str, type]) -> tuple[Any, dict[str, Any]]:
    words = read_fields(file, **kinds, **{FIELD: dict})
    kept = words.pop(FIELD)
    with legible(file, "run", *DAMAGES):
        nodes, leaves = kept["tree"], [leaf_from(*leaf) for leaf in kept["leaves"]]
        stores = [store(leaf) for leaf in leaves]
        folder = file.parent / kept["folder"]
        if folder.parent != file.parent or not folder.name.startswith(ARRAYS):
            raise ValueError(f"{kept['folder']!r} is no folder of arrays")
        if like is None:
            rebuilt(nodes, leaves)
    if like is not None:
        like = like(words) if callable(like) else like
        if said := differences(nodes, leaves, like):
            raise Mismatch(f"{str(file)!r} has another tree than is asked for: {said}")
    size = unharmed(file, folder, kept["files"])
    asked = sum(math.prod(shape) * jnp.dtype(dtype).itemsize for shape, dtype in stores)
    if asked > size:
        raise ValueError(f"{str(file)!r} has arrays of {asked:,} bytes, and their files {size:,}")
    arrays = restored(folder, stores)
    values = [value(*pair) for pair in zip(leaves, arrays, strict=True)]
    if like is not None:
        return jax.tree.unflatten(jax.tree.structure(like), values), words
    return rebuilt(nodes, values), words


# Arrays as they are stored


def numbers(leaf: Leaf, array: Any) -> np.ndarray:
    """The numbers of an array in a type that orbax stores: keys as integers, and floats of which
    it knows nothing as bytes."""
    array = np.asarray(array if leaf.generator is None else jax.random.key_data(array))
    shape, dtype = store(leaf)
    return array.astype(array.dtype.newbyteorder("="), copy=False).view(dtype).reshape(shape)


def store(leaf: Leaf) -> tuple[tuple[int, ...], str]:
    """The shape and the type in which a leaf is stored. Raises ValueError where there is none."""
    import tensorstore  # slow to import, so where it is used

    if leaf.generator is not None:
        one = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=leaf.generator)))
        return (*leaf.shape, *one.shape), one.dtype.name
    try:
        tensorstore.dtype(leaf.dtype)
    except ValueError:
        if jnp.dtype(leaf.dtype).itemsize > 1:
            raise ValueError(
                f"{leaf.path} holds {leaf.dtype}, which orbax does not store"
            ) from None
        return leaf.shape, "uint8"
    return leaf.shape, leaf.dtype


def value(leaf: Leaf, array: np.ndarray) -> Any:
    if leaf.generator is not None:
        return jax.random.wrap_key_data(jnp.asarray(array), impl=leaf.generator)
    return array.view(jnp.dtype(leaf.dtype))


def write(folder: Path, arrays: dict[str, np.ndarray]) -> None:
    if not arrays:  # orbax refuses to save nothing
        folder.mkdir()
        return
    import orbax.checkpoint as orbax  # half a second, so where it is used

    handler = orbax.PyTreeCheckpointHandler(use_compression=False)
    with closing(orbax.Checkpointer(handler)) as checkpointer:
        checkpointer.save(folder.absolute(), args=orbax.args.PyTreeSave(arrays))


def restored(folder: Path, stores: Sequence[tuple[tuple[int, ...], str]]) -> list[np.ndarray]:
    """The arrays of a folder. Raises ValueError for others than these."""
    import orbax.checkpoint as orbax

    sought = {str(i): store for i, store in enumerate(stores) if math.prod(store[0])}
    if not sought:
        return [np.zeros(*store) for store in stores]
    handler = orbax.PyTreeCheckpointHandler(use_compression=False)
    with closing(orbax.Checkpointer(handler)) as checkpointer, legible(folder, "orbax", *DAMAGES):
        metadata = checkpointer.metadata(folder.absolute()).item_metadata
        if metadata is None:
            raise ValueError("its metadata cannot be read")
        held = {
            name: (tuple(one.shape), jnp.dtype(one.dtype).name)
            for name, one in metadata.tree.items()
        }
        if held != sought:
            raise ValueError("its arrays are others than those of model.json")
        arguments = {name: orbax.RestoreArgs(restore_type=np.ndarray) for name in sought}
        arrays = checkpointer.restore(
            folder.absolute(), args=orbax.args.PyTreeRestore(restore_args=arguments)
        )
    return [
        arrays[str(i)] if str(i) in sought else np.zeros(shape, jnp.dtype(dtype))
        for i, (shape, dtype) in enumerate(stores)
    ]


# Files


def files(folder: Path) -> Iterator[tuple[str, Path]]:
    for file in sorted(folder.rglob("*")):
        if not file.is_dir():
            yield file.relative_to(folder).as_posix(), file


def written(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """The size and the checksum of every file, once the disk has it."""
    for name, file in files(folder):
        flush(file)
        yield name, [file.stat().st_size, checksum(file)]


def unharmed(words: Path, folder: Path, expected: Any) -> int:
    """How many bytes the files of a folder have. Raises ValueError, by its name, for a file that is
    not as it was written."""
    if not isinstance(expected, dict):
        raise ValueError(f"{str(words)!r} does not say which files belong to it")
    found = dict(files(folder))
    for name in sorted(found.keys() ^ expected.keys()):
        what = "belongs to no run" if name in found else "is missing"
        raise ValueError(f"{str(folder / name)!r} {what}: the run is damaged")
    for name, file in found.items():
        if [regular(file).stat().st_size, checksum(file)] != expected[name]:
            raise ValueError(f"{str(file)!r} is no longer what was saved: the file is damaged")
    return sum(file.stat().st_size for file in found.values())


def checksum(file: Path) -> int:
    total = 0
    with file.open("rb") as opened:
        while block := opened.read(2**20):
            total = zlib.crc32(block, total)
    return total
