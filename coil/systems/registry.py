"""The systems by name, and the parsing of their options.

A system is registered by one line here. Its module is imported only when the system is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import Field, fields
from typing import Any, get_args, get_type_hints

from coil.errors import OptionMismatch
from coil.systems.system import Fuser, Reranker, Retriever

System = Retriever | Reranker | Fuser

SYSTEMS: dict[str, str] = {
    "bm25s": "coil.systems.bm25s:Bm25s",
    "bm25": "coil.systems.coil:OwnBm25",
    "coil": "coil.systems.coil:Coil",
    "coil-full": "coil.systems.coil:CoilFull",
    "coil-tok": "coil.systems.coil:CoilTok",
    "dense": "coil.systems.coil:Dense",
    "colbert": "coil.systems.colbert:ColBert",
    "cross-encoder": "coil.systems.cross_encoder:CrossEncoderReranker",
    "deepct": "coil.systems.deepct:TermWeights",
    "doct5query": "coil.systems.doct5query:DocT5Query",
    "hybrid": "coil.systems.hybrid:Hybrid",
}
"""Name → `module:Class`."""

OWN_FIELDS = ("name", "model")  # fields of a system that are not options


def system_class(kind: str) -> type[Any]:
    """The class of a registered system."""
    place = SYSTEMS.get(kind)
    if place is None:
        raise OptionMismatch(f"there is no system {kind!r}", f"choose one of {', '.join(sorted(SYSTEMS))}")
    module, _, name = place.partition(":")
    found: type[Any] = getattr(importlib.import_module(module), name)
    return found


def options_of(kind: str) -> dict[str, Field[Any]]:
    """The options of a system: its fields except its label and its model."""
    return {field.name: field for field in fields(system_class(kind)) if field.name not in OWN_FIELDS}


def make_system(
    kind: str, options: Mapping[str, Any], model: str | None = None, name: str | None = None
) -> System:
    """A system with these options, given as values or, as on the command line, as strings."""
    cls = system_class(kind)
    known, kinds = options_of(kind), get_type_hints(cls)
    values: dict[str, Any] = {"name": name or kind}
    for key, value in options.items():
        if key not in known:
            choice = f"it has: {', '.join(known)}" if known else "it has none"
            raise OptionMismatch(f"the system {kind!r} has no option {key!r}", choice)
        values[key] = _value(kind, key, value, kinds[key])
    if model is not None:
        if "model" not in kinds:
            raise OptionMismatch(f"the system {kind!r} does not use a model, but {model!r} was given")
        values["model"] = model
    made: System = cls(**values)
    return made


def _value(kind: str, key: str, value: Any, wanted: Any) -> Any:
    """The value of an option, whose type is bool, int, float, str or a choice of strings."""
    choices = get_args(wanted)
    if choices:
        if value in choices:
            return value
        raise OptionMismatch(f"{kind}: {key} is {value!r}; it must be one of {', '.join(map(str, choices))}")
    if isinstance(value, str) and wanted is not str:
        value = _parse(value, wanted)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        raise OptionMismatch(f"{kind}: {key} is {value!r}; expected {wanted.__name__}")
    return value


def _parse(text: str, wanted: type[Any]) -> Any:
    if wanted is bool:
        return {"true": True, "false": False}.get(text.lower(), text)
    try:
        return wanted(text)
    except ValueError:
        return text
