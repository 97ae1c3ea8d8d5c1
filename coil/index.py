"""`coil.create` and `coil.open`: an index on disk that can be searched, explained and changed."""

from __future__ import annotations

import copy
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from coil.errors import (
    CoilError,
    InputError,
    MissingIndex,
    MissingModelFile,
    ModelError,
    OptionMismatch,
    OutputError,
    how_many,
)
from coil.explanations.explanation import Explanation, explain_hit
from coil.hits.ranking import Limits, check_deadline
from coil.hits.reranker import AT_ONCE, Candidate, check_candidates, rank_candidates
from coil.hits.searcher import Answer, Hit, Searcher
from coil.lists.catalog import Catalog, catalog_files
from coil.lists.facts import IndexFacts, NameList, gather_facts
from coil.lists.filters import parse_filter
from coil.lists.intake import Consumed, OnDuplicate
from coil.lists.lock import LOCK_FILE, writer_lock
from coil.lists.memory import MemoryPlan, default_budget, plan_memory, resident_bytes
from coil.lists.precision import Precision
from coil.lists.rows import Long
from coil.lists.segment import MOST_ROWS
from coil.lists.segment_file import check_segment
from coil.lists.snapshot import SEGMENTS_FOLDER, LiveSegment, Snapshot
from coil.lists.writer import BUILD, IndexWriter, Listener
from coil.scores.bm25 import rank_with_bm25
from coil.texts.given import GivenDocuments, Texts
from coil.texts.values import Document
from coil.tokens.list_keys import NO_LIST
from coil.vectors.encoder import Encoder
from coil.vectors.onnx_encoder import OnnxEncoder

Encoded = Callable[[int, int], object]
LeftOut = Callable[[list[str]], object]

_log = logging.getLogger("coil.index")


class _OnDisk:
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


