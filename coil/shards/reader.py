"""ShardedReader: reads one state of all shards, with the methods of a reader of a single index."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import nsmallest
from typing import Any, TypeVar

from coil.errors import InputError, MissingShard, StateGone
from coil.explanations.explanation import Explanation
from coil.hits.answering import FIRST_PAGE, Answer, check_parts
from coil.hits.paging import Paging
from coil.hits.spelling import LOOKED_AT, Suggestion, suggest_words
from coil.indexes.hits import Hits, warn_of_unknown
from coil.indexes.questions import answer_questions, check_paging, name_unknown
from coil.indexes.reader import unpicklable
from coil.shards.calls import ShardCalls
from coil.shards.collection import ShardedCollection, State, Vector, WholeStatistics, unknown_id
from coil.shards.exchange import ExplainAsk, Narrowing, ShardFacts, seconds_left
from coil.shards.searcher import ShardedSearcher
from coil.storage.documents import may_remember
from coil.storage.facts import IndexFacts
from coil.storage.filters import parse_filter
from coil.texts.asking import Question, plain_question, read_question
from coil.texts.questions import (
    check_filter,
    check_id,
    check_k,
    check_queries,
    check_query,
    check_timeout,
)
from coil.texts.values import Document, clean
from coil.tokens.profile import By
from coil.tokens.tokenizer import GoOn
from coil.vectors.encoder import Encoder
from coil.vectors.token_vectors import TokenVectors

_TRIES = 8  # while the shards change faster than they can be asked
_T = TypeVar("_T")


@dataclass(frozen=True)
class Whole:
    """What all readers of a sharded index share."""

    calls: ShardCalls
    encoder: Encoder
    settings: dict[str, Any]
    partial: bool  # whether to answer without shards that do not
    documents: tuple[int, ...]  # of each shard when it was built, for those that do not answer
    statistics: Callable[[State], WholeStatistics]
    hold: Callable[[Vector], Callable[[], object] | None] = lambda _: None  # see `ShardedCollection`


class ShardedReader:
    """One state of each shard, fixed by the first answer: until then, a shard that has moved on is asked
    about its newer state, and a shard that does not answer is left out if that is allowed."""

    def __init__(self, whole: Whole, versions: Vector | Callable[[], Vector]) -> None:
        self._whole = whole
        self._settled = False
        self._look_at(versions)

    def _look_at(self, versions: Vector | Callable[[], Vector]) -> None:
        whole = self._whole
        self._state = State(whole.calls, versions, whole.partial)
        self._collection = ShardedCollection(self._state, whole.statistics, whole.hold)
        self._fields: dict[str, bool] = {}

    def _settle(self, ask: Callable[[], _T]) -> _T:
        """Ask; repeat if the shards are not in the expected states."""
        for attempt in range(_TRIES):
            try:
                found = ask()
                self._state.check_there()
            except (StateGone, MissingShard) as error:
                if self._settled or attempt + 1 == _TRIES:
                    raise
                versions = list(self._state.versions)
                if isinstance(error, StateGone):
                    versions[error.number] = error.version
                else:
                    gone = [number for number in error.numbers if versions[number] is not None]
                    if not self._whole.partial or not gone or len(self._state.numbers) == len(gone):
                        raise
                    for number in gone:
                        versions[number] = None
                self._look_at(tuple(versions))
            else:
                self._settled = True
                return found
        raise AssertionError("the last try returns or raises")

    def __reduce__(self) -> tuple[Any, ...]:
        """Refuse to pickle a pinned state: see `IndexReader`."""
        raise unpicklable()

    # ---- what is there

    @property
    def versions(self) -> Vector:
        """The version of each shard that is read, None for one that does not answer."""
        return self._state.versions

    @property
    def version(self) -> int:
        """A number that grows with every change."""
        return sum(version or 0 for version in self.versions)

    @property
    def missing(self) -> list[dict[str, int]]:
        """The shards that do not answer, with the documents that they had when they were built."""
        count = len(self.versions)
        return [
            {"shard": number, "of": count, "documents": self._whole.documents[number]}
            for number, version in enumerate(self.versions)
            if version is None
        ]

    def tell_state(self) -> dict[str, Any]:
        """What an answer says about the state it was read from."""
        missing = self.missing
        return {"versions": list(self.versions), "partial": bool(missing), "missing": missing}

    @property
    def encoder(self) -> Encoder:
        """The model that the index was built with."""
        return self._whole.encoder

    def settings(self) -> dict[str, Any]:
        """What the index was built with."""
        return dict(self._whole.settings)

    def __len__(self) -> int:
        return self._settle(lambda: int(sum(self._state.ask("count_documents").values())))

    def has(self, doc_id: str) -> bool:
        """Whether a document has this id; also as `doc_id in index`."""
        return self._settle(lambda: self._collection.find(doc_id)) is not None

    def __contains__(self, doc_id: object) -> bool:
        return isinstance(doc_id, str) and self.has(doc_id)

    def document(self, doc_id: str) -> Document:
        """A document by its id; also as `index[doc_id]`."""

        def ask() -> Document:
            return self._collection.fetch([self._collection.ordinal_of(doc_id)])[0]

        return self._settle(ask)

    def __getitem__(self, doc_id: str) -> Document:
        return self.document(doc_id)

    def size_of(self, doc_id: str) -> int | None:
        """The bytes of a document's text and fields, None if no document has this id."""

        def ask() -> int | None:
            found = self._collection.find(doc_id)
            if found is None:
                return None
            [(_, [size])] = self._state.ask_parts("sizes_of", [found])
            return int(size)

        return self._settle(ask)

    def inspect(self, longest: int = 10, timeout: float | None = None) -> IndexFacts:
        """Sizes and settings of all shards together, including the keys of the `longest` lists; see
        `Index.inspect`."""
        seconds = check_timeout(timeout)
        parts = self._settle(lambda: self._state.ask("facts", seconds))
        return _joined(list(parts.values()), longest, self.version)

    # ---- searching

    def search(self, query: str, k: int = 10, **how: Any) -> Hits:
        """The k best documents for a query; further arguments are those of `Index.search`."""
        return self.search_many([check_query(query)], k, **how)[0]

    def search_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        filter: str | None = None,
        by: By = "coil",
        min_score: float | None = None,
        min_share: float | None = None,
        offset: int = 0,
        sort: str | None = None,
        fold_duplicates: bool = False,
        plain: bool = False,
    ) -> list[Hits]:
        """The k best documents for each of many queries; their texts are fetched when one is read."""
        asked, paging = check_queries(queries), check_paging(offset, sort, fold_duplicates)
        found = self.answer_many(asked, k, filter, by, min_score, min_share, paging=paging, plain=plain)
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
        """The answers that a single index of all documents would give; see `IndexReader.answer_many`."""
        asked, k, filter = check_queries(queries), check_k(k), check_filter(filter)
        timeout = check_timeout(timeout)
        deadline = None if timeout is None else time.monotonic() + timeout
        if filter is not None:
            parse_filter(filter)

        def ask() -> list[Answer]:
            is_field = partial(self._has_field, deadline=deadline)
            if paging.field is not None and self._collection.statistics.n_rows and not is_field(paging.field):
                raise InputError(
                    f"no document has the field {paging.field!r:.80}", "sort by an existing field"
                )
            questions = [plain_question(q) if plain else read_question(q, is_field) for q in asked]

            def answer(some: Sequence[Question], left: int | None) -> list[Answer]:
                conditions = some[0].conditions if some else ()
                searcher = self._searcher(Narrowing(filter, conditions))
                return searcher.answer_many(
                    [question.text for question in some],
                    k,
                    None,
                    by,
                    min_score,
                    min_share,
                    deadline,
                    texts,
                    left,
                    paging,
                    most_each,
                )

            answers = answer_questions(questions, answer, most_text if texts else None)
            if not k or not self._collection.statistics.n_rows:
                return answers
            return name_unknown(answers, filter, is_field)

        return self._settle(ask)

    def _searcher(self, narrowing: Narrowing = Narrowing()) -> ShardedSearcher:  # noqa: B008  it is frozen
        precision = str(self._whole.settings["precision"])
        return ShardedSearcher(self.encoder, self._collection, precision, narrowing)

    def _has_field(self, name: str, deadline: float | None = None) -> bool:
        known = self._fields.get(name)
        if known is None:
            known = any(self._state.ask("has_field", name, seconds_left(deadline)).values())
            if may_remember(self._fields, name):
                self._fields[name] = known
        return known

    def read_query(self, query: str, plain: bool = False, deadline: float | None = None) -> Question:
        """A query with its operators."""
        if plain:
            return plain_question(check_query(query))
        is_field = partial(self._has_field, deadline=deadline)
        return self._settle(lambda: read_question(check_query(query), is_field))

    def suggest(
        self, query: str, plain: bool = False, go_on: Callable[[], object] | None = None
    ) -> list[Suggestion]:
        """Did you mean: see `Index.suggest`."""

        def ask() -> list[Suggestion]:
            words = _ShardedWords(self._state, self._collection.statistics)
            return suggest_words(self.encoder, words, self.read_query(query, plain).text, go_on)

        return self._settle(ask)

    # ---- explaining

    def explain(self, query: str, doc_id: str, by: By = "coil", plain: bool = False) -> Explanation:
        """Why a document has its score."""

        def ask() -> Explanation:
            explainer = ShardedExplainer(self, self.read_query(query, plain).text, by)
            return replace(explainer.explain_many([doc_id])[0], query=query)

        return self._settle(ask)

    def explainer(
        self, query: str, by: By = "coil", vectors: TokenVectors | None = None, deadline: float | None = None
    ) -> ShardedExplainer:
        """An object that explains any number of documents for one query, until the deadline."""
        return ShardedExplainer(self, query, by, vectors, deadline)


