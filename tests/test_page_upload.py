"""Documents are added on the page, with the token of the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coil.indexes.opening import create
from coil.service.limits import ServiceOptions
from tests import page_browser
from tests.page_browser import Opener, Route, check_axe, expect, hit
from tests.serving import TOKEN, Running, running
from tests.summing_encoder import SummingEncoder
from tests.tiny import WEIGHED

browser, visit = page_browser.browser, page_browser.visit


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Running]:
    encoder = SummingEncoder(profile=replace(WEIGHED, query_length=128, document_length=512))
    create(tmp_path / "notes.coil", encoder=encoder).close()
    with running([tmp_path / "notes.coil"], ServiceOptions(token=TOKEN), encoder) as server:
        yield server


def test_documents_are_uploaded_with_the_token(visit: Opener, tmp_path: Path) -> None:
    lines = [{"id": f"n{number}", "text": f"heron number {number}"} for number in range(3)]
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"id": "blank", "text": ""}]))
    bad.write_text("no JSON\n")
    page = visit("/?q=heron")
    expect(page.locator("#results")).to_contain_text("or upload them here, under About")
    page.get_by_role("button", name="About", exact=True).click()
    sheet = page.get_by_role("dialog", name="notes")
    token, told = sheet.get_by_label("Server token"), sheet.locator(".told")
    button = sheet.get_by_role("button", name="Upload")
    sheet.get_by_label("JSON lines file").set_input_files(good)
    check_axe(page, "upload")
    token.fill("wrong✗")
    button.click()
    expect(told).to_contain_text("changes require the token of this server: paste the one in the file")
    token.fill(TOKEN)
    sheet.get_by_label("JSON lines file").set_input_files(bad)
    button.click()
    expect(told).to_contain_text("line 1")
    expect(told).to_have_class("told problem-line")
    sheet.get_by_label("JSON lines file").set_input_files(good)
    button.press("Enter")
    expect(told).to_have_text(
        "3 documents added. 1 document without text skipped: blank. The index now has 3 documents."
    )
    expect(told).to_have_class("told")
    sheet.get_by_role("button", name="Close").click()
    expect(page.locator(".hit")).to_have_count(3)  # what was asked is asked again
    expect(hit(page, "n1")).to_be_visible()
    # The token is remembered by this page and by nothing else.
    page.get_by_role("button", name="About", exact=True).click()
    expect(sheet).to_contain_text("Documents3")
    expect(token).to_have_value(TOKEN)
    assert (
        page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])").find(
            TOKEN
        )
        < 0
    )
    page.reload()
    page.get_by_role("button", name="About", exact=True).click()
    expect(token).to_be_hidden()  # folded, where there are documents
    sheet.get_by_text("Add documents").click()
    expect(token).to_have_value("")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("x" * 300_000, "The token has 300,000 characters, which is too long: paste only the token from the"),
        ("a\x01b", "The token contains a space or a control character: paste only the token from the file"),
        ("Bearer x", "The token contains a space or a control character"),
    ],
    ids=["long", "control", "space"],
)
def test_a_token_that_cannot_be_one_is_not_sent(visit: Opener, tmp_path: Path, given: str, told: str) -> None:
    (tmp_path / "one.jsonl").write_text('{"id": "1", "text": "a heron"}\n')
    page = visit()
    page.route("**/documents", lambda route: route.abort())
    page.get_by_role("button", name="About", exact=True).click()
    sheet = page.get_by_role("dialog", name="notes")
    sheet.get_by_label("JSON lines file").set_input_files(tmp_path / "one.jsonl")
    sheet.get_by_label("Server token").fill(given)
    sheet.get_by_role("button", name="Upload").click()
    expect(sheet.locator(".told")).to_contain_text(told)
    expect(sheet.locator(".told")).to_have_class("told problem-line")
    expect(sheet.get_by_role("progressbar")).to_be_hidden()


def test_a_connection_that_breaks_is_told(visit: Opener, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"id": "1", "text": "a heron"}\n')
    page = visit()

    def break_off(route: Route) -> None:
        route.abort() if route.request.method == "POST" else route.continue_()

    page.route("**/documents", break_off)
    page.get_by_role("button", name="About", exact=True).click()
    page.get_by_label("JSON lines file").set_input_files(tmp_path / "one.jsonl")
    page.get_by_label("Server token").fill(TOKEN)
    page.get_by_role("button", name="Upload").click()
    expect(page.locator(".told")).to_contain_text("The connection was lost")
