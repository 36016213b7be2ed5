"""What is drawn, with which log-probability, where a completion ends, and what it may depend on."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from rlvr_jax.policy import Policy, make_logprobs
from rlvr_jax.rng import key_for, row_keys
from rlvr_jax.sampling import Environment, SamplingMethod, make_sampler, methods
from rlvr_jax.sampling.methods import SMALL, draw_from_logits, inverse_cdf
from rlvr_jax.types import Prompts

pytestmark = pytest.mark.usefixtures("quick_compiles")
PAD, END, T, G = 0, 1, 6, 2


@functools.cache
def sampler(group=G, end_ids=(END,), **method):
    policy, _ = tiny.make()
    return jax.jit(
        make_sampler(
            policy,
            group_size=group,
            completion_length=T,
            end_ids=end_ids,
            pad_id=PAD,
            method=SamplingMethod(**method),
        )
    )


def test_behaviour_logprobs_are_the_teacher_forced_ones():
    policy, params = tiny.make()
    temperatures = (0.5, 1.0, 1.7)  # one for each member of a group
    rollouts = sampler(group=3, temperature=temperatures)(
        params, tiny.random_prompts(0, [1, 3, 4, 7]), jax.random.key(3)
    )
    score = lambda r: [
        make_logprobs(policy, temperature=t)(params, r.tokens, r.prompt_mask, r.attend_mask)[0] for t in temperatures
    ]
    logprobs = np.stack(jax.jit(score)(rollouts))
    mine = logprobs[np.arange(12) % 3, np.arange(12)]
    mask = np.asarray(rollouts.completion_mask)
    assert len(set(mask.sum(axis=1).tolist())) > 1  # ragged, or nothing is proved
    np.testing.assert_allclose(rollouts.behaviour_logprobs, np.where(mask, mine, 0), atol=1e-5)


# --- where a completion ends: a policy that is certain of a script ---


def scripted(script, steps=None) -> Policy:
    """A policy that says token t of row (p, g) with certainty; `steps` collects a mark for each decoded token.
    The first token is the same for all of a group, as the prompt is."""
    say = lambda tokens: 100.0 * jax.nn.one_hot(tokens, 10)
    script = jnp.asarray(script)

    def decode(params, tokens, index, prompt_cache, cache):
        if steps is not None:
            jax.debug.callback(lambda i: steps.append(int(i)), index)
        return say(jax.lax.dynamic_index_in_dim(script, index + 1, axis=2, keepdims=False)), cache

    return Policy(
        architecture=None,
        init=None,
        apply=None,
        logits=lambda params, hidden: hidden,
        prefill=lambda params, tokens, mask: (say(script[:, 0, 0]), ()),
        init_cache=lambda prompts, group, length: (),
        decode=decode,
        for_decoding=lambda params: params,
    )


def say(script, pad_id, end_ids, steps=None):
    script = np.asarray(script, np.int32)
    sample = make_sampler(
        scripted(script, steps),
        group_size=script.shape[1],
        completion_length=script.shape[2],
        end_ids=end_ids,
        pad_id=pad_id,
    )
    prompt = jnp.asarray([[2, 2, 7, 2, 8]] * len(script))
    mask = jnp.asarray([[False, False, True, True, True]] * len(script))
    prompts = Prompts(tokens=prompt, mask=mask, prompt_id=jnp.arange(len(script), dtype=jnp.int32))
    rollouts = jax.jit(sample)({}, prompts, jax.random.key(0))
    jax.effects_barrier()
    return jax.device_get(rollouts)


def test_end_token_counts_once_though_it_is_also_the_pad():
    # pad = end = 2: [5, 9, 2 | 2, 2] is three tokens long, its end token among them. In the prompt the first two
    # 2s are padding and the third is a word
    rollouts = say([[[5, 9, 2, 7, 7], [5, 2, 7, 7, 7]], [[2, 7, 7, 7, 7], [2, 7, 7, 7, 7]]], 2, (2,))
    completions = rollouts.tokens[:, 5:]
    assert completions.tolist() == [[5, 9, 2, 2, 2], [5, 2, 2, 2, 2], [2] * 5, [2] * 5]
    assert rollouts.lengths.tolist() == [3, 2, 1, 1]
    assert rollouts.completion_mask.astype(int)[0].tolist() == [1, 1, 1, 0, 0]
    assert (rollouts.attend_mask == rollouts.completion_mask).all()
    assert rollouts.prompt_mask.astype(int)[0].tolist() == [0, 0, 1, 1, 1]
    assert rollouts.finished.all()
    assert rollouts.prompt_id.tolist() == [0, 0, 1, 1]


def test_what_runs_out_of_length_is_not_finished():
    rollouts = say([[[5, 9, 7], [5, 9, 2], [5, 3, 7]]], 0, (2, 3))
    assert rollouts.finished.tolist() == [False, True, True]
    assert rollouts.lengths.tolist() == [3, 3, 2]
    assert rollouts.tokens[2, 5:].tolist() == [5, 3, 0]
    assert not rollouts.behaviour_logprobs[2, 2:].any()


def test_decoding_stops_when_all_have_ended():
    steps = []
    say([[[5, 9, 2, 7, 7, 7, 7, 7], [5, 2, 7, 7, 7, 7, 7, 7]]], 0, (2,), steps)
    assert sorted(steps) == [0, 1]  # token 0 came out of the prefill; tokens 1 and 2 were decoded
    steps.clear()
    say([[[2, 7, 7]]], 0, (2,), steps)
    assert steps == []


def test_sizes_that_cannot_be_are_refused():
    policy, _ = tiny.make()
    make = functools.partial(make_sampler, policy, end_ids=(END,), pad_id=PAD)
    with pytest.raises(ValueError, match="completion_length=0"):
        make(group_size=2, completion_length=0)
    with pytest.raises(ValueError, match="one for each of 3"):
        make(group_size=3, completion_length=4, method=SamplingMethod(temperature=(0.0, 1.0)))
    for wrong in ({"temperature": -1.0}, {"top_k": -1}, {"top_p": 1.5}, {"temperature": (1.0, -0.1)}):
        with pytest.raises(ValueError, match="must"):
            SamplingMethod(**wrong)


# --- what a completion may depend on ---

LENGTHS = [2, 5, 3, 7]


def drawn(prompts, row_ids=None, key=11):
    _, params = tiny.make()
    ids = None if row_ids is None else jnp.asarray(row_ids, jnp.int32)
    rollouts = sampler(end_ids=())(params, prompts, jax.random.key(key), ids)
    return np.asarray(rollouts.tokens[:, prompts.tokens.shape[1] :])


def rows_of(prompts, which):
    return jax.tree.map(lambda x: x[np.asarray(which)], prompts)


def test_a_completion_depends_on_its_prompt_and_row_id_alone():
    prompts = tiny.random_prompts(5, LENGTHS)
    base = drawn(prompts)
    assert len({tuple(row) for row in base.tolist()}) == 8

    order = np.array([2, 0, 3, 1])
    rows = (order[:, None] * G + np.arange(G)).reshape(-1)
    np.testing.assert_array_equal(drawn(rows_of(prompts, order), rows), base[rows])

    others = tiny.random_prompts(6, [7, 5, 7, 7])  # other neighbours: only prompt 1 stays
    others = jax.tree.map(lambda new, old: new.at[1].set(old[1]), others, prompts)
    np.testing.assert_array_equal(drawn(others)[2:4], base[2:4])

    wider = tiny.random_prompts(5, LENGTHS, width=16, pad_id=9)  # other padding, and fewer neighbours
    np.testing.assert_array_equal(drawn(rows_of(wider, [1, 2]), [2, 3, 4, 5]), base[2:6])

    swapped = drawn(prompts, [1, 0, 2, 3, 4, 5, 6, 7])  # the id is what tells a group's members apart
    np.testing.assert_array_equal(swapped[[1, 0]], base[:2])


def uniform_policy() -> Policy:
    """Every token of 1,000 is as likely as any other."""
    flat = lambda *shape: jnp.zeros((*shape, 1))
    return Policy(
        architecture=None,
        init=None,
        apply=None,
        logits=lambda params, hidden: jnp.broadcast_to(hidden, (*hidden.shape[:-1], 1000)),
        prefill=lambda params, tokens, mask: (flat(tokens.shape[0]), ()),
        init_cache=lambda prompts, group, length: (),
        decode=lambda params, tokens, index, prompt, cache: (flat(*tokens.shape), cache),
        for_decoding=lambda params: params,
    )


def test_members_of_a_group_differ_and_seed_and_step_reproduce_them():
    sample = jax.jit(make_sampler(uniform_policy(), group_size=4, completion_length=8, end_ids=(), pad_id=0))
    prompts = tiny.random_prompts(0, [3])
    of = lambda seed, step: sample({}, prompts, key_for(seed, step, "sample")).tokens[:, 3:]
    first = of(0, 7)
    assert len({tuple(row) for row in first.tolist()}) == 4
    # 32 draws of 1,000: no token at the same place in two rows but for chance (6·8/1000 pairs expected: 0.05)
    assert sum((first[i] == first[j]).sum() for i in range(4) for j in range(i)) <= 2
    np.testing.assert_array_equal(of(0, 7), first)
    assert (of(0, 8) != first).mean() > 0.9
    assert (of(1, 7) != first).mean() > 0.9


DEVICES = """
import tiny
from test_sampler import LENGTHS, make_sampler, rows_of
from rlvr_jax.sharding import make_mesh, put_rows, rows_sharding, shardings_for

