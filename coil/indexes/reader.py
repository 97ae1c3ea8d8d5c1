"""An index on disk as its readers see it: one consistent state, searched, explained and looked at."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coil.errors import InputError, MissingModelFile, ModelError, OptionMismatch, how_many
from coil.explanations.explainer import explain_hit
from coil.explanations.explanation import Explanation
from coil.hits.rankers import Selection, check_deadline
from coil.hits.reranker import AT_ONCE, Candidate, check_candidates, rank_candidates
from coil.hits.searcher import Answer, Hit, Searcher
from coil.lists.segment import LiveSegment
from coil.lists.segment_file import check_segment
from coil.scores.bm25 import rank_with_bm25
from coil.storage.facts import IndexFacts, NameList, gather_facts
from coil.storage.filters import parse_filter
from coil.storage.intake import Consumed
from coil.storage.snapshot import SEGMENTS_FOLDER, Snapshot
from coil.storage.writer import BUILD
from coil.texts.values import Document
from coil.tokens.list_keys import NO_LIST
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder

if TYPE_CHECKING:
    from typing import Self


class OnDisk:
    """A snapshot as a collection to search."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def segments(self) -> list[LiveSegment]:
        return self._snapshot.segments

    def document(self, ordinal: int) -> Document:
        return self._snapshot.catalog.document(ordinal)

    def fetch(self, ordinals: Sequence[int], texts: bool = True) -> list[Document]:
        return self._snapshot.catalog.documents(ordinals, texts)

    def ordinal_of(self, doc_id: str) -> int:
        return self._snapshot.catalog.place_of(doc_id)[0]