class Index:
    """An index. Reads see one consistent state; own changes are seen at once, others' after `refresh`.

    Threads may read one index at the same time, also while one of them changes or refreshes it.
    """

    def __init__(
        self,
        folder: Path,
        encoder: Encoder | None = None,
        memory: int | None = None,
        threads: int = 1,
        device: str | None = None,
        model: str | Path | None = None,
    ) -> None:
        """`memory`: bytes that the process may take while it changes the index. `model`: where its model is,
        if that is no longer where it was."""
        self.folder = folder
        self._model_at = model
        self._encoder = encoder
        self._memory = memory
        self._plan: MemoryPlan | None = None
        self._threads, self._device = threads, device
        self._cached: tuple[Snapshot, Searcher] | None = None
        self._swap = threading.Lock()
        self._snapshot = Snapshot(folder)
        self._settings = self._snapshot.catalog.settings()

    def __enter__(self) -> Index:
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

    # ---- searching

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
        limits = Limits(k, deadline=None if timeout is None else time.monotonic() + timeout)
        allowed = None
        check_deadline(limits)
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
            check_deadline(limits)
            lengths = snapshot.row_lengths  # of a snapshot's first question every mention is counted here
            check_deadline(limits)
            ranked = rank_with_bm25(snapshot.segments, lengths, asked, k, allowed)
            check_deadline(limits)
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
            collection = _OnDisk(snapshot)
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
    def pinned(self) -> Iterator[Index]:
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
            searcher = Searcher(self.encoder, _OnDisk(snapshot), threads=self._threads, device=self._device)
            self._cached = cached = (snapshot, searcher)
        return cached[1]

    # ---- changing

    def add(
        self,
        documents: Texts,
        on_duplicate: OnDuplicate = "error",
        committed: Callable[[int], object] | None = None,
        commit_every: int = MOST_ROWS,
        encoded: Encoded | None = None,
        left_out: LeftOut | None = None,
    ) -> int:
        """Add documents: `Document`s or dicts with an id and a text, from any iterable; returns how many.

        A document without text is left out, and with on_duplicate "update" one of its id that is there goes:
        it could never be found for its words. `left_out` hears the ids of all such, or else the logger
        `coil.index` warns of them.

        `committed` hears how many more are safe on disk, at least every `commit_every` documents; `encoded`
        hears how many more are encoded, and how many bytes of the corpus, if it is files, are read.
        """
        _check_choice("on_duplicate", on_duplicate, OnDuplicate)
        placed = GivenDocuments(documents)
        listener = Listener(self._seen_at_once(committed), encoded, left_out or _warn_of_empty)
        with self._writer(self.encoder) as writer:
            return writer.add(placed, on_duplicate, listener, commit_every, placed.are_files)

    def build(
        self,
        documents: Texts,
        on_duplicate: OnDuplicate,
        encoded: Encoded | None,
        commit_every: int,
        left_out: LeftOut | None = None,
    ) -> int:
        """Add a whole corpus, or what an interrupted build of it has left; returns how many were added."""
        placed = GivenDocuments(documents)
        state = self._settings[BUILD]
        with self._writer(self.encoder) as writer:
            added = writer.build(
                placed,
                replace(Consumed.from_json(state), on_duplicate=on_duplicate),
                Listener(self._seen_at_once(None), encoded, left_out or _warn_of_empty),
                commit_every,
                placed.are_files,
            )
        self.fold()
        return added

    def _seen_at_once(self, committed: Callable[[int], object] | None) -> Callable[[int], None]:
        """Look anew after each commit but the first (after the last there is a look anyway).

        A snapshot that stays would make the catalog's write-ahead file grow for as long as documents come in.
        """
        commits = 0

        def hear(count: int) -> None:
            nonlocal commits
            commits += 1
            if commits > 1:
                self.fold()
            if committed is not None:
                committed(count)

        return hear

    def fold(self) -> None:
        """Put the catalog into one file, as far as other readers allow."""
        self._snapshot.close()
        try:
            catalog = Catalog.open(self.folder)
            catalog.fold()
            catalog.close()
        finally:
            self._snapshot = Snapshot(self.folder)

    def update(self, documents: Texts, left_out: LeftOut | None = None) -> int:
        """Add documents; one whose id is there already takes its place."""
        return self.add(documents, on_duplicate="update", left_out=left_out)

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Take documents out; returns how many of the ids were there, and `missing` hears of those that were
        not, if there are any."""
        if isinstance(doc_ids, str):
            raise InputError("delete takes a list of ids, not one text", f"write delete([{doc_ids!r}])")
        with self._writer() as writer:
            deleted, not_there = writer.delete(doc_ids)
        if not_there and missing is not None:
            missing(not_there)
        return deleted

    def compact(self) -> int:
        """Rewrite the index without what was deleted; returns the number of segments left."""
        with self._writer() as writer:
            segments = writer.compact()
        self.fold()
        return segments

    @contextmanager
    def _writer(self, encoder: Encoder | None = None) -> Iterator[IndexWriter]:
        """`encoder`: for documents that come in; deleting and merging need no model."""
        plan = self._plan
        if plan is None:
            plan = _plan(encoder, self._memory, int(self._settings["config"]["n_t"]))
        if encoder is not None:  # a plan without a model in memory would be too bold for one with it
            self._plan = plan
        with writer_lock(self.folder):
            catalog = Catalog.open(self.folder)
            try:
                yield IndexWriter(
                    self.folder,
                    catalog,
                    encoder,
                    self._settings["precision"],
                    self._settings["long"],
                    plan,
                )
            except BaseException:
                with suppress(CoilError):  # the first error is the one to tell; the old snapshot still serves
                    self.refresh()
                raise
            finally:
                catalog.close()
        self.refresh()

    # ---- looking

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


def tell_left_out(empty: Sequence[str]) -> str:
    """That documents without text were left out, with the first of their ids."""
    verbs = "is empty and was" if len(empty) == 1 else "are empty and were"
    shown = ", ".join(repr(doc_id[:80]) for doc_id in empty[:3]) + (", ..." if len(empty) > 3 else "")
    return f"{how_many(len(empty), 'document')} {verbs} left out: {shown}"


def _warn_of_empty(empty: list[str]) -> None:
    _log.warning("%s", tell_left_out(empty))


def _hit(collection: _OnDisk, rank: int, ranked: Candidate) -> Hit:
    document = collection.document(ranked.ordinal)
    return Hit(rank, document.doc_id, ranked.score, document.text, document.fields, ranked.chunk)


def create(
    path: str | Path,
    model: str | Path | None = None,
    precision: Precision = "int8",
    long: Long = "chunk",
    encoder: Encoder | None = None,
    memory: int | None = None,
    build_with: OnDuplicate | None = None,
) -> Index:
    """Make a new, empty index. `model` None is the bundled one; `long` "truncate" cuts long documents off.

    `memory`: bytes that the process may take while it changes the index. `build_with` marks the index as one
    whose building is not finished, and says what is done with duplicates.
    """
    folder = Path(path)
    _check_choice("precision", precision, Precision)
    _check_choice("long", long, Long)
    check_free(folder)
    encoder = encoder if encoder is not None else OnnxEncoder(model)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"{folder} cannot be made: {error.strerror}", "choose another place") from error
    settings = {
        "model": str(Path(model).resolve()) if model is not None and Path(model).is_dir() else model,
        "fingerprint": encoder.fingerprint,
        "config": encoder.config.to_json(),
        "precision": precision,
        "long": long,
    }
    if build_with is not None:
        settings[BUILD] = Consumed(on_duplicate=build_with).to_json()
    with writer_lock(folder):
        check_free(folder)
        for left in catalog_files(folder):  # of a process that was killed before it had made an index
            left.unlink()
        try:
            Catalog.create(folder, settings).close()
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    return Index(folder, encoder, memory)


def open_index(
    path: str | Path,
    encoder: Encoder | None = None,
    memory: int | None = None,
    threads: int = 1,
    device: str | None = None,
    model: str | Path | None = None,
) -> Index:
    """Open an index that is there, to search and to change it.

    `model` says where the model that it was made with is now, if that has moved. `memory` bounds the process
    while it changes the index, in bytes. `threads` share a search over many documents; `device`, such as
    "cuda", scores with PyTorch there.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise MissingIndex(f"there is no index at {folder}", "make one with `coil index` or coil.create")
    return Index(folder, encoder, memory, threads, device, model)