class ShardedExplainer:
    """A query, encoded once, whose documents are explained by the shards that have them."""

    def __init__(
        self,
        reader: ShardedReader,
        query: str,
        by: By = "coil",
        vectors: TokenVectors | None = None,
        deadline: float | None = None,
    ) -> None:
        self._reader, self.query, self.by, self._deadline = reader, check_query(query), by, deadline
        check_parts(reader.encoder.config, by)
        if vectors is None:
            [vectors] = reader._searcher().encode([query], by)
        self.vectors = vectors

    def explain_many(
        self, doc_ids: Sequence[str], sentence_parts: bool = True, go_on: GoOn | None = None
    ) -> list[Explanation]:
        """Why documents have their scores, in this order; each shard is asked once."""
        return self._reader._settle(lambda: self._explain(doc_ids, sentence_parts, go_on))

    def _explain(self, doc_ids: Sequence[str], sentence_parts: bool, go_on: GoOn | None) -> list[Explanation]:
        collection, state = self._reader._collection, self._reader._state
        wanted = [clean(check_id(doc_id)) for doc_id in doc_ids]
        totals = collection.statistics.learn(key for key in self.vectors.keys if key is not None)
        parts: dict[int, list[str]] = {}
        for doc_id in wanted:
            parts.setdefault(state.routing.shard_of(doc_id), []).append(doc_id)
        if go_on is not None:
            go_on()

        def arguments(number: int) -> tuple[ExplainAsk]:
            ids, seconds = tuple(parts[number]), seconds_left(self._deadline)
            return (ExplainAsk(self.query, self.by, self.vectors, totals, ids, sentence_parts, seconds),)

        answers = state.ask_each("explain", arguments, parts)
        found = {explanation.doc_id: explanation for some in answers.values() for explanation in some}
        for doc_id in wanted:
            if doc_id not in found:  # its shard does not answer
                raise unknown_id(doc_id)
        return [found[doc_id] for doc_id in wanted]


