"""The fields of hits on the page: as they are stored, as conditions of a filter, and in files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coil.indexes.opening import create
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
SAFE = {"id": "a", "text": "herons", "year": 9007199254740991}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=512))
    folder = tmp_path_factory.mktemp("fields")
    names = ("numbers", "odd", "safe")
    for name, documents in zip(names, (NUMBERS, ODD, [SAFE]), strict=True):
        with create(folder / f"{name}.coil", encoder=encoder) as made:
            made.add(documents)
    with create(folder / "own.coil", encoder=encoder) as made:
        made.add([Document("a", "herons", {"id": "another", "kind": "bird"})])
    with running([folder / f"{name}.coil" for name in (*names, "own")], encoder=encoder) as server:
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