def is_index(folder: Path) -> bool:
    """Whether there is an index, whole or damaged; what a kill while making one leaves is none."""
    return folder.is_dir() and any(catalog_files(folder)) and not Catalog.is_bare(folder)


def _check_choice(name: str, value: object, choices: Any) -> None:
    if value not in get_args(choices):
        raise OptionMismatch(f"{name} is {value!r}", f"choose one of {', '.join(get_args(choices))}")


def _check_question(queries: list[str], k: object, filter: object) -> None:
    for query in queries:
        if not isinstance(query, str):
            raise InputError(f"a query is a {type(query).__name__}, no text", "search for a string")
    if not isinstance(k, int) or k < 0:
        raise InputError(f"k is {k!r}", "ask for a whole number of hits, 0 or more")
    if filter is not None and not isinstance(filter, str):
        raise InputError(f"the filter is a {type(filter).__name__}, no text", "write it as 'year >= 2020'")


def check_free(folder: Path) -> None:
    """Refuse a place where something is already."""
    taken = folder.exists() and not folder.is_dir()
    if folder.is_dir():
        left = {LOCK_FILE, *(path.name for path in catalog_files(folder))}
        taken = is_index(folder) or any(path.name not in left for path in folder.iterdir())
    if taken:
        raise OutputError(f"{folder} exists already", "open it with coil.open, or choose another name")


def _plan(encoder: Encoder | None, memory: int | None, n_t: int) -> MemoryPlan:
    if memory is None:  # a program that is large already has its reasons
        memory = max(default_budget(), resident_bytes() + (default_budget() // 2))
    elif encoder is not None:  # the runtime's own memory grows with the first long text
        for _ in encoder.encode_documents(["a " * encoder.config.profile.document_length]):
            pass
    return plan_memory(memory, resident_bytes(), n_t)
