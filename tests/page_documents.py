"""Documents for the page: words with several meanings, a long text, odd characters, hostile ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parent / "data" / "senses.jsonl"
SENSES: list[dict[str, Any]] = [json.loads(line) for line in _FILE.read_text(encoding="utf-8").splitlines()]

HOSTILE_ID = "<img src=x onerror=window.attacked=1>"
HOSTILE_TEXT = (
    "A hostile note about parrots: <script>window.attacked = 1</script> and "
    '<img src="x" onerror="window.attacked = 1"> &lt;b&gt; and '
    '<a href="javascript:window.attacked=1">a parrot</a>.'
)
# Characters outside the basic plane, which JavaScript counts twice and Python once.
ASTRAL_TEXT = "🦜🦜🦜 𝔓𝔞𝔯𝔯𝔬𝔱𝔰 aside, the lighthouse keeper 🗼 rows out at dusk and the lighthouse stays dark."

_FILLER = (
    "The report lists every mooring along the canal, with the depth that was measured there and the name of "
    "whoever paid for it. Nobody had asked for so much detail, and nobody complained. "
)
LONG_TEXT = (
    _FILLER * 14
    + "At the ninth mooring a locksmith had left his telescope on the jetty; the inspector looked at Saturn. "
    + _FILLER * 4
)

DOCUMENTS: list[dict[str, Any]] = [
    *SENSES,
    {"id": "long", "title": "Moorings of the canal", "text": LONG_TEXT, "topic": "report", "year": 2024},
    {"id": "astral", "text": ASTRAL_TEXT, "topic": "odd", "year": 2020},
    {"id": HOSTILE_ID, "text": HOSTILE_TEXT, "topic": '"><script>window.attacked=1</script>', "year": 2021},
]

# The tower is outside the basic plane.
FRONT = "---\ntitle: Röst 🗼 policy\ntags: [lighthouse, kelp]\n---\n\n"
MARKDOWN: list[dict[str, Any]] = [
    {"id": "dusk.md", "text": f"{FRONT}# Dusk\n\nThe keeper rows out.\n", "tags": ["lighthouse", "kelp"]},
    {"id": "moorings.md.gz", "text": FRONT + LONG_TEXT, "tags": ["canal", "kelp"]},
    {"id": "tower.md", "text": "A keeper counts the steps.", "tags": ["lighthouse", "kelp"]},
    {"id": "only.md", "text": FRONT},
    {"id": "notes.txt", "text": f"{FRONT}It is text here: the keeper sleeps."},
]
