"""PairData: the training pairs as numbers: which query belongs to which passage, and what is not a negative.

Passages and queries are identified by their texts: equal texts have the same number. In a negatives file, a
place such as `faq:17` (line 17 of faq.jsonl) identifies the passage on that line.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from coil.errors import BadLine, InputError
from coil.texts.corpora import read_documents
from coil.texts.opening import STANDARD_INPUT, json_lines
from coil.texts.pairs import Pair, read_pairs
from coil.texts.records import Record
from coil.tokens.list_keys import ListKeys
from coil.tokens.tokenizer import Tokenizer
from coil.training.passage_statistics import PassageStatistics
from coil.training.token_store import ListNumbers, TokenStore, number_tokens

NEGATIVES_FORMAT = "coil-negatives-1"


@dataclass(frozen=True, eq=False)
class Rows:
    """A list of numbers for each row, stored in one array."""

    values: NDArray[np.int64]
    offsets: NDArray[np.int64]

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Rows:
        """Pack lists into one array."""
        offsets = np.concatenate([[0], np.cumsum([len(row) for row in lists])]).astype(np.int64)
        values = np.array([value for row in lists for value in row], dtype=np.int64)
        return cls(values, offsets)


@dataclass(frozen=True, eq=False)
class Places:
    """Which text is at which place; files of negatives and teacher scores refer to places."""

    query_at: dict[str, int]  # place → query
    passage_at: dict[str, int]  # place or document id → passage
    pairs: list[tuple[int, int, int]]  # (source, query, passage)
    digests: dict[str, str]  # source → digest of its pairs
    corpus: list[int]  # the passages of the corpus's documents

    @property
    def sources(self) -> list[str]:
        """The names of the pairs files."""
        return list(self.digests)


@dataclass(frozen=True, eq=False)
class PairData:
    """The data that batches are drawn from."""

    queries: TokenStore
    passages: TokenStore
    statistics: PassageStatistics  # of the passages of each source
    source_of: NDArray[np.int64]  # [pairs]
    query_of: NDArray[np.int64]  # [pairs]
    passage_of: NDArray[np.int64]  # [pairs]
    title_of: NDArray[np.int64]  # [passages] the first query of each passage, -1 for a corpus document
    positives: Rows  # query → passages
    negatives: Rows  # query → passages
    teacher: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]]  # query → passages, scores
    training: NDArray[np.int64]  # pairs to train on
    held_out: NDArray[np.int64]  # pairs to validate on
    digest: str  # of all pairs

    @property
    def n_sources(self) -> int:
        """The number of pairs files."""
        return int(self.source_of.max()) + 1 if len(self.source_of) else 0


class _Numbering:
    """Numbers texts in order of first appearance; equal texts get the same number."""

    def __init__(self) -> None:
        self._number: dict[bytes, int] = {}

    def of(self, text: str) -> tuple[int, bool]:
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        known = self._number.get(key)
        if known is not None:
            return known, False
        self._number[key] = len(self._number)
        return len(self._number) - 1, True


def place(pair: Pair) -> str:
    """The name of a pair's passage in files."""
    return f"{pair.source}:{pair.line}"


def number_pairs(
    files: Sequence[Path], corpus: str | None = None
) -> tuple[Places, Iterator[str], Iterator[str]]:
    """Read the pairs once and number their texts; the iterators yield the distinct texts in this order."""
    queries, passages = _Numbering(), _Numbering()
    query_at: dict[str, int] = {}
    passage_at: dict[str, int] = {}
    pairs: list[tuple[int, int, int]] = []
    digests: dict[str, str] = {}
    if any(str(path) == STANDARD_INPUT for path in files):
        raise InputError(
            "pairs are read more than once, so they cannot come from standard input",
            "save them to a file first",
        )
    for path in files:
        first: Pair | None = None
        digest = hashlib.sha256()
        for pair in read_pairs(path):
            if first is None:
                first = pair
                if pair.source in digests:
                    raise InputError(
                        f"two pairs files have the same name, {pair.source!r}",
                        "rename one: file names identify sources",
                    )
                digests[pair.source] = ""
            query, passage = queries.of(pair.query)[0], passages.of(pair.positive)[0]
            query_at[place(pair)], passage_at[place(pair)] = query, passage
            pairs.append((len(digests) - 1, query, passage))
            digest.update(f"{pair.query}\0{pair.positive}\0".encode("utf-8", "surrogatepass"))
        if first is None:
            raise InputError(
                f"{path} contains no pairs", 'write lines such as {"query": "...", "positive": "..."}'
            )
        digests[first.source] = digest.hexdigest()
    of_corpus: list[int] = []
    if corpus is not None:
        for document in read_documents(corpus):
            if document.doc_id in passage_at:
                raise InputError(f"the id {document.doc_id!r} of {corpus} is also a place in the pairs files")
            passage_at[document.doc_id] = passages.of(document.text)[0]
            of_corpus.append(passage_at[document.doc_id])
    places = Places(query_at, passage_at, pairs, digests, of_corpus)

    def distinct(part: str) -> Iterator[str]:
        seen = _Numbering()
        for path in files:
            for pair in read_pairs(path):
                text = pair.query if part == "query" else pair.positive
                if seen.of(text)[1]:
                    yield text
        if part == "passage" and corpus is not None:
            yield from (d.text for d in read_documents(corpus) if seen.of(d.text)[1])

    return places, distinct("query"), distinct("passage")


