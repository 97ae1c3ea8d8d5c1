"""`coil.connect("ray://…")`: an index that is served on a Ray cluster, with the methods of a local one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from coil.cluster.deploying import find_app, open_deployed
from coil.cluster.joining import LOCAL, joined
from coil.errors import CoilError, InputError, MissingShard, ReplacedIndex, StateGone
from coil.explanations.explanation import Explanation
from coil.forks import make_lock
from coil.hits.spelling import Suggestion
from coil.indexes.hits import Hits
from coil.indexes.index import LeftOut
from coil.shards.index import ShardedIndex
from coil.shards.reader import ShardedReader
from coil.storage.facts import IndexFacts
from coil.texts.given import Texts
from coil.texts.values import Document
from coil.tokens.profile import By

if TYPE_CHECKING:
    from typing import Self

SCHEME = "ray://"
_T = TypeVar("_T")


def connect_cluster(url: str, index: str | None = None, partial: bool = False) -> ClusterIndex:
    """An index that `coil serve --ray` serves on the cluster at an address such as ray://10.0.0.1:6379, or
    ray://10.0.0.1:6379/NAME; `auto` instead of an address means the cluster that this machine belongs to.

    Queries are encoded here, so the model of the index must be available here. With `partial`, answers may
    omit shards that do not respond.
    """
    address, _, name = url.removeprefix(SCHEME).partition("/")
    if not address or address == LOCAL:
        raise InputError(f"{url!r:.200} is not the address of a Ray cluster", "use ray://HOST:PORT/NAME")
    if name and index is not None and name != index:
        raise InputError(f"the address names the index {name!r:.100}, not {index!r:.100}", "omit one of them")
    stack = ExitStack()
    try:
        stack.enter_context(joined(address))
        return ClusterIndex(index or name or None, partial, stack.close)
    except BaseException:
        stack.close()
        raise


class ClusterIndex:
    """An index on a cluster. When another index replaces it there, that one is used instead."""

    def __init__(self, name: str | None, partial: bool, close: Callable[[], object]) -> None:
        self._app = find_app(name)
        self.name, self._partial, self._close = self._app.index, partial, close
        self._index = open_deployed(self._app, partial)
        self._lock = make_lock()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<coil.ClusterIndex {self.name!r}>"

    def close(self) -> None:
        """Leave the cluster; the index is still served there."""
        self._closed = True
        self._close()

    def _ask(self, ask: Callable[[ShardedIndex], _T]) -> _T:
        """Ask the index; if it is gone because a newer one took over, ask the newer one."""
        if self._closed:  # Ray would start a cluster here
            raise InputError(f"the connection to {self.name!r:.100} is closed", "connect again")
        index = self._index
        try:
            return ask(index)
        except (MissingShard, StateGone, ReplacedIndex) as error:
            if not self._moved(index):
                raise
            del error
        return ask(self._index)

    def _moved(self, asked: ShardedIndex) -> bool:
        with self._lock:
            if self._index is not asked:  # another thread has noticed it first
                return True
            try:
                newest = find_app(self.name)
            except CoilError:
                return False
            if newest == self._app:
                return False
            self._index, self._app = open_deployed(newest, self._partial), newest
            return True

    @contextmanager
    def pinned(self) -> Iterator[ShardedReader]:
        """The current state of the index, for several reads."""
        with self._ask(lambda index: index).pinned() as reader:
            yield reader

    @property
    def versions(self) -> tuple[int | None, ...]:
        """The version of each shard."""
        with self.pinned() as reader:
            return reader.versions

    def __len__(self) -> int:
        return self._ask(len)

    def search(self, query: str, k: int = 10, **how: Any) -> Hits:
        """The k best documents for a query; further arguments are those of `Index.search`."""
        return self._ask(lambda index: index.search(query, k, **how))

    def search_many(self, queries: Iterable[str], k: int = 10, **how: Any) -> list[Hits]:
        """The k best documents for each of many queries."""
        asked = list(queries)
        return self._ask(lambda index: index.search_many(asked, k, **how))

    def explain(self, query: str, doc_id: str, by: By = "coil", plain: bool = False) -> Explanation:
        """Why a document has its score."""
        return self._ask(lambda index: index.explain(query, doc_id, by, plain))

    def suggest(self, query: str, plain: bool = False) -> list[Suggestion]:
        """Did you mean: see `Index.suggest`."""
        return self._ask(lambda index: index.suggest(query, plain))

    def inspect(self, longest: int = 10, timeout: float | None = None) -> IndexFacts:
        """Sizes and settings of all shards together."""
        return self._ask(lambda index: index.inspect(longest, timeout))

    def has(self, doc_id: str) -> bool:
        """Whether a document has this id; also as `doc_id in index`."""
        return self._ask(lambda index: index.has(doc_id))

    def __contains__(self, doc_id: object) -> bool:
        return self._ask(lambda index: doc_id in index)

    def document(self, doc_id: str) -> Document:
        """A document by its id; also as `index[doc_id]`."""
        return self._ask(lambda index: index.document(doc_id))

    def __getitem__(self, doc_id: str) -> Document:
        return self.document(doc_id)

    def update(
        self,
        documents: Texts,
        left_out: LeftOut | None = None,
        id_column: str | None = None,
        text_column: str | Sequence[str] | None = None,
        title_column: str | None = None,
    ) -> int:
        """Add documents, replacing those with the same ids; see `ShardedIndex.update`."""
        self._ask(lambda index: index.version)  # documents can be read only once: find the index first
        return self._index.update(documents, left_out, None, id_column, text_column, title_column)

    add = update

    def delete(self, doc_ids: Iterable[str], missing: Callable[[list[str]], object] | None = None) -> int:
        """Delete documents; returns how many of the ids were there, `missing` is called with the others."""
        wanted = [doc_ids] if isinstance(doc_ids, str) else list(doc_ids)
        return self._ask(lambda index: index.delete(wanted, missing))
