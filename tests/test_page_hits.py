"""The hits on the page: files made of them, their texts, links and fields, and where there are none."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import coil
from coil.indexes.opening import create
from tests import page_browser
from tests.page_browser import PHONE, QUERY, Opener, Page, ask, expect, hit
from tests.page_documents import DOCUMENTS, HOSTILE_ID, MARKDOWN
from tests.serving import Running, running
from tests.summing_encoder import SummingEncoder
from tests.tiny import WEIGHED

browser, index, visit = page_browser.browser, page_browser.index, page_browser.visit

FORMULA = {"id": "=1+2", "text": 'A "quoted" formula, with a comma.', "tags": ["x", "y"], "rank": 7}

LONG_ID = "archive/2021/" + "a-very-long-name-of-a-folder/" * 4 + "herons.md"
MANUAL = {
    "id": "manual",
    "text": (
        "🦜 A manual of the pump begins with a long sentence that was broken at a width that someone chose\n"
        "long ago.\n\n    pump --start\n\tpump --stop\n\n- See https://example.org/pump_(old)/x?a=1&b=2.\n"
        "- (or http://example.org/valve), not javascript:alert(1) or ftp://example.org/ or https://."
    ),
    "url": "https://www.example.org/manuals/pump/",
    "home": "javascript:window.attacked=1",
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=512))
    folder = tmp_path_factory.mktemp("hits")
    with create(folder / "senses.coil", encoder=encoder) as made:
        made.add([*DOCUMENTS, FORMULA, MANUAL, {"id": LONG_ID, "text": "An archive of herons."}])
    create(folder / "empty.coil", encoder=encoder).close()
    with create(folder / "notes.coil", encoder=encoder) as made:
        made.add(MARKDOWN)
    with running(
        [folder / f"{name}.coil" for name in ("senses", "empty", "notes")], encoder=encoder
    ) as server:
        yield server


# ---- what a search took


def test_what_a_search_took_is_folded_below_the_hits(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}")
    strip = page.locator("#strip")
    expect(strip.locator("summary")).to_contain_text("10 hits in")
    expect(strip.locator(".times")).to_be_hidden()
    below = "document.querySelector('#strip').getBoundingClientRect().top"
    assert page.evaluate(below) > page.evaluate("[...document.querySelectorAll('.hit')].at(-1).offsetTop")
    strip.locator("summary").click()
    expect(strip.locator(".times")).to_be_visible()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        paint = "all => all.map((one) => getComputedStyle(one).backgroundColor)"
        times = strip.locator(".time-name i").evaluate_all(paint)
        probe = """() => [0, 1, 2, 3, 4, 5, 6, 7].map((hue) => {
            const one = document.body.appendChild(document.createElement("i"));
            one.className = `part t${hue}`;
            return getComputedStyle(one).backgroundColor;
        })"""
        words = page.evaluate(probe)
        assert len(set(words)) == 8
        assert len(set(times)) == len(times) >= 2
        assert not set(times) & set(words)


# ---- links and files


def test_the_link_is_copied(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}", permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy link")
    button.click()
    expect(page.locator("#status")).to_have_text("Link copied")
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    page.evaluate("navigator.clipboard.writeText('')")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error('forbidden')); }")
    expect(button).to_have_text("Copy link")
    button.click()
    expect(page.locator("#status")).to_have_text("Link copied")
    expect(page.locator("#copy-link")).to_be_focused()
    assert page.evaluate("navigator.clipboard.readText()") == page.url


def saved(page: Page, kind: str, folder: Path) -> Path:
    with page.expect_download() as started:
        page.get_by_role("button", name=f"Export {kind}").click()
    path = folder / started.value.suggested_filename
    started.value.save_as(path)
    return path


def test_the_hits_shown_are_exported(visit: Opener, index: coil.Index, tmp_path: Path) -> None:
    page = visit("/?q=a+quoted+formula&k=20&filter=not+year+%3D+1")
    page.get_by_role("button", name="Show 20 more").click()
    expected = index.search("a quoted formula", k=100)
    expect(page.locator(".hit")).to_have_count(len(expected))
    path = saved(page, "JSON", tmp_path)
    assert path.name == "coil-a-quoted-formula.json"
    made = json.loads(path.read_text(encoding="utf-8"))
    assert (made["index"], made["query"], made["filter"]) == ("senses", "a quoted formula", "not year = 1")
    for got, found in zip(made["hits"], expected, strict=True):
        assert (got["by"], got["rank"], got["doc_id"]) == ("coil", found.rank, found.doc_id)
        assert (got["score"], got["text"], got["fields"]) == (found.score, found.text, found.fields)
    with saved(page, "CSV", tmp_path).open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["rank"]) for row in rows] == [found.rank for found in expected]
    # A spreadsheet must not take an id for a formula.
    assert [row["doc_id"].removeprefix("'") for row in rows] == [found.doc_id for found in expected]
    odd = next(row for row in rows if row["doc_id"] == "'=1+2")
    assert (odd["text"], odd["tags"], odd["fields.rank"]) == (FORMULA["text"], '["x","y"]', "7")
    assert any(row["doc_id"] == HOSTILE_ID for row in rows)


def test_two_systems_are_exported_together(visit: Opener, tmp_path: Path) -> None:
    page = visit(f"/?q={QUERY}&k=5&beside=dense")
    made = json.loads(saved(page, "JSON", tmp_path).read_text(encoding="utf-8"))
    assert [one["by"] for one in made["hits"]] == ["coil"] * 5 + ["dense"] * 5


# ---- texts and links


def test_the_end_of_an_address_takes_time_in_its_length(visit: Opener) -> None:
    page = visit("/")
    found = page.evaluate(
        """async () => {
          const { findLinks } = await import("./page/links.js");
          const began = performance.now();
          const spans = [")", ".", "()", "([)]"].map((end) => findLinks(`see http://a/${end.repeat(40000)}`)[0].span);
          return [spans, performance.now() - began];
        }"""
    )
    assert found[0] == [[4, 13], [4, 13], [4, 80_013], [4, 160_013]]
    assert found[1] < 2000
    ends = {
        "http://a/b).": "http://a/b",
        "http://a/(b)": "http://a/(b)",
        "http://a/(b))": "http://a/(b)",
        "http://a/b]})": "http://a/b",
        "http://a/[b]}.)": "http://a/[b]",
        "http://a/(b.),": "http://a/(b.)",
    }
    written = page.evaluate(
        """async (texts) => {
          const { findLinks } = await import("./page/links.js");
          return texts.map((text) => text.slice(...findLinks(text)[0].span));
        }""",
        list(ends),
    )
    assert written == list(ends.values())


def test_the_links_of_a_text_with_an_emoji_take_time_in_its_length(visit: Opener) -> None:
    """JavaScript counts an emoji twice, the server once."""
    page = visit("/")
    links, milliseconds = page.evaluate(
        """async () => {
          const { Text } = await import("./page/text.js");
          const line = (_, n) => `- 🦊 [a tool](https://example.org/project/${n}) to search`;
          const lines = Array.from({ length: 3000 }, line);
          const text = new Text(lines.join("\\n"));
          const began = performance.now();
          const links = text.links.map(({ span, href }) => [text.slice(...span), href]);
          return [links, performance.now() - began];
        }"""
    )
    expected = [f"https://example.org/project/{number}" for number in range(3000)]
    assert links == [[address, address] for address in expected]
    assert milliseconds < 2000


def test_line_breaks_and_links_of_a_text(visit: Opener) -> None:
    page = visit()
    ask(page, "manual of the pump and its valve")
    card = hit(page, "manual")
    shown = card.locator(".text").inner_text()
    assert "someone chose long ago." in shown  # prose flows
    assert "\n    pump" in re.sub(r"\n+", "\n", re.sub(r"\d\.\d\d", "", shown))  # code does not
    assert re.search(r"\n- \(or http", shown)
    links = card.locator(".text a")
    addresses = links.evaluate_all("all => all.map((a) => [a.getAttribute('href'), a.target, a.rel])")
    assert {tuple(one) for one in addresses} == {
        ("https://example.org/pump_(old)/x?a=1&b=2", "_blank", "noopener noreferrer"),
        ("http://example.org/valve", "_blank", "noopener noreferrer"),
    }
    written = "".join(links.evaluate_all("all => all.map((a) => a.textContent)"))
    assert written.startswith("https://example.org/")
    assert not written.endswith((")", "."))
    source = card.locator(".field-link")
    assert source.inner_text() == "url example.org/manuals/pump"
    expect(source.locator("a")).to_have_attribute("href", "https://www.example.org/manuals/pump/")
    assert card.locator("a[href^=javascript]").count() == 0
    links.first.evaluate("a => a.addEventListener('click', (event) => event.preventDefault())")
    links.first.click()
    expect(page.get_by_role("dialog")).to_be_hidden()  # a link is not a click on the hit
    card.locator(".title").click()
    whole = page.get_by_role("dialog").locator(".text.whole")
    expect(whole.locator("a").first).to_have_attribute("href", "https://example.org/pump_(old)/x?a=1&b=2")
    assert whole.evaluate("text => text.textContent") == MANUAL["text"]
    assert whole.evaluate("text => getComputedStyle(text).whiteSpace") == "pre-wrap"


def test_a_long_text_opens_at_its_best_match(visit: Opener) -> None:
    page = visit()
    ask(page, "a telescope to look at Saturn")
    hit(page, "long").get_by_role("button", name="scored").click()
    sheet = page.get_by_role("dialog")
    best = sheet.locator(".whole .mark.best:focus")
    expect(best).to_be_visible()
    expect(sheet.locator(".sentence-list li").first).to_be_visible()  # they came later, above the text
    expect(best).to_be_in_viewport()
    adds = sheet.locator(".whole .mark.best").evaluate_all(
        "all => all.map((one) => Number(one.dataset.adds))"
    )
    assert float(best.get_attribute("data-adds") or 0) == max(adds)
    # A click on the title begins at the top, and a button goes there.
    page.keyboard.press("Escape")
    hit(page, "long").locator(".title").click()
    expect(sheet.locator(".sentence-list li").first).to_be_visible()
    assert sheet.locator(".sheet-body").evaluate("body => body.scrollTop") == 0
    sheet.get_by_role("button", name="Go to the best match in the text").click()
    expect(best).to_be_in_viewport()
    # By the sentence alone there are no words to go to.
    page.goto("/?q=a+telescope+to+look+at+Saturn&by=dense&doc=long")
    expect(sheet.locator(".sentence-list li").first).to_be_visible()
    sheet.get_by_role("button", name="Go to the best match in the text").click()
    expect(sheet.locator(".spoken:focus")).to_be_in_viewport()


# ---- fields


def test_fields_with_few_values_are_counted(visit: Opener) -> None:
    page = visit(f"/?q={QUERY}")
    counts: dict[str, int] = {}
    expect(page.locator(".hit")).to_have_count(10)
    for card in page.locator(".hit").all():
        for field in card.locator("footer .field", has_text="topic").all_inner_texts():
            counts[field.removeprefix("topic ")] = counts.get(field.removeprefix("topic "), 0) + 1
    group = page.get_by_role("group", name="topic", exact=True)

    def told() -> dict[str, int]:
        parts = (text.rsplit(" ", 1) for text in group.get_by_role("button").all_inner_texts())
        return {value: int(number) for value, number in parts}

    before = told()
    assert before == counts
    assert list(before.values()) == sorted(counts.values(), reverse=True)
    page.get_by_role("button", name="Show 10 more").click()
    expect(page.locator(".hit")).to_have_count(20)
    assert sum(told().values()) > sum(before.values())
    group.get_by_role("button", name="nature").click()
    expect(page.get_by_label("Only documents whose fields match")).to_have_value('topic = "nature"')
    expect(group).to_have_count(0)  # only one value is left
    page.goto(f"/?q={QUERY}&beside=bm25")
    expect(page.locator(".hit").first).to_be_visible()
    expect(page.locator("#facets")).to_be_hidden()


def test_an_empty_index_is_said_to_be_empty(visit: Opener) -> None:
    page = visit("/?index=empty")
    expect(page.get_by_role("heading", name="This index is empty")).to_be_visible()
    expect(page.locator("#results")).to_contain_text("coil add empty.coil FILE")
    page.get_by_role("searchbox").fill("river")
    expect(page.locator("#status")).to_contain_text("0 hits")
    expect(page.get_by_role("heading", name="This index is empty")).to_be_visible()
    page.get_by_label("Index", exact=True).select_option("senses")
    expect(page.locator(".hit").first).to_be_visible()


def test_long_ids_are_cut_on_a_phone(visit: Opener) -> None:
    page = visit("/?q=an+archive+of+herons", viewport=PHONE)
    title = hit(page, LONG_ID).locator(".title")
    expect(title).to_have_attribute("title", f"{LONG_ID}: why this hit?")
    expect(title).to_have_text(f"{LONG_ID}, why?")
    assert title.locator(".head").evaluate("head => head.scrollWidth > head.clientWidth")
    expect(title.locator(".tail")).to_have_text(LONG_ID[-10:])
    expect(title.locator(".tail")).to_be_in_viewport(ratio=1)
    assert title.evaluate("title => title.clientHeight") < 40
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    page.set_viewport_size({"width": 1100, "height": 800})
    assert title.evaluate("title => title.scrollWidth <= title.clientWidth")


def test_front_matter_is_folded_away_and_shades_stay_in_place(visit: Opener) -> None:
    page = visit("/?q=keeper+kelp&index=notes&by=bm25")
    card = hit(page, "dusk.md")
    expect(card.locator(".body")).to_have_text(re.compile("^# DuskThe keeper rows out.\\s*$"))
    expect(card.locator(".mark")).to_have_text(["keeper"])
    facets = page.locator("#facets [aria-label=tags] button")
    expect(facets).to_have_text(["kelp 3", "lighthouse 2", "canal 1"])
    card.get_by_role("button", name="tags kelp").click()
    expect(page.get_by_label("Only documents whose fields match")).to_have_value('tags = "kelp"')
    # Without Markdown, or with nothing else, it is the text.
    page = visit("/?q=keeper+kelp&index=notes&by=bm25")
    expect(hit(page, "notes.txt").locator(".body")).to_contain_text("title: Röst 🗼 policy")
    expect(hit(page, "only.md").locator(".mark")).to_have_text(["kelp"])
    hit(page, "dusk.md").locator(".title").click()
    sheet = page.get_by_role("dialog")
    expect(sheet.locator(".mentions .snippet").nth(1)).to_have_text("front matter: kelp")
    expect(sheet.locator(".mentions .snippet").first).to_have_text(re.compile("^# Dusk"))
    front = sheet.locator("details.front")
    expect(front.locator(".mark")).not_to_be_visible()
    front.locator("summary").click()
    expect(front.locator(".mark.best")).to_have_text("kelp")
    expect(sheet.locator(".whole > .mark")).to_have_text(["kelp", "keeper"])
    page.goto("/?q=telescope&index=notes&by=bm25")
    expect(hit(page, "moorings.md.gz").locator(".mark.best")).to_have_text("telescope")
    expect(hit(page, "moorings.md.gz").locator(".body")).not_to_contain_text("title:")
    hit(page, "moorings.md.gz").get_by_role("button", name="Show all").click()
    expect(hit(page, "moorings.md.gz").locator(".body")).to_have_text(re.compile("^The report lists"))


def test_the_best_match_may_be_in_the_front_matter(visit: Opener) -> None:
    page = visit("/?q=kelp&index=notes&by=bm25&doc=moorings.md.gz")
    page.get_by_role("button", name="Go to the best match in the text").click()
    expect(page.locator("details.front .mark.best")).to_be_focused()
    expect(page.locator("details.front .mark.best")).to_be_visible()
