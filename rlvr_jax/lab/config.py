"""The keys of a lab run, and their constraints."""

from __future__ import annotations

import math

from ml_collections import ConfigDict

from rlvr_jax.config import estimator_of, flatten, unknown_key
from rlvr_jax.estimators import SLOTS, Estimator
from rlvr_jax.tasks.toy import Toy, make_toy

KINDS = ("sgd", "matched", "adam")


def lab_defaults(estimator: str = "grpo") -> ConfigDict:
    """Every key of a lab run with its default, locked. `estimator` is a name of the catalogue."""
    config = ConfigDict(
        {
            "seed": 0,
            "steps": 200,  # rollout batches
            "prompts_per_step": 0,  # groups trained on in a step, drawn from the sampled ones; 0: all
            "group_size": 8,
            "task": "lookup",  # "name(dial=value)", see rlvr_jax/tasks/toy.py
            "policy": {"width": 32},  # of the gated recurrent unit
            "sampling": {
                "completion_length": 16,
                "temperature": 1.0,
                "dynamic": False,  # groups without contrast are replaced by others of the same batch (DAPO)
            },
            "warm_start": {
                "updates": 300,
                "learning_rate": 0.01,
                "completions_per_prompt": 4,
            },
            "estimator": {"name": estimator, **dict.fromkeys(SLOTS, "")},
            "updates": {"epochs": 1, "minibatches": 1},
            "optimizer": {
                # sgd: the raw gradient. matched: sgd after scaling the gradient to the norm that the reference's has on
                # the same batch. adam: hides the gradient's scale.
                "kind": "sgd",
                "learning_rate": 0.5,
                "rate_factor": 1.0,  # multiplies learning_rate: an arm that only takes larger steps
                "b1": 0.9,
                "b2": 0.95,
                "estimator_learning_rate": 0.1,
            },
            "curriculum": {  # each (from, to, steps): linear over the first `steps` steps, then constant
                "budget": (0, 0, 0),  # tokens a completion may have; to = 0: no limit but completion_length
                "prompts": (1.0, 1.0, 0),  # share of the prompts trained on, those with the fewest options first
            },
        }
    )
    return config.lock()


def _require(condition: bool, flat: dict, key: str, constraint: str) -> None:
    if not condition:
        raise ValueError(f"config.{key}={flat[key]!r}: {constraint}")


def check_lab(config: ConfigDict) -> tuple[Toy, Estimator]:
    """Refuses a config that cannot run, before any device work; returns its task and its estimator.

    Raises:
      ValueError: naming the key, the value, the constraint and the valid choices.
    """
    flat, known = flatten(config), flatten(lab_defaults())
    for key in flat:
        if key not in known:
            raise unknown_key(key, known)
    for key, value in flat.items():
        _require(not isinstance(value, float) or math.isfinite(value), flat, key, "must be finite")
    positive = "steps group_size policy.width sampling.completion_length updates.epochs updates.minibatches"
    for key in [*positive.split(), "warm_start.updates", "warm_start.completions_per_prompt"]:
        _require(flat[key] >= 1, flat, key, "must be at least 1")
    rates = (
        "optimizer.learning_rate optimizer.rate_factor optimizer.estimator_learning_rate warm_start.learning_rate seed"
    )
    for key in rates.split():
        _require(flat[key] >= 0, flat, key, "must not be negative")
    _require(flat["seed"] < 2**31, flat, "seed", "must be in [0, 2147483647]: it is an int32 of the program")
    for key in ("optimizer.b1", "optimizer.b2"):
        _require(0 <= flat[key] < 1, flat, key, "must be in [0, 1)")
    _require(flat["sampling.temperature"] > 0, flat, "sampling.temperature", "must be above 0")
    _require(flat["optimizer.kind"] in KINDS, flat, "optimizer.kind", f"choose from {list(KINDS)}")
    toy, estimator = make_toy(config.task), estimator_of(config)
    needs_none = "reference" not in estimator.needs
    _require(needs_none, flat, "estimator.kl", "the lab keeps no reference policy; choose an estimator without kl")
    _check_sizes(flat, toy, estimator)
    _check_curriculum(flat)
    return toy, estimator


def _check_curriculum(flat: dict) -> None:
    for key in ("curriculum.budget", "curriculum.prompts"):
        value = flat[key]
        numbers = len(value) == 3 and all(isinstance(x, (int, float)) for x in value)
        ok = numbers and min(value) >= 0 and int(value[2]) == value[2]
        _require(ok, flat, key, "must be (from, to, steps), none negative")
    start, end, _ = flat["curriculum.prompts"]
    _require(0 < start <= 1 and 0 < end <= 1, flat, "curriculum.prompts", "shares must be in (0, 1]")
    start, end, _ = flat["curriculum.budget"]
    ok = end == 0 or min(start, end) >= 1
    _require(ok, flat, "curriculum.budget", "a completion has at least 1 token; to = 0 sets no budget")


def _check_sizes(flat: dict, toy: Toy, estimator: Estimator) -> None:
    kept, pieces = flat["prompts_per_step"], flat["updates.minibatches"]
    _require(0 <= kept <= toy.prompts, flat, "prompts_per_step", f"must be in [0, {toy.prompts}], the task's prompts")
    _require(
        toy.size % pieces == 0, flat, "updates.minibatches", f"must divide the {toy.size} prompts of {flat['task']}"
    )
    _require(
        flat["group_size"] >= estimator.min_group,
        flat,
        "group_size",
        f"the estimator {estimator.describe()!r} needs at least {estimator.min_group}",
    )
    if flat["sampling.dynamic"]:
        constraint = f"sampling.dynamic needs more prompts sampled than trained on: choose from 1 … {toy.prompts - 1}"
        _require(0 < kept < toy.prompts, flat, "prompts_per_step", constraint)


def common_value(configs: list[ConfigDict], key: str):
    """The value of a key that all runs of a block must share: it sizes an array or a loop.

    Raises:
      ValueError: two values; names both.
    """
    values = [flatten(config)[key] for config in configs]
    for value in values:
        if value != values[0]:
            raise ValueError(
                f"config.{key}: the runs of a block are compiled as one and must share it; found {values[0]!r} and "
                f"{value!r}"
            )
    return values[0]
