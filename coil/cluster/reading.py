"""Windows of a corpus as a source of Ray Data: one task reads, and yields each window as a block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from coil.shards.windows import CorpusFiles, Reached, cut_windows

_ROW = pa.schema(
    {
        "documents": pa.large_binary(),
        "read": pa.int64(),
        "digest": pa.binary(),
        "position": pa.int64(),
        "is_last": pa.bool_(),
        "refusal": pa.binary(),
    }
)


@dataclass(frozen=True)
class Unread:
    """The rest of a corpus to read; a task that is killed reads the same windows again."""

    corpus: CorpusFiles
    next_ordinals: Sequence[int]
    before: Reached
    window: int | None = None  # documents

    def tables(self) -> Iterator[pa.Table]:
        """The windows, one row each."""
        for window in cut_windows(self.corpus, self.next_ordinals, self.before, self.window):
            yield pa.Table.from_pylist([window.to_row()], _ROW)


class WindowSource(Datasource):  # type: ignore[misc]
    """One task, because documents must stay in the order of the corpus."""

    def __init__(self, unread: Unread) -> None:
        super().__init__()
        self._unread = unread

    def get_name(self) -> str:
        """As Ray shows it."""
        return "Windows"

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown until the corpus is read."""
        return None

    def get_read_tasks(self, *_: Any, **__: Any) -> list[ReadTask]:
        """The task."""
        nothing = BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [ReadTask(self._unread.tables, nothing)]
