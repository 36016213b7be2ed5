"""What a table must be before anything of it runs: one clear error for each way it can be wrong."""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Iterable, Mapping

from ml_collections import ConfigDict

from experiments.table import DIRECTIONS, KINDS, Claim, Measure, Table, resolve, slug
from rlvr_jax.config import check as check_config
from rlvr_jax.config import estimator_of, flatten
from rlvr_jax.estimators.estimator import registries
from rlvr_jax.registry import nearest

RESERVED = ("panels",)  # a folder of the table that is no run


def check(table: Table) -> None:
    """Refuses a table that could not be run or read.

    Raises:
      ValueError: an unknown key, arms that are the same, a missing reference, fewer than two seeds, a claim about
        what is not there, names that collide; names the table, the value and the valid choices.
    """
    _check_labels(table, "panels", [panel.name for panel in table.panels])
    if not table.arms and not table.measures and table.panels:
        return  # nothing to train
    for name in ("arms", "cases", "columns"):
        _check_labels(table, name, getattr(table, name))
    _require(
        table.reference in table.arms,
        table,
        f"reference={table.reference!r}: not an arm{nearest(table.reference, table.arms)} Arms: {list(table.arms)}",
    )
    _check_seeds(table)
    _check_measures(table)
    _check_heatmaps(table)
    for claim in table.claims:
        _check_claim(table, claim)
    _check_configs(table)


def _require(condition: bool, table: Table, message: str) -> None:
    if not condition:
        raise ValueError(f"table {table.name}: {message}")


def _check_labels(table: Table, name: str, labels: Iterable[str]) -> None:
    labels = list(labels)
    _require(bool(labels) or name == "panels", table, f"{name} is empty: at least one is needed")
    _require(
        "" not in labels or len(labels) == 1, table, f"{name}: the label '' is for a single one; name all of {labels}"
    )
    slugs: dict[str, str] = {}
    for label in labels:
        short = slug(label)
        _require(bool(short) or label == "", table, f"{name}: {label!r} has no letter or digit to name a file by")
        _require(short not in RESERVED, table, f"{name}: {label!r} would be the folder {short!r}, which is taken")
        _require(
            short not in slugs,
            table,
            f"{name}: {slugs.get(short)!r} and {label!r} would both be the folder {short!r}; rename one",
        )
        slugs[short] = label
    _require(name != "arms" or "" not in labels, table, "arms: an arm needs a label")


def _check_seeds(table: Table) -> None:
    twice = [seed for seed, count in Counter(table.seeds).items() if count > 1]
    _require(not twice, table, f"seeds={list(table.seeds)}: {twice} more than once; a seed is one pair")
    _require(len(table.seeds) >= 2, table, f"seeds={list(table.seeds)}: an interval over seeds needs at least 2")
    bad = [seed for seed in table.seeds if not isinstance(seed, int) or seed < 0]
    _require(not bad, table, f"seeds: {bad} must be integers that are not negative")


def _check_measures(table: Table) -> None:
    _require(bool(table.measures), table, "measures is empty: at least one is needed")
    twice = [label for label, count in Counter(m.label for m in table.measures).items() if count > 1]
    _require(not twice, table, f"measures: label {twice} more than once")
    for measure in table.measures:
        _check_measure(table, measure)


def _check_measure(table: Table, measure: Measure) -> None:
    wrong = lambda condition, text: _require(not condition, table, f"measure {measure.label!r}: {text}")
    wrong(not measure.label, "needs a label")
    wrong(measure.kind not in KINDS, f"kind={measure.kind!r}: choose from {list(KINDS)}")
    wrong(measure.better not in ("higher", "lower", ""), f"better={measure.better!r}: 'higher', 'lower' or ''")
    wrong(measure.kind in ("at_equal", "steps_to") and measure.value is None, f"kind={measure.kind!r} needs a value")
    wrong(measure.first < 0, f"first={measure.first}: must not be negative")
    wrong(
        measure.last is not None and measure.last < measure.first,
        f"last={measure.last}: must not be before first={measure.first}",
    )
    wrong(measure.smooth < 1, f"smooth={measure.smooth}: must be at least 1 step")
    wrong(measure.digits < 0, f"digits={measure.digits}: must not be negative")


def _check_heatmaps(table: Table) -> None:
    labels = [measure.label for measure in table.measures]
    for label in table.heatmaps:
        text = f"heatmaps={label!r}: no measure{nearest(label, labels)} Choose from {labels}"
        _require(label in labels, table, text)
        _require(table.heatmaps.count(label) == 1, table, f"heatmaps: {label!r} more than once")


