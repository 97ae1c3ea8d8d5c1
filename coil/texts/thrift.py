"""Thrift's compact protocol, as far as Parquet's footers and page headers need it.

pyarrow describes row groups but not pages, and reading a damaged column with it crashes the process.
"""

from __future__ import annotations

from typing import Any

Fields = dict[int, Any]
_DEEPEST = 16


def read_struct(data: bytes, at: int = 0, depth: int = _DEEPEST) -> tuple[Fields, int]:
    """The fields of a struct by number (int, bytes, list, fields of another struct, None), and where it ends.

    Truncated data is an IndexError; data that is not Thrift is a ValueError.
    """
    if not depth:
        raise ValueError("structs are nested too deeply")
    found: Fields = {}
    number = 0
    while (head := data[at]) != 0:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        # For a bool, the kind is the value.
        found[number], at = (
            (head & 15 == 1, at) if head & 15 in (1, 2) else _value(data, at, head & 15, depth)
        )
    return found, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2, 3):
        return data[at], at + 1
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 7:  # a double
        return None, at + 8
    if kind == 8:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError
        return data[at : at + length], at + length
    if kind in (9, 10):
        return _list(data, at, depth)
    if kind == 12:
        return read_struct(data, at, depth - 1)
    raise ValueError(f"unknown field type {kind}")


def _list(data: bytes, at: int, depth: int) -> tuple[list[Any], int]:
    if not depth:
        raise ValueError("lists are nested too deeply")
    head, at = data[at], at + 1
    count = head >> 4
    if count == 15:
        count, at = _varint(data, at)
    found = []
    for _ in range(count):  # each takes at least one byte, so a wrong count soon runs into the end
        item, at = _value(data, at, head & 15, depth - 1)
        found.append(item)
    return found, at


def _integer(data: bytes, at: int) -> tuple[int, int]:
    value, at = _varint(data, at)
    return value >> 1 ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number is too long")
