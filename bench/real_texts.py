"""Passages of real text from what a machine has: its manual pages, Python's own docs, collections at hand.

    python -m bench.real_texts OUT.jsonl [--data FOLDER] [--most N]

FOLDER holds BEIR folders; without it, or where the machine has no manual pages, there are fewer passages. The
same machine gives the same file every time.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

from coil.demo.standard_library import read_standard_library
from coil.texts.corpora import read_documents

MANUALS = Path("/usr/share/man")
WORDS = 80  # a passage's, about as many as MS MARCO's have
_MACRO = re.compile(r"^[.'].*$")
_ESCAPE = re.compile(r"\\(?:f(?:\(..|\[[^\]]*\]|.)|s[-+]?\d|\(..|\[[^\]]*\]|[&|^/,%:]|.)")


def main() -> None:
    """Write the passages as JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", type=Path, help="folder of BEIR folders")
    parser.add_argument("--most", type=int, default=120_000)
    arguments = parser.parse_args()
    seen: set[str] = set()
    written = 0
    with arguments.out.open("w", encoding="utf-8") as file:
        for source, text in real_texts(arguments.data):
            if text in seen or len(text.split()) < 8:
                continue
            seen.add(text)
            file.write(json.dumps({"id": f"{source}-{written}", "text": text}) + "\n")
            written += 1
            if written == arguments.most:
                break
    print(f"{written:,} passages in {arguments.out}")


def real_texts(data: Path | None) -> Iterator[tuple[str, str]]:
    """(source, text) of every passage."""
    for folder in sorted(data.iterdir()) if data is not None else []:
        if any(folder.glob("corpus.jsonl*")):
            for document in read_documents(folder):
                yield folder.name, document.text
    for document in read_standard_library():
        yield "python", document.text
    for section in (7, 5, 8, 2, 3, 1):
        for page in sorted((MANUALS / f"man{section}").glob("*.gz")):
            for passage in passages(
                strip_roff(gzip.decompress(page.read_bytes()).decode("utf-8", "replace"))
            ):
                yield f"man{section}", f"{page.name.split('.')[0]}: {passage}"


def strip_roff(page: str) -> Iterator[str]:
    """The paragraphs of a manual page without its formatting."""
    lines: list[str] = []
    for line in page.splitlines():
        if _MACRO.match(line) or not line.strip():
            if line[:3] in (".SH", ".PP", ".TP", ".P", ".LP", ".IP", ".SS") and lines:
                yield " ".join(lines)
                lines = []
            continue
        lines.append(_ESCAPE.sub("", line.replace(r"\-", "-")))
    if lines:
        yield " ".join(lines)


def passages(paragraphs: Iterator[str]) -> Iterator[str]:
    """Paragraphs joined or cut to about WORDS words."""
    words: list[str] = []
    for paragraph in paragraphs:
        words += paragraph.split()
        while len(words) >= WORDS:
            yield " ".join(words[:WORDS])
            words = words[WORDS:]
    if words:
        yield " ".join(words)


if __name__ == "__main__":
    main()
