"""What a table's numbers say of a published claim: one word and one sentence, by rules written down beforehand.

A claim compares two arms in one measure. A row is one of its comparisons: a case (a dial of the task) and a column (an
optimiser), with the paired effect over seeds and its p value, adjusted by Holm for the table's whole family.

Rows
 1. A row shows the claim when its adjusted p < .05 and its mean has the claimed sign; it shows the reverse when
    adjusted p < .05 and the sign is the other. Anything else shows nothing, which is not the same as showing zero.
 2. A row cannot be judged when fewer than two pairs are left, or fewer than half of them: seeds in which something
    could not be measured are not missing at random. Nor when all pairs differ by the same amount, not zero, and are
    too few for p < .05 (fewer than six): then there is no spread to judge by.

Words, the first that applies
 3. "cannot be judged": any row cannot be. Every other word speaks of all rows.
 4. "is step size": the claim shows with raw steps only because the arms' steps differ in size (rule 8), in every case
    that shows it, and nowhere is the reverse shown.
 5. "holds": all rows show the claim.
 6. "holds only when …": some rows do; the word names them by case, or by column, or by case (columns). A case that is
    step size is not named while another case holds on its own. With ", reversed when …" where others show the reverse.
 7. "the reverse shows here": no row shows the claim, at least half of them the reverse; the sentence says which.
    "does not show here": neither, with the smallest effect that is found four times in five; with ", reversed when …"
    where fewer than half show the reverse: one small cell must not speak for the rest.

Step size
 8. A case is step size when its row "raw" shows the claim and each of its rows "matched" (every arm's step has the
    reference arm's norm) and "adam" (steps do not depend on the gradient's scale) falls short: it does not show the
    claim, or its mean is at most 1/4 of raw's; in either case its interval ends at or below 1/2 of raw's mean. That
    end keeps noise from passing for absence: a row that shows nothing, but whose interval reaches beyond half of
    raw's effect, leaves the question open, and the word is then "holds only when the column is raw". Raw's own error
    is not counted in these shares. A residue that is significant is named. Where the reverse is shown under matched
    norms or Adam, or the claim in a column of any other label, the case is mixed, not step size. Without a row
    "raw", or with neither "matched" nor "adam", it cannot be said. A reverse (rule 7) is held to the same test.

Claims that there is no difference (direction "0")
 9. "holds": every row's 95 % interval lies within ±margin, the largest difference that counts as none. All rows must,
    so no correction for several tests is due (Berger 1982, Technometrics 24: intersection-union tests); a 95 % interval
    asks more than two one-sided tests at .05 would (Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15).
    "the reverse shows here": adjusted p < .05 in a row whose whole interval lies beyond the margin.
    "not shown to be equal": otherwise, with the largest difference that the intervals still allow.

The smallest detectable effect holds for a single test at .05; Holm's adjusted p asks for somewhat more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rlvr_jax.diagnose.effects import Effect

ALPHA = 0.05
CONTROLS = ("matched", "adam")  # columns in which a step does not grow with the gradient's scale
SMALL, HALF = 1 / 4, 1 / 2  # of raw's mean: where a controlled mean may lie, where its interval must end
PHRASES = {"raw": "with raw steps", "matched": "under matched norms", "adam": "under Adam"}


class Row(NamedTuple):
    """One comparison of a claim: labels ("" where there is one only), the effect arm − against, Holm-adjusted p."""

    case: str
    column: str
    effect: Effect
    p: float


class Verdict(NamedTuple):
    """`word` as in the rules of this module; `sentence` says it with mean, interval, seeds and p."""

    word: str
    sentence: str


def verdict(direction: str, rows: Sequence[Row], unit: str = "", margin: float | None = None, digits=3) -> Verdict:
    """The verdict on one claim by the rules of this module.

    Args:
      direction: of arm − against as claimed: "+", "-", or "0" (no difference).
      rows: one for each case and column of the claim.
      unit: written after a mean ("pass@1", "tokens").
      margin: for "0" alone: the largest absolute difference that counts as none, in the measure's unit; 0 asks for
        values equal on every seed.
      digits: decimals; a smaller number that is not zero is written with two significant digits.
    Raises:
      ValueError: another direction, no rows, a case and column twice, an adjusted p outside [0, 1] or below the
        effect's own, a margin that is missing, negative or not finite for "0", or given for another direction.
    """
    _check(direction, rows, margin)
    say = _Writer(rows, unit, digits)
    unjudged = [row for row in rows if _why_not(row)]
    if unjudged:
        return _cannot(unjudged, rows, say)
    if direction == "0":
        return _equality(rows, margin, say)
    sign = 1 if direction == "+" else -1
    if any(_shows(row, sign) for row in rows):
        return _shown(rows, sign, say)
    if any(_shows(row, -sign) for row in rows):
        return _reversed(rows, sign, say)
    return _nothing(rows, say)


def _shows(row: Row, sign: int) -> bool:
    """Rule 1."""
    return row.p < ALPHA and row.effect.mean * sign > 0


def _far(row: Row, sign: int) -> float:
    """The end of the interval that lies furthest in the direction of `sign`, positive if in that direction."""
    return row.effect.high if sign > 0 else -row.effect.low


def _why_not(row: Row) -> str:
    """Why a row cannot be judged (rule 2); empty where it can."""
    n, given = row.effect.n, row.effect.n + row.effect.missing
    if n < 2 or 2 * n < given:
        return f"only {n} of {given} pairs of seeds could be measured"
    if row.effect.low == row.effect.high != 0 and row.effect.p >= ALPHA:
        return f"the difference is the same in all of {n} pairs of seeds, too few to tell that from chance"
    finite = all(math.isfinite(x) for x in (row.effect.mean, row.effect.low, row.effect.high, row.p))
    return "" if finite else "there is no interval or no p value"


def _cannot(unjudged, rows, say: _Writer) -> Verdict:
    """Rule 3."""
    text = f"{say.where(unjudged[0])}, {_why_not(unjudged[0])}".lstrip(", ")
    if len(unjudged) > 1:
        text += f", and {len(unjudged)} of {len(rows)} comparisons in all cannot be judged"
    judged = [row for row in rows if not _why_not(row)]
    if judged:
        text += f"; of those that can, the clearest is {say.at(_clearest(judged))}"
    return Verdict("cannot be judged", f"{text[:1].upper()}{text[1:]}.")


def _shown(rows, sign: int, say: _Writer) -> Verdict:
    """Rules 4 to 6."""
    shown, reverse = ([row for row in rows if _shows(row, s)] for s in (sign, -sign))
    steps = _step_size(rows, sign)
    on_merit = [row for row in shown if row.case not in steps]
    if not on_merit and not reverse:
        return _is_step_size(rows, steps, sign, say)
    text = "The claimed difference shows"
    if on_merit == list(rows):
        weakest = max(rows, key=lambda row: (row.p, -abs(row.effect.d)))
        return Verdict("holds", f"{text}{say.share(shown, 'most weakly')}{say.at(weakest)}.")
    named = on_merit or shown
    word = f"holds only when {say.names(named)}"
    text += say.share(shown, "most clearly") + say.at(_clearest(named))
    if reverse:
        word += f", reversed when {say.names(reverse)}"
        text += f"; the reverse shows in {len(reverse)}, most clearly {say.at(_clearest(reverse))}"
    if steps:
        text += f"; for {' and '.join(steps)} it is step size: {say.controlled(steps, sign)}"
    silent = [row for row in rows if row not in shown and row not in reverse and row.case not in steps]
    if silent:
        widest = max(silent, key=lambda row: _far(row, sign))
        text += f"; where nothing shows, the interval that reaches furthest is {say.at(widest)}"
        raws = {row.case for row in on_merit if row.column == "raw"}
        if _controls(silent, raws - {row.case for row in _controls(shown + reverse, raws)}):
            text += ", so that step size is not ruled out"
    return Verdict(word, text + ".")


def _step_size(rows: Sequence[Row], sign: int) -> list[str]:
    """The cases that are step size by rule 8, for a difference of this sign."""
    found = []
    for case in dict.fromkeys(row.case for row in rows):
        own = [row for row in rows if row.case == case]
        raws, controls = [row for row in own if row.column == "raw"], _controls(own, [case])
        if not raws or not controls or not _shows(raws[0], sign):
            continue
        raw = raws[0].effect.mean * sign
        small = lambda row, raw=raw: not _shows(row, sign) or row.effect.mean * sign <= SMALL * raw
        short = all(small(row) and _far(row, sign) <= HALF * raw for row in controls)
        others = any(_shows(row, sign) for row in own if row not in raws and row not in controls)
        if short and not others and not any(_shows(row, -sign) for row in own):
            found.append(case)
    return found


def _controls(rows: Sequence[Row], cases) -> list[Row]:
    return [row for row in rows if row.case in cases and row.column in CONTROLS]


def _is_step_size(rows, steps: list[str], sign: int, say: _Writer) -> Verdict:
    """Rule 4."""
    raw = _clearest([row for row in rows if row.case in steps and row.column == "raw"])
    text = f"The claimed difference of {say.at(raw)} is step size: {say.controlled(steps, sign)}"
    if any(row.case not in steps for row in rows):
        text += "; in the other cases it does not show at all"
    return Verdict("is step size", text + ".")


def _reversed(rows, sign: int, say: _Writer) -> Verdict:
    """Rule 7, where the reverse shows."""
    reverse, steps = [row for row in rows if _shows(row, -sign)], _step_size(rows, -sign)
    text = f"The opposite of the claim shows{say.share(reverse, 'most clearly')}{say.at(_clearest(reverse))}"
    if {row.case for row in reverse} == set(steps):
        text += f", and is step size: {say.controlled(steps, -sign)}"
    if 2 * len(reverse) < len(rows):
        return Verdict(f"does not show here, reversed when {say.names(reverse)}", text + ".")
    return Verdict("the reverse shows here", text + ".")


def _nothing(rows, say: _Writer) -> Verdict:
    """Rule 7, second half."""
    at = f" in any of {len(rows)} comparisons, the closest being " if len(rows) > 1 else ": "
    text = f"The claimed difference does not show{at}{say.at(_clearest(rows))}"
    sizes = sorted(row.effect.detectable for row in rows if row.effect.detectable > 0)
    if not sizes:
        return Verdict("does not show here", f"{text}, the same on every seed.")
    least, most = say.number(sizes[0]), say.number(sizes[-1])
    size = least if least == most else f"{least} to {most}, depending on the comparison,"
    return Verdict("does not show here", f"{text}; a single test finds a true one of {size} four times in five.")


def _equality(rows, margin: float, say: _Writer) -> Verdict:
    """Rule 9."""
    allowed = lambda row: max(abs(row.effect.low), abs(row.effect.high))
    widest, bound = max(rows, key=allowed), say.number(margin)
    if allowed(widest) <= margin:
        within = f"within ±{bound}{say.share(rows, 'reaching furthest with')}{say.at(widest)}"
        return Verdict("holds", f"The interval of the difference lies {within}.")
    beyond = [row for row in rows if row.p < ALPHA and (row.effect.low > margin or row.effect.high < -margin)]
    if beyond:
        where = f"{say.share(beyond, 'most clearly')}{say.at(_clearest(beyond))}"
        return Verdict("the reverse shows here", f"The arms differ by more than {bound}{where}.")
    text = f"A difference of up to {say.number(allowed(widest))} is still allowed where ±{bound} counts as none"
    return Verdict("not shown to be equal", f"{text}: {say.at(widest)}.")


def _clearest(rows: Sequence[Row]) -> Row:
    return min(rows, key=lambda row: (row.p, row.effect.p, -abs(row.effect.d)))


class _Writer:
    """Numbers and places in words."""

    def __init__(self, rows: Sequence[Row], unit: str, digits: int):
        self.rows, self.unit, self.digits = rows, unit, digits

    def number(self, x: float, sign: str = "") -> str:
        """`digits` decimals, or two significant digits where those would hide that it is not zero."""
        hidden = x != 0 and abs(x) < 0.5 * 10**-self.digits
        return f"{x:{sign}.2g}" if hidden else f"{x + 0.0:{sign}.{self.digits}f}"

    def short(self, row: Row) -> str:
        """+0.012 pass@1 [+0.008, +0.016]"""
        mean, low, high = (self.number(x, "+") for x in row.effect[:3])
        return f"{mean}{' ' + self.unit if self.unit else ''} [{low}, {high}]"

    def where(self, row: Row) -> str:
        """␣for easy under matched norms; empty where there are no labels."""
        column = PHRASES.get(row.column, f"in column {row.column}") if row.column else ""
        return "".join(f" {part}" for part in (f"for {row.case}" if row.case else "", column) if part)

    def at(self, row: Row) -> str:
        """+0.012 pass@1 [+0.008, +0.016] for easy under Adam (10 seeds, adjusted p = 0.010)"""
        n, missing = row.effect.n, row.effect.missing
        seeds = f"{n} of {n + missing} seeds measured" if missing else f"{n} seeds"
        p = "< 0.001" if row.p < 0.001 else f"= {row.p:.3f}"
        return f"{self.short(row)}{self.where(row)} ({seeds}, adjusted p {p})"

    def share(self, some: Sequence[Row], how: str) -> str:
        """␣in 3 of 6 comparisons, most clearly␣; a colon where there is one comparison."""
        which = "all" if len(some) == len(self.rows) else f"{len(some)} of"
        return f" in {which} {len(self.rows)} comparisons, {how} " if len(self.rows) > 1 else ": "

    def controlled(self, steps: list[str], sign: int) -> str:
        """What is left of a difference that is step size."""
        controls = _controls(self.rows, steps)
        residues = [row for row in controls if _shows(row, sign)]
        if not residues:
            return f"with that controlled, it is no more than {self.at(max(controls, key=lambda row: _far(row, sign)))}"
        largest = max(residues, key=lambda row: row.effect.mean * sign)
        return f"a residue of {self.short(largest)} remains{self.where(largest)}"

    def names(self, some: Sequence[Row]) -> str:
        """Where rows lie: "the column is C" if the same in every case, else cases, with (columns) if not whole."""
        by_case = lambda rows: {row.case: [r.column for r in rows if r.case == row.case] for row in rows}
        columns, named = by_case(self.rows), by_case(some)
        if len(named) == len(columns) and len(set(map(tuple, named.values()))) == 1:
            return "the column is " + " or ".join(next(iter(named.values())))
        whole = lambda case: len(named[case]) == len(columns[case])
        return " or ".join(case if whole(case) else f"{case} ({', '.join(named[case])})" for case in named)


def _check(direction: str, rows: Sequence[Row], margin: float | None) -> None:
    if direction not in ("+", "-", "0"):
        raise ValueError(f"direction = {direction!r}: must be '+', '-' or '0'")
    if not rows:
        raise ValueError("rows is empty: a verdict needs at least one comparison")
    place, times = Counter((row.case, row.column) for row in rows).most_common(1)[0]
    if times > 1:
        raise ValueError(f"rows has case {place[0]!r}, column {place[1]!r} {times} times: a comparison counts once")
    for row in rows:
        if not math.isnan(row.p) and not (0 <= row.p <= 1 and not row.p < row.effect.p - 1e-12):
            raise ValueError(f"p = {row.p}: an adjusted p lies in [0, 1] and not below the effect's own {row.effect.p}")
    if (margin is not None and 0 <= margin < math.inf) if direction == "0" else margin is None:
        return
    raise ValueError(f"margin = {margin}: direction '0' needs one, finite and ≥ 0; the others take none")
