"""Runs what is missing of tables: python -m experiments.launch TABLE [TABLE ...]

Toy tables run a block (one case, one seed, all arms and columns) at a time in one compiled program, each table in a
process of one thread, --jobs of them side by side; their results do not depend on --jobs. Tables of real models run
after them, `rlvr train` once a run with the whole machine. What is complete is skipped, so a launch that was stopped
is started again.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from experiments.checks import check, check_runnable
from experiments.launch_file import LaunchRecord, write_panels
from experiments.pool import Interrupted, job_of, run_jobs
from experiments.real import on_base
from experiments.runs import Runs, Status, write_lab_run
from experiments.slices import Slice, parse_slice, slice_lines, train_command
from experiments.table import ROOT, RunKey, Table, all_tables, block_keys, load
from rlvr_jax.compiles import CompileCounter
from rlvr_jax.metrics import progress
from rlvr_jax.workdir import environment

EXAMPLES = """Examples:
  python -m experiments.launch anatomy
  python -m experiments.launch --all --jobs 2
  python -m experiments.launch smollm2 --slice v5e:4x4      (prints the commands for such a slice)"""


class Plan(NamedTuple):
    """A table, what lies there of its runs, and which of them are to be run."""

    table: Table
    runs: Runs
    statuses: dict[RunKey, Status]
    todo: list[RunKey]


def parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m experiments.launch", description=__doc__, epilog=EXAMPLES, formatter_class=form
    )
    top.add_argument("tables", nargs="*", metavar="TABLE", help="names of experiments/tables/*.py")
    top.add_argument("--all", action="store_true", help="every toy table; a real model's is named")
    top.add_argument("--jobs", type=int, default=1, metavar="N", help="toy tables side by side (default: %(default)s)")
    top.add_argument("--root", default="runs/tables", metavar="DIR", help="where runs lie (default: %(default)s)")
    top.add_argument("--seeds", type=int, metavar="N", help="only the first N seeds of a table")
    top.add_argument("--base", metavar="CONFIG", help="the arms of toy tables on a real model: configs/pod.py:grpo")
    top.add_argument("--slice", metavar="KIND:TOPOLOGY", help="print the commands for a TPU slice, run nothing")
    top.add_argument("--dry-run", action="store_true", help="say what would run")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Launches; an error of the user's is one line on stderr and exit status 2, Ctrl-C is 130."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(arguments)
    command = shlex.join(["python", "-m", "experiments.launch", *arguments])
    try:
        if options.jobs < 1:
            raise ValueError(f"--jobs={options.jobs}: at least 1")
        where = parse_slice(options.slice) if options.slice else None
        tables = rebased(chosen_tables(options.tables, options.all), options.base)
        for table in tables:  # all of them before the first runs
            check(table)
            if not (options.base and where):  # the model and the problems need not be where commands are printed
                check_runnable(table)
            seeds_of(table, options.seeds)
        if where:
            for table in tables:
                launch(table, options.root, options.seeds, where)
            return 0
        plans = [survey(table, options.root, options.seeds) for table in tables]
        failed = _launch_all(plans, options, command)
    except (ValueError, OSError, ImportError) as error:
        print(f"launch: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except Interrupted as stop:
        print(f"launch: interrupted; {stop}. The same command goes on from there:\n  {command}", file=sys.stderr)
        return 130
    if failed:
        names = ", ".join(failed)
        print(f"launch: {len(failed)} of {len(plans)} tables failed: {names}. See above", file=sys.stderr)
    return 1 if failed else 0


def _launch_all(plans: Sequence[Plan], options: argparse.Namespace, command: str) -> list[str]:
    """Says what there is; runs the rest unless it is a dry run. Returns the names of tables that failed."""
    console = Console(highlight=False)
    say = lambda text: console.print(text, soft_wrap=True, markup=False)
    for plan in plans:  # all of them before the first runs
        refuse_different(plan)
    for plan in plans:
        describe(plan, say)
    if options.dry_run:
        return []
    jobs = [job_of(p.table, p.runs, p.todo) for p in plans if p.table.toy and (p.todo or p.table.panels)]
    failures = run_jobs(jobs, options.jobs, options.root, options.seeds, command, console)
    for plan in plans:
        if not plan.table.toy:
            carry_out(plan, command, say)
    return [failure.table for failure in failures]


def chosen_tables(names: Sequence[str], every: bool) -> list[Table]:
    """The tables a command line names; all toy tables with `every`.

    Raises:
      ValueError: none, both --all and names, or an unknown one.
    """
    if every == bool(names):
        raise ValueError("name one table or more, or give --all (not both)")
    return [table for table in all_tables() if table.toy] if every else [load(name) for name in dict.fromkeys(names)]


def rebased(tables: Sequence[Table], base: str | None) -> list[Table]:
    """The tables on another base's config (see `experiments.real`), saying on stderr what is left out of each."""
    if not base:
        return list(tables)
    moved = []
    for table in tables:
        real, gone = on_base(table, base)
        print(f"# {real.name}: {len(gone)} left out" + "".join(f"\n#   {what}" for what in gone), file=sys.stderr)
        moved.append(real)
    return moved


