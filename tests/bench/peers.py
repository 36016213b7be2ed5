"""This project beside Tunix and transformers + TRL on the same jobs, in one run: seconds, ratios, memory, ceilings.

    python tests/bench/peers.py                 (--record: writes experiments/results/speed.md and speed.json)
    python tests/bench/peers.py --rounds 1 --jobs update sample16 --systems ours tunix

SmolLM2-135M's sizes with random float32 weights. For each job every system starts a process that does nothing else,
so that its peak of memory is the job's; all make their first call, which compiles; then they take turns (A B C A B C)
for the rounds, and whoever has no turn waits on its standard input. What the machine can do is measured in every round
too. The peers' pythons are RLVR_TUNIX_PYTHON and RLVR_TRL_PYTHON, or .venv-tunix and .venv-trl of `make test-oracles`;
a peer that is not installed is named and left out. 5 rounds of everything take 30 to 60 minutes on two cores, most of
it the peers' `realistic`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import shlex
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE)]

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from rich.table import Table  # noqa: E402
from roofline import roofline  # noqa: E402
from systems import CEILINGS, Failed, Running, find_systems  # noqa: E402
from work import JOBS, SMOLLM2, Geometry, Job, useful_tokens  # noqa: E402

RESULTS = ROOT / "experiments" / "results"
SYSTEMS = ("ours", "tunix", "trl")
RATES = {"matmul_gflops": "GFLOP/s", "read_gbs": "GB/s", "small_gbs": "GB/s"}
# What was set as the goal before anything was measured: (job, peer) → times as fast; peer → share of its memory.
GOALS = {
    ("sample16", "tunix"): 1.6,
    ("sample64", "tunix"): 2.0,
    ("realistic", "tunix"): 4.0,
    ("sample16", "trl"): 3.3,
    ("sample64", "trl"): 3.3,
    ("realistic", "trl"): 3.3,
    ("update", "tunix"): 1.2,
    ("update_shared", "tunix"): 1.7,
    ("update_demo", "tunix"): 3.0,
}
# Jobs that take minutes a round get fewer of them; the page says so.
MOST_ROUNDS = {"sample64": 3, "update_demo": 3, "realistic": 1}
MEMORY_GOAL = {("update", "tunix"): 0.5, ("update_shared", "tunix"): 0.5, ("update_demo", "tunix"): 0.5}


# ---- measuring


def measure(jobs: dict[str, Job], systems, rounds: int, geometry: Geometry, say, ceilings=CEILINGS) -> dict:
    """{job: {"systems": {name: measured, or {"error"}}, "ceilings": [one dict a round]}}.

    Measured: version, first_seconds, seconds and tokens (one a round), peak_gib (of the process), call_gib (of the
    last call). `say(job, round, what)` tells a person what is going on.
    """
    found = {}
    for name, job in jobs.items():
        results, rates = {}, []
        with contextlib.ExitStack() as stack:
            running = {}
            for system in (*systems, *([ceilings] if ceilings else [])):
                say(name, 0, f"{system.title} starts and compiles")
                with failures_in(results, system.name, say, name):
                    process = Running(system)
                    stack.callback(process.close)
                    process.set_up(job, name, geometry)
                    running[system.name] = process
                    if system is not ceilings:
                        results[system.name] = begin(process)
            for round_ in range(1, min(rounds, MOST_ROUNDS.get(name, rounds)) + 1):
                for who, process in list(running.items()):
                    say(name, round_, process.system.title)
                    with failures_in(results, who, say, name):
                        reply = process.call(round_)
                        if process.system is ceilings:
                            rates.append({key: reply[key] for key in RATES})
                        else:
                            note(results[who], reply)
                        continue
                    del running[who]
        found[name] = {"systems": results, "ceilings": rates}
        say(name, rounds, None)
    return found


def begin(process: Running) -> dict:
    return {
        "version": process.version,
        "first_seconds": process.first_seconds,
        "seconds": [],
        "tokens": [],
        "peak_gib": 0.0,
        "call_gib": 0.0,
    }


def note(result: dict, reply: dict) -> None:
    result["seconds"].append(reply["seconds"])
    result["tokens"].append(reply["tokens"])
    result["peak_gib"] = max(result["peak_gib"], reply["peak_gib"])
    result["call_gib"] = reply["call_gib"]


@contextlib.contextmanager
def failures_in(results: dict, who: str, say, job: str):
    """A system that fails is out of this job, and the others go on."""
    try:
        yield
    except Failed as failure:
        results[who] = {"error": str(failure)}
        say(job, 0, f"{who} failed: {failure}")


# ---- arithmetic


def ratios(ours: list[float], theirs: list[float]) -> dict[str, float]:
    """Round by round ours / theirs: median, min and max."""
    each = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {"median": statistics.median(each), "min": min(each), "max": max(each)}


def speeds(result: dict) -> list[float]:
    """Useful tokens a second, one a round."""
    return [tokens / seconds for tokens, seconds in zip(result["tokens"], result["seconds"])]


def summarise(measured: dict, jobs: dict[str, Job], geometry: Geometry) -> list[dict]:
    """A row for each job and system, and in each job's first row what the machine allows."""
    rows = []
    for name, one in measured.items():
        ours = one["systems"].get("ours", {})
        for who, result in one["systems"].items():
            row = {"job": name, "system": who, "useful_tokens": useful_tokens(jobs[name])}
            if not result.get("seconds"):
                rows.append({**row, "error": result.get("error", "no round")})
                continue
            middle = statistics.median(result["seconds"])
            row |= {
                "seconds": {"median": middle, "min": min(result["seconds"]), "max": max(result["seconds"])},
                "tokens_per_second": statistics.median(speeds(result)),
                "compile_seconds": result["first_seconds"] - middle,
                "peak_gib": result["peak_gib"],
                "call_gib": result["call_gib"],
            }
            if who != "ours" and len(ours.get("seconds", [])) == len(result["seconds"]):
                row |= {
                    "speed_ratio": ratios(speeds(ours), speeds(result)),
                    "memory_ratio": ours["peak_gib"] / result["peak_gib"],
                    "speed_goal": GOALS.get((name, who)),
                    "memory_goal": MEMORY_GOAL.get((name, who)),
                }
            if who == "ours" and one["ceilings"]:
                rates = {key: statistics.median(rate[key] for rate in one["ceilings"]) for key in RATES}
                row["ceilings"] = rates
                row["roofline"] = roofline(jobs[name], geometry, *(rates[key] for key in RATES))
            rows.append(row)
    return rows


