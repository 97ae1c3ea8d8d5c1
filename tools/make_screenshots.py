"""Takes the pictures of the page that are in the docs: python -m tools.make_screenshots [PYTHON_DOCS.coil]

They show a small index of words with several meanings and, where one is given, the index of `coil demo`.
Needs Chromium; where the font Inter is installed it stands for the system's.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page, Route, sync_playwright

import coil
from tests.page_documents import SENSES
from tests.serving import running

OUT = Path("docs/screenshots")
PAGE = Path("coil/service/page")
QUERY = "q=swimming+against+the+current"


@dataclass(frozen=True)
class Picture:
    name: str
    address: str
    width: int
    height: int
    scheme: str = "light"
    hover: str = ""
    scale: float = 1.0


PICTURES = (
    Picture("beside-bm25", f"?{QUERY}&beside=bm25&k=5&index=senses", 1280, 850),
    Picture("why-dark", f"?{QUERY}&doc=current-water&index=senses", 1180, 900, "dark"),
    Picture("token", f"?{QUERY}&token=3&index=senses", 900, 640),
    Picture("phone", "?q=steep+banks+of+a+river&index=senses", 360, 760, "dark", ".mark.best", scale=2.0),
    Picture("hits", "?q=copy+a+file+with+its+metadata&index=python-docs", 1100, 900, hover=".mark.t1.best"),
)


def main() -> None:
    """Serve the indexes and take every picture."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        with coil.create(Path(folder, "senses.coil")) as index:
            index.add(SENSES)
        indexes = [Path(folder, "senses.coil"), *map(Path, sys.argv[1:2])]
        with running(indexes) as served, sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for picture in PICTURES:
                if "index=python-docs" in picture.address and len(indexes) == 1:
                    continue
                page = browser.new_page(
                    viewport={"width": picture.width, "height": picture.height},
                    color_scheme=picture.scheme,  # type: ignore[arg-type]
                    device_scale_factor=picture.scale,
                )
                take(page, served.url, picture)
                page.close()
            browser.close()


def take(page: Page, url: str, picture: Picture) -> None:
    """One picture; the first search of a page is not warm, so the second is shown."""
    page.route("**/page.css", _with_inter)
    for _ in range(2):
        page.goto(url + picture.address)
        page.wait_for_selector(".hit, .mention-list")
        page.wait_for_timeout(500)
    page.locator("#q").blur()
    if picture.hover:
        page.locator(picture.hover).first.hover()
    page.wait_for_timeout(300)
    page.screenshot(path=OUT / f"{picture.name}.png")
    print(picture.name, f"{(OUT / f'{picture.name}.png').stat().st_size / 1000:.0f} kB")


def _with_inter(route: Route) -> None:
    css = (PAGE / "page.css").read_text(encoding="utf-8")
    route.fulfill(body=css.replace("system-ui", "Inter, system-ui"), content_type="text/css")


if __name__ == "__main__":
    main()