def seeds_of(table: Table, number: int | None) -> tuple[int, ...]:
    """The first `number` seeds of a table; all with None."""
    if number is not None and table.seeds and not 1 <= number <= len(table.seeds):
        raise ValueError(f"--seeds={number}: table {table.name} has {len(table.seeds)} seeds; 1 to {len(table.seeds)}")
    return table.seeds[:number]


def launch(
    table: Table,
    root: str | Path,
    seeds: int | None = None,
    where: Slice | None = None,
    dry_run: bool = False,
    command: str = "",
) -> None:
    """Runs what is missing of a checked table in this process, with as many threads as it has, and shows how far it is;
    or prints the commands for a slice, or what it would do.

    Raises:
      ValueError: a run of another config lies there, or a run failed. Interrupted: on Ctrl-C.
    """
    console = Console(highlight=False)
    say = lambda text: console.print(text, soft_wrap=True, markup=False)
    plan = survey(table, root, seeds)
    if where:
        for line in slice_lines(table, plan.runs, list(plan.statuses), where):
            print(line)
        return
    refuse_different(plan)
    describe(plan, say)
    if not dry_run:
        carry_out(plan, command, say)


def survey(table: Table, root: str | Path, seeds: int | None = None) -> Plan:
    """What lies at `root` of a checked table."""
    runs = Runs(table, root)
    statuses = runs.statuses(seeds_of(table, seeds))
    return Plan(table, runs, statuses, [key for key, status in statuses.items() if status.kind != "complete"])


def refuse_different(plan: Plan) -> None:
    """Raises ValueError if a run of another config lies there."""
    for key, status in plan.statuses.items():
        if status.kind == "different":
            raise ValueError(
                f"table {plan.table.name}: {plan.runs.path(key)} holds a run of another config (there → here): "
                f"{status.detail}. Give another --root, or delete that run"
            )


def describe(plan: Plan, say: Callable[[str], None]) -> None:
    """How much there is, how much is to be run, and what was begun."""
    say(f"{plan.table.name}: {_counts(plan.table, plan.statuses, plan.todo)}")
    for key, status in plan.statuses.items():
        if status.kind == "partial":
            say(f"  {key}: {status.detail}; {'run again' if plan.table.toy else 'goes on from its checkpoint'}")


def carry_out(plan: Plan, command: str, say: Callable[[str], None], report: Callable[[], None] | None = None) -> None:
    """Runs what is to be run, and the panels. `report` is called after every block of a toy table, instead of a bar.

    Raises:
      ValueError: a run or a panel failed. Interrupted: on Ctrl-C.
    """
    table, runs, statuses, todo = plan
    record = LaunchRecord(runs.root / table.name, table, command, skipped=len(statuses) - len(todo))
    if todo and table.toy:
        _run_toy(plan, record, say, report)
    elif todo:
        _run_real(plan, record, say)
    write_panels(table, runs.root, say)