class _ShardedWords:
    """The words of all shards: what suggestions are taken from."""

    def __init__(self, state: State, statistics: WholeStatistics) -> None:
        self._state, self._statistics = state, statistics

    def rows_with(self, keys: Sequence[str]) -> list[int]:
        """The number of rows with each of these keys."""
        found = self._statistics.learn(keys)
        return [found.rows[key] for key in keys]

    def written(self, key: str, forms: Collection[str]) -> Sequence[tuple[int, str | None]]:
        """The first rows with a key over all shards; those of one document stay in order."""
        found = self._state.ask("written", key, forms).values()
        return nsmallest(LOOKED_AT, (row for rows in found for row in rows), key=lambda row: row[0])


def _joined(parts: Sequence[ShardFacts], longest: int, version: int) -> IndexFacts:
    """The facts of all shards together."""
    facts = [part.facts for part in parts]
    lengths: dict[str, int] = {}
    for part in parts:
        for key, length in part.lengths.items():
            lengths[key] = lengths.get(key, 0) + length
    stored = sum(part.stored_mentions for part in parts)
    in_mentions = sum(part.facts.bytes_a_mention * part.stored_mentions for part in parts)

    def total(name: str) -> int:
        return sum(getattr(of, name) for of in facts)

    return replace(
        facts[0],
        documents=total("documents"),
        rows=total("rows"),
        deleted_rows=total("deleted_rows"),
        mentions=total("mentions"),
        lists=len(lengths),
        longest_lists=tuple(nsmallest(longest, lengths.items(), key=lambda item: (-item[1], item[0]))),
        truncated_documents=total("truncated_documents"),
        segments=total("segments"),
        version=version,
        unfinished=any(of.unfinished for of in facts),
        bytes_lists=total("bytes_lists"),
        bytes_documents=total("bytes_documents"),
        bytes_a_mention=in_mentions / stored if stored else 0.0,
        token_error=max(of.token_error for of in facts),
        sentence_error=max(of.sentence_error for of in facts),
    )
