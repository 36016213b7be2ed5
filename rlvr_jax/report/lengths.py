"""A split length curve for the terminal, as figures, and as one self-contained page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rlvr_jax.diagnose.cells import Cells, from_metrics, of_log
from rlvr_jax.diagnose.foreign import Log
from rlvr_jax.diagnose.lengths import Curve, Split, Window, curve, split
from rlvr_jax.diagnose.verdict import cautions, formatter, verdict
from rlvr_jax.report.length_figures import draw, label_of
from rlvr_jax.report.page import figure_card, page, scroll, section
from rlvr_jax.report.text import escape


class LengthReport(NamedTuple):
    """All that is shown of a log: what `rlvr lengths` computed, in words and numbers."""

    title: str
    source: str  # files, format, rows
    unit: str
    split: Split
    curve: Curve
    verdict: str
    notes: Sequence[str]
    knows_ends: bool


def measure(
    paths: Sequence[str | Path], before: Window | None = None, after: Window | None = None, **options
) -> LengthReport:
    """Reads a log and splits its length curve; see `rlvr_jax.diagnose.foreign.Log` for paths and options.

    A run of this project (its workdir, or the rollouts.jsonl in it) is read from its metrics.jsonl, which knows the
    whole batches.
    Raises:
      ValueError, FileNotFoundError: as `Log`, `from_metrics` and `split`.
    """
    run = Path(paths[0]) if len(paths) == 1 else None
    run = run.parent if run and run.name == "rollouts.jsonl" else run
    if run and (run / "metrics.jsonl").is_file() and (run / "config.json").is_file():
        return _report(from_metrics(run), f"{run}/metrics.jsonl", "tokens", [], before, after)
    log = Log(paths, **options)
    cells = of_log(log)
    files = str(log.files[0]) if len(log.files) == 1 else f"{len(log.files)} files, {log.files[0]} first"
    source = f"{files}: {log.rows} completions ({', '.join(log.formats)}), graded by {', '.join(log.rewards)}"
    return _report(cells, source, log.unit, log.notes(), before, after)


def _report(cells: Cells, source: str, unit: str, notes: list[str], before, after) -> LengthReport:
    found = split(cells, before, after)
    return LengthReport(
        title="Why the length changed",
        source=source,
        unit=unit,
        split=found,
        curve=curve(cells, found.before),
        verdict=verdict(found, unit, cells.knows_ends),
        notes=[*cautions(found, cells), *notes],
        knows_ends=cells.knows_ends,
    )


def as_json(report: LengthReport) -> dict:
    """Plain values: lengths in `unit`, shares in [0, 1]; None where there is no number."""
    split = report.split
    plain = lambda value: None if isinstance(value, float) and not math.isfinite(value) else value
    tree = lambda item: {name: plain(value) for name, value in item._asdict().items()}
    return {
        "source": report.source,
        "unit": report.unit,
        "before": {"steps": list(split.before), **tree(split.means[0])},
        "after": {"steps": list(split.after), **tree(split.means[1])},
        "change": tree(split.change),
        "parts": {name: tree(part) for name, part in split.parts.items()},
        "in_wrong": tree(split.in_wrong),
        "in_right": tree(split.in_right),
        "truncation": tree(split.truncation) if report.knows_ends else None,
        "shared_prompts": split.shared,
        "clusters": split.clusters,
        "verdict": report.verdict,
        "notes": list(report.notes),
    }


def shown(report: LengthReport) -> Group:
    """For a terminal of 80 columns or more."""
    split, show = report.split, formatter(report.split)
    means = Table(box=SIMPLE, pad_edge=False)
    for name in ("", f"steps {split.before}", f"steps {split.after}", "change"):
        means.add_column(name, justify="left" if not name else "right")
    for label, *cells in _mean_rows(report):
        means.add_row(label, *cells)
    parts = Table(box=SIMPLE, pad_edge=False)
    for name in ("part of the change", report.unit, "95 % interval"):
        parts.add_column(name, justify="left" if name.startswith("part") else "right")
    parts.add_column("", width=18, no_wrap=True)
    for label, value, interval, fraction in _part_rows(report, show):
        parts.add_row(label, value, interval, Text(_bar(fraction)))
    lines: list = [
        Text(report.title, style="bold"),
        Text(report.source, style="dim"),
        means,
        parts,
        Text(report.verdict),
    ]
    lines += [Text(f"\n· {note}") for note in report.notes]
    return Group(*lines)


def _mean_rows(report: LengthReport) -> list[tuple[str, str, str, str]]:
    first, second = report.split.means
    show = formatter(report.split)
    rate = lambda x: "–" if math.isnan(x) else f"{x:.3f}"
    rows = [("completions", f"{first.rows}", f"{second.rows}", "")]
    names = [
        (f"mean length ({report.unit})", "length", show),
        ("  of the right", "length_right", show),
        ("  of the wrong", "length_wrong", show),
        ("share right", "right", rate),
    ]
    if report.knows_ends:
        names += [
            ("share cut", "cut", rate),
            ("  of the right", "cut_right", rate),
            ("  of the wrong", "cut_wrong", rate),
        ]
    for label, name, text in names:
        old, new = getattr(first, name), getattr(second, name)
        change = "–" if math.isnan(new - old) else (f"{new - old:+.3f}" if text is rate else show(new - old, True))
        rows.append((label, text(old), text(new), change.replace("-", "−")))
    return rows


def _part_rows(report: LengthReport, show: Callable) -> list[tuple[str, str, str, float]]:
    """(label, value, interval, value over the largest part in size), the change last."""
    split = report.split
    parts = [
        (label_of(name, report.knows_ends), part)
        for name, part in split.parts.items()
        if report.knows_ends or "cut" not in name
    ]
    largest = max((abs(part.value) for _, part in [*parts, ("", split.change)]), default=0.0) or 1.0
    rows = []
    for label, part in [*parts, ("change of the mean", split.change)]:
        value, _, interval = show(part, True).partition(" ")
        rows.append((label, value, interval, part.value / largest))
    return rows


def _bar(fraction: float, width: int = 9) -> str:
    """A bar left or right of a middle line."""
    cells = round(abs(fraction) * (width - 1))
    return f"{'█' * cells:>{width - 1}}│" if fraction < 0 else f"{'':>{width - 1}}│{'█' * cells}"


def to_page(report: LengthReport) -> str:
    """One HTML page with its figures inside."""
    show = formatter(report.split)
    figures = "".join(
        figure_card(*drawn) for drawn in draw(report.split, report.curve, report.unit, report.knows_ends).values()
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="soft">{escape(report.source)}</p>',
        f'<p class="lead">{escape(report.verdict)}</p>',
        f'<div class="notes"><b>Note</b><ul>{notes}</ul></div>' if notes else "",
        section("The two windows", scroll(_means_table(report), "narrow")),
        section("What moved the mean", scroll(_parts_table(report, show), "narrow")),
        section("Figures", f'<div class="grid">{figures}</div>'),
        section("How it is computed", f"<p>{escape(METHOD)}</p>"),
    ]
    return page(report.title, "\n".join(part for part in body if part))


METHOD = (
    "The mean length is a·C + (1 − a)·W: a the share of right completions, C and W the mean lengths of right and wrong "
    "ones. Each of those is split again into completions that ended and completions that were cut. A part is the "
    "change of one factor times the mean over both windows of the others (Kitagawa 1955; Oaxaca 1973), so the parts "
    "sum to the change. Intervals are percentiles of 2000 resamples of the prompts, each with all its completions."
)


def _means_table(report: LengthReport) -> str:
    head = "".join(
        f'<th class="n">{escape(name)}</th>'
        for name in (f"steps {report.split.before}", f"steps {report.split.after}", "change")
    )
    number = lambda cell: f'<td class="n">{escape(cell)}</td>'
    rows = "".join(
        f"<tr><th>{escape(label).replace('  ', '&emsp;')}</th>{''.join(map(number, cells))}</tr>"
        for label, *cells in _mean_rows(report)
    )
    return f"<thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody>"


def _parts_table(report: LengthReport, show: Callable) -> str:
    head = f'<th>part</th><th class="n">{escape(report.unit)}</th><th class="n">95 % interval</th>'
    rows = "".join(
        f'<tr><th>{escape(label)}</th><td class="n">{escape(value)}</td><td class="n">{escape(interval)}</td></tr>'
        for label, value, interval, _ in _part_rows(report, show)
    )
    return f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody>"


def write(report: LengthReport, html: str | Path | None, plots: str | Path | None) -> list[Path]:
    """Writes the page and the figures where asked; returns the paths."""
    written = []
    if html:
        Path(html).parent.mkdir(parents=True, exist_ok=True)
        Path(html).write_text(to_page(report), encoding="utf-8")
        written.append(Path(html))
    if plots:
        Path(plots).mkdir(parents=True, exist_ok=True)
        for name, (png, _, _) in draw(report.split, report.curve, report.unit, report.knows_ends).items():
            (Path(plots) / f"{name}.png").write_bytes(png)
            written.append(Path(plots) / f"{name}.png")
    return written
