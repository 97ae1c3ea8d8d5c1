"""The scoring profile: every option of the scoring equation, as one small value saved with each model."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from coil.errors import OptionMismatch
from coil.texts.questions import show

LONGEST = 1 << 20  # tokens
ListKeyKind = Literal["wordpiece", "word"]
Unlisted = Literal["nothing", "stopwords"]
Weight = Literal["one", "bm25"]
GammaRule = Literal["constant", "root"]
By = Literal["coil", "tokens", "bm25", "dense", "hybrid"]
HYBRID_GAMMA = 8.0  # γ in BM25 + γ·√(n − ½)·cosine, if the profile itself has no such rule
_CHOICES: dict[str, tuple[str, ...]] = {
    "list_key": get_args(ListKeyKind),
    "unlisted": get_args(Unlisted),
    "weight": get_args(Weight),
    "gamma_rule": get_args(GammaRule),
}
_NUMBERS = ("alpha", "beta", "gamma", "k1", "b")


@dataclass(frozen=True)
class ScoringProfile:
    """The scoring equation and its options; docs/semantics.md explains each choice.

        s(q, d) = Σ_i w_i · (α + β · max_j v_i·v_j)⁺ + γ(q) · v_cls^q · v_cls^d

    `weight`: w_i is 1 ("one", the paper) or the BM25 weight of the word in the collection ("bm25", with `k1`
    and `b`). `gamma_rule`: γ(q) is `gamma` ("constant") or `gamma`·√(n − ½) ("root"), where n ≥ 1 is the
    number of listed query words. `floor`: the contribution of each query token is floored at 0, as in the
    authors' release; False follows eq. 4 exactly. `list_key`: "wordpiece" gives each vocabulary entry its own
    list, "word" each English stem of a whole word. `unlisted`: "nothing" gives every token a list;
    "stopwords" excludes stop words and punctuation. Lengths include the special tokens that the language
    model adds.
    """

    floor: bool = True
    list_key: ListKeyKind = "wordpiece"
    unlisted: Unlisted = "nothing"
    weight: Weight = "one"
    alpha: float = 0.0
    beta: float = 1.0
    gamma: float = 1.0
    gamma_rule: GammaRule = "constant"
    k1: float = 0.9
    b: float = 0.4
    query_length: int = 256
    document_length: int = 512

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise OptionMismatch(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}"
                )
        for name in _NUMBERS:
            value = getattr(self, name)
            if not (math.isfinite(value) and 0.0 <= value <= 1e6):
                raise OptionMismatch(f"{name} is {value!r}; expected a number from 0 to 1,000,000")
        if self.b > 1.0:
            raise OptionMismatch(f"b is {self.b!r}; expected a number from 0 to 1")
        if self.weight == "bm25" and not self.floor:
            raise OptionMismatch("the weight 'bm25' requires floor", "set floor to true")
        lengths = (self.query_length, self.document_length)
        if min(lengths) < 3 or max(lengths) > LONGEST:
            raise OptionMismatch(
                f"query_length and document_length must be from 3 (two are special tokens) to {LONGEST:,}"
            )

    @property
    def uses_lists(self) -> bool:
        """Whether the token part can contribute."""
        return self.alpha > 0.0 or self.beta > 0.0

    @property
    def uses_sentence(self) -> bool:
        """Whether there is a sentence part."""
        return self.gamma > 0.0

    def gamma_of(self, n_listed: int) -> float:
        """γ(q) for a query with this many listed words."""
        return self.gamma * math.sqrt(max(n_listed, 1) - 0.5) if self.gamma_rule == "root" else self.gamma

    def answering(self, by: By) -> ScoringProfile:
        """The same equation with the constants of another scoring system; one index serves all of them."""
        check_by(by)
        if by == "coil":
            return self
        if by == "tokens":
            return replace(self, gamma=0.0)
        if by == "dense":
            return replace(self, alpha=0.0, beta=0.0, gamma=1.0, gamma_rule="constant")
        counted = replace(self, floor=True, weight="bm25", alpha=1.0, beta=0.0)
        if by == "bm25":
            return replace(counted, gamma=0.0)
        own = self.gamma if self.gamma_rule == "root" and self.gamma > 0.0 else HYBRID_GAMMA
        return replace(counted, gamma=own, gamma_rule="root")

    def to_json(self) -> dict[str, Any]:
        """The profile as a JSON object; `from_json` reads it back."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any], where: str) -> ScoringProfile:
        """Read a profile; an unknown or missing field is an error, never a silent default."""
        known = {field.name for field in fields(cls)}
        if not isinstance(value, dict) or set(value) != known:
            odd = sorted(set(value) ^ known) if isinstance(value, dict) else ["all"]
            raise OptionMismatch(
                f"{where}: the scoring profile has missing or unknown fields: {', '.join(odd)}",
                "the model is from another version of coil-ir; install that version or retrain the model",
            )
        lengths = (value["query_length"], value["document_length"])
        if any(type(length) is not int for length in lengths) or type(value["floor"]) is not bool:
            raise OptionMismatch(
                f"{where}: the lengths must be whole numbers and floor true or false", "copy the model again"
            )
        if any(type(value[name]) not in (int, float) for name in _NUMBERS):
            raise OptionMismatch(f"{where}: {', '.join(_NUMBERS)} must be numbers", "copy the model again")
        try:
            return cls(**value)
        except OptionMismatch as error:
            raise OptionMismatch(
                f"{where}: {error.reason}", error.remedy or "copy the model again"
            ) from error


PAPER = ScoringProfile(query_length=16, document_length=512)
"""The paper's settings, with the floor at 0 and the query length of the authors' release."""

WORDS = ScoringProfile(
    list_key="word",
    unlisted="stopwords",
    weight="bm25",
    alpha=1.0,
    beta=0.2,  # the context changes the score of a match by about a fifth
    gamma=8.0,
    gamma_rule="root",
)
"""The default: whole words, weighted by the collection's statistics, and a sentence vector."""


def check_by(by: object) -> By:
    """Validate the name of a scoring system."""
    if not isinstance(by, str) or by not in get_args(By):
        raise OptionMismatch(f"by is {show(by)}; it must be one of {', '.join(get_args(By))}")
    return cast(By, by)