def _check_claim(table: Table, claim: Claim) -> None:
    def one_of(name: str, value: str, choices: Iterable[str]) -> None:
        text = f"{name}={value!r}: unknown{nearest(value, choices)} Choose from {list(choices)}"
        _require(value in choices, table, f"claim {claim.text!r}: {text}")

    _require(bool(claim.text.strip()), table, f"a claim on {claim.arm!r} has no text")
    _require(bool(claim.source.strip()), table, f"claim {claim.text!r}: source='': say which paper, and where in it")
    one_of("arm", claim.arm, list(table.arms))
    one_of("against", claim.against or table.reference, list(table.arms))
    one_of("measure", claim.measure, [measure.label for measure in table.measures])
    one_of("direction", claim.direction, DIRECTIONS)
    for case in claim.cases:
        one_of("cases", case, list(table.cases))
    for column in claim.columns:
        one_of("columns", column, list(table.columns))
    _require(
        (claim.direction == "0") == (claim.margin is not None) and not (claim.margin or 0) < 0,
        table,
        f"claim {claim.text!r}: margin={claim.margin!r}: a claim of no difference ('0') needs the largest that counts "
        "as none, at least 0; another direction takes none",
    )
    against = claim.against or table.reference
    _require(claim.arm != against, table, f"claim {claim.text!r}: arm and against are both {against!r}")


def check_runnable(table: Table) -> None:
    """Refuses a table with a config that the program which runs it would refuse; for launching, not for reading.

    Raises:
      ValueError: names the arm, the key, the value and the valid choices.
    """
    for case in table.cases if table.arms else ():
        for column in table.columns:
            for arm in table.arms:
                try:
                    _check_run(table, resolve(table, case, arm, column, table.seeds[0]))
                except FileNotFoundError:  # a model that is not on this machine: the trainer says so where it runs
                    continue
                except ValueError as error:
                    where = " / ".join(label for label in (case, arm, column) if label)
                    raise ValueError(f"table {table.name}: {where}: {error}") from None


def _check_run(table: Table, config: ConfigDict) -> None:
    if table.toy:
        from rlvr_jax.lab import check_lab

        check_lab(config)
    else:
        check_config(config)


def _check_configs(table: Table) -> None:
    """Every config resolves, and within a case and a column no two arms are the same."""
    seed = table.seeds[0]
    for case in table.cases:
        for column in table.columns:
            seen: dict[tuple, str] = {}
            for arm in table.arms:
                config = resolve(table, case, arm, column, seed)
                steps = flatten(config).get("steps")
                for measure in table.measures:
                    if steps is not None:
                        _check_window(table, measure, steps)
                identity = identity_of(config, f"table {table.name}: arm {arm!r}")
                where = "".join(f", {kind} {label!r}" for kind, label in (("case", case), ("column", column)) if label)
                _require(
                    table.allow_equal or identity not in seen,
                    table,
                    f"arms {seen.get(identity)!r} and {arm!r} are the same config{where}: change one, or set "
                    "allow_equal=True if the table asks what no difference looks like",
                )
                seen[identity] = arm
    _check_distinct(table, "columns", lambda label: resolve(table, _first(table.cases), table.reference, label, seed))
    _check_distinct(table, "cases", lambda label: resolve(table, label, table.reference, _first(table.columns), seed))


def _first(labels: Mapping[str, Mapping]) -> str:
    return next(iter(labels))


def _check_window(table: Table, measure: Measure, steps: int) -> None:
    beyond = max(measure.first, measure.last or 0)
    _require(
        measure.kind != "window" or beyond <= steps,
        table,
        f"measure {measure.label!r}: step {beyond} is beyond the run's {steps} steps",
    )


def _check_distinct(table: Table, name: str, config_of) -> None:
    seen: dict[tuple, str] = {}
    for label in getattr(table, name):
        identity = identity_of(config_of(label), f"table {table.name}: {name} {label!r}")
        _require(
            table.allow_equal or identity not in seen,
            table,
            f"{name} {seen.get(identity)!r} and {label!r} are the same config of arm {table.reference!r}; change one",
        )
        seen[identity] = label


def identity_of(config: ConfigDict, where: str = "") -> tuple:
    """Equal for configs that compute the same: every key, the estimator by the parts that its ten slots build.

    Raises:
      ValueError: an estimator that cannot be built; `where` begins the message.
    """
    flat = flatten(config)
    try:
        slots = tuple((slot, _part(slot, text)) for slot, text in estimator_of(config).slots.items())
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    rest = {key: value for key, value in flat.items() if not key.startswith("estimator.")}
    return slots, tuple(sorted((key, repr(value)) for key, value in rest.items()))


@functools.lru_cache(maxsize=4096)
def _part(slot: str, text: str) -> tuple:
    """What an option builds, the defaults written out."""
    factory, given = registries[slot].parse(text)
    defaults = {key: parameter.default for key, parameter in inspect.signature(factory).parameters.items()}
    return factory.__name__, tuple(sorted((key, repr(value)) for key, value in {**defaults, **given}.items()))
