"""Filters: what they keep, what is refused, and that no expression reaches SQL."""

from __future__ import annotations

import contextlib
import pickle
import re
import sqlite3
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import (
    InputError,
)
from coil.hits.collection import MemoryCollection
from coil.indexes.opening import create, open_index
from coil.storage import documents
from coil.storage.filters import parse_filter
from coil.texts.values import Document
from tests.hash_encoder import HashEncoder

# ---- filters


def test_a_field_that_no_document_has_is_named(tmp_path: Path) -> None:
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert index.search("river", filter="year = 2020").unknown_fields == ()  # nothing is there at all
            index.add([{"id": "a", "text": "river bank", "year": 2020, "author": {"name": "Gao"}}])
            # What has hits, what no document fulfils, and a limit of 0 are no mistakes.
            assert [hit.doc_id for hit in index.search("river", filter="not yaer = 2020")] == ["a"]
            assert not index.search("river", filter='year = 2019 or author.name = "x" or id = "b"')
            assert not index.search("river", k=0, filter="yaer = 2020")
            assert not index.search_many([], filter="yaer = 2020")
        with pytest.warns(UserWarning, match="no hits: no document has the field 'yaer' or 'author.nmae'$"):
            hits = index.search("river", filter='year = 2020 and (yaer = 2020 or author.nmae = "Gao")')
        assert hits.unknown_fields == ("yaer", "author.nmae")
        assert (hits[:1].unknown_fields, pickle.loads(pickle.dumps(hits)).unknown_fields) == (
            hits.unknown_fields,
            hits.unknown_fields,
        )
        with pytest.warns(UserWarning, match="'yaer'") as told:
            assert index.search_many(["river", "bank"], filter="yaer = 2020") == [[], []]
        assert [(Path(one.filename), one.category) for one in told] == [(Path(__file__), UserWarning)]


PIECES = [
    "a",
    "id",
    "=",
    "'x'",
    "(",
    ")",
    "and",
    "or",
    "not",
    "in",
    "exists",
    ",",
    "1",
    "-2.5e3",
    "--",
    ";",
    '"',
]


def test_whole_numbers_of_64_bits_are_compared_exactly(tmp_path: Path) -> None:
    """A float would be equal to its neighbours."""
    numbers = [sign * 1234567890123456789 + n for sign in (1, -1) for n in (0, 1)]
    numbers += [2**63 - 1, 2**63 - 2, 1 - 2**63, 2 - 2**63]
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": str(number), "text": "river", "n": number} for number in numbers])
        for number in numbers:
            assert [hit.doc_id for hit in index.search("river", filter=f"n = {number}")] == [str(number)]


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


