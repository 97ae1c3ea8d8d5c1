"""A word that only one document has finds that document first, with the bundled model and default options."""

from __future__ import annotations

import importlib
import pydoc
import random
from pathlib import Path

from coil.cli.main import run
from coil.demo.standard_library import read_standard_library
from coil.indexes.index import Index
from coil.indexes.opening import create, open_index
from experiments.needles import choose_needles, find_misses

LEAST = 0.97
# Encoding all of them takes minutes: a sample, drawn with a fixed seed. experiments/words.py takes all.
DEMO_DOCUMENTS = 2000
# Of each page, the first characters: a page is then two or three chunks.
PAGE_CHARACTERS = 4000
MODULES = """
abc argparse ast base64 bisect calendar cmd codecs colorsys configparser contextlib copy csv dataclasses
difflib dis doctest enum fileinput fnmatch fractions functools getopt gettext glob graphlib gzip heapq hmac
inspect ipaddress linecache locale logging mailbox mimetypes optparse pathlib pickle platform plistlib pprint
queue random sched secrets selectors shelve shlex shutil smtplib statistics subprocess tarfile tempfile
textwrap tokenize traceback uuid zipfile
""".split()


def test_in_the_documents_of_the_demo(tmp_path: Path) -> None:
    documents = random.Random(0).sample(read_standard_library(), DEMO_DOCUMENTS)
    index = create(tmp_path / "demo.coil")
    index.add(documents)
    _check(index)


def test_in_a_folder_of_reference_pages(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    for name in MODULES:
        page = pydoc.plain(pydoc.render_doc(importlib.import_module(name)))
        (pages / f"{name}.txt").write_text(page[:PAGE_CHARACTERS], encoding="utf-8")
    assert run(["index", str(pages), "--out", str(tmp_path / "pages.coil")]) == 0
    index = open_index(tmp_path / "pages.coil")
    assert len(index) == len(MODULES)
    _check(index)


def _check(index: Index) -> None:
    needles = choose_needles(index)
    assert len(needles) >= 300, "too few words to measure a share of 97 %"
    misses = find_misses(index, needles)
    assert len(misses) <= (1 - LEAST) * len(needles), misses
    # The check can fail: sentence vectors alone know little about a rare word.
    assert len(find_misses(index, needles, "dense")) > (1 - LEAST) * len(needles)