def load_pairs(
    folder: Path,
    files: Sequence[Path],
    tokenizer: Tokenizer,
    keys: ListKeys,
    lengths: tuple[int, int],
    held_out: int,
    seed: int,
    negatives: Sequence[Path] = (),
    teacher: Path | None = None,
    corpus: str | None = None,
) -> PairData:
    """Read, number and tokenize the pairs; token files are written to `folder`."""
    places, query_texts, passage_texts = number_pairs(files, corpus)
    folder.mkdir(parents=True, exist_ok=True)
    numbers = ListNumbers()
    stores = []
    for name, texts, length in (
        ("queries", query_texts, lengths[0]),
        ("passages", passage_texts, lengths[1]),
    ):
        path = folder / f"{name}.tokens"
        TokenStore.write(path, number_tokens(texts, tokenizer, keys, numbers, length))
        stores.append(TokenStore.open(path))
    queries, passages = stores
    numbers.save(folder / "lists.json")
    source_of, query_of, passage_of = np.array(places.pairs, dtype=np.int64).reshape(-1, 3).T
    positives: list[list[int]] = [[] for _ in range(len(queries))]
    title_of = np.full(len(passages), -1, dtype=np.int64)
    for query, passage in zip(query_of.tolist(), passage_of.tolist(), strict=True):
        if passage not in positives[query]:
            positives[query].append(passage)
    hard: list[list[int]] = [[] for _ in range(len(queries))]
    covered = set().union(*(covered_sources(file) for file in negatives))
    missing = sorted(set(places.sources) - covered)
    if negatives and missing:
        raise InputError(
            f"no negatives file covers the pairs of {', '.join(missing)}",
            "mine them with `coil mine --pairs ...` over all pairs files",
        )
    for file in negatives:
        for query, found in read_negatives(file, places):
            hard[query].extend(p for p in found if p not in positives[query])
    members = np.zeros((len(places.sources), len(passages)), dtype=bool)
    members[source_of, passage_of] = True
    members[:, places.corpus] = True  # corpus documents belong to every source
    training, validation = _split(query_of, held_out, seed)
    for pair in training.tolist():  # held-out queries must not be seen, not even as titles
        if title_of[passage_of[pair]] < 0:
            title_of[passage_of[pair]] = query_of[pair]
    return PairData(
        queries=queries,
        passages=passages,
        statistics=PassageStatistics.of(passages, len(numbers), members),
        source_of=source_of,
        query_of=query_of,
        passage_of=passage_of,
        title_of=title_of,
        positives=Rows.of(positives),
        negatives=Rows.of(hard),
        teacher=_read_teacher(teacher, places) if teacher is not None else {},
        training=training,
        held_out=validation,
        digest=json.dumps(places.digests),
    )


def _split(
    query_of: NDArray[np.int64], held_out: int, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Hold out whole queries: all pairs of a query are held out, or none."""
    queries = np.unique(query_of)
    wanted = min(held_out, len(queries) // 10)
    chosen = np.random.default_rng([seed, 1]).choice(queries, size=wanted, replace=False)
    out = np.isin(query_of, chosen)
    return np.flatnonzero(~out), np.flatnonzero(out)


def read_negatives(path: Path, places: Places) -> Iterator[tuple[int, list[int]]]:
    """Read the output of `coil mine` as (query, passages); entries for other pairs files are ignored."""
    lines = json_lines(path)
    mined = _mined(path, lines)
    for source, digest in places.digests.items():
        if source in mined and mined[source] != digest:
            raise InputError(
                f"{path} was mined from a different version of {source}",
                "run `coil mine` again on these pairs",
            )
    others = set(mined) - set(places.digests)
    for number, value in lines:
        try:
            at, names = value["at"], value["negatives"]
            if at.rpartition(":")[0] in others:
                continue
            names = [name for name in names if name.rpartition(":")[0] not in others]
            yield places.query_at[at], [places.passage_at[name] for name in names]
        except (KeyError, TypeError, AttributeError) as error:
            raise BadLine(
                path, number, f"unknown place or missing key {error}", "run `coil mine` again"
            ) from error


def covered_sources(path: Path) -> set[str]:
    """The pairs files that a negatives file was mined from."""
    return set(_mined(path, json_lines(path)))


def _mined(path: Path, lines: Iterator[tuple[int, Record]]) -> dict[str, str]:
    """The pairs files that the first line of a negatives file names, with their digests."""
    number, header = next(lines, (1, {}))
    mined = header.get("pairs", {})
    if header.get("format") != NEGATIVES_FORMAT or not isinstance(mined, dict):
        raise BadLine(path, number, "not the first line of a negatives file", "create one with `coil mine`")
    return mined


def _read_teacher(path: Path, places: Places) -> dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Teacher scores: lines {"at": place of the query, "scores": {place of the passage: score}}."""
    scores: dict[int, tuple[NDArray[np.int64], NDArray[np.float32]]] = {}
    for number, value in json_lines(path):
        try:
            found = {places.passage_at[name]: float(score) for name, score in value["scores"].items()}
            query = places.query_at[value["at"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadLine(
                path,
                number,
                f"unknown place or missing key {error}",
                'write lines such as {"at": "faq:17", "scores": {"faq:17": 9.1, "faq:20": 3.2}}',
            ) from error
        scores[query] = (np.array(list(found), np.int64), np.array(list(found.values()), np.float32))
    if not scores:
        raise InputError(f"{path} contains no teacher scores")
    return scores


def negatives_header(places: Places, method: dict[str, object]) -> str:
    """The first line of a negatives file: the method, and the pairs files with their digests."""
    return json.dumps({"format": NEGATIVES_FORMAT, "pairs": places.digests, "method": method})