def test_a_list_is_compared_by_its_elements(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    lists = {"a": ["queue", "handbook"], "b": ["errors", 7], "c": [], "d": "queue", "e": [["queue"], None]}
    index.add([{"id": name, "text": "river bank", "tags": tags} for name, tags in lists.items()])

    def ids(expression: str) -> str:
        return "".join(sorted(hit.doc_id for hit in index.search("river", 20, filter=expression)))

    assert ids('tags = "queue"') == ids('tags in ("queue", "x")') == "ad"
    assert ids("tags = 7") == ids("tags > 6 and tags < 8") == ids("tags in (7, true)") == "b"
    assert ids('tags != "queue"') == "b"
    assert ids('not tags = "queue"') == "bce"
    assert ids("tags exists") == "abcde"
    assert ids("tags = 8") == ids("tags = true") == ""


def test_booleans_of_front_matter_and_csv_files_are_booleans(tmp_path: Path) -> None:
    index = create(tmp_path / "a.coil", encoder=HashEncoder())
    drafts = {"a": "true", "b": "False", "c": True, "d": "yes", "e": 1, "f": ["true"]}
    index.add([{"id": name, "text": "river bank", "draft": draft} for name, draft in drafts.items()])

    def ids(expression: str) -> str:
        return "".join(sorted(hit.doc_id for hit in index.search("river", 20, filter=expression)))

    assert ids("draft = true") == "acf"
    assert ids("draft = false") == ids("draft != true") == "b"
    assert ids("not draft = true") == "bde"
    assert ids('draft = "true"') == "af"


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


def test_a_name_with_dots_is_a_name_or_a_way_inside(tmp_path: Path) -> None:
    """Of one document the whole name comes first, also where its value is null."""
    fields: list[dict[str, Any]] = [
        {"author.name": "gao", "n.m": 3},
        {"author": {"name": "gao"}, "n": {"m": 2**63}},
        {"author.name": "dai", "author": {"name": "gao"}, "n.m": "1", "n": {"m": 9}},
        {"author.name": None, "author": {"name": "gao"}, "n.m": 2**63 + 1},
        {"author": "gao", "big": "x" * 100_000, "n.m": 2},
    ]
    documents = [{"id": str(n), "text": "river", **of} for n, of in enumerate(fields)]
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add(documents)

        def ids(query: str, **how: Any) -> str:
            return "".join(hit.doc_id for hit in index.search(query, **how))

        assert ids("river", filter='author.name = "gao"') == "01"
        assert ids("river", filter="author.name exists") == "012"
        assert ids("river", filter='author.name in ("gao", "dai") and not n.m >= 3') == "2"
        assert ids("river author.name:gao") == "01"
        assert ids("river -author.name:gao") == "234"
        assert ids("river n.m:9223372036854775808") == "1"
        assert ids("river", sort="n.m") == "24013"
        assert ids("river", sort="-author.name", k=2) == "01"
        with pytest.raises(InputError, match=r"no document has the field 'author\.name\.x'"):
            ids("river", sort="author.name.x")
    kept = [Document(str(n), "river", of) for n, of in enumerate(fields)]
    values = dict(MemoryCollection(kept, []).field_values("author.name", range(5)))
    assert values == {0: "gao", 1: "gao", 2: "dai"}


@pytest.mark.parametrize(
    "bad", ["", "year", "year =", "= 3", "year = 3)", "(year = 3", "year = 3 and", "a ; b", "year in 3"]
)
def test_bad_filters_are_named(bad: str) -> None:
    with pytest.raises(InputError, match="filter"):
        parse_filter(bad)


BAD_VALUES = {
    "a = 007": "'007' at character 5 of the filter is not a number",
    "a = ٣": "'٣' at character 5 of the filter is not a number",
    "a = 1٣": "'1٣' at character 5",
    "a = +1": "'+1' at character 5",
    "a = -": "'-' at character 5",
    "a = 1.": "'1.' at character 5",
    "a = 00.5": "'00.5' at character 5",
    "a = 1e999": "the number 1e999 at character 5 of the filter is too large",
    "a = " + "9" * 400: "is too large",
    "a = " + "9" * 5000: "is too large",
    "a = 'x\0'": "the string at character 5 of the filter contains a NUL",
    "a in (1, '\0')": "the string at character 10 of the filter contains a NUL",
    " or ".join(["a = 1"] * 5000): "limit of 500 comparisons",
    " and ".join(["a exists"] * 501): "limit of 500 comparisons",
    "a in (" + ",".join(["1"] * 10_001) + ")": "limit of 10,000 values",
    "not " * 5000 + "a = 1": "deeper than 10 levels",
    "(" * 5000: "deeper than 10 levels",
    "a = '" + "x" * 2_000_000 + "'": "limit of 1,048,576",
}


@pytest.mark.parametrize("bad", BAD_VALUES, ids=lambda bad: ascii(bad[:12]))
def test_values_that_cannot_be_compared_are_named(bad: str) -> None:
    with pytest.raises(InputError, match=re.escape(BAD_VALUES[bad])) as caught:
        parse_filter(bad)
    assert caught.value.remedy
    assert len(str(caught.value)) < 500


def execute(expression: str) -> int:
    parsed = parse_filter(expression)
    with contextlib.closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(
            "CREATE TABLE documents (ordinal INTEGER PRIMARY KEY, doc_id TEXT, text TEXT, fields TEXT)"
        )
        connection.execute("INSERT INTO documents VALUES (1, 'a', 'river', '{\"a\": 1, \"b\": \"x\"}')")
        source, parameters = parsed.over("documents")
        [found] = connection.execute(
            f"SELECT count(*) FROM {source} WHERE {parsed.where}", parameters
        ).fetchone()
    return int(found)


def test_a_field_is_read_once_however_often_it_is_compared(tmp_path: Path) -> None:
    """A hundred copies of a large field would take gigabytes."""
    often = " and ".join(["b > '' and b != 3 or b exists or c.d = true"] * 100)
    parsed = parse_filter(often)
    assert (parsed.over("documents")[0] + parsed.where).count("json_extract") == 2
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river", "b": "x" * 5_000_000}, {"id": "b", "text": "river"}])
        assert [hit.doc_id for hit in index.search("river", filter=often)] == ["a"]


_FIELDS = st.dictionaries(
    st.sampled_from(["a", "b", "a.b", "c"]),
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([2**62, 2**70, 1.5, 0.0, "1", "1.5", "true", "FALSE", "x", ""])
    | st.lists(st.sampled_from([1, 2, "x", "2", True, None, [1], {"b": 1}]), max_size=3)
    | st.dictionaries(st.sampled_from(["b", "c"]), st.integers(-1, 2) | st.just("x"), max_size=2),
    max_size=4,
)
_COMPARED = st.tuples(
    st.sampled_from(["a", "b", "a.b", "c", "c.b.d", "id"]),
    st.sampled_from(
        ["= 1", "!= 1", "< 2", ">= -1", "= 'x'", "!= 'x'", "= true", "in (1, 'x', false)", "exists", "> ''"]
    ),
).map(" ".join)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(_FIELDS, min_size=1, max_size=8),
    st.lists(st.tuples(_COMPARED, st.sampled_from([" and ", " or ", " and not "])), min_size=2, max_size=6),
    st.integers(0, 60),
)
def test_documents_with_large_fields_are_selected_like_others(
    given_fields: list[dict[str, Any]], parts: list[tuple[str, str]], large: int
) -> None:
    expression = "".join(text for part in parts for text in part) + "a exists"
    with tempfile.TemporaryDirectory() as folder:
        index = create(Path(folder) / "a.coil", encoder=HashEncoder())
        index.add([{"id": f"d{n}", "text": "river", "fields": f} for n, f in enumerate(given_fields)])
        index.delete(["d0"])
        index.add([{"id": "d0", "text": "river", "fields": given_fields[0]}])
        with index.held() as snapshot:
            expected = snapshot.select(expression).tolist()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(documents, "_LARGE", large)
            index.close()
            index = open_index(Path(folder) / "a.coil", HashEncoder())
            with index.held() as snapshot:
                assert snapshot.select(expression).tolist() == expected
        index.close()


