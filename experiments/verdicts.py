"""verdicts.json of a table, and README.md over all tables whose verdicts lie beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments import text
from experiments.markdown import grid
from experiments.summary import Summary
from rlvr_jax.report.table import MISSING

FILE = "verdicts.json"


def verdicts_text(summary: Summary) -> str:
    """verdicts.json: what README.md says of a table."""
    claims = [
        {
            "claim": judged.claim.text,
            "source": judged.claim.source,
            "published": judged.claim.published,
            "verdict": judged.verdict.word,
            "sentence": judged.verdict.sentence,
        }
        for judged in summary.judged
    ]
    own = {panel.name: panel for panel in summary.table.panels}
    claims += [
        {"claim": own[name].title, "source": own[name].source, "published": "", "verdict": text.holds_words(panel)}
        for name, panel in summary.panels
        if text.holds_words(panel)
    ]
    table = summary.table
    found = {"table": table.name, "title": table.title, "partial": bool(summary.missing), "claims": claims}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def overview(out: str | Path) -> str:
    """README.md: a row for every claim of every table that lies in `out`, in the order of their names.

    Raises:
      ValueError: a verdicts.json that cannot be read.
    """
    rows = []
    for path in sorted(Path(out).glob(f"*/{FILE}")):
        found = _read(path)
        link = f"[{found['table']}]({path.parent.name}/table.md)"
        for one in found["claims"]:
            word = f"**{one['verdict']}**" + (" (runs are missing)" if found["partial"] else "")
            rows.append([link, one["claim"], one["published"] or MISSING, word])
        if not found["claims"]:
            rows.append([link, f"no claim: {found['title']}", MISSING, MISSING])
    heads = ("table", "claim", "published", "here")
    return f"# Claims and verdicts\n\n{INTRODUCTION}\n\n{grid(heads, rows)}\n"


def headline(out: str | Path) -> str:
    """The first claim of every table with its verdict and numbers, for the project's README; tables by name."""
    rows = []
    for path in sorted(Path(out).glob(f"*/{FILE}")):
        found = _read(path)
        if found["claims"] and not found["partial"]:
            one = found["claims"][0]
            link = f"[{found['table']}](experiments/results/tables/{path.parent.name}/table.md)"
            here = f"**{one['verdict']}.** {_first(one.get('sentence', ''))}"
            rows.append([link, f"{one['claim']} ({one['source']})", here])
    return grid(("table", "claim", "here"), rows)


def _first(sentence: str) -> str:
    """A sentence up to its first semicolon: the most telling comparison."""
    return sentence.partition("; ")[0].rstrip(".") + "."


INTRODUCTION = (
    "Written by `python -m experiments.tabulate` from the tables beside it; how a verdict comes about"
    " is written in `experiments/verdict.py`, the numbers behind it stand in the table. Published "
    "numbers of λ-GRPO, Stratified GRPO, Balanced Aggregation, SignBalance, e3 and Why GRPO Needs "
    'Normalization were read in secondary texts. "A control" marks claims of this project.'
)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for one in found["claims"]:
            one["claim"], one["published"], one["verdict"]
        found["table"], found["title"], found["partial"]
        return found
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path}: not what tabulate writes; delete it and tabulate that table again") from None
