"""BM25 with the package bm25s, an implementation that shares no code with COIL's."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from coil.errors import OptionMismatch, require
from coil.hits.top_k import top_k
from coil.systems.system import Answered, option
from coil.texts.values import Document, Query

IDS_FILE = "doc_ids.json"


@dataclass(frozen=True)
class Bm25s:
    """BM25 over whole words; the default constants are those usual with Lucene."""

    name: str = "BM25 (bm25s)"
    k1: float = option(0.9, "Saturation of term frequency.")
    b: float = option(0.4, "Length normalization, from 0 to 1.")
    stemmer: Literal["english", "none"] = option("english", "Use Snowball stems, or the words unchanged.")
    stopwords: Literal["english", "none"] = option("english", "Whether to remove stop words.")
    method: Literal["lucene", "robertson", "atire", "bm25l", "bm25+"] = option("lucene", "Variant of BM25.")

    def __post_init__(self) -> None:
        if not (self.k1 >= 0 and 0 <= self.b <= 1):
            raise OptionMismatch(f"k1 is {self.k1}, b is {self.b}; k1 must be 0 or more, b from 0 to 1")

    def index(self, documents: Iterable[Document], folder: Path) -> None:
        """Count all words; the ids are stored next to bm25s's own files."""
        doc_ids, texts = [], []
        for document in documents:
            doc_ids.append(document.doc_id)
            texts.append(document.text)
        package = require("bm25s", "eval")
        index = package.BM25(method=self.method, k1=self.k1, b=self.b)
        index.index(package.tokenize(texts, **self._tokenizing), show_progress=False)
        index.save(str(folder), show_progress=False)
        (folder / IDS_FILE).write_text(json.dumps(doc_ids), encoding="utf-8")

    def search(self, queries: Sequence[Query], k: int, folder: Path) -> Iterator[Answered]:
        """Score every document; one without any word of the query is not a hit."""
        package = require("bm25s", "eval")
        index = package.BM25.load(str(folder), show_progress=False, mmap=True)
        doc_ids: list[str] = json.loads((folder / IDS_FILE).read_text(encoding="utf-8"))
        for query in queries:
            began = time.perf_counter()
            words = package.tokenize([query.text], return_ids=False, **self._tokenizing)[0]
            known = [word for word in words if word and word in index.vocab_dict]
            tokenized = time.perf_counter()
            best, scores = [], []
            if known:
                found = index.get_scores(known)
                places = top_k(found, k, without_zero=True)
                best, scores = [doc_ids[place] for place in places.tolist()], found[places].tolist()
            parts = {"encode": tokenized - began, "search": time.perf_counter() - tokenized}
            yield Answered(query.query_id, best, scores, {part: 1000 * s for part, s in parts.items()})

    @cached_property
    def _tokenizing(self) -> dict[str, Any]:
        stemmer = require("Stemmer", "eval").Stemmer("english") if self.stemmer == "english" else None
        stopwords = "english" if self.stopwords == "english" else []
        return {"stopwords": stopwords, "stemmer": stemmer, "show_progress": False}
