"""How the costs of sampling and of an update grow with group size, completion length, batch and vocabulary.

    python tests/bench/growth.py                (--record: writes experiments/results/growth.md and growth.png)

A small decoder with random weights, so that every point can be compiled in seconds: the exponents are of this size,
and the constants are no one's. One variable is changed at a time; the others stay at BASE. Ours shares prompts within
a group, sampling and updating. Tunix is measured at BASE and at the largest value of each variable, when its python is
found (see peers.py).
Each point is the least of the rounds. Minutes on two cores, most of them compiling.
"""

from __future__ import annotations

import argparse
import datetime
import io
import math
import shlex
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE)]

import matplotlib  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from peers import RESULTS, TITLES, markdown, show  # noqa: E402
from PIL import Image  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import track  # noqa: E402
from systems import Failed, Running, find_systems  # noqa: E402
from work import Geometry, Job  # noqa: E402

SMALL = {"width": 192, "layers": 4, "heads": 3, "kv_heads": 1, "head_size": 64, "hidden": 512}
BASE = {"group": 8, "length": 64, "prompts": 4, "vocabulary": 8192}
PROMPT_LENGTH = 64
POINTS = {
    "group": (2, 8, 16, 32),
    "length": (16, 64, 128, 256),
    "prompts": (1, 4, 8, 16),
    "vocabulary": (2048, 8192, 16_384, 32_768),
}
LABELS = {
    "group": "completions of a prompt",
    "length": "tokens of a completion",
    "prompts": "prompts in a batch",
    "vocabulary": "vocabulary",
}
COSTS = {"sample": "sampling", "update": "an update"}
COLOURS = {"sample": "#0072B2", "update": "#D55E00"}
LINES = {"ours": ("-", "o"), "tunix": ("--", "s")}


def point(kind: str, **changes) -> tuple[Job, Geometry]:
    """The job and the decoder of BASE with some of it changed."""
    values = {**BASE, **changes}
    job = Job(
        kind=kind,
        prompts=values["prompts"],
        group=values["group"],
        prompt_length=PROMPT_LENGTH,
        length=values["length"],
        shared=True,
    )
    return job, Geometry(**SMALL, vocabulary=values["vocabulary"])


def wanted(system: str, points=None) -> list[dict]:
    """The points that a system is measured at: all for ours, the largest of each variable for a peer; BASE once."""
    points = POINTS if points is None else points
    found = [{}]
    for variable, values in points.items():
        for value in values if system == "ours" else values[-1:]:
            if value != BASE[variable]:
                found.append({variable: value})
    return found


def measure(tasks, running: dict[str, Running], rounds: int, say) -> list[dict]:
    """[{"system", "kind", …what differs from BASE, "seconds"}]; a point that fails has no seconds and is said."""
    found = []
    for system, kind, changes in tasks:
        one = {"system": system, "kind": kind, **changes}
        try:
            running[system].set_up(point(kind, **changes)[0], "growth", point(kind, **changes)[1])
            one["seconds"] = min(running[system].call(round_ + 1)["seconds"] for round_ in range(rounds))
            say(f"{system} {kind} {changes or 'base'}: {one['seconds']:.3f} s")
        except Failed as failure:
            say(f"{system} {kind} {changes or 'base'} failed: {failure}")
        found.append(one)
    return found


def series(found: list[dict], system: str, kind: str, variable: str) -> list[tuple[int, float]]:
    """(value, seconds) along one variable, BASE's point among them, in order."""
    pairs = []
    for one in found:
        changed = set(one) - {"system", "kind", "seconds"}
        if one["system"] == system and one["kind"] == kind and changed <= {variable} and "seconds" in one:
            pairs.append((one.get(variable, BASE[variable]), one["seconds"]))
    return sorted(pairs)


def exponent(pairs: list[tuple[int, float]]) -> float:
    """The slope between the two largest values in logarithms: 1 where the cost doubles with the value; NaN for fewer
    than two."""
    if len(pairs) < 2:
        return math.nan
    (a, first), (b, last) = pairs[-2:]
    return math.log(last / first) / math.log(b / a)


# ---- words and picture

COLUMNS = ("variable", "cost", "system", "seconds by value", "last ÷ first", "exponent at the end")


