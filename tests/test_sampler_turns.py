"""Rows in turns, loops that narrow, stop strings: none of it changes what a row samples."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rlvr_jax.policy import RecurrentArchitecture, make_logprobs, make_recurrent_policy
from rlvr_jax.sampling import Environment, SamplingMethod, make_sampler, make_stop_strings
from rlvr_jax.sampling.methods import SMALL
from rlvr_jax.sampling.stops import StopStrings

pytestmark = pytest.mark.usefixtures("quick_compiles")
PAD, ENDS, T, G = 0, (1, 4), 12, 4
LENGTHS = [2, 5, 3, 7]
SLOW = [{"rows_at_once": 5}, {"narrowings": 1}, {"narrowings": 9}, {"rows_at_once": 99, "narrowings": 3}]
WAYS = [{"rows_at_once": 1}, {"rows_at_once": 8, "narrowings": 2}, {"narrowings": 2}]
ALL_WAYS = [*WAYS, *(pytest.param(way, marks=pytest.mark.slow) for way in SLOW)]


def rollouts_of(policy, params, prompts=None, row_ids=None, **options):
    prompts = tiny.random_prompts(5, LENGTHS) if prompts is None else prompts
    options = {"group_size": G, "completion_length": T, "end_ids": ENDS, "pad_id": PAD, **options}
    ids = None if row_ids is None else jnp.asarray(row_ids, jnp.int32)
    return jax.device_get(jax.jit(make_sampler(policy, **options))(params, prompts, jax.random.key(3), ids))


@functools.cache
def together(**method):
    return rollouts_of(*tiny.make(), method=SamplingMethod(**method))


def assert_same(found, wanted):
    for name in ("tokens", "completion_mask", "attend_mask", "finished", "prompt_mask", "prompt_id"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)
    for name in ("behaviour_logprobs", "full_logprobs"):
        np.testing.assert_allclose(getattr(found, name), getattr(wanted, name), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("way", ALL_WAYS, ids=str)
def test_when_it_is_a_rows_turn_changes_nothing(way):
    wanted = together()
    lengths = wanted.lengths
    assert lengths.min() < 3 and lengths.max() == T and len(set(lengths.tolist())) > 5  # a long tail
    assert_same(rollouts_of(*tiny.make(), **way), wanted)


@pytest.mark.parametrize("way", [{"rows_at_once": 5, "narrowings": 1}], ids=str)
def test_with_unrolled_layers_and_a_temperature_for_each_member(way):
    method = SamplingMethod(temperature=(0.0, 1.0, 0.5, 2.0), top_k=9, min_p=0.02)
    policy, params = tiny.make(scan_layers=False)
    wanted = rollouts_of(policy, params, method=method)
    assert not wanted.behaviour_logprobs[::G].any() and wanted.full_logprobs[::G].any()  # the greedy member
    assert_same(rollouts_of(policy, params, method=method, **way), wanted)


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_a_recurrent_policy_takes_turns_too(way):
    policy = make_recurrent_policy(RecurrentArchitecture(vocabulary=13, width=8))
    params = policy.init(jax.random.key(0))
    assert_same(rollouts_of(policy, params, **way), rollouts_of(policy, params))


def test_batches_of_1_8_and_32_rows_agree():
    prompts = tiny.random_prompts(7, LENGTHS * 2)
    policy, params = tiny.make()
    all_rows = rollouts_of(policy, params, prompts)
    assert len(all_rows.tokens) == 32
    pick = lambda which: jax.tree.map(lambda x: x[which], prompts)
    for first, count in ((3, 1), (2, 2)):
        rows = np.arange(first * G, (first + count) * G)
        some = rollouts_of(policy, params, pick(slice(first, first + count)), rows, rows_at_once=3)
        assert_same(some, jax.tree.map(lambda x, rows=rows: x[rows], all_rows))
    one = rollouts_of(policy, params, pick(slice(3, 4)), [13], group_size=1)
    assert_same(one, jax.tree.map(lambda x: x[13:14], all_rows))


def counting(limit_of_prompt) -> Environment:
    """Ends a row after a number of tokens that its prompt and its key give; counts what was written."""

    def start(prompt_id, keys):
        extra = jax.vmap(jax.vmap(lambda key: jax.random.randint(key, (), 0, 5)))(keys)
        return {"limit": limit_of_prompt[prompt_id][:, None] + extra, "count": jnp.zeros(keys.shape, jnp.int32)}

    step = lambda state, token: {**state, "count": state["count"] + 1}
    return Environment(start, step, lambda state: jnp.where(state["count"] + 1 >= state["limit"], ENDS[0], -1))


@pytest.mark.parametrize("way", WAYS[1:], ids=str)
def test_an_environment_goes_with_its_row(way):
    policy, params = tiny.make(layers=1)
    world = counting(jnp.asarray([2, 7, 1, 5]))
    wanted, state = rollouts_of(policy, params, environment=world)
    found, moved = rollouts_of(policy, params, environment=world, **way)
    assert_same(found, wanted)
    np.testing.assert_array_equal(moved["count"], state["count"])
    np.testing.assert_array_equal(moved["limit"], state["limit"])
    assert (wanted.attend_mask.sum(axis=1) == state["count"].reshape(-1)).all()


DEVICES = """
import numpy as np, tiny
from test_sampler_turns import ENDS, G, LENGTHS, T
from rlvr_jax.sampling import make_sampler
from rlvr_jax.sharding import make_mesh, put_rows, rows_sharding, shardings_for

