"""Decompression in bounded memory, whatever a file declares or unpacks to.

gzip and bzip2 keep at most a few megabytes of unpacked data. xz and zstandard files declare how much the
decoder must keep (the dictionary, or window), up to gigabytes; a file that exceeds the limit is rejected.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
from collections.abc import Iterator
from typing import Any, BinaryIO, cast

from coil.errors import InputError, require

COMPRESSIONS = (".gz", ".xz", ".bz2", ".zst")
LARGEST_WINDOW = 128 << 20  # used by `zstd --ultra -22` and `zstd --long`; twice that of `xz -9`

_FIRST_BYTES = {
    b"\x1f\x8b\x08": ".gz",
    b"\xfd7zXZ\x00": ".xz",
    b"BZh91AY&SY": ".bz2",
    b"\x28\xb5\x2f\xfd": ".zst",
}
_CHUNK = 1 << 16


def decompressed(file: BinaryIO, compression: str, where: str, largest_window: int) -> BinaryIO:
    """The decompressed bytes of a file; `compression` is the extension of its name, or empty."""
    start = cast(io.BufferedReader, file).peek(16)[:16]
    if compression and not start:  # gzip would read this as an empty text
        raise EOFError("the file is empty")
    if not compression:
        compression = next((kind for mark, kind in _FIRST_BYTES.items() if start.startswith(mark)), "")
    largest_window = min(largest_window, LARGEST_WINDOW)
    if compression == ".gz":
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    if compression == ".xz":
        return cast(BinaryIO, io.BufferedReader(_StreamReader(file, where, largest_window)))
    if compression == ".bz2":
        return cast(BinaryIO, io.BufferedReader(_StreamReader(file, where, None)))
    if compression == ".zst":
        return cast(BinaryIO, io.BufferedReader(_ZstdReader(file, where, largest_window)))
    return file


def _window_error(where: str, needed: str, limit: int) -> InputError:
    return InputError(
        f"decompressing {where} requires {needed} that exceeds the limit of {limit:,} bytes",
        "raise --memory, or compress the file again with the default options",
    )


class _StreamReader(io.RawIOBase):
    """The streams of an xz or bzip2 file, one after another.

    Unlike `lzma.LZMAFile` and `bz2.BZ2File`, it limits the decoder's memory, reads the padding of xz files
    (format, section 2.2), and fails on anything else after a stream: that may be a damaged stream.
    """

    def __init__(self, file: BinaryIO, where: str, xz_window: int | None) -> None:
        super().__init__()
        self._file, self._where, self._is_xz = file, where, xz_window is not None
        self._limit = (xz_window or 0) + (1 << 20)  # the decoder's tables
        self._stream = self._decoder(lzma.FORMAT_AUTO)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with data from at most one chunk of the file."""
        data = b""
        while not data:
            chunk = b""
            if self._stream.eof:
                chunk = self._next_stream()
                if not chunk:
                    return 0
                self._stream = self._decoder(lzma.FORMAT_XZ)
            elif self._stream.needs_input:
                chunk = self._file.read(_CHUNK)
                if not chunk:
                    raise EOFError("the compressed data is truncated")
            try:
                data = self._stream.decompress(chunk, len(buffer))
            except lzma.LZMAError as error:
                if "limit" in str(error):
                    raise _window_error(self._where, "a dictionary", self._limit) from error
                raise
        buffer[: len(data)] = data
        return len(data)

    def _decoder(self, xz_format: int) -> Any:
        return lzma.LZMADecompressor(xz_format, self._limit) if self._is_xz else bz2.BZ2Decompressor()

    def _next_stream(self) -> bytes:
        """The first bytes after the end of a stream and its padding; empty at the end of the file."""
        padding = 0
        chunk: bytes = self._stream.unused_data or self._file.read(_CHUNK)
        while self._is_xz and chunk:
            stream = chunk.lstrip(b"\0")
            padding += len(chunk) - len(stream)
            chunk = stream
            if stream:
                break
            chunk = self._file.read(_CHUNK)
        if padding % 4:
            raise OSError("the padding after an xz stream is not a multiple of four bytes")
        return chunk


class _ZstdReader(io.RawIOBase):
    """Zstandard frames (RFC 8878), decoded block by block: a block unpacks to at most 128 KiB.

    The package's own readers either unpack a whole chunk at once (16 KiB may unpack to half a gigabyte), or
    do not report that a file is truncated.
    """

    _MAGIC, _SKIPPABLE = 0xFD2FB528, range(0x184D2A50, 0x184D2A60)
    _LARGEST_BLOCK = 1 << 17

    def __init__(self, file: BinaryIO, where: str, largest_window: int) -> None:
        super().__init__()
        self._zstandard = require("zstandard", "readers")
        self._file, self._where, self._largest_window = file, where, largest_window
        self._blocks = self._unpack()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with data from at most one block."""
        while not self._ready:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._ready = memoryview(block)
        count = min(len(buffer), len(self._ready))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count

    def _unpack(self) -> Iterator[bytes]:
        try:
            while start := self._file.read(4):
                magic = int.from_bytes(start + self._read(4 - len(start)), "little")
                if magic in self._SKIPPABLE:
                    self._skip(int.from_bytes(self._read(4), "little"))
                elif magic == self._MAGIC:
                    yield from self._unpack_frame(start)
                else:
                    raise OSError("expected the start of a zstandard frame")
        except self._zstandard.ZstdError as error:
            raise OSError(str(error)) from error

    def _unpack_frame(self, start: bytes) -> Iterator[bytes]:
        flags = self._read(1)[0]
        single, content = flags >> 5 & 1, flags >> 6
        window_at = self._read(0 if single else 1)
        rest = self._read((0, 1, 2, 4)[flags & 3])  # the dictionary id
        size = self._read((single, 2, 4, 8)[content])
        if single:  # the frame is its own window
            window = int.from_bytes(size, "little") + (256 if content == 1 else 0)
        else:
            window = (8 + (window_at[0] & 7)) << (7 + (window_at[0] >> 3))
        if window > self._largest_window:
            raise _window_error(self._where, f"a window of {window:,} bytes", self._largest_window)
        decoder = self._zstandard.ZstdDecompressor().decompressobj()
        yield decoder.decompress(start + bytes([flags]) + window_at + rest + size)
        last = False
        while not last:
            head = self._read(3)
            value = int.from_bytes(head, "little")
            last, kind, length = bool(value & 1), value >> 1 & 3, value >> 3
            if length > self._LARGEST_BLOCK:
                raise OSError(f"an invalid zstandard block of {length:,} bytes")
            yield decoder.decompress(head + self._read(1 if kind == 1 else length))  # 1: one byte, repeated
        if flags >> 2 & 1:
            yield decoder.decompress(self._read(4))  # the checksum
        if not decoder.eof:
            raise OSError("an incomplete zstandard frame")

    def _read(self, count: int) -> bytes:
        data = self._file.read(count) if count else b""
        if len(data) < count:
            raise EOFError("the zstandard data is truncated")
        return data

    def _skip(self, count: int) -> None:
        while count:
            count -= len(self._read(min(count, _CHUNK)))
