"""The text of .docx files, read with python-docx."""

from __future__ import annotations

import io
import zipfile
from typing import Any

from coil.errors import InputError, NotText, require

_UNPACKED = 4  # limit on the unpacked size of a .docx, in multiples of the longest text


def read_docx(data: bytes, where: str, longest: int) -> tuple[str, str]:
    """The title and the text of a Word document, with Markdown headings and tabs between table cells."""
    docx = require("docx", "docx")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            size = sum(part.file_size for part in parts.infolist())
        if size > _UNPACKED * longest:
            raise InputError(
                f"{where} unpacks to {size:,} bytes, which exceeds the limit of {_UNPACKED * longest:,}",
                "split the document, or raise --memory",
            )
        document = docx.Document(io.BytesIO(data))
        title = (document.core_properties.title or "").strip()
        blocks = [_block(block) for block in document.iter_inner_content()]
    except (InputError, MemoryError):
        raise
    except Exception as error:  # a damaged file may raise anything
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise NotText(
            where, f"not a valid .docx file: {reason:.200}", "save or download the file again"
        ) from error
    return title, "\n\n".join(block for block in blocks if block)


def _block(block: Any) -> str:
    """The text of a paragraph or a table."""
    if hasattr(block, "rows"):
        rows = ("\t".join(" ".join(cell.text.split()) for cell in row.cells) for row in block.rows)
        return "\n".join(row for row in rows if row.strip())
    text: str = block.text.strip()
    style = block.style.name if block.style is not None else ""
    if not text or not style:
        return text
    if style == "Title":
        return f"# {' '.join(text.split())}"
    if style.startswith("Heading ") and style[8:].isdigit():
        return f"{'#' * min(int(style[8:]), 6)} {' '.join(text.split())}"
    return text
