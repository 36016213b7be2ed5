"""The toy tasks: the automaton by hand, the labels and observations it draws, and what the demonstrators really do."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlvr_jax.lab.world import make_demonstrator, make_world
from rlvr_jax.sampling import make_sampler
from rlvr_jax.tasks import toy as toys
from rlvr_jax.tasks.demonstrators import demonstrate
from rlvr_jax.tasks.toy import CALL, END, SEE, THINK, VOCABULARY, make_toy

pytestmark = pytest.mark.usefixtures("quick_compiles")
UNLIMITED = 10**6


@functools.partial(jax.jit, static_argnums=0)
def automaton(toy, dials, prompt, luck, noise, budget, tokens):
    """The states before each of `tokens` i32[T] and after the last."""
    first = toys.start(toy, dials, prompt, luck, noise, budget)
    last, before = jax.lax.scan(lambda state, token: (toys.step(toy, dials, state, token), state), first, tokens)
    return jax.tree.map(lambda all_, end: jnp.concatenate([all_, end[None]]), before, last)


@functools.partial(jax.jit, static_argnums=0)
def judge(toy, dials, state, finished):
    return toys.outcome(toy, dials, state, finished), toys.stratum(toy, state)


class Told:
    """What the automaton makes of a completion in which the environment's tokens are written too."""

    def __init__(self, toy, tokens, prompt=0, luck=0.0, noise=0.0, budget=UNLIMITED, finished=True):
        padded = np.full(10, THINK)
        padded[: len(tokens)] = tokens
        f32 = np.float32
        states = automaton(toy, toy.dials, np.int32(prompt), f32(luck), f32(noise), np.int32(budget), padded)
        states = jax.tree.map(np.asarray, states)
        self.pending = states.pending[: len(tokens) + 1].tolist()
        last = jax.tree.map(lambda x: x[len(tokens)], states)
        self.answer, self.label, self.calls, self.ended = (
            int(last.answer), int(last.label), int(last.calls), bool(last.ended),
        )  # fmt: skip
        self.outcome, self.stratum = (float(x) for x in judge(toy, toy.dials, last, np.asarray(finished)))


def test_tokens_do_not_overlap():
    assert (THINK, CALL, END, SEE) == (10, 11, 12, 13) and SEE + 10 < VOCABULARY


# --- lookup ---


def test_lookup_by_hand():
    toy = make_toy("lookup(prompts=4, options=4)")
    assert toy.dials["label"].tolist() == [0, 3, 2, 1]  # 7·i mod 4
    told = Told(toy, [THINK, 3, THINK, 2, END], prompt=1)
    assert (told.answer, told.label, told.outcome, told.ended) == (3, 3, 1.0, True)  # the first digit counts
    assert told.pending == [-1] * 6  # nothing is forced
    assert Told(toy, [2, 3, END], prompt=1).outcome == 0.0
    assert Told(toy, [THINK, END], prompt=0).outcome == 0.0  # no answer is not the answer 0
    assert Told(toy, [THINK, 3], prompt=1, finished=False).outcome == 1.0
    assert Told(toy, [THINK, 9], prompt=1).outcome == 0.0  # a digit beyond the options is an answer


def test_dials_of_the_outcome():
    strict = make_toy("lookup(prompts=4, must_end=True)")
    assert Told(strict, [3, END], prompt=1).outcome == 1.0
    assert Told(strict, [3, THINK], prompt=1, finished=False).outcome == 0.0
    coin = make_toy("lookup(prompts=4, random_reward=0.3)")
    for answer in (3, 2):  # right or wrong: the coin alone decides
        assert Told(coin, [answer, END], prompt=1, noise=0.29).outcome == 1.0
        assert Told(coin, [answer, END], prompt=1, noise=0.31).outcome == 0.0
    never = make_toy("lookup(prompts=4, random_reward=0.0)")
    assert Told(never, [3, END], prompt=1, noise=0.0).outcome == 0.0


def test_rates_of_lookup():
    spread = make_toy("lookup(prompts=4, rates=(0.1, 0.7))").dials["rate"]
    np.testing.assert_allclose(spread, [0.1, 0.3, 0.5, 0.7], rtol=1e-6)
    two = make_toy("lookup(prompts=4, rates=(0.5, 0.7), hard=(0.1, 0.2))").dials
    np.testing.assert_allclose(two["rate"], [0.5, 0.1, 0.7, 0.2], rtol=1e-6)
    assert two["band"].tolist() == [0, 1, 0, 1]


# --- reason ---


