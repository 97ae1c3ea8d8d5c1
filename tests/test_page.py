"""The page in a real browser, with a real server and a real index."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args
from urllib.parse import urlencode

import pytest

import coil
from coil.explanations.explanation import Explanation
from coil.indexes.opening import create
from coil.tokens.profile import By
from tests import page_browser
from tests.page_browser import (
    PHONE,
    QUERY,
    WATER,
    WIRE,
    Browser,
    Opener,
    Route,
    address_has,
    ask,
    check_axe,
    expect,
    hit,
)
from tests.page_documents import ASTRAL_TEXT, HOSTILE_ID, HOSTILE_TEXT
from tests.serving import running
from tests.summing_encoder import SummingEncoder
from tests.tiny import WEIGHED

browser, index, served, visit = (
    page_browser.browser,
    page_browser.index,
    page_browser.served,
    page_browser.visit,
)

# ---- searching


def test_results_come_while_typing_and_equal_the_library(visit: Opener, index: coil.Index) -> None:
    page = visit()
    expect(page.get_by_role("heading", name="Exact words in context")).to_be_visible()
    page.get_by_role("searchbox").press_sequentially(QUERY, delay=15)
    expect(page.locator("#status")).to_have_text(re.compile("10 hits in"))
    address_has(page, "q=swimming+against+the+current")
    expected = index.search(QUERY, k=10)
    expect(page.locator(".hit").first).to_have_attribute("data-doc", expected[0].doc_id)
    shown = page.locator(".hit").evaluate_all("hits => hits.map((hit) => hit.dataset.doc)")
    assert shown == [found.doc_id for found in expected]
    raw = page.locator(".hit .raw").first.inner_text()
    assert raw.endswith(f"{expected[0].score:.2f}")
    share = page.locator(".hit .score strong").first
    assert expected[0].share is not None
    expect(share).to_have_text(f"{expected[0].share:.0%} of the score of the query’s own text")
    bar = page.locator(".hit .bar").first
    filled = bar.evaluate("bar => [...bar.children].reduce((sum, part) => sum + part.clientWidth, 0)")
    assert filled / bar.evaluate("bar => bar.clientWidth") == pytest.approx(expected[0].share, abs=0.02)
    expect(bar).to_have_attribute(
        "aria-label", re.compile(r"^\d+% of the score .* consists of .*sentence \d")
    )
    expect(page.locator("#strip")).to_contain_text(
        re.compile(r"encode .* ms.*mentions scored.*skipped", re.S)
    )


def test_examples_of_the_empty_page_ask(visit: Opener) -> None:
    page = visit()
    first = page.locator(".example").first
    words = first.inner_text()
    first.click()
    expect(page.locator(".hit").first).to_be_visible()
    expect(page.get_by_role("searchbox")).to_have_value(words)


def test_a_word_is_shaded_by_what_it_adds(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    shade = "mark => Number(getComputedStyle(mark).getPropertyValue('--strength'))"
    background = "mark => getComputedStyle(mark).backgroundColor"
    explained = {doc_id: index.explain(QUERY, doc_id) for doc_id in (WATER, WIRE, "current-affairs")}
    strongest = max(made.matches[0].contribution for made in explained.values())
    seen = set()
    for doc_id, made in explained.items():
        mark = hit(page, doc_id).locator(".mark.best")
        expect(mark).to_have_text("current")  # the whole word
        assert mark.evaluate(shade) == pytest.approx(
            (made.matches[0].contribution / strongest) ** 2, abs=0.002
        )
        seen.add(mark.evaluate(background))
    assert len(seen) == 3
    # The bar is as long as the parts: what the words add, and the sentence.
    widths = hit(page, WATER).locator(".part").evaluate_all("parts => parts.map((p) => p.clientWidth)")
    water = explained[WATER]
    adds, sentence = water.matches[0].contribution, water.sentence or 0.0
    assert widths[0] / widths[1] == pytest.approx(adds / sentence, rel=0.05)
    expect(hit(page, WATER).locator(".legend")).to_contain_text(f"current {adds:.2f}sentence {sentence:.2f}")


def figures(made: Explanation) -> str:
    """What the page tells about the first match."""
    match = made.matches[0]
    return (
        f"adds {match.contribution:.2f}, in {match.rows_with} of {made.rows} texts, "
        f"{match.count}× here, fit {match.fit:.2f}"
    )


def test_hovering_or_focusing_a_word_shows_its_figures(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    told = f"current {figures(index.explain(QUERY, WATER))}"
    mark, tip = hit(page, WATER).locator(".mark.best"), page.get_by_role("tooltip")
    expect(tip).to_be_hidden()
    mark.hover()
    expect(tip).to_have_text(told)
    page.mouse.move(1, 1)
    expect(tip).to_be_hidden()
    mark.focus()
    expect(tip).to_have_text(told)
    expect(mark).to_have_attribute("aria-describedby", "tip")
    other = hit(page, WIRE).locator(".mark.other")
    other.scroll_into_view_if_needed()
    page.wait_for_timeout(100)  # scrolling hides a tip
    other.hover()
    expect(tip).to_contain_text(re.compile(r"current fit \d\.\d\d, not the best mention"))
    page.get_by_label("Search by").select_option("bm25")
    expect(page.locator("#results .legend").first).not_to_contain_text("sentence")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(100)
    hit(page, WATER).locator(".mark.best").hover()
    counted = figures(index.explain(QUERY, WATER, "bm25")).removesuffix(", fit 1.00")
    expect(tip).to_have_text(f"current {counted}")


# ---- why


def test_a_hit_opens_its_explanation(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    hits = index.search(QUERY, k=3)
    first = hits[0].doc_id
    hit(page, first).click(position={"x": 5, "y": 5})
    sheet = page.get_by_role("dialog", name=first)
    expect(sheet).to_be_visible()
    address_has(page, f"doc={first}")
    mine, other = index.explain(QUERY, first), index.explain(QUERY, hits[1].doc_id)
    match = mine.matches[0]
    expect(sheet.locator(".over")).to_have_text("Why does COIL rank this number 1?")
    names = sheet.locator(".mentions thead th").all_inner_texts()
    assert names == ["Word", "Best mention", "Texts with it", "Here", "Fit", "Adds"]
    cells = sheet.locator(".mentions tbody tr").first.locator("td.figure").all_inner_texts()
    assert [cell.split("\n")[0].strip() for cell in cells] == [
        f"{match.rows_with} of {mine.rows}",
        f"{match.count}×",
        f"{match.fit:.2f}",
        f"{match.contribution:.2f}",
    ]
    expect(sheet.locator(".mentions tr.sentence")).to_contain_text(f"{mine.sentence:.2f}")
    expect(sheet).to_contain_text("Not looked up (no list)")
    expect(sheet.locator(".left-over")).to_contain_text("swimming")  # in none of the documents
    expect(sheet.locator(".versus")).to_contain_text("Why does it rank above the next hit?")
    gap = mine.score - other.score
    expect(sheet.locator(".versus tfoot")).to_contain_text(f"{gap:+.2f}" if gap >= 0.005 else "0.00")
    sheet.get_by_role("button", name="Next hit").click()
    expect(page.get_by_role("dialog")).to_contain_text("number 2")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert "doc=" not in page.url
    hit(page, WIRE).locator(".title").click()
    expect(page.get_by_role("dialog").locator(".runners")).to_contain_text(
        "1 other mention that fits less well"
    )


def test_the_sentences_that_speak_are_listed_and_shaded(visit: Opener, index: coil.Index) -> None:
    query = "a telescope to look at Saturn"
    page = visit(f"/?q={query}&doc=long")
    sheet = page.get_by_role("dialog")
    made = index.explain(query, "long")
    spoken = [part for part in made.sentence_parts if part.span is not None]
    largest = max(spoken, key=lambda part: abs(part.contribution))
    lines = sheet.locator(".sentence-list li")
    expect(lines.first).to_contain_text(largest.text)
    expect(lines.first).to_contain_text(f"{largest.contribution:.2f}")
    figures = [float(text.replace("−", "-")) for text in sheet.locator(".sentence-list b").all_inner_texts()]
    assert sum(figures) == pytest.approx(made.sentence, abs=0.006 * len(figures))
    expect(sheet.locator(".sentences")).to_contain_text(f"Total: {made.sentence:.2f}")
    shades = sheet.locator(".spoken").evaluate_all(
        "all => all.map((one) => [one.textContent, Number(one.style.getPropertyValue('--strength')), "
        "one.title])"
    )
    text = index.document("long").text
    assert [shade[0] for shade in shades] == [text[slice(*part.span)] for part in spoken]  # type: ignore[misc]
    most = max(part.contribution for part in spoken)
    for (_, strength, title), part in zip(shades, spoken, strict=True):
        assert strength == pytest.approx(max(0.0, part.contribution / most), abs=0.002)
        assert title == f"This sentence adds {part.contribution:.2f}".replace("-", "−")
    assert sheet.locator(".text.whole").evaluate("text => text.textContent") == text
    # One sentence is all of the text, and what counts no sentences has none.
    page.goto(f"/?q={QUERY}&doc={WATER}")
    expect(sheet.locator(".text.whole")).to_be_visible()
    expect(sheet.locator(".sentences")).to_have_count(0)
    page.goto(f"/?q={query}&doc=long&by=bm25")
    expect(sheet.locator(".over")).to_contain_text("BM25 rank")
    expect(sheet.locator(".sentences, .spoken, .mentions tr.sentence")).to_have_count(0)


def test_sentences_that_cannot_be_had_leave_the_rest(visit: Opener) -> None:
    page = visit("/")
    page.route("**/explain?*", lambda route: route.abort())
    page.goto(f"/?q={QUERY}&doc={WATER}")
    sheet = page.get_by_role("dialog", name=WATER)
    expect(sheet.locator(".mentions")).to_be_visible()
    expect(sheet.get_by_role("alert")).to_contain_text("The server is not responding")
    page.unroute("**/explain?*")
    sheet.get_by_role("button", name="Try again").click()
    expect(sheet.get_by_role("alert")).to_have_count(0)


def test_a_query_word_shows_its_matches_across_the_hits(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    chip = page.locator("#query").get_by_role("button", name="current")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    address_has(page, "token=")
    figures = [float(text.split()[-1]) for text in page.locator(".mention-list .figure").all_inner_texts()]
    assert len(figures) == 3
    assert figures == sorted(figures, reverse=True)
    best = max(
        (WATER, WIRE, "current-affairs"), key=lambda doc_id: index.explain(QUERY, doc_id).matches[0].fit
    )
    assert page.locator(".mention-list li").first.get_attribute("data-doc") == best
    expect(page.locator(".across")).to_contain_text("The number is its fit.")
    expect(page.locator(".across")).to_contain_text("Without it:")
    page.go_back()
    expect(page.locator(".hit").first).to_be_visible()


def test_what_is_below_zero_is_told(visit: Opener) -> None:
    page = visit()

    def lower(route: Route) -> None:
        """The real answer, with a word that does not fit and a sentence part below 0 in the first hit."""
        answer = route.fetch().json()
        first = answer["hits"][0]
        zero = {"similarity": -9.0, "fit": 0.0, "contribution": 0.0, "floored": True}
        first["matches"].append({**first["matches"][0], **zero})
        first["matches"][0]["contribution"] = 4.0
        first["sentence"] = -1.0
        route.fulfill(json=answer)

    page.route("**/search?q=swimming*", lower)
    ask(page)
    card = page.locator(".hit").first
    expect(card.locator(".legend")).to_contain_text("sentence −1.00")
    taken, gained = (
        card.locator(part).first.evaluate("part => part.clientWidth") for part in (".loss", ".part")
    )
    assert taken / gained == pytest.approx(1 / 4, rel=0.1)
    card.locator(".title").click()
    row = page.get_by_role("dialog").locator(".mentions tbody tr:not(.runners)").nth(1)
    expect(row).to_contain_text("floored at 0")


@pytest.mark.parametrize("by", get_args(By))
def test_any_system_can_be_chosen(visit: Opener, index: coil.Index, by: By) -> None:
    page = visit("/?q=swimming+against+the+current+of+a+river")
    expect(page.locator(".hit").first).to_be_visible()
    page.get_by_label("Search by").select_option(by)
    query = "swimming against the current of a river"
    expected = index.search(query, k=10, by=by)
    expect(page.locator(".hit")).to_have_count(len(expected))
    expect(page.locator(".hit .raw").first).to_contain_text(f"{expected[0].score:.2f}")
    ids = page.locator(".hit").evaluate_all("hits => hits.map((hit) => hit.dataset.doc)")
    assert ids == [found.doc_id for found in expected]
    assert (f"by={by}" in page.url) == (by != "coil")
    assert ("sentence" in page.locator("#results").inner_text()) == (by not in ("tokens", "bm25"))
    assert (page.locator("#results .mark").count() > 0) == (by != "dense")
    page.locator(".hit .title").first.click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator(".verdict")).to_contain_text(f"{expected[0].score:.2f}")
    names = sheet.locator(".mentions thead th").all_inner_texts()
    assert ("Fit" in names) == (by in ("coil", "tokens"))
    assert ("Texts with it" in names) == (by != "dense")


def test_a_system_that_the_model_cannot_answer_as_is_not_offered(visit: Opener) -> None:
    page = visit()
    wide = page.get_by_label("Search by").locator("option:not([disabled])")
    expect(wide).to_have_count(5)

    def without_sentences(route: Route) -> None:
        facts = route.fetch().json()
        facts["model"]["config"]["n_c"] = 0
        route.fulfill(json=facts)

    page.route(re.compile("/v1/indexes/senses$"), without_sentences)
    page.reload()
    expect(page.get_by_label("Search by").locator("option:not([disabled])")).to_have_text(
        ["COIL", "Words in context", "BM25"]
    )
    offered = page.get_by_label("Compare with").locator("option:not([disabled])")
    expect(offered).to_have_text(["nothing", "Words in context", "BM25"])


# ---- filters and what goes wrong


def test_a_filter_narrows_and_a_bad_one_is_told(visit: Opener) -> None:
    page = visit()
    ask(page)
    page.get_by_role("button", name="Filter").click()
    box = page.get_by_label("Only documents whose fields match")
    box.fill('topic = "craft" and year >= 2016')
    box.press("Enter")
    expect(page.locator("#status")).to_have_text(re.compile("7 hits in"))
    address_has(page, "filter=")
    box.fill("topic >> 3")
    box.press("Enter")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("has > at character 8")
    expect(alert).to_contain_text("write for example")
    expect(alert).to_contain_text(re.compile("Request [0-9a-f]{8}"))
    expect(box).to_have_attribute("aria-invalid", "true")
    box.fill("year > 3000")
    box.press("Enter")
    expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
    box.fill("yaer > 2000")
    box.press("Enter")
    expect(page.locator(".state")).to_contain_text("No document has the field “yaer” of the filter.")
    page.get_by_role("button", name="Search without the filter").click()
    expect(page.locator("#status")).to_have_text(re.compile("10 hits in"))
    hit(page, WATER).get_by_role("button", name="topic nature").click()
    expect(box).to_have_value('topic = "nature"')
    expect(hit(page, WIRE)).to_have_count(0)


def test_a_server_that_does_not_answer_is_told_and_asked_again(visit: Opener) -> None:
    page = visit()
    expect(page.locator(".welcome")).to_be_visible()
    page.route("**/search?*", lambda route: route.abort())
    page.get_by_role("searchbox").fill(QUERY)
    expect(page.get_by_role("alert")).to_contain_text("The server is not responding")
    page.unroute("**/search?*")
    page.get_by_role("button", name="Try again").click()
    expect(hit(page, WATER)).to_be_visible()


def test_waiting_is_shown_and_late_answers_are_dropped(visit: Opener) -> None:
    page = visit("/?q=nothing+yet+asked+for")
    expect(page.locator(".hit").first).to_be_visible()
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route(re.compile(r"search\?q=crane&"), hold)
    page.get_by_role("searchbox").fill("crane")
    expect(page.locator("#results")).to_have_attribute("aria-busy", "true")
    page.wait_for_function("document.documentElement.classList.contains('busy')")
    page.get_by_role("searchbox").fill(QUERY)
    expect(hit(page, WATER)).to_be_visible()
    for route in held:
        route.fulfill(
            json={"query": "crane", "by": "coil", "hits": [], "own_score": None, "query_tokens": []}
        )
    page.wait_for_timeout(200)
    assert held
    expect(hit(page, WATER)).to_be_visible()
    expect(page.locator("#status")).to_have_text(re.compile("10 hits in"))
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")


# ---- two systems, indexes, the address


@pytest.mark.parametrize(("first", "second"), [("coil", "bm25"), ("dense", "hybrid"), ("bm25", "tokens")])
def test_any_two_systems_stand_side_by_side(visit: Opener, index: coil.Index, first: By, second: By) -> None:
    query = "swimming against the current of a river"
    page = visit(f"/?q={query}&k=5&by={first}")
    page.get_by_label("Compare with").select_option(second)
    address_has(page, f"beside={second}")
    names = {
        "coil": "COIL",
        "bm25": "BM25",
        "dense": "Dense",
        "hybrid": "Hybrid",
        "tokens": "Words in context",
    }
    found = {by: index.search(query, k=5, by=by) for by in (first, second)}
    ranks = {by: {one.doc_id: one.rank for one in found[by]} for by in (first, second)}
    for by, other in ((first, second), (second, first)):
        column = page.get_by_role("region", name=names[by], exact=True)
        expect(column.locator(".hit")).to_have_count(len(found[by]))
        for card, one in zip(column.locator(".hit").all(), found[by], strict=True):
            assert card.get_attribute("data-doc") == one.doc_id
            expect(card.locator(".raw")).to_contain_text(f"{one.score:.2f}")
            moved = ranks[other].get(one.doc_id, 99) - one.rank
            told = f"only {names[by]}" if moved > 50 else f"↑ {moved}" if moved > 0 else f"↓ {-moved}"
            expect(card.locator(".badge")).to_contain_text(told if moved else "same rank")
    both = len(set(ranks[first]) & set(ranks[second]))
    expect(page.locator(".tally")).to_have_text(
        f"{both} documents found by both, {len(found[first]) - both} by {names[first]} only, "
        f"{len(found[second]) - both} by {names[second]} only."
    )
    # Whoever is at a hit sees where the other system has it.
    shared = next(one.doc_id for one in found[first] if one.doc_id in ranks[second])
    column = page.get_by_role("region", name=names[second], exact=True)
    page.locator(f'[data-system="{first}"] .hit[data-doc="{shared}"] .title').focus()
    expect(column.locator(f'.hit.twin[data-doc="{shared}"]')).to_be_visible()
    # A hit is explained by the system that found it, and the address says so.
    column.locator(".title").first.click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator(".over")).to_have_text(f"Why does {names[second]} rank this number 1?")
    expect(sheet.locator(".verdict")).to_contain_text(f"{found[second][0].score:.2f} of")
    address_has(page, f"doc_by={second}")
    again = visit(page.url)
    expect(again.get_by_role("dialog").locator(".over")).to_contain_text(f"Why does {names[second]} rank")
    page.keyboard.press("Escape")
    page.get_by_label("Compare with").select_option("")
    expect(page.locator(".compare")).to_have_count(0)
    expect(page.locator(".hit")).to_have_count(len(found[first]))


def test_what_is_no_hit_can_be_explained(visit: Opener) -> None:
    page = visit("/?q=swimming+against+the+current&k=1&by=bm25&doc=current-affairs")
    sheet = page.get_by_role("dialog")
    expect(sheet).to_contain_text("Not among the hits of BM25. Why?")
    expect(sheet.locator(".versus")).to_contain_text("Why does it rank below the last hit?")
    expect(sheet.locator(".text.whole")).to_contain_text("minister of transport")
    page.goto("/?q=current&doc=nowhere/at all")
    expect(sheet.get_by_role("alert")).to_contain_text("no document has the id 'nowhere/at all'")


def test_the_address_is_the_state_and_the_back_button_works(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    page.get_by_role("searchbox").press("Enter")
    page.get_by_role("searchbox").press_sequentially(" of two amperes", delay=10)
    expect(page).to_have_title("swimming against the current of two amperes · COIL")
    expect(hit(page, WIRE).locator(".rank")).to_have_text("Rank 1")
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value(QUERY)
    best = index.search(QUERY, k=1)[0].doc_id
    expect(page.locator(".hit").first).to_have_attribute("data-doc", best)
    page.get_by_label("Hits").select_option("20")
    expect(page.locator(".hit")).to_have_count(20)
    hit(page, WIRE).locator(".title").click()
    shared = visit(page.url)
    expect(shared.get_by_role("dialog", name=WIRE)).to_be_visible()
    expect(shared.locator(".hit")).to_have_count(20)
    page.go_back()
    expect(page.get_by_role("dialog")).to_be_hidden()


def test_indexes_can_be_chosen_and_described(visit: Opener) -> None:
    page = visit()
    ask(page, "lemon")
    page.get_by_label("Index", exact=True).select_option("small")
    expect(hit(page, "only")).to_be_visible()
    address_has(page, "index=small")
    page.get_by_role("button", name="About", exact=True).click()
    about = page.get_by_role("dialog", name="small")
    expect(about).to_contain_text(re.compile("Documents\\s*1"))
    expect(about).to_contain_text("Fingerprint")
    expect(about).to_contain_text("lemon")  # one of the longest lists
    about.get_by_role("button", name="Close").click()
    expect(about).to_be_hidden()


# ---- texts of all kinds


def test_hostile_documents_are_only_text(visit: Opener) -> None:
    page = visit()
    ask(page, "hostile parrots")
    found = page.locator(".hit").first
    expect(found.locator(".title")).to_contain_text(HOSTILE_ID)
    marked = found.locator(".text").evaluate("text => text.textContent")
    assert marked == HOSTILE_TEXT
    found.locator(".title").click()
    expect(page.get_by_role("dialog", name=HOSTILE_ID)).to_be_visible()
    expect(page.get_by_role("dialog").locator(".text.whole")).to_contain_text("<script>")
    for address in (f"/?q={HOSTILE_ID}", f"/?q=parrot&doc={HOSTILE_ID}", f"/?q=parrot&filter={HOSTILE_ID}"):
        page.goto(address)
        expect(page.locator("#results > *").first).to_be_visible()
    assert page.evaluate("window.attacked") is None
    assert page.locator("#results img, #results script, #results a, dialog img, dialog script").count() == 0


def test_ids_that_look_like_folders_are_only_ids(browser: Browser, tmp_path: Path) -> None:
    """The page reads the document itself, not what a browser takes its address for."""
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=512))
    ids = [".", "..", "a/../b", "b", "%2e%2e", "a//b", "?b", "#b", "a/./b"]
    with create(tmp_path / "paths.coil", encoder=encoder) as index:
        index.add({"id": doc_id, "text": f"lemon number {number}"} for number, doc_id in enumerate(ids))
        index.add({"id": f"m{number}", "text": "money in the bank"} for number in range(5))
    with running([tmp_path / "paths.coil"], encoder=encoder) as server, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(20_000)
        for number, doc_id in enumerate(ids):
            page.goto(f"{server.url}?{urlencode({'q': 'money bank', 'k': 5, 'doc': doc_id})}")  # no hit
            expect(page.locator("#explanation")).to_contain_text(f"lemon number {number}")


def test_marks_stand_where_python_counts(visit: Opener) -> None:
    page = visit()
    ask(page, "lighthouse keeper")
    words = (
        hit(page, "astral").locator(".mark").evaluate_all("marks => marks.map((mark) => mark.textContent)")
    )
    assert words == ["lighthouse", "keeper", "lighthouse"]
    assert hit(page, "astral").locator(".text").evaluate("text => text.textContent") == ASTRAL_TEXT


def test_long_texts_are_cut_around_their_matches(visit: Opener, index: coil.Index) -> None:
    whole = index.document("long").text
    page = visit()
    ask(page, "a telescope to look at Saturn")
    card = hit(page, "long")
    expect(card.locator(".title")).to_contain_text("Moorings of the canal")
    short = card.locator(".text").inner_text()
    assert "telescope" in short
    assert len(short) < 700 < len(whole)
    start = whole.index("At the ninth mooring")
    first, last = map(int, re.findall(r"characters (\d+)–(\d+) scored", card.inner_text())[0])
    assert 0 < first < start < last
    card.get_by_role("button", name="Show all").click()
    assert card.locator(".text").evaluate("text => text.textContent") == whole
    expect(card.get_by_role("button", name="Show less")).to_be_focused()
    card.locator(".title").click()
    outside = page.get_by_role("dialog").locator(".outside").first
    assert outside.evaluate("text => text.textContent") == whole[:first]


# ---- for everyone


def test_the_keyboard_is_enough(visit: Opener, index: coil.Index) -> None:
    page = visit()
    page.keyboard.type(QUERY)  # the search box has the focus
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text(re.compile("10 hits in"))
    best = index.search(QUERY, k=1)[0].doc_id
    expect(page.locator(".hit").first).to_have_attribute("data-doc", best)
    page.keyboard.press("ArrowDown")
    expect(hit(page, best).locator(".title")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=best)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(hit(page, best).locator(".title")).to_be_focused()
    page.keyboard.press("Tab")
    expect(hit(page, best).locator(".mark.best")).to_be_focused()
    expect(page.get_by_role("tooltip")).to_contain_text("fit")
    page.keyboard.press("Enter")
    expect(page.locator("#across-back")).to_be_focused()
    expect(page.get_by_role("tooltip")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("#query").get_by_role("button", name="current")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    reached = set()
    for _ in range(7):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    assert {"k", "by", "beside", "filter-open"} <= reached
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


def test_whoever_is_at_a_hit_stays_there_when_the_answer_comes_again(visit: Opener) -> None:
    """Typing asks, and Enter asks again: the second answer may come when the first hits are in use."""
    page = visit(f"?q={QUERY}")
    title = hit(page, WATER).locator(".title")
    title.focus()
    page.evaluate("document.querySelector('#k').value = '20'")
    page.evaluate("document.querySelector('#k').dispatchEvent(new Event('change', { bubbles: true }))")
    expect(page.locator("#status")).to_have_text(re.compile("[12][0-9] hits in"))
    expect(page.locator(".hit")).not_to_have_count(10)
    expect(title).to_be_focused()


def test_light_and_dark(visit: Opener) -> None:
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = visit(color_scheme="light"), visit(color_scheme="dark")
    assert light.evaluate(background) == "rgb(250, 249, 246)"
    assert dark.evaluate(background) == "rgb(20, 23, 27)"
    toggle = dark.get_by_role("button", name="Dark mode")
    expect(toggle).to_have_attribute("aria-pressed", "true")
    toggle.click()
    expect(toggle).to_have_attribute("aria-pressed", "false")
    assert dark.evaluate(background) == "rgb(250, 249, 246)"
    dark.reload()
    assert dark.evaluate(background) == "rgb(250, 249, 246)"


VIEWS = {
    "welcome": "/",
    "hits": "/?q=swimming+against+the+current",
    "token": "/?q=swimming+against+the+current&token=3",
    "explanation": f"/?q=swimming+against+the+current&doc={WIRE}",
    "dense": f"/?q=swimming+against+the+current&by=dense&doc={WIRE}",
    "beside": "/?q=swimming+against+the+current&beside=bm25&k=5",
    "sentences": "/?q=a+telescope+to+look+at+Saturn&doc=long",
    "problem": "/?q=crane&filter=year+%3E%3E+3",
    "long": "/?q=a+telescope+to+look+at+Saturn",
    "nothing": "/?q=crane&filter=year+%3E+3000",
}
READY = ".example, .hit, .mention-list, .state h2"


def test_a_phone_needs_no_sideways_scrolling(visit: Opener) -> None:
    page = visit(viewport=PHONE)
    for name, address in VIEWS.items():
        page.goto(address)
        expect(page.locator(READY).first).to_be_attached()
        for part in page.locator("html, dialog[open] .sheet-body").all():
            wide, room = part.evaluate("part => [part.scrollWidth, part.clientWidth]")
            assert wide <= room <= PHONE["width"], name


def test_axe_finds_nothing_serious(visit: Opener) -> None:
    page = visit(color_scheme="light", reduced_motion="reduce")
    for name in ("hits", "token", "explanation", "dense", "beside", "sentences", "problem", "welcome"):
        page.goto(VIEWS[name])
        expect(page.locator(READY).first).to_be_visible()
        check_axe(page, name)
    page.get_by_role("button", name="About", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    check_axe(page, "about")
