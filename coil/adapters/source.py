"""Source: the index behind an adapter, and the passages found in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeAlias

from coil.errors import InputError, OptionMismatch, ReplacedIndex, UnknownId
from coil.forks import make_lock
from coil.hits.hit import Hit
from coil.indexes.index import Index
from coil.indexes.opening import open_index
from coil.indexes.reader import IndexReader
from coil.remote.client import RemoteIndex, connect
from coil.texts.markup import skip_front_matter
from coil.texts.questions import check_filter, check_k, check_min_share, show
from coil.tokens.profile import By, check_by

Searchable: TypeAlias = IndexReader | RemoteIndex
Given: TypeAlias = IndexReader | RemoteIndex | str | Path
"""An open index, a client of `coil.connect`, the path of an index, or the address of a server."""

OWN_KEYS = ("doc_id", "rank", "score", "share", "chunk", "context", "explanation")
"""The keys of a passage's metadata that are not fields of its document."""


class Source:
    """An index that is already open, or one that is opened on first use.

    An index given by its path is refreshed before each use, so commits by other processes are visible; an
    index that replaces it is opened. An index that is given open is left to its owner. A pickled copy keeps
    only the path or address, never a token.
    """

    def __init__(self, given: Given, model: str | Path | None = None) -> None:
        """`model` is the new location of the model of an index given by its path, if that has moved."""
        if not isinstance(given, IndexReader | RemoteIndex | str | Path):
            raise InputError(
                f"the index is {show(given)}; expected an open index, its path, or the address of a server",
                'pass coil.open("notes.coil"), "notes.coil" or "http://127.0.0.1:8080"',
            )
        self._open = given if isinstance(given, IndexReader | RemoteIndex) else None
        self._follows = self._open is None
        self._model = model
        self.address = _address_of(given)
        self._opening = make_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Source, (self.address, self._model)

    def __deepcopy__(self, memo: object) -> Source:
        return self  # a copy shares the index, which several threads may use

    @property
    def index(self) -> Searchable:
        """The index, open and up to date. To read it, use `reading`: another thread may replace it."""
        with self._opening:
            return self._newest()

    @contextmanager
    def reading(self) -> Iterator[Searchable]:
        """The latest state of the index, which stays open meanwhile, even if the index is replaced."""
        with ExitStack() as stack:
            with self._opening:  # or another thread could close the index before it is pinned
                index = self._newest()
                if isinstance(index, IndexReader):
                    index = stack.enter_context(index.pinned())
            yield index

    def find(self, query: str, how: Retrieval) -> Passages:
        """The best passages for a query; their explanations are those of the state that was searched."""
        with self.reading() as index:
            return _find(index, query, how)

    def _newest(self) -> Searchable:
        if self._open is None:
            remote = is_address(self.address)
            self._open = connect(self.address) if remote else open_index(self.address, model=self._model)
        elif self._follows and isinstance(self._open, Index):
            try:
                self._open.refresh()
            except ReplacedIndex:
                self._open = _take_over(self._open)
        return self._open


@dataclass(frozen=True)
class Retrieval:
    """The search options of an adapter; see `Index.search` for their meaning.

    `plain` is on by default, because queries come from people and language models that do not know the
    operators. For a long document, a passage is its best chunk, or with `whole` the full text. `explain`
    adds the explanation of each score to the metadata, as a JSON object.
    """

    k: int = 10
    by: By = "coil"
    filter: str | None = None
    min_share: float | None = None
    plain: bool = True
    whole: bool = False
    explain: bool = False

    def __post_init__(self) -> None:
        check_k(self.k)
        check_by(self.by)
        check_filter(self.filter)
        check_min_share(self.min_share)

    def but(self, **changes: Any) -> Retrieval:
        """The same options, with those replaced that are given and not None."""
        check_options(changes, [field.name for field in fields(self)])
        given = {name: value for name, value in changes.items() if value is not None}
        return replace(self, **given) if given else self


@dataclass(frozen=True)
class Passage:
    """A hit in the form that frameworks expect; the metadata are the document's fields and `OWN_KEYS`."""

    doc_id: str
    text: str
    score: float
    metadata: dict[str, Any]


class Passages(list[Passage]):
    """Passages; if there are none, `unknown_fields` are the fields of the filter that no document has."""

    unknown_fields: tuple[str, ...] = ()


def check_options(given: Iterable[str], known: Iterable[str]) -> None:
    """Reject an unknown option instead of ignoring it."""
    options = sorted(known)
    for name in given:
        if name not in options:
            raise InputError(f"unknown option {name!r}", f"the options are {', '.join(options)}")


def is_address(given: str) -> bool:
    """Whether this is the address of a server rather than a path."""
    return given.lower().startswith(("http://", "https://"))


def _find(index: Searchable, query: str, how: Retrieval) -> Passages:
    hits = index.search(query, how.k, filter=how.filter, by=how.by, min_share=how.min_share, plain=how.plain)
    found = Passages()
    found.unknown_fields = hits.unknown_fields
    for hit in hits:
        own: dict[str, Any] = {
            "doc_id": hit.doc_id,
            "rank": hit.rank,
            "score": hit.score,
            "share": hit.share,
            "chunk": list(hit.chunk),
            "context": hit.context,
        }
        if how.explain:
            try:
                own["explanation"] = index.explain(query, hit.doc_id, how.by, how.plain).to_json()
            except UnknownId:  # deleted on the server after the search
                continue
        metadata = beside(hit.fields, own, OWN_KEYS)
        found.append(Passage(hit.doc_id, _text_of(hit, how), hit.score, metadata))
    return found


def _text_of(hit: Hit, how: Retrieval) -> str:
    span = (0, len(hit.text)) if how.whole else hit.chunk
    return hit.text[slice(*skip_front_matter(hit.doc_id, hit.text, span))]


def beside(fields: Mapping[str, Any], own: Mapping[str, Any], reserved: Collection[str]) -> dict[str, Any]:
    """Fields and own keys. A field with a reserved name is stored as `field.NAME`; as `field.field.NAME` if
    there is such a field as well, and so on."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        key = name
        if name in reserved:
            while key in reserved or key in fields:
                key = f"field.{key}"
        found[key] = value
    return {**found, **own}


def _take_over(older: Index) -> Index:
    """Open the index that has replaced this one. It must have the same model, which is not loaded again.

    While it is being built, the older one is used: until then, documents would be missing.
    """
    newer = open_index(older.folder, older.encoder)
    try:
        _ = newer.encoder
    except OptionMismatch as error:
        newer.close()
        raise OptionMismatch(
            f"{older.folder} was replaced by an index of another model",
            "restart this program to use it, or rebuild it with the same model",
        ) from error
    if newer.is_unfinished and not older.is_unfinished:
        newer.close()
        return older
    older.close()  # when its readers are done
    return newer


def _address_of(given: Given) -> str:
    if isinstance(given, IndexReader):
        return str(given.folder)
    return given.url if isinstance(given, RemoteIndex) else str(given)
