"""Tables and snippets keep to their columns, whatever letters the texts are written in."""

from __future__ import annotations

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from coil.explanations.columns import (
    bar,
    cut_end,
    cut_end_at_word,
    cut_middle,
    cut_start_at_word,
    pad,
    printable,
    width_of,
    wrap,
)
from coil.explanations.explanation import explain
from coil.explanations.snippet import cut_snippet, piece_text
from coil.explanations.table import format_contrast, format_table
from coil.texts.values import Document
from coil.tokens.profile import ScoringProfile
from tests.summing_encoder import SummingEncoder
from tests.tiny import PROFILE, WEIGHED

ODD = st.text(alphabet=st.sampled_from("ab 河岸é\u0301ｱ\u200d\x1b\u202e\n\t😀…"), max_size=60)


@given(text=ODD, columns=st.integers(0, 40))
@settings(max_examples=300)
def test_cut_texts_fit_their_columns(text: str, columns: int) -> None:
    shown = printable(text)
    assert not set(shown) & set("\x1b\n\t\u202e")
    for cut in (cut_end, cut_middle, cut_end_at_word, cut_start_at_word):
        assert width_of(cut(shown, columns)) <= columns
        if width_of(shown) <= columns:
            assert cut(shown, columns) == shown
    assert width_of(pad(cut_end(shown, columns), columns)) == columns
    for line in wrap(shown, columns):
        assert width_of(line) <= columns or " " not in line.strip()
    assert " ".join(wrap(shown, columns)).split() == shown.split()


def test_wide_letters_take_two_columns() -> None:
    assert (width_of("河岸"), width_of("e\u0301"), width_of("ab")) == (4, 1, 2)
    assert cut_middle("a-very-long-name.txt", 11) == "a-ver…e.txt"
    assert cut_start_at_word("the bank of the ", 10) == "…of the "
    assert cut_end_at_word(" raised its rates", 9) == " raised…"


@given(
    query=ODD,
    document=ODD,
    doc_id=ODD,
    width=st.sampled_from([70, 80, 100, 120]),
    profile=st.sampled_from([PROFILE, WEIGHED]),
)
@settings(max_examples=80, deadline=None)
def test_columns_stand_under_each_other(
    query: str, document: str, doc_id: str, width: int, profile: ScoringProfile
) -> None:
    encoder = SummingEncoder(profile=profile)
    made = explain(
        encoder, f"river {query} bank", Document(doc_id, f"bank {document}. River {document} bank. River.")
    )
    lines = format_table(made, width=width).splitlines()
    start = next(place for place, line in enumerate(lines) if line.startswith("  query  ") and "adds" in line)
    titles, *rows = lines[start : start + 1 + len(made.matches)]
    fit = "similarity" if profile is PROFILE else "  fit"
    columns = {fit: [m.similarity if profile is PROFILE else m.fit for m in made.matches]}
    columns["adds"] = [match.contribution for match in made.matches]
    for title, values in columns.items():
        end = width_of(titles[: titles.rindex(title)]) + len(title)
        for line, value in zip(rows, values, strict=True):
            places = [found.end() for found in re.finditer(re.escape(f"{value:.2f}"), line)]
            assert end in [width_of(line[:place]) for place in places]
    contrast = made.versus(explain(encoder, f"river {query} bank", Document("b", "the river")))
    for line in [
        *format_table(made, width=width).splitlines(),
        *format_contrast(contrast, width=width).splitlines(),
    ]:
        assert width_of(line) <= width


# --- snippets --------------------------------------------------------------------------------------------


@given(text=st.text(alphabet="ab \n\t.", max_size=120), data=st.data())
def test_a_snippet_is_one_line_around_the_token(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    snippet = cut_snippet(text, (start, end), characters=10)
    assert "\n" not in snippet.marked()
    assert "".join(snippet.token.split()) == "".join(text[start:end].split())
    around = "".join(f"{snippet.before}{snippet.after}".replace("…", "").split())
    assert len(around) <= 20


def test_pieces_show_where_their_word_goes_on() -> None:
    text = "the running, man"
    assert piece_text(text, (0, 3)) == "the"
    assert piece_text(text, (4, 7)) == "run…"
    assert piece_text(text, (7, 8)) == "…n…"
    assert piece_text(text, (8, 11)) == "…ing"
    assert piece_text(text, (11, 12)) == ","


def test_a_bar_is_as_long_as_its_share() -> None:
    assert bar(0.0, 4) == "    "
    assert bar(0.5, 4) == "██  "
    assert bar(0.53, 4) == "██▏ "
    assert bar(1.0, 4) == bar(1.7, 4) == "████"
    assert bar(-1.0, 4) == "    "
