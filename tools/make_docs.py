"""Regenerate what the docs take from elsewhere: help texts, the list of the Python API, tables.

    python -m tools.make_docs [--check]

In a Markdown file, everything between `<!-- begin NAME -->` and `<!-- end NAME -->` is replaced.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

from click.testing import CliRunner

from coil.cli.main import VERBS, cli
from tools import api
from tools.cluster_tables import cluster, scale
from tools.comparison_tables import (
    case_study,
    claims,
    claims_zero_shot,
    compare_cpu,
    compare_cpu_in_domain,
    compare_cpu_short,
    compare_untrained,
    dimensions,
    reranking,
)
from tools.plot import plot
from tools.quality_tables import (
    ROOT,
    collections,
    in_domain,
    own_pairs,
    recall,
    recipes,
    result,
    senses,
    words,
)

FILES = (
    "README.md",
    "docs/api.md",
    "docs/commands.md",
    "docs/reliability.md",
    "docs/results.md",
    "docs/scale.md",
    "docs/search.md",
    "docs/service.md",
    "docs/training.md",
    "coil/models/default/README.md",
)


def commands() -> str:
    """The help text of every verb."""
    runner = CliRunner()
    parts = []
    for verb in sorted(VERBS):
        shown = runner.invoke(cli, [verb, "--help"], prog_name="coil", terminal_width=100)
        text = "\n".join(line.rstrip() for line in shown.output.strip().splitlines())
        parts.append(f"## coil {verb}\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


def encoding() -> str:
    """Speed of the encoders, side by side."""
    figures = result("bench/results/encoding.json")
    lines = [
        "| threads | int8 relative to ONNX fp32 | int8 relative to PyTorch | "
        "sorted by length relative to input order |",
        "|---|---|---|---|",
    ]
    for query, documents in zip(figures["query_latency"], figures["document_throughput"], strict=True):
        gain = documents["bucketed_over"]["input_order_same_token_budget"]
        lines.append(
            f"| {query['threads']} | {query['int8_over_fp32']:.2f} × the time | "
            f"{query['int8_over_pytorch']:.2f} × the time | {gain:.2f} × the documents |"
        )
    start = figures["cold_start"]["start_to_first_query_s"]
    return "\n".join(lines) + f"\n\nA new process has encoded its first query after {start:.2f} s."


def indexing() -> str:
    """What building an index costs."""
    found = result("bench/results/indexing.json")
    more = found["peak_memory_over_encoder_mb"]
    return (
        f"{found['data']}: {found['documents_a_second']:.0f} documents per second on "
        f"{found['machine']['cores']} cores.\nBuilding takes {found['time_over_encoder']:.2f} × the time of "
        f"encoding the same texts, peaks at {found['peak_memory_mb']:.0f} MB of memory\n({more:.0f} MB more "
        f"than encoding alone), and stores {found['bytes_a_mention']:.0f} bytes per mention in int8."
    )


def load() -> str:
    """The server under load, compared with the library in the same run."""
    found = result("bench/results/load.json")
    lines = [
        "| clients | queries per second | relative to library | p50 | p95 | p99 | errors | wrong answers |",
        "|---" * 8 + "|",
    ]
    for clients, row in found["clients"].items():
        lines.append(
            f"| {clients} | {row['queries_a_second']:.0f} | {row['over_library']:.2f} × | "
            f"{row['p50_ms']:.0f} ms | {row['p95_ms']:.0f} ms | {row['p99_ms']:.0f} ms | "
            f"{row['errors']} | {row['wrong_answers']} |"
        )
    text = (
        f"\n\n{found['documents']:,} documents, {found['threads']} threads, {found['seconds']:.0f} s each, "
        f"with a concurrent writer: {found['writes_acknowledged']:,} writes acknowledged, "
        f"{found['writes_lost']} lost."
    )
    if "steady" in found:
        steady = found["steady"]
        text += (
            f" Memory with 16 clients: {steady['memory_mb_of_second_tenth']:.0f} MB near the beginning, "
            f"{steady['memory_mb_of_last_tenth']:.0f} MB after {steady['seconds'] / 60:.0f} minutes."
        )
    return "\n".join(lines) + text


def search() -> str:
    """The figures of the search core, each with its target."""
    found = result("bench/results/search.json")
    exhaustive = {(row["what"].split(",")[0], row["threads"]): row for row in found["exhaustive"][:-1]}
    numpy_ms = found["exhaustive"][-1]["search_ms"]
    rows: list[tuple[str, str, str]] = []
    for system in ("COIL-tok", "COIL-full"):
        one, two = exhaustive[system, 1], exhaustive[system, 2]
        what = f"exhaustive int8, 1 M documents, {system}, one thread: share of the roofline"
        rows.append((what, "70 %", f"{one['share_of_roofline']:.0%}"))
        rows.append(("two threads compared with one", "", f"{one['search_ms'] / two['search_ms']:.2f} ×"))
    tok = exhaustive["COIL-tok", 1]
    rows += [
        ("COIL-tok compared with the paper's NumPy fp32", "10 ×", f"{numpy_ms / tok['search_ms']:.1f} ×"),
        ("opening an index of 1 M documents", "100 ms", f"{found['opening_ms']:.0f} ms"),
        *(
            (
                f"resident memory beyond the lists read, searching a mapped index, {row['mapped']}",
                "64 MB",
                f"{row['peak_over_touched']} MB (of the total, {row['of_it_not_mapped_from_files']} MB are "
                f"not mapped from files and {row['of_it_in_2_mib_pages']} MB are in pages of 2 MiB)",
            )
            for row in found["memory_mb"]
        ),
        ("batch of 64 queries compared with single queries", "", f"{found['batch']['gain']:.2f} ×"),
    ]
    lines = ["| quantity | target | measured |", "|---|---|---|"]
    return "\n".join(lines + [f"| {what} | {wanted} | {value} |" for what, wanted, value in rows])


def large() -> str:
    """A larger collection of real words, extrapolated to MS MARCO's size."""
    found = result("bench/results/pruning.json")["large"]
    asked = {("tokens", 2, 10): "10 ms", ("coil", 2, 10): "25 ms"}
    lines = [
        "| by | threads | k | exhaustive | share of the roofline | pruned | at 8.8 M documents | target |",
        "|---" * 8 + "|",
    ]
    for row in found:
        wanted = asked.get((row["by"], row["threads"], row["k"]), "")
        lines.append(
            f"| {row['by']} | {row['threads']} | {row['k']} | {row['exhaustive_ms']:.1f} ms | "
            f"{row['roofline_share']:.0%} | {row['pruned_ms']:.1f} ms | {row['marco_ms']:.0f} ms | {wanted} |"
        )
    return "\n".join(lines)


