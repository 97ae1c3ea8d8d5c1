"""A cache of the queries written for each text, in a file.

The first line is `{"format": ..., "fingerprint": ...}`; each further line is
`{"text": digest of the text, "queries": [...]}`. Lines are appended as queries are written, so an interrupted
run continues where it stopped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

from coil.errors import InputError, OutputError

FORMAT = "coil-written-queries-1"
Write = Callable[[Sequence[str]], list[list[str]]]


def key_of(text: str) -> str:
    """The key of a text in the file."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


class WrittenQueries:
    """A growing file of queries."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        """`fingerprint` identifies the model and the sampling: each combination has its own file."""
        self._path = folder / f"{fingerprint}.jsonl"
        self._fingerprint = fingerprint
        self._known: dict[str, list[str]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if self._path.exists():
                self._read()
            else:
                header = {"format": FORMAT, "fingerprint": fingerprint}
                self._path.write_text(json.dumps(header) + "\n", encoding="utf-8")
        except OSError as error:
            raise OutputError(
                f"{self._path} cannot be read or written: {error.strerror}",
                "choose another folder with the option cache",
            ) from error

    def __len__(self) -> int:
        return len(self._known)

    def _read(self) -> None:
        data = self._path.read_bytes()
        end = data.rfind(b"\n") + 1
        if end < len(data):  # a kill may have left an incomplete last line
            with self._path.open("r+b") as file:
                file.truncate(end)
        for number, line in enumerate(data[:end].decode("utf-8", "replace").splitlines(), 1):
            try:
                value = json.loads(line)
                if number == 1:
                    if value != {"format": FORMAT, "fingerprint": self._fingerprint}:
                        raise ValueError("unexpected header")
                    continue
                self._known[str(value["text"])] = [str(query) for query in value["queries"]]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{self._path}, line {number}: invalid line of written queries ({error})",
                    "delete this file; its queries will be generated again",
                ) from error

    def of(self, texts: Sequence[str], write: Write) -> list[list[str]]:
        """The queries of each text; `write` is called for texts that are not in the file yet."""
        missing = {key: text for text in texts if (key := key_of(text)) not in self._known}
        if missing:
            with self._path.open("a", encoding="utf-8") as file:
                for key, queries in zip(missing, write(list(missing.values())), strict=True):
                    self._known[key] = queries
                    file.write(json.dumps({"text": key, "queries": queries}, ensure_ascii=False) + "\n")
        return [self._known[key_of(text)] for text in texts]
