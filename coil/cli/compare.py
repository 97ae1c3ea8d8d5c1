"""`coil compare`: compares systems on one or more collections."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from coil.comparison.config import Config, read_config
from coil.comparison.plan import DEFAULT_SYSTEMS, Plan, parse_system, trained
from coil.errors import InputError, how_many, require
from coil.metrics.evaluation import DEFAULT_MEASURES, split_measures
from coil.progress import ProgressBar, tell_time
from coil.systems.registry import SYSTEMS, options_of, system_class
from coil.texts.collections import JudgedCollection, find_collection


def _pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for value in values:
        name, equals, given = value.partition("=")
        if not equals or not name.isidentifier():
            raise click.BadParameter(f"{value!r} is not NAME=VALUE", ctx=ctx, param=parameter)
        found[name] = given
    return found


@click.command("compare")
@click.argument("collections", metavar="[COLLECTION]...", nargs=-1)
@click.option(
    "--system", "systems", multiple=True, metavar="NAME[=MODEL][:OPTION=VALUE]...",
    help="A system to compare; may be repeated. Default: all that need no training, with the bundled model.",
)  # fmt: skip
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    help="TOML or JSON file that defines a comparison; see above.",
)
@click.option(
    "--set", "values", multiple=True, metavar="NAME=VALUE", callback=_pairs,
    help="Value of {NAME} in the config; may be repeated.",
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Folder for tables, runs, plots and the report.")
@click.option(
    "--work", type=click.Path(path_type=Path),
    help="Cache folder for trained models, indexes and answers. Default: OUT/work.",
)  # fmt: skip
@click.option(
    "--against", metavar="LABEL", help="Baseline for the significance tests. Default: the first system."
)
@click.option(
    "--measures",
    help=f"Measures as in ir_measures; the first is plotted. Default: {' '.join(DEFAULT_MEASURES)}.",
)
@click.option(
    "-k", type=click.IntRange(min=1), help="Number of documents to retrieve per query. Default: 1000."
)
@click.option("--split", help="Split: a file in qrels/ (BEIR), or dev or trec-dl-2019 (MS MARCO).")
@click.option("--queries", help="Queries to use instead of the collection's own.")
@click.option("--qrels", help="Judgements to use instead of the collection's own.")
@click.option("--list", "show_list", is_flag=True, help="List the available systems and options, and exit.")
@click.option("--dry-run", is_flag=True, help="Show the systems and training runs, and exit.")
@click.option("--train-only", is_flag=True, help="Train the models into --work, and exit.")
def command(
    collections: tuple[str, ...],
    systems: tuple[str, ...],
    config: Path | None,
    values: dict[str, str],
    out: Path | None,
    work: Path | None,
    against: str | None,
    measures: str | None,
    k: int | None,
    split: str | None,
    queries: str | None,
    qrels: str | None,
    show_list: bool,
    dry_run: bool,
    train_only: bool,
) -> None:
    """Compare retrieval systems on a test collection: measures, significance, latency and index size.

    COLLECTION is a BEIR folder, a folder with MS MARCO's own files, or irds:NAME. With several collections,
    each gets its own folder in OUT, and OUT has a summary.

    The report is OUT/report.html; the tables are in OUT/table.md and OUT/results.json, and the TREC runs in
    OUT/runs. Models, indexes and runs are cached in --work, keyed by a digest of their inputs. To continue
    after an interruption, run the same command again.

    `--list` shows all systems and their options. `candidates=LABEL` makes a system rerank the first
    `depth=100` documents of another one; `name=LABEL` sets its label. A config file can also train models;
    docs/comparing.md has an example.

    \b
      coil compare scifact/ --out scifact-compared
      coil compare scifact/ --system bm25s --system coil --system coil:by=tokens --out compared
      coil compare scifact/ --system bm25s:k1=1.2:b=0.75 --system coil=my-model/ --out compared
      coil compare scifact/ --system bm25s --system coil:candidates=bm25s:depth=1000 --out compared
      coil compare irds:msmarco-passage/dev/small --measures "RR@10 R@1000" --out marco
      coil compare --config experiments/untrained.toml --set data=collections --out small
    """
    if show_list:
        _list_systems()
        return
    given = _config(config, values, systems)
    plan = _plan(given, against, measures, k)
    chosen = _collections(given, collections, split, queries, qrels)
    if dry_run:
        _show(plan, chosen)
        return
    if out is None and (work is None or not train_only):
        raise click.UsageError("Missing option '--out'.")
    if not chosen and not train_only:
        raise click.UsageError("Pass a COLLECTION, or a --config that contains one.")
    place = work if work is not None else out / "work" if out is not None else Path("work")
    if not train_only:
        require("matplotlib", "compare")  # before hours of work
    from coil.comparison.running import Laboratory
    from coil.comparison.work_folder import WorkFolder

    folder, bars = WorkFolder(place), _Bars()
    with folder.locked():
        laboratory = Laboratory(plan, folder, bars)
        try:
            laboratory.train()
            if train_only:
                return
            assert out is not None
            _compare(laboratory, plan, chosen, out, given.title)
        except KeyboardInterrupt as error:
            error.args = (f"finished work is kept in {place}; to continue, run the same command",)
            raise


def _config(path: Path | None, values: dict[str, str], systems: tuple[str, ...]) -> Config:
    """The config file with the systems of the command line, or what the command line says alone."""
    named = tuple(parse_system(text) for text in systems)
    if path is None:
        if values:
            raise click.UsageError("--set requires --config.")
        return Config("Comparison", (), named or tuple(parse_system(text) for text in DEFAULT_SYSTEMS), {})
    found = read_config(path, values)
    return replace(found, systems=(*found.systems, *named))


def _plan(given: Config, against: str | None, measures: str | None, k: int | None) -> Plan:
    named = tuple(split_measures(measures)) if measures is not None else given.measures
    return replace(given, measures=named, against=against or given.against, k=k or given.k).plan()


def _collections(
    given: Config, named: tuple[str, ...], split: str | None, queries: str | None, qrels: str | None
) -> list[JudgedCollection]:
    if named:
        if len(named) > 1 and (split or queries or qrels):
            raise click.UsageError("--split, --queries and --qrels are for a single COLLECTION.")
        found = [find_collection(source, split, queries, qrels) for source in named]
    elif split or queries or qrels:
        raise click.UsageError("--split, --queries and --qrels require a COLLECTION.")
    else:
        found = given.find_collections()
    names = [collection.name for collection in found]
    if len(set(names)) < len(names):
        raise InputError(f"two collections have the same name: {', '.join(names)}", "compare them separately")
    return found


def _compare(laboratory: Any, plan: Plan, chosen: list[JudgedCollection], out: Path, title: str) -> None:
    from coil.comparison.outcome import judge
    from coil.comparison.tables import as_markdown, summary_markdown
    from coil.comparison.writing import REPORT, file_names, write_outcome, write_summary

    outcomes = []
    names = file_names([collection.name for collection in chosen])
    for name, collection in zip(names, chosen, strict=True):
        ready = laboratory.read(collection)
        for note in ready.notes:
            click.echo(f"coil: {ready.name}: {note}", err=True)
        outcome = judge(ready, laboratory.run(ready), plan)
        write_outcome(outcome, out if len(chosen) == 1 else out / name)
        outcomes.append(outcome)
    if len(outcomes) > 1:
        write_summary(outcomes, out, title)
        click.echo(summary_markdown(outcomes, title), nl=False)
    else:
        click.echo(as_markdown(outcomes[0]), nl=False)
    click.echo(f"coil: wrote {out / REPORT}", err=True)


def _list_systems() -> None:
    for kind in SYSTEMS:
        cls = system_class(kind)
        click.echo(f"{click.style(kind, bold=True)}  {(cls.__doc__ or '').strip().splitlines()[0]}")
        for name, field in options_of(kind).items():
            click.echo(f"    {name}={field.default}  {field.metadata.get('help', '')}")


def _show(plan: Plan, chosen: list[JudgedCollection]) -> None:
    """Print the collections, the systems, and all training runs with their steps."""
    for collection in chosen:
        click.echo(f"collection  {collection.name}")
    for entry in plan.shown:
        options = " ".join(f"{key}={value}" for key, value in entry.option_texts.items())
        works = f" on {' and '.join(entry.inputs)}" if entry.inputs else ""
        click.echo(f"system      {entry.label}: {entry.kind}{works} {options}".rstrip())
    seen: set[str] = set()
    for entry, training in trained(plan):
        system = entry.make()
        shape = system.training_inputs() if hasattr(system, "training_inputs") else entry.option_texts
        recipe = training.recipe
        length = how_many(recipe.steps, "step") if recipe.steps else f"{recipe.epochs:g} epochs"
        batch = f"{recipe.queries} queries × {1 + recipe.hard_negatives} passages"
        options = " ".join(f"{key}={value}" for key, value in shape.items())
        line = f"training    {entry.kind} {options}: {length} of {batch} from {training.base}"
        if line not in seen:
            click.echo(line)
        seen.add(line)


class _Bars:
    """Progress bars on a terminal; otherwise lines, also at the start and at the end of a stage."""

    def say(self, text: str) -> None:
        """One line."""
        click.echo(text, err=True)

    @contextmanager
    def stage(self, what: str, total: int | None, unit: str) -> Iterator[Callable[[int], object]]:
        """Show the progress of a stage."""
        began = time.monotonic()
        with ProgressBar(what, unit, total) as bar:
            if bar.is_plain:
                click.echo(f"{what} ...", err=True)
            yield bar.update
        if bar.is_plain and time.monotonic() - began > 2:
            click.echo(f"{what}: {tell_time(time.monotonic() - began)}", err=True)
