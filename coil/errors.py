"""All errors caused by input, files or the machine, in one tree.

CoilError                     what was found, what was expected, where; `remedy` says what to do
├── InputError                an invalid argument, or an input file that cannot be read
│   ├── UnknownId             no document has this id
│   ├── BadLine               an invalid line in a file (path and line number)
│   ├── NotText               a file without readable text
│   ├── DuplicateId           a duplicate id (with both places)
│   └── ChangedCorpus         a corpus has changed since an interrupted build read it
├── ModelError                an invalid model folder
│   ├── MissingModelFile      a model file is missing
│   ├── WrongShape            weights that do not match the configuration
│   ├── TokenizerMismatch     the tokenizer does not match the model
│   └── OptionMismatch        options that contradict the model or the index
├── IndexProblem              an index that cannot be used
│   ├── MissingIndex          there is no index at that path
│   ├── NewerIndex            it was created by a newer version
│   ├── OlderIndex            it was created by an older version, whose format is no longer supported
│   ├── ReplacedIndex         it was replaced by another folder or an earlier state
│   ├── DamagedManifest       the manifest cannot be read
│   ├── MissingSegment        a segment file is missing
│   ├── DamagedSegment        a segment file is damaged
│   ├── IndexLocked           another process is writing to it
│   ├── OrdinalsTaken         new documents have ordinals that others may already have
│   ├── MixedShards           shards of different indexes
│   ├── MissingShard          a shard is gone or does not answer
│   ├── StateGone             the requested state no longer exists
│   └── UnfinishedBuild       its build was interrupted
├── SearchTimeout             a search exceeded its time limit
├── AnswerTooLarge            the texts of the hits exceed a limit
├── TooLittleMemory           the memory limit is too low, or the system has no memory or threads left
├── OutputError               the result cannot be written
│   ├── PartlyChanged         a change was made in only some shards of an index
│   └── Unconfirmed           a change was made, but the disk did not confirm it
├── RemoteProblem             a server cannot be reached, or did not process a request
├── ProcessProblem            the process is exiting, or was forked during a call
├── TrainingDiverged          the loss is not a finite number
└── MissingExtra              an optional part of the package is not installed

`assert` is only for bugs in COIL; a user's mistake is always a CoilError.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

SET_ON_DUPLICATE = 'set on_duplicate to "update" or "skip"'


class CoilError(Exception):
    """Base class of all errors.

    `error.reason` is one line, `error.remedy` a one-line fix (may be empty); `str(error)` has both.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"{self.reason}\n  try: {self.remedy}" if self.remedy else self.reason

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, an exception is unpickled by calling its class with `args`, but some take others: then
        # a pool of processes waits forever for the result of a worker that raised one.
        return _restore, (type(self), self.args, dict(self.__dict__))


def _restore(kind: type[CoilError], args: tuple[Any, ...], state: dict[str, Any]) -> CoilError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


def reason_of(error: BaseException) -> str:
    """The reason of an error, in one line."""
    return error.reason if isinstance(error, CoilError) else str(error) or type(error).__name__


class InputError(CoilError):
    """A file or value from the user is invalid."""


class UnknownId(InputError, KeyError):
    """No document has this id."""


class BadLine(InputError):
    """A line of a file is invalid."""

    def __init__(self, path: str | Path, line: int, reason: str, remedy: str = "") -> None:
        super().__init__(f"{path}, line {line}: {reason}", remedy)
        self.path = str(path)
        self.line = line


class NotText(InputError):
    """A file has no readable text; `what` says what it is instead."""

    def __init__(self, path: str | Path, what: str, remedy: str = "") -> None:
        super().__init__(f"{path} is {what}", remedy)
        self.what = what


class DuplicateId(InputError):
    """Two documents have the same id; `first` and `second` say where they are."""

    def __init__(self, doc_id: str, first: str, second: str, otherwise: str = "") -> None:
        """`otherwise` is a remedy other than unique ids."""
        shown = doc_id if len(doc_id) <= 80 else doc_id[:77] + "..."
        super().__init__(
            f"duplicate id {shown!r} ({first} and {second})",
            "give each document its own id" + (f", or {otherwise}" if otherwise else ""),
        )
        self.doc_id, self.first, self.second = doc_id, first, second


