"""Writes what a run measured as a page of results: python -m experiments.record WORKDIR NAME "COMMAND".

Numbers, commit, date and hardware come from the files of the run; nothing is typed in by hand.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).resolve().parent / "results"


def table(evaluation: dict) -> str:
    """pass@1 before and after as Markdown, with 95 % intervals."""
    first, last = evaluation["evaluations"][0], evaluation["evaluations"][-1]
    lines = [
        f"| {last['problems']} {'training' if last['split'] == 'train' else 'held-out'} problems | before | "
        f"after {last['step']} steps | change |",
        "|---|---|---|---|",
    ]
    bracket = lambda m, sign="": f"[{m['low']:{sign}.3f}, {m['high']:{sign}.3f}]"
    for mode in ("greedy", "sampled"):
        before, after, change = first[mode], last[mode], evaluation["difference"][mode]
        name = "greedy pass@1" if mode == "greedy" else f"sampled pass@1 ({after['samples']} a problem, T = 1)"
        lines.append(
            f"| {name} | {before['pass@1']:.3f} {bracket(before)} | {after['pass@1']:.3f} {bracket(after)} | "
            f"{change['difference']:+.3f} {bracket(change, '+')} |"
        )
    for key, name in (("format", "well-formed (sampled)"), ("mean_length", "tokens (sampled)")):
        before, after = first["sampled"][key], last["sampled"][key]
        lines.append(f"| {name} | {before:.3f} | {after:.3f} | {after - before:+.3f} |")
    return "\n".join(lines)


def page(workdir: Path, name: str, command: str) -> str:
    """The whole page."""
    config = json.loads((workdir / "config.json").read_text())
    evaluation = json.loads((workdir / "evaluation.json").read_text())
    steps = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    times = [line["time/step_s"] for line in steps if "time/step_s" in line]
    where = config["environment"]
    date = time.strftime("%Y-%m-%d", time.gmtime((workdir / "evaluation.json").stat().st_mtime))
    return f"""# {name}: {config["estimator"]["name"]} on {config["task"]}

{table(evaluation)}

Brackets: 95 % intervals over problems (Wilson for greedy, bootstrap by problem for sampled, paired for the change). One
run, one seed ({config["seed"]}): they say nothing about another seed of training.

`{command}`, commit {where["commit"]}, {date}, {where["processor"]}, {where["cores"]} cores, {where["device"]}, Python
{where["python"]}, jax {where["jax"]}. Seconds a step (min / median / max): {min(times):.1f} /
{statistics.median(times):.1f} / {max(times):.1f}, the first with compilation; {sum(times):.0f} s in {len(times)} steps.

![pass@1 by step]({name}-pass.png)
"""


def main(arguments: list[str]) -> int:
    if len(arguments) != 3:
        sys.stderr.write(__doc__)
        return 2
    workdir, name, command = Path(arguments[0]), arguments[1], arguments[2]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(page(workdir, name, command))
    shutil.copy(workdir / "plots" / "pass.png", RESULTS / f"{name}-pass.png")
    print(f"wrote {RESULTS / name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
