"""Everything that can go wrong because of input, files or the machine, in one tree.

CoilError                     what was found, what was expected, where; `remedy` says what to do
├── InputError                a text, pairs, run or judgement file that cannot be read as such
│   ├── BadLine               one line of a file is broken (path and line number)
│   ├── DuplicateId           two documents with one id (both places)
│   └── ChangedCorpus         a corpus is no longer what an interrupted build has read of it
├── ModelError                a model folder that cannot be trusted
│   ├── MissingModelFile      a file of the model is not there
│   ├── WrongShape            weights that do not fit the configuration
│   ├── TokenizerMismatch     the tokenizer does not fit the model
│   └── OptionMismatch        options that contradict what the model was made with
├── IndexProblem              an index that cannot be used as it is
│   ├── MissingIndex          there is none at that place
│   ├── NewerIndex            it was made by a newer version
│   ├── OlderIndex            it was made by an older version, whose format is no longer read
│   ├── ReplacedIndex         another folder or another state was put in its place
│   ├── DamagedManifest       the manifest cannot be read
│   ├── MissingSegment        a segment file is gone
│   ├── DamagedSegment        a segment file is not what was written
│   ├── IndexLocked           another process is writing it
│   └── UnfinishedBuild       its building was interrupted
├── SearchTimeout             a search took longer than it was given
├── AnswerTooLarge            the texts of the hits exceed a limit
├── TooLittleMemory           memory or threads are not enough
├── OutputError               the result cannot be written
├── TrainingDiverged          the loss is no longer a number
└── MissingExtra              an optional part of the package is not installed

`assert` is for our own bugs only; a user's mistake is always a CoilError.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType


class CoilError(Exception):
    """The base: `str(error)` is the one-line reason, `error.remedy` the one-line way out (may be empty)."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy


class InputError(CoilError):
    """A file or value handed in by the user cannot be read as what it should be."""


class BadLine(InputError):
    """One line of a file is broken."""

    def __init__(self, path: str | Path, line: int, reason: str, remedy: str = "") -> None:
        super().__init__(f"{path}, line {line}: {reason}", remedy)
        self.path = str(path)
        self.line = line


class DuplicateId(InputError):
    """Two documents carry one id; `first` and `second` say where they stand."""

    def __init__(self, doc_id: str, first: str, second: str) -> None:
        shown = doc_id if len(doc_id) <= 80 else doc_id[:77] + "..."
        super().__init__(
            f"the id {shown!r} stands twice: at {first} and again at {second}",
            "give each document its own id, or choose update or skip for duplicates (--on-duplicate)",
        )
        self.doc_id, self.first, self.second = doc_id, first, second


class ChangedCorpus(InputError):
    """A corpus is no longer what an interrupted build has read of it."""


class ModelError(CoilError):
    """A model folder is incomplete or contradicts itself."""


class MissingModelFile(ModelError):
    """A file that the model needs is not there."""


class WrongShape(ModelError):
    """A weight is missing, or its shape is not what the configuration says."""


class TokenizerMismatch(ModelError):
    """The tokenizer and the model (or the list table) were not made for each other."""


class OptionMismatch(ModelError):
    """An option contradicts what was saved with the model."""


class IndexProblem(CoilError):
    """An index cannot be used as it is."""


class MissingIndex(IndexProblem):
    """There is no index at that place."""


class NewerIndex(IndexProblem):
    """The index was made by a newer version."""


class OlderIndex(IndexProblem):
    """The index has a format that is no longer read."""


class ReplacedIndex(IndexProblem):
    """Another folder, or an earlier state, was put in the place of an index that is open."""


class DamagedManifest(IndexProblem):
    """The manifest of an index cannot be read."""


class MissingSegment(IndexProblem):
    """A segment file that the manifest names is not there."""


class DamagedSegment(IndexProblem):
    """A segment file is not what was written."""


class IndexLocked(IndexProblem):
    """Another process is writing the index."""


class UnfinishedBuild(IndexProblem):
    """The building of the index was interrupted."""


class TooLittleMemory(CoilError):
    """The memory that was allowed is not enough, or the system gives no more memory or threads."""


class SearchTimeout(CoilError):
    """A search took longer than it was given; it has stopped."""


class AnswerTooLarge(CoilError):
    """The texts of the hits exceed the limit that was set for them."""


class OutputError(CoilError):
    """The result cannot be written where it should go."""


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
