"""A progress bar for documents: documents per second, and the remaining time if it can be estimated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from coil.indexes.index import Encoded
from coil.progress import ProgressBar


@contextmanager
def document_bar(total_bytes: Callable[[], int | None], what: str, before: int = 0) -> Iterator[Encoded]:
    """Yields a callback for encoded documents. The total is estimated from the bytes read so far, including
    those of the documents that were indexed `before`."""
    size = cache(total_bytes)  # looks at all files
    with ProgressBar(what, "documents", before=before) as bar:

        def encoded(count: int, position: int) -> None:
            if before and bar.done == before:  # until now, the documents indexed before were read again
                bar.measure_from(before + count)
                return
            if bar.can_estimate and position and (total := size()):
                bar.total = expected_documents(bar.done + count, position, total)
            bar.update(count)

        yield encoded


def expected_documents(documents: int, position: int, total: int) -> int:
    """The estimated number of documents, if `documents` of them took `position` of `total` bytes."""
    return max(documents, round(documents * total / min(position, total)))


def tell_share(share: float) -> str:
    """A share in percent with one decimal; a small one is not shown as 0.0%."""
    return "under 0.1%" if 0 < share < 0.001 else f"{share:.1%}"
