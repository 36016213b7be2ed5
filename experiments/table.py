"""A table of experiments as a value: one question, its arms as differences of one config, cases, columns and seeds.

A run is one case × arm × column × seed; a block is one case and one seed with all arms and columns, which are paired
(same warm start, same random keys). What may not be launched is refused by `experiments.checks.check`.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import re
import sys
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from rlvr_jax.config import load_config, set_key
from rlvr_jax.registry import nearest

ROOT = Path(__file__).resolve().parents[1]  # of the checkout: where configs/ lies and commands are run
TABLES = Path(__file__).resolve().parent / "tables"
KINDS = ("window", "area", "at_equal", "steps_to")
DIRECTIONS = ("+", "-", "0")


@dataclasses.dataclass(frozen=True)
class Measure:
    """One number of a run, computed from its curves.

    kind: "window", mean of `metric` over steps first..last (inclusive; None: to the end), steps without a value left
    out; "area", the same over all steps; "at_equal", smoothed `metric` where smoothed `by` first reaches `value`
    (linear between steps), NaN if never; "steps_to", the first step at which smoothed `metric` reaches `value`, NaN if
    never. `minus` is a second metric, subtracted step by step; `smooth` is the centred window in steps.
    """

    label: str
    metric: str
    kind: str = "window"
    first: int = 0
    last: int | None = None
    by: str = "rollout/pass@1"
    value: float | None = None
    minus: str | None = None
    smooth: int = 10
    better: str = ""  # "higher", "lower", or "" where neither is
    digits: int = 3


@dataclasses.dataclass(frozen=True)
class Claim:
    """What a paper says: arm − against in a measure is above (+), below (−) or no different from zero (0)."""

    text: str
    source: str
    published: str  # the paper's own number, in its own units
    arm: str
    measure: str  # label
    direction: str
    against: str = ""  # "": the table's reference arm
    cases: tuple[str, ...] = ()  # (): all
    columns: tuple[str, ...] = ()  # (): all
    margin: float | None = None  # for "0", and needed there: the largest difference that counts as none


@dataclasses.dataclass(frozen=True)
class Panel:
    """A table that needs no training: `compute()` → {"columns", "rows", "note", "holds": bool or None}."""

    name: str
    title: str
    source: str
    compute: Callable[[], Mapping[str, Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """One question. `arms`, `cases` and `columns` are label → config differences; {"": {}} where there is one only."""

    name: str
    title: str
    question: str
    base: str  # "configs/lab.py:grpo": a whole block in one program; any other config: one real run after the other
    common: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    arms: Mapping[str, Mapping[str, Any]]
    reference: str
    cases: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=lambda: {"": {}})
    columns: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=lambda: {"": {}})
    seeds: tuple[int, ...]
    measures: tuple[Measure, ...]
    claims: tuple[Claim, ...] = ()
    curves: tuple[str, ...] = ()
    heatmaps: tuple[str, ...] = ()  # labels of measures shown as arms × cases
    panels: tuple[Panel, ...] = ()
    notes: str = ""
    allow_equal: bool = False  # two arms may be the same: a null table, which asks what noise looks like

    @property
    def toy(self) -> bool:
        """Whether a block is one compiled program of `rlvr_jax.lab`."""
        return Path(self.base.partition(":")[0]).name == "lab.py"


class RunKey(NamedTuple):
    """Which run of a table: labels and seed."""

    case: str
    arm: str
    column: str
    seed: int

    def __str__(self) -> str:
        parts = [part for part in (self.case, self.arm, self.column) if part]
        return " / ".join([*parts, f"seed {self.seed}"])


def run_keys(table: Table) -> list[RunKey]:
    """All runs, seed-major within a case, so that an interrupted launch leaves whole pairs."""
    return [key for case, seed in blocks(table) for key in block_keys(table, case, seed)]


def blocks(table: Table) -> list[tuple[str, int]]:
    """(case, seed), the first seed of every case first."""
    return [(case, seed) for seed in table.seeds for case in table.cases]


def block_keys(table: Table, case: str, seed: int) -> list[RunKey]:
    """The runs of a block: arms × columns."""
    return [RunKey(case, arm, column, seed) for arm in table.arms for column in table.columns]


def table_names() -> list[str]:
    """Names of experiments/tables/*.py, without those that begin with an underscore (helpers)."""
    return sorted(path.stem for path in TABLES.glob("*.py") if not path.stem.startswith("_"))


def load(name: str) -> Table:
    """TABLE of experiments/tables/NAME.py.

    Raises:
      ValueError: no such table (the nearest and all names are given), or a file that defines none of that name.
    """
    names = table_names()
    if name not in names:
        raise ValueError(f"table {name!r}: there is none{nearest(name, names)} Choose from {names}")
    path = TABLES / f"{name}.py"
    module_name = f"experiments.tables.{name}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    spec.loader.exec_module(module)
    table = getattr(module, "TABLE", None)
    if not isinstance(table, Table):
        raise ValueError(f"table {name!r}: {path.name} defines no TABLE, or one that is not a Table")
    if table.name != name:
        raise ValueError(f"table {name!r}: TABLE.name={table.name!r} in {path.name}; it must be the file's name")
    return table


def all_tables() -> list[Table]:
    """Every table, by name."""
    return [load(name) for name in table_names()]


def resolve(table: Table, case: str, arm: str, column: str, seed: int) -> ConfigDict:
    """The locked config of a run: base + common + case + arm + column + seed, later ones over earlier ones.

    Raises:
      ValueError: an unknown label, or a difference whose key or value the config does not take; names where it is.
    """
    layers = [("common", table.common)]
    for kind, label, there in (
        ("case", case, table.cases),
        ("arm", arm, table.arms),
        ("column", column, table.columns),
    ):
        if label not in there:
            raise ValueError(
                f"table {table.name}: {kind}={label!r}: unknown{nearest(label, there)} It has {list(there)}"
            )
        layers.append((f"{kind} {label!r}", there[label]))
    config = load_base(table)
    for where, difference in (*layers, ("seed", {"seed": seed})):
        for key, value in difference.items():
            try:
                set_key(config, key, value)
            except ValueError as error:
                raise ValueError(f"table {table.name}: {where}: {error}") from None
    return config


def load_base(table: Table) -> ConfigDict:
    """The config every run starts from, unshared; a relative path is one of the checkout."""
    path, colon, argument = table.base.partition(":")
    try:
        time = (ROOT / path).stat().st_mtime_ns
    except FileNotFoundError:
        raise ValueError(f"table {table.name}: base={table.base!r}: {path} does not exist") from None
    return copy_of(_read_base(f"{ROOT / path}{colon}{argument}", time))


@functools.lru_cache(maxsize=64)
def _read_base(text: str, time: int) -> ConfigDict:
    del time  # a file that changed is another one
    return load_config(text)


def copy_of(config: ConfigDict) -> ConfigDict:
    """An unshared copy, locked like its source."""
    return config.copy_and_resolve_references()


def slug(label: str) -> str:
    """A label as a name of a file: [a-z0-9._-], Greek letters by their names."""
    spelt = "".join(_letter(character) for character in unicodedata.normalize("NFKD", label.strip()))
    return re.sub(r"[^a-z0-9._]+", "-", spelt.lower()).strip("-.")


def _letter(character: str) -> str:
    words = unicodedata.name(character, "").split()
    if words[:1] == ["GREEK"] and "LETTER" in words:
        return words[words.index("LETTER") + 1].lower().replace("lamda", "lambda")
    return character


def table_dir(root: str | Path, table: Table) -> Path:
    return Path(root) / table.name


def run_dir(root: str | Path, table: Table, case: str, arm: str, column: str, seed: int) -> Path:
    """root/TABLE/[CASE/]ARM/[COLUMN/]seed-N, the parts whose label is "" left out."""
    parts = [slug(label) for label in (case, arm, column) if label]
    return table_dir(root, table).joinpath(*parts, f"seed-{seed}")


def check(table: Table) -> None:
    """See `experiments.checks.check`."""
    from experiments import checks  # it imports this file

    checks.check(table)
