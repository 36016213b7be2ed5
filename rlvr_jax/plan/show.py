"""A plan for people."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict
from rich.console import Group
from rich.table import Table
from rich.text import Text

from rlvr_jax.plan.chips import parse_slice
from rlvr_jax.plan.plan import NAMES, advice


def show(plan: dict[str, Any], config: ConfigDict) -> Group:
    """A table of the programs, the step's time, and what to change where something does not fit."""
    chip, _ = parse_slice(plan["slice"])
    there = [name for name in NAMES if name in plan]
    mesh = " × ".join(f"{axis} {size}" for axis, size in plan["mesh"].items())
    model = f"{plan['model']}, {plan['parameters'] / 1e9:.3g} B parameters"
    head = f"{plan['slice']}: {plan['chips']} chips ({mesh}); {model}"
    table = Table(title=f"{head}\n{plan['kind']}", title_justify="left")
    for column in (f"of one of {plan['chips']} chips", *there):
        table.add_column(column, justify="right" if column in there else "left", overflow="fold")
    for label, value in _rows(chip.memory_gib):
        table.add_row(label, *(value(plan[name]) for name in there))
    lines = [f"{name}: {note}" for name in there for note in plan[name]["notes"]]
    lines.append(f"links: {chip.link_gbs:g} GB/s a chip, half each way, as if nothing were computed meanwhile")
    step = plan.get("step")
    if step:
        parts = ", ".join(f"{part} {step[f'{part}_s']:g} s" for part in ("sample", "score", "update"))
        lines.append(
            f"a step, every completion at its full length: {step['total_s']:g} s ({parts}); "
            f"{step['tokens_per_second_per_chip']:g} completion tokens a second and chip"
        )
    lines += advice(config, plan)
    return Group(table, *(Text(line) for line in lines))


def _rows(memory_gib: float):
    """(label, function of a program's object → text) of each line of the table."""
    number = lambda value, form: "–" if value is None else format(value, form)
    split = lambda part: lambda one: number(one["hbm_split_gib"].get(part), ".2f")
    moved = lambda one: "\n".join(f"{kind} {size:.3g}" for kind, size in one["collective_gib"].items() if size)
    return (
        (f"memory, GiB (there are {memory_gib:g})", lambda one: number(one["hbm_gib_per_chip"], ".2f")),
        *((f"  {part}", split(part)) for part in ("parameters", "optimiser", "cache", "activations")),
        ("fits", lambda one: "yes" if one["fits"] else "no"),
        ("Tflop", lambda one: number(one["flops_per_chip"] and one["flops_per_chip"] / 1e12, ".3g")),
        ("compute, s", lambda one: number(one["estimated_compute_s"], ".3g")),
        ("MFU while computing", lambda one: number(one["estimated_mfu"], ".2f")),
        ("links, s", lambda one: number(one["estimated_link_s"], ".3g")),
        ("collectives, GiB", lambda one: moved(one) or "none"),
        ("weights as computed, GiB", lambda one: number(one["weights_gib"], ".3g")),
        ("compiled in, s", lambda one: number(one["compile_s"], ".0f")),
    )
