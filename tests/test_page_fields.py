"""The fields of hits on the page: as they are stored, as conditions of a filter, and in files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from coil.indexes.opening import create
from coil.storage.filters import parse_filter
from coil.texts.values import Document
from tests import page_browser
from tests.page_browser import Opener, expect, hit
from tests.serving import Running, running
from tests.summing_encoder import SummingEncoder
from tests.test_page_hits import saved
from tests.tiny import WEIGHED

browser, visit = page_browser.browser, page_browser.visit

LONG = 1234567890123456789  # JavaScript rounds it to ...800
NUMBERS = [
    {
        "id": "a",
        "text": "herons in a tweet",
        "tweet": LONG,
        "below": -LONG,
        "beyond": 10**30,
        "float": 1234567890.1234567,
        "nested": {"ids": [LONG, -LONG, 9007199254740993], "empty": [], "none": None, "object": {}},
        "note": f'"{LONG}", \\{LONG}: [{LONG}]\\',
    },
    {"id": "b", "text": "herons in a tweet too", "tweet": LONG + 1, "below": -LONG - 1},
]
ODD = [
    {"id": "a", "text": "herons", "not": 1, "NOT": "x", "and": 2, "exists": 3, "in": 4, "or": True},
    {"id": "b", "text": "\n=1+2 herons", "__proto__": {"c": 5}, "constructor": 6},
]
YEARS = [
    {"id": "a", "text": "herons in March", "fiscal_year": 2020, "year": 2020, "kind": "a", "größe": 3},
    {"id": "b", "text": "herons in April", "fiscal_year": 2020, "year": 2019, "kind": "b", "größe": 3},
    {"id": "c", "text": "herons in May", "fiscal_year": 2021, "year": 2021, "kind": "c", "größe": 4},
]
SAFE = {"id": "a", "text": "herons", "year": 9007199254740991}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=512))
    folder = tmp_path_factory.mktemp("fields")
    names = ("numbers", "odd", "safe", "years")
    for name, documents in zip(names, (NUMBERS, ODD, [SAFE], YEARS), strict=True):
        with create(folder / f"{name}.coil", encoder=encoder) as made:
            made.add(documents)
    with create(folder / "own.coil", encoder=encoder) as made:
        made.add([Document("a", "herons", {"id": "another", "kind": "bird"})])
    with create(folder / "same.coil", encoder=encoder) as made:
        made.add([Document("a", "herons", {"text": "1", "fields.text": "2", "fields.fields.text": "3"})])
    with running([folder / f"{name}.coil" for name in (*names, "own", "same")], encoder=encoder) as server:
        yield server


def test_whole_numbers_are_not_rounded(visit: Opener, tmp_path: Path) -> None:
    page = visit("/?q=herons")
    for name, value in (("tweet", LONG), ("below", -LONG)):
        expect(hit(page, "a")).to_contain_text(f"{name} {value}")
        hit(page, "a").get_by_role("button", name=f"{name} {value}").click()
        expect(page.get_by_label("Only documents whose fields match")).to_have_value(f"{name} = {value}")
        expect(page.locator(".hit")).to_have_count(1)
        page.get_by_role("button", name="Clear").click()
        expect(page.locator(".hit")).to_have_count(2)
    # A filter would compare it as a float.
    expect(hit(page, "a")).to_contain_text(f"beyond {10**30}")
    expect(hit(page, "a").get_by_role("button", name="beyond")).to_have_count(0)
    made = json.loads(saved(page, "JSON", tmp_path).read_text(encoding="utf-8"))
    written = {one["doc_id"]: one["fields"] for one in made["hits"]}
    for document in NUMBERS:
        assert written[str(document["id"])] == {
            name: value for name, value in document.items() if name not in ("id", "text")
        }
    with saved(page, "CSV", tmp_path).open(encoding="utf-8", newline="") as lines:
        rows = {row["doc_id"]: row for row in csv.DictReader(lines)}
    assert (rows["a"]["tweet"], rows["b"]["tweet"]) == (str(LONG), str(LONG + 1))
    assert json.loads(rows["a"]["nested"]) == NUMBERS[0]["nested"]


def test_files_are_written_as_the_browser_would(visit: Opener) -> None:
    page = visit("/?q=herons&index=safe")
    expect(page.locator(".hit")).to_have_count(1)
    assert page.evaluate(
        """async () => {
          const { parseJson, writeJson } = await import("./page/exact.js");
          const nested = [[[1], {a: {b: [null]}}, undefined], {c: undefined, d: 1}];
          const values = [0, -1.5e300, "1\\"2", null, true, [], {}, ...nested];
          const odd = JSON.parse('{"__proto__": {"x": 1}, "": 1234567890123456}');
          return [...values, odd].every((value) =>
            ["", "  "].every((step) => writeJson(value, step) === JSON.stringify(value, null, step)) &&
            JSON.stringify(parseJson(JSON.stringify([value]))) === JSON.stringify([value]));
        }"""
    )


@pytest.mark.parametrize(
    ("index", "offered", "shown"),
    [
        ("odd", {"and": "2", "exists": "3", "in": "4", "or": "true"}, {"not": "1", "NOT": "x"}),
        ("own", {"kind": "bird"}, {"id": "another"}),
    ],
)
def test_a_field_that_a_filter_cannot_name_is_only_shown(
    visit: Opener, index: str, offered: dict[str, str], shown: dict[str, str]
) -> None:
    page = visit(f"/?q=herons&index={index}")
    card = hit(page, "a")
    expect(card).to_be_visible()
    buttons = card.locator("footer .field")
    assert buttons.all_inner_texts() == [f"{name} {value}" for name, value in offered.items()]
    for name, value in shown.items():
        expect(card.locator("footer")).to_contain_text(f"{name} {value}")
    for name, value in offered.items():
        buttons.get_by_text(f"{name} {value}", exact=True).click()
        expect(page.locator(".hit")).to_have_count(1)
        expect(hit(page, "a")).to_be_visible()
        expect(page.locator("#filter-problem")).to_be_hidden()
        page.get_by_role("button", name="Clear").click()
        expect(page.locator("#filter")).to_be_hidden()


def test_a_table_has_the_fields_of_each_hit_and_no_formulas(visit: Opener, tmp_path: Path) -> None:
    page = visit("/?q=herons&index=odd")
    expect(page.locator(".hit")).to_have_count(2)
    with saved(page, "CSV", tmp_path).open(encoding="utf-8", newline="") as lines:
        rows = {row["doc_id"]: row for row in csv.DictReader(lines)}
    assert (rows["a"]["__proto__"], rows["a"]["constructor"]) == ("", "")
    assert (rows["b"]["__proto__"], rows["b"]["constructor"]) == ('{"c":5}', "6")
    assert (rows["b"]["text"], rows["a"]["text"]) == ("'\n=1+2 herons", "herons")


def test_every_column_of_a_table_has_its_own_name(visit: Opener, tmp_path: Path) -> None:
    page = visit("/?q=herons&index=same")
    expect(page.locator(".hit")).to_have_count(1)
    with saved(page, "CSV", tmp_path).open(encoding="utf-8", newline="") as lines:
        header, row = csv.reader(lines)
    assert len(set(header)) == len(header)
    made = dict(zip(header, row, strict=True))
    assert (made["text"], made["fields.text"], made["fields.fields.text"]) == ("herons", "1", "2")


@pytest.mark.parametrize(
    ("filter", "field", "expected", "ids"),
    [
        ("fiscal_year = 2020", "year 2020", "fiscal_year = 2020 and year = 2020", ["a"]),
        ('kind = "a" or kind = "b"', "kind a", '(kind = "a" or kind = "b") and kind = "a"', ["a"]),
        ("year = 2020 and fiscal_year=2020", "fiscal_year 2020", "year = 2020 and fiscal_year=2020", ["a"]),
        ("", "größe 3", "größe = 3", ["a", "b"]),
    ],
)
def test_a_click_on_a_field_narrows_whatever_the_filter_contains(
    visit: Opener, filter: str, field: str, expected: str, ids: list[str]
) -> None:
    page = visit(f"/?q=herons&index=years&filter={quote(filter)}")
    hit(page, "a").get_by_role("button", name=field, exact=True).click()
    expect(page.locator("#filter")).to_have_value(expected)
    expect(page.locator(".hit")).to_have_count(len(ids))
    for doc_id in ids:
        expect(hit(page, doc_id)).to_be_visible()


def test_a_click_keeps_a_filter_that_is_still_being_searched_with(visit: Opener) -> None:
    page = visit("/?q=herons&index=years")
    page.get_by_role("button", name="Filter").click()
    page.locator("#filter").fill("fiscal_year = 2020")  # searched with when the focus leaves the box
    hit(page, "a").get_by_role("button", name="year 2020", exact=True).click()
    expect(page.locator("#filter")).to_have_value("fiscal_year = 2020 and year = 2020")
    expect(page.locator(".hit")).to_have_count(1)


@pytest.mark.parametrize("more", ["", "&beside=bm25", "&beside=bm25&token=0"])
def test_an_unknown_field_of_a_filter_is_told(visit: Opener, more: str) -> None:
    page = visit(f"/?q=herons&index=years&filter={quote('yaer = 2020')}{more}")
    expect(page.locator("#results")).to_contain_text("No document has the field “yaer” of the filter.")


def test_every_field_that_the_server_sorts_by_is_offered(visit: Opener) -> None:
    page = visit("/?q=herons&index=years")
    page.get_by_label("Sort by").select_option("-größe")
    expect(page.locator(".hit").first).to_have_attribute("data-doc", "c")


NARROWED = [
    ("", "", "x = 1"),
    ("x = 1", "", "x = 1"),
    ("(x=1)", "", "(x=1)"),
    ("y = 2 AND (x = 1 and z = 3)", "", "y = 2 AND (x = 1 and z = 3)"),
    ("not x = 1", "", "not x = 1 and x = 1"),
    ("xx = 1", "", "xx = 1 and x = 1"),
    ("x = 12", "", "x = 12 and x = 1"),
    ('y = "x = 1"', "", 'y = "x = 1" and x = 1'),
    ('y = "a or b"', "", 'y = "a or b" and x = 1'),
    ("y = 1 or x = 1", "", "(y = 1 or x = 1) and x = 1"),
    ("y = 1 and x = 1 or z = 1", "", "(y = 1 and x = 1 or z = 1) and x = 1"),
    ("(y = 1 or x = 1) and z = 1", "", "(y = 1 or x = 1) and z = 1 and x = 1"),
    ("or = 1 and and = 2", "", "or = 1 and and = 2 and x = 1"),
    ("or = 1 and and = 2", "and = 2", "or = 1 and and = 2"),
    ("not or = 1", "", "not or = 1 and x = 1"),
    ("y in (1, 2) or z exists", "", "(y in (1, 2) or z exists) and x = 1"),
]


def test_filters_are_narrowed_by_whole_conditions(visit: Opener) -> None:
    page = visit("/?q=herons&index=safe")
    ask = """async ([filter, condition]) =>
        (await import("./page/filters.js")).narrower(filter, condition)"""
    for given, condition, expected in NARROWED:
        assert page.evaluate(ask, [given, condition or "x = 1"]) == expected
        parse_filter(expected)


@pytest.mark.parametrize("index", ["a/b", "..", "nothing"])
def test_an_index_that_does_not_exist_is_told(visit: Opener, index: str) -> None:
    page = visit(f"/?q=herons&index={quote(index, safe='')}")
    expect(page.locator("#results")).to_contain_text(f"there is no index '{index}'")


def test_the_page_fits_the_smallest_phone(visit: Opener) -> None:
    page = visit("/?q=herons", viewport={"width": 320, "height": 640})
    expect(page.locator(".hit").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
