"""Logs: one JSON object per line on standard error."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime, timezone
from typing import Any, TextIO

_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message", "taskName"}


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


def log_as_json(stream: TextIO | None = None) -> None:
    """Log the service and uvicorn to standard error, one JSON object per line."""
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, level in (("coil.service", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