def ceilings_of(measured: dict) -> dict:
    """rate → median, min and max over all rounds of all jobs."""
    all_rates = [rates for one in measured.values() for rates in one["ceilings"]]
    of = lambda key: [rates[key] for rates in all_rates]
    return {
        key: {"median": statistics.median(of(key)), "min": min(of(key)), "max": max(of(key))}
        for key in (RATES if all_rates else ())
    }


# ---- words


TITLES = {"ours": "rlvr_jax", "tunix": "Tunix", "trl": "transformers + TRL"}
COLUMNS = (
    "job", "system", "seconds (min – max)", "tokens/s", "ours × as fast (min – max)", "goal", "compile s",
    "peak GiB", "ours / theirs",
)  # fmt: skip
ROOF_COLUMNS = ("job", "GFLOP", "GB", "floor s", "16-row floor s", "ours s", "ours / floor", "bound by")


def cells(row: dict) -> list[str]:
    """A row of the table of systems, as text; a goal that is met carries a tick, one that is not a cross."""
    start = [row["job"], TITLES.get(row["system"], row["system"])]
    if "error" in row:
        return [*start, f"failed: {row['error']}", *[""] * (len(COLUMNS) - 3)]
    spread = lambda three, digits: (
        f"{three['median']:.{digits}f} ({three['min']:.{digits}f} – {three['max']:.{digits}f})"
    )
    ratio, goal, memory = row.get("speed_ratio"), row.get("speed_goal"), row.get("memory_ratio")
    share = row.get("memory_goal")
    return [
        *start,
        spread(row["seconds"], 2),
        f"{row['tokens_per_second']:.0f}",
        spread(ratio, 2) if ratio else "",
        f"≥ {goal} {mark(ratio['median'] >= goal)}" if goal else "",
        f"{row['compile_seconds']:.1f}",
        f"{row['peak_gib']:.2f}",
        "" if memory is None else f"{memory:.2f}" + (f" (goal ≤ {share} {mark(memory <= share)})" if share else ""),
    ]


