"""`irds:NAME`: public collections by name, through the ir_datasets package.

The package downloads a collection when it is first read, into the folder IR_DATASETS_HOME (default:
`~/.ir_datasets`). If there is no connection, or a licence must be accepted first, the error names the missing
file and where to put it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from coil.errors import InputError, require
from coil.texts.opening import Source, shorten

IRDS = "irds:"


def is_irds(source: Source) -> bool:
    """Whether a source names a dataset of ir_datasets rather than a file."""
    return str(source).startswith(IRDS)


def load_irds(source: Source) -> Any:
    """The dataset object of `irds:NAME`."""
    package = require("ir_datasets", "irds")
    name = str(source).removeprefix(IRDS)
    try:
        return package.load(name)
    except (KeyError, ValueError) as error:
        raise InputError(
            f"ir_datasets has no dataset {name!r}", "choose one from the list at https://ir-datasets.com"
        ) from error


def iterate_irds(source: Source, part: str) -> Iterator[tuple[int, dict[str, Any], str | None]]:
    """The `docs` or `queries` of `irds:NAME`: number, record, and the text as the dataset defines it."""
    dataset = load_irds(source)
    items = getattr(dataset, f"{part}_iter", None)
    if items is None:
        raise InputError(f"{source} has no {part}", "choose a dataset that has them")
    try:
        for number, item in enumerate(items(), start=1):
            yield number, dict(item._asdict()), item.default_text() if hasattr(item, "default_text") else None
    except (OSError, RuntimeError) as error:
        raise _missing(source, dataset, part, error) from error


def irds_judgements(source: Source) -> dict[str, dict[str, int]]:
    """The judgements of `irds:NAME`."""
    dataset = load_irds(source)
    if not hasattr(dataset, "qrels_dict"):
        raise InputError(f"{source} has no judgements", "choose a dataset that has qrels")
    try:
        found: dict[str, dict[str, int]] = dataset.qrels_dict()
    except (OSError, RuntimeError) as error:
        raise _missing(source, dataset, "qrels", error) from error
    return found


def _missing(source: Source, dataset: Any, part: str, error: Exception) -> InputError:
    """The error if the download failed, or a licence must be accepted first."""
    with suppress(AttributeError, TypeError, OSError, RuntimeError):
        # Some datasets remove files of an older version on first use: let that happen before one is placed.
        dataset.docs_path(force=False)
    path = irds_path(dataset, part)
    place = f"place its file at {path}" if path is not None else f"place its files in {_home()}"
    return InputError(
        f"the {part} of {source} are not on this machine and cannot be downloaded: "
        f"{shorten(str(error), 200)}",
        f"connect to the network, or {place} (the folder is set by IR_DATASETS_HOME); see "
        f"https://ir-datasets.com/{str(source).removeprefix(IRDS).partition('/')[0]} for where to get it",
    )


def irds_path(dataset: Any, part: str) -> Path | None:
    """Where ir_datasets stores the file of a part, whether or not it exists; None if that is unknown."""
    handler = getattr(dataset, f"{part}_handler")()
    handler = getattr(handler, f"_{part}_handler", handler)  # behind a filter, such as one for judged queries
    for name in (f"_{part}_dlc", f"{part}_dlc", "_dlc"):
        path = getattr(getattr(handler, name, None), "path", None)
        if path is not None:
            try:
                return Path(path(force=False))
            except (TypeError, OSError, RuntimeError):  # not every kind of file has a path before it is read
                continue
    return None


def _home() -> str:
    return str(require("ir_datasets.util", "irds").home_path())
