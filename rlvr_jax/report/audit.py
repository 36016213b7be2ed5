"""An audit of estimators for the terminal, as JSON, and as one self-contained page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Group
from rich.text import Text

from rlvr_jax.diagnose.advice import Advice, advise
from rlvr_jax.diagnose.audit import STRETCH, bias, curves, on_log
from rlvr_jax.diagnose.batches import to_batches
from rlvr_jax.diagnose.foreign import Log
from rlvr_jax.estimators import Estimator, make_estimator
from rlvr_jax.report.audit_figures import draw
from rlvr_jax.report.audit_tables import Audited, AuditReport, in_page, in_terminal, tables_of
from rlvr_jax.report.page import figure_card, page, section
from rlvr_jax.report.text import escape

GROUP_SIZE, REFERENCE = 8, 512  # of curves without a log


def measure(
    names: Sequence[str],
    paths: Sequence[str | Path] = (),
    *,
    group_size: int | None = None,
    reference: float | None = None,
    completion_length: int | None = None,
    **options,
) -> AuditReport:
    """Curves of catalogue entries, and what they do on the rollouts of a log.

    Args:
      names: catalogue names.
      paths, options: as `rlvr_jax.diagnose.foreign.Log`; without paths there are curves alone.
      group_size, reference: of the curves; default: the log's commonest group size and median length, else 8 and 512.
      completion_length: what dr_grpo and dapo take from a configuration; default: the longest response of the log, else
        four times the reference.
    Raises:
      ValueError: as `make_estimator`, `curves`, `Log`; a log of selected completions.
    """
    for name in names:
        make_estimator(name)  # an unknown name is refused before a long log is read
    log = Log(paths, **options) if paths else None
    batches = to_batches(log.chunks()) if log else None
    if log and log.selected:
        raise ValueError(
            f"{log.files[0]}: holds a selection, the best, the worst and the longest wrong completion of some groups; "
            "an audit needs every completion of a group"
        )
    notes = log.notes() if log else []
    if batches is not None:
        lengths = batches.length[batches.valid]
        group_size = group_size or max(2, batches.group_size)
        reference = reference or max(4.0, float(np.median(lengths)))
        completion_length = completion_length or max(1, math.ceil(lengths.max()))
        if log.unit == "characters":
            notes.append("Where this says tokens, read characters.")
        notes += _log_notes(batches)
    group_size, reference = group_size or GROUP_SIZE, reference or REFERENCE
    completion_length = completion_length or math.ceil(max(STRETCH) * reference)
    missed = bias(batches) if batches is not None else None
    audited = []
    for name in dict.fromkeys(names):
        estimator = make_estimator(name, completion_length=completion_length)
        audited.append(_audited(estimator, group_size, reference, batches, missed))
        notes += _estimator_notes(estimator)
    source = "closed forms alone; --log adds what an estimator does on rollouts"
    if log:
        files = str(log.files[0]) if len(log.files) == 1 else f"{len(log.files)} files, {log.files[0]} first"
        source = f"{files}: {log.rows} completions ({', '.join(log.formats)}), graded by {', '.join(log.rewards)}"
    return AuditReport(source, audited, missed, notes, completion_length)


def _audited(estimator: Estimator, group_size, reference, batches, missed) -> Audited:
    curve = curves(estimator, group_size, reference)
    found = None if batches is None else on_log(estimator, batches)
    advice = None if found is None else advise(curve, found, missed)
    return Audited(estimator.name, estimator.slots, curve, found, advice)


def _estimator_notes(estimator: Estimator) -> list[str]:
    name, said = estimator.name, []
    if estimator.init_params():
        said.append(f"{name} learns its weights: these are the ones it starts with.")
    if estimator.init_memory(1):
        said.append(f"{name} remembers: its curves are without a past; on a log it remembers the steps before.")
    if estimator.slots["baseline"].startswith("stratified"):
        said.append(f"{name}: nothing here names strata (numbers of tool calls), so all responses are of one.")
    return said


def _log_notes(batches) -> list[str]:
    said = []
    sizes = batches.valid.sum(-1)
    alone = int((sizes == 1).sum())
    if alone:
        said.append(f"{alone} groups hold one completion: group-relative advantages are 0 there.")
    if batches.every > 1:
        said.append(f"The log is long: every {batches.every}-th step was audited; memories saw those alone.")
    if not batches.knows_ends:
        said.append("The log does not say which responses were cut (--limit would).")
    return said


def as_json(report: AuditReport) -> dict:
    """Plain values; None where there is no number."""
    return {
        "source": report.source,
        "completion_length": report.completion_length,
        "estimators": {
            item.name: {
                "slots": item.slots,
                "curves": _plain(item.curves),
                "on_log": _plain(item.on_log),
                "advice": None if item.advice is None else [_plain(advice) for advice in item.advice],
            }
            for item in report.estimators
        },
        "bias": _plain(report.bias),
        "notes": report.notes,
    }


def _plain(value):
    if hasattr(value, "_asdict"):
        return {name: _plain(part) for name, part in value._asdict().items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list):
        return [_plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def shown(report: AuditReport) -> Group:
    """For a terminal of 80 columns or more."""
    lines: list = [Text("What weight a token gets", style="bold"), Text(report.source, style="dim")]
    for rows in tables_of(report):
        lines += [Text(f"\n{rows.title}", style="bold"), in_terminal(rows)]
        if rows.note:
            lines.append(Text(rows.note, style="dim"))
    for item in report.estimators:
        if item.advice is not None:
            lines.append(Text(f"\n{item.name}: what the numbers suggest, largest first", style="bold"))
            lines += _advice_lines(item.advice)
    lines += [Text(f"\n· {note}") for note in report.notes]
    return Group(*lines)


def _advice_lines(advice: list[Advice]) -> list[Text]:
    if not advice:
        return [Text("Nothing stands out.")]
    lines = []
    for place, item in enumerate(advice, 1):
        lines.append(Text(f"{place}. {item.finding}"))
        lines.append(
            Text(f"   Try: {item.suggests}\n   Says so: {item.says}\n   Disagrees: {item.disagrees}", style="dim")
        )
    return lines


def to_page(report: AuditReport) -> str:
    """One HTML page with its figures inside."""
    names = ", ".join(item.name for item in report.estimators)
    drawn = draw([(item.name, item.curves, item.on_log) for item in report.estimators])
    figures = "".join(figure_card(*figure) for figure in drawn.values())
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    body = [
        f"<h1>{escape(f'What weight a token gets: {names}')}</h1>",
        f'<p class="soft">{escape(report.source)}</p>',
        f'<div class="notes"><b>Note</b><ul>{notes}</ul></div>' if notes else "",
        *(_advice_section(item) for item in report.estimators if item.advice is not None),
        section("Figures", f'<div class="grid">{figures}</div>'),
        *(section(rows.title, in_page(rows)) for rows in tables_of(report)),
    ]
    return page(f"Audit: {names}", "\n".join(part for part in body if part))


def _advice_section(item: Audited) -> str:
    entries = "".join(
        f"<li>{escape(advice.finding)}<br>Try <b>{escape(advice.suggests)}</b>.<br>"
        f'<span class="soft">Says so: {escape(advice.says)}.<br>Disagrees: {escape(advice.disagrees)}.</span></li>'
        for advice in item.advice
    )
    body = f"<ol>{entries}</ol>" if entries else "<p>Nothing stands out.</p>"
    return section(f"{item.name}: what the numbers suggest, largest first", body)


def write(report: AuditReport, html: str | Path | None) -> list[Path]:
    """Writes the page where asked; returns the paths."""
    if not html:
        return []
    Path(html).parent.mkdir(parents=True, exist_ok=True)
    Path(html).write_text(to_page(report), encoding="utf-8")
    return [Path(html)]
