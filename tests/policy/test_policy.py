"""The decoder against a transcription in float64 loops; decoding with a cache against the whole forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rlvr_jax.policy import make_logprobs, make_policy
from rlvr_jax.policy.attention import visible
from rlvr_jax.sampling import SamplingMethod, make_sampler

pytestmark = pytest.mark.usefixtures("quick_compiles")

# --- the transcription: one row of real tokens, one head and one query at a time ---


def norm(x, scale, epsilon):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + epsilon) * scale


def turn(x, position, theta):
    """Pairs (i, i + K/2) of one head's vector turned by position·θ^(−2i/K)."""
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * np.cos(angle) - x[i + half] * np.sin(angle)
        out[i + half] = x[i + half] * np.cos(angle) + x[i] * np.sin(angle)
    return out


def transcription(shape, params, tokens):
    """f64[n, V]: the logits after each of `tokens`."""
    params = jax.tree.map(np.float64, params)
    x = params["embed"]["embedding"][tokens]
    n, size = len(tokens), shape.head_size
    for layer in range(shape.layers):
        block = jax.tree.map(lambda leaf, layer=layer: leaf[layer], params["blocks"])
        part = block["attention"]
        normed = norm(x, part["norm"]["scale"], shape.norm_epsilon)
        query, key, value = ((normed @ part[name]["kernel"]).reshape(n, -1, size) for name in ("query", "key", "value"))
        attended = np.zeros((n, shape.heads, size))
        for head in range(shape.heads):
            shared = head // (shape.heads // shape.kv_heads)  # several query heads read one key head
            for i in range(n):
                q = turn(query[i, head], i, shape.rope_theta)
                scores = [q @ turn(key[j, shared], j, shape.rope_theta) / np.sqrt(size) for j in range(i + 1)]
                weights = np.exp(scores - np.max(scores))
                weights /= weights.sum()
                attended[i, head] = sum(w * value[j, shared] for j, w in enumerate(weights))
        x = x + attended.reshape(n, -1) @ part["output"]["kernel"]
        mlp = block["mlp"]
        normed = norm(x, mlp["norm"]["scale"], shape.norm_epsilon)
        gate = normed @ mlp["gate"]["kernel"]
        x = x + (gate / (1 + np.exp(-gate)) * (normed @ mlp["up"]["kernel"])) @ mlp["down"]["kernel"]
    x = norm(x, params["final_norm"]["scale"], shape.norm_epsilon)
    return x @ (params["embed"]["embedding"].T if shape.tied else params["head"]["kernel"])


@functools.cache
def forward(**changes):
    """(params, tokens, positions, segments) → logits, compiled."""
    policy, _ = tiny.make(**changes)
    return jax.jit(lambda params, *row: policy.logits(params, policy.apply(params, *row)))


def plain_row(tokens):
    tokens = jnp.asarray(tokens)[None]
    return tokens, jnp.arange(tokens.shape[1])[None], jnp.ones_like(tokens)


TOKENS = np.array([3, 12, 0, 7, 7, 1, 9])


@pytest.mark.parametrize(
    "changes",
    [{}, {"scan_layers": False, "tied": False}, {"kv_heads": 1, "tied": False}, {"kv_heads": 4, "layers": 3}],
)
def test_decoder_equals_its_transcription(changes):
    _, params = tiny.make(**changes)
    wanted = transcription(tiny.architecture(**changes), params, TOKENS)
    found = forward(**changes)(params, *plain_row(TOKENS))
    assert found.shape == (1, 7, 13) and found.dtype == jnp.float32
    np.testing.assert_allclose(found[0], wanted, atol=2e-5)
    assert np.abs(wanted).max() > 1


def test_parameter_count_and_layout():
    # by hand: attention 16·4·(2·4 + 2·2) = 768; feed-forward 3·16·24 = 1152; two norms 32; a layer 1952.
    # embedding 13·16 = 208; final norm 16.  2·1952 + 208 + 16 = 4128, and 208 for a head of its own
    for tied, count in ((True, 4128), (False, 4336)):
        shape = tiny.architecture(tied=tied)
        assert shape.parameter_count() == count
        shapes = jax.eval_shape(make_policy(shape).init, jax.random.key(0))
        assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == count
        assert ("head" in shapes) is not tied
        assert all(leaf.shape[0] == 2 for leaf in jax.tree.leaves(shapes["blocks"]))
        assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(shapes))


def test_visible_by_hand():
    # padding, two tokens of the prompt, two of one completion, one of another
    found = visible(jnp.asarray([[0, 1, 1, 2, 2, 3]]))[0].astype(int)
    assert found.tolist() == [
        [1, 0, 0, 0, 0, 0],  # padding sees itself alone
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 1, 1, 0, 0, 1],  # the other completion does not see the first
    ]


# --- padding ---


def test_padding_does_not_matter():
    _, params = tiny.make()
    alone = forward()(params, *plain_row(TOKENS))[0]
    for width, pad_id in ((9, 0), (16, 0), (16, 12)):
        before = width - 7
        tokens = jnp.concatenate([jnp.full((1, before), pad_id), jnp.asarray(TOKENS)[None]], axis=1)
        real = jnp.arange(width)[None] >= before
        positions = jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
        padded = forward()(params, tokens, positions, real.astype(jnp.int32))[0, before:]
        np.testing.assert_allclose(padded, alone, atol=1e-4)