def _counts(table: Table, statuses: dict[RunKey, Status], todo: list[RunKey]) -> str:
    kinds = Counter(status.kind for status in statuses.values())
    parts = [f"{len(statuses)} runs", f"{kinds['complete']} complete", f"{len(todo)} to run"]
    if table.toy and todo:
        parts[-1] += f" in {len({(key.case, key.seed) for key in todo})} blocks"
    if kinds["partial"]:
        parts.append(f"{kinds['partial']} of them begun or unreadable")
    return ", ".join(parts)


def _run_toy(plan: Plan, record: LaunchRecord, say, report) -> None:
    """Block by block. A block with a missing run is computed as a whole, since it is one program; runs that are
    complete are left as they are."""
    from rlvr_jax.lab import run_block

    table, runs, statuses, todo = plan
    blocks = list(dict.fromkeys((key.case, key.seed) for key in todo))
    where = environment()
    done = 0
    with CompileCounter() as compiles:
        try:
            for case, seed in progress(blocks, f"{table.name} (blocks)", quiet=report is not None):
                keys = block_keys(table, case, seed)
                references = {key.column: runs.config(key) for key in keys if key.arm == table.reference}
                reference = references.get("raw", next(iter(references.values())))
                start = time.perf_counter()
                curves = run_block([runs.config(key) for key in keys], reference)
                seconds = time.perf_counter() - start
                missing = [key for key in keys if statuses[key].kind != "complete"]
                for key, curve in zip(keys, curves, strict=True):
                    if key in missing:
                        write_lab_run(runs.path(key), curve, runs.config(key), where)
                done += 1
                updates = sum(_updates(runs, key) for key in keys)
                record.add(where, seconds, compiles.take(), updates, len(missing))
                if report is not None:
                    report()
        except KeyboardInterrupt:
            raise Interrupted(f"{done} of {len(blocks)} blocks of {table.name} are done and kept") from None
    say(f"  {record.summary()}")


def _updates(runs: Runs, key: RunKey) -> int:
    """Optimiser updates of a run."""
    flat = runs.expected(key)
    return flat.get("steps", 0) * flat.get("updates.epochs", 1) * flat.get("updates.minibatches", 1)


def _run_real(plan: Plan, record: LaunchRecord, say) -> None:
    """Run by run, all arms of the first seed before the second: whole pairs, wherever it is stopped."""
    table, runs, _, todo = plan
    where = environment()
    begin = time.perf_counter()
    for number, key in enumerate(todo):
        elapsed = time.perf_counter() - begin
        left = f", about {elapsed / number * (len(todo) - number) / 60:.0f} min left" if number else ""
        say(f"run {number + 1} of {len(todo)}: {key} ({elapsed / 60:.0f} min so far{left})")
        start = time.perf_counter()
        code = run_command(train_command(table, runs, key, sys.executable))
        if code in (130, -2):
            raise Interrupted(f"{number} of {len(todo)} runs of {table.name} are done and kept")
        if code:
            raise ValueError(f"table {table.name}: the run {key} ended with exit status {code}; its message is above")
        status = runs.status(key)
        if status.kind != "complete":
            raise ValueError(
                f"table {table.name}: the run {key} ended, but is not whole: {status.detail or status.kind}"
            )
        record.add(where, time.perf_counter() - start, _compiled(runs, key), _updates(runs, key), 1)
    say(f"  {record.summary()}")


def _compiled(runs: Runs, key: RunKey) -> tuple[int, float]:
    """(programs, seconds) that a real run says it compiled."""
    found = runs.read(key, ("time/compilations", "time/compile_s"))
    programs, seconds = (float(np.nansum(found.get(name, 0.0))) for name in ("time/compilations", "time/compile_s"))
    return round(programs), seconds


def run_command(words: Sequence[str]) -> int:
    """Runs a command in the checkout, its output shown; its exit status, 130 when interrupted. Ctrl-C reaches the
    command by itself: it gets the time to end."""
    process = subprocess.Popen(words, cwd=ROOT)
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            process.wait(timeout=30)
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            process.terminate()
        return 130


if __name__ == "__main__":
    sys.exit(main())
