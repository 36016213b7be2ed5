"""Many estimators on one batch, in one compiled call; one estimator over a sweep of a part's arguments."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax

from rlvr_jax.estimators.base import to_rows
from rlvr_jax.estimators.estimator import Estimator, make_estimator, registries
from rlvr_jax.types import Array, Batch, Groups, PyTree


class Comparison(NamedTuple):
    """What one estimator makes of a batch."""

    advantages_PG: Array
    weights_BT: Array
    loss: Array
    gradient_BT: Array  # of the loss with respect to the log-probabilities
    params_gradient: PyTree  # ... and to the estimator's own parameters; {} when nothing learns


def evaluate(estimator: Estimator, groups: Groups, batch: Batch, logprobs_BT: Array, memory=None) -> Comparison:
    """One estimator on one batch, pure. See `compare` for the arguments."""
    memory = estimator.init_memory(groups.outcome.shape[0]) if memory is None else memory
    selected, advantages_PG, _, _ = estimator.estimate(groups, memory)
    batch = batch.replace(
        advantages=to_rows(advantages_PG, batch.group),
        valid=batch.valid & to_rows(selected.valid, batch.group),
    )
    params = estimator.init_params()
    gradient = jax.value_and_grad(lambda *x: estimator.loss(*x, batch)[0], argnums=(0, 1))
    loss, (params_gradient, gradient_BT) = gradient(params, logprobs_BT)
    weights_BT = estimator.token_weights(params, batch)
    return Comparison(advantages_PG, weights_BT, loss, gradient_BT, params_gradient)


@functools.partial(jax.jit, static_argnums=0)
def _compare(estimators, groups, batch, logprobs_BT):
    return [evaluate(estimator, groups, batch, logprobs_BT) for estimator in estimators]


def _logprobs(logprobs_BT, batch):
    if logprobs_BT is None and batch.old_logprobs is None:
        raise ValueError("compare: logprobs_BT is None and so is batch.old_logprobs; give one of them")
    return batch.old_logprobs if logprobs_BT is None else logprobs_BT


def compare(
    names: Sequence[str | Estimator],
    groups: Groups,
    batch: Batch,
    logprobs_BT: Array | None = None,
    completion_length: int | None = None,
) -> dict[str, Comparison]:
    """Advantages, token weights, losses and gradients of several estimators on the same batch, side by side.

    Args:
      names: catalogue names, or estimators (keyed by their `describe()`). Stateful ones start without a past.
      groups: P groups of G.
      batch: B = P·G rows in any order; `batch.group` says which group a row belongs to (ascending ids are the
        groups in order; within a group rows keep their order). `batch.advantages` is not read.
      logprobs_BT: of the policy; default `batch.old_logprobs`, which is the on-policy case.
      completion_length: for entries that take their length from the configuration.
    """
    keyed = {}
    for name in names:
        estimator = make_estimator(name, completion_length) if isinstance(name, str) else name
        keyed[name if isinstance(name, str) else estimator.describe()] = estimator
    results = _compare(tuple(keyed.values()), groups, batch, _logprobs(logprobs_BT, batch))
    return dict(zip(keyed, results))


def sweep(
    estimator: Estimator,
    slot: str,
    option: str,
    arguments: Mapping[str, Array],
    groups: Groups,
    batch: Batch,
    logprobs_BT: Array | None = None,
) -> Comparison:
    """One slot of `estimator` over N values of its arguments: one `vmap` of one compiled function.

    Example: sweep(grpo, "clip", "ppo(low=0.2)", {"high": jnp.linspace(0.1, 0.5, 5)}, groups, batch,
    logprobs). Every result has a leading axis N. Arguments that size the memory (window, bins) cannot be
    swept.
    """
    factory, fixed = registries[slot].parse(option)

    def one(swept):
        part = factory(**{**fixed, **swept})
        return evaluate(estimator.with_parts(**{slot: part}), groups, batch, _logprobs(logprobs_BT, batch))

    return jax.jit(jax.vmap(one))(dict(arguments))
