"""table.md and table.csv of a table: deterministic bytes for the same runs."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Sequence

from experiments import text
from experiments.summary import Comparison, Summary
from experiments.table import Measure
from rlvr_jax.diagnose.effects import Effect

CSV_HEAD = [
    "table",
    "case",
    "column",
    "arm",
    "measure",
    "metric",
    "kind",
    "mean",
    "low",
    "high",
    "seeds",
    "never",
    "missing_runs",
    "reference",
    "difference",
    "difference_low",
    "difference_high",
    "d",
    "p",
    "p_holm",
    "detectable",
    "pairs",
    "pairs_missing",
]


def markdown(summary: Summary, figures: Collection[str]) -> str:
    """The whole page; `figures` are the names of those that lie beside it."""
    table = summary.table
    parts = [f"# {table.title}", table.question]
    if summary.missing:
        parts.append(f"**{text.missing_words(summary)}**")
    parts.append("\n".join(f"- {name}: {_code(name, value)}" for name, value in text.facts(summary)))
    if table.notes:
        parts.append(table.notes)
    if summary.judged:
        parts += ["## Claims", _claims(summary), _sentences(summary)]
    if "effects.png" in figures:
        parts.append("![paired differences and their intervals](effects.png)")
    if "heatmap.png" in figures:
        parts.append("![means over seeds, arms by cases](heatmap.png)")
    if summary.values:
        parts += ["## Measures", text.family_words(summary)]
        for measure in table.measures:
            parts += _measure(summary, measure)
    if "curves.png" in figures:
        parts += ["## Curves", "![mean over seeds with 95 % band](curves.png)", curve_words(summary)]
    for name, panel in summary.panels:
        parts += _panel(summary, name, panel)
    return "\n\n".join(parts) + "\n"


def curve_words(summary: Summary) -> str:
    smooth = f"Every run is smoothed by a centred mean over {summary.smooth} steps. " if summary.smooth > 1 else ""
    return f"{smooth}Lines: mean over {len(summary.seeds)} seeds. Bands: 95 % Student's t interval at each step."


def _code(name: str, value: str) -> str:
    return f"`{value}`" if name in ("command", "base config") else value


def _cell(value: str) -> str:
    return " ".join(str(value).split()).replace("|", "\\|")


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


def _claims(summary: Summary) -> str:
    heads = ["claim", "source", "published", "here: raw or only column", "control", "verdict"]
    rows = []
    for judged in summary.judged:
        claim = judged.claim
        own = "; ".join(
            f"{' '.join(part for part in (case, column if column != 'raw' else '') if part)} {difference}".strip()
            for case, column, difference, _ in text.claim_lines(summary, judged)
            if column not in ("matched", "adam")
        )
        control = text.control_of(summary, judged) or text.MISSING
        words = [claim.text, claim.source, claim.published, own or text.MISSING, control, f"**{judged.verdict.word}**"]
        rows.append(words)
    return grid(heads, rows)


def _sentences(summary: Summary) -> str:
    return "\n".join(
        f"- {text.asked_words(summary, judged)} in {judged.claim.measure}: **{judged.verdict.word}.** "
        f"{text.verdict_sentence(judged)}"
        for judged in summary.judged
    )


def _measure(summary: Summary, measure: Measure) -> list[str]:
    parts = [f"### {measure.label}", text.sentence(text.describe(measure))]
    for case in summary.table.cases:
        lines = text.lines_of(summary, measure, case)
        kept = text.shown_fields(lines)
        heads = [text.HEADS[index].format(reference=summary.table.reference) for index in kept]
        if case:
            parts.append(f"**{case}**")
        parts.append(grid(heads, [[line[index] for index in kept] for line in lines]))
    return parts


def _panel(summary: Summary, name: str, panel: dict | None) -> list[str]:
    own = next(panel for panel in summary.table.panels if panel.name == name)
    words = text.holds_words(panel)
    parts = [f"## {own.title}" + (f": {words}" if words else ""), f"Source: {own.source}."]
    if panel is not None:
        parts.append(grid(panel["columns"], [[text.panel_cell(cell) for cell in row] for row in panel["rows"]]))
        if panel["note"]:
            parts.append(panel["note"])
    return parts


def csv_text(summary: Summary) -> str:
    """One row per case × column × arm × measure; numbers with six significant digits, "" where there is none."""
    table, out = summary.table, io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for case in table.cases:
        for column in table.columns:
            for arm in table.arms:
                for measure in table.measures:
                    writer.writerow(_csv_row(summary, case, column, arm, measure))
    return out.getvalue()


def _csv_row(summary: Summary, case: str, column: str, arm: str, measure: Measure) -> list[str]:
    table = summary.table
    mean = summary.interval(measure.label, case, column, arm)
    tested = summary.tests.get(Comparison(measure.label, case, column, arm, table.reference))
    metric = measure.metric + (f" - {measure.minus}" if measure.minus else "")
    row = [table.name, case, column, arm, measure.label, metric, measure.kind, *map(_six, mean)]
    row += list(map(str, summary.counts(case, column, arm, measure.label)))
    if tested is None:
        return [*row, table.reference, *([""] * 9)]
    e: Effect = tested.effect
    numbers = (e.mean, e.low, e.high, e.d, e.p, tested.p, e.detectable)
    return [*row, table.reference, *map(_six, numbers), str(e.n), str(e.missing)]


def _six(value: float) -> str:
    if math.isnan(value):
        return ""
    text = f"{value:.6g}"
    return "0" if text == "-0" else text
