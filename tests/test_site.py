"""The documentation site builds without a warning and loads nothing from elsewhere; its pictures are true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import NUMBER
from tools.illustrate import LISTS, SUMS, draw_lists, draw_sums, explanations

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_in_the_menu(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    pages = [page.relative_to(site).as_posix() for page in site.rglob("*.html")]
    assert len(pages) > 20
    assert [
        page for page in pages if f'href="{page}"' not in home and page not in ("index.html", "404.html")
    ] == []


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="https?:[^"]*"', text), page.name
        assert not re.findall(r'<link[^>]* rel="stylesheet"[^>]* href="https?:[^"]*"', text), page.name


def test_the_reference_has_signatures_and_explanations(site: Path) -> None:
    text = (site / "api.html").read_text(encoding="utf-8")
    for name in ("search", "explain", "add", "delete", "create", "connect"):
        assert re.search(rf'<h\d id="coil\.[\w.]*\.{name}"', text), name
    assert "Open an existing index" in text


def test_pictures_show_what_the_model_says() -> None:
    """To 5 %: int8 kernels round differently from processor to processor."""
    found = explanations()
    for drawn, path in ((draw_lists(found), LISTS), (draw_sums(found), SUMS)):
        texts = [re.findall(r"<text [^>]*>([^<]*)<", of) for of in (path.read_text(encoding="utf-8"), drawn)]
        for kept, made in zip(*texts, strict=True):
            assert NUMBER.sub("#", kept) == NUMBER.sub("#", made), "run `make docs`"
            for a, b in zip(NUMBER.findall(kept), NUMBER.findall(made), strict=True):
                assert float(b) == pytest.approx(float(a), rel=0.05, abs=0.05)
