"""The files of torch, in both of its formats, read without torch: nothing in them is ever called.

torch.save pickles a dictionary of tensors, whose numbers lie beside the pickle: in a zip archive
today, one after the other before version 1.6. The few instructions that such a pickle needs are
interpreted here, and any other is refused, as torch does for `weights_only=True`. Shapes are
compared with the file before an array is made.
"""

from __future__ import annotations

import math
import mmap
import pickletools
import struct
import zipfile
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .disk import legible, regular, shown
from .layout import Source, Stored

__all__ = ["read"]

STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
REBUILD, ORDERED = "torch._utils _rebuild_tensor_v2", "collections OrderedDict"
LAYOUT = "torch.serialization _get_layout"
PARAMETER = "torch._utils _rebuild_parameter"
MAGIC = 0x1950A86A20F9469CFC6C
"""What a file of the format before zip archives begins with, pickled."""


DAMAGES = (
    ValueError, TypeError, KeyError, IndexError, EOFError, OverflowError, NotImplementedError,
    RuntimeError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
"""What Python raises about bytes that are no archive, no pickle, or none of tensors."""


class Global(NamedTuple):
    """A name of Python that a pickle refers to; it is never looked up."""

    name: str


class Storage(NamedTuple):
    """Numbers of one type in a row, of which a tensor is a view."""

    dtype: str
    key: str
    size: int

    @property
    def bytes(self) -> int:
        return self.size * jnp.dtype(self.dtype).itemsize


class Tensor(NamedTuple):
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    gradient: bool


Places = dict[str, tuple[int, int]]
"""Where the bytes of each storage begin and end, by its key."""


def read(file: Path) -> Source:
    """The tensors of a file by name. Raises ValueError, which names the file, for any other.

    A tensor that requires a gradient is refused: the `state_dict()` of a model has none.
    """
    with regular(file).open("rb") as opened, legible(file, "torch", *DAMAGES):
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        held, places = archived(opened, data) if data[:2] == b"PK" else in_a_row(data)
        tensors = checked(held, places, len(data))
    return {
        name: Stored(
            tensor.shape,
            tensor.storage.dtype,
            partial(array, data, tensor, places[tensor.storage.key][0]),
            file,
        )
        for name, tensor in tensors.items()
    }


def archived(file: IO[bytes], data: mmap.mmap) -> tuple[Any, Places]:
    """What a zip archive has pickled, and where its storages lie."""
    with zipfile.ZipFile(file) as archive:
        entries = inside(archive.infolist())
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries.values()):
            raise ValueError("its archive is compressed, and torch compresses none")
        if "byteorder" in entries and archive.read(entries["byteorder"]) != b"little":
            raise ValueError("its numbers are not little-endian")
        held, _ = unpickled(BytesIO(archive.read(entries["data.pkl"])))
    places = {}
    for name, entry in entries.items():
        if not name.startswith("data/"):
            continue
        sizes = struct.unpack_from("<HH", data, entry.header_offset + 26)
        start = entry.header_offset + 30 + sum(sizes)
        places[name.removeprefix("data/")] = start, start + entry.file_size
    return held, places


def inside(listed: list[zipfile.ZipInfo]) -> dict[str, zipfile.ZipInfo]:
    """The entries of an archive by their names in its folder, which is that of the first."""
    entries: dict[str, zipfile.ZipInfo] = {}
    root = listed[0].filename.partition("/")[0] + "/" if listed else ""
    for entry in listed:
        if not entry.filename.startswith(root):
            raise ValueError(f"its entry {entry.filename} lies outside its folder {root}")
        name = entry.filename.removeprefix(root)
        if name in entries:
            raise ValueError(f"its entry {entry.filename} is there twice")
        entries[name] = entry
    return entries


def in_a_row(data: mmap.mmap) -> tuple[Any, Places]:
    """What a file of before torch 1.6 has pickled, and where its storages lie."""
    magic, version, system = (unpickled(data)[0] for _ in range(3))
    if magic != MAGIC or version != 1001 or system["little_endian"] is not True:
        raise ValueError("it is neither an archive nor a little-endian file of torch before 1.6")
    (held, storages), (keys, _) = unpickled(data), unpickled(data)
    places = {}
    for key in keys:
        storage, (size,) = storages[key], struct.unpack("<q", data.read(8))
        if key in places:
            raise ValueError(f"its storage {shown(key)} is there twice")
        if size != storage.size:
            raise ValueError(f"a storage has {size} numbers in place of {storage.size}")
        places[key] = data.tell(), data.tell() + storage.bytes
        data.seek(storage.bytes, 1)
    return held, places


