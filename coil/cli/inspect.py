"""`coil inspect`: shows the contents of an index."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from coil.cli.progress import tell_share
from coil.errors import how_many
from coil.explanations.columns import cut_end, pad, printable, width_of
from coil.indexes.fields import FieldSample, sample_fields
from coil.indexes.opening import open_index

MOST_SHOWN = 20  # fields
LONGEST_NAME, LONGEST_EXAMPLE = 30, 50  # columns


@click.command("inspect")
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(index: Path, as_json: bool) -> None:
    """Show the size, fields, model, settings and scoring of an index. The model itself is not needed.

    Lists are identified by their keys: word stems or vocabulary entries. Fields are those that --filter and
    --sort can use, with the share of documents that have them and an example; in a large index, they are
    counted in the first documents of each segment.

    \b
      coil inspect notes.coil
      coil inspect notes.coil --json
    """
    opened = open_index(index)
    facts = opened.inspect()
    with opened.held() as snapshot:
        sample = sample_fields(snapshot)
    if as_json:
        fields = {"fields": sample.fields, "fields_sampled": sample.documents}
        click.echo(
            json.dumps({**asdict(facts), **fields, "fields_left_out": sample.left_out}, default=asdict)
        )
        return
    stored = facts.rows + facts.deleted_rows
    share = facts.deleted_rows / stored if stored else 0.0
    deleted = f", and {how_many(facts.deleted_rows, 'deleted row')} ({share:.1%})" if share else ""
    longest = ", ".join(f"{printable(key)} {length:,}" for key, length in facts.longest_lists)
    config = facts.model["config"]
    rows = {
        "documents": f"{facts.documents:,} ({facts.truncated_documents:,} truncated)",
        **({"state": "unfinished; continue with `coil index --resume`"} if facts.unfinished else {}),
        "rows": f"{facts.rows:,} in {how_many(facts.segments, 'segment')}{deleted}",
        "mentions": f"{facts.mentions:,} in {how_many(facts.lists, 'list')}",
        "longest lists": longest or "none",
        **_fields(sample, facts.documents),
        "stored as": f"{facts.precision}, {facts.bytes_a_mention:.1f} bytes per mention",
        "lists": f"{facts.bytes_lists / 1e6:.1f} MB on disk",
        "texts": f"{facts.bytes_documents / 1e6:.1f} MB on disk",
        "largest error": f"token vector {facts.token_error:.3g}, sentence vector {facts.sentence_error:.3g}",
        "model": f"{facts.model['model'] or 'bundled'} ({facts.model['fingerprint']})",
        "vectors": f"n_t {config['n_t']}, n_c {config['n_c']}, long documents: {facts.long}",
        **_scoring(config["profile"], config["n_t"], config["n_c"]),
    }
    for name, value in rows.items():
        click.echo(f"{name:>14}  {value}")


def _fields(sample: FieldSample, documents: int) -> dict[str, str]:
    """The fields line by line, and what cannot be seen from them."""
    usable = [field for field in sample.fields if field.in_filters]
    others = [field.name for field in sample.fields if not field.in_filters]
    shown = usable[:MOST_SHOWN]
    width = max((width_of(printable(field.name)) for field in shown), default=0)
    lines = [
        f"{pad(cut_end(printable(field.name), LONGEST_NAME), min(width, LONGEST_NAME))}  "
        f"{tell_share(field.documents / sample.documents):>6}  "
        + cut_end(_example(field.example), LONGEST_EXAMPLE)
        for field in shown
    ]
    if more := len(usable) - len(shown) + sample.left_out:
        lines.append(f"and {more:,} more")
    if others:
        lines.append(f"not in filters, because of their names: {_listed(others)}")
    if lines and sample.documents < documents:
        lines.append(f"(of the {sample.documents:,} documents that were sampled)")
    return {"fields": ("\n" + " " * 16).join(lines) or "none"}


def _example(value: Any) -> str:
    """A value in one line, without the quotation marks of a string: numbers in CSV files are strings."""
    return printable(" ".join(value.split()) if isinstance(value, str) else json.dumps(value))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(cut_end(printable(name), LONGEST_NAME) for name in names[:5])
    return shown + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _scoring(profile: Mapping[str, Any], n_t: int, n_c: int) -> dict[str, str]:
    """A description of a scoring profile. [docs/semantics.md]"""
    of = "word stems" if profile["list_key"] == "word" else "vocabulary entries"
    but = ", excluding stop words and punctuation" if profile["unlisted"] == "stopwords" else ""
    weight = f"BM25 weight (k1 {profile['k1']:g}, b {profile['b']:g}) × " * (profile["weight"] == "bm25")
    fit = "similarity" if n_t else ""
    if n_t and profile["beta"] != 1.0:
        fit = f"{profile['beta']:g} × {fit}"
    fit = " + ".join(filter(None, [f"{profile['alpha']:g}" * (profile["alpha"] > 0.0), fit]))
    part = f"{weight}({fit})" if weight else fit
    floored = " (at least 0)" if profile["floor"] else ""
    gamma = f"{profile['gamma']:g}{'·√(words − ½)' * (profile['gamma_rule'] == 'root')} × "
    sentence = "" if not n_c or not profile["gamma"] else f"{gamma.removeprefix('1 × ')}sentence similarity"
    tokens = f"for each word {part}{floored}" if fit else ""
    return {
        "lists of": of + but,
        "score": ", plus ".join(filter(None, [tokens, sentence])),
        "token limits": f"{profile['query_length']:,} per query, {profile['document_length']:,} per text",
    }
