"""What a block cannot be, said before anything is compiled: the key, the value, the constraint."""

import pytest

from rlvr_jax.config import load_config
from rlvr_jax.lab import check_lab, lab_defaults, run_block


def config(*overrides, name="grpo"):
    return load_config(f"configs/lab.py:{name}", ["task=lookup(prompts=4)", *overrides])


def refusal(function, *arguments):
    with pytest.raises(ValueError) as caught:
        function(*arguments)
    return str(caught.value)


def test_defaults_can_run_for_every_task():
    for task in ("lookup", "reason(held_out=4)", "tools", "search"):
        toy, estimator = check_lab(load_config("configs/lab.py:dr_grpo", [f"task={task}"]))
        assert toy.size in (16, 20) and estimator.name == "dr_grpo"


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("task=look", ["task='look'", "lookup", "search"]),
        ("task=lookup(prompts=5)", ["prompts=5", "even"]),
        ("task=lookup(rates=(0.5, 1.0))", ["rates=(0.5, 1.0)", "0 < low <= high < 1"]),
        ("task=lookup(speed=1)", ["'speed'", "stop_right"]),
        ("steps=0", ["config.steps=0", "at least 1"]),
        ("group_size=1", ["config.group_size=1", "at least 2"]),
        ("seed=-1", ["config.seed=-1", "negative"]),
        ("seed=2147483648", ["config.seed=2147483648", "2147483647"]),
        ("prompts_per_step=5", ["config.prompts_per_step=5", "[0, 4]"]),
        ("prompts_per_step=-1", ["config.prompts_per_step=-1", "[0, 4]"]),
        ("sampling.temperature=0", ["config.sampling.temperature=0", "above 0"]),
        ("sampling.dynamic=True", ["config.prompts_per_step=0", "sampling.dynamic"]),
        ("updates.minibatches=3", ["config.updates.minibatches=3", "4 prompts"]),
        ("optimizer.kind=rmsprop", ["config.optimizer.kind='rmsprop'", "'sgd', 'matched', 'adam'"]),
        ("optimizer.learning_rate=-1", ["config.optimizer.learning_rate=-1", "negative"]),
        ("optimizer.learning_rate=1e999", ["config.optimizer.learning_rate=inf", "finite"]),
        ("optimizer.b2=1", ["config.optimizer.b2=1", "[0, 1)"]),
        ("curriculum.budget=(4, 8)", ["config.curriculum.budget=(4, 8)", "(from, to, steps)"]),
        ("curriculum.budget=(0, 8, 4)", ["config.curriculum.budget=(0, 8, 4)", "at least 1"]),
        ("curriculum.budget=('a', 8, 4)", ["config.curriculum.budget=", "(from, to, steps)"]),
        ("curriculum.prompts=(0.0, 1.0, 4)", ["config.curriculum.prompts=(0.0, 1.0, 4)", "(0, 1]"]),
        ("curriculum.prompts=(0.5, 1.5, 4)", ["config.curriculum.prompts=(0.5, 1.5, 4)", "(0, 1]"]),
        ("warm_start.updates=0", ["config.warm_start.updates=0", "at least 1"]),
        ("estimator.clip=ppo(lower=2)", ["'lower'", "low"]),
        ("estimator.name=grppo", ["grppo", "grpo"]),
    ],
)
def test_a_config_that_cannot_run(override, parts):
    message = refusal(check_lab, config(override))
    for part in parts:
        assert part in message, message
    assert refusal(run_block, [config(override)], config(override)) == message


def test_keys_that_are_not_there():
    assert "optimizer.learning_rate" in refusal(config, "optimiser.learning_rate=1")
    assert "no such key" in refusal(config, "sampling.top_k=1")
    more = lab_defaults().unlock()
    more.mesh = 3
    message = refusal(check_lab, more.lock())
    assert "config.mesh" in message and "no such key" in message


def test_dynamic_sampling_needs_a_choice():
    message = refusal(check_lab, config("sampling.dynamic=True", "prompts_per_step=4"))
    assert "config.prompts_per_step=4" in message and "more prompts" in message


SHARED = {
    "seed": 1, "steps": 7, "prompts_per_step": 2, "group_size": 4, "task": "lookup(prompts=4, options=5)",
    "policy.width": 8, "sampling.completion_length": 7, "sampling.temperature": 0.5, "warm_start.updates": 9,
    "warm_start.learning_rate": 0.5, "warm_start.completions_per_prompt": 2, "updates.epochs": 2,
    "updates.minibatches": 2, "optimizer.b1": 0.5, "optimizer.b2": 0.5,
}  # fmt: skip


@pytest.mark.parametrize("key", SHARED)
def test_runs_must_share(key):
    value = SHARED[key]
    message = refusal(run_block, [config(), config(f"{key}={value}", name="dr_grpo")], config())
    assert f"config.{key}" in message and repr(value) in message and "must share" in message


def test_every_arm_in_every_column_once():
    raw, adam = config(), config("optimizer.kind=adam")
    other = config(name="dr_grpo")
    message = refusal(run_block, [raw, adam, other], raw)
    assert (
        "every arm in every column" in message and "1 run(s)" in message and "adam" in message and "dr_grpo" in message
    )
    assert "0 and 2" in refusal(run_block, [raw, adam, config()], raw) and "same config" in refusal(
        run_block, [raw, raw], raw
    )
    assert "no run" in refusal(run_block, [], raw)


def test_the_reference_is_an_arm_that_only_measures():
    raw, matched = config(), config("optimizer.kind=matched")
    assert "reference" in refusal(run_block, [raw, matched], config(name="dr_grpo"))
    for name in ("lambda_grpo", "ha_dw_grpo"):
        arms = [raw, matched, config(name=name), config("optimizer.kind=matched", name=name)]
        message = refusal(run_block, arms, config(name=name))
        assert "reference" in message and name in message
    # nor may it be known only by another config
    assert "reference" in refusal(run_block, [raw, matched], config("optimizer.rate_factor=2.0"))


def test_estimators_that_need_what_the_lab_has_not():
    message = refusal(check_lab, config("estimator.kl=k3(beta=0.01)"))
    assert "estimator.kl" in message and "reference" in message
