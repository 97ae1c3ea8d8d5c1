"""Files that are one document each: what is read of them, what is skipped, and how that is told."""

from __future__ import annotations

import gzip
import io
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coil.errors import InputError, MissingExtra, NotText
from coil.texts.corpora import read_documents
from coil.texts.files import CODE
from coil.texts.html import html_charset, read_html
from coil.texts.markup import Heading, count_front_values, find_headings, read_front_matter
from coil.texts.values import Document
from tests.files import put

PAGE = """<!doctype html><html><head><title>The  River</title><style>p {color: red}</style>
<script>var hidden = "<p>no</p>";</script></head><body><h1>The River</h1><p>It is <b>steep</b>
and &amp; wide.<br>Very.</p><h2>Its bank</h2><ul><li>One<li>Two <i>x</i></li></ul>
<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>2</td></tr></table>
<pre>
# no heading
  x = 1</pre><noscript>no</noscript><p>End</body></html>"""


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "coil.texts"]


def pdf(text: str, title: str = "", unicode: bytes = b"") -> bytes:
    """A PDF of one page, written by hand."""
    lines = " ".join(f"({line}) Tj T*" for line in text.split("\n")) if text else ""
    content = f"BT /F1 12 Tf 14 TL 50 700 Td {lines} ET".encode()
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents 4 0 R/Resources<</Font<</F1 5 0 R>>>>>>",
        b"<</Length %d>>stream\n%s\nendstream" % (len(content), content),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica%s>>" % (b"/ToUnicode 7 0 R" if unicode else b""),
        b"<</Title(%s)>>" % title.encode(),
        b"<</Length %d>>stream\n%s\nendstream" % (len(unicode), unicode),
    ]
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        places.append(len(out))
        out += b"%d 0 obj%s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer<</Size 8/Root 1 0 R/Info 6 0 R>>\nstartxref\n%d\n%%%%EOF" % len(out)
    return out + b"xref\n0 8\n0000000000 65535 f \n" + table + trailer


def docx_bytes() -> bytes:
    docx: Any = pytest.importorskip("docx")
    document = docx.Document()
    document.core_properties.title = "Notes"
    document.add_heading("The river", 1)
    document.add_paragraph("It is steep.")
    document.add_heading("Its bank", 2)
    table = document.add_table(rows=1, cols=2)
    table.cell(0, 0).text, table.cell(0, 1).text = "a", "b\nc"
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def test_html() -> None:
    title, text = read_html(PAGE)
    assert title == "The River"
    assert text == (
        "# The River\n\nIt is steep and & wide.\nVery.\n\n## Its bank\n\n- One\n- Two x\n\na\tb\n\n1\t2\n\n"
        "```\n# no heading\n  x = 1\n```\n\nEnd"
    )
    assert [heading.text for heading in find_headings(text, "markdown")] == ["The River", "Its bank"]


PIECES = (
    "< > / <! <![ <![CDATA[ ]]> <!-- --> <? &#x; &amp <p> </p> <pre> </pre> <h1> </h1> <title> </title> "
    "<script> </script> <svg> </svg> <head> <body> <li> <br> word \n <!DOCTYPE <a b='c ```"
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES.split(" "))).map(" ".join) | st.text())
def test_no_page_is_an_error(source: str) -> None:
    title, text = read_html(source)
    assert "\n" not in title
    assert text == text.strip("\n") or "```" in text


@pytest.mark.parametrize("piece", "< </ <!-- <![ <!- <!--a--> <a <pre> &".split())
def test_a_page_of_open_signs_is_read_in_no_time(piece: str) -> None:
    """The standard library's parser takes minutes for some of these."""
    for source in (piece * 200_000, piece * 200_000 + ">"):
        began = time.process_time()
        read_html(source)
        assert time.process_time() - began < 10.0


def test_comments_are_dropped() -> None:
    assert read_html("<p>a<!-- <p>no --><b>b</b><!----> c <!-- open d")[1] == "ab c open d"


