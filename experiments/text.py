"""What the pages of a table say, as plain text: the same words and digits in Markdown, HTML and the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from experiments.summary import Comparison, Judged, Summary, measure_of
from experiments.table import Measure
from rlvr_jax.diagnose.effects import Effect
from rlvr_jax.report.table import MISSING, number

ASKED = {"+": "higher than", "-": "lower than", "0": "no different from"}


class Line(NamedTuple):
    """One arm of a measure, in one case and column; "" where there is nothing to say."""

    arm: str
    column: str
    mean: str
    seeds: str
    difference: str
    d: str
    p: str
    detectable: str


HEADS = ("arm", "column", "mean [95 %]", "seeds", "− {reference} [95 %]", "d", "p", "detectable")
FIELDS = Line._fields


def with_interval(estimate: float, low: float, high: float, digits: int, sign: bool = False) -> str:
    """ "0.412 [0.380, 0.444]"; without the bracket where there is no interval, "" without a mean."""
    if not math.isfinite(estimate):
        return ""
    ends = f" [{number(low, digits, sign)}, {number(high, digits, sign)}]" if math.isfinite(low) else ""
    return number(estimate, digits, sign) + ends


def p_text(p: float) -> str:
    return "" if not math.isfinite(p) else "< 0.001" if p < 0.001 else f"{p:.3f}"


def d_text(d: float) -> str:
    if math.isnan(d):
        return ""
    return number(d, 2, sign=True) if math.isfinite(d) else "∞" if d > 0 else "−∞"


def difference_text(effect: Effect, digits: int) -> str:
    return with_interval(effect.mean, effect.low, effect.high, digits, sign=True)


def lines_of(summary: Summary, measure: Measure, case: str) -> list[Line]:
    """The rows of a measure's table for one case: arms × columns."""
    table = summary.table
    return [_line(summary, measure, case, column, arm) for arm in table.arms for column in table.columns]


def _line(summary: Summary, measure: Measure, case: str, column: str, arm: str) -> Line:
    there, never, missing = summary.counts(case, column, arm, measure.label)
    seeds = f"{there}" + (f", {never} never" if never else "") + (f", {missing} missing" if missing else "")
    mean = with_interval(*summary.interval(measure.label, case, column, arm), measure.digits)
    tested = summary.tests.get(Comparison(measure.label, case, column, arm, summary.table.reference))
    if tested is None:
        return Line(arm, column, mean, seeds, *([""] * 4))
    effect = tested.effect
    detectable = "" if math.isnan(effect.detectable) else number(effect.detectable, measure.digits)
    pairs = f" ({effect.n} pairs)" if effect.missing and effect.n else ""
    difference = difference_text(effect, measure.digits) + pairs
    return Line(arm, column, mean, seeds, difference, d_text(effect.d), p_text(tested.p), detectable)


def shown_fields(lines: list[Line]) -> list[int]:
    """Which fields of the lines say anything."""
    return [index for index in range(len(FIELDS)) if any(line[index] for line in lines)]


def describe(measure: Measure) -> str:
    """How a measure is made, in words."""
    metric = f"`{measure.metric}`" + (f" − `{measure.minus}`" if measure.minus else "")
    last = "the last" if measure.last is None else str(measure.last)
    smoothing = f"both means over {measure.smooth} steps" if measure.smooth > 1 else "unsmoothed"
    text = {
        "window": f"mean of {metric} over steps {measure.first} to {last}",
        "area": f"mean of {metric} over all steps",
        "at_equal": f"{metric} where `{measure.by}` first reaches {measure.value} ({smoothing})",
        "steps_to": f"first step at which {metric} (mean over {measure.smooth} steps) reaches {measure.value}",
    }[measure.kind]
    return text + (f"; {measure.better} is better" if measure.better else "")


def sentence(words: str) -> str:
    """With a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:]}."


def asked_words(summary: Summary, judged: Judged) -> str:
    """ "Dr. GRPO lower than GRPO": what the table asks of a claim."""
    claim = judged.claim
    margin = "" if claim.margin is None else f" by more than {claim.margin:g}"
    return f"{claim.arm} {ASKED[claim.direction]} {claim.against or summary.table.reference}{margin}"


def verdict_sentence(judged: Judged) -> str:
    """The verdict's sentence, with true minus signs."""
    return re.sub(r"(?<![\w.])-(?=\d)", "−", judged.verdict.sentence)


def claim_lines(summary: Summary, judged: Judged) -> Iterator[tuple[str, str, str, str]]:
    """(case, column, difference, p) of every comparison of a claim."""
    digits = measure_of(summary.table, judged.claim.measure).digits
    for row in judged.rows:
        yield row.case, row.column, difference_text(row.effect, digits) or MISSING, p_text(row.p)


def control_of(summary: Summary, judged: Judged) -> str:
    """The comparisons under the controls (matched norms, Adam), the widest said of each; "" without such columns."""
    parts = []
    for column in ("matched", "adam"):
        rows = [line for line in claim_lines(summary, judged) if line[1] == column]
        parts += [f"{column}{f' ({case})' if case else ''} {difference}" for case, _, difference, _ in rows]
    return "; ".join(parts)


def family_words(summary: Summary) -> str:
    """What the p values are corrected over."""
    return (
        f"p: two-sided paired t test over seeds, adjusted by Holm over the table's whole family of {summary.family} "
        "tests (all measures, arms, cases and columns). d: Cohen's d_z. Detectable: the smallest true difference that "
        "a single test at .05 finds four times in five. Brackets: 95 % Student's t intervals, not adjusted."
    )


def missing_words(summary: Summary) -> str:
    """ "3 of 40 runs are missing", and which; "" when none is."""
    if not summary.missing:
        return ""
    table = summary.table
    total = len(table.arms) * len(table.cases) * len(table.columns) * len(summary.seeds)
    first = "; ".join(map(str, summary.missing[:3])) + ("; …" if len(summary.missing) > 3 else "")
    return (
        f"PARTIAL: {len(summary.missing)} of {total} runs are missing ({first}). Blank: fewer than 2 seeds are there."
    )


def facts(summary: Summary) -> list[tuple[str, str]]:
    """Where the numbers come from."""
    table, found = summary.table, summary.provenance
    runs = len(table.arms) * len(table.cases) * len(table.columns) * len(summary.seeds) - len(summary.missing)
    seeds = f"{len(summary.seeds)}: {', '.join(map(str, summary.seeds))}" if summary.seeds else "none (no training)"
    return [
        ("command", found["command"]),
        ("commit", found["commit"]),
        ("date", found["date"]),
        ("hardware", found["hardware"]),
        ("base config", table.base),
        ("seeds", seeds),
        ("runs", str(runs)),
        ("programs compiled", found["programs compiled"]),
        ("minutes", found["minutes"]),
    ]


def panel_cell(value) -> str:
    """A panel's cell: up to four significant digits, a true minus sign."""
    if value is None:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    return str(value).replace("-", "−") if isinstance(value, int) else str(value)


def holds_words(panel: dict | None) -> str:
    if panel is None:
        return "not computed yet"
    return {True: "holds", False: "does not hold", None: ""}[panel.get("holds")]
