"""The metrics of a training run: metrics.jsonl, with one object per line, and TensorBoard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from coil.errors import require


class Metrics:
    """Writes metrics.jsonl and, if requested, TensorBoard events."""

    def __init__(self, path: Path | None, board: Any) -> None:
        self._path, self._board = path, board

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps that a resumed run repeats, and the repeated line about the start."""
        if self._path is None or not self._path.is_file():
            return
        kept = []
        for line in self._path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError):  # the last line may be incomplete after a kill
                if json.loads(line)["step"] <= step and line + "\n" not in kept:
                    kept.append(line + "\n")
        partial = self._path.with_name(".metrics.partial")
        partial.write_text("".join(kept), encoding="utf-8")
        partial.replace(self._path)

    def write(self, values: dict[str, Any]) -> None:
        """Add one line."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(values) + "\n")
        if self._board is not None:
            for name, value in values.items():
                if name != "step":
                    self._board.add_scalar(name, value, values["step"])


@contextmanager
def open_metrics(out: Path, first: bool, tensorboard: bool) -> Iterator[Metrics]:
    """The metrics file of a run; only the first process writes."""
    board = None
    if first and tensorboard:
        require("tensorboard", "train")
        from torch.utils.tensorboard import SummaryWriter

        board = SummaryWriter(str(out / "tensorboard"))
    try:
        yield Metrics(out / "metrics.jsonl" if first else None, board)
    finally:
        if board is not None:
            board.close()
