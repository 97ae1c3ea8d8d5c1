"""Makes collections from texts of this machine that the bundled model was not trained on, to choose by.

    apt-get update -o Acquire::Languages=en && apt-get install perl-doc man-db
    python -m experiments.unseen --out DIR

Each is a BEIR folder with up to 200 queries and 2,000 passages:
- debian_packages: the short description of a package finds the long one;
- perlfaq: a question finds its answer;
- man_pages: the line of a page that says what it is about finds its description;
- python_docs: the first paragraph of a docstring of the standard library finds the rest.
They differ a little from machine to machine, so figures on them compare models measured on one.
"""

from __future__ import annotations

import argparse
import gzip
import random
import re
import subprocess
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from coil.demo.demo import summary_span
from coil.demo.standard_library import read_standard_library
from coil.texts.pairs import Pair
from experiments.held_out import order, write_collection
from experiments.systems import say

QUERIES, PASSAGES = 200, 2000
SHORTEST = 80  # characters of a passage
MAN_PAGES = Path("/usr/share/man")


def main() -> None:
    """Write every collection."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    makers: list[Callable[[], Iterator[tuple[str, str]]]] = [
        debian_packages,
        perlfaq,
        man_pages,
        python_docs,
    ]
    for make in makers:
        name = make.__name__
        found = {text: query for query, text in make() if len(text) >= SHORTEST and len(query.split()) > 1}
        pairs = [Pair(query, text, name, line) for line, (text, query) in enumerate(found.items(), 1)]
        queries = sorted({pair.query for pair in pairs}, key=order)[:QUERIES]
        count = write_collection(arguments.out / name, pairs, set(queries), PASSAGES)
        say(f"{name}: {len(queries)} queries, {count:,} passages")


def debian_packages() -> Iterator[tuple[str, str]]:
    """Descriptions of packages, a sample of those that the package manager knows."""
    every = subprocess.run(
        ["apt-cache", "pkgnames"], capture_output=True, text=True, check=True
    ).stdout.split()
    names = random.Random(0).sample(sorted(every), min(len(every), 8000))
    for begin in range(0, len(names), 500):
        shown = subprocess.run(
            [
                "apt-cache",
                "-o",
                "Acquire::Languages=en",
                "show",
                "--no-all-versions",
                *names[begin : begin + 500],
            ],
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        for entry in re.findall(r"^Description-en: (.*(?:\n .*)*)", shown, re.MULTILINE):
            short, _, rest = entry.partition("\n")
            yield short, squeeze(re.sub(r"^ \.$", "", rest, flags=re.MULTILINE))


def perlfaq() -> Iterator[tuple[str, str]]:
    """Questions and answers of the perlfaq pages."""
    for path in sorted(Path("/usr/share/perl").glob("*/pod/perlfaq?.pod")):
        for section in path.read_text(encoding="utf-8").split("\n=head2 ")[1:]:
            question, _, answer = section.partition("\n")
            answer = re.sub(r"\n=\w+.*", "", answer)
            yield plain(question), squeeze(plain(answer))


def plain(pod: str) -> str:
    """Text without the codes of Perl's documentation, such as C<...>."""
    return re.sub(r"[A-Z]<+\s*([^<>]*?)\s*>+", r"\1", pod)


def man_pages() -> Iterator[tuple[str, str]]:
    """What a page is about, and its description."""
    paths = sorted(MAN_PAGES.glob("man[1235678]/*.gz"))
    for path in islice(sorted(paths, key=lambda path: order(path.name)), 3000):
        try:
            with gzip.open(path, "rt", encoding="utf-8", errors="replace") as file:
                source = file.read(200_000)
        except OSError:  # a link to a page that is not there
            continue
        sections = dict(
            re.findall(r'^\.SH "?([A-Z ]+?)"? *\n(.*?)(?=^\.SH|\Z)', source, re.DOTALL | re.MULTILINE)
        )
        name, description = (typeset(sections.get(part, "")) for part in ("NAME", "DESCRIPTION"))
        about = re.split(r" [-–—] ", name, maxsplit=1)
        if len(about) == 2:
            yield about[1][:200], description[:3000]


def typeset(roff: str) -> str:
    """Text without the commands of roff."""
    text = re.sub(r"^[.'].*?(?: |$)", "", roff, flags=re.MULTILINE)  # keeps the arguments of commands
    for code, character in ((r"\-", "-"), (r"\(em", "-"), (r"\(aq", "'"), (r"\&", ""), (r"\e", "\\")):
        text = text.replace(code, character)
    text = re.sub(r"\\(?:f(?:\[\w*\]|\(..|.)|s[+-]?\d|\*(?:\(..|.)|\(..|.)", "", text)
    return squeeze(text)


def python_docs() -> Iterator[tuple[str, str]]:
    """Docstrings of the standard library, without the name of what they document."""
    for document in read_standard_library():
        begin, end = summary_span(document.text)
        yield squeeze(document.text[begin:end]), squeeze(document.text[end:])


def squeeze(text: str) -> str:
    """Text in one line."""
    return re.sub(r"\s+", " ", text).strip()


if __name__ == "__main__":
    main()
