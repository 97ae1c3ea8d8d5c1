"""The public Python interface: a list for the repository, and what the site makes its reference from."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from typing import Any

import coil
from coil.forks import cached

SECTIONS = {
    "Opening": ("create", "open", "connect", "connect_async"),
    "The index": ("Index",),
    "Hits and explanations": ("Hit", "Explanation", "Match", "explain", "to_frame"),
    "Documents and queries": ("Document", "Query", "read_documents"),
    "Models": (
        "Encoder", "OnnxEncoder", "TorchEncoder", "TokenVectors", "ModelConfig", "ScoringProfile", "PAPER",
    ),
    "In memory": ("Searcher",),
    "Errors": ("CoilError",),
}  # fmt: skip
MEMBERS = {
    "Index": (
        "search",
        "search_many",
        "explain",
        "suggest",
        "rerank",
        "rerank_many",
        "add",
        "update",
        "delete",
        "compact",
        "document",
        "has",
        "refresh",
        "pinned",
        "verify",
        "inspect",
        "settings",
        "close",
    )
}  # fmt: skip  of the others, all public ones
CONSTRUCTED = ("OnnxEncoder", "TorchEncoder")  # as well as data classes; the others come from functions
CONSTANTS = {"PAPER": "The paper's settings, a `ScoringProfile`."}
WIDTH = 140


def summary() -> str:
    """Every public name with its signature and the first sentence of its docstring."""
    return "\n\n".join(
        f"## {section}\n" + "\n".join(line for name in names for line in _lines(name))
        for section, names in SECTIONS.items()
    )


def reference() -> str:
    """The same names as directives of mkdocstrings."""
    return "\n\n".join(
        f"## {section}\n" + "\n".join(map(_directive, names)) for section, names in SECTIONS.items()
    )


def _directive(name: str) -> str:
    there = coil._OTHER_NAMES.get(name, name)
    lines = [f"::: {coil._HOMES[name]}.{there}"]
    if there != name:
        lines.append(f'    options: {{heading: "{name}"}}')
    if name in MEMBERS:
        lines += ["    options:", "      inherited_members: true", "      members:"]
        lines += [f"        - {member}" for member in MEMBERS[name]]
    return "\n".join(lines)


def _lines(name: str) -> Iterator[str]:
    of = getattr(coil, name)
    if name in CONSTANTS:
        yield _item(f"coil.{name}", CONSTANTS[name])
        return
    is_called = not inspect.isclass(of) or is_dataclass(of) or name in CONSTRUCTED
    yield _item(_signature(f"coil.{name}", of) if is_called else f"coil.{name}", of.__doc__)
    if inspect.isclass(of):
        for member in MEMBERS.get(name) or [found for found in vars(of) if not found.startswith("_")]:
            found = inspect.getattr_static(of, member)
            if inspect.isfunction(found) or isinstance(found, classmethod | staticmethod):
                yield _item(_signature(member, getattr(of, member)), inspect.getdoc(found), "  ")
            elif isinstance(found, property | cached):
                yield _item(member, found.__doc__, "  ")


def _item(code: str, doc: str | None, indent: str = "") -> str:
    """An item of a list, with the first sentence of its docstring."""
    text = " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
    first = re.match(r".*?\.(?= |$)", text)
    said = (first[0] if first else text).rstrip(".")
    whole = f"- `{code}`" + (f": {said}" if said else "")
    return textwrap.fill(
        whole, WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _signature(name: str, of: Any) -> str:
    """The arguments with their defaults, and what is returned; types are in the reference."""
    found = inspect.signature(of)
    plain = [
        parameter.replace(annotation=inspect.Parameter.empty, default=_default(parameter.default))
        for parameter in found.parameters.values()
        if parameter.name != "self"
    ]
    result = found.return_annotation
    returned = f" -> {result}" if isinstance(result, str) and result != "None" else ""
    return f"{name}{inspect.Signature(plain)}{returned}"


class _Shown:
    """A default whose value does not matter to a reader."""

    def __repr__(self) -> str:
        return "..."


def _default(value: Any) -> Any:
    known = value is inspect.Parameter.empty or value is None or isinstance(value, str | int | float | tuple)
    return value if known else _Shown()
