"""`coil.connect`: an index on a server with the methods of a local one, plain and `async`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, overload

from coil.errors import CoilError, InputError, UnknownId, tell_added, tell_deleted
from coil.explanations.explanation import Explanation
from coil.hits.spelling import Suggestion
from coil.indexes.hits import Hits
from coil.indexes.index import LeftOut
from coil.remote.messages import (
    NAMES,
    Messages,
    Upload,
    choose_index,
    read_added,
    read_deleted,
    read_document,
    read_explanation,
    read_hits,
    read_many,
    read_size,
    read_suggestions,
    search_options,
    split_address,
)
from coil.remote.transport import Link, send, send_all, send_all_async, send_async
from coil.texts.given import Texts
from coil.texts.questions import check_queries
from coil.texts.values import Document
from coil.tokens.profile import By

if TYPE_CHECKING:
    from typing import Self

    from coil.cluster.connecting import ClusterIndex

SECONDS = 60.0


@overload
def connect(
    url: str, index: str | None = None, token: str | None = None, timeout: float = SECONDS
) -> RemoteIndex: ...
@overload
def connect(url: str, index: str | None = None, *, partial: bool) -> ClusterIndex: ...
def connect(
    url: str,
    index: str | None = None,
    token: str | None = None,
    timeout: float = SECONDS,
    partial: bool = False,
) -> RemoteIndex | ClusterIndex:
    """Connect to an index served by `coil serve` at an address such as http://127.0.0.1:8080.

    `index` is the name of the index; None is the server's first one. `token` is required for changes. A
    request that takes longer than `timeout` seconds, including its response, raises RemoteProblem. Servers on
    other machines are reached through the proxy set in HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, if any.

    An address such as ray://10.0.0.1:6379/NAME connects to an index that `coil serve --ray` serves on a Ray
    cluster. The client then talks to the shards directly and needs no token; with `partial`, answers may omit
    shards that do not respond.
    """
    if isinstance(url, str) and url.startswith("ray://"):
        if token is not None:
            raise InputError("a token was given for an index on a Ray cluster", "omit it")
        from coil.cluster.connecting import connect_cluster

        return connect_cluster(url, index, partial)
    if partial:
        raise InputError("partial=True is only for indexes on a Ray cluster", "omit it")
    address, name = split_address(url, index)
    link = Link("Client", address, token, timeout)
    try:
        return RemoteIndex(link, choose_index(send(link, NAMES), link.address, name))
    except BaseException:
        _close(link)
        raise


@asynccontextmanager
async def connect_async(
    url: str, index: str | None = None, token: str | None = None, timeout: float = SECONDS
) -> AsyncIterator[AsyncRemoteIndex]:
    """Like `connect`, for `async with coil.connect_async(url) as index`; the methods are coroutines."""
    address, name = split_address(url, index)
    link = Link("AsyncClient", address, token, timeout)
    try:
        name = choose_index(await send_async(link, NAMES), link.address, name)
        yield AsyncRemoteIndex(link, name)
    finally:
        client = link.take_client()
        if client is not None:
            await client.aclose()


def _close(link: Link) -> None:
    client = link.take_client()
    if client is not None:
        client.close()


class RemoteIndex:
    """An index on a server. Threads and forked processes may use it concurrently.

    `update` and `add` do the same here: a document replaces an existing one with the same id.
    """

    def __init__(self, link: Link, name: str) -> None:
        self.name = name
        self._link, self._say = link, Messages(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<coil.RemoteIndex {self.name!r} at {self._link.address}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it for another process, which connects by the address; a token or password is refused."""
        if self._link.has_secret:
            raise InputError(
                "an index that was connected with a token or a password cannot be pickled: the file would "
                "reveal it",
                "connect in the other process",
            )
        return connect, (self.url, None, None, self._link.timeout)

    @property
    def url(self) -> str:
        """The address of the index, without a password; `connect` accepts it."""
        return self._link.address + self._say.describe().path

    def close(self) -> None:
        """Close the connections."""
        _close(self._link)

    def __len__(self) -> int:
        return read_size(send(self._link, NAMES), self.name)

    def inspect(self) -> dict[str, Any]:
        """Sizes and settings."""
        return send(self._link, self._say.describe())

    def search(self, query: str, k: int = 10, **how: Any) -> Hits:
        """The k best documents for a query; the other arguments are those of `Index.search`."""
        ask = self._say.search(query, search_options(k, **how))
        return read_hits(send(self._link, ask), query, k)

    def search_many(self, queries: Iterable[str], k: int = 10, **how: Any) -> list[Hits]:
        """The k best documents for each of many queries."""
        asked = check_queries(queries)
        asks = self._say.search_batch(asked, search_options(k, **how))
        return read_many([answer for ask in asks for answer in send_all(self._link, ask)], asked, k)

    def suggest(self, query: str, plain: bool = False) -> list[Suggestion]:
        """Did you mean: see `Index.suggest`."""
        return read_suggestions(send(self._link, self._say.suggest(query, plain)))

    def explain(self, query: str, doc_id: str, by: By = "coil", plain: bool = False) -> Explanation:
        """Why a document has its score."""
        return read_explanation(send(self._link, self._say.explain(query, doc_id, by, plain)))

    def document(self, doc_id: str) -> Document:
        """A document by its id; also as `index[doc_id]`."""
        return read_document(send(self._link, self._say.document(doc_id)))

    def __getitem__(self, doc_id: str) -> Document:
        return self.document(doc_id)

    def has(self, doc_id: str) -> bool:
        """Whether a document has this id; also as `doc_id in index`."""
        return doc_id in self

    def __contains__(self, doc_id: object) -> bool:
        if not isinstance(doc_id, str):
            return False
        try:
            self.document(doc_id)
        except UnknownId:
            return False
        return True

    def update(self, documents: Texts, left_out: LeftOut | None = None, **columns: Any) -> int:
        """Add documents, or replace those with the same ids; they are searchable when this returns. A
        large number is sent in several requests, each of which is a separate change. `left_out`,
        `id_column`, `text_column` and `title_column` are those of `Index.update`."""
        upload, added = Upload(documents, left_out, **columns), 0
        try:
            for ask in self._say.update(upload):
                for answer in send_all(self._link, ask):
                    added += read_added(answer)
        except CoilError as error:
            tell_added(error, added)
            raise
        return upload.finish()

    add = update

    def delete(self, doc_ids: Iterable[str]) -> int:
        """Delete documents. Returns how many existed. A large number is sent in several requests."""
        deleted = 0
        try:
            for ask in self._say.delete(doc_ids):
                for answer in send_all(self._link, ask):
                    deleted += read_deleted(answer)
        except CoilError as error:
            tell_deleted(error, deleted)
            raise
        return deleted


