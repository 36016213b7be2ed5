"""Tables, figures and verdicts out of runs: python -m experiments.tabulate TABLE [TABLE ...]

Writes table.md, table.csv, page.html, verdicts.json and figures to experiments/results/tables/TABLE, and the claims of
all tables there to README.md above them; reads nothing but the table and the files of its runs, so a second call
writes the same bytes.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group
from rich.table import Table as Grid
from rich.text import Text

from experiments import text, verdicts
from experiments.checks import check
from experiments.figures import FIGURES, draw
from experiments.launch import chosen_tables, rebased, seeds_of
from experiments.markdown import csv_text, markdown
from experiments.page import page
from experiments.runs import Unreadable
from experiments.summary import Judged, Summary, summarise
from experiments.table import Table

RESULTS = "experiments/results/tables"
EXAMPLES = """Examples:
  python -m experiments.tabulate anatomy
  python -m experiments.tabulate --all --partial"""
STYLES = {"holds": "bold green", "the reverse shows here": "bold red", "is step size": "bold yellow"}


def parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(
        prog="python -m experiments.tabulate", description=__doc__, epilog=EXAMPLES, formatter_class=form
    )
    top.add_argument("tables", nargs="*", metavar="TABLE", help="names of experiments/tables/*.py")
    top.add_argument("--all", action="store_true", help="every toy table; a real model's is named")
    top.add_argument("--root", default="runs/tables", metavar="DIR", help="where runs lie (default: %(default)s)")
    top.add_argument("--out", default=RESULTS, metavar="DIR", help="where results go (default: %(default)s)")
    top.add_argument("--seeds", type=int, metavar="N", help="only the first N seeds of a table")
    top.add_argument("--base", metavar="CONFIG", help="the runs of toy tables' arms on a real model (see launch)")
    top.add_argument("--partial", action="store_true", help="tabulate what is there, and say what is missing")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Tabulates; an error of the user's is one line on stderr and exit status 2."""
    options = parser().parse_args(arguments)
    console = Console(highlight=False)
    try:
        for table in rebased(chosen_tables(options.tables, options.all), options.base):
            check(table)
            seeds = seeds_of(table, options.seeds)
            tabulate(table, options.root, options.out, seeds, options.partial, console)
    except (ValueError, OSError, ImportError, Unreadable) as error:
        print(f"tabulate: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


def tabulate(
    table: Table,
    root: str | Path,
    out: str | Path,
    seeds: Sequence[int] | None = None,
    partial: bool = False,
    console: Console | None = None,
) -> Summary:
    """Writes the results of a checked table to out/NAME and out/README.md, and shows its verdicts.

    Raises:
      ValueError: what `summarise` refuses, or another table's verdicts.json that cannot be read.
    """
    summary = summarise(table, root, table.seeds if seeds is None else seeds, partial)
    folder = Path(out) / table.name
    folder.mkdir(parents=True, exist_ok=True)
    for old in FIGURES:
        (folder / old).unlink(missing_ok=True)
    drawn = {path.name for path in draw(summary, folder)}
    contents = {
        "table.md": markdown(summary, drawn),
        "table.csv": csv_text(summary),
        "page.html": page(summary, drawn),
        verdicts.FILE: verdicts.verdicts_text(summary),
    }
    for name, content in contents.items():
        write(folder / name, content)
    write(Path(out) / "README.md", verdicts.overview(out))
    if console is not None:
        console.print(terminal(summary))
        console.print(f"{folder}: {', '.join(sorted([*contents, *drawn]))}", soft_wrap=True, markup=False)
    return summary


def write(path: Path, content: str) -> None:
    """Whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(content, encoding="utf-8")
    os.replace(partial, path)


def terminal(summary: Summary) -> Group:
    """Claims, published numbers and verdicts for a terminal of 80 columns."""
    parts: list = [Text(f"\n{summary.table.title}", style="bold"), *(_claim(summary, one) for one in summary.judged)]
    for name, panel in summary.panels:
        parts.append(Text(f"panel {name}: {text.holds_words(panel) or 'computed'}"))
    if summary.tests:
        parts.append(
            Text(f"Brackets: 95 %. p adjusted by Holm over {summary.family} tests. {len(summary.seeds)} seeds.")
        )
    if summary.missing:
        parts.append(Text(text.missing_words(summary), style="bold red"))
    return Group(*parts)


def _claim(summary: Summary, judged: Judged) -> Group:
    """What is claimed, published, found by case (down) and column (across), and said of it."""
    claim, lines = judged.claim, list(text.claim_lines(summary, judged))
    cases, columns = (list(dict.fromkeys(line[place] for line in lines)) for place in (0, 1))
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_header=any(columns))
    grid.add_column("")
    for column in columns:
        grid.add_column(column, justify="right")
    for case in cases:
        found = {line[1]: line[2] for line in lines if line[0] == case}
        grid.add_row(Text(case), *(Text(found.get(column, "").replace(" [", "\n[")) for column in columns))
    word = judged.verdict.word
    return Group(
        Text.assemble("\n", claim.text, (f" ({claim.source})", "dim")),
        Text(f"published: {claim.published or text.MISSING}"),
        Text.assemble(f"{text.asked_words(summary, judged)} in {claim.measure}: ", (word, STYLES.get(word, "bold"))),
        grid,
    )


if __name__ == "__main__":
    sys.exit(main())
