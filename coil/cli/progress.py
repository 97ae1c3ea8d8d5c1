"""A progress bar for documents: documents per second, and the remaining time if it can be estimated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from coil.indexes.index import Encoded
from coil.texts.corpora import Documents


@contextmanager
def document_bar(documents: Documents, what: str, before: int = 0) -> Iterator[Encoded]:
    """Yields a callback for encoded documents. The total is estimated from the bytes read so far, including
    those of the documents that were indexed `before`."""
    with tqdm(unit=" documents", disable=None, desc=what, smoothing=0.05, initial=before) as bar:
        total = None if bar.disable else documents.total_bytes()

        def encoded(count: int, position: int) -> None:
            bar.update(count)
            if total and position:
                bar.total = expected_documents(bar.n, position, total)

        yield encoded


def expected_documents(documents: int, position: int, total: int) -> int:
    """The estimated number of documents, if `documents` of them took `position` of `total` bytes."""
    return max(documents, round(documents * total / min(position, total)))


def tell_time(seconds: float) -> str:
    """A human-readable duration."""
    for size, name in ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds:.1f} s"


def tell_size(size: float) -> str:
    """A human-readable size."""
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def tell_share(share: float) -> str:
    """A share in percent with one decimal; a small one is not shown as 0.0%."""
    return "under 0.1%" if 0 < share < 0.001 else f"{share:.1%}"
