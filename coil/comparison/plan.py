"""The plan of a comparison: systems with their options, dependencies and training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from coil.errors import InputError, OptionMismatch
from coil.metrics.evaluation import DEFAULT_MEASURES, parse_measures
from coil.systems.registry import SYSTEMS, make_system, system_class
from coil.training.options import TrainingOptions

DEPTH = 100  # candidates that are reranked
CANDIDATES = "bm25s"  # the source of candidates for rerankers, unless another system is named
OWN_KEYS = ("name", "system", "model", "training", "candidates", "depth", "of")
DEFAULT_SYSTEMS = (
    "bm25s",
    "bm25",
    "dense",
    "coil:by=tokens",
    "coil",
    "hybrid",
    "hybrid:fusion=rrf",
    "coil:candidates=bm25s",
)
"""Systems that need no training; they use the bundled model."""

_OPTION = re.compile(r":(?=[a-zA-Z_]\w*=)")  # a colon that begins an option, not one in a path


@dataclass(frozen=True)
class Entry:
    """One system of the comparison. `inputs` are the labels of the systems whose answers it uses."""

    label: str
    kind: str
    model: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    training: str | None = None
    inputs: tuple[str, ...] = ()
    depth: int = DEPTH

    @property
    def reranks(self) -> bool:
        """Whether it reorders the candidates of another system."""
        return bool(self.inputs) and not _is_fuser(self.kind)

    @property
    def option_texts(self) -> dict[str, str]:
        """The options as strings, the same whether they come from the command line or from a file."""
        return {key: str(value) for key, value in sorted(self.options.items())}

    def make(self, model: str | None = None) -> Any:
        """Create the system; `model` replaces the one that was named."""
        return make_system(self.kind, self.options, model or self.model, self.label)


@dataclass(frozen=True)
class Training:
    """How models are trained, shared by all systems that refer to it."""

    name: str
    pairs: tuple[str, ...]
    base: str
    negatives: tuple[str, ...] = ()
    mine: bool = False  # find negatives by BM25, as `coil mine` does
    corpus: str | None = None
    recipe: TrainingOptions = field(default_factory=TrainingOptions)
    device: str | None = None


@dataclass(frozen=True)
class Plan:
    """The whole comparison; each system comes after its dependencies."""

    entries: tuple[Entry, ...]
    labels: tuple[str, ...]  # of the systems to show, in the order given
    trainings: Mapping[str, Training] = field(default_factory=dict)
    measures: tuple[str, ...] = DEFAULT_MEASURES
    k: int = 1000
    against: str = ""  # the label of the system that the others are tested against

    @property
    def shown(self) -> list[Entry]:
        """The systems to show, in the order given."""
        return [self.entry(label) for label in self.labels]

    def entry(self, label: str) -> Entry:
        """A system by its label."""
        return next(entry for entry in self.entries if entry.label == label)


def make_plan(
    wanted: Iterable[Mapping[str, Any]],
    trainings: Mapping[str, Training] | None = None,
    measures: Sequence[str] = DEFAULT_MEASURES,
    k: int = 1000,
    against: str | None = None,
) -> Plan:
    """Check everything that can be checked before hours of work, and resolve dependencies."""
    trainings = trainings or {}
    known = tuple(str(measure) for measure in parse_measures(measures))
    if k < 1:
        raise OptionMismatch(f"k is {k}; expected at least 1")
    entries = [_entry(given, trainings) for given in wanted]
    if not entries:
        raise InputError("no systems were given", f"choose some of {', '.join(sorted(SYSTEMS))}")
    _check_labels(entries)
    ordered: dict[str, Entry] = {}
    for entry in entries:
        _add(entry, entries, ordered, ())
    labels = tuple(entry.label for entry in entries)
    chosen = against or labels[0]
    if chosen not in labels:
        raise OptionMismatch(
            f"no system of the comparison has the label {chosen!r}", f"choose one of {', '.join(labels)}"
        )
    for entry in ordered.values():
        _check_model(entry)
    return Plan(tuple(ordered.values()), labels, dict(trainings), known, k, chosen)


def parse_system(text: str) -> dict[str, Any]:
    """Parse NAME[=MODEL][:option=value]... into the keys of a config file."""
    head, *given = _OPTION.split(text)
    kind, _, model = head.partition("=")
    found: dict[str, Any] = {"system": kind.strip()}
    if model:
        found["model"] = model
    for one in given:
        key, _, value = one.partition("=")
        if key in found:
            raise OptionMismatch(f"{key} is repeated in {text!r}")
        found[key] = value
    return found


def _entry(given: Mapping[str, Any], trainings: Mapping[str, Training]) -> Entry:
    values = dict(given)
    kind = str(values.pop("system", ""))
    cls = system_class(kind)
    options = {key: values.pop(key) for key in list(values) if key not in OWN_KEYS}
    model, training = values.get("model"), values.get("training")
    if training is not None and training not in trainings:
        raise OptionMismatch(
            f"{kind}: no training is named {training!r}",
            f"choose one of {', '.join(trainings)}" if trainings else "define [training.NAME] in the config",
        )
    if model is not None and training is not None:
        raise OptionMismatch(f"{kind}: both a model and a training are given", "use only one of them")
    fuses = _is_fuser(kind)
    if fuses:
        inputs = _names(values.get("of")) or cls.inputs
        if model is not None or training is not None:  # for the systems that it merges
            inputs = tuple(_with_model(name, model, training) for name in inputs)
        if "candidates" in values:
            raise OptionMismatch(f"{kind} merges lists and does not take candidates", "pass them with of=A+B")
    else:
        inputs = (str(values["candidates"]),) if values.get("candidates") else ()
        if "of" in values:
            raise OptionMismatch(f"{kind} does not merge other systems", "remove `of`")
        if not inputs and not hasattr(cls, "search"):
            inputs = (CANDIDATES,)
        if inputs and not (hasattr(cls, "rerank") or hasattr(cls, "rerank_stored")):
            raise OptionMismatch(f"{kind} cannot rerank candidates", "remove `candidates`")
    depth = _depth(values.get("depth", DEPTH), kind)
    if "depth" in values and not inputs:
        raise OptionMismatch(f"{kind}: depth applies only to rerankers", "pass candidates as well")
    if fuses and "depth" in values:
        options["depth"] = values["depth"]
    entry = Entry("", kind, None if fuses else model, options, None if fuses else training, inputs, depth)
    if training is not None and not fuses and not hasattr(cls, "fit"):
        raise OptionMismatch(f"{kind} cannot be trained", "remove `training`")
    return replace(entry, label=str(values.get("name") or _label(entry, model)))


def _with_model(name: str, model: str | None, training: str | None) -> str:
    """The name of a system that a fuser merges, with the fuser's model if the system uses one."""
    if name not in SYSTEMS or "model" not in {f.name for f in fields(system_class(name))}:
        return name
    return f"{name}={model}" if model is not None else f"{name}:training={training}"