def test_html_in_another_character_set(tmp_path: Path) -> None:
    old = '<meta charset="windows-1252"><p>caf\u00e9 \u2014 5 \u20ac</p>'.encode("windows-1252")
    assert html_charset(old) == "cp1252"
    assert html_charset(b"<meta charset=none-such>") is None
    [document] = read_documents(put(tmp_path / "a.html", old))
    assert document.text == "caf\u00e9 \u2014 5 \u20ac"
    [document] = read_documents(put(tmp_path / "b.html", '<meta charset="latin1">caf\u00e9'))  # it is UTF-8
    assert document.text == "caf\u00e9"


def test_the_title_of_a_page_is_in_its_text_once(tmp_path: Path) -> None:
    [document] = read_documents(put(tmp_path / "a.htm", PAGE))
    assert document.fields == {"title": "The River"}
    assert document.text.count("The River") == 1
    [document] = read_documents(put(tmp_path / "b.html", "<title>Banks</title><h2>Rivers</h2>"))
    assert document == Document("b.html", "Banks\n\n## Rivers", {"title": "Banks"})


def test_front_matter_becomes_fields(tmp_path: Path) -> None:
    front = (
        "---\ntitle: \"npm: version\"\ntags: [a, 'b c']\nauthors:\n  - Ann\n  - Bob\ndate: 2020-01-02\n"
        "nested: {a: 1}\ntext: |\n  # no heading\nempty:\n---\n"
    )
    text = f"{front}# Other\n\nBody"
    expected = {
        "title": "npm: version",
        "tags": ["a", "b c"],
        "authors": ["Ann", "Bob"],
        "date": "2020-01-02",
    }
    assert read_front_matter(text) == (expected, len(front))
    [document] = read_documents(put(tmp_path / "a.md", text))
    assert document == Document("a.md", text, expected)
    for none in ("", "# A\n---\n", "---\ntitle: x\n", "text\n---\ntitle: x\n---\n"):
        assert read_front_matter(none) == ({}, 0)


def test_front_matter_has_a_limit_on_values(tmp_path: Path) -> None:
    text = "---\nfew: [a, b]\nmany: [a, b, c, d]\nauthors:\n  - Ann\n---\nriver\n"
    assert count_front_values(text) == 6
    assert read_front_matter(text, 5) == ({"few": ["a", "b"], "authors": ["Ann"]}, text.index("river"))
    put(tmp_path / "a.md", text)
    reading = read_documents(tmp_path)
    reading.gauge.longest = 600  # six values
    assert [document.fields["many"] for document in reading] == [["a", "b", "c", "d"]]
    reading = read_documents(tmp_path)
    reading.gauge.longest = 599
    with pytest.raises(InputError, match=r"a\.md: the front matter exceeds the limit of 5 values") as told:
        list(reading)
    assert "--memory" in told.value.remedy


def test_headings_of_markdown() -> None:
    text = (
        "# One #\ntext\n```sh\n# comment\n```\n   ## Two\n#no\n    # code\n~~~\n```\n# in\n~~~\n###### Six\n"
    )
    found = find_headings(text, "markdown")
    assert [(h.level, h.text) for h in found] == [(1, "One"), (2, "Two"), (6, "Six")]
    assert [text[h.start : h.end] for h in found] == ["# One #\n", "   ## Two\n", "###### Six\n"]
    assert find_headings(text, None) == []


def test_headings_of_rst() -> None:
    text = "=====\nTitle\n=====\n\nBody\n\nPart\n----\n\nSub\n~~~\n\nOther\n-----"
    text += "\n\nlonger than\n---\n\n---\n\na\n\n"
    found = find_headings(text, "rst")
    assert [(h.level, h.text) for h in found] == [(1, "Title"), (2, "Part"), (3, "Sub"), (2, "Other")]
    assert found[0] == Heading(0, 18, 1, "Title")
    assert text[found[1].start : found[1].end] == "Part\n----\n"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="#=-~ab \n`:\r") | st.text(), st.sampled_from(["markdown", "rst"]))
def test_headings_of_any_text(text: str, markup: Any) -> None:
    found = find_headings(text, markup)
    for heading in found:
        assert heading.text in text[heading.start : heading.end]
        assert heading.text == heading.text.strip() != ""
    assert all(a.end <= b.start for a, b in pairwise(found))