def earlier() -> str:
    """MS MARCO's size and a GPU, as measured for an earlier version."""
    marco, gpu = (result(f"bench/results/{name}.json") for name in ("marco", "gpu"))
    lines = [
        f"MS MARCO's size: {synthetic(marco['data'])}; opened in {marco['opening_ms']:.0f} ms.",
        "",
        "| system | threads | k | per query | roofline | cold, from disk | the paper's CPU |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['system']} | {r['threads']} | {r['k']} | {r['ms']:.0f} ms | {r['roofline_ms']:.0f} ms | "
        f"{r['cold_ms']:,} ms | {r['paper_ms']} ms |"
        for r in marco["latency"]
    ]
    lines += [
        "",
        f"On a GPU ({gpu['device']}), {synthetic(gpu['data'])}, PyTorch:",
        "",
        "| system | batch | k | per query |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {r['system']} | {r['batch']} | {r['k']} | {r['ms_a_query']:.1f} ms |" for r in gpu["latency"]
    ]
    return "\n".join(lines)


def synthetic(data: str) -> str:
    """The description of a collection of random vectors."""
    return data.replace("made-up", "synthetic")


def peers() -> str:
    """COIL compared with bm25s, faiss and fast-plaid."""
    found = result("bench/results/peers.json")
    lines = ["| quantity | target | measured |", "|---|---|---|"]
    for name in ("bm25s", "faiss", "plaid"):
        for target in found[name].get("targets", []):
            wanted = (
                f"at most {target['at_most']}" if "at_most" in target else f"at least {target['at_least']}"
            )
            lines.append(f"| {target['what']} | {wanted} | {target['measured']} |")
    return "\n".join(lines)


def authors() -> str:
    """COIL with the paper's choices compared with the authors' own retriever."""
    found = result("bench/results/authors.json")
    theirs = found["theirs_us"]
    lines = [
        f"{found['data']}: {found['documents']:,} documents, {found['queries']} queries, k = {found['k']}; "
        f"the authors' retriever takes {theirs['one by one']:.0f} µs per query, "
        f"{theirs['batches of 512']:.0f} µs in batches of 512.",
        "",
        "| COIL | per query, pruned | exhaustive | in a batch | speedup | speedup in batches | "
        "queries with the same hits in the same order | largest score difference |",
        "|---" * 8 + "|",
    ]
    for row in found["ours"]:
        lines.append(
            f"| {row['precision']} | {row['pruned_us']:.0f} µs | {row['exhaustive_us']:.0f} µs | "
            f"{row['batch_us']:.0f} µs | {row['faster']} × | {row['faster_in_batches']} × | "
            f"{row['same_hits_in_the_same_order']} of {found['queries']} | {row['largest_difference']:.1e} |"
        )
    return "\n".join(lines)


def growth() -> str:
    """The plot of how cost grows, as SVG."""
    rows = result("bench/results/search.json")["growth"]
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["tokens"] == 6:
            lines.setdefault(row["what"].split(",")[0], []).append((row["documents"], row["ms"]))
    return plot("Time of an exhaustive query", "documents", "ms per query, one thread", lines)


