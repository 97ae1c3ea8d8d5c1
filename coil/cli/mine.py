"""`coil mine`: finds hard negatives for training pairs."""

from __future__ import annotations

from pathlib import Path

import click

from coil.errors import OptionMismatch, how_many, require
from coil.texts.writing import check_output
from coil.vectors.encoder import Encoder


@click.command("mine")
@click.option(
    "--pairs", "pairs", multiple=True, required=True, type=click.Path(path_type=Path),
    help='Pairs file, lines {"query": ..., "positive": ...}, optionally .gz, .xz or .zst; may be repeated.',
)  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Negatives file to write.")
@click.option(
    "--depth",
    type=click.IntRange(min=1),
    default=1000,
    show_default=True,
    help="Sample from the N best passages.",
)
@click.option(
    "--number",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Number of negatives per query.",
)
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Skip the N best passages as likely positives.",
)
@click.option(
    "--per-source/--all-sources", default=True, show_default=True,
    help="Mine negatives from the query's own pairs file, or from all of them.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), default=13, show_default=True, help="Random seed for sampling."
)
@click.option(
    "--run", type=click.Path(path_type=Path), help="Take negatives from this TREC run instead of BM25."
)
@click.option("--corpus", help="With --run: the collection that contains the run's documents.")
@click.option("--model", help="Take negatives from this trained COIL model: the second round.")
@click.option(
    "--device", default=None, help="With --model: encode with PyTorch on this device, such as cuda."
)
@click.option(
    "--collection", type=click.Path(path_type=Path),
    help="Only export the pairs as a BEIR folder that any system can search.",
)  # fmt: skip
def command(
    pairs: tuple[Path, ...],
    out: Path | None,
    depth: int,
    number: int,
    skip: int,
    per_source: bool,
    seed: int,
    run: Path | None,
    corpus: str | None,
    model: str | None,
    device: str | None,
    collection: Path | None,
) -> None:
    """Find passages that look relevant to a query but are not, as hard negatives for training.

    By default, BM25 ranks the passages, and negatives are sampled from its top 1000, as in the paper.

    \b
      coil mine --pairs faq.jsonl --out negatives.jsonl
      coil mine --pairs faq.jsonl --out second.jsonl --model trained/   (second round)
      coil mine --pairs faq.jsonl --collection faq/                     (to use another system, then --run)
    """
    require("torch", "train")
    from coil.training import mine

    if collection is not None:
        mine.write_collection(pairs, collection)
        click.echo(f"wrote {collection}", err=True)
        return
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    if run is not None and model is not None:
        raise OptionMismatch("--run and --model are mutually exclusive", "use only one of them")
    check_output(out, [*pairs, run, corpus])
    mining = mine.Mining(depth, number, skip, per_source, seed)
    if run is not None:
        written = mine.mine_run(pairs, out, run, mining, corpus)
    elif model is not None:
        written = mine.mine(
            pairs, out, mine.coil_ranker(_encoder(model, device)), mining, f"COIL {Path(model).name}"
        )
    else:
        written = mine.mine(pairs, out, mine.rank_with_bm25, mining, "BM25")
    click.echo(f"wrote negatives for {how_many(written, 'query')} to {out}", err=True)


def _encoder(model: str, device: str | None) -> Encoder:
    if device is not None:
        from coil.vectors.torch_encoder import TorchEncoder

        return TorchEncoder(model, device=device, autocast=device.startswith("cuda"))
    from coil.vectors.onnx_encoder import OnnxEncoder

    return OnnxEncoder(model)
