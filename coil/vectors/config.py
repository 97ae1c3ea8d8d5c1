"""ModelConfig: the shape of a COIL model, saved as coil.json next to its weights."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from coil.errors import MissingModelFile, OptionMismatch
from coil.tokens.model_json import COPY, read_json
from coil.tokens.profile import ScoringProfile

CONFIG_FILE = "coil.json"
FORMAT = 1
WIDEST = 1 << 16  # dimensions of a vector

Shape = TypeVar("Shape")
Pooling = Literal["cls", "mean"]
SentenceNorm = Literal["none", "layer", "unit"]
TokenNorm = Literal["none", "unit"]


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a COIL model.

    `n_t`: dimensions of the token vectors, 0 for a dense retriever. `n_c`: dimensions of the sentence vector,
    0 for COIL-tok. `pooling`: the sentence vector comes from the first token ("cls", the paper) or from the
    mean of all tokens. `sentence_norm`: "layer" applies a LayerNorm to the sentence vector ("when useful",
    section 4), "unit" scales the pooled vector to length 1 before its projection. `non_negative`: token
    vectors are floored at 0; with n_t = 1 they are term weights. `token_norm`: "unit" scales token vectors to
    length 1, so that their products are cosines.
    """

    n_t: int = 32
    n_c: int = 768
    pooling: Pooling = "cls"
    sentence_norm: SentenceNorm = "none"
    profile: ScoringProfile = ScoringProfile()
    non_negative: bool = False
    token_norm: TokenNorm = "none"

    def __post_init__(self) -> None:
        if self.n_t < 0 or self.n_c < 0 or self.n_t + self.n_c == 0:
            raise OptionMismatch(
                f"n_t is {self.n_t} and n_c is {self.n_c}; both must be at least 0, and one of them above 0"
            )
        if max(self.n_t, self.n_c) > WIDEST:
            raise OptionMismatch(f"n_t is {self.n_t} and n_c is {self.n_c}; the limit is {WIDEST:,}")
        if self.non_negative and not self.n_t:
            raise OptionMismatch(
                "non_negative applies to token vectors, but n_t is 0", "set n_t to 1 for term weights"
            )
        if self.non_negative and self.token_norm == "unit":
            raise OptionMismatch(
                "non_negative makes token vectors term weights, which token_norm unit would all set to 1",
                "set token_norm to none",
            )
        for name, choices in (
            ("pooling", Pooling),
            ("sentence_norm", SentenceNorm),
            ("token_norm", TokenNorm),
        ):
            if getattr(self, name) not in (allowed := get_args(choices)):
                raise OptionMismatch(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}"
                )

    @property
    def kind(self) -> str:
        """The paper's name for this shape."""
        if self.n_t == 0:
            return "dense"
        return "COIL-tok" if self.n_c == 0 else "COIL-full"

    def to_json(self) -> dict[str, Any]:
        """The configuration as a JSON object."""
        return {
            "format": FORMAT,
            "n_t": self.n_t,
            "n_c": self.n_c,
            "pooling": self.pooling,
            "sentence_norm": self.sentence_norm,
            "profile": self.profile.to_json(),
            # Models with plain token vectors do not have these keys.
            **({"non_negative": True} if self.non_negative else {}),
            **({"token_norm": self.token_norm} if self.token_norm != "none" else {}),
        }

    def save(self, folder: Path) -> None:
        """Write coil.json."""
        (folder / CONFIG_FILE).write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> ModelConfig:
        """Read coil.json; a missing or unknown key is an error."""
        path = folder / CONFIG_FILE
        if not folder.is_dir() or not (path.exists() or path.is_symlink()):
            raise MissingModelFile(
                f"{path} is missing: {folder} is not a COIL model",
                "train a model with `coil train`, or pass a model folder",
            )
        value = read_json(path)
        expected = {"format", "n_t", "n_c", "pooling", "sentence_norm", "profile"}
        if set(value) - {"non_negative", "token_norm"} != expected:
            raise OptionMismatch(
                f"{path} must have the keys {', '.join(sorted(expected))} and may have "
                f"non_negative and token_norm; found {', '.join(sorted(value))[:200]}",
                COPY,
            )
        if value.pop("format") != FORMAT:
            raise OptionMismatch(f"{path} does not have the format {FORMAT}", "upgrade coil-ir")
        profile = ScoringProfile.from_json(value.pop("profile"), str(path))
        if type(value["n_t"]) is not int or type(value["n_c"]) is not int:
            raise OptionMismatch(f"{path}: n_t and n_c must be whole numbers", COPY)
        if type(value.get("non_negative", False)) is not bool:
            raise OptionMismatch(f"{path}: non_negative must be true or false", COPY)
        try:
            return cls(profile=profile, **value)
        except OptionMismatch as error:
            raise OptionMismatch(f"{path}: {error.reason}", error.remedy or COPY) from error


def save_shape(shape: Any, path: Path) -> None:
    """Write the shape of a model other than COIL: a dataclass of whole numbers and choices."""
    path.write_text(json.dumps({"format": FORMAT, **asdict(shape)}, indent=2) + "\n", encoding="utf-8")


def load_shape(kind: type[Shape], path: Path, what: str) -> Shape:
    """Read what `save_shape` wrote; a missing or unknown key, or a value of another type, is an error."""
    if not (path.exists() or path.is_symlink()):
        raise MissingModelFile(
            f"{path} is missing: {path.parent} is not {what}", f"train {what} with `coil train --kind`"
        )
    value = read_json(path)
    kinds = get_type_hints(kind)
    names = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    if set(value) != {"format", *names}:
        raise OptionMismatch(
            f"{path} must have exactly the keys format, {', '.join(names)}; "
            f"found {', '.join(sorted(value))[:200]}",
            COPY,
        )
    if value.pop("format") != FORMAT:
        raise OptionMismatch(f"{path} does not have the format {FORMAT}", "upgrade coil-ir")
    for name in names:
        choices = get_args(kinds[name])
        if value[name] not in choices if choices else type(value[name]) is not kinds[name]:
            expected = f"one of {', '.join(choices)}" if choices else f"of type {kinds[name].__name__}"
            raise OptionMismatch(f"{path}: {name} is {str(value[name])[:40]}; it must be {expected}", COPY)
    try:
        return kind(**value)
    except OptionMismatch as error:
        raise OptionMismatch(f"{path}: {error.reason}", error.remedy or COPY) from error