def test_reason_by_hand():
    toy = make_toy("reason(prompts=2, options=2, open_options=10, calls=2)")
    # label: the first option with probability 1/options, so luck 0.7 of two is the second
    told = Told(toy, [CALL, SEE + 9, CALL, SEE + 1, 1, END], prompt=0, luck=0.7)
    assert told.pending == [-1, SEE + 9, -1, SEE + 1, -1, -1, -1]
    assert (told.label, told.answer, told.calls, told.stratum, told.outcome) == (1, 1, 2, 2, 1.0)
    # an observation is no answer, and after the answer a call is neither counted nor answered
    told = Told(toy, [CALL, SEE + 9, 0, CALL, THINK, END], prompt=0, luck=0.2)
    assert told.pending == [-1, SEE + 9, -1, -1, -1, -1, -1]
    assert (told.label, told.answer, told.calls, told.outcome) == (0, 0, 1, 1.0)
    # open: 0.05 is below 1/10; 1 + ⌊(0.95 − 0.1)/0.9·9⌋ = 9; and the last number below 1 is no eleventh option
    for luck, label in ((0.05, 0), (0.95, 9), (1 - 2**-24, 9), (0.0, 0)):
        assert Told(toy, [], prompt=1, luck=luck).label == label
    assert Told(toy, [CALL] * 5, prompt=0).stratum == 3  # three or more


# --- tools ---


def test_tools_by_hand():
    toy = make_toy("tools(prompts=2, options=4, prior=0.4, clear=0.55)")
    # luck 0.7: 1 + ⌊(0.7 − 0.4)/0.6·3⌋ = 2; noise 0.5 < clear shows it
    told = Told(toy, [CALL, SEE + 2, 2, END], luck=0.7, noise=0.5)
    assert told.pending == [-1, SEE + 2, -1, -1, -1] and told.outcome == 1.0
    # noise 0.6 shows another: 0.7·7919 mod 1 = 0.3, ⌊0.9⌋ = 0, so the next, 3
    told = Told(toy, [CALL, SEE + 3, CALL, SEE + 7, CALL, SEE + 9, 2, END], luck=0.7, noise=0.6)
    assert told.pending == [-1, SEE + 3, -1, SEE + 7, -1, SEE + 9, -1, -1, -1]  # two calls: 5 + 2; three: nothing
    assert (told.calls, told.stratum, told.outcome) == (3, 3, 1.0)
    assert Told(toy, [0, END], luck=0.1).outcome == 1.0 and Told(toy, [0, END], luck=0.5).outcome == 0.0


def test_labels_and_unclear_observations_are_spread_evenly():
    toy = make_toy("tools(prompts=2, options=4, prior=0.4, clear=0.55)")
    n = 40_000
    luck, noise = np.random.default_rng(0).random((2, n), np.float32)

    @jax.jit
    def once(dials, luck, noise):
        state = toys.start(toy, dials, jnp.zeros(n, jnp.int32), luck, noise, jnp.int32(UNLIMITED))
        return state.label, toys.step(toy, dials, state, jnp.full(n, CALL)).pending - SEE

    label, shown = (np.asarray(x) for x in once(toy.dials, luck, noise))
    error = 4 * np.sqrt(0.25 / n)
    np.testing.assert_allclose(np.bincount(label, minlength=4) / n, [0.4, 0.2, 0.2, 0.2], atol=error)
    wrong = shown != label
    np.testing.assert_allclose(wrong.mean(), 0.45, atol=error)
    # one of the three others, each alike, whatever the label
    for own in range(4):
        steps = (shown - label)[wrong & (label == own)] % 4
        shares = np.bincount(steps, minlength=4) / len(steps)
        np.testing.assert_allclose(shares, [0, 1 / 3, 1 / 3, 1 / 3], atol=4 * np.sqrt(0.25 / len(steps)))


# --- search ---


def test_search_by_hand():
    toy = make_toy("search(prompts=2, options=3)")
    # luck 0.5: 1 + ⌊(0.5 − 1/3)/(2/3)·2⌋ = 1
    told = Told(toy, [0, SEE, 1, SEE + 1, END], luck=0.5)
    assert told.pending == [-1, SEE, -1, SEE + 1, -1, -1]
    assert (told.label, told.answer, told.calls, told.outcome) == (1, 1, 2, 1.0)
    told = Told(toy, [1, SEE + 1, 2, SEE, END], luck=0.5)  # the last try counts
    assert (told.answer, told.outcome) == (2, 0.0)
    told = Told(toy, [CALL, THINK, 1, SEE + 1], luck=0.5, finished=False)  # a call is nothing here
    assert told.pending == [-1, -1, -1, SEE + 1, -1] and (told.calls, told.outcome) == (1, 1.0)


