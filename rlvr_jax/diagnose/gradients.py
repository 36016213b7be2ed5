"""One batch, one policy, many estimators: how long their gradients are, and which way they point.

Aggregation rules are said to differ in scale alone, which a learning rate undoes. The cosines say what no learning rate
undoes, and the factors bring all gradients to one length, so that what remains can be compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.estimators import Estimator
from rlvr_jax.estimators.base import to_rows
from rlvr_jax.masked import safe_divide
from rlvr_jax.policy import Policy, make_logprobs
from rlvr_jax.types import Array, Batch, Groups, PyTree


class Gradients(NamedTuple):
    """Of N estimators, in their order.

    norms:       f32[N], of the gradient of what is trained, before any clipping
    cosines:     f32[N, N], of the angles between them; 0 where one has no gradient
    factors:     f32[N], what a gradient must be multiplied by to have the norm of the reference's; 0 where it has none
    layer_norms: name → f32[N]: the same norms of each block of layers ("blocks/0", …) and of the other parameters
    losses:      f32[N]
    gradients:   the gradients, each leaf [N, …], when they were asked for; else None
    """

    norms: Array
    cosines: Array
    factors: Array
    layer_norms: dict[str, Array]
    losses: Array
    gradients: PyTree | None


class _Phase(NamedTuple):
    """What is known of one estimator before the forward pass, over all rows."""

    advantages: Array  # f32[B]
    valid: Array  # bool[B]
    weights: Array  # f32[B, T]


def make_gradients(
    policy: Policy,
    estimators: Sequence[Estimator],
    *,
    reference: int = 0,
    micro_batch_rows: int = 0,
    completions_per_row: int = 1,
    temperature: float = 1.0,
    head_chunks: int = 1,
    keep: bool = False,
) -> Callable[[PyTree, Groups, Batch], Gradients]:
    """A pure function (policy params, groups, batch) → Gradients; jit it as a whole.

    The forward pass is made once; each estimator adds a backward pass. N gradients are held at once. Every estimator
    starts without a past and with its parameters as made.

    Args:
      estimators: at least one. Whether they need a reference policy is seen by their losses.
      reference: whose norm the `factors` lead to.
      micro_batch_rows: rows whose activations are held at once; 0: all. Must divide the rows of a batch.
      completions_per_row, temperature, head_chunks: as in `rlvr_jax.update.make_update`.
      keep: hand out the gradients too.
    Raises:
      ValueError: no estimator, a reference that is none of them; when called, rows that cannot be cut so.

    The function's groups and batch are those of `rlvr_jax.estimators.compare`: B = P·G rows, `batch.group` the group of
    a row in ascending ids; `batch.advantages` is not read. `batch.tokens` and `prompt_mask` are needed.
    """
    if not estimators:
        raise ValueError("estimators: at least one is needed")
    if not 0 <= reference < len(estimators):
        raise ValueError(f"reference={reference}: must be the place of one of the {len(estimators)} estimators")
    score = make_logprobs(
        policy, completions_per_row=completions_per_row, temperature=temperature, head_chunks=head_chunks
    )
    estimators = tuple(estimators)

    def of_rows(policy_params, batch, phases):
        """(gradients [N, …], losses f32[N]) of some rows: one forward pass, N pulled back."""

        def logprobs_of(trained):
            params = policy.with_trainable(policy_params, trained)
            return score(params, batch.tokens, batch.prompt_mask, batch.attend_mask)[0]

        logprobs, pull_back = jax.vjp(logprobs_of, policy.trainable(policy_params))
        found = [_slope(e, phase, logprobs, batch) for e, phase in zip(estimators, phases)]
        losses, slopes = (jnp.stack(parts) for parts in zip(*found))
        return jax.vmap(lambda slope: pull_back(slope)[0])(slopes), losses

    def gradients(policy_params: PyTree, groups: Groups, batch: Batch) -> Gradients:
        phases = [_phase_one(e, groups, batch) for e in estimators]
        total, size = batch.completion_mask.shape[0], micro_batch_rows or batch.completion_mask.shape[0]
        if total % size or size % completions_per_row:
            raise ValueError(
                f"micro_batch_rows={size}: must divide the {total} rows and be a multiple of "
                f"completions_per_row={completions_per_row}"
            )
        if size == total:
            return _measure(*of_rows(policy_params, batch, phases), reference, keep)

        def add(carry, piece):
            return jax.tree.map(jnp.add, carry, of_rows(policy_params, *piece)), None

        pieces = jax.tree.map(lambda x: x.reshape(total // size, size, *x.shape[1:]), (batch, phases))
        many = lambda x: jnp.zeros((len(estimators), *x.shape), x.dtype)
        zero = jax.tree.map(many, policy.trainable(policy_params)), jnp.zeros(len(estimators))
        return _measure(*jax.lax.scan(add, zero, pieces)[0], reference, keep)

    return gradients


def _phase_one(estimator: Estimator, groups: Groups, batch: Batch) -> _Phase:
    memory = estimator.init_memory(groups.outcome.shape[0])
    selected, advantages_PG, _, _ = estimator.estimate(groups, memory)
    advantages = to_rows(advantages_PG, batch.group)
    valid = batch.valid & to_rows(selected.valid, batch.group)
    batch = batch.replace(advantages=advantages, valid=valid)
    return _Phase(advantages, valid, estimator.token_weights(estimator.init_params(), batch))


def _slope(estimator: Estimator, phase: _Phase, logprobs: Array, batch: Batch):
    """(loss, its gradient with respect to the log-probabilities f32[b, T]) of some rows."""
    batch = batch.replace(advantages=phase.advantages, valid=phase.valid)
    loss = lambda x: (phase.weights * estimator.token_losses(x, batch)[0]).sum()
    return jax.value_and_grad(loss)(logprobs)


def _measure(gradients: PyTree, losses: Array, reference: int, keep: bool) -> Gradients:
    leaves = jax.tree.leaves(gradients)
    flat = lambda x: x.reshape(x.shape[0], -1).astype(jnp.float32)
    products = sum(jnp.einsum("ik,jk->ij", flat(x), flat(x), precision="highest") for x in leaves)
    norms = jnp.sqrt(jnp.diagonal(products))
    lengths = norms[:, None] * norms[None, :]
    return Gradients(
        norms=norms,
        cosines=jnp.clip(safe_divide(products, lengths), -1.0, 1.0),
        factors=safe_divide(jnp.broadcast_to(norms[reference], norms.shape), norms),
        layer_norms=_layer_norms(gradients),
        losses=losses,
        gradients=gradients if keep else None,
    )


def _layer_norms(gradients: PyTree) -> dict[str, Array]:
    """The leaves under "blocks" have their layers first, after the estimators; the others are taken by their name."""
    squares: dict[str, Array] = {}
    for name, part in gradients.items():
        for leaf in jax.tree.leaves(part):
            leaf = jnp.square(leaf.astype(jnp.float32))
            if name == "blocks":
                by_layer = leaf.reshape(*leaf.shape[:2], -1).sum(-1)
                found = {f"blocks/{layer}": by_layer[:, layer] for layer in range(by_layer.shape[1])}
            else:
                found = {name: leaf.reshape(leaf.shape[0], -1).sum(-1)}
            for key, value in found.items():
                squares[key] = squares.get(key, 0.0) + value
    return {name: jnp.sqrt(value) for name, value in squares.items()}
