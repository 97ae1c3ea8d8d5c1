"""The text of an HTML page, with Markdown headings, lists and code fences, without scripts and styles."""

from __future__ import annotations

import codecs
import re
from html.parser import HTMLParser

_DROPPED = frozenset(("script", "style", "template", "noscript", "svg", "head", "iframe", "object"))
_BLOCKS = frozenset(
    (
        "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset "
        "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol option "
        "p pre section summary table tbody tfoot thead tr ul"
    ).split()
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_SPACE = re.compile(r"\s+")
_SPACES = re.compile(" +")
_TAB = re.compile(r" ?\t[ \t]*")
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_SNIFFED = 2048
_FENCE = "```"


def html_charset(data: bytes) -> str | None:
    """The character set that a page declares, None if it declares none or an unknown one."""
    found = _CHARSET.search(data[:_SNIFFED])
    if found is None:
        return None
    try:
        return codecs.lookup(found[1].decode("ascii")).name
    except (LookupError, ValueError):
        return None


def read_html(source: str) -> tuple[str, str]:
    """The title and the text of a page. Invalid HTML is not an error, as in browsers."""
    page = _Page()
    source = _without_comments(source)
    last = source.rfind(">") + 1
    # No tag follows the last >; the parser would otherwise search for one again at each <.
    page.feed(source[:last] + source[last:].replace("<", "&lt;"))
    page.close()
    return page.title, page.text


def _without_comments(source: str) -> str:
    """A page without comments. The parser would search for the end of each unclosed one repeatedly."""
    parts: list[str] = []
    at = 0
    while (start := source.find("<!--", at)) >= 0:
        end = source.find("-->", start + 4)
        if end < 0:  # never closed: only the opening marks are dropped
            break
        parts.append(source[at:start])
        at = end + 3
    return "".join([*parts, source[at:].replace("<!--", "")])


class _Page(HTMLParser):
    """Collects the text of a page, paragraph by paragraph."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._title: list[str] = []
        self._paragraphs: list[str] = []
        self._inline: list[str] = []
        self._in_title = False
        self._dropping: list[str] = []  # open tags whose text is dropped
        self._pre = 0
        self._heading = 0
        self._bullet = ""

    @property
    def title(self) -> str:
        """The title of the page."""
        return _SPACE.sub(" ", "".join(self._title)).strip()

    @property
    def text(self) -> str:
        """The paragraphs, separated by empty lines; list items follow each other directly."""
        self._end_paragraph()
        parts: list[str] = []
        for paragraph in self._paragraphs:
            item = paragraph.startswith("- ") and parts and parts[-1].startswith("- ")
            parts.append(("\n" if item else "\n\n") if parts else "")
            parts.append(paragraph)
        return "".join(parts)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle an opening tag."""
        if tag == "title" and "svg" not in self._dropping:
            self._in_title = not self._title
        elif tag == "body":
            self._dropping.clear()  # a head that was never closed
            self._end_paragraph()
        elif tag in _DROPPED:
            self._dropping.append(tag)
        elif tag in _BLOCKS:
            self._end_paragraph()
            self._pre += tag == "pre"
            self._heading = _HEADINGS.get(tag, 0)
            self._bullet = "- " if tag == "li" else self._bullet
        elif tag == "br":
            self._inline.append("\n")
        elif tag in ("td", "th"):
            self._inline.append("\t")

    def handle_endtag(self, tag: str) -> None:
        """Handle a closing tag."""
        if tag == "title":
            self._in_title = False
        elif tag in self._dropping:
            while self._dropping.pop() != tag:
                pass
        elif tag in _BLOCKS:
            self._end_paragraph()
            self._heading = 0
            self._bullet = ""
            self._pre = max(0, self._pre - (tag == "pre"))

    def handle_data(self, data: str) -> None:
        """Handle text between tags."""
        if self._in_title:
            self._title.append(data)
        elif not self._dropping:
            self._inline.append(data if self._pre else _SPACE.sub(" ", data))

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Skip a section such as <![CDATA[ or <![if IE]>; the standard library fails on some of them."""
        end = self.rawdata.find(">", i)
        return end + 1 if end >= 0 else -1

    def _end_paragraph(self) -> None:
        joined, self._inline = "".join(self._inline), []
        if self._pre:
            body = joined.strip("\n")
            if body.strip():
                fence = _FENCE + "`" * joined.count(_FENCE)
                self._paragraphs.append(f"{fence}\n{body}\n{fence}")
            return
        lines = (_TAB.sub("\t", _SPACES.sub(" ", line)).strip() for line in joined.split("\n"))
        body = "\n".join(line for line in lines if line)
        if not body:
            return
        if self._heading:
            body = f"{'#' * self._heading} {_SPACE.sub(' ', body)}"
        self._paragraphs.append(f"{self._bullet}{body}")
        self._bullet = ""
