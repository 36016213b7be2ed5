"""Each catalogue entry against a second writing of its paper's equations (`transcription.py`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import transcription as paper
import transcription_loss as paper_loss
from runs import G, P, entry, phase_one, phase_two

from rlvr_jax.estimators import SLOTS, catalogue
from rlvr_jax.types import Batch, Groups

NAMES = list(catalogue)


def random_groups(seed, P, G):
    """Binary, graded and constant groups (0.3 and 0.9, which float32 cannot hold, among them), ragged, one
    empty."""
    rng = np.random.default_rng(seed)
    binary = (rng.random((P, G)) < rng.choice([0.05, 0.3, 0.6, 0.95], (P, 1))).astype(np.float32)
    graded = rng.choice(np.float32([0.0, 0.1, 0.3, 0.7, 0.9, 1.0]), (P, G))
    constant = np.broadcast_to(rng.choice(np.float32([0.0, 1.0, 0.3, 0.1, 0.9]), (P, 1)), (P, G))
    kind = rng.choice(3, (P, 1), p=[0.5, 0.3, 0.2])
    outcome = np.select([kind == 0, kind == 1], [binary, graded], constant).astype(np.float32)
    size = rng.integers(1, G + 1, (P, 1))
    size[0] = G
    valid = rng.permuted(np.arange(G)[None] < size, axis=1)
    valid[-1] = False
    return {
        "outcome": outcome,
        "lengths": rng.integers(1, paper.LENGTH + 3, (P, G)).astype(np.int32),
        "stratum": rng.integers(0, 4, (P, G)).astype(np.int32),
        "valid": valid,
        "prompt_id": rng.permutation(np.arange(2 * P))[:P].astype(np.int32),
    }


@pytest.mark.parametrize("name", NAMES)
def test_advantages(name):
    """204 groups of 2 to 64 responses in three batches that share their memory."""
    est = entry(name, SLOTS[:5])
    memory, state = est.init_memory(2 * P), {}
    for seed in range(3):
        data = random_groups(seed, P, G)
        expected, counts = paper.phase_one(
            name, *(data[k] for k in ("outcome", "lengths", "stratum", "valid", "prompt_id")), state
        )
        selected, advantages, memory = phase_one(est, Groups(**jax.tree.map(jnp.asarray, data)), memory)
        np.testing.assert_array_equal(selected.valid, counts)
        np.testing.assert_allclose(advantages, expected, rtol=2e-5, atol=2e-5)
        assert (np.asarray(advantages)[~counts] == 0).all()


def random_batch(name, seed=0, P=5, G=4, T=7):
    """Rows in random order with gaps in their masks, off-policy, advantages of the entry itself."""
    rng = np.random.default_rng(seed)
    B = P * G
    data = random_groups(seed + 10, P, G)
    advantages, counts = paper.phase_one(
        name, *(data[k] for k in ("outcome", "lengths", "stratum", "valid", "prompt_id")), {}
    )
    order = rng.permutation(B)
    lengths = rng.integers(0, T + 1, B)
    lengths[:2] = T, 1
    mask = rng.permuted(np.arange(T)[None] < lengths[:, None], axis=1)
    new = -rng.exponential(1.0, (B, T))
    return {
        "new": new,
        "old": new + rng.choice([0.02, 0.3, 1.5], (B, 1)) * rng.normal(size=(B, T)),
        "mask": mask,
        "valid": counts.reshape(-1)[order],
        "group": np.repeat(rng.permutation(1000)[:P], G)[order],
        "advantages": np.round(advantages.reshape(-1)[order], 6),
    }


def to_batch(data):
    f32 = lambda x: jnp.asarray(x, jnp.float32)
    return Batch(
        completion_mask=jnp.asarray(data["mask"]),
        advantages=f32(data["advantages"]),
        old_logprobs=f32(data["old"]),
        group=jnp.asarray(data["group"], jnp.int32),
        valid=jnp.asarray(data["valid"]),
    )


@pytest.mark.parametrize("name", NAMES)
def test_weights_loss_and_gradient(name):
    est, data = entry(name, SLOTS[5:]), random_batch(name)
    A, mask, valid, group = data["advantages"], data["mask"], data["valid"], data["group"]
    L = [int(row.sum()) if ok else 0 for row, ok in zip(mask, valid)]
    w = np.array(paper_loss.row_weights(name, L, list(valid), list(group), list(A)))
    args = (data["new"], data["old"], mask, valid, group, A, w)
    found = phase_two(est, est.init_params(), jnp.asarray(data["new"], jnp.float32), to_batch(data))
    np.testing.assert_allclose(found.weights, w[:, None] * (mask & valid[:, None]), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(found.loss, paper_loss.total_loss(name, *args), rtol=3e-5, atol=3e-6)
    np.testing.assert_allclose(found.gradient, paper_loss.gradient(name, *args), rtol=2e-4, atol=2e-6)


@pytest.mark.parametrize("name", NAMES)
def test_weights_and_loss_of_many_groups(name):
    """200 groups in forty batches; the gradient, whose central differences take long, is checked above."""
    est = entry(name, SLOTS[5:])
    for seed in range(1, 41):
        data = random_batch(name, seed)
        A, mask, valid, group = data["advantages"], data["mask"], data["valid"], data["group"]
        L = [int(row.sum()) if ok else 0 for row, ok in zip(mask, valid)]
        w = np.array(paper_loss.row_weights(name, L, list(valid), list(group), list(A)) if any(L) else [0.0] * len(L))
        found = phase_two(est, est.init_params(), jnp.asarray(data["new"], jnp.float32), to_batch(data))
        np.testing.assert_allclose(found.weights, w[:, None] * (mask & valid[:, None]), rtol=1e-5, atol=1e-8)
        terms = np.abs(np.asarray(found.weights * found.losses)).sum()
        expected = paper_loss.total_loss(name, data["new"], data["old"], mask, valid, group, A, w)
        np.testing.assert_allclose(found.loss, expected, rtol=3e-5, atol=3e-6 * max(terms, 1.0))


def test_lambda_moves_weights_and_has_the_gradient_of_its_formula():
    """λ = 0.7: weights f/T, and dJ/dλ by central differences of the transcription."""
    est, data = entry("lambda_grpo"), random_batch("lambda_grpo", seed=3)
    mask, valid, group, A = data["mask"], data["valid"], data["group"], data["advantages"]
    L = [int(row.sum()) if ok else 0 for row, ok in zip(mask, valid)]

    def expected(lam):
        w = paper_loss.lambda_weights(L, list(valid), list(group), A, lam)
        return w, paper_loss.total_loss("lambda_grpo", data["new"], data["old"], mask, valid, group, A, w)

    params = {"aggregate": {"lambda": jnp.float32(0.7)}}
    batch, logprobs = to_batch(data), jnp.asarray(data["new"], jnp.float32)
    found = phase_two(est, params, logprobs, batch)
    w, value = expected(0.7)
    np.testing.assert_allclose(found.weights.max(axis=1), np.where(np.array(L) > 0, w, 0), rtol=1e-5)
    np.testing.assert_allclose(found.loss, value, rtol=1e-5)
    difference = (expected(0.7 + 1e-5)[1] - expected(0.7 - 1e-5)[1]) / 2e-5
    np.testing.assert_allclose(found.slope["aggregate"]["lambda"], difference, rtol=1e-3)


def test_every_entry_is_transcribed():
    assert set(paper.GROUP_METHODS) | set(paper.BATCH_METHODS) == set(catalogue)