def test_a_folder_of_many_kinds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pytest.importorskip("pypdf")
    put(tmp_path / "page.html.gz", gzip.compress(PAGE.encode()))
    put(tmp_path / "guide.rst", "Guide\n=====\n\nText.")
    put(tmp_path / "src" / "main.py", "# river\nprint(1)\n")
    put(tmp_path / "paper.pdf", pdf("steep river\nbank", "On rivers"))
    put(tmp_path / "scan.pdf", pdf(""))
    put(tmp_path / "broken.pdf", b"%PDF-1.4\nnothing")
    put(tmp_path / "note.docx", docx_bytes())
    put(tmp_path / "broken.docx", b"PK\3\4 no zip")
    put(tmp_path / "odd.txt", bytes(range(1, 256)) * 4)
    put(tmp_path / "LICENSE", "x")
    put(tmp_path / "rows.csv", "id,text\n1,x\n")
    for name in ("a.png", "b.PNG"):
        put(tmp_path / name, b"\x89PNG")
    (tmp_path / "src" / "loop").symlink_to(tmp_path)
    found = {document.doc_id: document for document in read_documents(tmp_path)}
    assert list(found) == ["guide.rst", "note.docx", "page.html.gz", "paper.pdf", "src/main.py"]
    assert found["guide.rst"] == Document("guide.rst", "Guide\n=====\n\nText.", {"title": "Guide"})
    assert found["note.docx"].text == "Notes\n\n# The river\n\nIt is steep.\n\n## Its bank\n\na\tb c"
    assert found["note.docx"].fields == {"title": "Notes"}
    assert found["paper.pdf"] == Document(
        "paper.pdf", "On rivers\n\nsteep river\nbank", {"title": "On rivers"}
    )
    assert found["src/main.py"] == Document("src/main.py", "# river\nprint(1)\n", {"title": "src/main.py"})
    messages = told(caplog)
    assert messages[-1] == (
        "skipped 8 files: 2 .pdf, 2 .png, 1 .csv (pass such files explicitly), 1 .docx, 1 .txt, "
        "1 without extension"
    )
    named = " ".join(messages[:-1])
    assert "scan.pdf: a PDF without text" in named
    assert "broken.pdf: not a valid PDF" in named
    assert "broken.docx: not a valid .docx" in named
    assert "odd.txt: not a text file" in named


def test_what_a_folder_skips_for_a_missing_package_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pypdf", "docx"):
        monkeypatch.setitem(sys.modules, name, None)
    put(tmp_path / "a" / "paper.pdf", b"%PDF")
    with pytest.raises(MissingExtra) as caught:  # there is nothing else
        read_documents(tmp_path)
    assert caught.value.remedy == "pip install 'coil-ir[pdf]'"
    with pytest.raises(MissingExtra):
        read_documents(tmp_path / "a" / "paper.pdf")
    put(tmp_path / "note.txt", "river")
    put(tmp_path / "note.docx", b"PK")
    assert [document.doc_id for document in read_documents(tmp_path)] == ["note.txt"]
    [message] = told(caplog)
    assert message == (
        "skipped 2 files: 1 .docx (pip install 'coil-ir[docx]'), 1 .pdf (pip install 'coil-ir[pdf]')"
    )


def test_a_file_that_is_named_must_be_read(tmp_path: Path) -> None:
    pytest.importorskip("pypdf")
    for name, data, reason in (
        ("a.pdf", pdf(""), "a.pdf is a PDF without text"),
        ("b.pdf", b"", "b.pdf is not a valid PDF"),
        ("c.docx", docx_bytes()[:-30], r"c.docx is not a valid .docx"),
        ("d.py", b"\0\1", "d.py is not a text file"),
    ):
        with pytest.raises(NotText, match=reason) as caught:
            list(read_documents(put(tmp_path / name, data)))
        assert caught.value.remedy
    reading = read_documents(put(tmp_path / "e.docx", docx_bytes()))
    reading.gauge.longest = 2000
    with pytest.raises(InputError, match="exceeds the limit"):
        list(reading)


@pytest.mark.parametrize("kind", CODE)
def test_source_code_is_plain_text(tmp_path: Path, kind: str) -> None:
    put(tmp_path / f"a{kind}", "# x\n<b>")
    [document] = read_documents(tmp_path)
    assert document == Document(f"a{kind}", "# x\n<b>", {"title": f"a{kind}"})