def test_budget_ends_a_completion():
    toy = make_toy("reason(prompts=2, calls=2)")
    # what the environment wrote counts: after two tokens it ends; the end comes before an observation
    assert Told(toy, [CALL, SEE + 9], budget=2).pending == [-1, SEE + 9, END]
    assert Told(toy, [CALL, SEE + 9, CALL], budget=3).pending[-1] == END
    told = Told(toy, [CALL, SEE + 9, END], budget=2, finished=False)
    assert told.ended and told.outcome == 0.0
    assert Told(toy, [THINK, THINK, THINK], budget=4).pending == [-1] * 4


# --- text → task ---


def test_sizes_bands_and_structure():
    toy = make_toy("reason(prompts=4, held_out=2, options=2, open_options=5)")
    assert toy.size == 6 and all(len(toy.dials[name]) == 6 for name in ("band", "options", "prior", "label"))
    assert toy.dials["options"].tolist() == [2, 5] * 3
    other = make_toy("reason(prompts=4, held_out=2, share=0.9, options=3)")  # dials are data
    assert toy == other and hash(toy) == hash(other) and toy.structure == other.structure
    for text in ("reason(prompts=4, held_out=4)", "reason(prompts=4, held_out=2, calls=1)", "search(prompts=6)"):
        assert make_toy(text) != toy and make_toy(text).structure != toy.structure
    names = lambda text: sorted(make_toy(text).dials)
    assert names("lookup") == names("lookup(hard=(0.1, 0.2), must_end=True)")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("look", ["look", "lookup", "reason", "search", "tools"]),
        ("lookup(option=3)", ["option", "options"]),
        ("lookup(prompts=5)", ["prompts=5", "even"]),
        ("lookup(prompts=0)", ["prompts=0", "at least 2"]),
        ("lookup(options=1)", ["options=1", "2 to 10"]),
        ("lookup(options=2.5)", ["options=2.5", "whole"]),
        ("lookup(rates=(0, 0.5))", ["rates=(0, 0.5)", "0 < low"]),
        ("lookup(hard=(0.5, 0.2))", ["hard=(0.5, 0.2)", "low <= high"]),
        ("lookup(rates=0.5)", ["rates=0.5", "two pass rates"]),
        ("lookup(rates=('a', 0.5))", ["rates=", "two pass rates"]),
        ("lookup(stop_right=1.5)", ["stop_right=1.5", "[0, 1]"]),
        ("lookup(random_reward=2)", ["random_reward=2", "[0, 1]"]),
        ("lookup(random_reward=-0.5)", ["random_reward=-0.5", "-1 (off) or in [0, 1]"]),
        ("lookup(random_reward='yes')", ["random_reward='yes'", "[0, 1]"]),
        ("reason(held_out=3)", ["held_out=3", "even"]),
        ("reason(held_out=2.0)", ["held_out=2.0", "whole"]),
        ("reason(calls=0)", ["calls=0", "at least 1"]),
        ("reason(share='x')", ["share='x'", "[0, 1]"]),
        ("tools(options=6)", ["options=6", "at most 5"]),
        ("tools(mix=(0.5, 0.6, 0.1))", ["mix=(0.5, 0.6, 0.1)", "sum to 1"]),
        ("tools(mix=0.5)", ["mix=0.5", "three shares"]),
        ("tools(mix=('a', 0.5, 0.5))", ["mix=", "three shares"]),
        ("search(memory=-0.1)", ["memory=-0.1", "[0, 1]"]),
        ("lookup(prompts=", ["lookup(prompts=", "keyword=literal"]),
    ],
)
def test_what_cannot_be_is_refused(text, parts):
    with pytest.raises(ValueError) as caught:
        make_toy(text)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


# --- demonstrators ---


@functools.cache
def demonstrated(text, group=1000, length=40):
    """(toy, tokens i32[P, G, T], grades, last state) of completions that the demonstrator samples."""
    toy = make_toy(text)
    world = make_world(toy)

    @jax.jit
    def sample(dials, key):
        run = make_sampler(
            make_demonstrator(toy),
            group_size=group,
            completion_length=length,
            end_ids=world.end_ids,
            pad_id=world.pad_id,
            environment=world.environment(dials, jnp.int32(UNLIMITED)),
        )
        prompts = world.prompts(dials, 0)
        rollouts, state = run(dials, prompts, key)
        return rollouts, world.grade(dials, prompts, rollouts, state), state

    return toy, *jax.device_get(sample(toy.dials, jax.random.key(5)))


def share_is(events, wanted, of=None):
    """Within 4.5 standard errors of a binomial share; returns the share."""
    events = np.asarray(events)[np.asarray(of)] if of is not None else np.asarray(events).reshape(-1)
    assert len(events) > 100
    np.testing.assert_allclose(events.mean(), wanted, atol=4.5 * np.sqrt(wanted * (1 - wanted) / len(events)) + 1e-9)


