"""Segments of real passages, with the vectors of a real model or with random ones, which is much faster.

Words come from a folder of collections and training pairs. Random token vectors are small, so that the
context changes the contribution of a word by some tenths. Random sentence vectors are projections of tf-idf
vectors along principal directions; they have unit length, and the first 64 of 256 dimensions hold about 70 %
of the squared length. Queries are moved towards their nearest passages.
"""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from coil.lists.building import SegmentBuilder
from coil.lists.segment import MOST_ROWS, LiveSegment
from coil.tokens.list_keys import ListKeys
from coil.tokens.profile import WORDS
from coil.tokens.tokenizer import Tokenizer
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

TOKENIZER = Path(__file__).parent.parent / "coil" / "models" / "default" / "tokenizer.json"
N_T, N_C, HEAD = 32, 256, 64
LENGTH = 512  # tokens of a passage
IN_HEAD = 0.7  # of the squared length of sentence vectors
FIT = 0.1  # the standard deviation of β·q·d
_PROJECTED = 512


@dataclass(frozen=True)
class Passages:
    """Encoded passages in segments, and the encoded queries of each collection."""

    segments: list[LiveSegment]
    keys: list[tuple[str, ...]]  # of each passage
    queries: dict[str, list[TokenVectors]]


def make_passages(data: Path, most: int, queries: int, seed: int = 0) -> Passages:
    """The first `most` distinct passages of a data folder, and some queries of each collection."""
    rng = np.random.default_rng(seed)
    texts, questions = read_texts(data, most, queries, rng)
    list_keys = ListKeys(WORDS, Tokenizer.from_file(TOKENIZER))
    keys = _keys(list_keys, texts)
    asked = {name: _keys(list_keys, some) for name, some in questions.items()}
    sentences = _Sentences(keys, rng)
    made = (_encoded(rng, *pair) for pair in zip(keys, sentences.of(keys), strict=True))
    segments = list(build_segments(made))
    stored = np.concatenate([live.segment.sentences.decode() for live in segments])
    encoded = {
        name: [
            _encoded(rng, of_text, vector)
            for of_text, vector in zip(some, near(sentences.of(some), stored), strict=True)
        ]
        for name, some in asked.items()
    }
    return Passages(segments, keys, encoded)


def encode_passages(encoder: Encoder, data: Path, most: int, queries: int, seed: int = 0) -> Passages:
    """The same passages and queries, encoded by a model at a few hundred passages per second."""
    texts, questions = read_texts(data, most, queries, np.random.default_rng(seed))
    keys: list[tuple[str, ...]] = []

    def encoded() -> Iterator[TokenVectors]:
        for vectors in tqdm(encoder.encode_documents(texts), total=len(texts), unit=" passages"):
            keys.append(tuple(key for key in vectors.keys if key is not None))
            yield vectors

    segments = list(build_segments(encoded()))
    return Passages(
        segments, keys, {name: list(encoder.encode_queries(some)) for name, some in questions.items()}
    )


def read_texts(
    data: Path, most: int, queries: int, rng: np.random.Generator
) -> tuple[list[str], dict[str, list[str]]]:
    """Passages in random order of their sources, and the queries of each collection."""
    texts = list(_distinct(_texts(data), most))
    questions = {
        folder.name: _queries(folder, queries)
        for folder in sorted(data.iterdir())
        if (folder / "queries.jsonl").exists()
    }
    return [texts[i] for i in rng.permutation(len(texts))], questions


def build_segments(texts: Iterable[TokenVectors]) -> Iterator[LiveSegment]:
    """One row per text."""
    builder = SegmentBuilder(WORDS, N_T, N_C, "int8")
    for ordinal, text in enumerate(texts):
        if len(builder) == MOST_ROWS:
            yield LiveSegment(builder.finish(), None)
            builder = SegmentBuilder(WORDS, N_T, N_C, "int8")
        builder.add(ordinal, (0, 1), text)
    yield LiveSegment(builder.finish(), None)


