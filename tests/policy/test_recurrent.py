"""The gated recurrent unit against plain loops: padding, shared rows, decoding, gradients; and small vocabularies."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rlvr_jax.policy import RecurrentArchitecture, logprobs, make_logprobs, make_recurrent_policy
from rlvr_jax.rng import row_keys
from rlvr_jax.sampling.methods import inverse_cdf

pytestmark = pytest.mark.usefixtures("quick_compiles")
V, D, PROMPTS = 7, 5, 4


@functools.cache
def make(prompts=0):
    """(policy, parameters of any size, biases included)."""
    policy = make_recurrent_policy(RecurrentArchitecture(vocabulary=V, width=D, prompts=prompts))
    rng = np.random.default_rng(3)
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    return policy, jax.tree.map(lambda x: jnp.asarray(0.8 * rng.standard_normal(x.shape), jnp.float32), shapes)


def gru(params, tokens, prompts=0):
    """[n, V]: the logits after each of `tokens`, one token and one gate at a time."""
    sigmoid = lambda x: 1 / (1 + np.exp(-x))
    found, state = [], np.zeros(D)
    for place, token in enumerate(tokens):
        if prompts and place == 0:
            state = np.tanh(params["prompts"][token])
        else:
            x = params["tokens"][token] + params["gates"]
            u = state @ params["state"]
            r, z = sigmoid(x[:D] + u[:D]), sigmoid(x[D : 2 * D] + u[D : 2 * D])
            new = np.tanh(x[2 * D :] + r * u[2 * D :])
            state = (1 - z) * new + z * state
        found.append(state @ params["head"] + params["head_bias"])
    return np.stack(found)


def in_float64(params):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), params)


@pytest.mark.parametrize("prompts", [0, PROMPTS])
def test_parameter_count_by_hand(prompts):
    # tables of 7 tokens × 15, of 5 states × 15, 15 biases; a head of 5 × 7 and 7 biases; 4 first states of 5
    count = 7 * 15 + 5 * 15 + 15 + 5 * 7 + 7 + prompts * 5
    shape = RecurrentArchitecture(vocabulary=V, width=D, prompts=prompts)
    assert shape.parameter_count() == count
    params = make_recurrent_policy(shape).init(jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == count
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


ROWS = [[3], [0, 6, 2], [1, 1, 5, 4, 2]]  # prompts of one to five tokens
COMPLETIONS = np.random.default_rng(5).integers(0, V, (3, 2, 4))  # two for each


def padded(pad_id):
    tokens = np.full((3, 5), pad_id)
    mask = np.zeros((3, 5), bool)
    for row, prompt in enumerate(ROWS):
        tokens[row, 5 - len(prompt) :], mask[row, 5 - len(prompt) :] = prompt, True
    return jnp.asarray(tokens), jnp.asarray(mask)


@pytest.mark.parametrize("prompts", [0, PROMPTS])
def test_forward_and_decoding_are_the_loop(prompts):
    policy, params = make(prompts)

    @jax.jit
    def both(params, tokens, mask):
        hidden, prompt = policy.prefill(params, tokens, mask)
        cache = policy.init_cache(3, 2, 4)
        cached = [jnp.broadcast_to(policy.logits(params, hidden)[:, None], (3, 2, V))]
        for index in range(3):
            hidden, cache = policy.decode(params, jnp.asarray(COMPLETIONS[:, :, index]), index, prompt, cache)
            cached.append(policy.logits(params, hidden))
        row = jnp.concatenate([tokens, jnp.asarray(COMPLETIONS[:, 0])], axis=1)
        segments = jnp.concatenate([mask, jnp.ones((3, 4), bool)], axis=1).astype(jnp.int32)
        whole = policy.logits(params, policy.apply(params, row, jnp.zeros_like(row), segments))
        return jnp.stack(cached, axis=2), whole

    for pad_id in (0, 6):  # what stands in the padding does not matter
        cached, whole = both(params, *padded(pad_id))
        for row, prompt in enumerate(ROWS):
            for member in range(2):
                wanted = gru(in_float64(params), [*prompt, *COMPLETIONS[row, member]], prompts)
                np.testing.assert_allclose(cached[row, member], wanted[len(prompt) - 1 : -1], atol=1e-5)
            wanted = gru(in_float64(params), [*prompt, *COMPLETIONS[row, 0]], prompts)
            np.testing.assert_allclose(whole[row, 5 - len(prompt) :], wanted, atol=1e-5)


@functools.cache
def scored(share, vocabulary_limit=logprobs.SMALL):
    """(log-probabilities, entropies, gradient of a mixture of both) of ragged completions."""
    policy, params = make()
    tokens, mask = padded(0)
    repeat = lambda x: jnp.repeat(x, 2, axis=0)
    rows = jnp.concatenate([repeat(tokens), jnp.asarray(COMPLETIONS.reshape(6, 4))], axis=1)
    lengths = np.asarray([4, 1, 2, 4, 3, 3])
    attend = jnp.asarray(np.arange(4)[None] < lengths[:, None])
    down, across = jnp.asarray(np.random.default_rng(1).standard_normal((2, 6, 4)), jnp.float32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logprobs, "SMALL", vocabulary_limit)
        score = make_logprobs(policy, completions_per_row=share, temperature=0.7)

        def mixture(params):
            found, entropy = score(params, rows, repeat(mask), attend)
            found, entropy = jnp.where(attend, found, 0.0), jnp.where(attend, entropy, 0.0)
            return (down * found + across * entropy).sum(), (found, entropy)

        (_, (found, entropy)), gradient = jax.jit(jax.value_and_grad(mixture, has_aux=True))(params)
    return found, entropy, gradient, (down, across, lengths)


def test_gradients_are_those_of_the_loop():
    """Along random directions of every leaf, against differences of the loop in float64."""
    _, params = make()
    _, _, gradient, (down, across, lengths) = scored(1)
    down, across, base = np.float64(down), np.float64(across), in_float64(params)

    def mixture(params):
        total = 0.0
        for row in range(6):
            prompt, completion = ROWS[row // 2], COMPLETIONS.reshape(6, 4)[row, : lengths[row]]
            logits = gru(params, [*prompt, *completion])[len(prompt) - 1 : -1] / 0.7
            logs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
            chosen, spread = logs[np.arange(len(completion)), completion], -(np.exp(logs) * logs).sum(axis=-1)
            total += (down[row, : lengths[row]] * chosen + across[row, : lengths[row]] * spread).sum()
        return total

    rng, h = np.random.default_rng(0), 1e-5
    for name, leaf in base.items():
        for _ in range(4):
            direction = rng.standard_normal(leaf.shape)
            ahead, behind = (mixture({**base, name: leaf + sign * h * direction}) for sign in (1, -1))
            found = (np.float64(gradient[name]) * direction).sum()
            np.testing.assert_allclose(found, (ahead - behind) / (2 * h), rtol=1e-3, atol=1e-4, err_msg=name)
        assert np.abs(gradient[name]).max() > 0.01


def test_several_completions_to_a_row_change_nothing():
    tiny.assert_trees_close(scored(2)[:3], scored(1)[:3], atol=1e-5)


def test_parameters_may_have_a_leading_axis():
    policy, params = make(PROMPTS)
    tokens, mask = jnp.asarray([[2, 3, 6], [1, 0, 5]]), jnp.ones((2, 3), jnp.int32)
    run = lambda params: policy.logits(params, policy.apply(params, tokens, jnp.zeros_like(tokens), mask))
    stacked = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), params)
    found = jax.jit(jax.vmap(run))(stacked)
    for run_, factor in enumerate((1.0, 0.5)):
        scaled = jax.tree.map(lambda x, factor=factor: factor * x, in_float64(params))
        for row in range(2):
            np.testing.assert_allclose(found[run_, row], gru(scaled, tokens[row].tolist(), PROMPTS), atol=1e-5)


# --- small vocabularies ---


def test_summing_a_small_row_is_looking_it_up():
    assert V <= logprobs.SMALL
    tiny.assert_trees_close(scored(1, vocabulary_limit=0)[:3], scored(1)[:3], atol=1e-6)


@pytest.mark.parametrize("size", [2, 24, 64])
def test_one_product_draws_what_a_search_of_the_cumulated_sum_draws(size):
    rng = np.random.default_rng(size)
    n = 5000
    p = rng.dirichlet(np.full(size, 0.3), n).astype(np.float32)
    p[rng.random((n, size)) < 0.3] = 0.0
    p[np.arange(n), rng.integers(0, size, n)] += 0.05
    p /= p.sum(axis=1, keepdims=True)
    keys = row_keys(jax.random.key(size), jnp.arange(n))
    drawn = np.asarray(jax.jit(inverse_cdf)(jnp.asarray(p), keys))
    u = np.asarray(jax.vmap(lambda key: jax.random.uniform(key, (), jnp.float32))(keys), np.float64)
    assert (p[np.arange(n), drawn] > 0).all()
    sums = np.cumsum(p, axis=1, dtype=np.float64)
    wanted = np.asarray([np.searchsorted(row, x * row[-1], side="right") for row, x in zip(sums, u)])
    # but where the number is within rounding of a step
    clear = np.abs(sums - (u * sums[:, -1])[:, None]).min(axis=1) > 1e-6
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(drawn[clear], wanted[clear])
