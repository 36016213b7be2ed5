"""Configs in, curves out: the runs of one block as one call of one compiled program."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from rlvr_jax.config import flatten
from rlvr_jax.estimators import Estimator
from rlvr_jax.lab.config import check_lab, common_value
from rlvr_jax.lab.experiment import Knobs, Setting, make_experiment
from rlvr_jax.lab.warm_start import make_warm_start
from rlvr_jax.lab.world import make_demonstrator, make_world
from rlvr_jax.policy import RecurrentArchitecture, make_recurrent_policy
from rlvr_jax.tasks.toy import VOCABULARY, Toy

# A key that must be equal in all runs of a block, because it sizes the program or is the start they share.
SHARED = (
    "seed", "steps", "prompts_per_step", "group_size", "task", "policy.width", "sampling.completion_length",
    "sampling.temperature", "warm_start.updates", "warm_start.learning_rate", "warm_start.completions_per_prompt",
    "updates.epochs", "updates.minibatches", "optimizer.b1", "optimizer.b2",
)  # fmt: skip
COLUMN_KEYS = ("optimizer.kind", "optimizer.learning_rate")


@functools.lru_cache(maxsize=8)
def _program(toy: Toy, estimators: tuple[Estimator, ...], setting: Setting, width: int, warm: tuple[int, int]):
    """The jitted block: (dials, knobs, warm learning rate, seed) → {name: (sum, count)} [steps, R]."""
    policy = make_recurrent_policy(RecurrentArchitecture(vocabulary=VOCABULARY, width=width, prompts=toy.size))
    world = make_world(toy)
    warm_start = make_warm_start(
        policy,
        make_demonstrator(toy),
        world,
        updates=warm[0],
        completions_per_prompt=warm[1],
        length=setting.completion_length,
    )
    experiment = make_experiment(policy, world, estimators, setting)

    @jax.jit
    def block(dials, knobs, warm_rate, seed):
        _, metrics = experiment(warm_start(dials, warm_rate, seed), dials, knobs, seed)
        return {name: (mean.sum, mean.count) for name, mean in metrics.items()}

    return block


def _schedule(ends: tuple, steps: int) -> np.ndarray:
    """f64[steps]: from the first to the second value over that many steps, then constant."""
    start, end, over = ends
    return np.interp(np.arange(steps), [0, max(over, 1)], [start if over else end, end])


def _knobs(configs: Sequence[ConfigDict], steps: int) -> Knobs:
    budget = lambda c: _schedule(c.curriculum.budget, steps) if c.curriculum.budget[1] else np.full(steps, 10**6)
    return Knobs(
        learning_rate=np.asarray([c.optimizer.learning_rate * c.optimizer.rate_factor for c in configs], np.float32),
        estimator_learning_rate=np.asarray([c.optimizer.estimator_learning_rate for c in configs], np.float32),
        dynamic=np.asarray([c.sampling.dynamic for c in configs]),
        budget=np.stack([np.floor(budget(c)) for c in configs]).astype(np.int32),
        share=np.stack([_schedule(c.curriculum.prompts, steps) for c in configs]).astype(np.float32),
    )


def _arm(config: ConfigDict) -> str:
    """What tells an arm from another: everything but the keys of the column."""
    return repr(sorted((k, v) for k, v in flatten(config).items() if k not in COLUMN_KEYS))


def _order(configs: Sequence[ConfigDict]) -> tuple[list[str], list[str], np.ndarray]:
    """(arms, kinds of the columns, i[R]: which config stands where): columns outermost, those of kind "matched" last.

    Raises:
      ValueError: the runs are not all arms in all columns.
    """
    places = {}
    for number, config in enumerate(configs):
        place = (tuple(config.optimizer[key.split(".")[1]] for key in COLUMN_KEYS), _arm(config))
        if place in places:
            raise ValueError(f"runs {places[place]} and {number} of the block have the same config")
        places[place] = number
    columns, arms = ([*dict.fromkeys(parts)] for parts in zip(*places))
    columns.sort(key=lambda column: column[0] == "matched")
    missing = [(column, arm) for column in columns for arm in arms if (column, arm) not in places]
    if missing:
        column, arm = missing[0]
        like = next(config for config in configs if _arm(config) == arm)
        raise ValueError(
            f"a block is every arm in every column; {len(missing)} run(s) are missing, one of them "
            f"estimator.name={like.estimator.name!r} with {dict(zip(COLUMN_KEYS, column))}"
        )
    order = np.asarray([places[column, arm] for column in columns for arm in arms])
    return arms, [kind for kind, _ in columns], order


def run_block(configs: Sequence[ConfigDict], reference: ConfigDict) -> list[dict[str, np.ndarray]]:
    """Runs all arms × columns of one task and one seed, in one call of one program.

    Args:
      configs: lab configs (see `lab_defaults`) that agree in the keys of SHARED: every arm (an estimator, and whatever
        else differs) in every column (`optimizer.kind` and `optimizer.learning_rate`), in any order.
      reference: the arm whose gradient norm the columns of kind "matched" take on the same batch; one of the arms.

    Returns:
      For each config {metric: f32[steps]}, NaN where nothing was counted in a step; the names are those of a training
      run's metrics.jsonl ("rollout/pass@1", "rollout/length_wrong", "update/gradient_norm", …).

    Blocks whose configs differ only in data (seed, learning rates, the dials of the task) share one compiled program.

    Raises:
      ValueError: a config that cannot run, runs that do not agree in what they must share, a missing run or reference.
    """
    if not configs:
        raise ValueError("a block needs at least one run; no run was given")
    checked = [check_lab(config) for config in configs]
    for key in SHARED:
        common_value(configs, key)
    arms, kinds, order = _order(configs)
    if _arm(reference) not in arms:
        raise ValueError("reference: none of the arms of this block")
    toy, first, steps = checked[0][0], configs[0], configs[0].steps
    setting = Setting(
        steps=steps,
        group_size=first.group_size,
        completion_length=first.sampling.completion_length,
        kinds=tuple(kinds),
        reference=arms.index(_arm(reference)),
        kept=first.prompts_per_step,
        epochs=first.updates.epochs,
        minibatches=first.updates.minibatches,
        temperature=first.sampling.temperature,
        b1=first.optimizer.b1,
        b2=first.optimizer.b2,
    )
    estimators = tuple(checked[number][1] for number in order[: len(arms)])
    if "matched" in kinds and (
        estimators[setting.reference].init_memory(2) or estimators[setting.reference].init_params()
    ):
        raise ValueError(
            f"reference: {reference.estimator.name!r} remembers or learns; it cannot be the measure of others' norms"
        )
    warm = (first.warm_start.updates, first.warm_start.completions_per_prompt)
    program = _program(toy, estimators, setting, first.policy.width, warm)
    knobs = _knobs([configs[number] for number in order], steps)
    arguments = (toy.dials, knobs, np.float32(first.warm_start.learning_rate), np.int32(first.seed))
    curves = jax.device_get(program(*jax.device_put(arguments)))
    return [_curves(curves, int(np.flatnonzero(order == number)[0])) for number in range(len(configs))]


def _curves(curves: dict, run: int) -> dict[str, np.ndarray]:
    """The curves of one run as means; NaN where nothing was counted."""
    column = {name: (total[:, run], count[:, run]) for name, (total, count) in curves.items()}
    mean = lambda total, count: np.where(count > 0, total / np.maximum(count, 1e-9), np.nan).astype(np.float32)
    return {name: mean(*pair) for name, pair in column.items()}