def near(queries: NDArray[np.float32], stored: NDArray[np.float32]) -> NDArray[np.float32]:
    """Queries moved towards their ten nearest passages: an encoder puts them closer than shared words do."""
    moved = []
    for query in queries:
        products = stored @ query
        nearest = stored[np.argpartition(-products, 10)[:10]].mean(axis=0)
        moved.append(query + nearest / max(float(np.linalg.norm(nearest)), 1e-9))
    found = np.stack(moved)
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)


def _texts(data: Path) -> Iterator[str]:
    for folder in sorted(data.iterdir()):
        for path in sorted(folder.glob("corpus.jsonl*")):
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as file:
                for line in file:
                    document = json.loads(line)
                    yield f"{document.get('title') or ''} {document['text']}".strip()
    for path in sorted((data / "train").glob("*.jsonl.xz")):
        with lzma.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)["positive"]


def _distinct(texts: Iterator[str], most: int) -> Iterator[str]:
    seen: set[str] = set()
    for text in texts:
        if text not in seen and len(text) > 40:
            seen.add(text)
            yield text
            if len(seen) == most:
                return


def _queries(folder: Path, most: int) -> list[str]:
    lines = (folder / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    step = max(len(lines) // most, 1)
    return [json.loads(line)["text"] for line in lines[::step][:most]]


def _keys(list_keys: ListKeys, texts: Sequence[str]) -> list[tuple[str, ...]]:
    found = []
    for begin in range(0, len(texts), 1000):
        for keyed in list_keys.of_texts(texts[begin : begin + 1000], LENGTH):
            found.append(tuple(key for key in keyed.keys if key is not None))
    return found


def _encoded(rng: np.random.Generator, keys: tuple[str, ...], sentence: NDArray[np.float32]) -> TokenVectors:
    """β·q·d of two such vectors has a standard deviation of FIT."""
    size = np.sqrt(FIT / WORDS.beta / np.sqrt(N_T))
    vectors = (rng.standard_normal((len(keys), N_T)) * size).astype(np.float32)
    return TokenVectors(
        keys, np.arange(len(keys), dtype=np.int32), np.zeros((len(keys), 2), np.int32), vectors, sentence
    )


class _Sentences:
    """Random projections of tf-idf vectors, turned to principal directions and stretched along them."""

    def __init__(self, keys: Sequence[tuple[str, ...]], rng: np.random.Generator) -> None:
        df: dict[str, int] = {}
        for of_text in keys:
            for key in set(of_text):
                df[key] = df.get(key, 0) + 1
        self._number = {key: number for number, key in enumerate(df)}
        self._idf = np.log(len(keys) / np.array(list(df.values()))).astype(np.float32)
        self._projection = rng.standard_normal((len(df), _PROJECTED)).astype(np.float32)
        sample = self._projected(
            [keys[i] for i in rng.choice(len(keys), min(len(keys), 20_000), replace=False)]
        )
        values, directions = np.linalg.eigh(np.cov(sample.T))
        chosen = np.argsort(-values)[:N_C]
        wanted = _spectrum()
        self._directions = (directions[:, chosen] * np.sqrt(wanted / values[chosen])).astype(np.float32)

    def of(self, keys: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        """[texts, N_C]"""
        found = np.concatenate(
            [
                self._projected(keys[begin : begin + 4096]) @ self._directions
                for begin in range(0, len(keys), 4096)
            ]
        )
        return found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9)

    def _projected(self, keys: Sequence[tuple[str, ...]]) -> NDArray[np.float32]:
        found = np.zeros((len(keys), _PROJECTED), np.float32)
        for row, of_text in enumerate(keys):
            numbers = np.array([self._number[key] for key in of_text if key in self._number], dtype=np.intp)
            unique, counts = np.unique(numbers, return_counts=True)
            weights = (1 + np.log(counts)) * self._idf[unique]
            norm = np.linalg.norm(weights)
            if norm:
                found[row] = (weights / norm).astype(np.float32) @ self._projection[unique]
        return found


def _spectrum() -> NDArray[np.float64]:
    """Variances that fall by a power of their place, the first HEAD of them adding up to IN_HEAD."""
    low, high = 0.0, 4.0
    for _ in range(50):
        power = (low + high) / 2
        variances = (np.arange(N_C) + 8.0) ** -power
        variances /= variances.sum()
        if variances[:HEAD].sum() < IN_HEAD:
            low = power
        else:
            high = power
    return variances
