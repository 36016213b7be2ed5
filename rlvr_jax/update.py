"""One optimiser update: Σ weight·loss over the rows of a batch, accumulated over micro-batches.

The weight of every token is known before the forward pass and has the denominators of the whole update in it, so the
loss is linear in the rows: how they are cut into micro-batches, ordered or spread over devices cannot change it.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from rlvr_jax.estimators import Estimator
from rlvr_jax.means import Max, Mean, neutral, reduce_stacked
from rlvr_jax.policy import Policy, make_logprobs
from rlvr_jax.types import Array, Batch, PyTree, TrainState


def make_update(
    policy: Policy,
    estimator: Estimator,
    optimizer: optax.GradientTransformation,
    *,
    micro_batch_rows: int = 0,
    completions_per_row: int = 1,
    temperature: float = 1.0,
    head_chunks: int = 1,
    row_slots: int = 0,
    entropy_bonus: float = 0.0,
    skip_inactive: bool = True,
    over_rows: Callable = lambda function: function,
) -> Callable[[TrainState, Batch], tuple[TrainState, dict]]:
    """A pure function update(state, batch) → (state, metrics): one optimiser update; `step` and `memory` stay.

    Only what `policy.trainable` names is differentiated and moved: `optimizer` was initialised with
    `trained_part(policy, params)`. Donate the state: parameters and moments are then changed in place.

    Args:
      micro_batch_rows: rows whose activations are held at once; 0: all. Must divide the rows of a batch.
      completions_per_row: completions that share a row with their prompt (see `make_logprobs`).
      temperature: of sampling; log-probabilities are taken of the same tempered distribution.
      head_chunks: pieces of the completions that pass the output head one after the other, their logits computed
        again in the backward pass; any number.
      row_slots: slots for the completions of a row, side by side without padding; 0: as many as the longest could need
        (see `make_logprobs`, and `needed_row_slots` for what a batch needs).
      entropy_bonus: coefficient of −H in the loss of every token, weighted like it.
      skip_inactive: rows without any gradient (advantage or weight 0, no penalty) are put last, and micro-batches
        that hold no other are not computed. The gradient is the same; the entropy and mismatch metrics then cover
        the micro-batches that were computed, and `rows_skipped` counts the others' rows.
      over_rows: see `make_logprobs`.

    Metrics: loss, gradient_norm (before clipping), entropy (nats a token), rows_skipped, and the estimator's own.
    """
    score = make_logprobs(
        policy,
        completions_per_row=completions_per_row,
        temperature=temperature,
        head_chunks=head_chunks,
        row_slots=row_slots,
        over_rows=over_rows,
    )

    def objective(trained: PyTree, policy_params: PyTree, batch: Batch, weights: Array):
        params = policy.with_trainable(policy_params, trained)
        logprobs, entropy = score(params, batch.tokens, batch.prompt_mask, batch.attend_mask)
        losses, metrics = estimator.token_losses(logprobs, batch)
        mask = batch.completion_mask & batch.valid[:, None]
        entropy = jnp.where(mask, entropy, 0.0)
        losses = losses - entropy_bonus * entropy if entropy_bonus else losses  # 0·H would still have a backward pass
        metrics = {**metrics, "entropy": Mean.of(jax.lax.stop_gradient(entropy), mask)}
        return (weights * losses).sum(), (losses, metrics)

    accumulate = make_accumulate(
        jax.value_and_grad(objective, has_aux=True),
        rows=micro_batch_rows,
        unit=completions_per_row,
        skip_inactive=skip_inactive and entropy_bonus == 0 and "reference" not in estimator.needs,
    )

    def update(state: TrainState, batch: Batch) -> tuple[TrainState, dict]:
        weigh = lambda params: estimator.token_weights(params, batch)
        weights, pull_back = jax.vjp(weigh, state.params["estimator"])
        trained, policy_params = trained_part(policy, state.params), state.params["policy"]
        loss, losses, gradient, metrics, skipped = accumulate(
            trained["policy"], policy_params, batch, jax.lax.stop_gradient(weights)
        )
        # ∂(Σ w·ℓ)/∂λ with ℓ fixed: weights depend on the estimator's own parameters, losses do not
        gradients = {"policy": gradient, "estimator": pull_back(losses)[0]}
        updates, opt_state = optimizer.update(gradients, state.opt_state, trained)
        trained = optax.apply_updates(trained, updates)
        params = {**trained, "policy": policy.with_trainable(policy_params, trained["policy"])}
        norm = optax.global_norm(gradient)
        metrics = {
            **metrics,
            "loss": Mean(loss, jnp.ones(())),
            "gradient_norm": Mean(norm, jnp.ones(())),
            "gradient_norm_max": Max(norm),
            "rows_skipped": Mean(skipped, jnp.ones(())),
        }
        return state.replace(params=params, opt_state=opt_state), metrics

    return update


def trained_part(policy: Policy, params: PyTree) -> PyTree:
    """What of a state's `params` an optimiser sees: all that the estimator learns, and what the policy lets train."""
    return {**params, "policy": policy.trainable(params["policy"])}