class IndexReader:
    """What can be asked of an index. What others commit is seen after `refresh`.

    Threads may read at the same time, also while one of them refreshes.
    """

    def __init__(
        self,
        folder: Path,
        encoder: Encoder | None = None,
        threads: int = 1,
        device: str | None = None,
        model: str | Path | None = None,
    ) -> None:
        """`model`: where its model is, if that is no longer where it was."""
        self.folder = folder
        self._model_at = model
        self._encoder = encoder
        self._threads, self._device = threads, device
        self._cached: tuple[Snapshot, Searcher] | None = None
        self._swap = threading.Lock()
        self._snapshot = Snapshot(folder)
        self._settings = self._snapshot.catalog.settings()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        with self._held() as snapshot:
            return snapshot.catalog.n_documents()

    def __repr__(self) -> str:
        return f"<coil.Index {str(self.folder)!r}, {how_many(len(self), 'document')}>"

    def close(self) -> None:
        """Let go of the files."""
        self._snapshot.close()

    @property
    def encoder(self) -> Encoder:
        """The model that the index was made with, loaded when it is first needed."""
        if self._encoder is None:
            self._encoder = self._load_model()
        made_with = self._settings["fingerprint"]
        if self._encoder.fingerprint != made_with:
            raise OptionMismatch(
                f"{self.folder} was made with the model {made_with}, but the one at hand "
                f"({self._model_at or self._settings['model'] or 'bundled'}) is {self._encoder.fingerprint}",
                "open it with the model it was made with (--model FOLDER), or build it again",
            )
        return self._encoder

    def _load_model(self) -> Encoder:
        if self._model_at is not None:
            return OnnxEncoder(self._model_at)
        try:
            return OnnxEncoder(self._settings["model"])
        except MissingModelFile as error:
            raise MissingModelFile(
                f"{self.folder} was made with a model that is no longer there: {error}",
                "say where it is now with --model FOLDER, or coil.open(..., model=FOLDER)",
            ) from error

    @property
    def model(self) -> str | None:
        """The name or folder of the model that the index was made with, None for the bundled one."""
        name: str | None = self._settings["model"]
        return name

    def use(self, encoder: Encoder) -> None:
        """Take this model, which must be the one that the index was made with."""
        self._encoder = encoder
        assert self.encoder is encoder

    def settings(self) -> dict[str, Any]:
        """What the index was made with: model, fingerprint, config, precision, long."""
        return dict(self._settings)

    def build_state(self) -> Consumed | None:
        """How far `coil index` has come, None if the index was made otherwise."""
        state = self._settings.get(BUILD)
        return Consumed.from_json(state) if state is not None else None

    @property
    def is_unfinished(self) -> bool:
        """Whether `coil index` has not come to the end of its corpus."""
        state = self.build_state()
        return state is not None and not state.finished

    def search(self, query: str, k: int = 10, filter: str | None = None, tok_only: bool = False) -> list[Hit]:
        """The k best documents for a query."""
        return self.search_many([query], k, filter, tok_only)[0]

    def search_many(
        self, queries: Iterable[str], k: int = 10, filter: str | None = None, tok_only: bool = False
    ) -> list[list[Hit]]:
        """The k best documents for each of many queries."""
        return [answer.hits for answer in self.answer_many(queries, k, filter, tok_only)]

    def answer_many(
        self,
        queries: Iterable[str],
        k: int = 10,
        filter: str | None = None,
        tok_only: bool = False,
        timeout: float | None = None,
        texts: bool = True,
    ) -> list[Answer]:
        """The same with what each query cost; after `timeout` seconds it stops with SearchTimeout.

        Without `texts`, hits have neither text nor fields: all that a run needs, and quicker.
        """
        queries = [queries] if isinstance(queries, str) else list(queries)
        _check_question(queries, k, filter)
        deadline = None if timeout is None else time.monotonic() + timeout
        allowed = None
        with self._held() as snapshot:
            if filter is not None:
                parsed = parse_filter(filter)
                allowed = snapshot.catalog.select(parsed.where, parsed.parameters)
            return self._searcher(snapshot).answer_many(queries, k, allowed, tok_only, deadline, texts)

    def search_with_bm25(
        self, query: str, k: int = 10, filter: str | None = None, timeout: float | None = None
    ) -> list[Hit]:
        """The k best documents by BM25 over the same lists: which words occur how often, not what they mean.

        It is what the page shows beside COIL. `chunk` is the part of the text that scored best. After
        `timeout` seconds it stops with SearchTimeout; the ranking, one of its steps, is not interrupted.
        """
        selection = Selection(k, deadline=None if timeout is None else time.monotonic() + timeout)
        allowed = None
        check_deadline(selection)
        with self._held() as snapshot:
            if filter is not None:
                parsed = parse_filter(filter)
                allowed = snapshot.catalog.select(parsed.where, parsed.parameters)
            tokenizer, profile = self.encoder.tokenizer, self.encoder.config.profile
            [tokens] = tokenizer.cut([query], profile.query_length)
            ids = tokens.input_ids[len(tokenizer.prefix) : len(tokens) - len(tokenizer.suffix)]
            lists = self.encoder.keys.of(ids)
            asked = lists[lists != NO_LIST].tolist()
            hits = []
            check_deadline(selection)
            lengths = snapshot.row_lengths  # of a snapshot's first question every mention is counted here
            check_deadline(selection)
            ranked = rank_with_bm25(snapshot.segments, lengths, asked, k, allowed)
            check_deadline(selection)
            for rank, found in enumerate(ranked, start=1):
                document = snapshot.catalog.document(found.ordinal)
                hits.append(
                    Hit(rank, document.doc_id, found.score, document.text, document.fields, found.chunk)
                )
            return hits

    def rerank(self, query: str, doc_ids: Sequence[str], tok_only: bool = False) -> list[Hit]:
        """These documents in the order of their scores for a query; the scores are those of a search."""
        return self.rerank_many([query], [doc_ids], tok_only)[0]

    def rerank_many(
        self, queries: Sequence[str], doc_ids: Sequence[Sequence[str]], tok_only: bool = False
    ) -> list[list[Hit]]:
        """The same for many queries, each with its own documents.

        All of them come back: one that has nothing in common with the query scores 0. Equal scores stand in
        order of insertion, as in a search. An id that is not in the index is an InputError; `has` tells.
        """
        if len(queries) != len(doc_ids):
            raise InputError(
                f"{len(queries)} queries came with candidates for {len(doc_ids)}",
                "give each query its list of ids",
            )
        found = []
        with self._held() as snapshot:
            collection = OnDisk(snapshot)
            for begin in range(0, len(queries), AT_ONCE):
                candidates = []
                for of_query in doc_ids[begin : begin + AT_ONCE]:
                    check_candidates(of_query)
                    candidates.append([collection.ordinal_of(doc_id) for doc_id in of_query])
                some = queries[begin : begin + AT_ONCE]
                for ranked in rank_candidates(self.encoder, collection, some, candidates, tok_only):
                    found.append([_hit(collection, rank, of) for rank, of in enumerate(ranked, start=1)])
        return found

    def explain(self, query: str, doc_id: str, tok_only: bool = False) -> Explanation:
        """Why a document scores what it scores; `explanation.versus(another)` says which is above and why."""
        with self._held() as snapshot:
            return explain_hit(self._searcher(snapshot), query, doc_id, tok_only=tok_only)

    def has(self, doc_id: str) -> bool:
        """Whether a document has this id."""
        with self._held() as snapshot:
            return snapshot.catalog.ordinal_of(doc_id) is not None

    def document(self, doc_id: str) -> Document:
        """A document by its id."""
        with self._held() as snapshot:
            ordinal, _ = snapshot.catalog.place_of(doc_id)
            return snapshot.catalog.document(ordinal)

    def refresh(self) -> None:
        """See what other processes have committed."""
        with self._held() as current:
            newer = Snapshot(self.folder, current)
        with self._swap:
            older, self._snapshot = self._snapshot, newer
            self._cached = None
        older.close()

    @contextmanager
    def pinned(self) -> Iterator[Self]:
        """The index as it is now, to read several times: what is committed meanwhile is not seen."""
        with self._held() as snapshot:
            still = copy.copy(self)
            still._swap = threading.Lock()
            still._snapshot = snapshot
            yield still

    @contextmanager
    def _held(self) -> Iterator[Snapshot]:
        """The snapshot of this moment; it stays open until it is no longer needed here."""
        with ExitStack() as stack:
            with self._swap:  # or it could be closed between our look at it and our hold on it
                snapshot = stack.enter_context(self._snapshot.held())
            yield snapshot

    @property
    def searcher(self) -> Searcher:
        """What answers the queries of a pinned index; of one that is refreshed it may be closed any time."""
        return self._searcher(self._snapshot)

    def _searcher(self, snapshot: Snapshot) -> Searcher:
        """One for as long as the snapshot is the same: it keeps what the kernels read."""
        cached = self._cached
        if cached is None or cached[0] is not snapshot:
            searcher = Searcher(self.encoder, OnDisk(snapshot), threads=self._threads, device=self._device)
            self._cached = cached = (snapshot, searcher)
        return cached[1]

    def verify(self, progress: Callable[[int], object] | None = None) -> None:
        """Read every byte of the index; the first thing that is wrong is raised."""
        with self._held() as snapshot:
            snapshot.catalog.check()
            for entry in snapshot.entries:
                check_segment(self.folder / SEGMENTS_FOLDER / entry.file, entry.facts)
                if progress is not None:
                    progress(entry.facts.bytes)

    def disk_use(self) -> tuple[int, int]:
        """How many segments there are, and how many bytes they take."""
        with self._held() as snapshot:
            return len(snapshot.entries), sum(entry.facts.bytes for entry in snapshot.entries)

    def inspect(self, longest: int = 10) -> IndexFacts:
        """Sizes and settings. Where the model is not at hand, the longest lists are named by number."""
        nameless = ""
        name_list: NameList = _number_of_list
        try:
            name_list = self._words_of_list()
        except ModelError as error:
            nameless = str(error)
        with self._held() as snapshot:
            return gather_facts(snapshot, self._settings, self.is_unfinished, longest, name_list, nameless)

    def _words_of_list(self) -> NameList:
        keys, tokenizer = self.encoder.keys, self.encoder.tokenizer
        return lambda list_id: tuple(tokenizer.token(token) for token in keys.members(list_id).tolist())


def _number_of_list(list_id: int) -> tuple[str, ...]:
    return (f"list {list_id}",)


def _hit(collection: OnDisk, rank: int, ranked: Candidate) -> Hit:
    document = collection.document(ranked.ordinal)
    return Hit(rank, document.doc_id, ranked.score, document.text, document.fields, ranked.chunk)


def _check_question(queries: list[str], k: object, filter: object) -> None:
    for query in queries:
        if not isinstance(query, str):
            raise InputError(f"a query is a {type(query).__name__}, no text", "search for a string")
    if not isinstance(k, int) or k < 0:
        raise InputError(f"k is {k!r}", "ask for a whole number of hits, 0 or more")
    if filter is not None and not isinstance(filter, str):
        raise InputError(f"the filter is a {type(filter).__name__}, no text", "write it as 'year >= 2020'")
