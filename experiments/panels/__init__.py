"""Tables that need no training: exact or Monte-Carlo statements about one group or one update.

A panel is a function without required arguments that returns `dict(columns=[…], rows=[[…]], note=str, holds=bool)`
of plain values: the same at every call, seeds are fixed. Advantages and token weights come from the catalogue's
estimators; closed forms, where there are some, from `rlvr_jax.estimators.theory`. Arguments exist so that a test can
put another estimator in a place and see `holds` turn false.

Suffixes: U updates (Monte-Carlo repetitions), B rows of one update, T tokens, P and G as in `rlvr_jax.types`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.estimators import make_estimator
from rlvr_jax.estimators.estimator import Estimator
from rlvr_jax.types import Array, Batch, Groups

PanelData = dict[str, object]

# |z| beyond this refutes "equal": 4.7e-4 two-sided, so a family of 15 to 30 tests raises a false alarm with
# probability of at most 1.5 %. The same limit, one-sided, is asked of "differs".
LIMIT = 3.5
MAX_LENGTH = 16  # tokens of a completion
AGGREGATIONS: Mapping[str, str] = {
    "sequence_mean": "sequence_mean",
    "token_mean (group)": "token_mean(scope='group')",
    "token_mean (batch)": "token_mean(scope='batch')",
    "constant": f"constant(length={MAX_LENGTH})",
    "balanced": "balanced",
    "length_power 0.5": "length_power(alpha=0.5)",
    "learnable λ = 0": "learnable(start=0.0)",
    "learnable λ = 0.5": "learnable(start=0.5)",
}


def with_aggregation(aggregation: str, name: str = "grpo") -> Estimator:
    """A catalogue entry with its slot `aggregate` replaced."""
    return make_estimator(name, completion_length=MAX_LENGTH, aggregate=aggregation)


@functools.partial(jax.jit, static_argnums=0)
def _advantages(estimator, groups, memory):
    return estimator.advantages(groups, memory)[0]


def advantages(estimator: Estimator, outcome_PG: np.ndarray, memory=None, shape=None) -> np.ndarray:
    """f64[P, G]: the estimator's advantages of one batch, outcomes 0 or 1.

    Args:
      memory: what the estimator remembers; by default what it starts with.
      shape: (P, G) of a larger batch to compute in, the rest invalid rows: batches of one shape compile once.
    """
    P, G = outcome_PG.shape
    more_P, more_G = (shape[0] - P, shape[1] - G) if shape else (0, 0)
    wide = lambda values: np.pad(values, ((0, more_P), (0, more_G)))
    outcome = wide(np.asarray(outcome_PG, np.float32))
    groups = Groups(
        outcome=jnp.asarray(outcome),
        lengths=jnp.ones(outcome.shape, jnp.int32),
        valid=jnp.asarray(wide(np.ones((P, G), bool))),
    )
    memory = estimator.init_memory(len(outcome)) if memory is None else memory
    return np.asarray(_advantages(estimator, groups, memory), np.float64)[:P, :G]


@functools.partial(jax.jit, static_argnums=0)
def _weighted(estimator, advantages_UB: Array, mask_UBT: Array, values_UBT: Array, group_B: Array) -> Array:
    def of_update(advantages_B, mask_BT, values_BT):
        batch = Batch(completion_mask=mask_BT, advantages=advantages_B, group=group_B)
        return (estimator.token_weights(estimator.init_params(), batch) * values_BT).sum(axis=1)

    return jax.vmap(of_update)(advantages_UB, mask_UBT, values_UBT)


def weighted(estimator: Estimator, advantages_UB, lengths_UB, values_UBT, group_B, updates: int = 10_000) -> np.ndarray:
    """f64[U, B]: A·Σ_t w_t·value_t of every row, w the token weights of U separate updates of B rows.

    Works through the updates in pieces of `updates`, which must divide U.
    """
    pieces = []
    for start in range(0, len(advantages_UB), updates):
        piece = slice(start, start + updates)
        mask = np.arange(values_UBT.shape[-1]) < lengths_UB[piece, :, None]
        rows = jnp.asarray(advantages_UB[piece], jnp.float32)
        sums = _weighted(estimator, rows, mask, jnp.asarray(values_UBT[piece], jnp.float32), jnp.asarray(group_B))
        pieces.append(np.asarray(sums, np.float64) * advantages_UB[piece])
    return np.concatenate(pieces)


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """(mean, standard error) of independent values."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def z_score(found: float, error: float, expected: float = 0.0) -> float | None:
    """(found − expected)/error; None where nothing varies."""
    return (found - expected) / error if error > 1e-12 else None


def within(z: float | None) -> bool:
    """Whether a difference of z standard errors is no evidence against equality."""
    return z is not None and abs(z) < LIMIT
