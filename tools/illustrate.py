"""The pictures of docs/how-it-works.md, drawn from what the bundled model says about six sentences.

python -m tools.illustrate
"""

from __future__ import annotations

import tempfile
from html import escape
from pathlib import Path

import numpy as np

import coil
from coil.explanations.explanation import Explanation
from tools.quality_tables import ROOT

QUERY = "steep banks of a river"
TEXTS = {
    "kingfisher": "The bank of the river was steep, and kingfishers nested in it.",
    "rates": "The bank raised its interest rates in spring.",
    "flood": "After the rain, the river rose over its banks.",
    "loan": "A bank will ask for a steep deposit before it grants the loan.",
    "poem": "A river of cheap money ran through the city.",
    "otter": "Otters live in holes beside a stream and sleep by day.",
}
WORDS = ("steep", "banks", "river")
COLOURS = {"steep": "#1f77b4", "banks": "#b8610b", "river": "#1b7f5f", "sentence": "#777777"}
LISTS, SUMS = ROOT / "docs" / "lists.svg", ROOT / "docs" / "sums.svg"


def explanations() -> dict[str, Explanation]:
    """Why each text has its score, best first."""
    with tempfile.TemporaryDirectory() as folder, coil.create(Path(folder) / "six.coil") as index:
        index.add([{"id": name, "text": text} for name, text in TEXTS.items()])
        return {hit.doc_id: index.explain(QUERY, hit.doc_id) for hit in index.search(QUERY, k=len(TEXTS))}


def vectors(text: str, query: bool = False) -> dict[str, np.ndarray]:
    """The vector of each of the words, by the word of the query."""
    encoder = coil.OnnxEncoder()
    encoded = next(iter(encoder.encode_queries([text]) if query else encoder.encode_documents([text])))
    found = {}
    for (start, end), vector in zip(encoded.spans, encoded.vectors, strict=True):
        for word in WORDS:
            if text[start:end].lower().rstrip("s") == word.rstrip("s"):
                found[word] = vector
    return found


def strip(vector: np.ndarray, x: float, y: float, largest: float) -> str:
    """A vector as a row of cells: blue below 0, red above."""
    cells = []
    for number, value in enumerate(vector):
        share = min(1.0, abs(float(value)) / largest)
        colour = "#b2182b" if value > 0 else "#2166ac"
        cells.append(
            f'<rect x="{x + 6 * number:g}" y="{y:g}" width="6" height="12" fill="{colour}" '
            f'fill-opacity="{share:.2f}"/>'
        )
    return "".join(cells) + (
        f'<rect x="{x:g}" y="{y:g}" width="{6 * len(vector)}" height="12" fill="none" stroke="#bbbbbb"/>'
    )


def _open(width: int, height: int, title: str) -> list[str]:
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="sans-serif" font-size="13"><title>{escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]


def _words(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" {more}>{text}</text>'


def draw_lists(found: dict[str, Explanation]) -> str:
    """The lists of the three words, and how well each mention fits."""
    query = vectors(QUERY, query=True)
    documents = {name: vectors(text) for name, text in TEXTS.items()}
    largest = max(float(np.abs(v).max()) for of in (query, *documents.values()) for v in of.values())
    lists = {word: [name for name in TEXTS if word in documents[name]] for word in WORDS}
    height = 30 + sum(58 + 26 * len(names) for names in lists.values())
    parts, y = _open(820, height, "Each query word is compared with the mentions in its own list"), 24.0
    for word, names in lists.items():
        colour = COLOURS[word]
        parts.append(_words(16, y + 11, escape(word), f'font-weight="bold" fill="{colour}"'))
        parts.append(_words(86, y + 11, "in the query", 'fill="#555555"'))
        parts.append(strip(query[word], 486, y, largest))
        parts.append(_words(700, y + 11, "fit", 'fill="#555555"'))
        parts.append(f'<path d="M16 {y + 20:g}H804" stroke="{colour}"/>')
        y += 28
        for name in names:
            match = next(m for m in found[name].matches if m.query_token == word)
            before, after = match.context.before[-26:], match.context.after[:26]
            parts.append(_words(16, y + 11, escape(name), 'fill="#555555"'))
            parts.append(
                _words(
                    300,
                    y + 11,
                    f'{escape(before)}<tspan font-weight="bold" fill="{colour}">{escape(match.context.token)}'
                    f"</tspan>{escape(after)}",
                    'text-anchor="middle" xml:space="preserve"',
                )
            )
            parts.append(strip(documents[name][word], 486, y, largest))
            parts.append(
                f'<rect x="700" y="{y:g}" width="{60 * max(0.0, match.fit) / 1.6:.1f}" height="12" '
                f'fill="{colour}" fill-opacity="0.55"/>'
            )
            parts.append(_words(766, y + 11, f"{match.fit:.2f}"))
            y += 26
        y += 30
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_sums(found: dict[str, Explanation]) -> str:
    """What each part adds to the scores of the texts."""
    highest = max(of.score for of in found.values())
    height = 40 + 30 * len(found)
    parts = _open(820, height, "The contributions of words and of the text as a whole add up to the score")
    x = 100
    for name, colour in COLOURS.items():
        label = "the text as a whole" if name == "sentence" else name
        parts.append(f'<rect x="{x}" y="10" width="12" height="12" fill="{colour}"/>')
        parts.append(_words(x + 18, 21, label))
        x += 90
    y = 36.0
    for name, explanation in found.items():
        parts.append(_words(16, y + 15, escape(name)))
        x_now = 100.0
        adds = [(COLOURS[m.query_token], m.contribution) for m in explanation.matches]
        for colour, value in [*adds, (COLOURS["sentence"], explanation.sentence)]:
            width = max(0.0, value) / highest * 640
            parts.append(
                f'<rect x="{x_now:.1f}" y="{y:g}" width="{width:.1f}" height="20" fill="{colour}" '
                f'stroke="#ffffff"><title>{value:.2f}</title></rect>'
            )
            x_now += width
        parts.append(_words(x_now + 8, y + 15, f"{explanation.score:.2f}"))
        y += 30
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Draw both."""
    found = explanations()
    LISTS.write_text(draw_lists(found), encoding="utf-8")
    SUMS.write_text(draw_sums(found), encoding="utf-8")


if __name__ == "__main__":
    main()
