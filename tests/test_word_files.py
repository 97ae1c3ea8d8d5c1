"""The text of Word documents: all that a reader sees in the body, once, in document order."""

from __future__ import annotations

import gc
import io
import re
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from coil.errors import InputError, NotText
from coil.storage.memory import resident_bytes
from coil.texts.corpora import read_documents
from coil.texts.office import read_docx
from tests.files import put

docx: Any = pytest.importorskip("docx")

NAMES = (
    'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main" '
    'xmlns:r="http://schemas.openxmlformats.org/officeDocument/2006/relationships" '
    'xmlns:m="http://schemas.openxmlformats.org/officeDocument/2006/math" '
    'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006" '
    'xmlns:wps="http://schemas.microsoft.com/office/word/2010/wordprocessingShape" '
    'xmlns:v="urn:schemas-microsoft-com:vml"'
)


def word(body: str) -> bytes:
    """A document with this XML in its body."""
    from docx.oxml import parse_xml

    document = docx.Document()
    made = parse_xml(f"<w:body {NAMES}>{body}</w:body>")
    for block in list(made):
        document.element.body[-1].addprevious(block)
    out = io.BytesIO()
    document.save(out)
    return out.getvalue()


def run(text: str) -> str:
    return f'<w:r><w:t xml:space="preserve">{text}</w:t></w:r>'


def paragraph(*inner: str, style: str = "") -> str:
    properties = f'<w:pPr><w:pStyle w:val="{style}"/><w:tabs><w:tab w:val="left"/></w:tabs></w:pPr>'
    return f"<w:p>{properties if style else ''}{''.join(inner)}</w:p>"


def control(inner: str) -> str:
    """A content control, as templates and forms have them."""
    return f"<w:sdt><w:sdtPr><w:alias w:val='no'/></w:sdtPr><w:sdtContent>{inner}</w:sdtContent></w:sdt>"


def cell(*inner: str, span: int = 1, merged: str = "") -> str:
    spanning = f'<w:gridSpan w:val="{span}"/>' if span > 1 else ""
    return f"<w:tc><w:tcPr>{spanning}{merged}</w:tcPr>{''.join(inner) or '<w:p/>'}</w:tc>"


def table(*rows: str) -> str:
    return f"<w:tbl><w:tblPr/><w:tblGrid><w:gridCol/></w:tblGrid>{''.join(rows)}</w:tbl>"


def row(*cells: str) -> str:
    return f"<w:tr>{''.join(cells)}</w:tr>"


RIVER, BANK = paragraph(run("river")), paragraph(run("bank"))
FIELD = (
    '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>REF x</w:instrText></w:r>'
    f'<w:r><w:fldChar w:fldCharType="separate"/></w:r>{run("river")}'
    '<w:r><w:fldChar w:fldCharType="end"/></w:r>'
)
BOX = f"<w:txbxContent>{RIVER}{BANK}</w:txbxContent>"