policy, params = tiny.make()
prompts = rows_of(tiny.random_prompts(5, LENGTHS), [0, 1, 2, 2])
sample = make_sampler(policy, group_size=2, completion_length=6, end_ids=(), pad_id=0)
result = {}
for data, model in ((4, 1), (2, 2)):
    mesh = make_mesh(data, model)
    placed = jax.tree.map(jax.device_put, params, shardings_for(params, mesh))
    run = jax.jit(sample, out_shardings=rows_sharding(mesh, 8))
    rollouts = run(placed, put_rows(jax.device_get(prompts), mesh), jax.random.key(11))
    result[f"{data}x{model}"] = rollouts.tokens[:, 7:].tolist()
"""


def test_the_same_completions_on_four_devices():
    one = drawn(rows_of(tiny.random_prompts(5, LENGTHS), [0, 1, 2, 2])).tolist()
    assert len({tuple(row) for row in one}) == 8  # those of the two equal prompts too
    assert tiny.on_devices(4, DEVICES) == {"4x1": one, "2x2": one}


# --- an environment that writes, too ---


def echo() -> Environment:
    """Answers an even token with its successor, twice; rows that draw a number above 1/2 begin with a forced 8. Token
    12 is answered with the end. The state counts tokens and how many the environment wrote."""

    def begin(prompt_id, keys):
        first = jax.vmap(jax.vmap(lambda key: jax.random.uniform(key) > 0.5))(keys)
        zero = jnp.zeros(keys.shape, jnp.int32)
        return {"next": jnp.where(first, 8, -1), "left": zero, "count": zero, "first": first, "last": zero}

    def step(state, token):
        own = state["next"] < 0
        left = jnp.where(own & (token % 2 == 0), 2, jnp.maximum(state["left"] - 1, 0))
        answer = jnp.where(own & (token == 12), END, jnp.where(left > 0, (token + 1) % 13, -1))
        count = state["count"] + 1
        return {**state, "next": answer, "left": left, "count": count, "last": token}

    return Environment(begin, step, lambda state: state["next"])


@functools.cache
def conversing(stop_early=True):
    policy, _ = tiny.make(layers=1)
    options = {"group_size": G, "completion_length": 10, "end_ids": (END,), "pad_id": PAD, "stop_early": stop_early}
    return jax.jit(make_sampler(policy, environment=echo(), **options))


def conversation(stop_early=True, prompts=None, row_ids=None):
    _, params = tiny.make(layers=1)
    prompts = tiny.random_prompts(5, LENGTHS * 2) if prompts is None else prompts
    ids = jnp.arange(len(prompts.prompt_id) * G) if row_ids is None else jnp.asarray(row_ids)
    return prompts, *jax.device_get(conversing(stop_early)(params, prompts, jax.random.key(2), ids))


def replay(completion, first):
    """(its own places, tokens, whether it ended by itself) by the rules of `echo`, from the tokens alone."""
    forced, left, own = (8 if first else -1), 0, []
    for place, token in enumerate(completion):
        own.append(forced < 0)
        assert forced in (-1, token), (completion, place)
        left = 2 if own[-1] and token % 2 == 0 else max(left - 1, 0)
        forced = END if own[-1] and token == 12 else ((token + 1) % 13 if left else -1)
        if token == END:
            break
    return own + [False] * (len(completion) - len(own)), len(own), bool(own[len(own) - 1]) and token == END


def test_what_an_environment_writes_is_seen_and_not_trained_on():
    policy, params = tiny.make(layers=1)
    _, rollouts, state = conversation()
    completions = rollouts.tokens[:, -10:]
    for row, completion in enumerate(completions.tolist()):
        own, count, ended = replay(completion, state["first"].reshape(-1)[row])
        assert rollouts.completion_mask[row].tolist() == own
        assert rollouts.attend_mask[row].tolist() == [place < count for place in range(10)]
        assert rollouts.lengths[row] == sum(own) and rollouts.finished[row] == ended
        # nothing steps after the end
        assert state["count"].reshape(-1)[row] == count and state["last"].reshape(-1)[row] == completion[count - 1]
    forced = rollouts.attend_mask & ~rollouts.completion_mask
    assert forced[:, 0].any() and not forced[:, 0].all()
    cut = (forced & (completions == END)).any(axis=1)  # ended by the environment: truncated
    assert cut.any() and rollouts.finished.any() and not (cut & rollouts.finished).any()
    score = jax.jit(make_logprobs(policy))(params, rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)[0]
    wanted = np.where(rollouts.completion_mask, score, 0)
    np.testing.assert_allclose(rollouts.behaviour_logprobs, wanted, atol=1e-5)


def test_running_to_the_end_changes_nothing():
    tiny.assert_trees_close(conversation(stop_early=False)[1:], conversation()[1:], rtol=0, atol=0)


def test_a_conversation_depends_on_its_prompt_and_row_id_alone():
    prompts, rollouts, state = conversation()
    order = np.array([6, 0, 3, 1, 7, 2, 5, 4])
    rows = (order[:, None] * G + np.arange(G)).reshape(-1)
    _, moved, moved_state = conversation(prompts=rows_of(prompts, order), row_ids=rows)
    np.testing.assert_array_equal(moved.tokens, rollouts.tokens[rows])
    for name in state:
        np.testing.assert_array_equal(moved_state[name].reshape(-1), state[name].reshape(-1)[rows])
    others = jax.tree.map(lambda new, old: new.at[1].set(old[1]), tiny.random_prompts(6, [7] * 8), prompts)
    _, beside, _ = conversation(prompts=others)
    np.testing.assert_array_equal(beside.tokens[2:4], rollouts.tokens[2:4])


# --- methods ---


def next_tokens(method, logits, keys):
    return jax.jit(method.next_token)(jnp.asarray(logits, jnp.float32), keys)


@pytest.mark.parametrize("cut", [{}, {"top_k": 2, "top_p": 0.9}])
def test_temperature_zero_is_the_likeliest_token(cut):
    logits = [1.0, 2.0, -1.0]
    keys = row_keys(jax.random.key(0), jnp.arange(200).reshape(100, 2))
    method = SamplingMethod(temperature=0.0, **cut)
    token, logprob = next_tokens(method, np.tile(logits, (100, 1)), keys[:, 0])
    assert token.tolist() == [1] * 100 and logprob.tolist() == [0.0] * 100

    # one member of each group at 0, the other at 1
    mixed = SamplingMethod(temperature=(0.0, 1.0), **cut)
    token, logprob = next_tokens(mixed, np.tile(logits, (100, 2, 1)), keys)
    assert token[:, 0].tolist() == [1] * 100
    assert set(token[:, 1].tolist()) == ({0, 1} if cut else {0, 1, 2})
    assert np.isfinite(logprob).all() and not logprob[:, 0].any()
    # e²/(e + e² + e⁻¹) = 7.38906/(2.71828 + 7.38906 + 0.36788) = 0.705385;  of {0, 1} alone 0.731059
    likely = np.log(0.731059 if cut else 0.705385)
    np.testing.assert_allclose(logprob[:, 1][token[:, 1] == 1], likely, atol=1e-5)


def test_temperature_zero_survives_extreme_logits():
    keys = row_keys(jax.random.key(0), jnp.arange(2)[None])
    token, logprob = next_tokens(SamplingMethod(temperature=(0.0, 1.0)), [[[-1e30, 3e38, 0.0]] * 2], keys)
    assert token.tolist() == [[1, 1]] and np.isfinite(logprob).all()


def kept(probabilities, **method):
    logits = jnp.log(jnp.asarray(probabilities, jnp.float32))
    return set(np.flatnonzero(np.isfinite(SamplingMethod(**method).truncate(logits))).tolist())


@pytest.mark.parametrize(
    ("method", "wanted"),
    [
        ({"top_p": 0.75}, {0, 1}),
        ({"top_p": 0.76}, {0, 1, 2}),  # the token that crosses stays; of equals the first
        ({"top_p": 0.0}, {0}),
        ({"top_p": 1.0}, {0, 1, 2, 3}),
        ({"top_k": 1}, {0}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 10}, {0, 1, 2, 3}),
        ({"top_k": 0}, {0, 1, 2, 3}),
        ({"top_k": 1, "top_p": 0.8}, {0}),
        # of the two likeliest, 2/3 and 1/3, the first alone reaches 0.6
        ({"top_k": 2, "top_p": 0.6}, {0}),
    ],
)
def test_kept_sets(method, wanted):
    assert kept([0.5, 0.25, 0.125, 0.125], **method) == wanted
    # the same set when the likeliest stand last (ties by index: 2 and 3 become 0 and 1, in that order)
    moved = {0: 3, 1: 2, 2: 0, 3: 1}
    assert kept([0.125, 0.125, 0.25, 0.5], **method) == {moved[i] for i in wanted}


def test_truncated_distribution_is_renormalised_and_scaled_first():
    # logits [2, 1, 0] at temperature 0.5 are [4, 2, 0]; the likeliest two have 1/(1 + e⁻²) = 0.880797 and the rest
    logits = np.tile([2.0, 1.0, 0.0], (64, 1))
    keys = row_keys(jax.random.key(1), jnp.arange(64))
    token, logprob = next_tokens(SamplingMethod(temperature=0.5, top_k=2), logits, keys)
    assert set(token.tolist()) == {0, 1}
    wanted = np.where(np.asarray(token) == 0, np.log(0.880797), np.log(1 - 0.880797))
    np.testing.assert_allclose(logprob, wanted, atol=1e-5)


# --- one uniform number per draw ---


def draw(probabilities, u):
    """Indices for given uniform numbers instead of keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods.jax.random, "uniform", lambda key, shape, dtype: key)
        u = jnp.asarray(u, jnp.float32)
        p = jnp.broadcast_to(jnp.asarray(probabilities, jnp.float32), (len(u), len(probabilities)))
        return np.asarray(jax.jit(index_of(p.shape[-1]))(p, u))


