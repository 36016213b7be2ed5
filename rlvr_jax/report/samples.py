"""Completions on the page: before beside after, and the best and worst of training."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from rlvr_jax.report.table import number
from rlvr_jax.report.text import completion, escape, split_name

PAIRS = 8  # prompts shown before and after
STEPS = 8  # steps of which the best and the worst completion are shown


def before_after_samples(evaluations: Sequence[Mapping]) -> str:
    """The same prompts answered at the first and the last evaluation, changes first; "" without examples."""
    if not evaluations:
        return ""
    first, last = _by_prompt(evaluations[0]), _by_prompt(evaluations[-1])
    alone = len(evaluations) == 1
    keys = list(first) if alone else [key for key in first if key in last]
    if not keys:
        return ""
    kinds: dict[str, list] = {
        name: [] for name in ("wrong → right", "right → wrong", "wrong both times", "right both times")
    }
    for key in keys:
        kinds[_kind(first[key], (first if alone else last)[key])].append(key)
    counts = ", ".join(f"{len(found)} {name}" for name, found in kinds.items())
    note = f"{len(keys)} recorded completions" + ("." if alone else f": {counts}.")
    # One of each kind in turn, so that what got worse is not crowded out by what got better.
    turns = itertools.zip_longest(*kinds.values())
    chosen = [key for turn in turns for key in turn if key is not None][:PAIRS]
    start = _common_start([prompt for prompt, _ in chosen])
    cards = []
    for key in chosen:
        sides = _side(f"step {evaluations[0]['step']}", first[key])
        if not alone:
            sides += _side(f"step {evaluations[-1]['step']}", last[key])
        prompt, mode = key
        cards.append(
            f'<div class="card"><div class="soft">prompt{f" ({escape(mode)})" if mode else ""}</div>'
            f'<pre>{_rest(prompt, start)}</pre><div class="pair">{sides}</div></div>'
        )
    shown = f" Shown: {len(chosen)}." if len(chosen) < len(keys) else ""
    kind = split_name(evaluations[-1]).capitalize()
    title = "Samples" if alone else "Samples before and after"
    return (
        f'<section><h2>{title}</h2><p class="soft">{kind} problems. {escape(note)}{shown}</p>'
        f'{_told_once(start)}<div class="samples">{"".join(cards)}</div></section>'
    )


def during_training(extremes: Sequence[Mapping]) -> str:
    """The best and the worst recorded completion at steps spread over training; "" without rollouts."""
    steps = sorted({rollout["step"] for rollout in extremes})
    if not steps:
        return ""
    count = min(STEPS, len(steps))
    spread = {steps[round(index * (len(steps) - 1) / max(count - 1, 1))] for index in range(count)}
    chosen = [rollout for rollout in extremes if rollout["step"] in spread]
    start = _common_start([str(rollout.get("prompt", "")) for rollout in chosen])
    rows = [
        f'<tr><td class="n">{rollout["step"]}</td><td>{_verdict(rollout)}</td>'
        f"<td><pre>{completion(rollout.get('completion', ''))}</pre></td>"
        f"<td><pre>{_rest(str(rollout.get('prompt', '')), start)}</pre></td>"
        f'<td class="n">{escape(rollout.get("length", "–"))}</td>'
        f'<td class="n">{number(rollout.get("advantage"), 2, sign=True)}</td></tr>'
        for rollout in chosen
    ]
    head = (
        '<thead><tr><th class="n">step</th><th>verdict</th><th>completion</th><th>prompt</th>'
        '<th class="n">tokens</th><th class="n">advantage</th></tr></thead>'
    )
    which = f"{len(spread)} of {len(steps)} steps" if len(spread) < len(steps) else "each step"
    return (
        '<section><h2>Best and worst completions during training</h2><p class="soft">From the recorded '
        f"rollouts of {which}: the highest and the lowest outcome, ties by advantage.</p>"
        f'{_told_once(start)}<div class="scroll"><table>{head}<tbody>{"".join(rows)}</tbody></table></div>'
        "</section>"
    )


def _common_start(prompts: Sequence[str]) -> str:
    """Whole lines with which all prompts begin: instructions, example turns; "" when hardly any."""
    first, last = min(prompts, default=""), max(prompts, default="")  # in order, so all others lie between
    equal = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last))
    start = first[: sum(1 for _ in equal)]
    start = start[: start.rfind("\n") + 1]
    return start if len(prompts) > 1 and len(start) >= 40 else ""


def _told_once(start: str) -> str:
    if not start:
        return ""
    return (
        "<details><summary>All these prompts begin with the same text, shown below as …</summary>"
        f"<pre>{completion(start)}</pre></details>"
    )


def _rest(prompt: str, start: str) -> str:
    return ('<span class="mark">… </span>' if start else "") + completion(prompt[len(start) :])


def _by_prompt(evaluation: Mapping) -> dict[tuple[str, str], Mapping]:
    """(prompt, mode) → its first example."""
    found: dict[tuple[str, str], Mapping] = {}
    for example in evaluation.get("examples") or []:
        found.setdefault((str(example.get("prompt", "")), str(example.get("mode", ""))), example)
    return found


def _right(example: Mapping) -> bool:
    outcome = example.get("outcome")
    return isinstance(outcome, int | float) and outcome >= 1


def _kind(first: Mapping, last: Mapping) -> str:
    if _right(first) == _right(last):
        return "right both times" if _right(first) else "wrong both times"
    return "wrong → right" if _right(last) else "right → wrong"


def _side(when: str, example: Mapping) -> str:
    return (
        f'<div><div><span class="soft">{escape(when)}</span> {_verdict(example)}</div>'
        f"<pre>{completion(example.get('completion', ''))}</pre></div>"
    )


def _verdict(example: Mapping) -> str:
    """Sign and word, so that colour is not needed; the verifier's reason where it says more."""
    right = _right(example)
    outcome = example.get("outcome")
    partial = isinstance(outcome, int | float) and 0 < outcome < 1
    word = "correct" if right else f"partly ({number(outcome, 2)})" if partial else "wrong"
    reason = str(example.get("reason") or "")
    more = f' <span class="soft">{escape(reason)}</span>' if reason and reason != word else ""
    return f'<b class="{"good" if right else "bad"}">{"✓" if right else "✗"} {word}</b>{more}'