def test_greedy_completions_are_the_same_in_every_layout():
    # prompts of 3 and 7 tokens: alone, and together with padding to 7 and to 16, with another pad id
    policy, params = tiny.make()

    @functools.partial(jax.jit, static_argnames="pad_id")
    def run(prompts, pad_id=0):
        sample = make_sampler(
            policy,
            group_size=1,
            completion_length=6,
            end_ids=(),
            pad_id=pad_id,
            method=SamplingMethod(temperature=0.0),
        )
        rollouts = sample(params, prompts, jax.random.key(0))
        score = make_logprobs(policy)
        scored, _ = score(params, rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)
        return rollouts.tokens[:, -6:], scored

    together = lambda width, pad_id: tiny.random_prompts(4, [3, 7], width, pad_id=pad_id)
    unpadded = tiny.random_prompts(4, [3, 7])
    short = jax.tree.map(lambda x: x[:1], unpadded)
    short = short.replace(tokens=short.tokens[:, 4:], mask=short.mask[:, 4:])
    assert bool(short.mask.all())
    tokens, logprobs = run(unpadded)
    for prompts, pad_id, row in ((short, 0, 0), (together(16, 11), 11, None)):
        found, scored = run(prompts, pad_id)
        wanted = slice(None) if row is None else slice(row, row + 1)
        assert found.tolist() == tokens[wanted].tolist()
        np.testing.assert_allclose(scored, logprobs[wanted], atol=1e-4)


# --- the cache ---


@pytest.mark.parametrize("scan_layers", [True, False])
def test_decoding_with_a_cache_is_the_whole_forward_pass(scan_layers):
    policy, params = tiny.make(scan_layers=scan_layers, tied=False)
    group, length = 3, 4
    prompts = tiny.random_prompts(2, [2, 6])
    completions = jnp.asarray(np.random.default_rng(1).integers(0, 13, (2, group, length)))

    @jax.jit
    def cached(params):
        reading = policy.for_decoding(params)
        hidden, prompt = policy.prefill(reading, prompts.tokens, prompts.mask)
        cache = policy.init_cache(2, group, length)
        found = [jnp.broadcast_to(policy.logits(reading, hidden)[:, None], (2, group, 13))]
        for index in range(length - 1):
            hidden, cache = policy.decode(reading, completions[:, :, index], index, prompt, cache)
            found.append(policy.logits(reading, hidden))
        return jnp.stack(found, axis=2)

    found = cached(params)
    whole = forward(tied=False)
    for p in range(2):
        real = np.asarray(prompts.tokens)[p][np.asarray(prompts.mask)[p]]
        for g in range(group):
            row = np.zeros(10, int)  # one width, so one program
            n = len(real) + length - 1
            row[:n] = np.concatenate([real, completions[p, g, :-1]])
            wanted = whole(params, *plain_row(row))[0, len(real) - 1 : n]
            np.testing.assert_allclose(found[p, g], wanted, atol=2e-5)


def test_unrolled_layers_and_a_tuple_of_layers_are_the_same_policy():
    _, params = tiny.make()
    policy, _ = tiny.make(scan_layers=False)
    row = plain_row(TOKENS)
    wanted = forward()(params, *row)
    np.testing.assert_allclose(forward(scan_layers=False)(params, *row), wanted, atol=1e-5)
    reading = policy.for_decoding(params)
    assert isinstance(reading["blocks"], tuple) and len(reading["blocks"]) == 2
    np.testing.assert_allclose(forward(scan_layers=False)(reading, *row), wanted, atol=1e-5)


# --- how it is run ---


@functools.cache
def value_and_gradient(remat, scan_layers=True):
    policy, params = tiny.make(remat=remat, scan_layers=scan_layers)
    row = plain_row(TOKENS)
    loss = lambda params: jax.nn.logsumexp(policy.logits(params, policy.apply(params, *row))).sum()
    return jax.jit(jax.value_and_grad(loss))(params)


@pytest.mark.parametrize(("remat", "scan_layers"), [("block", False), ("dots", True)])
def test_recomputing_changes_neither_values_nor_gradients(remat, scan_layers):
    tiny.assert_trees_close(value_and_gradient(remat, scan_layers), value_and_gradient("none"), atol=1e-5)


def test_bfloat16_activations_stay_close():
    _, params = tiny.make(dtype="bfloat16")
    exact = forward()(params, *plain_row(TOKENS))
    found = forward(dtype="bfloat16")(params, *plain_row(TOKENS))
    assert found.dtype == jnp.float32
    difference = np.abs(found - exact).max() / np.abs(exact).max()
    assert 1e-5 < difference < 0.05  # bfloat16 has 8 bits: 1 in 256 a rounding

    policy, _ = tiny.make(dtype="bfloat16")
    cache = policy.init_cache(2, 3, 4)
    assert cache.keys.shape == (2, 6, 2, 4, 4) and cache.keys.dtype == jnp.bfloat16
    sample = make_sampler(policy, group_size=2, completion_length=4, end_ids=(), pad_id=0)
    rollouts = jax.jit(sample)(params, tiny.random_prompts(0, [2, 4]), jax.random.key(0))
    assert rollouts.behaviour_logprobs.dtype == jnp.float32
    assert np.isfinite(rollouts.behaviour_logprobs).all()