def _label(entry: Entry, model: str | None) -> str:
    """The default label of a system, with its options, model and candidates."""
    apart = [f"{key}={value}" for key, value in entry.options.items()]
    label = _name(entry.kind) + (f" ({', '.join(apart)})" if apart else "")
    if model is not None:
        label += f" [{Path(model).name}]"
    if not entry.reranks:
        return label
    [first] = entry.inputs
    return f"{_name(first) if first in SYSTEMS else first} + {label}"


def _name(kind: str) -> str:
    """The default name of a system."""
    return str(next(f.default for f in fields(system_class(kind)) if f.name == "name"))


def _names(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split("+") if part.strip())
    return tuple(str(part) for part in value)


def _depth(value: Any, kind: str) -> int:
    try:
        depth = int(str(value))
    except ValueError:
        depth = 0
    if depth < 1:
        raise OptionMismatch(f"{kind}: depth is {value!r}; expected a whole number of at least 1")
    return depth


def _is_fuser(kind: str) -> bool:
    return hasattr(system_class(kind), "fuse")


def _check_labels(entries: Sequence[Entry]) -> None:
    seen: set[str] = set()
    for entry in entries:
        if entry.label in seen:
            raise OptionMismatch(
                f"two systems have the label {entry.label!r}", "give one of them another name=..."
            )
        seen.add(entry.label)


def _add(entry: Entry, wanted: Sequence[Entry], ordered: dict[str, Entry], above: tuple[str, ...]) -> None:
    """Add an entry after its dependencies; those that were not requested are run but not shown."""
    if entry.label in above:
        raise OptionMismatch(f"{entry.label!r} depends on itself: {' → '.join((*above, entry.label))}")
    if entry.label in ordered:
        return
    labels = []
    for name in entry.inputs:
        below = _find(name, (*wanted, *ordered.values()))
        if below is None:
            if parse_system(name)["system"] not in SYSTEMS:
                raise OptionMismatch(
                    f"{entry.label!r} depends on {name!r}, which is neither a label nor a system",
                    f"choose one of {', '.join(e.label for e in wanted if e is not entry)}",
                )
            given = parse_system(name)
            training = given.pop("training", None)
            below = replace(_entry(given, {}), training=training)
            if training is not None:
                below = replace(below, label=f"{below.label} [{training}]")
        _add(below, wanted, ordered, (*above, entry.label))
        labels.append(below.label)
    ordered[entry.label] = replace(entry, inputs=tuple(labels))


def _find(name: str, entries: Iterable[Entry]) -> Entry | None:
    """The entry with this label or, among entries without options, of this system."""
    known = list(entries)
    for entry in known:
        if entry.label == name:
            return entry
    given = parse_system(name)
    for entry in known:
        same = (entry.kind, entry.model, entry.training) == (
            given["system"],
            given.get("model"),
            given.get("training"),
        )
        if same and not entry.options and not entry.inputs:
            return entry
    return None


def _check_model(entry: Entry) -> None:
    entry.make()  # checks the options
    cls = system_class(entry.kind)
    if getattr(cls, "needs_model", False) and entry.model is None and entry.training is None:
        raise OptionMismatch(
            f"{entry.kind} requires a trained model",
            f"pass one as {entry.kind}=FOLDER, or define a training in a config file",
        )


def trained(plan: Plan) -> Iterator[tuple[Entry, Training]]:
    """The entries that are trained in this comparison."""
    for entry in plan.entries:
        if entry.training is not None:
            yield entry, plan.trainings[entry.training]