def lengths() -> str:
    """The same over the length of the query."""
    rows = [row for row in result("bench/results/search.json")["growth"] if row["what"] == "COIL-tok"]
    points = {"COIL-tok, 300 k": [(float(row["tokens"]), row["ms"]) for row in rows]}
    return plot("Time of an exhaustive query", "query tokens", "ms per query, one thread", points)


def pruning() -> str:
    """Pruned against exhaustive search for each system, and BM25 against bm25s, over real words."""
    found = result("bench/results/pruning.json")
    asked = {("coil", 10): 4, ("tokens", 10): 6, ("bm25", 10): 6}
    asked |= {("coil", 1000): 1.5, ("tokens", 1000): 2, ("bm25", 1000): 2}
    lines = [
        "| by | k | exhaustive | pruned | median speedup | target | worst query |",
        "|---" * 7 + "|",
    ]
    for row in found["pruned"]:
        wanted = asked.get((row["by"], row["k"]))
        lines.append(
            f"| {row['by']} | {row['k']} | {row['exhaustive_us'] / 1000:.2f} ms | "
            f"{row['pruned_us'] / 1000:.2f} ms | {row['ratio_median']:.2f} × | "
            f"{f'{wanted} ×' if wanted else ''} | {row['ratio_least']:.2f} |"
        )
    lines += [
        "",
        "| k | bm25s with numba | `bm25` | relative to bm25s | `coil` | relative to bm25s | target |",
        "|---" * 7 + "|",
    ]
    for row, most in zip(found["bm25s"], ("at most 1.5", "at most 2"), strict=True):
        cells = " | ".join(
            f"{row[f'{by}_us'] / 1000:.2f} ms | {row[f'{by}_to_bm25s']:.2f}" for by in ("bm25", "coil")
        )
        lines.append(f"| {row['k']} | {row['bm25s_us'] / 1000:.2f} ms | {cells} | {most} |")
    return "\n".join(lines)


def soak() -> str:
    """What `make soak` did, and the outcome."""
    found = result("bench/results/soak.json")
    lines = ["| part | what was done | minutes | outcome |", "|---|---|---|---|"]
    for name, part in found["parts"].items():
        did = "; ".join(
            f"{what}: " + ", ".join(f"{count:,} {label.replace('_', ' ')}" for label, count in counts.items())
            for what, counts in part["did"].items()
        )
        outcome = "passed" if part["passed"] else "**failed**"
        if not did and name.startswith("sanitize"):
            did = "the kernel tests"
        elif not did and "attacks" in name:
            did = "large headers, answers, idle clients"
        lines.append(f"| {name} | {did} | {part['seconds'] / 60:.1f} | {outcome} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "cluster": cluster,
    "scale": scale,
    "commands": commands,
    "api": api.summary,
    "collections": collections,
    "in_domain": in_domain,
    "recall": recall,
    "encoding": encoding,
    "recipes": recipes,
    "words": words,
    "senses": senses,
    "own_pairs": own_pairs,
    "indexing": indexing,
    "load": load,
    "search": search,
    "large": large,
    "earlier": earlier,
    "pruning": pruning,
    "peers": peers,
    "authors": authors,
    "soak": soak,
    "compare_untrained": compare_untrained,
    "compare_cpu": compare_cpu,
    "compare_cpu_in_domain": compare_cpu_in_domain,
    "compare_cpu_short": compare_cpu_short,
    "claims": claims,
    "dimensions": dimensions,
    "claims_zero_shot": claims_zero_shot,
    "case_study": case_study,
    "reranking": reranking,
}
PLOTS: dict[str, Callable[[], str]] = {"docs/growth.svg": growth, "docs/lengths.svg": lengths}


def renewed(text: str) -> str:
    """A Markdown text with its generated parts regenerated."""

    def replace(match: re.Match[str]) -> str:
        name = match.group(1)
        return f"<!-- begin {name} -->\n{PARTS[name]()}\n<!-- end {name} -->"

    return re.sub(r"<!-- begin (\w+) -->\n.*?<!-- end \1 -->", replace, text, flags=re.S)


def main() -> None:
    """Write, or with --check only say whether something is out of date."""
    stale = []
    for name in FILES:
        path = ROOT / name
        before = path.read_text(encoding="utf-8")
        after = renewed(before)
        if after != before:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(after, encoding="utf-8")
    for name, made in PLOTS.items():
        path, after = ROOT / name, made()
        if not path.is_file() or path.read_text(encoding="utf-8") != after:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(after, encoding="utf-8")
    print("\n".join(f"renewed {name}" for name in stale) or "everything is up to date")
    if stale and "--check" in sys.argv:
        sys.exit(1)


if __name__ == "__main__":
    main()