def test_large_fields_are_parsed_once_at_a_time(tmp_path: Path) -> None:
    """SQLite kept a parsed copy for each name: a hundred names took gigabytes."""
    fields = {"a": {"b": list(range(30_000))}, **{f"f{n}": n for n in range(100)}}
    expression = " or ".join(f"f{n} = -1 or a.x{n} = 1" for n in range(100)) + " or f7 = 7"
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river", **fields}, {"id": "b", "text": "river", "f7": 8}])
        statements: list[str] = []
        with index.held() as snapshot:
            [stored] = snapshot.stored
            stored.documents._filters.opened.set_trace_callback(statements.append)
            assert snapshot.select(expression).tolist() == [1]
        read = [sql for sql in statements if "json_extract" in sql]
        assert len(read) == 1 + 200  # the small documents, and each name of the large one
        assert "length(fields) <= " in read[0]
        assert max(sql.count("json_extract") for sql in read[1:]) == 1
        statements.clear()
        with index.held() as snapshot:
            assert snapshot.select("f7 = 7").tolist() == [1]
        assert len(statements) == 1


def test_names_of_fields_are_not_remembered_without_limit(tmp_path: Path) -> None:
    """Anyone may ask a server to sort by a name, and each took as much memory as it had characters."""
    with create(tmp_path / "a.coil", encoder=HashEncoder()) as index:
        index.add([{"id": "a", "text": "river", "year": 2020, "y" * 500: 1}])
        with pytest.raises(InputError, match="has 1,001 characters, which exceeds the limit of 1,000"):
            index.search("river", sort="y" * 1_001)
        assert [hit.doc_id for hit in index.search("river", sort="y" * 500)] == ["a"]
        with index.held() as snapshot:
            for name in ("x" * 300, "y" * 500, "year", "month"):
                assert snapshot.has_field(name) == (name[0] == "y")
            [stored] = snapshot.stored
            for known in (snapshot._fields, stored.documents._known_fields):
                assert known.keys() == {"year", "month"}


def test_the_largest_filters_run() -> None:
    deepest = "b = 'x' and a = 3 or a = 1 and ("
    for nested in (deepest * 8, "not " * 8, "(" * 8, "a = 3 or not (" * 4, "not (a = 3 and " * 4):
        inner = " or ".join(["a = 2"] * 460 + ["a in (1, 'x', true)"])
        assert execute(nested + "a in (1, 'x', true)" + ")" * nested.count("(")) in (0, 1)
        assert execute(f"{nested}({inner})" + ")" * nested.count("(")) in (0, 1)
        with pytest.raises(InputError, match="deeper than 10 levels"):
            parse_filter(nested * 3 + "a = 1" + ")" * (nested.count("(") * 3))
    assert execute("a in (" + ",".join(["2"] * 9999 + ["1"]) + ")") == 1
    assert execute("a < 9223372036854775808 and a > -1e300 and a = 1.0 and a != -0") == 1


@settings(max_examples=500, deadline=None)
@given(
    st.text(max_size=40)
    | st.text("ab=<>!()'\"\\,.-+e0123456789٣ \0\ud800", max_size=40)
    | st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=12).map(" ".join)
)
def test_any_filter_is_read_or_refused_and_runs(expression: str) -> None:
    with contextlib.suppress(InputError):
        execute(expression)