policy, params = tiny.make()
prompts = jax.device_get(tiny.random_prompts(5, LENGTHS * 2))
result = {}
for data, model, way in ((8, 1, dict(rows_at_once=8, narrowings=1)), (4, 2, dict(narrowings=2))):
    mesh = make_mesh(data, model)
    placed = jax.tree.map(jax.device_put, params, shardings_for(params, mesh))
    sample = make_sampler(policy, group_size=G, completion_length=T, end_ids=ENDS, pad_id=0, **way)
    run = jax.jit(sample, out_shardings=rows_sharding(mesh, 32))
    result[f"{data}x{model}"] = run(placed, put_rows(prompts, mesh), jax.random.key(3)).tokens[:, 7:].tolist()
"""


def test_turns_on_eight_devices():
    wanted = rollouts_of(*tiny.make(), tiny.random_prompts(5, LENGTHS * 2)).tokens[:, 7:].tolist()
    assert tiny.on_devices(8, DEVICES) == {"8x1": wanted, "4x2": wanted}


def test_turns_that_cannot_be_are_refused():
    policy, _ = tiny.make()
    make = functools.partial(make_sampler, policy, group_size=2, completion_length=4, end_ids=ENDS, pad_id=PAD)
    with pytest.raises(ValueError, match="narrowings=1 must be 0"):
        make(narrowings=1, stop_early=False)
    with pytest.raises(ValueError, match="rows_at_once=-1"):
        make(rows_at_once=-1)
    with pytest.raises(ValueError, match="no gather"):
        make_sampler(
            policy._replace(gather=None), group_size=2, completion_length=4, end_ids=(), pad_id=0, narrowings=1
        )


# --- both log-probabilities, for every method ---

METHODS = [
    {"temperature": 0.7},
    {"top_k": 3},
    {"top_p": 0.6},
    {"min_p": 0.3},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.8, "min_p": 0.1},
    {"temperature": 0.0},
]


@pytest.mark.parametrize("options", METHODS, ids=str)
def test_both_log_probabilities_are_the_teacher_forced_ones(options):
    policy, params = tiny.make()
    method = SamplingMethod(**options)
    rollouts = rollouts_of(policy, params, method=method)

    def teach(params, rollouts):
        """Logits of the learner, cut as the method says: (behaviour, full) [B, T]."""
        tokens, real = rollouts.tokens, jnp.concatenate([rollouts.prompt_mask, rollouts.attend_mask], axis=1)
        positions = jnp.maximum(jnp.cumsum(real, axis=1) - 1, 0)
        logits = policy.logits(params, policy.apply(params, tokens, positions, real.astype(jnp.int32)))
        logits = logits[:, -T - 1 : -1] / (method.temperature or 1.0)
        of = lambda x: jnp.take_along_axis(jax.nn.log_softmax(x), tokens[:, -T:, None], axis=-1)[..., 0]
        return of(method.truncate(logits)), of(logits)

    behaviour, full = jax.jit(teach)(params, rollouts)
    mask = rollouts.completion_mask
    np.testing.assert_allclose(rollouts.full_logprobs, np.where(mask, full, 0), atol=1e-4)
    wanted = np.zeros_like(mask, float) if method.temperature == 0 else np.where(mask, behaviour, 0)
    np.testing.assert_allclose(rollouts.behaviour_logprobs, wanted, atol=1e-4)
    scored = make_logprobs(policy, temperature=method.temperature)(
        params, rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask
    )[0]
    np.testing.assert_allclose(rollouts.full_logprobs, np.where(mask, scored, 0), atol=1e-4)
    cut = any(method.truncate(jnp.arange(13.0)[None])[0] == -jnp.inf)
    assert (rollouts.behaviour_logprobs > rollouts.full_logprobs + 1e-3).any() == (cut or method.temperature == 0)


def kept(probabilities, **options):
    cut = SamplingMethod(**options).truncate(jnp.log(jnp.asarray(probabilities, jnp.float32))[None])[0]
    return np.flatnonzero(np.asarray(cut) > -np.inf).tolist()


@pytest.mark.parametrize("extra", [0, 3000])  # a vocabulary in which only the likeliest few are ranked first
def test_kept_sets_by_hand(extra):
    p = np.concatenate([[0.5, 0.25, 0.125, 0.125], np.zeros(extra)])
    assert kept(p, top_p=0.75) == [0, 1]
    assert kept(p, top_p=0.76) == [0, 1, 2]  # the token that crosses is kept; of equal ones the first
    assert kept(p, top_p=0.0) == [0]
    assert kept(p, top_k=1) == [0] and kept(p, top_k=3) == [0, 1, 2]
    assert kept(p, top_k=1, top_p=0.8) == [0]
    assert kept(p, min_p=0.5) == [0, 1] and kept(p, min_p=0.25) == [0, 1, 2, 3] and kept(p, min_p=1.0) == [0]
    assert kept(p, top_k=3, top_p=0.75) == [0, 1]  # of the 0.875 that are left, 0.75/0.875 = 0.857 ≥ 0.75
    assert kept(p, top_k=2, min_p=0.9) == [0]
    if not extra:
        assert kept(p, top_p=1.0) == kept(p, top_k=10) == kept(p, top_k=4) == [0, 1, 2, 3]


@pytest.mark.parametrize(("size", "spread"), [(20, 2.0), (700, 0.1), (700, 5.0), (3000, 0.01)])
def test_a_nucleus_is_that_of_a_sorted_loop(size, spread):
    rng = np.random.default_rng(size)
    logits = (spread * rng.standard_normal((5, size))).round(1 if spread > 0.05 else 2).astype(np.float32)  # with ties
    for top_k, top_p in ((0, 0.9), (0, 0.3), (600, 0.95), (7, 0.5)):
        found = np.asarray(SamplingMethod(top_k=top_k, top_p=top_p).truncate(jnp.asarray(logits))) > -np.inf
        for row, x in zip(found, logits):
            order = sorted(range(size), key=lambda i, x=x: (-x[i], i))[: top_k or size]
            p = np.exp(x[order].astype(np.float64))
            before = np.cumsum(p / p.sum()) - p / p.sum()
            inside = int((before < top_p - 1e-6).sum())
            on_the_edge = int((np.abs(before - top_p) <= 1e-6).sum())
            count = int(row.sum())
            assert inside <= count <= inside + on_the_edge
            assert set(np.flatnonzero(row)) == set(order[:count])


def test_a_large_vocabulary_draws_what_a_small_one_does():
    logits = jnp.asarray(np.random.default_rng(0).standard_normal((400, SMALL)), jnp.float32)
    wide = jnp.concatenate([logits, jnp.full((400, 300), -jnp.inf)], axis=1)
    keys = jax.random.split(jax.random.key(0), 400)
    small, large = (jax.jit(SamplingMethod().draw)(x, keys) for x in (logits, wide))
    assert (np.asarray(small.token) == np.asarray(large.token)).mean() > 0.99  # but for sums that round differently
    same = np.asarray(small.token == large.token)
    np.testing.assert_allclose(small.logprob[same], large.logprob[same], atol=1e-5)


# --- stop strings ---

PIECES = [
    b"",
    b"",
    b"a",
    b"b",
    b"ab",
    b"ba",
    b"aab",
    b"abab",
    "é".encode(),
    "é".encode()[:1],
    "é".encode()[1:],
    b"",
    b"cc",
]


def naive_end(tokens, strings):
    """The place of the token after which the text since the last special token holds a stop string; None if none."""
    text = b""
    for place, token in enumerate(tokens):
        text = text + PIECES[token] if PIECES[token] else b""
        if any(string.encode() in text for string in strings):
            return place
    return None


@pytest.mark.parametrize("strings", [["abb"], ["aba", "bb"], ["é"], ["aab", "baa", "cca"]])
def test_the_automaton_is_a_search_in_the_text(strings):
    stops = make_stop_strings(strings, PIECES)
    rng = np.random.default_rng(0)
    found = []
    for _ in range(300):
        tokens = rng.integers(0, len(PIECES), 12)
        state, place = 0, None
        for i, token in enumerate(tokens):
            state = stops.table[state, token]
            if state == StopStrings.END:
                place = i
                break
        assert place == naive_end(tokens, strings)
        found.append(place)
    assert None in found and len(set(found)) > 3


@pytest.mark.parametrize("way", [{}, {"rows_at_once": 5, "narrowings": 1}], ids=str)
def test_a_stop_string_ends_a_completion(way):
    strings = ["bab", "ccc"]
    policy, params = tiny.make()
    free = rollouts_of(policy, params, end_ids=())
    found = rollouts_of(policy, params, end_ids=(), stops=make_stop_strings(strings, PIECES), **way)
    ends = [naive_end(row, strings) for row in free.tokens[:, -T:]]
    assert None in ends and len(set(ends)) > 3
    for row, end in enumerate(ends):
        length = T if end is None else end + 1
        assert found.lengths[row] == length and found.finished[row] == (end is not None)
        np.testing.assert_array_equal(found.tokens[row, -T:][:length], free.tokens[row, -T:][:length])
        assert (found.tokens[row, -T:][length:] == PAD).all()


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="none may be empty"):
        make_stop_strings(["a", ""], PIECES)
