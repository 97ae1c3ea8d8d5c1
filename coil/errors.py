"""Everything that can go wrong because of input, files or the machine, in one tree.

CoilError                     what was found, what was expected, where; `remedy` says what to do
├── InputError                a text, pairs, run or judgement file that cannot be read as such
│   ├── BadLine               one line of a file is broken (path and line number)
│   ├── NotText               a file has no text that can be read
│   ├── DuplicateId           two documents with the same id (both places)
│   └── ChangedCorpus         a corpus has changed since an interrupted build read it
├── ModelError                a model folder that cannot be trusted
│   ├── MissingModelFile      a model file is missing
│   ├── WrongShape            weights that do not match the configuration
│   ├── TokenizerMismatch     the tokenizer does not match the model
│   └── OptionMismatch        options that contradict what the model was made with
├── IndexProblem              an index that cannot be used as it is
│   ├── MissingIndex          there is no index at that path
│   ├── NewerIndex            it was made by a newer version
│   ├── OlderIndex            it was made by an older version, whose format is no longer read
│   ├── ReplacedIndex         another folder or an earlier state was put in its place
│   ├── DamagedManifest       the manifest cannot be read
│   ├── MissingSegment        a segment file is missing
│   ├── DamagedSegment        a segment file is not what was written
│   ├── IndexLocked           another process is writing to it
│   ├── OrdinalsTaken         documents came with ordinals that others may have
│   ├── MixedShards           shards that are not of one index
│   ├── MissingShard          a shard is gone or does not answer
│   ├── StateGone             a state of it that is no longer there
│   └── UnfinishedBuild       its build was interrupted
├── SearchTimeout             a search exceeded its time limit
├── AnswerTooLarge            the texts of the hits exceed a limit
├── TooLittleMemory           the memory limit is too low, or the system gives no more memory or threads
├── OutputError               the result cannot be written
├── ProcessProblem            the process is ending, or was forked in the middle of a call
├── TrainingDiverged          the loss is no longer a number
└── MissingExtra              an optional part of the package is not installed

`assert` is for our own bugs only; a user's mistake is always a CoilError.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

SET_ON_DUPLICATE = 'set on_duplicate to "update" or "skip"'


class CoilError(Exception):
    """The base: `error.reason` is one line, `error.remedy` the one-line way out (may be empty); both are its
    text."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy

    def __str__(self) -> str:
        return f"{self.reason}\n  try: {self.remedy}" if self.remedy else self.reason


def reason_of(error: BaseException) -> str:
    """Why, in one line."""
    return error.reason if isinstance(error, CoilError) else str(error) or type(error).__name__


class InputError(CoilError):
    """A file or value handed in by the user cannot be read as what it should be."""


class UnknownId(InputError, KeyError):
    """No document has this id."""


class BadLine(InputError):
    """One line of a file is broken."""

    def __init__(self, path: str | Path, line: int, reason: str, remedy: str = "") -> None:
        super().__init__(f"{path}, line {line}: {reason}", remedy)
        self.path = str(path)
        self.line = line


class NotText(InputError):
    """A file has no text that can be read; `what` says what it is instead."""

    def __init__(self, path: str | Path, what: str, remedy: str = "") -> None:
        super().__init__(f"{path} is {what}", remedy)
        self.what = what


class DuplicateId(InputError):
    """Two documents have the same id; `first` and `second` say where they are."""

    def __init__(self, doc_id: str, first: str, second: str, otherwise: str = "") -> None:
        """`otherwise` is another way out than other ids."""
        shown = doc_id if len(doc_id) <= 80 else doc_id[:77] + "..."
        super().__init__(
            f"duplicate id {shown!r} ({first} and {second})",
            "give each document its own id" + (f", or {otherwise}" if otherwise else ""),
        )
        self.doc_id, self.first, self.second = doc_id, first, second


class ChangedCorpus(InputError):
    """A corpus has changed since an interrupted build read it."""


class ModelError(CoilError):
    """A model folder is incomplete or contradicts itself."""


class MissingModelFile(ModelError):
    """A file that the model needs is missing."""


class WrongShape(ModelError):
    """A weight is missing, or its shape is not what the configuration says."""


class TokenizerMismatch(ModelError):
    """The tokenizer and the model (or the list table) were not made for each other."""


class OptionMismatch(ModelError):
    """An option contradicts what was saved with the model."""


class IndexProblem(CoilError):
    """An index cannot be used as it is."""


class MissingIndex(IndexProblem):
    """There is no index at that path."""


class NewerIndex(IndexProblem):
    """The index was made by a newer version."""


class OlderIndex(IndexProblem):
    """The index has a format that is no longer read."""


class ReplacedIndex(IndexProblem):
    """Another folder, or an earlier state, was put in the place of an index that is open."""


class DamagedManifest(IndexProblem):
    """The manifest of an index cannot be read."""


class MissingSegment(IndexProblem):
    """A segment file listed in the manifest is missing."""


class DamagedSegment(IndexProblem):
    """A segment file is not what was written."""


class IndexLocked(IndexProblem):
    """Another process is writing to the index."""


class OrdinalsTaken(IndexProblem):
    """Documents came with ordinals that other documents may have."""


class MixedShards(IndexProblem):
    """Shards that are not of one index."""


class MissingShard(IndexProblem):
    """Shards of an index that are gone or do not answer; `numbers` says which."""

    def __init__(self, reason: str, remedy: str = "", numbers: Sequence[int] = ()) -> None:
        super().__init__(reason, remedy)
        self.numbers = tuple(numbers)


class StateGone(IndexProblem):
    """A state of a shard that is no longer there, or not yet; shard `number` has `version` instead."""

    def __init__(self, reason: str, remedy: str = "", version: int = 0, number: int = 0) -> None:
        super().__init__(reason, remedy)
        self.version, self.number = version, number


class UnfinishedBuild(IndexProblem):
    """The build of the index was interrupted."""


class TooLittleMemory(CoilError):
    """The memory limit is too low, or the system gives no more memory or threads."""


class SearchTimeout(CoilError):
    """A search exceeded its time limit and was stopped."""


class AnswerTooLarge(CoilError):
    """The texts of the hits exceed the limit that was set for them."""


class OutputError(CoilError):
    """The result cannot be written where it should go."""


class RemoteProblem(CoilError):
    """A server cannot be reached, or did not do what it was asked to."""


class ProcessProblem(CoilError):
    """The process is ending, or was forked in the middle of a call."""


class TrainingDiverged(CoilError):
    """The loss is no longer a finite number; the model would be worthless."""


class MissingExtra(CoilError):
    """A package of an optional extra is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"this needs the package {package!r}, which is not installed",
            f"pip install 'coil-ir[{extra}]'",
        )
        self.package, self.extra = package, extra


def how_many(count: int, noun: str) -> str:
    """A number of things for a message: `1 document`, `2,000 documents`, `2 queries`."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


def require(module: str, extra: str) -> ModuleType:
    """Import a module of an optional extra, or say which extra to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.split(".", maxsplit=1)[0] == error.name.split(".")[0]:
            raise MissingExtra(error.name, extra) from error
        raise