class ChangedCorpus(InputError):
    """A corpus has changed since an interrupted build read it."""


class ModelError(CoilError):
    """A model folder is incomplete or inconsistent."""


class MissingModelFile(ModelError):
    """A file that the model needs is missing."""


class WrongShape(ModelError):
    """A weight is missing, or its shape does not match the configuration."""


class TokenizerMismatch(ModelError):
    """The tokenizer does not match the model (or the list table)."""


class OptionMismatch(ModelError):
    """An option contradicts what was saved with the model or the index."""


class IndexProblem(CoilError):
    """An index cannot be used."""


class MissingIndex(IndexProblem):
    """There is no index at that path."""


class NewerIndex(IndexProblem):
    """The index was created by a newer version."""


class OlderIndex(IndexProblem):
    """The index has a format that is no longer supported."""


class ReplacedIndex(IndexProblem):
    """An open index was replaced by another folder or an earlier state."""


class DamagedManifest(IndexProblem):
    """The manifest of an index cannot be read."""


class MissingSegment(IndexProblem):
    """A segment file listed in the manifest is missing."""


class DamagedSegment(IndexProblem):
    """A segment file is damaged."""


class IndexLocked(IndexProblem):
    """Another process is writing to the index."""


class OrdinalsTaken(IndexProblem):
    """New documents have ordinals that other documents may already have."""


class MixedShards(IndexProblem):
    """Shards belong to different indexes."""


class MissingShard(IndexProblem):
    """Shards of an index are gone or do not answer; `numbers` says which."""

    def __init__(self, reason: str, remedy: str = "", numbers: Sequence[int] = ()) -> None:
        super().__init__(reason, remedy)
        self.numbers = tuple(numbers)


class StateGone(IndexProblem):
    """The requested state of a shard does not exist, no longer or not yet; shard `number` has `version`."""

    def __init__(self, reason: str, remedy: str = "", version: int = 0, number: int = 0) -> None:
        super().__init__(reason, remedy)
        self.version, self.number = version, number


class UnfinishedBuild(IndexProblem):
    """The build of the index was interrupted."""


class TooLittleMemory(CoilError):
    """The memory limit is too low, or the system has no memory or threads left."""


def out_of_threads(reason: object) -> TooLittleMemory:
    """The error for a thread that the system did not start."""
    return TooLittleMemory(
        f"no thread could be started: {str(reason)[:200]}",
        "raise the limit on processes and threads (ulimit -u) or end other programs, then restart this one",
    )


class SearchTimeout(CoilError):
    """A search exceeded its time limit and was stopped."""


class AnswerTooLarge(CoilError):
    """The texts of the hits exceed the given limit."""


class OutputError(CoilError):
    """The result cannot be written."""


class PartlyChanged(OutputError):
    """A change to a sharded index was made in some of its shards and failed in another."""


class Unconfirmed(OutputError):
    """A change was made, but the disk did not confirm it: a power failure could undo it."""


class RemoteProblem(CoilError):
    """A server cannot be reached, or did not process a request."""


class ProcessProblem(CoilError):
    """The process is exiting, was forked during a call, or its signal handlers interrupt one another."""


class TrainingDiverged(CoilError):
    """The loss is not a finite number; the model would be useless."""


class MissingExtra(CoilError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this requires the package {package!r}, which is not installed",
            f"pip install 'coil-ir[{extra}]'",
        )
        self.package, self.extra = package, extra


def how_many(count: int, noun: str) -> str:
    """A number of things for a message: `1 document`, `2,000 documents`, `2 queries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def tell_added(error: CoilError, count: int) -> None:
    """Add to an error during an update how many documents had been added before."""
    if count:
        error.reason += f"; the first {how_many(count, 'document')} {'was' if count == 1 else 'were'} added"


def tell_deleted(error: CoilError, count: int) -> None:
    """Add to an error during a deletion how many documents had been deleted before."""
    if count:
        error.reason += f"; {how_many(count, 'document')} {'was' if count == 1 else 'were'} deleted before"


def require(module: str, extra: str) -> ModuleType:
    """Import a module of an optional extra, or say which extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".", maxsplit=1)[0] == error.name.split(".")[0]:
            raise MissingExtra(error.name, extra) from error
        raise
