"""The text of an HTML page, with Markdown headings, lists and code fences, without scripts and styles."""

from __future__ import annotations

import codecs
import re
from collections import Counter
from html.parser import HTMLParser

_DROPPED = frozenset(("script", "style", "template", "noscript", "svg", "iframe", "object"))
_OF_HEAD = frozenset(
    "html head base basefont bgsound link meta noframes noscript script style template title".split()
)
_BLOCKS = frozenset(
    (
        "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset "
        "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr legend li main menu nav ol option "
        "p pre section summary table tbody tfoot thead tr ul"
    ).split()
)
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_SPACE = re.compile(r"[^\S ]\s*| \s+")  # not a single space: each match takes memory
_SPACES = re.compile("  +")
_TAB = re.compile(r" ?\t[ \t]*")
_CHARSET = re.compile(rb"charset\s*=\s*[\"']?([\w.:-]{1,40})", re.IGNORECASE)
_SNIFFED = 2048
_JOINED = 1000  # pieces
_NOT_OF_PAGES = frozenset(("idna", "punycode", "raw-unicode-escape", "unicode-escape", "utf-7"))
_FENCE = "```"
_RAW = ("script", "style", "textarea", "title")  # no tags and comments in their text
_MARK = re.compile(rf"<(?:!--|({'|'.join(_RAW)})(?=[\s/>])|/?[a-z])", re.IGNORECASE | re.ASCII)
_RAW_ENDS = {name: re.compile(rf"</{name}[\s/>]", re.IGNORECASE) for name in _RAW}
_NAME_END = re.compile(r"[\s/>]")
_TAG_STOP = re.compile(r">|=\s*[\"']")
_COMMENT_END, _COMMENT_CLOSE = re.compile("-?>"), re.compile("--!?>")  # at once, or later
# Browsers read these names as larger sets, which pages with such a name really use.
_LARGER = {
    "ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "tis-620": "cp874", "gb2312": "gb18030",
    "gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949",
}  # fmt: skip
_WEB_NAMES = {"x-sjis": "cp932", "x-gbk": "gb18030", "x-mac-roman": "mac-roman", "x-x-big5": "big5"}


def html_charset(data: bytes) -> str | None:
    """The character set that a page declares, None if it declares none or one that no page has.

    The declaration was found as ASCII, so a set that reads it differently, such as UTF-16, is a mistake.
    Python's names include encodings that are not character sets, such as hex, and some that always fail.
    """
    found = _CHARSET.search(data[:_SNIFFED])
    if found is None:
        return None
    try:
        written = found[1].decode("ascii").lower()
        name = codecs.lookup(_WEB_NAMES.get(written, written)).name
        name = _LARGER.get(name, name)
        is_ascii = found[0].decode(name, errors="replace") == found[0].decode("ascii")
    except (LookupError, ValueError):
        return None
    return name if is_ascii and name.replace("_", "-") not in _NOT_OF_PAGES else None


def read_html(source: str) -> tuple[str, str]:
    """The title and the text of a page. Invalid HTML is not an error, as in browsers."""
    page = _Page()
    source = _without_comments(source)
    last = source.rfind(">") + 1
    # No tag follows the last >; the parser would otherwise search for one again at each <.
    page.feed(source[:last] + source[last:].replace("<", "&lt;"))
    page.close()
    return page.title, page.text


class _Pieces:
    """A text in the making. Its pieces are joined now and then: each alone takes some 60 bytes more."""

    def __init__(self) -> None:
        self._blocks: list[str] = []
        self._pieces: list[str] = []

    def add(self, piece: str) -> None:
        """Add a piece at the end."""
        self._pieces.append(piece)
        if len(self._pieces) >= _JOINED:
            self._blocks.append("".join(self._pieces))
            self._pieces.clear()

    def text(self) -> str:
        """All pieces so far."""
        return "".join([*self._blocks, *self._pieces])