CASES = {
    "heading": (paragraph(run("The "), run("river"), style="Heading2") + BANK, "## The river\n\nbank"),
    "title": (paragraph(run("The river"), style="Title"), "# The river"),
    "unknown style": (paragraph(run("river"), style="none-such"), "river"),
    "earlier style": (
        "<w:p><w:pPr><w:pStyle w:val='Heading1'/><w:pPrChange w:id='6'><w:pPr><w:pStyle w:val='Title'/>"
        f"</w:pPr></w:pPrChange></w:pPr>{run('river')}</w:p>",
        "# river",
    ),
    "block control": (control(RIVER + control(BANK)) + BANK, "river\n\nbank\n\nbank"),
    "heading in a control": (control(paragraph(run("river"), style="Heading1")), "# river"),
    "inline control": (paragraph(run("the "), control(run("river")), run(" bank")), "the river bank"),
    "insertion": (
        paragraph(run("a "), f"<w:ins w:id='1'>{run('new')}</w:ins>", run(" river")),
        "a new river",
    ),
    "deletion": (
        paragraph(run("a"), "<w:del w:id='2'><w:r><w:delText>no</w:delText><w:tab/></w:r></w:del>", run("b")),
        "ab",
    ),
    "moved": (
        paragraph(
            f"<w:moveFrom w:id='3'>{run('no')}</w:moveFrom>", f"<w:moveTo w:id='4'>{run('river')}</w:moveTo>"
        ),
        "river",
    ),
    "smart tag": (paragraph(f"<w:smartTag w:uri='x' w:element='y'>{run('river')}</w:smartTag>"), "river"),
    "link": (paragraph(run("a "), f"<w:hyperlink w:anchor='x'>{run('river')}</w:hyperlink>"), "a river"),
    "tagged link": (
        paragraph(f"<w:hyperlink w:anchor='x'><w:ins w:id='5'>{run('river')}</w:ins></w:hyperlink>"),
        "river",
    ),
    "simple field": (paragraph(f"<w:fldSimple w:instr='REF x'>{run('river')}</w:fldSimple>"), "river"),
    "field": (paragraph(run("see "), FIELD), "see river"),
    "custom xml": (paragraph(f"<w:customXml w:element='x'>{run('river')}</w:customXml>"), "river"),
    "direction": (paragraph(f"<w:bdo w:val='rtl'>{run('river')}</w:bdo>"), "river"),
    "formula": (paragraph("<m:oMath><m:r><m:t>x+y</m:t></m:r></m:oMath>"), "x+y"),
    "phonetic guide": (
        paragraph(
            f"<w:r><w:ruby><w:rt>{run('no')}</w:rt><w:rubyBase>{run('river')}</w:rubyBase></w:ruby></w:r>"
        ),
        "river",
    ),
    "breaks": (
        paragraph(
            "<w:r><w:t>a</w:t><w:br w:type='page'/><w:t>b</w:t><w:br/><w:t>c</w:t><w:cr/><w:t>d</w:t>"
            "<w:br w:type='column'/><w:t>e</w:t><w:tab/><w:t>f</w:t><w:ptab/><w:t>g</w:t>"
            "<w:noBreakHyphen/><w:t>h</w:t><w:softHyphen/><w:t>i</w:t></w:r>"
        ),
        "a\nb\nc\nd\ne\tf\tg-hi",
    ),
    "text box": (
        paragraph(
            run("before"),
            f"<w:r><mc:AlternateContent><mc:Choice Requires='wps'><wps:txbx>{BOX}</wps:txbx></mc:Choice>"
            f"<mc:Fallback><w:pict><v:textbox>{BOX}</v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>",
            run(" after"),
        ),
        "before after\n\nriver\n\nbank",
    ),
    "table in a text box": (
        paragraph(
            run("a"),
            f"<w:r><w:pict><w:txbxContent>{table(row(cell(RIVER), cell(BANK)))}"
            "</w:txbxContent></w:pict></w:r>",
        ),
        "a\n\nriver\tbank",
    ),
    "old text box": (paragraph(f"<w:r><w:pict><v:textbox>{BOX}</v:textbox></w:pict></w:r>"), "river\n\nbank"),
    "table": (
        table(row(cell(RIVER), cell(RIVER, BANK)), row(cell(), cell())) + BANK,
        "river\triver bank\n\nbank",
    ),
    "heading in a table": (table(row(cell(paragraph(run("river"), style="Heading1")))), "river"),
    "merged columns": (table(row(cell(RIVER, span=3), cell(BANK)), row(cell(BANK))), "river\tbank\nbank"),
    "merged rows": (
        table(
            row(cell(RIVER, merged='<w:vMerge w:val="restart"/>'), cell(BANK)),
            row(cell(merged="<w:vMerge/>"), cell(BANK)),
        ),
        "river\tbank\n\tbank",
    ),
    "controls in a table": (
        table(control(row(cell(RIVER), control(cell(control(BANK)))))) + BANK,
        "river\tbank\n\nbank",
    ),
    "nested tables": (
        table(row(cell(RIVER, table(row(cell(BANK), cell(RIVER))), paragraph(run("end"))), cell(BANK))),
        "river bank river end\tbank",
    ),
    "text box in a table": (
        table(row(cell(paragraph(run("a"), f"<w:r><w:pict>{BOX}</w:pict></w:r>")), cell(BANK))),
        "a river bank\tbank",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_all_text_of_a_document_is_read_once(tmp_path: Path, name: str) -> None:
    body, text = CASES[name]
    [document] = read_documents(put(tmp_path / "a.docx", word(body)))
    assert document.text == text


def test_the_title_of_a_document_comes_first(tmp_path: Path) -> None:
    document = docx.Document()
    document.core_properties.title = "On rivers"
    document.add_heading("The bank", 1)
    document.save(str(tmp_path / "a.docx"))
    [found] = read_documents(tmp_path / "a.docx")
    assert found.text == "On rivers\n\n# The bank"
    assert found.fields == {"title": "On rivers"}


def test_a_document_without_properties_has_no_title(tmp_path: Path) -> None:
    document = docx.Document()
    document.add_paragraph("The bank")
    document.save(str(tmp_path / "whole.docx"))
    with (
        zipfile.ZipFile(tmp_path / "whole.docx") as whole,
        zipfile.ZipFile(tmp_path / "a.docx", "w") as without,
    ):
        for name in whole.namelist():
            data = whole.read(name)
            if name == "_rels/.rels":
                data = re.sub(rb"<Relationship [^>]*core-properties[^>]*>", b"", data)
            without.writestr(name, data)
    [found] = read_documents(tmp_path / "a.docx")
    assert found.text == "The bank"
    assert not found.fields.get("title")


@pytest.mark.parametrize("span", [1_000_000, 2**31])
def test_a_cell_that_spans_many_columns_is_read_in_no_time(tmp_path: Path, span: int) -> None:
    path = put(tmp_path / "a.docx", word(table(row(cell(RIVER, span=span), cell(BANK)))))
    began = time.process_time()
    [document] = read_documents(path)
    assert document.text == "river\tbank"
    assert time.process_time() - began < 5.0


def test_the_time_grows_with_the_size_only(tmp_path: Path) -> None:
    """Many rows of merged cells, and a long text in tables in tables."""
    nested = paragraph(run("river " * 400_000))
    for _ in range(60):
        nested = table(row(cell(nested, "<w:p/>"), cell(BANK)))
    rows = "".join(row(*[cell(BANK, merged="<w:vMerge/>")] * 10) for _ in range(1500))
    path = put(tmp_path / "a.docx", word(nested + table(rows)))
    began = time.process_time()
    [found] = read_documents(path)
    assert time.process_time() - began < 10.0
    assert found.text.count("river") == 400_000
    assert found.text.count("bank") == 15_060


def test_a_document_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    deep = word(paragraph("<w:smartTag>" * 200 + run("river") + "</w:smartTag>" * 200))
    [document] = read_documents(put(tmp_path / "a.docx", deep))
    assert document.text == "river"
    with pytest.raises(NotText, match=r"not a valid \.docx file"):
        list(read_documents(put(tmp_path / "b.docx", deep[:-100])))


# ---- memory


def test_a_document_is_freed_when_it_has_been_read() -> None:
    """Its parts refer to each other: without this, they would stay until the cyclic collector runs."""
    data = word(paragraph(*(run(f"word {i}") for i in range(20_000))))
    gc.collect()
    gc.disable()
    try:
        read_docx(data, "here", 64 << 20)
        before = resident_bytes()
        for _ in range(10):
            read_docx(data, "here", 64 << 20)
        assert resident_bytes() - before < 20 << 20  # one tree takes as much
    finally:
        gc.enable()


def test_xml_whose_tree_would_exceed_the_memory_is_refused() -> None:
    data = word(paragraph(*(run("word") for _ in range(20_000))))
    with pytest.raises(
        InputError, match=r"unpacks to 1,\d{3},\d{3} bytes, which exceeds the limit of 262,144"
    ):
        read_docx(data, "here", 1 << 20)
