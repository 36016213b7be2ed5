"""One block: several estimators and optimisers side by side on one task, from one start and with one set of keys.

Runs are the leading axis R of everything: column by column, the arms of a column adjacent. What is the same
computation for every run (sampling, log-probabilities, their gradient) is one vmapped call; what differs (the
estimator of an arm, the optimiser of a column) is applied to its slice. So the estimators are the catalogue's own,
each with its own memory and parameters, and the whole block is one program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.estimators import Estimator
from rlvr_jax.lab.world import World
from rlvr_jax.masked import safe_divide
from rlvr_jax.means import Mean
from rlvr_jax.optimizer import make_policy_optimizer
from rlvr_jax.policy import Policy, make_logprobs
from rlvr_jax.rng import key_for
from rlvr_jax.rollout import from_groups, to_batch
from rlvr_jax.sampling import SamplingMethod, make_sampler
from rlvr_jax.types import Array, Batch, Groups, PyTree
from rlvr_jax.update import minibatches


class Setting(NamedTuple):
    """What sizes the program. Static."""

    steps: int
    group_size: int
    completion_length: int
    kinds: tuple[str, ...]  # one per column: "sgd", "matched" or "adam"; all "matched" last
    reference: int  # the arm whose gradient norm "matched" takes
    kept: int = 0  # groups trained on in a step; 0: all that are valid
    epochs: int = 1
    minibatches: int = 1
    temperature: float = 1.0
    b1: float = 0.9
    b2: float = 0.95


class Knobs(NamedTuple):
    """What differs between runs without changing the program; data, each f32 or i32 [R] or [R, steps]."""

    learning_rate: Array
    estimator_learning_rate: Array
    dynamic: Array  # bool[R], see `choose`
    budget: Array  # i32[R, steps]
    share: Array  # f32[R, steps], of the prompts trained on, in the order of their ids' ranks


class _Carry(NamedTuple):
    params: PyTree  # [R, …]
    learned: list  # per arm: estimator parameters [C, …]
    opt_state: list  # per column: [A, …]
    memory: list  # per arm: [C, …]


class _Lab:
    """The functions of one experiment; A arms, C columns, R = C·A runs."""

    def __init__(self, policy: Policy, world: World, estimators: Sequence[Estimator], setting: Setting):
        self.policy, self.world, self.estimators, self.setting = policy, world, estimators, setting
        self.arms, self.columns = len(estimators), len(setting.kinds)
        self.score = make_logprobs(policy, temperature=setting.temperature)
        rule = lambda kind: make_policy_optimizer("adam" if kind == "adam" else "sgd", 1.0, setting.b1, setting.b2)
        self.optimizers = [rule(kind) for kind in setting.kinds]
        self.plain = sum(kind != "matched" for kind in setting.kinds) * self.arms  # runs before the matched ones
        self.many = setting.epochs * setting.minibatches > 1

    # --- the two ways to cut the runs ---

    def by_arm(self, tree: PyTree) -> list:
        """[R, …] → a list of A trees [C, …]."""
        cut = lambda x: x.reshape(self.columns, self.arms, *x.shape[1:])
        pick = lambda arm: lambda x: cut(x)[:, arm]
        return [jax.tree.map(pick(arm), tree) for arm in range(self.arms)]

    def from_arms(self, trees: list) -> PyTree:
        """A trees [C, …] → [R, …]."""
        join = lambda *leaves: jnp.stack(leaves, axis=1).reshape(-1, *leaves[0].shape[1:])
        return jax.tree.map(join, *trees)

    def by_column(self, tree: PyTree) -> list:
        """[R, …] → a list of C trees [A, …]."""
        pick = lambda column: lambda x: x[column * self.arms : (column + 1) * self.arms]
        return [jax.tree.map(pick(column), tree) for column in range(self.columns)]

    # --- a step ---

    def start(self, params: PyTree) -> _Carry:
        runs = self.arms * self.columns
        spread = lambda tree, count: jax.tree.map(lambda x: jnp.broadcast_to(x, (count, *jnp.shape(x))), tree)
        return _Carry(
            params=spread(params, runs),
            learned=[spread(estimator.init_params(), self.columns) for estimator in self.estimators],
            opt_state=[spread(optimizer.init(params), self.arms) for optimizer in self.optimizers],
            memory=[spread(estimator.init_memory(self.world.count), self.columns) for estimator in self.estimators],
        )

    def sample(self, params: PyTree, dials: PyTree, prompts, key: Array, budget: Array):
        """(Rollouts, the environment's state or None) of one run."""
        environment = self.world.environment(dials, budget) if self.world.environment else None
        sampler = make_sampler(
            self.policy,
            group_size=self.setting.group_size,
            completion_length=self.setting.completion_length,
            end_ids=self.world.end_ids,
            pad_id=self.world.pad_id,
            method=SamplingMethod(temperature=self.setting.temperature),
            environment=environment,
            stop_early=False,
        )
        result = sampler(params, prompts, key)
        return result if environment else (result, None)

    def choose(self, dials: PyTree, groups: Groups, key: Array, dynamic: Array, share: Array) -> Groups:
        """The groups a run trains on: `share` of the prompts in the order of their difficulty; of these `kept` in a
        random order, with `dynamic` those whose outcomes differ before the others (Yu et al. 2025, DAPO, 2503.14476:
        groups without contrast are drawn again)."""
        valid, count = groups.valid, groups.prompt_id.shape[0]
        if "options" in dials:  # the easiest prompts are those with the fewest options; ties by id
            trainable = valid.any(axis=1)
            options = jnp.where(trainable, dials["options"][groups.prompt_id], jnp.iinfo(jnp.int32).max)
            rank = jnp.argsort(jnp.argsort(options, stable=True), stable=True)
            valid = valid & (rank < jnp.ceil(share * trainable.sum()))[:, None]
        if not self.setting.kept:
            return groups.replace(valid=valid)
        there = valid.any(axis=1)
        informative = there & (groups.outcome.max(axis=1) > groups.outcome.min(axis=1))
        order = jax.random.permutation(key, count)
        priority = jnp.where(there, 2.0, 0.0) + jnp.where(dynamic & informative, 1.0, 0.0) + order / (2.0 * count)
        place = jnp.argsort(jnp.argsort(-priority))
        return groups.replace(valid=valid & (place < self.setting.kept)[:, None])

    def estimate(self, groups: Groups, memory: list) -> tuple[Groups, Array, list, dict]:
        """Every arm by its own estimator: groups as they then are [R, …], advantages [R, P, G], memory, metrics."""
        results = [
            jax.vmap(estimator.estimate)(own, remembered)
            for estimator, own, remembered in zip(self.estimators, self.by_arm(groups), memory)
        ]
        kept, advantages, memory, metrics = zip(*results)
        return self.from_arms(kept), self.from_arms(advantages), list(memory), self.from_arms(metrics)

    def cotangents(self, learned: list, logprobs: Array, batch: Batch) -> tuple[list, Array, Array]:
        """(∂loss/∂learned per arm, ∂loss/∂logprobs [R, B, T], clip fraction Mean [R])."""
        results = []
        for estimator, own, mine, rows in zip(self.estimators, learned, self.by_arm(logprobs), self.by_arm(batch)):
            results.append(jax.vmap(jax.grad(estimator.loss, argnums=(0, 1), has_aux=True))(own, mine, rows))
        slopes, metrics = zip(*results)
        clipped = self.from_arms([m["clip_fraction"] for m in metrics])
        return [slope[0] for slope in slopes], self.from_arms([slope[1] for slope in slopes]), clipped

    def gradients(self, params: PyTree, learned: list, batch: Batch, matched: Batch | None):
        """(gradient [R, …], of the estimators' parameters, statistics [R]). `matched` holds the same rows as the
        matched columns of `batch`, with the reference arm's advantages."""
        cut = self.plain
        parts = [slice(0, cut), slice(cut, None)] if cut and matched is not None else [slice(None)]
        pulls, values, entropies = [], [], []
        for part in parts:
            own, rows = jax.tree.map(lambda x, part=part: x[part], (params, batch))
            run = lambda p, rows=rows: jax.vmap(self.score)(p, rows.tokens, rows.prompt_mask, rows.attend_mask)
            logprobs, pull, entropy = jax.vjp(run, own, has_aux=True)
            pulls.append(pull), values.append(logprobs), entropies.append(entropy)
        logprobs = jnp.concatenate(values)
        of_learned, cotangent, clipped = self.cotangents(learned, logprobs, batch)
        pieces = [pull(cotangent[part])[0] for pull, part in zip(pulls, parts)]
        norm = jnp.concatenate([_norms(piece) for piece in pieces])
        if matched is not None:
            reference = self.estimators[self.setting.reference]
            loss = lambda logprobs, rows: reference.loss(reference.init_params(), logprobs, rows)[0]
            wanted = _norms(pulls[-1](jax.vmap(jax.grad(loss))(values[-1], matched))[0])
            pieces[-1] = _scale(pieces[-1], safe_divide(wanted, _norms(pieces[-1])))
        gradient = jax.tree.map(lambda *x: jnp.concatenate(x), *pieces)
        mask = batch.completion_mask & batch.valid[..., None]
        entropy = jax.vmap(Mean.of)(jnp.concatenate(entropies), mask)
        ones = jnp.ones_like(norm)
        return (
            gradient,
            of_learned,
            {
                "gradient_norm": Mean(norm, ones),
                "entropy": entropy,
                "clip_fraction": clipped,
            },
        )

    def apply(self, carry: _Carry, gradient: PyTree, of_learned: list, knobs: Knobs) -> tuple[_Carry, Array]:
        """Every column by its own rule; (carry, norm of the step [R])."""
        changes, states = [], []
        cut = zip(self.optimizers, self.by_column(gradient), carry.opt_state, self.by_column(carry.params))
        for optimizer, own, state, params in cut:
            change, state = jax.vmap(optimizer.update)(own, state, params)
            changes.append(change), states.append(state)
        change = jax.tree.map(lambda *x: jnp.concatenate(x), *changes)
        change = _scale(change, knobs.learning_rate)
        rates = self.by_arm(knobs.estimator_learning_rate)
        descend = lambda value, slope, rate: value - rate * slope
        learned = [
            jax.tree.map(lambda v, s, rate=rate: descend(v, s, rate), value, slope)
            for value, slope, rate in zip(carry.learned, of_learned, rates)
        ]
        params = jax.tree.map(jnp.add, carry.params, change)
        return carry._replace(params=params, learned=learned, opt_state=states), _norms(change)

    def step(self, dials: PyTree, seed: Array, knobs: Knobs, carry: _Carry, inputs):
        """One rollout batch of every run; (carry, {name: Mean [R]})."""
        index, budget, share = inputs
        key = key_for(seed, index, "sample")
        prompts = self.world.prompts(dials, index)
        sample = lambda params, budget: self.sample(params, dials, prompts, key, budget)
        rollouts, state = jax.vmap(sample)(carry.params, budget)
        seen = jax.vmap(lambda rollouts, state: self.world.grade(dials, prompts, rollouts, state))(rollouts, state)
        pick = lambda groups, dynamic, share: self.choose(dials, groups, key_for(seed, index, "choose"), dynamic, share)
        offered = jax.vmap(pick)(seen, knobs.dynamic, share)
        groups, advantages, memory, from_estimate = self.estimate(offered, carry.memory)
        old = None
        if self.many:
            score = lambda params, rows: self.score(params, rows.tokens, rows.prompt_mask, rows.attend_mask)[0]
            old = jax.vmap(score)(carry.params, rollouts)
        batch = _batches(rollouts, groups, advantages, old)
        matched = self.reference_batch(rollouts, offered, old) if "matched" in self.setting.kinds else None
        # of every rollout, those not chosen included; but rewards as the estimator shaped them, so of the chosen ones
        metrics = jax.vmap(from_groups)(seen)
        metrics["reward"] = jax.vmap(Mean.of)(groups.rewards, offered.valid)
        metrics |= jax.vmap(lambda groups, state: self.world.measure(dials, groups, state))(seen, state)
        metrics |= {name: from_estimate[name] for name in ("zero_variance_groups", "kept_groups", "advantage_abs")}
        carry, from_update = self.update(carry._replace(memory=memory), batch, matched, knobs, seed, index)
        rollout = {f"rollout/{name}": mean for name, mean in metrics.items()}
        return carry, rollout | {f"update/{name}": mean for name, mean in from_update.items()}

    def reference_batch(self, rollouts, offered: Groups, old: Array | None) -> Batch:
        """The rows of the matched columns with the advantages the reference arm gives them."""
        reference = self.estimators[self.setting.reference]
        rollouts, offered, old = jax.tree.map(lambda x: x[self.plain :], (rollouts, offered, old))
        memory = reference.init_memory(self.world.count)
        groups, advantages, _, _ = jax.vmap(lambda own: reference.estimate(own, memory))(offered)
        return _batches(rollouts, groups, advantages, old)

    def update(self, carry: _Carry, batch: Batch, matched: Batch | None, knobs: Knobs, seed: Array, index: Array):
        """All optimiser updates of one rollout batch; metrics are summed over them."""
        setting, total = self.setting, None
        for epoch in range(setting.epochs):
            key = key_for(seed, index, f"shuffle {epoch}")
            cut = lambda rows, key=key: minibatches(rows, setting.minibatches, setting.group_size, key)
            pieces = jax.vmap(cut)(batch)
            references = jax.vmap(cut)(matched) if matched is not None else [None] * len(pieces)
            for rows, reference in zip(pieces, references):
                gradient, of_learned, metrics = self.gradients(carry.params, carry.learned, rows, reference)
                carry, size = self.apply(carry, gradient, of_learned, knobs)
                metrics["step_norm"] = Mean(size, jnp.ones_like(size))
                total = metrics if total is None else {name: total[name].merge(metrics[name]) for name in metrics}
        learned = [own.get("aggregate", {}).get("lambda", jnp.full((self.columns,), jnp.nan)) for own in carry.learned]
        known = self.from_arms(learned)
        total["lambda"] = Mean(jnp.nan_to_num(known), (~jnp.isnan(known)).astype(jnp.float32))
        return carry, total

    def run(self, params: PyTree, dials: PyTree, knobs: Knobs, seed: Array) -> tuple[PyTree, dict]:
        """(last params [R, …], {name: Mean [steps, R]})."""
        index = jnp.arange(self.setting.steps)
        step = lambda carry, inputs: self.step(dials, seed, knobs, carry, inputs)
        carry, metrics = jax.lax.scan(step, self.start(params), (index, knobs.budget.T, knobs.share.T))
        return carry.params, metrics


def _batches(rollouts, groups: Groups, advantages: Array, old: Array | None) -> Batch:
    """[R, …] of each → Batch [R, …]; the sampler's own log-probabilities are left out: they are the learner's."""
    make = lambda rollouts, groups, advantages, old: to_batch(rollouts, groups, advantages, old).replace(
        behaviour_logprobs=None
    )
    return jax.vmap(make, in_axes=(0, 0, 0, None if old is None else 0))(rollouts, groups, advantages, old)


def _norms(tree: PyTree) -> Array:
    """f32[R], the global norm of each run's part."""
    return jnp.sqrt(sum(jnp.square(x).reshape(x.shape[0], -1).sum(axis=1) for x in jax.tree.leaves(tree)))


def _scale(tree: PyTree, factor: Array) -> PyTree:
    """Each run's part times its factor [R]."""
    return jax.tree.map(lambda x: x * factor.reshape(-1, *(1,) * (x.ndim - 1)), tree)


def make_experiment(
    policy: Policy, world: World, estimators: Sequence[Estimator], setting: Setting
) -> Callable[[PyTree, PyTree, Knobs, Any], tuple[PyTree, dict]]:
    """A pure function (start params, dials, knobs, seed) → (params [R, …], metrics as `Mean` [steps, R]), R = columns
    × arms, columns outermost. Metrics have the names of the training loop's."""
    lab = _Lab(policy, world, tuple(estimators), setting)
    return lab.run
