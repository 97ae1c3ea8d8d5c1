"""The report of a comparison in a browser: readable on a phone, accessible, sortable, and on its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from coil.cli.main import run as coil
from tests.comparison_data import write_beir
from tests.page_browser import PHONE, Browser, browser, check_axe, expect

pytest.importorskip("bm25s")
pytest.importorskip("matplotlib")
__all__ = ["browser"]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("report")
    write_beir(folder / "tiny")
    systems = ["bm25s:name=BM25", "bm25s:name=BM25 with other constants and a rather long label:k1=2.0:b=1.0",
               "bm25s:name=words:stemmer=none"]  # fmt: skip
    named = [part for system in systems for part in ("--system", system)]
    assert coil(["compare", str(folder / "tiny"), *named, "--out", str(folder / "out")]) == 0
    return Path(folder / "out" / "report.html").as_uri()


def test_the_report_is_accessible_and_alone(browser: Browser, report):
    page = browser.new_page()
    asked, faults = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(report)
    for summary in page.locator("summary").all():
        summary.click()
    check_axe(page, "report")
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    assert faults == []
    shown = page.evaluate("[...document.images].map(image => image.complete && image.naturalWidth > 0)")
    assert shown == [True, True, True]
    page.close()


def test_the_report_fits_a_phone(browser: Browser, report):
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    page.goto(report)
    for summary in page.locator("summary").all():
        summary.click()
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    for label in page.locator("tbody th").all():
        box = label.bounding_box()
        assert box is None or box["width"] >= 60, "a label must not be squeezed into a column of letters"
    context.close()


def test_a_table_is_sorted_by_a_column(browser: Browser, report):
    page = browser.new_page()
    page.goto(report)
    table = page.locator("table").nth(1)
    head = table.get_by_role("columnheader", name="query")

    def values() -> list[float]:
        cells = table.locator("tbody tr td:nth-child(2)")
        return [float(cell.get_attribute("data-value") or "nan") for cell in cells.all()]

    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "descending")
    assert values() == sorted(values(), reverse=True)
    head.get_by_role("button").click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert values() == sorted(values())
    page.close()