def mean_is(values, wanted):
    values = np.asarray(values, float)
    np.testing.assert_allclose(values.mean(), wanted, atol=4.5 * values.std() / np.sqrt(len(values)))


def test_lookup_demonstrator():
    text = "lookup(prompts=4, options=4, rates=(0.1, 0.6), hesitate=0.1, stop_right=0.6, stop_wrong=0.25)"
    toy, _, groups, state = demonstrated(text)
    for prompt, rate in enumerate(toy.dials["rate"]):
        share_is(groups.outcome[prompt], rate)
    # answer after 1/(1 − 0.1) tokens, and then 1/stop more
    for right, stop in ((1, 0.6), (0, 0.25)):
        mean_is(groups.lengths[groups.outcome == right], 1 / 0.9 + 1 / stop)
    assert groups.finished.mean() > 0.999 and (state.calls == 0).all()
    # a wrong answer is any other option
    wrong = state.answer[1][groups.outcome[1] == 0]
    for digit in (0, 1, 2):  # of prompt 1, whose label is 3
        share_is(wrong == digit, 1 / 3)


def test_reason_demonstrator():
    _, _, groups, state = demonstrated("reason(prompts=2, options=2, open_options=10, share=0.3, skill=0.1)")
    reasoned = state.calls >= 2
    share_is(reasoned, 0.3)
    assert set(np.unique(state.calls).tolist()) == {0, 2}
    for prompt, options in enumerate((2, 10)):
        share_is(groups.outcome[prompt] > 0, 0.1 + 0.9 / options, reasoned[prompt])
        share_is(groups.outcome[prompt] > 0, 1 / options, ~reasoned[prompt])
    # call, see, call, see, answer, end: six tokens, of which four are its own; a guess is two
    assert set(groups.lengths[reasoned].tolist()) == {4} and set(groups.lengths[~reasoned].tolist()) == {2}


def test_tools_demonstrator():
    _, _, groups, state = demonstrated("tools(prompts=2, prior=0.4, clear=0.55, skill=0.3, mix=(0.4, 0.35, 0.25))")
    for calls, (mix, rate) in enumerate(((0.4, 0.4), (0.35, 0.55), (0.25, 0.3))):
        share_is(state.calls == calls, mix)
        share_is(groups.outcome > 0, rate, state.calls == calls)
    np.testing.assert_array_equal(groups.stratum, state.calls)


def test_search_demonstrator():
    text = "search(prompts=2, options=3, hard_options=8, memory=0.8, stop_right=0.95, give_up=0.5)"
    _, rollouts, _, state = demonstrated(text)
    tokens = rollouts.tokens[:, 1:].reshape(2, -1, 40)
    for prompt, options in enumerate((3, 8)):
        first, label = tokens[prompt, :, 0], state.label[prompt]
        share_is(first == label, 1 / options)
        share_is(state.calls[prompt] == 1, 0.95 / options + 0.5 * (1 - 1 / options))
        on = (first != label) & (state.calls[prompt] > 1)  # tried again after a wrong try
        share_is(tokens[prompt, :, 2] == label, 0.8 / (options - 1) + 0.2 / options, on)
        assert set(np.unique(tokens[prompt, :, 1]).tolist()) == {SEE, SEE + 1}


@pytest.mark.parametrize("text", ["lookup(prompts=2)", "reason(prompts=2)", "tools(prompts=2)", "search(prompts=2)"])
def test_demonstrators_are_distributions(text):
    toy = make_toy(text)
    shape = (3, 2)
    rng = np.random.default_rng(0)
    any_of = lambda low, high: jnp.asarray(rng.integers(low, high, shape), jnp.int32)
    zeros = jnp.zeros(shape)
    state = toys.State(
        prompt=any_of(0, 2), label=any_of(0, 2), luck=zeros, noise=zeros, position=any_of(0, 3),
        answer=any_of(-1, 2), tried=any_of(0, 4), calls=any_of(0, 4), seen=any_of(-1, 10), pending=any_of(-1, 0),
        ended=jnp.zeros(shape, bool), budget=any_of(9, 10),
    )  # fmt: skip
    logits = np.asarray(jax.jit(lambda dials, state: demonstrate(toy, dials, state))(toy.dials, state))
    assert logits.shape == (*shape, VOCABULARY) and np.isfinite(logits).all()
    np.testing.assert_allclose(np.exp(logits).sum(axis=-1), 1, rtol=1e-5)
    assert (np.exp(logits)[..., SEE:] < 1e-9).all()  # never writes what the environment writes
