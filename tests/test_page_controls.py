"""The controls of the page: sorting, folding, and the line that says where in its document a hit is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import coil
from coil.indexes.opening import create
from tests import page_browser
from tests.page_browser import PHONE, QUERY, Opener, Page, address_has, ask, check_axe, expect, hit
from tests.page_documents import DOCUMENTS
from tests.serving import Running, running
from tests.summing_encoder import SummingEncoder
from tests.tiny import WEIGHED

browser, index, visit = page_browser.browser, page_browser.index, page_browser.visit

_FILLER = "Every boat needs a rope, a hook and someone who knows which of the two is on board. "
GUIDE = (
    f"# River guide\n\n{_FILLER * 5}\n\n## Weirs\n\n{_FILLER * 5}\n\n"
    f"### Keeping a sluice\n\n{_FILLER * 2}Grease the sluicegate in spring. {_FILLER * 2}\n"
)
COPIES = [
    {"id": f"heron-{number}", "text": "A heron waits at the weir for the eels.", "year": number}
    for number in range(3)
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=96))
    folder = tmp_path_factory.mktemp("controls")
    with create(folder / "senses.coil", encoder=encoder) as made:
        made.add([*DOCUMENTS, *COPIES])
        made.add([{"id": "rivers/guide.md", "title": "River guide", "text": GUIDE}])
        made.add([{"id": "guide", "title": "Plain guide", "text": GUIDE.replace("sluicegate", "floodgate")}])
    with running([folder / "senses.coil"], encoder=encoder) as server:
        yield server


def expect_hits(page: Page, ids: list[str]) -> None:
    """Wait until these are the hits, in this order."""
    expect(page.locator(".hit")).to_have_count(len(ids))
    for place, doc_id in enumerate(ids):
        expect(page.locator(".hit").nth(place)).to_have_attribute("data-doc", doc_id)


def test_a_hit_says_where_in_its_document_it_is(visit: Opener, index: coil.Index) -> None:
    [found] = index.search("sluicegate", k=1)
    assert found.context == "River guide › Weirs › Keeping a sluice"
    page = visit("/?q=sluicegate")
    card = hit(page, "rivers/guide.md")
    expect(card.locator(".title")).to_contain_text("River guide")  # so the line does not repeat it
    expect(card.locator(".trail")).to_have_text("In: Weirs › Keeping a sluice")
    check_axe(page, "context")
    card.locator(".title").click()
    expect(page.get_by_role("dialog").locator(".trail")).to_have_text("In: Weirs › Keeping a sluice")


def test_headings_are_those_of_the_markup_that_the_id_names(visit: Opener, index: coil.Index) -> None:
    """A record is Markdown if its id ends in .md; otherwise `#` begins a line of text like any other."""
    [found] = index.search("floodgate", k=1)
    assert (found.doc_id, found.context) == ("guide", "Plain guide")
    page = visit("/?q=floodgate")
    expect(hit(page, "guide")).to_be_visible()
    expect(hit(page, "guide").locator(".trail")).to_have_count(0)


def test_hits_are_sorted_by_a_field(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    sort = page.get_by_label("Sort by")
    expect(sort).to_have_value("")
    by_score = [h.doc_id for h in index.search(QUERY, k=10, fold_duplicates=True)]
    expect_hits(page, by_score)
    expect(sort.locator("option")).to_have_text(["score", "topic ↑", "topic ↓", "year ↑", "year ↓"])
    sort.select_option("-year")
    address_has(page, "sort=-year")
    expect(page.get_by_text("Sorted by year, not by score.")).to_be_visible()
    for count in (10, 20):
        expected = [h.doc_id for h in index.search(QUERY, k=count, sort="-year", fold_duplicates=True)]
        assert expected[:10] != by_score
        expect_hits(page, expected)
        page.get_by_role("button", name="Show 10 more").click()
    # A link shows the same, and the explanation does not claim that the score decided.
    shared = visit(page.url)
    expect(shared.get_by_label("Sort by")).to_have_value("-year")
    shared.locator(".hit .title").first.click()
    sheet = shared.get_by_role("dialog")
    expect(sheet.locator(".over")).to_have_text("Hit number 1. Why does it have this score with COIL?")
    expect(sheet.locator(".versus h3")).to_have_text("Compared with the next hit")
    shared.keyboard.press("Escape")
    page.go_back()
    expect(sort).to_have_value("")
    expect_hits(page, by_score)


@pytest.mark.parametrize("beside", ["", "&beside=bm25"])
def test_the_page_says_that_only_the_best_hits_were_sorted(
    visit: Opener, monkeypatch: pytest.MonkeyPatch, beside: str
) -> None:
    monkeypatch.setattr("coil.hits.paging.SORTED", 3)
    page = visit(f"/?q={QUERY}&sort=-year{beside}")
    expect(page.get_by_text("Sorted only the best 3 hits by year; more documents match.")).to_be_visible()


def test_a_field_that_no_document_has(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}&sort=-colour")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("no document has the field 'colour'")
    expect(page.get_by_label("Sort by")).to_have_value("-colour")
    alert.get_by_role("button", name="Sort by score").click()
    expect(page.locator(".hit").first).to_be_visible()
    expect(page).not_to_have_url(re.compile("sort="))


def test_duplicates_can_be_unfolded_with_the_keyboard(visit: Opener) -> None:
    page = visit("/?q=heron+at+the+weir&k=5")
    copies = page.locator('.hit[data-doc^="heron-"]')
    expect(copies).to_have_count(1)
    switch = page.get_by_role("switch", name="Fold duplicates")
    expect(switch).to_be_checked()
    switch.focus()
    page.keyboard.press("Space")
    expect(copies).to_have_count(3)
    expect(page.locator(".duplicates")).to_have_count(0)
    expect(switch).to_be_focused()
    address_has(page, "fold=0")
    expect(visit(page.url).locator('.hit[data-doc^="heron-"]')).to_have_count(3)
    page.keyboard.press("Space")
    expect(copies).to_have_count(1)
    expect(page).not_to_have_url(re.compile("fold="))


def test_every_control_is_reached_with_the_keyboard(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}")
    expect(page.locator(".hit").first).to_be_visible()
    page.get_by_role("searchbox").focus()
    reached = []
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id"))
    assert reached == ["k", "by", "beside", "sort", "fold", "help-open", "filter-open"]


def test_the_controls_fit_on_a_phone(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}&sort=year&fold=0", viewport=PHONE)
    expect(page.locator(".hit").first).to_be_visible()
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"]
    for name in ("k", "by", "beside", "sort", "fold", "help-open", "filter-open"):
        box = page.locator(f"#{name}").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE["width"]
    check_axe(page, "controls on a phone")
