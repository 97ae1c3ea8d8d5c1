"""Corpora and builds for tests, with commits so small that a few documents make many."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from coil.indexes.building import open_build
from coil.indexes.index import Index
from coil.texts.corpora import read_documents
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder, answers
from tests.tiny import random_texts

Output = pytest.CaptureFixture[str]
COMMIT_EVERY = 5


class Stop(Exception):
    """What interrupts a build in these tests."""


def write_corpus(path: Path, documents: Iterable[Document]) -> Path:
    lines = (json.dumps({"id": d.doc_id, "text": d.text, **d.fields}) for d in documents)
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def some_documents(count: int, seed: int = 0) -> list[Document]:
    texts = random_texts(count, longest=8, seed=seed)
    return [Document(f"d{i}", text, {"number": i}) for i, text in enumerate(texts)]


def build(out: Path, corpus: Path, stop_after: int = 10**9, **options: Any) -> Index:
    """Build or resume; the build is interrupted once more than `stop_after` documents are encoded."""
    index, before = open_build(out, encoder=HashEncoder(), **options)
    encoded = 0

    def hear(count: int, position: int) -> None:
        nonlocal encoded
        encoded += count
        if encoded > stop_after:
            raise Stop

    try:
        index.build(read_documents(corpus), before.on_duplicate, hear, COMMIT_EVERY)
    except BaseException:
        index.close()
        raise
    return index


def everything(index: Index) -> tuple[Any, list[tuple[int, Document]]]:
    """What is found, and which documents are there, ordinals included."""
    with index._holder.held() as snapshot:
        ordinals = range(1, snapshot.manifest.next_ordinal)
        found = [
            (ordinal, document) for ordinal in ordinals if (document := snapshot.find(ordinal)) is not None
        ]
    return answers(index), found
