"""The parts of the documentation site that are kept elsewhere in the repository.

MkDocs calls these functions (`hooks` in mkdocs.yml). Pages of the repository become pages of the site, and
links are changed to fit.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.api import reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "coil/models/default/README.md": "project/model-card.md",
    "examples/README.md": "project/examples.md",
    "experiments/README.md": "project/experiments.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "README.md": "index.md",  # its contents are those of the home page and the tutorial
    "examples": "project/examples.md",
}
_API = re.compile(r"For the types of arguments.*<!-- end api -->", re.S)
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?://|#|<)([^)\s]+)\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/."""
    for source, name in PAGES.items():
        if name.startswith("project/") and source.endswith(".md"):
            files.append(File.generated(config, name, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to the pages of the site, and fill in the reference of the Python API."""
    name = page.file.src_uri
    source = next((of for of, made in PAGES.items() if made == name and made != "index.md"), f"docs/{name}")

    def lead(found: re.Match[str]) -> str:
        label, link = found[1], found[2]
        path, _, anchor = link.partition("#")
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        target = PAGES.get(target, target.removeprefix("docs/"))
        if (
            target not in files.src_uris and (ROOT / target).exists()
        ):  # a file of the repository that is no page
            return label
        relative = posixpath.relpath(target, posixpath.dirname(name) or ".")
        return f"[{label}]({relative}{'#' + anchor if anchor else ''})"

    if name == "api.md":  # the site shows the docstrings instead of a list
        markdown = _API.sub(lambda _: reference(), markdown)
    return _LINK.sub(lead, markdown)