def index_of(size):
    """(probabilities, keys) → index, in the way of that size."""
    if size <= SMALL:
        return lambda p, keys: inverse_cdf(p, keys)
    return lambda p, keys: draw_from_logits(jnp.log(p), keys)[0]


@pytest.mark.parametrize("size", [5, 256, 257, 1000])
def test_draws_follow_the_probabilities(size):
    rng = np.random.default_rng(size)
    p = rng.dirichlet(np.full(size, 0.5)).astype(np.float32)
    p[rng.choice(size, size // 4, replace=False)] = 0.0
    p /= p.sum()
    n = 20_000
    keys = row_keys(jax.random.key(size), jnp.arange(n))
    drawn = jax.jit(index_of(size))(jnp.broadcast_to(p, (n, size)), keys)
    counts = np.bincount(np.asarray(drawn), minlength=size)
    assert len(counts) == size and not counts[p == 0].any()
    # χ² over entries expected at least 5 times, the others together; mean d, standard deviation √(2d)
    often = n * p >= 5
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(n * p[often], n * p[~often].sum())
    chi = ((observed - expected) ** 2 / np.maximum(expected, 1e-9)).sum()
    degrees = len(observed) - 1
    assert chi < degrees + 4 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 512, 1000])
def test_certain_distributions(size):
    u = [0.0, 1e-7, 0.3, 0.999, 1 - 2**-23, 1 - 2**-24]
    for index in {0, size // 2, size - 1}:
        assert draw(np.eye(size)[index], u).tolist() == [index] * len(u)


def test_inverse_of_the_cumulative_sum():
    # blocks of 256: 0.25 at 3, 0.5 at 300, 0.25 at 599; each index owns [cumulated before, cumulated after)
    p = np.zeros(600)
    p[[3, 300, 599]] = 0.25, 0.5, 0.25
    u = [0.0, 0.2499, 0.25, 0.5, 0.7499, 0.75, 0.99]
    assert draw(p, u).tolist() == [3, 3, 300, 300, 300, 599, 599]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([300, 1500]), st.sampled_from([0.01, 0.1, 0.5]))
def test_no_uniform_number_draws_an_impossible_entry(seed, size, share):
    # the numbers most likely to fall into a gap of rounding: every partial sum and its neighbours
    rng = np.random.default_rng(seed)
    p = np.where(rng.random(size) < share, rng.gamma(0.3, size=size), 0.0)
    p[rng.integers(size)] += 0.1
    p = (p / p.sum()).astype(np.float32)
    sums = np.concatenate([np.cumsum(p), np.cumsum(p, dtype=np.float64)]).astype(np.float32)
    near = [sums, np.nextafter(sums, np.float32(0)), np.nextafter(sums, np.float32(2)), rng.random(500)]
    u = np.concatenate(near).astype(np.float32)
    u = np.resize(rng.permutation(u[(u >= 0) & (u < 1)]), 2000)
    chosen = draw(p, u)
    assert (chosen < size).all()
    assert (p[chosen] > 0).all(), f"{(p[chosen] == 0).sum()} of {len(u)} draws of probability 0"
