"""Chunks of long texts: they cover the text, fit the model, and follow what the text is made of."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.tokens.chunks import chunk_spans
from coil.tokens.tokenizer import Tokenizer
from tests.tiny import make_tokenizer

TOKENIZER = Tokenizer(make_tokenizer(), "tiny")
LENGTH = 34  # 32 tokens and two special ones


def chunks(text: str, headings: tuple[int, ...] = (), reserved: tuple[int, int] = (0, 0)) -> list[str]:
    spans = chunk_spans(TOKENIZER, text, LENGTH, headings=headings, reserved=reserved)
    assert spans[0][0] == 0
    assert spans[-1][1] == len(text)
    assert all(a < c and b < d and c <= b for (a, b), (c, d) in pairwise(spans))
    found = [text[a:b] for a, b in spans]
    room = LENGTH - reserved[len(found) > 1]
    assert all(tokens.dropped == 0 for tokens in TOKENIZER.cut(found, room))
    return found


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.sampled_from(["river", "bank", ".", "\n", "\n\n", " ", "  ", "! ", "x" * 40, "é", "(a)"]))
    .map(" ".join),
    st.lists(st.integers(0, 200), max_size=5),
    st.sampled_from([(0, 0), (0, 8), (3, 8)]),
)  # fmt: skip
def test_any_text_is_covered_and_every_chunk_fits(
    text: str, headings: list[int], reserved: tuple[int, int]
) -> None:
    chunks(text, tuple(sorted(place for place in headings if place < len(text))), reserved)


def test_a_chunk_ends_with_a_paragraph_and_repeats_nothing() -> None:
    text = "\n\n".join(f"{letter} " + "river " * 9 for letter in "abcdefgh")
    found = chunks(text)
    assert "".join(found) == text
    assert [chunk.split()[0] for chunk in found] == ["a", "d", "g"]


def test_a_heading_comes_before_a_paragraph() -> None:
    parts = [f"{letter} " + "river " * 9 for letter in "abcdefgh"]
    text = "\n\n".join(parts)
    heading = text.index("c river")
    assert [chunk.split()[0] for chunk in chunks(text, (heading,))] == ["a", "c", "f"]
    early = text.index("b river")  # in the first half: the chunk would be too short
    assert [chunk.split()[0] for chunk in chunks(text, (early,))] == ["a", "d", "g"]


def test_a_chunk_ends_with_a_sentence_and_the_next_repeats_whole_ones() -> None:
    text = " ".join(f"{letter} river bank water river bank." for letter in "abcdefghijkl")
    found = chunks(text)
    assert len(found) > 2
    assert all(chunk.rstrip().endswith(".") for chunk in found)
    assert all(len(chunk.split()[0]) == 1 for chunk in found)
    assert all(second.split()[0] in first.split() for first, second in pairwise(found))


def test_what_is_reserved_decides_when_a_text_is_cut() -> None:
    text = "river " * 30
    assert len(chunks(text)) == 1
    assert len(chunks(text, reserved=(2, 10))) == 1
    assert len(chunks(text, reserved=(3, 10))) == 2
