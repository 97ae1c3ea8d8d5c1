"""Documents for the page: words with several meanings, one long text, one with odd characters, hostile ones."""

from __future__ import annotations

from typing import Any

_SENSES = {
    "nature": {
        "river-bank": "The bank of the river was steep, and kingfishers nested in the soft earth above the water.",
        "flood": "After the flood the river left its bed; sand and branches covered both banks down to the mill.",
        "otter": "Otters dig a holt into the side of a stream and sleep there during the day.",
        "spring-water": "A spring rises under the beech trees, and its cold water feeds the brook all summer.",
        "spring-season": "In spring the meadows turn green within a week, and the first swallows return.",
        "crane-bird": "Each autumn a thousand cranes rest on the lake; a crane calls, and the whole flock rises.",
        "mountain-pass": "The pass over the mountains is closed by snow until May; mules carried salt across it.",
        "bat-animal": "A bat finds moths in the dark by listening to the echo of its own voice.",
        "bark-tree": "The bark of a birch peels off in thin white sheets that burn even when wet.",
        "current-water": "Swimmers were warned of the strong current between the island and the shore.",
    },
    "money": {
        "bank-loan": "The bank refused the loan because interest rates had risen and the house was worth less.",
        "bank-account": "She opened an account at the bank and paid in the money that her uncle had left her.",
        "bank-rates": "The bank raised its interest rates, so the river of cheap loans ran dry.",
        "interest": "Interest on savings is paid twice a year, and the rate is fixed for the first five years.",
        "bond": "The state sold a bond of fifty years, and pension funds bought nearly all of it.",
        "pitch-sale": "Her sales pitch took three minutes, and two of the investors signed the same evening.",
    },
    "state": {
        "cabinet-government": "The cabinet met until midnight; three ministers resigned over the new budget.",
        "cabinet-reshuffle": "The prime minister reshuffled her cabinet and gave the treasury to a former judge.",
        "pass-law": "Parliament passed the law on water rights, although the upper house had warned against it.",
        "party": "The party lost its majority, so the government had to look for a partner.",
        "current-affairs": "The current minister of transport wants night trains back on all long lines.",
    },
    "craft": {
        "cabinet-kitchen": "He built the kitchen cabinet of oak, with brass hinges and a shelf for glasses.",
        "crane-building": "A crane lifted the steel beams onto the roof while the street was closed to cars.",
        "spring-steel": "A broken spring in the lock kept the door from closing; the smith wound a new one of steel.",
        "current-wire": "An electric current of two amperes heats the wire, and the current is cut when it glows.",
        "file-tool": "With a flat file he took the sharp edge off the iron until it shone.",
        "pitch-roof": "The pitch of the roof is steep so that snow slides off before it grows heavy.",
        "bat-cricket": "The bat is made of willow, and its handle of cane takes the shock of the ball.",
        "bark-dog": "The dog's bark woke the workshop before anyone saw the smoke.",
    },
}

HOSTILE_ID = "<img src=x onerror=window.attacked=1>"
HOSTILE_TEXT = (
    "A hostile note about parrots: <script>window.attacked = 1</script> and "
    '<img src="x" onerror="window.attacked = 1"> &lt;b&gt; and <a href="javascript:window.attacked=1">a parrot</a>.'
)
# Characters outside the basic plane, which JavaScript counts twice and Python once.
ASTRAL_TEXT = "🦜🦜🦜 𝔓𝔞𝔯𝔯𝔬𝔱𝔰 aside, the lighthouse keeper 🗼 rows out at dusk and the lighthouse stays dark."

_FILLER = (
    "The report lists every mooring along the canal, with the depth that was measured there and the name of whoever "
    "paid for it. Nobody had asked for so much detail, and nobody complained. "
)
LONG_TEXT = (
    _FILLER * 4
    + "At the ninth mooring a locksmith had left his telescope on the jetty, and the inspector looked at Saturn. "
    + _FILLER * 4
)

DOCUMENTS: list[dict[str, Any]] = [
    {"id": doc_id, "text": text, "topic": topic, "year": 2015 + place}
    for topic, texts in _SENSES.items()
    for place, (doc_id, text) in enumerate(texts.items())
] + [
    {"id": "long", "title": "Moorings of the canal", "text": LONG_TEXT, "topic": "report", "year": 2024},
    {"id": "astral", "text": ASTRAL_TEXT, "topic": "odd", "year": 2020},
    {"id": HOSTILE_ID, "text": HOSTILE_TEXT, "topic": '"><script>window.attacked=1</script>', "year": 2021},
]
