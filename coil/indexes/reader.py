"""The read methods of an index on disk: search, explain and inspect one consistent state."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coil.errors import InputError, MissingSegment, how_many
from coil.explanations.explainer import Explainer, explain_hit
from coil.explanations.explanation import Explanation
from coil.hits.answering import FIRST_PAGE, Answer
from coil.hits.hit import Hit, Shelf
from coil.hits.paging import Paging
from coil.hits.reranker import AT_ONCE, Candidate, check_candidates, rank_candidates
from coil.hits.searcher import Searcher
from coil.hits.spelling import CollectionWords, Suggestion, suggest_words
from coil.indexes.hits import Hits, warn_of_unknown
from coil.indexes.model import IndexModel
from coil.indexes.questions import (
    answer_questions,
    check_paging,
    name_unknown,
    narrow,
    read_query,
    with_filter_time,
)
from coil.indexes.settings import ShardLabel, read_build_state, read_shard
from coil.storage.disk import Folder
from coil.storage.facts import IndexFacts, gather_facts
from coil.storage.holder import Holder, newer_state
from coil.storage.intake import Consumed
from coil.storage.manifest import read_manifest
from coil.storage.snapshot import Snapshot, living_documents
from coil.storage.stored_segment import check_stored
from coil.texts.asking import Question, plain_question, read_question
from coil.texts.questions import (
    check_count,
    check_filter,
    check_k,
    check_queries,
    check_query,
    check_timeout,
)
from coil.texts.values import Document
from coil.tokens.profile import By
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

if TYPE_CHECKING:
    from typing import Self


class IndexReader:
    """The read methods of an index. Commits by others are seen after `refresh`.

    Threads may read concurrently, even while one of them refreshes, writes or closes the index.
    """

    def __init__(
        self, folder: Path, holder: Holder, model: IndexModel, threads: int = 1, device: str | None = None
    ) -> None:
        self.folder = folder
        self._holder, self._model = holder, model
        self._threads, self._device = threads, device
        with holder.held() as snapshot:
            self._settings = dict(snapshot.manifest.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._holder.held() as snapshot:
            return snapshot.manifest.n_documents

    def __repr__(self) -> str:
        try:
            size = how_many(len(self), "document")
        except InputError:
            size = "closed"
        return f"<coil.Index {str(self.folder)!r}, {size}>"

    def close(self) -> None:
        """Close the files as soon as nobody reads them any more."""
        self._holder.close()

    @property
    def encoder(self) -> Encoder:
        """The model of the index, loaded on first use."""
        return self._model.encoder

    @property
    def model(self) -> str | None:
        """The name or folder of the model of the index, None for the bundled one."""
        name: str | None = self._settings["model"]
        return name

    def use(self, encoder: Encoder) -> None:
        """Use this model, which must be the one that the index was built with."""
        self._model.use(encoder)

    def settings(self) -> dict[str, Any]:
        """The settings that the index was created with: model, fingerprint, config, precision, long."""
        return dict(self._settings)

    @property
    def version(self) -> int:
        """A number that increases with every change; reads between two equal versions saw one state."""
        with self._holder.held() as snapshot:
            return snapshot.version

    @property
    def shard(self) -> ShardLabel | None:
        """Which part of a sharded index this is, None if it is whole."""
        return read_shard(self._settings)

    def build_state(self) -> Consumed | None:
        """The progress of `coil index`, None if the index was created in another way."""
        with self._holder.held() as snapshot:
            return read_build_state(snapshot.manifest, self.folder)

    @property
    def is_unfinished(self) -> bool:
        """Whether `coil index` has not yet reached the end of its corpus."""
        state = self.build_state()
        return state is not None and not state.finished

    def search(
        self,
        query: str,
        k: int = 10,
        filter: str | None = None,
        by: By = "coil",
        min_score: float | None = None,
        min_share: float | None = None,
        offset: int = 0,
        sort: str | None = None,
        fold_duplicates: bool = False,
        plain: bool = False,
    ) -> Hits:
        """The k best documents for a query: words, "a phrase", +must, -not, field:word (docs/asking.md).

        `by` selects the scoring system: "coil" (the model's own equation), "tokens" (without the sentence
        vector), "bm25", "dense" (the sentence vector alone) or "hybrid" (BM25 and the sentence vector).
        `min_score` and `min_share` omit hits below a value; see `Hit.share`. `offset` skips the first hits,
        `sort` sorts the best 10,000 by a field ("-year" for descending order), and `fold_duplicates` omits
        hits with the same text as an earlier one. If more documents match than are sorted, `sorted_best` of
        the hits is 10,000 instead of None. With `plain`, operators in the query are plain text.

        If there are no hits and no document has a field that `filter` names, this issues a warning.
        """
        paging = check_paging(offset, sort, fold_duplicates)
        [answer] = self.answer_many(
            [check_query(query)], k, filter, by, min_score, min_share, paging=paging, plain=plain
        )
        hits = Hits.of(answer, query, self.encoder)
        warn_of_unknown([hits])
        return hits

    def search_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        filter: str | None = None,
        by: By = "coil",
        plain: bool = False,
    ) -> list[Hits]:
        """The k best documents for each of many queries."""
        asked = check_queries(queries)
        found = self.answer_many(asked, k, filter, by, plain=plain)
        hits = [Hits.of(answer, query, self.encoder) for query, answer in zip(asked, found, strict=True)]
        warn_of_unknown(hits)
        return hits

    def answer_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        filter: str | None = None,
        by: By = "coil",
        min_score: float | None = None,
        min_share: float | None = None,
        timeout: float | None = None,
        texts: bool = False,
        most_text: int | None = None,
        paging: Paging = FIRST_PAGE,
        plain: bool = False,
        most_each: int | None = None,
    ) -> list[Answer]:
        """Like `search_many`, with the cost of each query. After `timeout` seconds, raises SearchTimeout.

        Texts and fields of hits are loaded on first access, or immediately with `texts`; if they then exceed
        `most_text` bytes in total, raises AnswerTooLarge. Those of a query that exceed `most_each` bytes are
        left for the first access, and its answer is marked as large.
        """
        queries, k, filter = check_queries(queries), check_k(k), check_filter(filter)
        timeout = check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._holder.held() as snapshot:
            began = time.perf_counter()
            allowed = None if filter is None else snapshot.select(filter, deadline)
            filter_ms = 0.0 if filter is None else (time.perf_counter() - began) * 1000 / max(len(queries), 1)
            if (
                paging.field is not None
                and len(snapshot.segments)
                and not snapshot.has_field(paging.field, deadline)
            ):
                raise InputError(
                    f"no document has the field {paging.field!r:.80}", "sort by an existing field"
                )
            searcher = self._searcher(snapshot)

            def answer(questions: Sequence[Question], left: int | None) -> list[Answer]:
                kept, taken = allowed, filter_ms
                if questions and questions[0].conditions:
                    began = time.perf_counter()
                    kept = narrow(snapshot, self.encoder, questions[0].conditions, allowed, deadline)
                    taken += (time.perf_counter() - began) * 1000
                asked = [question.text for question in questions]
                found = searcher.answer_many(
                    asked, k, kept, by, min_score, min_share, deadline, texts, left, paging, most_each
                )
                return found if kept is None else [with_filter_time(answer, taken) for answer in found]

            is_field = partial(snapshot.has_field, deadline=deadline)
            questions = [plain_question(q) if plain else read_question(q, is_field) for q in queries]
            answers = answer_questions(questions, answer, most_text if texts else None)
            return name_unknown(answers, filter, is_field) if k and len(snapshot.segments) else answers

    def rerank(self, query: str, doc_ids: Sequence[str], by: By = "coil") -> Hits:
        """The given documents ordered by their scores for a query; the scores are those of a search."""
        return Hits(self.rerank_many([check_query(query)], [doc_ids], by)[0], query, self.encoder)

    def rerank_many(
        self, queries: Sequence[str], doc_ids: Sequence[Sequence[str]], by: By = "coil"
    ) -> list[list[Hit]]:
        """The same for many queries, each with its own documents.

        All documents are returned: one that has nothing in common with the query scores 0. Ties are in
        insertion order, as in a search. An id that is not in the index raises InputError; check with `has`.
        """
        queries, candidates_of = check_queries(queries), check_candidates(doc_ids)
        if len(queries) != len(candidates_of):
            raise InputError(
                f"got {len(queries)} queries but candidates for {len(candidates_of)}",
                "pass one list of ids per query",
            )
        found = []
        with self._holder.held() as snapshot:
            for begin in range(0, len(queries), AT_ONCE):
                candidates = [
                    _ordinals_of(snapshot, of_query) for of_query in candidates_of[begin : begin + AT_ONCE]
                ]
                some = queries[begin : begin + AT_ONCE]
                for ranked in rank_candidates(self.encoder, snapshot, some, candidates, by):
                    found.append(_hits(snapshot, ranked))
        return found

    def explain(self, query: str, doc_id: str, by: By = "coil", plain: bool = False) -> Explanation:
        """Why a document has its score; `explanation.versus(another)` says which ranks higher and why.

        With `plain`, operators in the query are plain text, as in `rerank`.
        """
        with self._holder.held() as snapshot:
            asked = read_query(snapshot, query, plain).text
            return replace(explain_hit(self._searcher(snapshot), asked, doc_id, by=by), query=query)

    def explainer(
        self, query: str, by: By = "coil", vectors: TokenVectors | None = None, deadline: float | None = None
    ) -> Explainer:
        """An explainer of any number of documents for one query; needs a pinned index.

        The deadline is for other kinds of indexes: here, `go_on` of the explainer ends it.
        """
        return Explainer(self.searcher, query, by, vectors)

    def tell_state(self) -> dict[str, Any]:
        """What an answer says about the state that it used: nothing for a single index."""
        return {}

    def read_query(self, query: str, plain: bool = False, deadline: float | None = None) -> Question:
        """A parsed query: the text that documents are scored by, and the conditions that they must meet.

        Raises SearchTimeout after `deadline`, a time of `time.monotonic`.
        """
        with self._holder.held() as snapshot:
            return read_query(snapshot, query, plain, deadline)

    def suggest(
        self, query: str, plain: bool = False, go_on: Callable[[], object] | None = None
    ) -> list[Suggestion]:
        """Did you mean: for query words that no document contains, the most frequent words one edit away.

        `go_on` is called between words; an exception from it ends the call.
        """
        with self._holder.held() as snapshot:
            words = CollectionWords(self.encoder, snapshot)
            return suggest_words(self.encoder, words, read_query(snapshot, query, plain).text, go_on)

    def has(self, doc_id: str) -> bool:
        """Whether a document has this id; also as `doc_id in index`."""
        with self._holder.held() as snapshot:
            return bool(snapshot.ordinals_of([doc_id]))

    def __contains__(self, doc_id: object) -> bool:
        return isinstance(doc_id, str) and self.has(doc_id)

    def document(self, doc_id: str) -> Document:
        """A document by its id; also as `index[doc_id]`."""
        with self._holder.held() as snapshot:
            return snapshot.document(snapshot.ordinal_of(doc_id))

    def __getitem__(self, doc_id: str) -> Document:
        return self.document(doc_id)

    def __iter__(self) -> Iterator[Document]:
        """All documents in insertion order, as of the start of the iteration."""
        with self.pinned() as still, still._holder.held() as snapshot:
            for live in snapshot.segments:
                for block in snapshot.blocks(living_documents(live).tolist()):
                    yield from snapshot.fetch(block)

    def size_of(self, doc_id: str) -> int | None:
        """The size of a document's text and fields in bytes, None if no document has this id."""
        with self._holder.held() as snapshot:
            for place, ordinal in snapshot.places_of([doc_id]).values():
                return snapshot.stored[place].documents.size_of(ordinal)
            return None

    def refresh(self) -> bool:
        """Pick up commits by other processes. Returns whether there were any.

        A refresh never goes back: if the folder was replaced by another one, or by an earlier state, it
        raises ReplacedIndex and keeps the previous state.
        """
        with self._holder.held() as current, Folder.open(self.folder) as folder:
            newer = newer_state(folder, current)
            return newer is not None and self._holder.offer(newer)

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to pickle a pinned state: by the time that it is read, its files may be gone."""
        raise unpicklable()

    @contextmanager
    def pinned(self) -> Iterator[IndexReader]:
        """The current state of the index, to read several times; later commits are not seen."""
        with self._holder.held() as snapshot:
            snapshot.retain()
            still = IndexReader(self.folder, Holder(snapshot), self._model, self._threads, self._device)
            try:
                yield still
            finally:
                still.close()

    @property
    def searcher(self) -> Searcher:
        """The searcher of a pinned index; that of an index that is refreshed may be closed at any time."""
        with self._holder.held() as snapshot:
            return self._searcher(snapshot)

    @contextmanager
    def held(self) -> Iterator[Snapshot]:
        """Hold the current state while reading it."""
        with self._holder.held() as snapshot:
            yield snapshot

    def searcher_of(self, snapshot: Snapshot) -> Searcher:
        """The searcher of a state that is held."""
        return self._searcher(snapshot)

    def _searcher(self, snapshot: Snapshot) -> Searcher:
        encoder = self.encoder

        def make(collection: Snapshot) -> Searcher:
            return Searcher(encoder, collection, threads=self._threads, device=self._device)

        return snapshot.searcher(make)

    def verify(self, progress: Callable[[int], object] | None = None) -> None:
        """Read every byte of the index on disk, and everything that a search would read. Raises the first
        error found. `progress` is called with the number of further bytes read."""
        checked: set[str] = set()
        with Folder.open(self.folder) as folder:
            while True:
                snapshot = Snapshot.open(folder)
                try:
                    for entry, stored in zip(snapshot.manifest.segments, snapshot.stored, strict=True):
                        if entry.name not in checked:
                            check_stored(folder, entry, stored)
                            checked.add(entry.name)
                            if progress is not None:
                                progress(entry.lists.bytes + entry.texts.bytes)
                    snapshot.check_ids()
                    return
                except MissingSegment:  # a writer may have merged it away: its replacement is checked
                    if read_manifest(folder).version == snapshot.version:
                        raise
                finally:
                    snapshot.release()

    def check_sizes(self) -> None:
        """Detect files that are missing or have the wrong size, without reading them."""
        with self._holder.held() as snapshot, Folder.open(self.folder) as folder:
            for entry, stored in zip(snapshot.manifest.segments, snapshot.stored, strict=True):
                stored.check_sizes(folder, entry)

    def disk_use(self) -> tuple[int, int]:
        """The number of segments, and their size in bytes."""
        with self._holder.held() as snapshot:
            entries = snapshot.manifest.segments
            return len(entries), sum(entry.lists.bytes + entry.texts.bytes for entry in entries)

    def inspect(self, longest: int = 10, timeout: float | None = None) -> IndexFacts:
        """Sizes and settings, including the keys of the `longest` lists. All lists are counted, once for each
        state of the index. SearchTimeout if that takes more than `timeout` seconds."""
        longest = check_count("longest", longest, "write it as inspect(longest=10)")
        with self.pinned() as still, still._holder.held() as snapshot:  # one state, which caches them
            return gather_facts(snapshot, still.is_unfinished, longest, check_timeout(timeout))


def unpicklable() -> InputError:
    """The error when a pinned state is pickled."""
    return InputError(
        "a pinned index cannot be pickled, because its state belongs to this process",
        "pickle the index itself, or open it by its path in the other process",
    )


def _ordinals_of(snapshot: Snapshot, doc_ids: Sequence[str]) -> list[int]:
    found = snapshot.ordinals_of(doc_ids)
    return [found[doc_id] if doc_id in found else snapshot.ordinal_of(doc_id) for doc_id in doc_ids]


def _hits(snapshot: Snapshot, ranked: Sequence[Candidate]) -> list[Hit]:
    ordinals = [of.ordinal for of in ranked]
    shelf = Shelf(snapshot, ordinals)
    ids = [document.doc_id for document in snapshot.fetch(ordinals, texts=False)]
    return [
        Hit(rank, doc_id, of.score, of.chunk, shelf)
        for rank, (doc_id, of) in enumerate(zip(ids, ranked, strict=True), start=1)
    ]
