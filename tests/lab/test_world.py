"""What a run is given: rollouts with observations, grades, the groups it trains on, and where it starts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.estimators import make_estimator
from rlvr_jax.lab.experiment import Setting, _Lab
from rlvr_jax.lab.warm_start import make_warm_start
from rlvr_jax.lab.world import make_demonstrator, make_world
from rlvr_jax.policy import RecurrentArchitecture, make_logprobs, make_recurrent_policy
from rlvr_jax.sampling import make_sampler
from rlvr_jax.tasks.toy import CALL, END, SEE, make_toy
from rlvr_jax.types import Groups

pytestmark = pytest.mark.usefixtures("quick_compiles")
GROUP, LENGTH, UNLIMITED = 32, 10, 10**6

# --- completions with observations, by the rules of the task "reason" in a plain loop ---


@functools.cache
def sampled(budget):
    """(rollouts, groups, state, teacher-forced log-probabilities) of a policy of random weights that likes to call."""
    toy, run = _program()
    return toy, *jax.device_get(run(toy.dials, jnp.int32(budget)))


@functools.cache
def _program():
    toy = make_toy("reason(prompts=2, held_out=2, options=2, open_options=5, calls=2)")
    world = make_world(toy)
    policy = make_recurrent_policy(RecurrentArchitecture(vocabulary=24, width=8, prompts=toy.size))
    params = policy.init(jax.random.key(1))
    params["head_bias"] = params["head_bias"].at[jnp.asarray([0, 1, CALL, END])].set(jnp.asarray([1.0, 1.0, 4.0, 2.0]))

    @jax.jit
    def run(dials, budget):
        sample = make_sampler(
            policy,
            group_size=GROUP,
            completion_length=LENGTH,
            end_ids=world.end_ids,
            pad_id=world.pad_id,
            environment=world.environment(dials, budget),
            stop_early=False,
        )
        prompts = world.prompts(dials, 0)
        rollouts, state = sample(params, prompts, jax.random.key(4))
        logprobs, _ = make_logprobs(policy)(params, rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)
        return rollouts, world.grade(dials, prompts, rollouts, state), state, logprobs

    return toy, run


def told(completion, label, budget):
    """(which tokens the policy wrote, answer, calls, whether it ended by itself)."""
    own, answer, calls, forced = [], None, 0, None
    for place, token in enumerate(completion):
        own.append(forced is None)
        assert forced in (None, token)
        asked = token == CALL and answer is None
        calls += asked
        if token < 10 and answer is None:
            answer = token
        forced = SEE + (label if calls >= 2 else 9) if asked else None
        if place + 1 >= budget:
            forced = END
        if token == END:
            return own, answer, calls, own[-1]
    return own, answer, calls, False


@pytest.mark.parametrize("budget", [UNLIMITED, 4])
def test_completions_by_a_loop(budget):
    toy, rollouts, groups, state, logprobs = sampled(budget)
    lengths = []
    for row in range(toy.size * GROUP):
        at = divmod(row, GROUP)
        completion = rollouts.tokens[row, 1:].tolist()
        own, answer, calls, ended = told(completion, state.label[at], budget)
        mask = own + [False] * (LENGTH - len(own))
        assert rollouts.completion_mask[row].tolist() == mask
        assert rollouts.attend_mask[row].sum() == len(own)
        assert groups.lengths[at] == sum(own) and groups.finished[at] == ended
        assert groups.outcome[at] == (answer == state.label[at])
        assert groups.stratum[at] == min(calls, 3) and state.calls[at] == calls
        lengths.append(len(own))
    assert groups.outcome.any() and not groups.outcome.all() and groups.finished.any() and not groups.finished.all()
    assert (groups.valid == (np.arange(4) < 2)[:, None]).all()  # held-out prompts are not trained on
    np.testing.assert_allclose(rollouts.behaviour_logprobs, np.where(rollouts.completion_mask, logprobs, 0), atol=1e-5)
    if budget != UNLIMITED:
        assert (
            groups.lengths.max() <= budget and max(lengths) == budget + 1
        )  # the end it is given is no token of its own
        cut = np.asarray(lengths) == budget + 1
        assert not rollouts.finished[cut].any() and not rollouts.completion_mask[cut, budget].any()


def test_a_budget_changes_nothing_before_it_cuts():
    _, free, _, _, _ = sampled(UNLIMITED)
    _, cut, _, _, _ = sampled(4)
    np.testing.assert_array_equal(cut.tokens[:, :5], free.tokens[:, :5])


# --- the groups a run trains on ---


@functools.cache
def chooser(kept):
    """The choice of `kept` of six groups for 400 keys, compiled."""
    policy = make_recurrent_policy(RecurrentArchitecture(vocabulary=24, width=2, prompts=6))
    setting = Setting(steps=1, group_size=2, completion_length=2, kinds=("sgd",), reference=0, kept=kept)
    lab = _Lab(policy, make_world(make_toy("lookup(prompts=6)")), (make_estimator("grpo"),), setting)

    @jax.jit
    def run(outcome, valid, options, dynamic, share):
        valid = jnp.broadcast_to(valid[:, None], outcome.shape)
        groups = Groups(outcome=outcome, lengths=jnp.ones(outcome.shape, jnp.int32), valid=valid)
        one = lambda key: lab.choose({"options": options}, groups, key, dynamic, share).valid
        return jax.vmap(one)(jax.random.split(jax.random.key(0), 400))

    return run


def chosen(outcome, kept, options=(4,) * 6, valid=(True,) * 6, dynamic=False, share=1.0):
    """Which groups are kept, bool[keys, P]."""
    outcome = np.asarray(outcome, np.float32)
    found = np.asarray(
        chooser(kept)(outcome, np.asarray(valid), np.asarray(options), np.asarray(dynamic), np.float32(share))
    )
    assert (found.any(axis=-1) == found.all(axis=-1)).all()  # whole groups
    return found.all(axis=-1)


MIXED = [[0, 0], [1, 0], [1, 1], [0, 1], [0, 0], [1, 0]]  # informative: 1, 3, 5
TRAINED = [True, True, True, True, False, False]


def test_dynamic_sampling_takes_the_informative_first():
    assert (chosen(MIXED, 3, dynamic=True) == [False, True, False, True, False, True]).all()
    more = chosen(MIXED, 5, dynamic=True)  # the others make up the number, by chance
    assert (more.sum(axis=1) == 5).all() and more[:, [1, 3, 5]].all() and more[:, [0, 2, 4]].any(axis=0).all()
    less = chosen([[0, 1]] * 4 + [[1, 1]] * 2, 3, dynamic=True)
    assert (less.sum(axis=1) == 3).all() and not less[:, 4:].any()
    np.testing.assert_allclose(less[:, :4].mean(axis=0), 0.75, atol=0.11)


def test_without_it_the_choice_is_random_and_of_the_trained_prompts():
    found = chosen(MIXED, 3)
    assert (found.sum(axis=1) == 3).all()
    np.testing.assert_allclose(found.mean(axis=0), 0.5, atol=0.12)
    found = chosen(MIXED, 3, valid=TRAINED, dynamic=True)
    assert (found.sum(axis=1) == 3).all() and not found[:, 4:].any() and found[:, [1, 3]].all()
    assert (chosen(MIXED, 5, valid=TRAINED).sum(axis=1) == 4).all()  # never one that may not be trained on
    assert (chosen(MIXED, 0, valid=TRAINED) == TRAINED).all()


def test_a_share_of_the_prompts_is_the_easiest():
    options = [2, 9, 2, 9, 2, 9]
    assert (chosen(MIXED, 0, options, share=0.5) == [True, False, True, False, True, False]).all()
    assert (chosen(MIXED, 0, options, share=0.51) == [True, True, True, False, True, False]).all()  # rounded up
    assert chosen(MIXED, 0, options).all()
    # held-out prompts are in no share, however easy they are
    assert (chosen(MIXED, 0, options, valid=TRAINED) == TRAINED).all()
    found = chosen(MIXED, 0, options, valid=TRAINED, share=0.5)
    assert (found == [True, False, True, False, False, False]).all()
    found = chosen(MIXED, 3, options, share=0.5, dynamic=True)
    assert (found == [True, False, True, False, True, False]).all()


# --- the start ---


@pytest.mark.slow
def test_a_warm_start_has_the_rates_of_its_demonstrator():
    toy = make_toy("tools(prompts=4, options=4, prior=0.4, clear=0.55, skill=0.3, mix=(0.4, 0.35, 0.25))")
    world, count = make_world(toy), 1000
    policy = make_recurrent_policy(RecurrentArchitecture(vocabulary=24, width=16, prompts=toy.size))
    start = make_warm_start(
        policy, make_demonstrator(toy), world, updates=200, completions_per_prompt=16, length=8
    )  # fmt: skip

    @jax.jit
    def run(dials, seed):
        params = start(dials, jnp.float32(0.02), seed)
        sample = make_sampler(
            policy,
            group_size=count,
            completion_length=8,
            end_ids=world.end_ids,
            pad_id=world.pad_id,
            environment=world.environment(dials, jnp.int32(UNLIMITED)),
        )
        prompts = world.prompts(dials, 0)
        rollouts, state = sample(params, prompts, jax.random.key(9))
        return params, world.grade(dials, prompts, rollouts, state)

    params, groups = jax.device_get(run(toy.dials, jnp.int32(3)))
    again, _ = jax.device_get(run(toy.dials, jnp.int32(3)))
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(params), jax.tree.leaves(again)))
    assert groups.finished.mean() > 0.97
    for calls, (mix, rate) in enumerate(((0.4, 0.4), (0.35, 0.55), (0.25, 0.3))):
        of = groups.stratum == calls
        np.testing.assert_allclose(of.mean(), mix, atol=0.05)
        np.testing.assert_allclose(groups.outcome[of].mean(), rate, atol=0.08)
