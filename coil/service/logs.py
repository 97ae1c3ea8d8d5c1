"""Logs: one JSON object per line on standard error, written by a separate thread.

The reader of standard error may stall. Requests do not wait for it: lines are buffered in memory, and if
there are too many, further ones are dropped and counted.
"""

from __future__ import annotations

import io
import json
import logging
import os
import select
import sys
import threading
from collections import deque
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any, TextIO

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}
MOST_WAITING = 4 << 20  # bytes of lines that are not yet written
_PATIENCE = 2.0  # seconds without a line written, after which the end of the process does not wait for more


class JsonFormatter(logging.Formatter):
    """Time, level, event, and the values given as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        value: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        value.update({name: thing for name, thing in vars(record).items() if name not in _PLAIN})
        if record.exc_info:
            value["traceback"] = self.formatException(record.exc_info)
        return json.dumps(value, default=str)


class LineWriter(logging.Handler):
    """Writes records in a thread. `close` waits for the lines that somebody still reads."""

    def __init__(self, stream: TextIO, most_waiting: int = MOST_WAITING) -> None:
        super().__init__()
        self.setFormatter(JsonFormatter())
        self._stream, self._most = stream, most_waiting
        self._lines: deque[bytes] = deque()
        self._waiting = self._dropped = self._written = 0  # bytes that wait, lines dropped, lines written
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._write_lines, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line; never waits."""
        try:
            line = self.format(record).encode() + b"\n"
        except Exception:
            self.handleError(record)
            return
        with self._changed:
            if self._closed or self._waiting + len(line) > self._most:
                self._dropped += 1
                return
            self._lines.append(line)
            self._waiting += len(line)
            self._changed.notify_all()

    def close(self) -> None:
        """Write the waiting lines, unless nobody reads them."""
        with self._changed:
            if self._closed:  # the end of the process closes handlers, too
                return
            self._closed = True
            self._changed.notify_all()
        logging.getLogger().removeHandler(self)
        before = -1
        while self._thread.is_alive() and self._written != before:
            before = self._written
            self._thread.join(_PATIENCE)
        super().close()

    def _write_lines(self) -> None:
        while line := self._next():
            with suppress(OSError, ValueError):  # the stream may be closed
                self._write(line)
            with self._changed:
                self._waiting -= len(line)
                self._written += 1

    def _next(self) -> bytes:
        """The next line, or how many were dropped once there is room again; nothing at the end."""
        with self._changed:
            while not self._lines and not self._closed and not self._dropped:
                self._changed.wait()
            if self._lines:
                return self._lines.popleft()
            dropped, self._dropped = self._dropped, 0
            if not dropped:
                return b""
            values = {"levelno": logging.WARNING, "levelname": "WARNING", "msg": "log lines dropped"}
            line = self.format(logging.makeLogRecord({**values, "lines": dropped})).encode() + b"\n"
            self._waiting += len(line)
            return line

    def _write(self, line: bytes) -> None:
        """Write to the file itself, if there is one: the process must not wait for its lock on exit."""
        try:
            number = self._stream.fileno()
        except io.UnsupportedOperation:
            self._stream.write(line.decode())
            self._stream.flush()
            return
        while line:
            try:
                line = line[os.write(number, line) :]
            except BlockingIOError:  # a pipe that its other end made non-blocking, and that is full
                select.select([], [number], [], _PATIENCE)


def log_as_json(stream: TextIO | None = None) -> LineWriter:
    """Log requests, and warnings from all loggers, to standard error, one JSON object per line; close it
    at the end. Without a handler, logging itself would write the records, and wait for the reader."""
    handler = LineWriter(stream if stream is not None else sys.stderr)
    logging.getLogger().addHandler(handler)
    logging.captureWarnings(True)
    for name, level in (("coil.service", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
        logger.setLevel(level)
    return handler
