"""`compat` against a second writing of each library's defaults, in float64 loops; see also `oracles/`.

TRL: advantages over std + 1e-4, mean over all tokens. verl: 1e-6, dual clip at 3, mean over all tokens. Tunix: 1e-6,
mean of rows' means, k1 in the loss. oat: 1e-8, mean of rows' means. OpenRLHF: 1e-9, mean over all tokens.
"""

from math import exp

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from transcription import standard

from rlvr_jax.estimators import compare, compat, make_estimator
from rlvr_jax.types import Batch, Groups

DEFAULTS = {  # eps, dual clip, KL of kind k1, by token or by row
    "trl": (1e-4, None, 0.0, "token"),
    "verl": (1e-6, 3.0, 0.0, "token"),
    "tunix": (1e-6, None, 0.04, "row"),
    "oat": (1e-8, None, 0.0, "row"),
    "openrlhf": (1e-9, None, 0.0, "token"),
}
OUTCOMES = [[1.0, 0.0, 0.0, 1.0], [0.0, 0.5, 1.0, 0.25], [1.0, 1.0, 1.0, 1.0]]


def token_loss(new, old, reference, A, dual, beta):
    ratio = exp(new - old)
    surrogate = min(ratio * A, min(max(ratio, 0.8), 1.2) * A)
    if dual is not None and A < 0:
        surrogate = max(surrogate, dual * A)
    return -surrogate + beta * (new - reference)


def total(new, old, reference, mask, A, library):
    _, dual, beta, by = DEFAULTS[library]
    rows = [
        [token_loss(new[b, t], old[b, t], reference[b, t], A[b], dual, beta) for t in np.flatnonzero(mask[b])]
        for b in range(len(new))
    ]
    if by == "token":
        return sum(map(sum, rows)) / sum(map(len, rows))
    return sum(sum(row) / len(row) for row in rows) / len(rows)


@pytest.mark.parametrize("library", sorted(DEFAULTS))
def test_advantages_loss_and_gradient(library):
    rng = np.random.default_rng(0)
    B, T = 12, 5
    mask = np.arange(T)[None] < np.append(rng.integers(1, T + 1, B - 1), T)[:, None]
    f32 = lambda x: np.asarray(x, np.float32).astype(np.float64)  # the same values on both sides
    new = f32(-rng.exponential(1.0, (B, T)))
    old = f32(new + rng.choice([0.1, 1.5], (B, 1)) * rng.normal(size=(B, T)))
    old[1, 0] = new[1, 0] - 1.5  # A < 0: a dual clip at 3 acts
    reference = f32(new + 0.5 * rng.normal(size=(B, T)))
    A = np.concatenate([standard(r, None, None, 1, DEFAULTS[library][0]) for r in OUTCOMES])
    assert A[1] < 0
    gradient, h = np.zeros((B, T)), 1e-6
    for b, t in zip(*np.nonzero(mask)):
        step = h * (np.arange(B)[:, None] == b) * (np.arange(T)[None] == t)
        sides = [total(new + s * step, old, reference, mask, A, library) for s in (1, -1)]
        gradient[b, t] = (sides[0] - sides[1]) / (2 * h)

    est = make_estimator("grpo", **compat(library))
    array = lambda x: jnp.asarray(x, jnp.float32)
    batch = Batch(
        completion_mask=jnp.asarray(mask),
        advantages=jnp.zeros(B),
        old_logprobs=array(old),
        reference_logprobs=array(reference),
        group=jnp.repeat(jnp.arange(3), 4),
    )
    groups = Groups(outcome=array(OUTCOMES), lengths=jnp.asarray(mask.sum(1).reshape(3, 4), jnp.int32))
    (found,) = jax.device_get(list(compare([est], groups, batch, array(new)).values()))
    np.testing.assert_allclose(found.advantages_PG.reshape(-1), A, rtol=2e-6, atol=1e-7)
    np.testing.assert_allclose(found.loss, total(new, old, reference, mask, A, library), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.gradient_BT, gradient, rtol=1e-4, atol=1e-7)
