"""Short texts that mention a noun in different senses, from the WordNet database.

The folder contains data.noun; Debian's package wordnet-base installs it as /usr/share/wordnet. A sense has up
to four texts: its definition, two example sentences, and its synonyms with the next broader term, each with
the noun itself.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from experiments.senses import ITEMS

_MOST_SENSES = 6  # of a noun
_MOST_EXAMPLES = 2  # of a sense


@dataclass(frozen=True)
class Mention:
    """A text with one mention of a noun."""

    text: str
    sense: str  # of one noun: texts with the same sense mean the same
    field: str  # animals, artefacts, acts, …: senses of different fields are far apart


@dataclass(frozen=True)
class _Synset:
    offset: str
    field: str
    lemmas: list[str]
    broader: list[str]
    definition: str
    examples: list[str]


def read_nouns(folder: Path) -> dict[str, list[Mention]]:
    """Nouns with senses of at least two fields; those of experiments/senses.json are left out."""
    synsets = {synset.offset: synset for synset in map(_parse, _lines(folder / "data.noun"))}
    senses: dict[str, list[_Synset]] = {}
    for synset in synsets.values():
        for lemma in synset.lemmas:
            if lemma.isalpha() and lemma.islower() and len(lemma) > 2:
                senses.setdefault(lemma, []).append(synset)
    tested = {item["word"] for item in json.loads(ITEMS.read_text(encoding="utf-8"))}
    found = {}
    for noun in sorted(senses.keys() - tested):
        mentions = []
        for synset in senses[noun][:_MOST_SENSES]:
            texts = _texts(noun, synset, synsets)
            if len(texts) > 1:
                mentions += [Mention(text, synset.offset, synset.field) for text in texts]
        if len({mention.field for mention in mentions}) > 1:
            found[noun] = mentions
    return found


def _lines(path: Path) -> list[str]:
    # The licence at the top is indented.
    return [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith(" ")]


def _parse(line: str) -> _Synset:
    head, _, gloss = line.partition(" | ")
    parts = head.split()
    count = int(parts[3], 16)
    pointers = parts[4 + 2 * count + 1 :]
    definition = re.sub(r'"[^"]*"', "", gloss)
    return _Synset(
        offset=parts[0],
        field=parts[1],
        lemmas=[parts[4 + 2 * i].replace("_", " ") for i in range(count)],
        broader=[pointers[i + 1] for i in range(0, len(pointers) - 3, 4) if pointers[i] in ("@", "@i")],
        definition="; ".join(part.strip() for part in definition.split(";") if part.strip()),
        examples=re.findall(r'"([^"]+)"', gloss),
    )


def _texts(noun: str, synset: _Synset, synsets: dict[str, _Synset]) -> list[str]:
    texts = []
    if noun not in _words(synset.definition):
        texts.append(f"{noun}: {synset.definition}")
    examples = [one for one in synset.examples if _words(one).count(noun) == 1 and len(one.split()) > 2]
    texts += examples[:_MOST_EXAMPLES]
    others = [lemma for lemma in synset.lemmas if noun not in _words(lemma)][:3]
    others += [synsets[one].lemmas[0] for one in synset.broader[:1] if one in synsets]
    others = [other for other in others if noun not in _words(other)]
    if others:
        texts.append(" ".join([noun, *others]))
    return texts


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())