def mark(met: bool) -> str:
    return "✓" if met else "✗"


def roof_cells(row: dict) -> list[str]:
    roof, seconds = row["roofline"], row["seconds"]["median"]
    small = roof["floor_small_seconds"]
    return [
        row["job"],
        f"{roof['operations'] / 1e9:.0f}",
        f"{roof['bytes'] / 1e9:.1f}",
        f"{roof['floor_seconds']:.2f}",
        f"{small:.2f}" if small else "",
        f"{seconds:.2f}",
        f"{seconds / roof['floor_seconds']:.2f}",
        ", ".join(f"{phase}: {bound}" for phase, bound in roof["bound_by"].items()),
    ]


def show(console: Console, title: str, columns, lines) -> None:
    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < 2 else "right", overflow="fold")
    last = None
    for line in lines:
        if last not in (None, line[0]):
            table.add_section()
        table.add_row(line[0] if line[0] != last else "", *line[1:])
        last = line[0]
    console.print(table)


def markdown(columns, lines) -> str:
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([*head, *("| " + " | ".join(line) + " |" for line in lines)])


def ceiling_words(ceilings: dict) -> str:
    words = {
        "matmul_gflops": "float32 product of 2,048 × 2,048",
        "read_gbs": "reading 1 GiB",
        "small_gbs": "[16, 576] × [576, 1536] over 90 weights, one after the other",
    }
    return "; ".join(
        f"{words[key]}: {rate['median']:.0f} {RATES[key]} ({rate['min']:.0f} – {rate['max']:.0f})"
        for key, rate in ceilings.items()
    )


def page(report: dict) -> str:
    """speed.md."""
    where, rows = report["environment"], report["rows"]
    roofs = [roof_cells(row) for row in rows if "roofline" in row]
    missing = "".join(f"\n- {line}" for line in report["missing"])
    fewer = ", ".join(f"{name} {count}" for name, count in MOST_ROUNDS.items())
    return f"""# Speed and memory beside the peers

{markdown(COLUMNS, [cells(row) for row in rows])}

`{report["command"]}`, commit {where["commit"]}, {report["date"]}, {where["processor"]}, {where["cores"]} cores,
Python {where["python"]}. {"; ".join(report["versions"].values())}. {report["rounds"]} rounds in which the systems took
turns ({fewer}); all were compiled and warm.
Seconds and ratios: median over the rounds; a ratio is taken within each round, of
useful tokens a second, and above 1 means that rlvr_jax is faster. Peak GiB: most resident memory of a process that did
this job and nothing else, compilation included. Compile s: the first call less a later one. Goals were set before
measuring.{missing}

Jobs, on SmolLM2-135M's sizes with random float32 weights: `sample16` and `sample64` sample 64 tokens for 16 and 64
prompts of 64; `realistic` 8 completions for each of 16 prompts of 64, their lengths drawn once from a geometric
distribution of mean 48, cut at 256, the same for all (the peers' samplers keep every row until the longest has
ended); `update` is an AdamW step on 8 rows of 64 + 128 tokens with different prompts, `update_shared` with one prompt
for all 8, `update_demo` on 8 prompts of 51 × 8 completions of 12. Peers have no rows that share a prompt and compute it
again; they do `update_demo` in micro-batches of 16 rows, ours as its script says.

## What the machine allows

{ceiling_words(report["ceilings"])}.

{markdown(ROOF_COLUMNS, roofs) if roofs else "Ours was not measured."}

The floor takes the ceilings of the job's own rounds: operations and memory traffic of an ideal program that shares
prompts, drops rows that have ended and overlaps both kinds of work. The 16-row floor takes the decode step's weights
at the rate at which products of 16 rows read them on this machine.
"""


