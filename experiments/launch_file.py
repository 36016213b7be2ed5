"""What a launch leaves beside the runs: launch.json (who, when, on what, how fast) and panels/NAME.json."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.table import Table, slug, table_dir


class LaunchRecord:
    """launch.json: the entries of all launches that ran something, the oldest first; written after every block."""

    def __init__(self, folder: Path, table: Table, command: str, skipped: int):
        self.path = folder / "launch.json"
        self.before = read_launches(folder)
        self.entry = {
            "command": command,
            "commit": "",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "hardware": "",
            "seconds": 0.0,
            "programs": 0,
            "compile_seconds": 0.0,
            "updates": 0,
            "updates_per_second": None,
            "runs": 0,
            "skipped": skipped,
        }
        self.table = table

    def add(self, where: Mapping[str, str], seconds: float, compiled: tuple[int, float], updates: int, runs: int):
        """One more block or run. compiled: (programs, seconds)."""
        entry = self.entry
        entry["commit"], entry["hardware"] = where.get("commit", "unknown"), hardware(where)
        entry["seconds"] += seconds
        entry["programs"] += compiled[0]
        entry["compile_seconds"] += compiled[1]
        entry["updates"] += updates
        entry["runs"] += runs
        running = entry["seconds"] - entry["compile_seconds"]
        entry["updates_per_second"] = entry["updates"] / running if running > 0 else None
        write_json(self.path, {"table": self.table.name, "launches": [*self.before, entry]})

    def summary(self) -> str:
        """ "1 program compiled in 3.2 s, 1234 updates/s, 40 runs in 12 s"."""
        entry = self.entry
        programs = f"{entry['programs']} program{'' if entry['programs'] == 1 else 's'}"
        rate = "" if entry["updates_per_second"] is None else f", {entry['updates_per_second']:.3g} updates/s"
        compiled = f"{programs} compiled in {entry['compile_seconds']:.1f} s"
        return f"{compiled}{rate}, {entry['runs']} runs in {entry['seconds']:.0f} s"


def hardware(where: Mapping[str, str]) -> str:
    """ "1 × cpu, Xeon, 2 cores" of an environment."""
    cores = f"{where['cores']} cores" if where.get("cores") else ""
    return ", ".join(part for part in (where.get("device", ""), where.get("processor", ""), cores) if part)


def read_launches(folder: Path) -> list[dict[str, Any]]:
    """The entries of launch.json; [] when there is none or it cannot be read."""
    try:
        launches = json.loads((folder / "launch.json").read_text())["launches"]
        return [entry for entry in launches if isinstance(entry, dict)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def write_json(path: Path, value: Any) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    os.replace(partial, path)


def panel_path(root: Path, table: Table, name: str) -> Path:
    return table_dir(root, table) / "panels" / f"{slug(name)}.json"


def write_panels(table: Table, root: Path, say: Callable[[str], None]) -> None:
    """Computes the table's panels and stores them.

    Raises:
      ValueError: a panel that returns something else than columns and rows of that width.
    """
    for panel in table.panels:
        data = dict(panel.compute())
        where = f"table {table.name}: panel {panel.name!r}"
        if not {"columns", "rows"} <= set(data):
            raise ValueError(f"{where}: compute() gave {sorted(data)}; columns and rows are needed")
        columns, rows = list(data["columns"]), [list(row) for row in data["rows"]]
        wrong = [row for row in rows if len(row) != len(columns)]
        if wrong:
            raise ValueError(f"{where}: a row of {len(wrong[0])} cells under {len(columns)} columns: {wrong[0]}")
        holds = data.get("holds")
        stored = {
            "title": panel.title,
            "source": panel.source,
            "columns": columns,
            "rows": [[_plain(cell) for cell in row] for row in rows],
            "note": str(data.get("note", "")),
            "holds": None if holds is None else bool(holds),
        }
        write_json(panel_path(root, table, panel.name), stored)
        say(f"  panel {panel.name}: {len(rows)} rows")


def _plain(cell: Any) -> Any:
    if isinstance(cell, np.generic) or (hasattr(cell, "item") and getattr(cell, "ndim", 1) == 0):
        cell = cell.item()
    if isinstance(cell, float) and not math.isfinite(cell):
        return None
    return cell if isinstance(cell, (str, int, float, bool, type(None))) else str(cell)