def _without_comments(source: str) -> str:
    """A page without comments, scripts, styles and attributes, and without markup in titles and text areas.

    The parser would search for the end of each unclosed comment repeatedly, and take a hundred times as much
    memory for the attributes of a tag as they have characters. In a script, a title or the value of an
    attribute, `<!--` begins no comment.
    """
    parts = _Pieces()
    at, last, is_open, has_quotes = 0, source.rfind(">"), False, True
    while (mark := _MARK.search(source, at)) is not None and mark.start() < last:
        parts.add(source[at : mark.start()])
        if mark[0] == "<!--":
            end = None if is_open else _COMMENT_END.match(source, mark.end())
            end = end or (None if is_open else _COMMENT_CLOSE.search(source, mark.end()))
            is_open = end is None  # never closed: only the opening marks are dropped, here and further on
            at = mark.end() if end is None else end.end()
            continue
        at, is_closed = _tag_end(source, mark.end(), has_quotes)
        if not is_closed:  # a quoted value without an end: what seems to be a tag is text
            has_quotes = has_quotes and at > 0  # if no other > follows, do not search as far again
            at = at or source.find(">", mark.end()) + 1
            parts.add("&lt;")
            parts.add(source[mark.start() + 1 : at].replace("<", "&lt;"))
        else:
            name_end = _NAME_END.search(source, mark.end(), at)
            parts.add(source[mark.start() : at - 1 if name_end is None else name_end.start()])
            parts.add("/>" if source[at - 2] == "/" and mark[0][1] != "/" else ">")
        name = (mark[1] or "").lower()
        if name and source[at - 2 : at] != "/>":
            close = _RAW_ENDS[name].search(source, at)
            content = source[at : len(source) if close is None else close.start()]
            at += len(content)
            if name in ("textarea", "title"):
                parts.add(content.replace("<", "&lt;"))
    parts.add(source[at:].replace("<!--", ""))
    return parts.text()


def _tag_end(source: str, at: int, has_quotes: bool) -> tuple[int, bool]:
    """The end of a tag, after its >, and whether each quoted value before it has an end.

    A > in a quoted value does not count, unless `has_quotes` is false. 0 stands for no end.
    """
    is_closed = True
    if not has_quotes:
        return source.find(">", at) + 1, True
    while (stop := _TAG_STOP.search(source, at)) is not None:
        if stop[0] == ">":
            return stop.end(), is_closed
        close = source.find(stop[0][-1], stop.end())
        is_closed = is_closed and close >= 0
        at = stop.end() if close < 0 else close + 1
    return 0, False


class _Page(HTMLParser):
    """Collects the text of a page, paragraph by paragraph."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._title: list[str] = []
        self._paragraphs = _Pieces()
        self._last = ""  # the last paragraph
        self._inline = _Pieces()
        self._in_title = False
        self._in_head = False
        self._dropping: list[str] = []  # open tags whose text is dropped
        self._dropped = Counter[str]()  # how often each is open: a search in a deep list would take long
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
        return self._paragraphs.text()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Handle an opening tag."""
        if not self._dropping:  # a tag of the body ends the head: the tags between them may be omitted
            self._in_head = tag == "head" or (self._in_head and tag in _OF_HEAD)
        if tag == "title" and not self._dropped["svg"]:
            self._in_title = not self._title
        elif tag == "body":
            self._drop_no_more()  # a tag in the head that was never closed
            self._end_paragraph()
        elif tag in _DROPPED:
            self._dropping.append(tag)
            self._dropped[tag] += 1
        elif tag in _BLOCKS:
            self._end_paragraph()
            self._pre += tag == "pre"
            self._heading = _HEADINGS.get(tag, 0)
            self._bullet = "- " if tag == "li" else self._bullet
        elif tag == "br":
            self._inline.add("\n")
        elif tag in ("td", "th"):
            self._inline.add("\t")

    def handle_endtag(self, tag: str) -> None:
        """Handle a closing tag."""
        if tag == "title":
            self._in_title = False
        elif tag == "head" and self._in_head:
            self._drop_no_more()
        elif self._dropped[tag]:
            while True:
                last = self._dropping.pop()
                self._dropped[last] -= 1
                if last == tag:
                    break
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
            self._inline.add(data if self._pre else _SPACE.sub(" ", data))

    def parse_marked_section(self, i: int, report: int = 1) -> int:
        """Skip a section such as <![CDATA[ or <![if IE]>; the standard library fails on some of them."""
        end = self.rawdata.find(">", i)
        return end + 1 if end >= 0 else -1

    def _drop_no_more(self) -> None:
        self._in_head = False
        self._dropping.clear()
        self._dropped.clear()

    def _add(self, paragraph: str) -> None:
        is_item = paragraph.startswith("- ") and self._last.startswith("- ")
        self._paragraphs.add(("\n" if is_item else "\n\n") if self._last else "")
        self._paragraphs.add(paragraph)
        self._last = paragraph

    def _end_paragraph(self) -> None:
        joined, self._inline = self._inline.text(), _Pieces()
        if self._pre:
            body = joined.strip("\n")
            if body.strip():
                fence = _FENCE + "`" * joined.count(_FENCE)
                self._add(f"{fence}\n{body}\n{fence}")
            return
        lines = (_TAB.sub("\t", _SPACES.sub(" ", line)).strip() for line in joined.split("\n"))
        body = "\n".join(line for line in lines if line)
        if not body:
            return
        if self._heading:
            body = f"{'#' * self._heading} {_SPACE.sub(' ', body)}"
        self._add(f"{self._bullet}{body}")
        self._bullet = ""
