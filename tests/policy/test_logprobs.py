"""Log-probabilities and entropies by teacher forcing: the same however rows are packed, and of the distribution
that was sampled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rlvr_jax.estimators import make_estimator
from rlvr_jax.policy import (
    Architecture,
    Policy,
    RecurrentArchitecture,
    bucket,
    make_logprobs,
    make_policy,
    make_predictors,
    make_recurrent_policy,
    needed_row_slots,
    to_rows,
    trim_prompts,
    trimmed_columns,
)
from rlvr_jax.sampling import SamplingMethod, make_sampler
from rlvr_jax.types import Batch

pytestmark = pytest.mark.usefixtures("quick_compiles")


def test_one_completion_to_a_row():
    # prompt [·, 7, 8] with one place of padding; completion [1, 2, 3]: nothing is predicted from its last token
    tokens, prompt_mask = jnp.asarray([[0, 7, 8, 1, 2, 3]]), jnp.asarray([[False, True, True]])
    rows, positions, segments = to_rows(tokens, prompt_mask, jnp.ones((1, 3), bool), 1)
    assert rows.tolist() == [[0, 7, 8, 1, 2]]
    assert positions.tolist() == [[0, 0, 1, 2, 3]]
    assert segments.tolist() == [[0, 1, 1, 1, 1]]


def test_two_completions_share_their_prompt():
    # the second completion, [4, 5], has ended after two tokens, of which the last predicts nothing
    tokens = jnp.asarray([[0, 7, 8, 1, 2, 3], [0, 7, 8, 4, 5, 0]])
    prompt_mask = jnp.asarray([[False, True, True]] * 2)
    attend = jnp.asarray([[True, True, True], [True, False, False]])
    rows, positions, segments = to_rows(tokens, prompt_mask, attend, 2)
    assert rows.tolist() == [[0, 7, 8, 1, 2, 4, 5]]
    assert positions.tolist() == [[0, 0, 1, 2, 3, 2, 3]]  # both go on after the prompt's two
    assert segments.tolist() == [[0, 1, 1, 2, 2, 3, 0]]


@functools.cache
def numbers(share, chunks=1, temperature=0.7, slots=0, batch_of=tiny.random_batch):
    """(logprobs, entropy, gradient of a random mixture of both), masked places 0."""
    policy, params = tiny.make()
    batch = batch_of(3)
    score = make_logprobs(
        policy, completions_per_row=share, temperature=temperature, head_chunks=chunks, row_slots=slots
    )
    rng = np.random.default_rng(0)
    shape = batch.completion_mask.shape
    down, across = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for _ in range(2))

    def mixture(params):
        logprobs, entropy = score(params, batch.tokens, batch.prompt_mask, batch.completion_mask)
        logprobs, entropy = (jnp.where(batch.completion_mask, x, 0.0) for x in (logprobs, entropy))
        return (down * logprobs + across * entropy).sum() / 10, (logprobs, entropy)

    (_, (logprobs, entropy)), gradient = jax.jit(jax.value_and_grad(mixture, has_aux=True))(params)
    return logprobs, entropy, gradient


@pytest.mark.parametrize(("share", "chunks"), [(2, 1), (4, 1), (4, 4)])
def test_packing_and_chunks_change_nothing(share, chunks):
    for found, wanted in zip(numbers(share, chunks), numbers(1)):
        tiny.assert_trees_close(found, wanted, atol=1e-5)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(numbers(1)[2])) > 0.1


@pytest.mark.parametrize("chunks", [5, 100])
def test_any_number_of_chunks_will_do(chunks):
    for found, wanted in zip(numbers(4, chunks), numbers(1)):
        tiny.assert_trees_close(found, wanted, atol=1e-5)


# --- completions side by side ---


def ragged(seed):
    """16 rows of two prompts; lengths 0, 1 and T among them, one row of eight all 1, and a prompt of one token."""
    batch = tiny.random_batch(seed, prompts=2, group=8, length=6)
    lengths = np.asarray([6, 1, 1, 3, 2, 6, 0, 5, 1, 1, 1, 1, 1, 1, 1, 1])
    prompt_mask = np.array(batch.prompt_mask)
    prompt_mask[8:] = np.arange(5) == 4
    mask = jnp.asarray(np.arange(6)[None] < lengths[:, None])
    return batch.replace(completion_mask=mask, attend_mask=mask, prompt_mask=jnp.asarray(prompt_mask))


@pytest.mark.parametrize(
    ("share", "slots", "chunks"),
    # the fullest rows need 5; 1 + 5; 5 + 2 + 1 + 5 + 4 of 40; one has more than it needs, one chunks that do not divide
    [(1, 5, 1), (2, 7, 1), (8, 25, 1), (8, 17, 4)],
)
def test_completions_side_by_side_are_padded_rows(share, slots, chunks):
    wanted = numbers(1, batch_of=ragged)
    for found, value in zip(numbers(share, chunks, slots=slots, batch_of=ragged), wanted):
        tiny.assert_trees_close(found, value, atol=1e-5)
    assert np.count_nonzero(wanted[0]) == 32


def test_rows_side_by_side_by_hand():
    # completions [1, 2, 3], [4] and [5, 6]: nothing is predicted from 3, 4 and 6
    tokens = jnp.asarray([[0, 7, 8, 1, 2, 3], [0, 7, 8, 4, 9, 9], [0, 7, 8, 5, 6, 9]])
    prompt_mask, attend = jnp.asarray([[False, True, True]] * 3), jnp.asarray([[1, 1, 1], [1, 0, 0], [1, 1, 0]], bool)
    rows, positions, segments = to_rows(tokens, prompt_mask, attend, 3, 4)
    assert rows[:, :6].tolist() == [[0, 7, 8, 1, 2, 5]]
    assert positions[:, :6].tolist() == [[0, 0, 1, 2, 3, 2]]
    assert segments.tolist() == [[0, 1, 1, 2, 2, 4, 0]]


def test_room_that_rows_need():
    assert needed_row_slots([4, 1, 0, 2], 2) == 3
    assert needed_row_slots([4, 1, 0, 2], 4) == 4
    assert needed_row_slots([0, 1], 1) == 0
    with pytest.raises(ValueError, match="completions_per_row=3: must divide the 4"):
        needed_row_slots([4, 1, 0, 2], 3)
    # eighths of 100, rounded up: 13, 25, 38, …
    assert [bucket(n, 100) for n in (0, 1, 13, 14, 30, 99, 100)] == [13, 13, 13, 25, 38, 100, 100]
    assert len({bucket(n, 1000, steps=4) for n in range(1001)}) == 4
    assert bucket(0, 0) == 0 and bucket(1, 3) == 1
    with pytest.raises(ValueError, match="needed=101: must not be above maximum=100"):
        bucket(101, 100)


def test_a_row_that_does_not_fit_is_never_a_number():
    policy, params = tiny.make()
    batch = ragged(3)
    score = jax.jit(make_logprobs(policy, completions_per_row=8, row_slots=16))  # the first row needs 17
    for values in score(params, batch.tokens, batch.prompt_mask, batch.completion_mask):
        assert np.isnan(values[:8]).all() and np.isfinite(values[8:]).all()


def test_columns_of_padding_are_cut_and_change_nothing():
    batch = ragged(3)
    prompt_mask = np.array(batch.prompt_mask)
    prompt_mask[:, :3] = False
    batch = batch.replace(prompt_mask=jnp.asarray(prompt_mask))
    columns = trimmed_columns(prompt_mask)
    assert columns == 3  # of five columns two are left, which is a size of its own: ⌈5·3/8⌉ = 2
    assert trimmed_columns(np.zeros((2, 5), bool)) == 4
    assert trimmed_columns(prompt_mask, steps=2) == 2  # sizes 3 and 5
    policy, params = tiny.make()
    score = make_logprobs(policy, completions_per_row=8)
    run = lambda rows: jax.jit(score)(params, rows.tokens, rows.prompt_mask, rows.completion_mask)
    cut = trim_prompts(batch, columns)
    assert cut.tokens.shape == (16, 8) and cut.prompt_mask.shape == (16, 2)
    for found, wanted in zip(run(cut), run(batch)):
        found, wanted = (jnp.where(batch.completion_mask, x, 0.0) for x in (found, wanted))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_predictors_side_by_side():
    policy, params = tiny.make()
    batch = ragged(3)
    rows = (batch.tokens, batch.prompt_mask, batch.completion_mask)
    padded = jax.jit(make_predictors(policy))(params, *rows)
    packed = jax.jit(make_predictors(policy, 8, row_slots=17))(params, *rows)
    real = np.asarray(batch.completion_mask)
    np.testing.assert_allclose(packed[real], padded[real], atol=1e-5)


def test_recurrent_policy_side_by_side():
    policy = make_recurrent_policy(RecurrentArchitecture(vocabulary=13, width=8))
    params = policy.init(jax.random.key(0))
    batch = ragged(3)

    def total(params, **options):
        logprobs, _ = make_logprobs(policy, **options)(params, batch.tokens, batch.prompt_mask, batch.completion_mask)
        logprobs = jnp.where(batch.completion_mask, logprobs, 0.0)
        return (logprobs * batch.advantages[:, None]).sum(), logprobs

    wanted, packed = (
        jax.jit(jax.value_and_grad(functools.partial(total, **options), has_aux=True))(params)
        for options in ({}, {"completions_per_row": 8, "row_slots": 17})
    )
    tiny.assert_trees_close(packed, wanted, atol=1e-5)


def test_values_are_those_of_the_softmax():
    policy, params = tiny.make()
    batch = tiny.random_batch(3)
    logprobs, entropy, _ = numbers(1)
    tokens, mask = np.asarray(batch.tokens), np.asarray(batch.completion_mask)
    lone = jax.jit(lambda tokens, positions: policy.logits(
        params, policy.apply(params, tokens, positions, jnp.ones_like(tokens))
    ))  # fmt: skip
    for row in (0, 5, 13):
        real = np.concatenate([np.asarray(batch.prompt_mask)[row], mask[row]])
        alone = jnp.zeros((1, 9), jnp.int32).at[0, : real.sum()].set(tokens[row][real])  # no padding before it
        logits = np.float64(lone(alone, jnp.arange(9)[None]))[0] / 0.7
        for t in range(mask[row].sum()):
            at = batch.prompt_mask[row].sum() + t
            p = np.exp(logits[at - 1] - logits[at - 1].max())
            p /= p.sum()
            assert logprobs[row, t] == pytest.approx(np.log(p[alone[0, at]]), abs=1e-5)
            assert entropy[row, t] == pytest.approx(-(p * np.log(p)).sum(), abs=1e-5)


# --- one temperature on both sides of the ratio ---


def constant_policy(logits) -> Policy:
    row = jnp.asarray(logits, jnp.float32)
    say = lambda *shape: jnp.broadcast_to(row, (*shape, len(logits)))
    return Policy(
        architecture=None,
        init=None,
        apply=lambda params, tokens, positions, segments, completions=None: say(*tokens.shape),
        logits=lambda params, hidden: hidden,
        prefill=lambda params, tokens, mask: (say(tokens.shape[0]), ()),
        init_cache=lambda prompts, group, length: (),
        decode=lambda params, tokens, index, prompt, cache: (say(*tokens.shape), cache),
        for_decoding=lambda params: params,
    )


@pytest.mark.parametrize("share", [1, 8])
def test_sampler_and_trainer_use_one_temperature(share):
    # logits [2, 1, 0] / 0.5 = [4, 2, 0]; ln(e⁴ + e² + 1) = 4.1429316; token 1: 2 − 4.1429316 = −2.1429316
    policy = constant_policy([2.0, 1.0, 0.0])
    sample = make_sampler(
        policy,
        group_size=8,
        completion_length=8,
        end_ids=(),
        pad_id=0,
        method=SamplingMethod(temperature=0.5),
    )
    rollouts = jax.jit(sample)({}, tiny.random_prompts(0, [2, 3], vocabulary=3), jax.random.key(0))
    tokens = rollouts.tokens[:, 3:]
    score = make_logprobs(policy, temperature=0.5, completions_per_row=share)
    logprobs, entropy = jax.jit(score)({}, rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)
    assert (tokens == 1).sum() > 5
    for side in (rollouts.behaviour_logprobs, logprobs):
        np.testing.assert_allclose(side[tokens == 1], -2.1429316, atol=1e-6)
    # a temperature on one side only would make these ratios 2.09
    np.testing.assert_allclose(jnp.exp(logprobs - rollouts.behaviour_logprobs), 1.0, atol=2e-6)
    on_policy = Batch(
        completion_mask=rollouts.completion_mask,
        advantages=jnp.ones(16),
        behaviour_logprobs=rollouts.behaviour_logprobs,
    )
    _, metrics = make_estimator("grpo").token_losses(logprobs, on_policy)
    assert metrics["ratio"].compute() == 1.0
    assert metrics["behaviour_mismatch"].compute() < 1e-6
    # probabilities e⁰⁻⁴ … : 0.866814, 0.117310, 0.015876; −Σ p ln p = 0.123895 + 0.251387 + 0.065774
    np.testing.assert_allclose(entropy, 0.441056, atol=1e-5)


def test_greedy_is_scored_at_temperature_one():
    score = make_logprobs(constant_policy([2.0, 1.0, 0.0]), temperature=0.0)
    tokens = jnp.asarray([[0, 1]])
    logprobs, _ = score({}, tokens, jnp.ones((1, 1), bool), jnp.ones((1, 1), bool))
    assert float(logprobs[0, 0]) == pytest.approx(-1.4076060, abs=1e-6)  # 1 − ln(e² + e + 1)


def test_masked_token_that_would_overflow():
    # tokens 0 and 2 count, ρ = 1 and A = 1: loss −(1 + 1)/2 = −1, slope −1/2 each; token 1 is masked, and its
    # ratio e²⁰⁰ would be infinite
    estimator = make_estimator("grpo", aggregate="token_mean")
    for bad in (-200.0, -jnp.inf, jnp.nan):
        batch = Batch(
            completion_mask=jnp.asarray([[True, False, True]]),
            advantages=jnp.ones(1),
            old_logprobs=jnp.asarray([[-1.0, bad, -1.0]]),
        )
        loss, slope = jax.value_and_grad(lambda new, batch=batch: estimator.loss({}, new, batch)[0])(
            jnp.asarray([[-1.0, 0.0, -1.0]])
        )
        assert float(loss) == -1.0
        assert slope.tolist() == [[-0.5, 0.0, -0.5]]


@pytest.mark.parametrize("windows, softcap", [((), 0.0), ((3, 0), 5.0)])
def test_attention_by_completion_is_attention_under_the_whole_mask(windows, softcap):
    """Values and gradients of rows whose completions attend apart, padding of both sides and windows included."""
    sizes = {"width": 16, "layers": 2, "heads": 4, "kv_heads": 2, "head_size": 8, "hidden": 24}
    policy = make_policy(
        Architecture(vocabulary=31, rope_theta=1e4, windows=windows, attention_softcap=softcap, **sizes)
    )
    params = policy.init(jax.random.key(0))
    count, width, start = 3, 5, 6
    prompt = jnp.asarray([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    used = jnp.asarray([[5, 2, 0], [1, 5, 4]])
    real = jnp.arange(width)[None, None] < used[..., None]
    segments = jnp.where(real, jnp.arange(2, 2 + count)[None, :, None], 0).reshape(2, -1)
    segments = jnp.concatenate([prompt, segments], axis=1)
    places = jnp.maximum(jnp.cumsum(prompt, axis=1) - 1, 0)
    after = jnp.tile(jnp.arange(width), count)[None] + prompt.sum(axis=1, keepdims=True)
    positions = jnp.concatenate([places, after], axis=1)
    tokens = jax.random.randint(jax.random.key(1), (2, start + count * width), 0, 31)
    seen = (segments > 0)[..., None]

    def loss(params, **layout):
        hidden = policy.apply(params, tokens, positions, segments, **layout)
        return jnp.where(seen, jnp.sin(hidden), 0.0).sum(), hidden

    (_, whole), slope = jax.value_and_grad(loss, has_aux=True)(params)
    apart = jax.value_and_grad(lambda params: loss(params, completions=(count, width)), has_aux=True)(params)
    np.testing.assert_allclose(jnp.where(seen, apart[0][1], 0.0), jnp.where(seen, whole, 0.0), atol=2e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-4), apart[1], slope)
