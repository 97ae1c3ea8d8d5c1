"""Filters: what they keep, what is refused, and that no expression reaches SQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import (
    InputError,
)
from coil.indexes.opening import create
from coil.storage.filters import parse_filter
from tests.hash_encoder import HashEncoder

# ---- filters

PIECES = ["a", "=", "'x'", "(", ")", "and", "or", "not", "in", ",", "1", "--", ";", '"']


def test_filters(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    years = {"a": 2019, "b": 2020, "c": 2021}
    for i, y in years.items():
        fields = {"year": y, "tag": {"lang": "en" if y % 2 else "de"}, "draft": y == 2020}
        index.add([{"id": i, "text": "river bank", **fields}])
    index.add([{"id": "d", "text": "river bank", "note": 'it\'s "x"; DROP TABLE documents'}])

    def ids(expression: str) -> str:
        return "".join(sorted(hit.doc_id for hit in index.search("river", filter=expression)))

    assert ids("year >= 2020") == "bc"
    assert ids("year = 2019 or year = 2021") == "ac"
    assert ids("not year >= 2020") == "ad"
    assert ids('tag.lang = "en" and not (year = 2021)') == "a"
    assert ids("draft = true") == "b"
    assert ids("year in (2019, 2020) and id != 'a'") == "b"
    assert ids("year exists") == "abc"
    assert ids("year != 2020") == "ac"
    assert ids('note = "it\'s \\"x\\"; DROP TABLE documents"') == "d"
    assert len(index) == 4


def test_values_are_compared_with_their_own_kind(tmp_path: Path) -> None:
    """CSV files have texts only: a number in a filter means those that are numbers."""
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    years = {"a": "1999", "b": "2021", "c": "", "d": 2022, "e": "2021-05-03", "f": True, "g": None, "h": 1.5}
    index.add([{"id": name, "text": "river bank", "year": year} for name, year in years.items()])
    index.add([{"id": "7", "text": "river bank"}])

    def ids(expression: str) -> str:
        return "".join(sorted(hit.doc_id for hit in index.search("river", 20, filter=expression)))

    assert ids("year >= 2020") == "bd"
    assert ids("year > 5000") == ""
    assert ids("year < 2020") == "ah"
    assert ids("year = 2021") == "b"
    assert ids("year = 2022") == "d"
    assert ids('year >= "2020"') == "be"
    assert ids('year < "1"') == "c"
    assert ids("year = true") == "f"
    assert ids("year >= 0") == "abdh"
    assert ids("year in (1999, 1.5, 'x', \"2021-05-03\", true)") == "aefh"
    assert ids("not year in (1999, 'x')") == "7bcdefgh"
    assert ids("id = 7") == ids("id = '7'") == ids("id in (7)") == "7"
    many = ", ".join(str(n) for n in range(5000))
    assert ids(f"year in ({many})") == "abd"


@pytest.mark.parametrize(
    "bad", ["", "year", "year =", "= 3", "year = 3)", "(year = 3", "year = 3 and", "a ; b", "year in 3"]
)
def test_bad_filters_are_named(bad: str) -> None:
    with pytest.raises(InputError, match="filter"):
        parse_filter(bad)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=40) | st.lists(st.sampled_from(PIECES), max_size=12).map(" ".join))
def test_any_filter_is_read_or_refused_and_runs(expression: str) -> None:
    import sqlite3

    try:
        parsed = parse_filter(expression)
    except InputError:
        return
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE documents (doc_id TEXT, fields TEXT)")
        connection.execute("INSERT INTO documents VALUES ('a', '{}')")
        connection.execute(
            f"SELECT count(*) FROM documents WHERE {parsed.where}", parsed.parameters
        ).fetchone()