def checked(held: Any, places: Places, size: int) -> dict[str, Tensor]:
    """The tensors of what was pickled, each of which lies inside the file."""
    if type(held) is not dict:
        raise ValueError(f"it holds a {type(held).__name__}, and weights are tensors by name")
    for name, tensor in held.items():
        what = shown(str(name))
        if type(name) is not str or type(tensor) is not Tensor:
            raise ValueError(f"{what} is a {type(tensor).__name__}, and weights are tensors")
        if tensor.gradient:
            raise ValueError(f"{what} requires a gradient: save the state_dict() of the model")
        storage, count = tensor.storage, math.prod(tensor.shape)
        start, end = places[storage.key]
        strides = zip(tensor.shape, tensor.strides, strict=True)
        last = tensor.offset + sum((n - 1) * stride for n, stride in strides)
        if end > size or storage.bytes > end - start:
            raise ValueError(f"{what} lies past the end of the file")
        if count and (count > storage.size or last >= storage.size):
            raise ValueError(f"{what} of shape {tensor.shape} has {storage.size} numbers")
    # Two names of one array are common; a thousand would make gigabytes of a small file.
    asked = sum(math.prod(t.shape) * jnp.dtype(t.storage.dtype).itemsize for t in held.values())
    if asked > 2 * size:
        raise ValueError(f"its tensors have {asked:,} bytes, and the file {size:,}")
    return held


def array(data: mmap.mmap, tensor: Tensor, start: int) -> np.ndarray:
    if not math.prod(tensor.shape):
        return np.zeros(tensor.shape, jnp.dtype(tensor.storage.dtype))
    numbers = np.frombuffer(data, jnp.dtype(tensor.storage.dtype), tensor.storage.size, start)
    strides = [stride * numbers.itemsize for stride in tensor.strides]
    return np.lib.stride_tricks.as_strided(
        numbers[tensor.offset :], tensor.shape, strides, writeable=False
    )


# The pickle


def unpickled(file: Any) -> tuple[Any, dict[str, Storage]]:
    """What a pickle of tensors describes, and its storages by key; the file stands behind it."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    storages: dict[str, Storage] = {}

    def marked() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    argument: Any
    for operation, argument, _ in pickletools.genops(file):
        match operation.name:
            case "PROTO" | "STOP":
                pass
            case "MARK":
                marks.append(len(stack))
            case "NONE":
                stack.append(None)
            case "NEWTRUE" | "NEWFALSE":
                stack.append(operation.name == "NEWTRUE")
            case "EMPTY_DICT":
                stack.append({})
            case "EMPTY_LIST":
                stack.append([])
            case "EMPTY_TUPLE":
                stack.append(())
            case "TUPLE":
                stack.append(tuple(marked()))
            case "TUPLE1" | "TUPLE2" | "TUPLE3":
                size = int(operation.name[-1])
                stack[-size:] = [tuple(stack[-size:])]
            case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINFLOAT" | "BINUNICODE":
                stack.append(argument)
            case "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                stack.append(Global(argument))
            case "BINPERSID":
                stack.append(storage_of(stack.pop()))
                storages[stack[-1].key] = stack[-1]
            case "REDUCE":
                stack[-2:] = [rebuilt(*stack[-2:])]
            case "BUILD":
                stack.pop()  # attributes, such as the versions that an OrderedDict of weights has
            case "APPEND":
                item = stack.pop()
                extended(stack[-1], [item])
            case "APPENDS":
                items = marked()
                extended(stack[-1], items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                assigned(stack[-1], [key, value])
            case "SETITEMS":
                items = marked()
                assigned(stack[-1], items)
            case name:
                raise ValueError(f"its pickle has the instruction {name}, which no tensor needs")
    return stack.pop(), storages


def extended(target: Any, items: list[Any]) -> None:
    if type(target) is not list:
        raise ValueError("its pickle appends to what is no list")
    target.extend(items)


def assigned(target: Any, items: list[Any]) -> None:
    keys, values = items[::2], items[1::2]
    # A key of tuples inside tuples would be hashed without end.
    if type(target) is not dict or not all(type(key) in (str, int) for key in keys):
        raise ValueError("its pickle has a dictionary whose keys are no names")
    known = set(target)
    for key in keys:
        if key in known:
            raise ValueError(f"its pickle has {shown(str(key))} twice in one dictionary")
        known.add(key)
    target.update(zip(keys, values, strict=True))


def storage_of(given: Any) -> Storage:
    """The storage that a persistent id stands for."""
    kind, type_of, key, _, size, *view = given
    name = type_of.name.removeprefix("torch ") if type(type_of) is Global else ""
    if kind != "storage" or name not in STORAGES or type(key) is not str or any(view):
        raise ValueError(f"it refers to a {shown(str(name))} that is no storage of numbers")
    (size,) = counts(size)
    return Storage(STORAGES[name], key, size)


def rebuilt(function: Any, arguments: Any) -> Any:
    """What a call in a pickle makes, for the few functions that make tensors and dictionaries."""
    name = function.name if type(function) is Global else type(function).__name__
    if name == ORDERED and arguments == ():
        return {}
    if name == PARAMETER:
        tensor, gradient, *_ = arguments
        if type(tensor) is not Tensor:
            raise ValueError("it has a parameter that is no tensor")
        return tensor._replace(gradient=gradient is not False)
    if name != REBUILD:
        made = f"what {shown(name.replace(' ', '.'))} makes"
        what = "a sparse tensor" if name == LAYOUT else made
        raise ValueError(f"it holds {what}, which is not read")
    storage, offset, shape, strides, gradient, *_ = arguments
    if type(storage) is not Storage:
        raise ValueError("it has a tensor without a storage")
    (offset,) = counts(offset)
    return Tensor(storage, offset, counts(*shape), counts(*strides), gradient is not False)


def counts(*numbers: Any) -> tuple[int, ...]:
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError("it has a shape that is none")
    return numbers
