"""The scoring profile: every decision about what is computed, as one small value saved with each model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from coil.errors import OptionMismatch

LONGEST = 1 << 20  # tokens
ListKeyKind = Literal["wordpiece", "stem"]
Unlisted = Literal["nothing", "stopwords"]


@dataclass(frozen=True)
class ScoringProfile:
    """What COIL computes, as settled in docs/semantics.md.

    `floor`: each query token's maximum is floored at 0, as in the authors' release; False is eq. 4 to the
    letter. `list_key`: "wordpiece" gives each vocabulary entry its own list, "stem" lets whole words with
    one English Snowball stem share a list. `unlisted`: "nothing" gives every token a list; "stopwords"
    leaves out stop words, punctuation and the unknown token. Lengths count the special tokens that the
    language model adds, as the authors' release does.
    """

    floor: bool = True
    list_key: ListKeyKind = "wordpiece"
    unlisted: Unlisted = "nothing"
    query_length: int = 256
    document_length: int = 512

    def __post_init__(self) -> None:
        for name, allowed in (("list_key", get_args(ListKeyKind)), ("unlisted", get_args(Unlisted))):
            if getattr(self, name) not in tuple(allowed):
                raise OptionMismatch(
                    f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}"
                )
        lengths = (self.query_length, self.document_length)
        if min(lengths) < 3 or max(lengths) > LONGEST:
            raise OptionMismatch(
                f"query_length and document_length must be from 3 (two are special tokens) to {LONGEST:,}"
            )

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
                "the model was made by another version of coil-ir; install that version or train anew",
            )
        lengths = (value["query_length"], value["document_length"])
        if any(type(length) is not int for length in lengths) or type(value["floor"]) is not bool:
            raise OptionMismatch(
                f"{where}: the lengths must be whole numbers and floor true or false", "copy the model again"
            )
        try:
            return cls(**value)
        except OptionMismatch as error:
            raise OptionMismatch(f"{where}: {error}", error.remedy or "copy the model again") from error


PAPER = ScoringProfile(query_length=16, document_length=512)
"""The paper's choices, with the authors' floor at 0 and query length."""