def make_accumulate(differentiate: Callable, *, rows: int, unit: int, skip_inactive: bool) -> Callable:
    """A function accumulate(trained, params, batch, weights f32[B, T]) → (loss, token losses f32[B, T], gradient,
    metrics, rows skipped), of all rows, in micro-batches of `rows` rows (0: all) made of units of `unit` adjacent rows.

    `differentiate(trained, params, batch, weights) → ((loss, (token losses, metrics)), gradient of trained)` is linear
    in the rows. With one micro-batch its gradient is the result: nothing is added to zeros.
    """

    def compute(trained, params, batch, weights):
        (loss, (losses, metrics)), gradient = differentiate(trained, params, batch, weights)
        return gradient, loss, losses, metrics

    def accumulate(trained: PyTree, params: PyTree, batch: Batch, weights: Array):
        total, size = weights.shape[0], rows or weights.shape[0]
        active = (_row_max(weights) > 0) & (_row_max(jnp.abs(batch.advantages)) > 0)
        active = active if skip_inactive else jnp.ones_like(active)

        def guarded(work: Callable, otherwise: Callable, batch, weights, active, *carry):
            """(*`work`, rows skipped), `otherwise` in its place where no row is active."""
            operands = (trained, params, batch, weights, *carry)
            if not skip_inactive:
                return (*work(*operands), jnp.zeros(()))
            runs = active.any()
            return (*jax.lax.cond(runs, work, otherwise, *operands), jnp.where(runs, 0.0, float(size)))

        def nothing(trained, params, batch, weights, gradient=None):
            shapes = jax.eval_shape(compute, trained, params, batch, weights)
            gradient = jax.tree.map(jnp.zeros_like, trained) if gradient is None else gradient
            return gradient, jnp.zeros(()), jnp.zeros_like(weights), neutral(shapes[-1])

        if size == total:
            gradient, loss, losses, metrics, skipped = guarded(compute, nothing, batch, weights, active)
            return loss, losses, gradient, metrics, skipped

        def add(trained, params, batch, weights, gradient):
            more, *results = compute(trained, params, batch, weights)
            return jax.tree.map(jnp.add, gradient, more), *results

        def one(gradient, piece):
            gradient, *results = guarded(add, nothing, *piece, gradient)
            return gradient, results

        order = _active_first(active, unit)
        in_order = jax.tree.map(lambda x: x[order], (batch, weights, active))
        pieces = jax.tree.map(lambda x: x.reshape(total // size, size, *x.shape[1:]), in_order)
        zero = jax.tree.map(jnp.zeros_like, trained)
        gradient, (loss, losses, metrics, skipped) = jax.lax.scan(one, zero, pieces)
        losses = losses.reshape(weights.shape)[jnp.argsort(order)]
        return loss.sum(), losses, gradient, reduce_stacked(metrics), skipped.sum()

    return accumulate


def minibatches(batch: Batch, count: int, group_size: int, key: Array) -> list[Batch]:
    """The batch as `count` batches of whole groups, drawn without replacement with `key`; each is one update with
    denominators of its own. One minibatch is the batch itself, in its order."""
    if count == 1:
        return [batch]
    groups = batch.valid.shape[0] // group_size
    order = jax.random.permutation(key, groups).reshape(count, -1)
    rows = (order[..., None] * group_size + jnp.arange(group_size).reshape(1, 1, -1)).reshape(count, -1)
    pick = lambda which: jax.tree.map(lambda x: x[which], batch)
    return [pick(rows[i]) for i in range(count)]


def _row_max(values: Array) -> Array:
    return values.reshape(values.shape[0], -1).max(axis=-1)


def _active_first(active: Array, unit: int) -> Array:
    """An order of rows that puts units of `unit` adjacent rows with any active row first; i32[B]."""
    quiet = ~active.reshape(-1, unit).any(axis=-1)
    order = jnp.argsort(quiet, stable=True)
    return (order[:, None] * unit + jnp.arange(unit).reshape(1, -1)).reshape(-1)