# ---- the command


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", nargs="+", choices=list(JOBS), default=list(JOBS))
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--record", action="store_true", help=f"write speed.md and speed.json to {RESULTS}")
    args = parser.parse_args(arguments)
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds}: must be at least 1")
    console = Console(width=None if sys.stdout.isatty() else 160)
    systems = find_systems(args.systems)
    missing = [system.missing for system in systems if system.missing]
    systems = [system for system in systems if not system.missing]
    for line in missing:
        console.print(line)
    jobs = {name: JOBS[name] for name in args.jobs}
    measured, report = {}, {}
    for name in jobs:  # what is done is kept, should the next one be interrupted
        measured |= watched(console, {name: jobs[name]}, systems, args.rounds)
        report = make_report(measured, {key: jobs[key] for key in measured}, args.rounds, missing, arguments)
        if args.record:
            RESULTS.mkdir(exist_ok=True)
            (RESULTS / "speed.md").write_text(page(report))
            (RESULTS / "speed.json").write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    show(console, "speed and memory", COLUMNS, [cells(row) for row in report["rows"]])
    show(console, "what the machine allows", ROOF_COLUMNS, [roof_cells(r) for r in report["rows"] if "roofline" in r])
    console.print(ceiling_words(report["ceilings"]))
    where = report["environment"]
    console.print(f"{where['processor']}, {where['cores']} cores, commit {where['commit']}, {report['date']}")
    console.print(f"{len(missing)} of {len(args.systems)} systems left out")
    if args.record:
        console.print(f"wrote {RESULTS / 'speed.md'} and speed.json")
    failed = [row for row in report["rows"] if row["system"] == "ours" and "error" in row]
    return 1 if failed else 0


def watched(console: Console, jobs, systems, rounds: int) -> dict:
    """`measure` with a line for every call that has ended, and a bar of the rounds on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[now]}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        tasks = {name: progress.add_task(name, total=rounds, now="waits", start=False) for name in jobs}

        def say(job, round_, what):
            if what is None:
                progress.update(tasks[job], completed=rounds, now="done")
                progress.stop_task(tasks[job])
                return
            progress.start_task(tasks[job])
            progress.update(tasks[job], completed=max(round_ - 1, 0), now=f"round {round_} of {rounds}: {what}")
            if round_ == 0 or not console.is_terminal:
                progress.console.print(f"{job:14} {f'round {round_}' if round_ else 'before'}: {what}", highlight=False)

        return measure(jobs, systems, rounds, SMOLLM2, say)


def make_report(measured: dict, jobs: dict[str, Job], rounds: int, missing, arguments=None) -> dict:
    """All that is recorded, as plain values."""
    from rlvr_jax.workdir import environment  # imports jax, which the children do better without

    words = sys.argv[1:] if arguments is None else arguments
    versions = {}
    for one in measured.values():
        versions |= {who: result["version"] for who, result in one["systems"].items() if "version" in result}
    return {
        "command": shlex.join(["python", "tests/bench/peers.py", *words]),
        "date": datetime.date.today().isoformat(),
        "environment": environment(),
        "versions": versions,
        "rounds": rounds,
        "missing": list(missing),
        "ceilings": ceilings_of(measured),
        "rows": summarise(measured, jobs, SMOLLM2),
        "measured": measured,
    }


if __name__ == "__main__":
    sys.exit(main())
