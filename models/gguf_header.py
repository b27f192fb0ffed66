"""The header of a GGUF file: its fields and where its tensors lie, each checked against the file.

    magic, version, counts; fields: name, type, value; tensors: name, shape, type, offset; numbers

The reader of the package gguf believes what a header says of itself: an array of a billion entries
takes gigabytes before the file is seen to end, and an offset past 2^63 reads other bytes. Here, as
in llama.cpp, every length is compared with what is left of the file, and tensors lie one after the
other.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from .disk import regular, shown

__all__ = ["Field", "Header", "Tensor", "read_header"]

NUMBERS = {
    GGUFValueType.UINT8: "u1", GGUFValueType.INT8: "i1", GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2", GGUFValueType.UINT32: "<u4", GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4", GGUFValueType.BOOL: "u1", GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8", GGUFValueType.FLOAT64: "<f8",
}  # fmt: skip
MOST_AXES = 4


class Field(NamedTuple):
    """A value as it lies in the file: numbers as an array, texts as bytes. `kind` is its type,
    that of the entries where it is an array."""

    kind: GGUFValueType
    many: bool
    held: Any


class Tensor(NamedTuple):
    """The bytes of a tensor; `shape` is in NumPy's order, the reverse of the file's."""

    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    data: np.ndarray


class Header(NamedTuple):
    file: Path
    fields: dict[str, Field]
    tensors: dict[str, Tensor]


class Cursor:
    """A place in the bytes of a file, which only moves on as far as there are bytes."""

    def __init__(self, data: np.ndarray):
        self.data, self.at = data, 0

    def take(self, size: int) -> np.ndarray:
        if size > len(self.data) - self.at:
            raise ValueError(f"it ends {size - len(self.data) + self.at:,} bytes too early")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> int:
        return struct.unpack(form, self.take(struct.calcsize(form)).tobytes())[0]

    def text(self) -> bytes:
        return self.take(self.number("<Q")).tobytes()

    def name(self) -> str:
        return self.text().decode("utf-8")

    def field(self) -> Field:
        kind = GGUFValueType(self.number("<I"))
        if kind is not GGUFValueType.ARRAY:
            return Field(kind, False, self.entries(kind, 1)[0])
        kind, count = GGUFValueType(self.number("<I")), self.number("<Q")
        return Field(kind, True, self.entries(kind, count))

    def entries(self, kind: GGUFValueType, count: int) -> Any:
        if kind is GGUFValueType.STRING:
            self.check(8 * count)
            return [self.text() for _ in range(count)]
        if kind not in NUMBERS:
            raise ValueError("it has an array of arrays")
        form = np.dtype(NUMBERS[kind])
        return self.take(count * form.itemsize).view(form)

    def check(self, size: int) -> None:
        """Whether so many bytes are left, before as many objects are made."""
        if size > len(self.data) - self.at:
            raise ValueError(f"it ends {size - len(self.data) + self.at:,} bytes too early")


def read_header(file: Path) -> Header:
    """Read the header of a file, which is mapped into memory.

    Raises ValueError, OverflowError or struct.error for a file that is damaged, or no GGUF file.
    """
    cursor = Cursor(np.memmap(regular(file), np.uint8, "r"))
    if cursor.take(4).tobytes() != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version = cursor.number("<I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, and 2 and 3 are read, little-endian")
    tensors, fields = cursor.number("<Q"), cursor.number("<Q")
    held = {}
    cursor.check(13 * fields)  # a name's length, a type and a byte
    for _ in range(fields):
        add(held, cursor.name(), cursor.field())
    cursor.check(24 * tensors)  # a name's length, a rank, a type and an offset
    places: dict[str, tuple[GGMLQuantizationType, tuple[int, ...], int]] = {}
    for _ in range(tensors):
        name, axes = cursor.name(), cursor.number("<I")
        if axes > MOST_AXES:
            raise ValueError(f"{shown(name)} has {axes} axes, and {MOST_AXES} are the most")
        shape = tuple(cursor.number("<Q") for _ in range(axes))[::-1]
        kind = GGMLQuantizationType(cursor.number("<I"))
        add(places, name, (kind, shape, cursor.number("<Q")))
    return Header(file, held, laid_out(cursor, places, alignment(held)))


def add(held: dict[str, Any], name: str, value: Any) -> None:
    if name in held:
        raise ValueError(f"it has {shown(name)} twice")
    held[name] = value


def alignment(fields: dict[str, Field]) -> int:
    field = fields.get("general.alignment", Field(GGUFValueType.UINT32, False, 32))
    if field.kind is not GGUFValueType.UINT32 or field.many or int(field.held).bit_count() != 1:
        raise ValueError("general.alignment is no power of two")
    return int(field.held)


def laid_out(cursor: Cursor, places: dict[str, Any], align: int) -> dict[str, Tensor]:
    """The bytes of every tensor: each begins where the one before it ended, aligned."""
    cursor.take(min(-cursor.at % align, len(cursor.data) - cursor.at))
    start, tensors = cursor.at, {}
    for name, (kind, shape, offset) in places.items():
        cursor.take(-(cursor.at - start) % align)
        if offset != cursor.at - start:
            raise ValueError(f"{shown(name)} lies at {offset:,}, not at {cursor.at - start:,}")
        group, size = GGML_QUANT_SIZES[kind]
        *rows, width = shape or (1,)
        if width % group:
            raise ValueError(f"{shown(name)} has rows of {width}, no multiple of {group}")
        data = cursor.take(math.prod(shape) // group * size)
        tensors[name] = Tensor(kind, shape, data.reshape(*rows, width // group * size))
    return tensors
