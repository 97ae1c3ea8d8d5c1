"""The text of .docx files, opened with python-docx.

It is that of the body as it would be with all tracked changes accepted: paragraphs, text boxes after the
paragraph that has them, and tables, whose cells are one line each, with the text of tables in them.
"""

from __future__ import annotations

import io
import zipfile
from typing import Any

from coil.errors import InputError, NotText, require

# Limit on the XML of a .docx, in multiples of the longest text. As a tree, it takes about 15 times as much,
# and what is read may take four times the longest text.
_XML = 0.25

_WORD = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
_MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}"
_COMPATIBLE = "{http://schemas.openxmlformats.org/markup-compatibility/2006}"
_PROPERTIES = "http://schemas.openxmlformats.org/package/2006/relationships/metadata/core-properties"
_SIGNS = {"tab": "\t", "ptab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}
# Properties (a tab stop is no tab, and an earlier style does not apply), deletions and pronunciations.
_SKIPPED = "rPr pPrChange tabs sectPr sdtPr sdtEndPr tblPr tblPrEx tblGrid trPr tcPr del moveFrom rt".split()
_KINDS = {
    **{f"{_WORD}{name}": name for name in ("p", "tc", "tr", "tbl", "t", *_SIGNS)},
    **{f"{_WORD}{name}": "skip" for name in _SKIPPED},
    f"{_WORD}pStyle": "style",
    f"{_MATH}t": "t",
    f"{_COMPATIBLE}Choice": "alternative",
    f"{_COMPATIBLE}Fallback": "alternative",
}


def read_docx(data: bytes, where: str, longest: int) -> tuple[str, str]:
    """The title and the text of a Word document, with Markdown headings and tabs between table cells."""
    docx = require("docx", "docx")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            sizes = [
                (part.filename.endswith((".xml", ".rels")), part.file_size) for part in archive.infolist()
            ]
        xml = sum(size for is_xml, size in sizes if is_xml)
        for size, most in ((xml, int(_XML * longest)), (sum(size for _, size in sizes), 4 * longest)):
            if size > most:
                raise InputError(
                    f"{where} unpacks to {size:,} bytes, which exceeds the limit of {most:,}",
                    "split the document, or raise --memory",
                )
        document = docx.Document(io.BytesIO(data))
        parts = document.part.package
        # Without such a part, python-docx makes one up, with a title.
        has_title = any(of.reltype == _PROPERTIES for of in parts.rels.values())
        title = (document.core_properties.title or "").strip() if has_title else ""
        body = _Body({style.style_id: style.name or "" for style in document.styles})
        body.read(document.element.body)
        blocks = [block for block in body.blocks if block]
        _free(parts)
    except (InputError, MemoryError):
        raise
    except Exception as error:  # a damaged file may raise anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise NotText(
            where, f"not a valid .docx file: {reason:.200}", "save or download the file again"
        ) from error
    return title, "\n\n".join(blocks)


def _free(package: Any) -> None:
    """Free the parts of a document now: they refer to each other, so Python would keep them for a while."""
    for part in package.iter_parts():
        if hasattr(part, "element"):
            part.element.clear()
        elif hasattr(part, "_blob"):
            part._blob = b""


class _Paragraph:
    """An open paragraph: its text so far, and the blocks of text boxes in it, which follow it."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.style = ""
        self.blocks: list[str] = []


class _Cell:
    """An open cell of a table, with the blocks of tables in it."""

    def __init__(self) -> None:
        self.blocks: list[str] = []


class _Table:
    """An open table: its rows, each with the texts of its cells; a table in a cell has blocks only."""

    def __init__(self) -> None:
        self.rows: list[list[str]] = []
        self.blocks: list[str] = []


class _Body:
    """Walks the XML of the body once, in document order.

    The objects of python-docx leave out what is nested in other elements, such as content controls and
    tracked insertions, and repeat a cell for each column that it spans, even if there are millions.
    """

    def __init__(self, styles: dict[str, str]) -> None:
        self._styles = styles  # name by id
        self._open: list[_Paragraph | _Cell | _Table] = []
        self._cells = 0  # open ones
        self.blocks: list[str] = []

    def read(self, body: Any) -> None:
        """Add the blocks of an XML element."""
        walk = require("lxml.etree", "docx").iterwalk(body, events=("start", "end"))
        for event, element in walk:
            kind = _KINDS.get(element.tag, "")
            if event == "end":
                if kind in ("p", "tc", "tbl"):
                    self._close()
            elif kind == "skip" or (kind == "alternative" and _has_element_before(element)):
                walk.skip_subtree()
            elif kind:
                self._start(kind, element)

    def _start(self, kind: str, element: Any) -> None:
        inner = self._open[-1] if self._open else None
        if kind == "p":
            self._open.append(_Paragraph())
        elif kind == "tc":
            self._open.append(_Cell())
            self._cells += 1
        elif kind == "tbl":
            self._open.append(_Table())
        elif kind == "tr" and isinstance(inner, _Table):
            inner.rows.append([])
        elif isinstance(inner, _Paragraph):
            if kind == "t":
                inner.text.append(element.text or "")
            elif kind in _SIGNS:
                inner.text.append(_SIGNS[kind])
            elif kind == "style":
                inner.style = self._styles.get(element.get(f"{_WORD}val"), "")

    def _close(self) -> None:
        closed = self._open.pop()
        outer = self._open[-1] if self._open else self
        if isinstance(closed, _Cell):
            self._cells -= 1
            if isinstance(outer, _Table) and outer.rows and not self._cells:
                outer.rows[-1].append(" ".join(" ".join(closed.blocks).split()))
                return
        elif isinstance(closed, _Paragraph):
            text = "".join(closed.text).strip()
            outer.blocks.append(text if self._cells else _with_heading(text, closed.style))
        elif not self._cells:
            lines = ("\t".join(row) for row in closed.rows)
            outer.blocks.append("\n".join(line for line in lines if line.strip()))
        outer.blocks.extend(closed.blocks)


def _has_element_before(element: Any) -> bool:
    """Whether another form of the same content comes first, such as that for newer versions of Word."""
    return next(element.itersiblings("*", preceding=True), None) is not None


def _with_heading(text: str, style: str) -> str:
    if style == "Title":
        level = 1
    elif style.startswith("Heading ") and style[8:].isdecimal():
        level = max(1, min(int(style[8:]), 6))
    else:
        return text
    return f"{'#' * level} {' '.join(text.split())}" if text else ""