def lines(found: list[dict]) -> list[list[str]]:
    made = []
    for variable, label in LABELS.items():
        for kind, cost in COSTS.items():
            for system in LINES:
                pairs = series(found, system, kind, variable)
                if len(pairs) < 2:
                    continue
                text = ", ".join(f"{value:,}: {seconds:.3f}" for value, seconds in pairs)
                grown = f"{pairs[-1][1] / pairs[0][1]:.1f} for {pairs[-1][0] / pairs[0][0]:.0f} ×"
                made.append([label, cost, TITLES[system], text, grown, f"{exponent(pairs):.2f}"])
    return made


def draw(found: list[dict]) -> bytes:
    """A panel for each variable, both axes logarithmic; the bytes of a PNG."""
    from rlvr_jax.report.drawing import STYLE

    with matplotlib.rc_context({**STYLE, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(10, 7.4), layout="constrained")
        for axis, (variable, label) in zip(figure.subplots(2, 2, sharey=True).flat, LABELS.items()):
            for kind, cost in COSTS.items():
                for system, (dash, mark) in LINES.items():
                    pairs = series(found, system, kind, variable)
                    if pairs:
                        values, seconds = zip(*pairs)
                        name = f"{cost}, {TITLES[system]}"
                        axis.plot(values, seconds, dash, marker=mark, color=COLOURS[kind], label=name, markersize=5)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log")
            axis.set_xticks(POINTS[variable], [f"{value:,}" for value in POINTS[variable]])
            axis.minorticks_off()
            axis.set_xlabel(label)
            axis.set_title(label)
        for axis in figure.axes[::2]:
            axis.set_ylabel("seconds")
        handles, names = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper left", ncol=4, fontsize=10)
        drawn, packed = io.BytesIO(), io.BytesIO()
        figure.savefig(drawn, dpi=110, format="png")
    Image.open(drawn).convert("RGB").quantize(128, dither=Image.Dither.NONE).save(packed, "PNG", optimize=True)
    return packed.getvalue()


def page(found: list[dict], command: str, rounds: int, missing: list[str]) -> str:
    """growth.md."""
    from rlvr_jax.workdir import environment

    where = environment()
    base = ", ".join(f"{label} {BASE[variable]:,}" for variable, label in LABELS.items())
    sizes = ", ".join(f"{name} {value}" for name, value in SMALL.items())
    left_out = "".join(f"\n- {line}" for line in missing)
    return f"""# How the costs grow

![seconds by group size, completion length, batch and vocabulary](growth.png)

{markdown(COLUMNS, lines(found))}

`{command}`, commit {where["commit"]}, {datetime.date.today()}, {where["processor"]}, {where["cores"]} cores, jax
{where["jax"]}. Least of {rounds} rounds, compiled and warm. One variable changes, the others stay at: {base}; prompts
of {PROMPT_LENGTH} tokens. Not SmolLM2's sizes but a small decoder's ({sizes}), so that all points take minutes: what
the figure shows is how costs grow, not what they are. Exponent: 1 where doubling the value doubles the seconds,
0 where it costs nothing, taken between the two largest values. The systems were measured one point after the other, not
in turns, so that their ratios are rougher than those of `speed.md`.{left_out}
"""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--systems", nargs="+", choices=list(LINES), default=list(LINES))
    parser.add_argument("--record", action="store_true", help=f"write growth.md and growth.png to {RESULTS}")
    args = parser.parse_args(arguments)
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: must be at least 1")
    console = Console(width=None if sys.stdout.isatty() else 160)
    systems = find_systems(args.systems)
    missing = [system.missing for system in systems if system.missing]
    for line in missing:
        console.print(line)
    running = {system.name: Running(system) for system in systems if not system.missing}
    tasks = [(who, kind, changes) for who in running for kind in COSTS for changes in wanted(who)]
    try:
        shown = track(tasks, description="points", console=console, transient=True)
        found = measure(shown, running, args.rounds, console.print)
    finally:
        for process in running.values():
            process.close()
    show(console, "how the costs grow", COLUMNS, lines(found))
    if args.record:
        RESULTS.mkdir(exist_ok=True)
        command = shlex.join(["python", "tests/bench/growth.py", *(sys.argv[1:] if arguments is None else arguments)])
        (RESULTS / "growth.png").write_bytes(draw(found))
        (RESULTS / "growth.md").write_text(page(found, command, args.rounds, missing))
        console.print(f"wrote {RESULTS / 'growth.md'} and growth.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
