"""Paths that no terminal should print as they are, or that no system accepts."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coil.errors import InputError
from coil.texts.corpora import read_documents
from coil.texts.judgements import read_judgements
from coil.texts.queries import read_queries


def test_names_in_messages_cannot_control_a_terminal(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("river")
    (tmp_path / "b\x1b[2J\x9b.txt").write_bytes(b"\0\0")
    with caplog.at_level(logging.WARNING, "coil.texts"):
        assert [document.doc_id for document in read_documents(tmp_path)] == ["a.txt"]
    assert "b�[2J�.txt: not a text file" in caplog.text
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("read", [read_documents, read_queries, read_judgements])
def test_a_path_that_is_too_long(read: object, tmp_path: Path) -> None:
    assert callable(read)
    for path in ("x" * 300 + ".txt", str(tmp_path / ("y" * 300)), "z/" * 3000 + "a.jsonl"):
        with pytest.raises(InputError, match="cannot be read"):
            list(read(path))
