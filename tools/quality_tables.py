"""The tables about quality in the docs, generated from the result files of the experiments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

BY_NAMES = ("coil", "tokens", "bm25", "dense", "hybrid")
LEFT_OUT = ("acl_title_abstract", "insuranceqa_train")  # their licences forbid some uses
ROOT = Path(__file__).resolve().parent.parent


def result(path: str) -> dict[str, Any]:
    """A committed result file."""
    value: dict[str, Any] = json.loads((ROOT / path).read_text(encoding="utf-8"))
    return value


def collections() -> str:
    """nDCG@10 of every system on every collection."""
    return quality_table("collections")


def in_domain() -> str:
    """The same for queries held out of the sources of training."""
    return quality_table("in_domain")


def quality_table(group: str) -> str:
    """nDCG@10 of every system on the collections of one group, and the mean; hybrids at their best weight."""
    found = result("experiments/results/default-model.json")[group]
    value = {
        label: [of_one["systems"][label]["means"]["nDCG@10"] for of_one in found.values()]
        for label in next(iter(found.values()))["systems"]
    }
    hybrids = [label for label in value if label.startswith("hybrid")]
    best = max(hybrids, key=lambda label: sum(value[label]))
    lines = ["| system | " + " | ".join(found) + " | mean |", "|---" * (len(found) + 2) + "|"]
    for label, values in value.items():
        if label not in hybrids or label == best:
            cells = " | ".join(f"{one:.3f}" for one in (*values, sum(values) / len(values)))
            lines.append(f"| {label} | {cells} |")
    return "\n".join(lines)


def recall() -> str:
    """R@100 and RR@10, the same systems."""
    found = result("experiments/results/default-model.json")
    names = list(found["collections"])
    lines = ["| system | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for label in found["collections"][names[0]]["systems"]:
        means = [found["collections"][n]["systems"][label]["means"] for n in names]
        cells = " | ".join(f"{m['RR@10']:.3f} / {m['R@100']:.3f} / {m['R@1000']:.3f}" for m in means)
        lines.append(f"| {label} | {cells} |")
    return "\n".join(lines)


def recipes() -> str:
    """The quality of recipes on unseen sources, and on held-out queries of their training sources."""
    tables = []
    for name, title in (
        ("unseen-sources", "trained on four sources"),
        ("starts", "four sources, other initial projections"),
        ("all-sources", "trained on eight sources"),
        ("bundled", "eight sources, one of the four runs that were averaged"),
    ):
        found = result(f"experiments/results/recipes-{name}.json")
        trained = next(iter(found["variants"].values())).get("pairs")
        if trained is None:
            trained = [source for source in found["nDCG@10"]["start"] if source not in LEFT_OUT]
        tables.append(recipe_table(found["nDCG@10"], trained, title))
    return "\n\n".join(tables)


def recipe_table(found: dict[str, dict[str, float]], own: list[str], title: str) -> str:
    """The mean nDCG@10 of each model and of its token part over unseen sources and over its own."""
    unseen = [name for name in found["start"] if name not in own]
    lines = [
        f"| {title} | {len(unseen)} unseen sources | its {len(own)} sources | token part: unseen | its own |",
        "|---|---|---|---|---|",
    ]
    for label, whole in found.items():
        if label.endswith("@tokens"):
            continue
        tokens = found.get(f"{label}@tokens")
        means = [
            f"{sum(values[name] for name in names) / len(names):.3f}" if values else ""
            for values in (whole, tokens)
            for names in (unseen, own)
        ]
        lines.append(f"| {label} | " + " | ".join(means) + " |")
    return "\n".join(lines)


def words() -> str:
    """Rare words, BM25 compared with bm25s, sizes, and the shares of real and nonsense queries."""
    found = result("experiments/results/words.json")
    lines = ["| words in only one document that rank it first | " + " | ".join(BY_NAMES) + " |"]
    lines.append("|---" * (len(BY_NAMES) + 1) + "|")
    for name, needles in found["needles"].items():
        cells = " | ".join(f"{needles['first'][by]:.1%}" for by in BY_NAMES)
        lines.append(f"| {name}, {needles['words']} words | {cells} |")
    beside = found["bm25s"]
    lines += [
        "",
        f'`by="bm25"` against bm25s (Lucene\'s form) over the same words: the largest difference '
        f"among {beside['scores']:,} scores of {beside['queries']} queries is "
        f"{beside['largest_difference']:.1e}.",
        "",
        "| collection | mentions of words | of word pieces | saved | bytes per mention (target: n_t + 3) |",
        "|---" * 5 + "|",
    ]
    for name, size in found["sizes"].items():
        lines.append(
            f"| {name} | {size['mentions']:,} | {size['piece_mentions']:,} | {size['saved']:.0%} | "
            f"{size['bytes_a_mention']:.1f} ({size['n_t'] + 3}) |"
        )
    lines += [
        "",
        "| share of the best hit | real queries: minimum, 5th percentile, median | "
        "nonsense words: median, 95th percentile, maximum | real above nonsense |",
        "|---" * 4 + "|",
    ]
    for name, shares in found["shares"].items():
        for by in BY_NAMES:
            row = shares[by]
            real, made_up = (", ".join(f"{v:.2f}" for v in row[kind]) for kind in ("real", "nonsense"))
            lines.append(f"| {name}, {by} | {real} | {made_up} | {row['told_apart']:.1%} |")
    return "\n".join(lines)


def senses() -> str:
    """How often the similarity of a word's vectors prefers the right sense."""
    found = result("experiments/results/senses.json")["senses"]
    lines = ["| words in two senses | items | right sense preferred |", "|---|---|---|"]
    for name in ("open", "held"):
        lines.append(f"| {name} | {found[name]['items']} | {found[name]['right']} |")
    return "\n".join(lines)


def own_pairs() -> str:
    """The effect of pairs of one subject on that subject and on another, and the time of each command."""
    found = result("experiments/results/own-pairs.json")
    lines = ["| nDCG@10 | bundled model | trained | difference | p |", "|---" * 5 + "|"]
    for name, part in found["collections"].items():
        values = [part["systems"][label]["nDCG@10"] for label in ("bundled", "trained")]
        difference = part["difference"]
        lines.append(
            f"| {name}, {part['queries']} queries, {part['documents']:,} documents | {values[0]:.3f} | "
            f"{values[1]:.3f} | {difference['nDCG@10']:+.3f} | {difference['p']:.2g} |"
        )
    training, machine = found["training"], found["machine"]
    took = training["seconds"]
    held = training["held_out_mrr_at_10"]
    return "\n".join(
        [
            *lines,
            "",
            f"On {machine['cores']} cores of a CPU ({machine['cpu'].split(' (')[0]}; the load was "
            f"{machine['load_before']} before the run): {took['mine']:.0f} s to mine, "
            f"{took['train'] / 60:.0f} minutes to train {training['steps']} steps, {took['export']:.0f} s to "
            f"export. On the run's own held-out queries, MRR@10 was {held['start']:.3f} before training and "
            f"{held['end']:.3f} after"
            + (", so it reported that training had not helped." if held["end"] <= held["start"] else "."),
        ]
    )
