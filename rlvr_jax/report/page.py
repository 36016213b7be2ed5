"""report.html: one self-contained page, no script and nothing fetched."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from pathlib import Path

from rlvr_jax.report.drawing import how_to_read
from rlvr_jax.report.plots import Plot, draw
from rlvr_jax.report.run import Run, flatten, read_run
from rlvr_jax.report.samples import before_after_samples, during_training
from rlvr_jax.report.style import CSS
from rlvr_jax.report.table import (
    MISSING,
    MODES,
    VERDICTS,
    before_after_rows,
    change_of,
    interval,
    mode_title,
    number,
    verdict_of,
)
from rlvr_jax.report.text import escape, split_name

LIMITS = (
    "One run with one seed. The intervals say how much the result could differ on other held-out problems; "
    "they say nothing about how much it would differ with another seed of training.",
    "The training curves are of whatever prompts a step drew, sampled at the training temperature. Read from "
    "the held-out marks whether the policy improved.",
    "pass@1 asks for the right answer in the right form. Part of a gain is learning the form: compare the "
    "rows “well-formed” and “right if well-formed”.",
    "Length within the correct or the wrong completions says nothing about reasoning by itself. The mean "
    "over all completions also moves when only the shares of correct, wrong and truncated change.",
    "The loss is not a measure of progress: with a group-relative advantage it stays near zero while the "
    "policy improves.",
    "When most groups have no contrast, a flat curve means that there is little left to learn from these "
    "prompts (all right or all wrong), not that the policy has converged.",
)


def write_report(workdir: str | Path) -> Path:
    """Writes workdir/report.html and workdir/plots/*.png from the files of a run; returns the page's path.

    Reads config.json, metrics.jsonl, rollouts.jsonl and evaluation.json; what is missing is said on the page.
    Raises: FileNotFoundError when there is no run in workdir.
    """
    run = read_run(workdir)
    plots = draw(run, run.workdir / "plots")
    title, subtitle = title_of(run)
    parts = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(subtitle)}</p>',
        _result(run),
        _notes(run),
        _table(run),
        _curves(plots, how_to_read(run)),
        before_after_samples(run.evaluations),
        during_training(run.extremes),
        section("What the curves do not show", f"<ul>{_items(LIMITS)}</ul>"),
        _settings("Configuration", run.config),
        _settings("Environment", run.environment),
    ]
    path = run.workdir / "report.html"
    path.write_text(page(title, "\n".join(part for part in parts if part)), encoding="utf-8")
    return path


def title_of(run: Run) -> tuple[str, str]:
    """The estimator's description and the task; then the model and the size of the run in words."""
    task = _named(run.config.get("task")) or "an unknown task"
    title = f"{_estimator(run.config.get('estimator')) or 'Unknown estimator'} on {task}"
    facts = [_model(run.config.get("model"))]
    if run.steps_done:
        planned = f" of {run.steps_planned}" if run.steps_planned else ""
        facts.append(f"{run.steps_done}{planned} steps")
    prompts, size = run.config.get("prompts_per_step"), run.config.get("group_size")
    if prompts and size:
        facts.append(f"{prompts} prompts × {size} completions a step")
    seconds = sum(value for value in run.series("time/step_s")[1] if math.isfinite(value))
    if seconds:
        facts.append(f"{seconds / 60:.1f} minutes of steps" if seconds >= 100 else f"{seconds:.0f} s of steps")
    return title, " · ".join(fact for fact in facts if fact)


def _estimator(value) -> str:
    """The catalogue name and the slots that replace its own: "grpo + clip=ppo(low=0.2, high=0.28)"."""
    slots = value.items() if isinstance(value, dict) else ()
    replaced = [f"{slot}={part}" for slot, part in slots if part and slot not in ("name", "description")]
    return " + ".join([_named(value), *replaced])


def _model(value) -> str:
    name = _named(value).rpartition("/")[2]
    if name or not isinstance(value, dict) or not value.get("layers"):
        return name
    return f"a new policy of {value['layers']} layers of width {value.get('width', '?')}"


def _named(value) -> str:
    """A part of the configuration as a name: itself, or its "description", "name" or "path"; "" without."""
    if isinstance(value, dict):
        value = next((value[key] for key in ("description", "name", "path") if value.get(key)), None)
    return str(value or "")


def _result(run: Run) -> str:
    if not run.evaluations:
        return ""
    before, after = run.evaluations[0], run.evaluations[-1]
    sentences, cards = [], []
    for mode in MODES:
        first, last = before.get(mode) or {}, after.get(mode) or {}
        if "pass@1" not in first or "pass@1" not in last:
            continue
        difference = run.difference.get(mode) or {}
        if before["step"] == after["step"]:
            sentences.append(f"{mode.capitalize()} pass@1 {_rate(first)}.")
            continue
        sentences.append(_sentence(mode, first, last, difference))
        cards.append(_card(mode, first, last, difference))
    if not sentences:
        return ""
    problems = f"On {escape(after['problems'])} {split_name(after)} problems" if after.get("problems") else "Held-out"
    lead = f"<b>{problems}.</b> " + " ".join(sentences)
    cards = f'<div class="grid">{"".join(cards)}</div>' if cards else ""
    return f'<p class="lead">{lead}</p>{cards}'


def _sentence(mode: str, first: dict, last: dict, difference: dict) -> str:
    change = change_of(first, last, difference)
    verb = "stayed at" if not change else "rose from" if change > 0 else "fell from"
    ends = f"{_rate(last)}" if not change else f"{_rate(first)} to {_rate(last)}"
    by = f"{number(change, sign=True)} {interval(difference, sign=True)}".strip()
    return f"{mode.capitalize()} pass@1 {verb} {ends}: {by}, {VERDICTS[verdict_of(difference)]}."


def _rate(numbers: dict) -> str:
    return f"{number(numbers['pass@1'])} {interval(numbers)}".strip()


def _card(mode: str, first: dict, last: dict, difference: dict) -> str:
    verdict = verdict_of(difference)
    change = change_of(first, last, difference)
    tone = "" if verdict != "beyond" else "good" if change > 0 else "bad"
    words = {"beyond": "excludes zero", "within": "includes zero: no change shown", "": ""}
    legend = "before, after" + (", 95 % intervals" if interval(first) or interval(last) else "")
    return (
        f'<div class="card"><h3>pass@1, {escape(mode_title(mode, last))}</h3>'
        f'<div class="big">{number(first["pass@1"])} <i>→</i> {number(last["pass@1"])}</div>'
        f"{_track(first, 'before')}{_track(last, 'after')}"
        f'<div class="ends"><span>0</span><span>{legend}</span><span>1</span></div>'
        f'<p style="margin:8px 0 0"><b class="{tone}">{number(change, sign=True)}</b> '
        f"{interval(difference, sign=True)} {words[verdict]}</p></div>"
    )


def _track(numbers: dict, kind: str) -> str:
    bar = ""
    if interval(numbers):
        low, high = (min(max(numbers[end], 0.0), 1.0) for end in ("low", "high"))
        bar = f'<b style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></b>'
    rate = min(max(numbers["pass@1"], 0.0), 1.0)
    return f'<div class="track {kind}">{bar}<s style="left:{100 * rate:.1f}%"></s></div>'


def _notes(run: Run) -> str:
    return f'<div class="notes"><b>Note</b><ul>{_items(run.notes)}</ul></div>' if run.notes else ""


def _items(sentences: Iterable[str]) -> str:
    return "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)


def _table(run: Run) -> str:
    sections = before_after_rows(run.evaluations, run.difference)
    if not sections:
        return ""
    first, last = run.evaluations[0]["step"], run.evaluations[-1]["step"]
    body = []
    for mode, rows in sections.items():
        title = mode_title(mode, run.evaluations[-1].get(mode) or {})
        body.append(f'<tr><th class="part" colspan="4">{escape(title)}</th></tr>')
        for row in rows:
            cells = (f'<td class="n">{cell.value}<small>{cell.interval}</small></td>' for cell in row[1:4])
            body.append(f"<tr><th>{escape(row.label)}</th>{''.join(cells)}</tr>")
    names = "".join(
        f'<th class="n">{name}</th>' for name in (f"before (step {first})", f"after (step {last})", "change")
    )
    note = (
        '<p class="soft">Brackets: 95 % intervals over problems. A change without brackets has no '
        f"interval: judge it with care. {MISSING}: not measured.</p>"
    )
    table = f"<thead><tr><th></th>{names}</tr></thead><tbody>{''.join(body)}</tbody>"
    return section("Before and after", note + scroll(table, "narrow"))


def _curves(plots: dict[str, Plot], how_to_read: str) -> str:
    if not plots:
        return ""
    columns: tuple[list[str], list[str]] = ([], [])
    for order, (name, plot) in enumerate(plots.items()):
        # Two columns of about one height; on a telephone one column in the order of reading.
        card = figure_card(plot.path.read_bytes(), plot.title, plot.caption, order)
        columns[name in ("length", "update")].append(card)
    note = f'<p class="soft">{escape(how_to_read)}</p>' if how_to_read else ""
    body = "".join(f"<div>{''.join(column)}</div>" for column in columns if column)
    return section("Curves", f'{note}<div class="curves">{body}</div>')


def figure_card(png: bytes, title: str, caption: str, order: int = 0) -> str:
    """A figure with its picture inside."""
    data = base64.b64encode(png).decode()
    return (
        f'<figure class="card" style="order:{order}"><h3>{escape(title)}</h3>'
        f'<img alt="{escape(title)}" src="data:image/png;base64,{data}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _settings(title: str, tree: dict) -> str:
    flat = flatten(tree)
    if not flat:
        return section(title, '<p class="soft">Not recorded.</p>')
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(value)}</td></tr>" for key, value in flat.items())
    table = scroll(f"<tbody>{rows}</tbody>")
    return section(title, f"<details><summary>{len(flat)} entries</summary>{table}</details>")


def scroll(table: str, kind: str = "") -> str:
    """A table that scrolls sideways by itself where the screen is narrow."""
    return f'<div class="scroll"><table class="{kind}">{table}</table></div>'


def section(title: str, body: str) -> str:
    """A titled part of a page."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def page(title: str, body: str) -> str:
    """The whole page: one file, no script, nothing fetched."""
    # A second lock: should text of a model ever get past the escaping, it still could run and load nothing.
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)}</title><style>{CSS}</style></head>
<body><main>
{body}
</main></body></html>
"""
