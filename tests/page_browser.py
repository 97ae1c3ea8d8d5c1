"""A browser with the page in it: what the tests of the page have in common."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

import coil
from coil.indexes.opening import create
from tests.page_documents import DOCUMENTS
from tests.serving import Running, running
from tests.summing_encoder import SummingEncoder
from tests.tiny import WEIGHED

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

__all__ = ["Browser", "Locator", "Page", "Route", "address_has", "ask", "check_axe", "expect", "hit"]

# The current of a river, of a wire, and of affairs: one word, and in each text it fits differently.
QUERY = "swimming against the current"
WATER, WIRE = "current-water", "current-wire"
PHONE = {"width": 360, "height": 740}

expect.set_options(timeout=20_000)  # machines may be busy


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    # It weighs words, compares contexts and tells what each sentence adds, as the bundled model does.
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=512))
    folder = tmp_path_factory.mktemp("page")
    with create(folder / "senses.coil", encoder=encoder) as index:
        index.add(DOCUMENTS)
    with create(folder / "small.coil", encoder=encoder) as index:
        index.add([{"id": "only", "text": "A small index with a lemon in it."}])
    with running([folder / "senses.coil", folder / "small.coil"], encoder=encoder) as server:
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
        page.set_default_timeout(20_000)
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


def check_axe(page: Page, name: str) -> None:
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
