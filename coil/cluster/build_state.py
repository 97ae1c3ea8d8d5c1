"""BuildState: the progress of the build of a sharded index, as stored in the manifest of the whole."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, get_args

from coil.errors import DamagedManifest, IndexLocked, OptionMismatch
from coil.shards.windows import Reached
from coil.storage.intake import OnDuplicate
from coil.texts.columns import Columns

BEAT_SECONDS = 5.0  # between signs of life
_DEAD_SECONDS = 60.0  # without one
_REMEDY = "resume with the original options, or remove it to start over"


@dataclass(frozen=True)
class BuildState:
    """How much of the corpus was read before any of it was committed, and who is building."""

    on_duplicate: OnDuplicate
    columns: Columns
    reached: Reached = Reached()
    owner: str = ""
    beat: float = 0.0  # seconds since 1970, at the last sign of life

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest."""
        return {
            "on_duplicate": self.on_duplicate,
            "columns": self.columns.to_json(),
            "documents": self.reached.documents,
            "digest": self.reached.digest.hex(),
            "position": self.reached.position,
            "owner": self.owner,
            "beat": round(self.beat, 1),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> BuildState:
        """Restore from the manifest."""
        try:
            if value["on_duplicate"] not in get_args(OnDuplicate):
                raise ValueError(f"on_duplicate is {value['on_duplicate']!r:.40}")
            reached = Reached(int(value["documents"]), bytes.fromhex(value["digest"]), int(value["position"]))
            columns = Columns.from_json(value["columns"])
            return cls(value["on_duplicate"], columns, reached, str(value["owner"]), float(value["beat"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DamagedManifest(
                f"the build state in {where} is damaged: {error}", "remove the index and start over"
            ) from error

    def resumed(
        self,
        settings: Mapping[str, Any],
        given: Mapping[str, Any],
        on_duplicate: OnDuplicate | None,
        columns: Columns,
        where: str,
    ) -> BuildState:
        """The state to continue from; options that contradict those of the interrupted build are an error.

        Only a build that stops at duplicates may continue by updating or skipping them: so far there were
        none.
        """
        mode = on_duplicate if on_duplicate and self.on_duplicate == "error" else self.on_duplicate
        begun = {**settings, "on_duplicate": mode}
        for name, value in {**given, "on_duplicate": on_duplicate}.items():
            if value is not None and value != begun[name]:
                told = f"{where} was started with --{name.replace('_', '-')} {begun[name]}, not {value}"
                raise OptionMismatch(told, _REMEDY)
        if columns.named and columns != self.columns:
            raise OptionMismatch(f"{where} was started with {self.columns}, not {columns}", _REMEDY)
        return replace(self, on_duplicate=mode)

    def check_free(self, where: str) -> None:
        """Refuse a place where another build gave a sign of life recently."""
        age = time.time() - self.beat
        if self.owner and age < _DEAD_SECONDS:
            raise IndexLocked(
                f"{where} is being built by another process (last active {age:.0f} s ago)",
                f"wait until it has finished; after a crash, try again in {_DEAD_SECONDS - age:.0f} s",
            )

    def beating(self, owner: str, reached: Reached | None = None) -> BuildState:
        """A copy with a new sign of life."""
        return replace(self, owner=owner, beat=time.time(), reached=reached or self.reached)

    def let_go(self) -> BuildState:
        """A copy that nobody is building."""
        return replace(self, owner="", beat=0.0)