class AsyncRemoteIndex:
    """The `async` version of `RemoteIndex`."""

    def __init__(self, link: Link, name: str) -> None:
        self.name = name
        self._link, self._say = link, Messages(name)

    def __repr__(self) -> str:
        return f"<coil.AsyncRemoteIndex {self.name!r} at {self._link.address}>"

    @property
    def url(self) -> str:
        """The address of the index; `connect_async` accepts it."""
        return self._link.address + self._say.describe().path

    async def inspect(self) -> dict[str, Any]:
        """Sizes and settings."""
        return await send_async(self._link, self._say.describe())

    async def search(self, query: str, k: int = 10, **how: Any) -> Hits:
        """The k best documents for a query; the other arguments are those of `Index.search`."""
        ask = self._say.search(query, search_options(k, **how))
        return read_hits(await send_async(self._link, ask), query, k)

    async def search_many(self, queries: Iterable[str], k: int = 10, **how: Any) -> list[Hits]:
        """The k best documents for each of many queries."""
        asked = check_queries(queries)
        asks = self._say.search_batch(asked, search_options(k, **how))
        answers = [answer for ask in asks async for answer in send_all_async(self._link, ask)]
        return read_many(answers, asked, k)

    async def suggest(self, query: str, plain: bool = False) -> list[Suggestion]:
        """Did you mean: see `Index.suggest`."""
        return read_suggestions(await send_async(self._link, self._say.suggest(query, plain)))

    async def explain(self, query: str, doc_id: str, by: By = "coil", plain: bool = False) -> Explanation:
        """Why a document has its score."""
        ask = self._say.explain(query, doc_id, by, plain)
        return read_explanation(await send_async(self._link, ask))

    async def document(self, doc_id: str) -> Document:
        """A document by its id."""
        return read_document(await send_async(self._link, self._say.document(doc_id)))

    async def has(self, doc_id: str) -> bool:
        """Whether a document has this id."""
        given: object = doc_id
        if not isinstance(given, str):
            return False
        try:
            await self.document(doc_id)
        except UnknownId:
            return False
        return True

    async def update(self, documents: Texts, left_out: LeftOut | None = None, **columns: Any) -> int:
        """Add documents, or replace those with the same ids."""
        upload, added = Upload(documents, left_out, **columns), 0
        try:
            for ask in self._say.update(upload):
                async for answer in send_all_async(self._link, ask):
                    added += read_added(answer)
        except CoilError as error:
            tell_added(error, added)
            raise
        return upload.finish()

    add = update

    async def delete(self, doc_ids: Iterable[str]) -> int:
        """Delete documents. Returns how many existed."""
        deleted = 0
        try:
            for ask in self._say.delete(doc_ids):
                async for answer in send_all_async(self._link, ask):
                    deleted += read_deleted(answer)
        except CoilError as error:
            tell_deleted(error, deleted)
            raise
        return deleted
