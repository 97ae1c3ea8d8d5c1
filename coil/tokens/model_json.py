"""Reading the JSON files of a model folder as untrusted input: every defect is a ModelError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from coil.errors import MissingModelFile, ModelError
from coil.interruptions import let_through

LARGEST = 256 << 20  # bytes; a tokenizer with a million tokens takes 50 MB
COPY = "copy the complete model folder again"


def check_file(path: Path, remedy: str = COPY, largest: int | None = None) -> None:
    """Refuse a path that is not a file, or a file that cannot be read or is too large."""
    try:
        if not path.is_file():
            what = "is not a file" if path.is_dir() or path.is_symlink() else "is missing"
            raise MissingModelFile(f"{path} {what}", remedy)
        size = path.stat().st_size
        path.open("rb").close()  # libraries call a file that may not be read missing or damaged
    except PermissionError as error:
        raise ModelError(
            f"{path} cannot be read: permission denied", "check the permissions of the file and its folder"
        ) from error
    except OSError as error:
        let_through(error)
        raise ModelError(f"{path} cannot be read: {error.strerror or error}", remedy) from error
    if largest is not None and size > largest:
        raise ModelError(f"{path} has {size:,} bytes, which exceeds the limit of {largest:,}", remedy)


def read_json(path: Path, remedy: str = COPY) -> dict[str, Any]:
    """The object of a JSON file."""
    check_file(path, remedy, LARGEST)
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ModelError(f"{path} is nested too deeply", remedy) from error
    except (OSError, ValueError) as error:
        let_through(error)
        raise ModelError(f"{path} is not valid JSON: {str(error)[:200]}", remedy) from error
    if not isinstance(value, dict):
        raise ModelError(f"{path} contains a {type(value).__name__}; expected a JSON object", remedy)
    return value
