"""Asking on the page: more hits, suggestions, duplicates, operators and what is wrong with a query."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import coil
from coil.indexes.opening import create
from tests import page_browser
from tests.page_browser import PHONE, QUERY, WATER, Opener, Page, address_has, ask, check_axe, expect, hit
from tests.page_documents import DOCUMENTS
from tests.serving import Running, running
from tests.summing_encoder import SummingEncoder
from tests.tiny import WEIGHED

browser, index, visit = page_browser.browser, page_browser.index, page_browser.visit


SAME = "A heron waits at the weir for the eels of the evening."
COPIES = [{"id": f"heron-{number}", "text": SAME} for number in range(3)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=512))
    folder = tmp_path_factory.mktemp("asking")
    with create(folder / "senses.coil", encoder=encoder) as made:
        made.add([*DOCUMENTS, *COPIES])
    with running([folder / "senses.coil"], encoder=encoder) as server:
        yield server


def shown(page: Page, which: str = ".hit") -> list[str]:
    """The ids of the hits, in order."""
    ids: list[str] = page.locator(which).evaluate_all("hits => hits.map((hit) => hit.dataset.doc)")
    return ids


# ---- more hits


def test_more_hits_come_below_those_shown(visit: Opener, index: coil.Index) -> None:
    page = visit(f"/?q={QUERY}&k=20")
    more = page.get_by_role("button", name="Show 20 more")
    expect(more).to_be_visible()
    address = page.url
    everything = [found.doc_id for found in index.search(QUERY, k=100, fold_duplicates=True)]
    assert shown(page) == everything[:20]
    page.locator(".hit .title").nth(19).focus()
    reached = None
    while reached != "more":  # with the keyboard alone
        page.keyboard.press("Tab")
        reached = page.evaluate("document.activeElement.id || document.activeElement.tagName")
        assert reached != "BODY"
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text(
        f"{len(everything) - 20} more hits, {len(everything)} in total"
    )
    assert shown(page) == everything
    assert len(everything) < 40, "the second page is the last"
    expect(page.locator("#more")).to_be_hidden()
    assert page.url == address
    expect(page.locator(".hit .title").nth(20)).to_be_focused()
    page.keyboard.press("Enter")
    sheet = page.get_by_role("dialog")
    expect(sheet.locator(".over")).to_have_text("Why does COIL rank this number 21?")
    expect(sheet.locator(".text.whole")).to_be_visible()
    page.keyboard.press("Escape")
    expect(sheet).to_be_hidden()
    assert shown(page) == everything
    # One word across all hits, and back: they are all still there.
    page.locator("#query").get_by_role("button", name="current").click()
    expect(page.locator("#more")).to_be_hidden()
    page.locator("#across-back").click()
    assert shown(page) == everything


def test_more_hits_of_two_systems(visit: Opener, index: coil.Index) -> None:
    page = visit(f"/?q={QUERY}&k=5&beside=dense")
    page.get_by_role("button", name="Show 5 more").click()
    expect(page.locator("#status")).to_have_text("10 more hits, 20 in total")
    for by in ("coil", "dense"):
        ids = page.locator(f'[data-system="{by}"] .hit').evaluate_all(
            "all => all.map((one) => one.dataset.doc)"
        )
        assert ids == [found.doc_id for found in index.search(QUERY, k=10, by=by, fold_duplicates=True)]


def test_more_hits_that_do_not_come(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}&k=5")
    page.route("**/search?*offset=5*", lambda route: route.abort())
    button = page.get_by_role("button", name="Show 5 more")
    button.click()
    expect(page.get_by_role("alert")).to_contain_text("The connection failed")
    assert len(shown(page)) == 5
    page.unroute("**/search?*offset=5*")
    button.click()
    expect(page.locator(".hit")).to_have_count(10)
    expect(page.get_by_role("alert")).to_be_hidden()
    # A page that is full may have been the last one.
    page.route(
        "**/search?*offset=10*", lambda route: route.fulfill(json={**route.fetch().json(), "hits": []})
    )
    button.click()
    expect(page.locator("#status")).to_have_text("No more hits.")
    expect(page.locator("#more")).to_be_hidden()


# ---- did you mean


def test_a_word_that_no_document_has_is_corrected(visit: Opener) -> None:
    page = visit()
    page.get_by_role("searchbox").fill("🦜 swiming against the curent of +rivr banks")
    line = page.locator("#meant")
    expect(line).to_contain_text("No document contains “curent”. Did you mean current?")
    line.get_by_role("button", name="current").click()
    expect(page.get_by_role("searchbox")).to_have_value("🦜 swiming against the current of +rivr banks")
    expect(page.get_by_role("searchbox")).to_be_focused()
    address_has(page, "the+current+of+%2Brivr")
    expect(line).not_to_contain_text("curent")
    line.get_by_role("button", name="river").click()
    expect(page.get_by_role("searchbox")).to_have_value("🦜 swiming against the current of +river banks")
    expect(page.locator(".hit").first).to_be_visible()
    expect(line).to_be_hidden()


def test_a_word_that_is_being_typed_is_no_mistake_yet(visit: Opener) -> None:
    page = visit()
    ask(page, "against the curren")
    line = page.locator("#meant")
    expect(line).to_be_hidden()
    page.keyboard.press("Enter")
    expect(line).to_contain_text("Did you mean current?")
    page.get_by_role("searchbox").fill("")
    expect(page.locator(".welcome")).to_be_visible()
    expect(line).to_be_hidden()


# ---- duplicates


def test_duplicates_are_folded_into_one_hit(visit: Opener) -> None:
    page = visit()
    ask(page, "a heron at the weir")
    expect(page.locator(".hit").first).to_have_attribute("data-doc", "heron-0")
    assert "heron-1" not in shown(page)
    folded = hit(page, "heron-0").locator(".duplicates")
    assert folded.inner_text() == "and 2 duplicates"
    folded.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(folded.get_by_role("listitem")).to_have_text(["heron-1", "heron-2"])
    expect(page.get_by_role("dialog")).to_be_hidden()
    folded.get_by_role("button", name="heron-2").click()
    sheet = page.get_by_role("dialog", name="heron-2")
    expect(sheet.locator(".over")).to_have_text("A duplicate of hit number 1")
    expect(sheet.locator(".text.whole")).to_have_text(SAME)
    expect(sheet.locator(".versus")).to_have_count(0)
    page.keyboard.press("Escape")
    expect(folded.get_by_role("button", name="heron-2")).to_be_focused()
    # All documents are shown, though not each as a hit: nothing more is offered.
    page.get_by_label("Hits").select_option("50")
    expect(page.locator(".hit")).to_have_count(len(DOCUMENTS) + 1)
    expect(page.locator("#more")).to_be_hidden()


# ---- operators


def test_the_page_tells_how_to_ask(visit: Opener, index: coil.Index) -> None:
    page = visit()
    button, box = page.get_by_role("button", name="Search tips"), page.locator("#help")
    expect(box).to_be_hidden()
    button.press("Enter")
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(box).to_contain_text("must contain the exact phrase")
    for query in ("river +bank -money", 'river "bank of the river"', "bank year:2016"):
        page.get_by_role("searchbox").fill(query)
        expected = [found.doc_id for found in index.search(query, k=10)]
        assert 0 < len(expected) < 10
        expect(page.locator(".hit")).to_have_count(len(expected))
        assert shown(page) == expected
    button.click()
    expect(box).to_be_hidden()


def test_a_query_with_a_mistake_leaves_the_hits_alone(visit: Opener) -> None:
    page = visit()
    ask(page, "river")
    before, first = shown(page), page.locator(".hit .title").first
    box, line = page.get_by_role("searchbox"), page.locator("#query-problem")
    box.fill("-money")
    expect(line).to_have_text(
        "the query only excludes words: add words to search for, such as: river -money. "
        "The hits below are for “river”."
    )
    expect(box).to_have_attribute("aria-invalid", "true")
    expect(box).to_be_focused()
    expect(page.get_by_role("alert")).to_be_hidden()
    assert shown(page) == before
    # They are still hits of their query, and opening one goes back to it.
    first.click()
    expect(page.get_by_role("dialog").locator(".over")).to_have_text("Why does COIL rank this number 1?")
    address_has(page, "q=river&")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(box).to_have_value("-money")
    expect(line).to_be_visible()
    box.fill("river -money")
    expect(line).to_be_hidden()
    expect(page.locator("#status")).to_have_text(re.compile("hits? in"))
    assert box.get_attribute("aria-invalid") is None
    # Without hits there is only the line.
    page.goto("/?q=%2Bthe+river")
    expect(line).to_contain_text("+the contains only stop words")
    expect(page.locator("#results")).to_be_empty()
    # What is not about the query is told as before.
    page.goto("/?q=river&k=1000&by=coil&filter=year+%3E%3E+3")
    expect(page.get_by_role("alert")).to_contain_text("has > at character 7")
    expect(line).to_be_hidden()


# ---- for everyone


def test_everything_unfolded_is_accessible_and_fits_a_phone(visit: Opener) -> None:
    page = visit("/?q=a+heron+at+the+weir+and+curent+affairs&k=5", reduced_motion="reduce")
    expect(page.locator("#meant")).to_be_visible()
    page.locator("#help-open").click()
    page.locator(".duplicates summary").click()
    page.locator("#strip summary").click()
    page.get_by_role("button", name="Show 5 more").click()
    expect(page.locator(".hit")).to_have_count(10)
    check_axe(page, "unfolded")
    page.get_by_role("searchbox").fill("-heron")
    expect(page.locator("#query-problem")).to_be_visible()
    check_axe(page, "query with a mistake")
    page.set_viewport_size(PHONE)  # type: ignore[arg-type]
    wide, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room


@pytest.mark.parametrize("length", [3_000, 300_000])
def test_a_query_that_is_too_long_is_told_as_such(visit: Opener, length: int) -> None:
    """The longer one fits into no request: the server would only say that its headers are too large."""
    page = visit()
    ask(page)
    box, told = page.get_by_role("searchbox", name="Search"), page.locator("#query-problem")
    box.fill("é" * length)
    expect(told).to_contain_text(
        re.compile(f"the query has {length:,} characters, which .*: shorten the query")
    )
    expect(told).to_contain_text(f"The hits below are for “{QUERY}”.")
    page.reload()  # its URL is one that the server accepts
    expect(box).to_be_visible()
    ask(page)
    expect(told).to_be_hidden()


def test_a_filter_that_is_too_long_is_told_as_such(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}")
    page.get_by_role("button", name="Filter", exact=True).click()
    box = page.get_by_label("Only documents whose fields match")
    box.fill("x" * 300_000)
    box.press("Enter")
    expect(page.locator("#filter-problem")).to_contain_text(
        "the filter has 300,000 characters, which is too long"
    )


# ---- answers of another form

_HIT = '{"doc_id": "a", "text": "b", "fields": {}, "score": 1}'


@pytest.mark.parametrize(
    "body",
    [
        "", "null", "[]", "{}", '{"hits":[', '{"hits": null}', '{"query": "a", "by": "coil", "hits": [{}]}',
        f'{{"by": "coil", "hits": [{_HIT}]}}', f'{{"query": "a", "by": "coil", "hits": [{_HIT}, null]}}',
    ],
)  # fmt: skip
def test_an_answer_that_cannot_be_read_is_told_and_asked_again(visit: Opener, body: str) -> None:
    page = visit("/?q=nothing+yet+asked+for")
    expect(page.locator(".hit").first).to_be_visible()
    page.route("**/search?*", lambda route: route.fulfill(body=body, content_type="application/json"))
    page.get_by_role("searchbox").fill(QUERY)
    alert = page.locator("#results").get_by_role("alert")
    expect(alert.get_by_role("heading")).to_have_text("The server’s response cannot be read")
    expect(alert.locator("p")).to_have_text(["The server’s response cannot be read"])
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    page.unroute("**/search?*")
    page.get_by_role("button", name="Try again").click()
    expect(hit(page, WATER)).to_be_visible()


@pytest.mark.parametrize(
    ("asked", "body"),
    [
        (re.compile("/explain[?]"), "{}"),
        (re.compile("/explain[?]"), '{"first": {}, "second": null}'),
        (re.compile("/documents[?]"), '{"doc_id": "heron-1", "text": null, "fields": {}}'),
    ],
)
def test_an_explanation_that_cannot_be_read_is_told(visit: Opener, asked: re.Pattern[str], body: str) -> None:
    page = visit()
    page.route(asked, lambda route: route.fulfill(body=body, content_type="application/json"))
    page.goto("/?q=evening&k=1&doc=current-wire")
    sheet = page.get_by_role("dialog")
    expect(sheet.get_by_role("alert")).to_contain_text("The server’s response cannot be read")
    page.unroute(asked)
    sheet.get_by_role("button", name="Try again").click()
    expect(sheet.get_by_role("alert")).to_have_count(0)


@pytest.mark.parametrize("body", ["{}", '{"indexes": [null]}', '{"indexes": {}}'])
def test_a_list_of_indexes_that_cannot_be_read_is_told(visit: Opener, body: str) -> None:
    page = visit()
    page.route("**/v1/indexes", lambda route: route.fulfill(body=body, content_type="application/json"))
    page.goto(f"/?q={QUERY}")
    expect(page.get_by_role("alert")).to_contain_text("The server’s response cannot be read")
    page.unroute("**/v1/indexes")
    page.get_by_role("button", name="Try again").click()
    expect(hit(page, WATER)).to_be_visible()
