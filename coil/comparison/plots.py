"""Plots of an outcome with matplotlib: effectiveness against latency and size, and differences by query."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coil.comparison.outcome import Outcome, SystemOutcome
from coil.errors import require

MARKERS = "osD^vP*Xphd<>8H"
COLUMNS = 3  # of small plots in a row
_SHIFTS = ((8, 0), (-8, 0), (0, 10), (0, -10), (8, 9), (8, -9), (-8, 9), (-8, -9), (0, 20), (0, -20))


@dataclass(frozen=True)
class Theme:
    """Colours of text, guide lines, gains, losses and systems."""

    ink: str
    guide: str
    gain: str
    loss: str
    series: tuple[str, ...]


LIGHT = Theme(
    "#1f2328",
    "#d0d7de",
    "#0969da",
    "#bc4c00",
    ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#9a6700", "#bf3989", "#0e7490", "#57606a"),
)
DARK = Theme(
    "#e6edf3",
    "#3d444d",
    "#58a6ff",
    "#f0883e",
    ("#58a6ff", "#f0883e", "#3fb950", "#bc8cff", "#d29922", "#f778ba", "#39c5cf", "#9198a1"),
)


def plots_of(outcome: Outcome) -> dict[str, Callable[[Theme], Any]]:
    """Name → a function that draws the plot; with a single system, there are no differences."""
    measure = outcome.measures[0]
    found: dict[str, Callable[[Theme], Any]] = {
        "latency": lambda theme: _scatter(
            outcome, theme, lambda s: s.latency.median, "median latency of a query, ms (log scale)"
        ),
        "size": lambda theme: _scatter(
            outcome, theme, lambda s: s.run.index_bytes / 1e6, "index, MB (log scale)"
        ),
    }
    if len(outcome.systems) > 1:
        found["queries"] = lambda theme: _by_query(outcome, theme, measure)
    return found


def render(draw: Callable[[Theme], Any], theme: Theme, kind: str) -> bytes:
    """The bytes of a plot as "svg" or "png"; the same figures give the same bytes."""
    pyplot = require("matplotlib.pyplot", "compare")
    settings = {
        "svg.hashsalt": "coil",
        "font.family": "DejaVu Sans",
        "font.size": 9.5,
        "text.color": theme.ink,
        "axes.labelcolor": theme.ink,
        "axes.edgecolor": theme.guide,
        "xtick.color": theme.ink,
        "ytick.color": theme.ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "grid.color": theme.guide,
        "figure.dpi": 110,
    }
    with pyplot.rc_context(settings):
        figure = draw(theme)
        buffer = io.BytesIO()
        transparent = kind == "svg"
        metadata = {"Date": None} if kind == "svg" else {"Software": None}
        figure.savefig(
            buffer, format=kind, transparent=transparent, bbox_inches="tight", metadata=metadata, dpi=160
        )
        pyplot.close(figure)
    return buffer.getvalue()


def _figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    matplotlib = require("matplotlib", "compare")
    matplotlib.use("Agg")
    pyplot = require("matplotlib.pyplot", "compare")
    figure, axes = pyplot.subplots(rows, columns, figsize=(width, height), squeeze=False, **options)
    return figure, axes


def _scatter(outcome: Outcome, theme: Theme, value: Callable[[SystemOutcome], float], what: str) -> Any:
    """One point per system: up is better, left is cheaper."""
    measure = outcome.measures[0]
    figure, [[axes]] = _figure(5.2, 3.8)
    points = [(max(value(s), 1e-3), s.evaluation.means[measure], s.label) for s in outcome.systems]
    axes.set_xscale("log")
    axes.margins(0.16, 0.12)
    axes.grid(True, linewidth=0.6)
    axes.set_axisbelow(True)
    for number, (x, y, _) in enumerate(points):
        color = theme.series[number % len(theme.series)]
        axes.plot(x, y, MARKERS[number % len(MARKERS)], color=color, markersize=8, linestyle="none")
    axes.set_xlabel(what)
    axes.set_ylabel(measure)
    axes.set_title(outcome.collection, loc="left", fontsize=11)
    _plain_ticks(axes)
    figure.canvas.draw()
    _write_labels(figure, axes, points, theme)
    return figure


def _plain_ticks(axes: Any) -> None:
    """1, 2, 5, 10 … instead of powers, on an axis that may cover less than a decade."""
    ticker = require("matplotlib.ticker", "compare")
    axes.xaxis.set_major_locator(ticker.LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(ticker.FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _write_labels(figure: Any, axes: Any, points: Sequence[tuple[float, float, str]], theme: Theme) -> None:
    """Write each label next to its point, where it overlaps as few others as possible."""
    renderer = figure.canvas.get_renderer()
    taken = [axes.transData.transform((x, y)) for x, y, _ in points]
    boxes: list[Any] = []
    for number, (x, y, label) in enumerate(points):
        best, fewest = None, None
        for dx, dy in _SHIFTS:
            side = "left" if dx > 0 else "right" if dx < 0 else "center"
            text = axes.annotate(
                label,
                (x, y),
                xytext=(dx, dy),
                textcoords="offset points",
                ha=side,
                va="center",
                fontsize=9,
                color=theme.series[number % len(theme.series)],
            )
            box = text.get_window_extent(renderer).expanded(1.02, 1.1)
            frame = figure.bbox
            hidden = sum(box.overlaps(other) for other in boxes)
            hidden += sum(box.contains(*point) for place, point in enumerate(taken) if place != number)
            hidden += 2 * (box.x0 < frame.x0 or box.x1 > frame.x1 + 60)
            if fewest is None or hidden < fewest:
                if best is not None:
                    best[0].remove()
                best, fewest = (text, box), hidden
            else:
                text.remove()
            if not hidden:
                break
        assert best is not None
        boxes.append(best[1])


def _by_query(outcome: Outcome, theme: Theme, measure: str) -> Any:
    """For each system, the differences of all queries in descending order, with gains on the left."""
    base = outcome.system(outcome.against).evaluation.values[measure]
    others = [system for system in outcome.systems if system.differences]
    each_of = {
        system.label: np.sort([system.evaluation.values[measure][query] - base[query] for query in base])[
            ::-1
        ]
        for system in others
    }
    limit = 1.05 * max(float(np.abs(each).max()) for each in each_of.values()) or 1.0
    columns = min(COLUMNS, len(others))
    rows = -(-len(others) // columns)
    figure, grid = _figure(
        2.6 * columns + 0.6, 1.9 * rows + 0.5, rows, columns, sharey=True, layout="constrained"
    )
    for place, axes in enumerate(grid.flat):
        if place >= len(others):
            axes.axis("off")
            continue
        system = others[place]
        found = system.differences[measure]
        each = each_of[system.label]
        axes.stairs(np.maximum(each, 0), fill=True, color=theme.gain)
        axes.stairs(np.minimum(each, 0), fill=True, color=theme.loss)
        axes.axhline(0, color=theme.ink, linewidth=0.6)
        axes.set_title(_shortened(system.label), loc="left", fontsize=8.5)
        axes.set_xticks([])
        axes.set_ylim(-limit, limit)
        axes.text(
            0.98, 0.95, f"+{found.wins}  ={found.ties}  −{found.losses}", transform=axes.transAxes,
            ha="right", va="top", fontsize=8, color=theme.ink,
        )  # fmt: skip
    figure.supylabel(f"Δ {measure} against {outcome.against}", fontsize=9)
    return figure


def _shortened(label: str, most: int = 34) -> str:
    return label if len(label) <= most else label[: most - 1] + "…"
