"""The page in a real browser, with a real server, a real index and the bundled model."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator

import pytest

import coil
from tests.page_documents import ASTRAL_TEXT, DOCUMENTS, HOSTILE_ID, HOSTILE_TEXT
from tests.serving import Running, running

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Route, expect, sync_playwright
except ImportError as error:
    pytest.skip(f"THE PAGE IS NOT TESTED: {error}; pip install '.[dev]'", allow_module_level=True)

CHROMIUM = os.environ.get("COIL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
if CHROMIUM is None:
    pytest.skip(
        "THE PAGE IS NOT TESTED: there is no Chromium; apt-get install chromium, or set COIL_CHROMIUM",
        allow_module_level=True,
    )

# The current of a river, of a wire, and of affairs: one word, and the bundled model knows which is meant.
QUERY = "swimming against the current"
WATER, WIRE = "current-water", "current-wire"
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=8_000)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("page")
    with coil.create(folder / "senses.coil") as index:
        index.add(DOCUMENTS)
    with coil.create(folder / "small.coil") as index:
        index.add([{"id": "only", "text": "A small index with a lemon in it."}])
    with running([folder / "senses.coil", folder / "small.coil"]) as server:
        yield server


@pytest.fixture(scope="module")
def index(served: Running) -> coil.Index:
    return served.service.served["senses"].index


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


Opener = Callable[..., Page]


@pytest.fixture
def visit(browser: Browser, served: Running) -> Iterator[Opener]:
    """Opens the page; at the end nothing may have gone wrong in it that nobody saw."""
    contexts, faults, hosts = [], [], set()

    def note(message: ConsoleMessage) -> None:
        # A refused request is told on the page; the browser says so on its console too.
        if message.type == "error" and "Failed to load resource" not in message.text:
            faults.append(message.text)

    def go(address: str = "", **settings: object) -> Page:
        context = browser.new_context(base_url=served.url, **settings)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(8_000)
        page.on("console", note)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: hosts.add(re.match(r"[a-z]+://[^/]+/", request.url)[0]))  # type: ignore[index]
        page.goto(address or "/")
        return page

    yield go
    for context in contexts:
        context.close()
    assert faults == []
    assert hosts <= {served.url}, "the page asked someone else"


def ask(page: Page, query: str = QUERY) -> None:
    page.get_by_role("searchbox", name="Search").fill(query)
    expect(page.locator("#status")).to_have_text(re.compile(r"\d+ hits? in"))
    expect(page.locator(".hit").first).to_be_visible()


def hit(page: Page, doc_id: str) -> Locator:
    return page.locator(f'.hit[data-doc="{doc_id}"]')


def address_has(page: Page, part: str) -> None:
    expect(page).to_have_url(re.compile(re.escape(part)))


# ---- searching


def test_results_come_while_typing_and_equal_the_library(visit: Opener, index: coil.Index) -> None:
    page = visit()
    expect(page.get_by_role("heading", name="Exact words, and what they mean")).to_be_visible()
    page.get_by_role("searchbox").press_sequentially(QUERY, delay=15)
    expect(page.locator("#status")).to_have_text(re.compile("10 hits in"))
    address_has(page, "q=swimming+against+the+current")
    expected = index.search(QUERY, k=10)
    shown = page.locator(".hit").evaluate_all("hits => hits.map((hit) => hit.dataset.doc)")
    assert shown == [found.doc_id for found in expected]
    raw = page.locator(".hit .raw").first.inner_text()
    assert raw.endswith(f"{expected[0].score:.2f}")
    expect(hit(page, WATER).locator(".score strong")).to_have_text(re.compile(r"^\d\d%$"))
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


def test_one_word_in_two_meanings_has_two_shades(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    shade = "mark => Number(getComputedStyle(mark).getPropertyValue('--strength'))"
    background = "mark => getComputedStyle(mark).backgroundColor"
    water, wire = (hit(page, doc_id).locator(".mark.best") for doc_id in (WATER, WIRE))
    assert water.evaluate(shade) > 2 * wire.evaluate(shade)
    assert water.evaluate(background) != wire.evaluate(background)
    # The bar is as long as the parts: what the words add, and the sentence.
    widths = hit(page, WATER).locator(".part").evaluate_all("parts => parts.map((p) => p.clientWidth)")
    explanation = index.explain(QUERY, WATER)
    assert widths[0] / widths[1] == pytest.approx(
        explanation.matches[0].contribution / (explanation.sentence or 0), rel=0.05
    )
    expect(hit(page, WATER).locator(".legend")).to_contain_text(re.compile(r"current 4\.\d\d.*sentence"))


def test_hovering_or_focusing_a_token_shows_its_similarity(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    similarity = f"{index.explain(QUERY, WATER).matches[0].similarity:.2f}"
    mark, tip = hit(page, WATER).locator(".mark.best"), page.get_by_role("tooltip")
    expect(tip).to_be_hidden()
    mark.hover()
    expect(tip).to_have_text(f"current similarity {similarity}, adds {similarity}")
    page.mouse.move(1, 1)
    expect(tip).to_be_hidden()
    mark.focus()
    expect(tip).to_contain_text(similarity)
    expect(mark).to_have_attribute("aria-describedby", "tip")
    hit(page, WIRE).locator(".mark.other").hover()
    expect(tip).to_contain_text("not the best")


# ---- why


def test_a_hit_opens_its_explanation(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    hit(page, WATER).click(position={"x": 5, "y": 5})
    sheet = page.get_by_role("dialog", name=WATER)
    expect(sheet).to_be_visible()
    address_has(page, f"doc={WATER}")
    mine, other = index.explain(QUERY, WATER), index.explain(QUERY, index.search(QUERY, k=2)[1].doc_id)
    expect(sheet.locator(".mentions tbody tr").first).to_contain_text(f"{mine.matches[0].similarity:.2f}")
    expect(sheet).to_contain_text("Never compared")
    expect(sheet.locator(".left-over")).to_contain_text("swimming")  # in none of the documents
    expect(sheet.locator(".versus")).to_contain_text("Why above the next one?")
    expect(sheet.locator(".versus tfoot")).to_contain_text(f"+{mine.score - other.score:.2f}")
    sheet.get_by_role("button", name="The next hit").click()
    expect(page.get_by_role("dialog")).to_contain_text("number 2")
    expect(page.get_by_role("dialog").locator(".runners")).to_contain_text("other mention")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert "doc=" not in page.url


def test_a_query_token_shows_its_matches_across_the_hits(visit: Opener) -> None:
    page = visit()
    ask(page)
    chip = page.locator("#query").get_by_role("button", name="current")
    chip.click()
    expect(chip).to_have_attribute("aria-pressed", "true")
    address_has(page, "token=")
    figures = [float(text.split()[-1]) for text in page.locator(".mention-list .figure").all_inner_texts()]
    assert len(figures) == 3
    assert figures == sorted(figures, reverse=True)
    assert page.locator(".mention-list li").first.get_attribute("data-doc") == WATER
    expect(page.locator(".across")).to_contain_text("Without it:")
    page.go_back()
    expect(page.locator(".hit").first).to_be_visible()


def test_what_is_below_zero_is_told(visit: Opener) -> None:
    page = visit()

    def lower(route: Route) -> None:
        """The real answer, with a similarity and a sentence part that are negative in the first hit."""
        answer = route.fetch().json()
        first = answer["hits"][0]
        first["matches"].append({**first["matches"][0], "similarity": -0.1, "contribution": 0.0})
        first["sentence"] = -1.0
        route.fulfill(json=answer)

    page.route("**/search?q=swimming*", lower)
    ask(page)
    card = hit(page, WATER)
    expect(card.locator(".legend")).to_contain_text("sentence −1.00")
    taken, gained = (
        card.locator(part).first.evaluate("part => part.clientWidth") for part in (".loss", ".part")
    )
    assert taken / gained == pytest.approx(1 / 4.62, rel=0.1)
    card.locator(".title").click()
    row = page.get_by_role("dialog").locator(".mentions tbody tr").nth(1)
    expect(row).to_contain_text("−0.10")
    expect(row).to_contain_text("floored at 0")


def test_tokens_only_leaves_the_sentence_out(visit: Opener, index: coil.Index) -> None:
    page = visit()
    ask(page)
    page.get_by_role("switch", name="Tokens only").check()
    expect(page.locator(".hit")).to_have_count(3)
    assert "sentence" not in page.locator("#results").inner_text()
    hit(page, WATER).locator(".title").click()
    expected = index.search(QUERY, k=1, tok_only=True)[0].score
    expect(page.get_by_role("dialog").locator(".verdict")).to_contain_text(f"{expected:.2f}")


# ---- filters and what goes wrong


def test_a_filter_narrows_and_a_bad_one_is_told(visit: Opener) -> None:
    page = visit()
    ask(page)
    page.get_by_role("button", name="Filter").click()
    box = page.get_by_label("Only documents whose fields fit")
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
    expect(page.get_by_role("alert")).to_contain_text("The server does not answer")
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
        route.fulfill(json={"query": "crane", "hits": [], "best_possible": None, "query_tokens": []})
    page.wait_for_timeout(200)
    assert held
    expect(hit(page, WATER)).to_be_visible()
    expect(page.locator("#status")).to_have_text(re.compile("10 hits in"))
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")


# ---- BM25, indexes, the address


def test_bm25_stands_beside(visit: Opener, index: coil.Index) -> None:
    page = visit("/?q=swimming+against+the+current&k=5")
    page.get_by_role("switch", name="Beside BM25").check()
    coil_column, bm25_column = (
        page.get_by_role("region", name="COIL"),
        page.get_by_role("region", name="BM25"),
    )
    ids = "hits => hits.map((hit) => hit.dataset.doc)"
    expect(bm25_column.locator(".hit").first).to_be_visible()
    assert bm25_column.locator(".hit").evaluate_all(ids) == [
        found.doc_id for found in index.search_with_bm25(QUERY, k=5)
    ]
    assert coil_column.locator(".hit").first.get_attribute("data-doc") == WATER
    expect(coil_column.locator(f'.hit[data-doc="{WATER}"] .badge')).to_contain_text("↑ 1")
    expect(coil_column.locator(".badge.only").first).to_have_text("only COIL")
    expect(page.locator(".tally")).to_have_text("3 documents found by both, 2 by COIL only, 0 by BM25 only.")
    # What only BM25 found can be explained too: the server is asked for it.
    page.get_by_label("Hits").select_option("5")
    page.goto("/?q=swimming+against+the+current&k=1&bm25=true")
    expect(page.locator(".badge.only").nth(1)).to_have_text("only BM25")
    bm25_column.locator(".title").click()
    sheet = page.get_by_role("dialog")
    expect(sheet).to_contain_text("Not among the hits. Why?")
    expect(sheet.locator(".versus")).to_contain_text("Why below the last hit?")


def test_the_address_is_the_state_and_the_back_button_works(visit: Opener) -> None:
    page = visit()
    ask(page)
    page.get_by_role("searchbox").press("Enter")
    page.get_by_role("searchbox").press_sequentially(" of a wire", delay=10)
    expect(page).to_have_title("swimming against the current of a wire · COIL")
    expect(hit(page, WIRE).locator(".rank")).to_have_text("Rank 1")
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value(QUERY)
    expect(hit(page, WATER).locator(".rank")).to_have_text("Rank 1")
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


def test_the_keyboard_is_enough(visit: Opener) -> None:
    page = visit()
    page.keyboard.type(QUERY)  # the search box has the focus
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_text(re.compile("10 hits in"))
    page.keyboard.press("ArrowDown")
    expect(hit(page, WATER).locator(".title")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog", name=WATER)).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(hit(page, WATER).locator(".title")).to_be_focused()
    page.keyboard.press("Tab")
    expect(hit(page, WATER).locator(".mark.best")).to_be_focused()
    expect(page.get_by_role("tooltip")).to_contain_text("similarity")
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
    assert {"k", "tok-only", "bm25", "filter-open"} <= reached
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"


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
    "bm25": "/?q=swimming+against+the+current&bm25=true&k=5",
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
    for name in ("hits", "token", "explanation", "bm25", "problem", "welcome"):
        page.goto(VIEWS[name])
        expect(page.locator(READY).first).to_be_visible()
        _check(page, name)
    page.get_by_role("button", name="About", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    _check(page, "about")


def _check(page: Page, name: str) -> None:
    """All rules in light; in dark those about colours, nothing else is another there."""
    page.emulate_media(color_scheme="light")
    light = Axe().run(page).response
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate("axe.run(document, { runOnly: ['color-contrast'] })")
    for scheme, found in (("light", light), ("dark", dark)):
        assert found["passes"], "axe looked at nothing"
        bad = [
            f"{name}, {scheme}: {rule['id']} {[node['html'][:120] for node in rule['nodes']]}"
            for rule in found["violations"]
            if rule["impact"] in ("serious", "critical")
        ]
        assert bad == []
