"""Tasks whose verdict is an array function: whole experiments run inside one jit (see `rlvr_jax.lab`).

One automaton reads the completion of every task, token by token:

    0 … 9 digits    THINK    CALL    END    SEE_0 … SEE_9 (observations: written by the environment, never trained on)

A task is a set of dials over it, and a scripted demonstrator: the distribution over next tokens that the policy is
warm-started from. So the pass rate of every prompt, the gap in length between right and wrong completions, how far a
policy can tell them apart, the share of guesses and the number of tool calls are there by construction.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.registry import Registry
from rlvr_jax.types import Array, PyTree

DIGITS, THINK, CALL, END, SEE, VOCABULARY = 10, 10, 11, 12, 13, 24  # the last token is never likely: a spare

registry = Registry("task")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy:
    """A task of the lab. `kind` is static; `dials` are data: tasks of one kind and size share one program."""

    kind: str
    bands: tuple[str, str]  # names of the halves of the prompts: dial `band` 0 and 1
    prompts: int  # trained on; prompt i is the i-th row of every dial
    held_out: int = 0  # prompts warm-started like the others, sampled and graded, never trained on
    calls: int = 0  # kind "reason": calls before the answer is seen
    dials: dict[str, np.ndarray] = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @property
    def size(self) -> int:
        return self.prompts + self.held_out

    @property
    def structure(self) -> tuple:
        """What must be equal for two tasks to share a program."""
        return self.kind, self.bands, self.prompts, self.held_out, self.calls


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class State:
    """What the automaton knows after a prefix; all [...]."""

    prompt: Array  # i32, index of the prompt
    label: Array  # i32, the right answer
    luck: Array  # f32 in [0, 1), this completion's own
    noise: Array  # f32 in [0, 1), another
    position: Array  # i32, tokens so far
    answer: Array  # i32, the digit that counts; −1: none yet
    tried: Array  # i32, bit d: digit d has been written
    calls: Array  # i32, calls (kind "search": tries)
    seen: Array  # i32, the last observation, 0 … 9; −1: none
    pending: Array  # i32, the token the environment writes next; −1: none
    ended: Array  # bool
    budget: Array  # i32, tokens the completion may have; the environment then ends it


def start(toy: Toy, dials: PyTree, prompt: Array, luck: Array, noise: Array, budget: Array) -> State:
    """The automaton before the first token. prompt i32[...]; luck, noise f32[...] uniform on [0, 1)."""
    if toy.kind == "lookup":
        label = dials["label"][prompt]
    else:  # drawn anew for every completion: nothing to memorise
        # the first option has the probability `prior`, the others share the rest
        options, prior = dials["options"][prompt], dials["prior"][prompt]
        other = 1 + jnp.floor((luck - prior) / jnp.maximum(1 - prior, 1e-6) * (options - 1)).astype(jnp.int32)
        label = jnp.where(luck < prior, 0, jnp.minimum(other, options - 1))
    none = jnp.full(prompt.shape, -1, jnp.int32)
    zero = jnp.zeros(prompt.shape, jnp.int32)
    return State(
        prompt=prompt,
        label=label,
        luck=luck,
        noise=noise,
        position=zero,
        answer=none,
        tried=zero,
        calls=zero,
        seen=none,
        pending=none,
        ended=jnp.zeros(prompt.shape, bool),
        budget=jnp.broadcast_to(budget, prompt.shape),
    )


def step(toy: Toy, dials: PyTree, state: State, token: Array) -> State:
    """The automaton after one more token, whoever wrote it."""
    digit, call, see = token < DIGITS, token == CALL, (token >= SEE) & (token < SEE + 10)
    search = toy.kind == "search"
    state = dataclasses.replace(
        state,
        position=state.position + 1,
        answer=jnp.where(digit & (search | (state.answer < 0)), token, state.answer),
        tried=jnp.where(digit, state.tried | (1 << jnp.clip(token, 0, 9)), state.tried),
        calls=state.calls + (digit if search else call & (state.answer < 0)),
        seen=jnp.where(see, token - SEE, state.seen),
        pending=jnp.full(token.shape, -1, jnp.int32),
        ended=state.ended | (token == END),
    )
    asked = digit if search else call & (state.answer < 0)
    pending = jnp.where(asked, SEE + _observation(toy, dials, state), -1)
    return dataclasses.replace(state, pending=jnp.where(state.position >= state.budget, END, pending))


def _observation(toy: Toy, dials: PyTree, state: State) -> Array:
    """0 … 9: what the environment answers to a call (search: to a try)."""
    if toy.kind == "search":
        return jnp.where(state.answer == state.label, 1, 0)
    if toy.kind == "reason":  # the label itself after enough calls, before them nothing (9)
        return jnp.where(state.calls >= toy.calls, state.label, 9)
    if toy.kind == "tools":
        # one call: the label, or with probability 1 − clear another option; two calls: the label in a code (5 …)
        options = dials["options"][state.prompt]
        wrong = (state.label + 1 + jnp.floor(state.luck * 7919.0 % 1.0 * (options - 1)).astype(jnp.int32)) % options
        one = jnp.where(state.noise < dials["clear"], state.label, wrong)
        return jnp.where(state.calls == 1, one, jnp.where(state.calls == 2, 5 + state.label, 9))
    return jnp.full(state.prompt.shape, 9, jnp.int32)


def outcome(toy: Toy, dials: PyTree, state: State, finished: Array) -> Array:
    """f32[...], 1 where the answer is right (and, with the dial `must_end`, the completion ended by itself); with the
    dial `random_reward` ≥ 0 a coin of that probability instead, whatever was written."""
    right = (state.answer == state.label) & (finished | (dials["must_end"] < 0.5))
    coin = state.noise < dials["random_reward"]
    return jnp.where(dials["random_reward"] < 0, right, coin).astype(jnp.float32)


def stratum(toy: Toy, state: State) -> Array:
    """i32[...], the structural class of a completion: its calls, three or more counted as three."""
    return jnp.minimum(state.calls, 3)


# --- the tasks: "lookup(options=4, stop_wrong=0.25)" → Toy ---


def make_toy(text: str) -> Toy:
    """ "lookup(options=4)" → the task.

    Raises:
      ValueError: unknown task or dial, or a value out of range; names the valid choices.
    """
    return registry.make(text)


def _require(task: str, condition: bool, dial: str, value, constraint: str) -> None:
    if not condition:
        raise ValueError(f"task={task}: {dial}={value!r} {constraint}")


def _are_numbers(value, count: int) -> bool:
    return isinstance(value, tuple) and len(value) == count and all(isinstance(x, (int, float)) for x in value)


def _require_shares(task: str, **dials) -> None:
    for dial, value in dials.items():
        ok = isinstance(value, (int, float)) and 0 <= value <= 1
        _require(task, ok, dial, value, "must be a number in [0, 1]")


def _require_sizes(task: str, prompts: int, options) -> None:
    ok = isinstance(prompts, int) and prompts >= 2 and prompts % 2 == 0
    _require(task, ok, "prompts", prompts, "must be an even whole number of at least 2: one half for each band")
    for count in options:
        ok = isinstance(count, int) and 2 <= count <= DIGITS
        _require(task, ok, "options", count, f"must be a whole number of 2 to {DIGITS}")


def _halves(prompts: int, first, second) -> np.ndarray:
    """[prompts]: every other prompt belongs to the second band, so that any two neighbours are one of each."""
    return np.where(np.arange(prompts) % 2 == 0, first, second)


def _dials(prompts: int, options: np.ndarray, **more) -> dict[str, np.ndarray]:
    common = {
        "band": _halves(prompts, 0, 1).astype(np.int32),
        "options": options.astype(np.int32),
        "prior": (1.0 / options).astype(np.float32),
        "label": (np.arange(prompts) * 7 % options).astype(np.int32),
        "random_reward": np.float32(-1),
        "must_end": np.float32(0),
    }
    return common | {name: np.asarray(value, np.float32) for name, value in more.items()}


@registry.register
def lookup(
    prompts=16,
    options=4,
    rates=(0.1, 0.6),
    hard=(),
    hesitate=0.1,
    stop_right=0.6,
    stop_wrong=0.25,
    must_end=False,
    random_reward=-1.0,
) -> Toy:
    """One answer per prompt, to be memorised. Prompts start at pass rates spread evenly over `rates`; with `hard`,
    every other prompt over that range instead. After the answer the demonstrator rambles, and stops at each token with
    probability `stop_right` or `stop_wrong`: their difference is how far right and wrong can be told apart afterwards.
    `random_reward` in [0, 1] pays by a coin of that probability, whatever was written."""
    _require_sizes("lookup", prompts, [options])
    _require_shares("lookup", hesitate=hesitate, stop_right=stop_right, stop_wrong=stop_wrong)
    for dial, value in {"rates": rates, "hard": hard or rates}.items():
        ok = _are_numbers(value, 2) and 0 < value[0] <= value[1] < 1
        _require("lookup", ok, dial, value, "must be two pass rates 0 < low <= high < 1")
    ok = _are_numbers((random_reward,), 1) and (random_reward == -1 or 0 <= random_reward <= 1)
    _require("lookup", ok, "random_reward", random_reward, "must be -1 (off) or in [0, 1]")
    spread = lambda ends: np.repeat(np.linspace(*ends, prompts // 2), 2)
    rate = _halves(prompts, spread(rates), spread(hard)) if hard else np.linspace(*rates, prompts)
    dials = _dials(
        prompts, np.full(prompts, options), rate=rate, hesitate=hesitate, stop_right=stop_right, stop_wrong=stop_wrong
    )
    dials |= {"random_reward": np.float32(random_reward), "must_end": np.float32(must_end)}
    return Toy(kind="lookup", bands=("easy", "hard"), prompts=prompts, dials=dials)


@registry.register
def reason(prompts=16, held_out=0, options=2, open_options=10, calls=2, share=0.3, skill=0.1) -> Toy:
    """Guess or reason. The label is drawn anew for every completion from `options` answers (every other prompt: from
    `open_options`); after `calls` calls it is shown. The demonstrator reasons with probability `share`, and then copies
    what it was shown with probability `skill`."""
    _require_sizes("reason", prompts, [options, open_options])
    ok = isinstance(held_out, int) and held_out >= 0 and held_out % 2 == 0
    _require("reason", ok, "held_out", held_out, "must be an even whole number, not negative")
    _require("reason", isinstance(calls, int) and calls >= 1, "calls", calls, "must be a whole number of at least 1")
    _require_shares("reason", share=share, skill=skill)
    count = prompts + held_out
    dials = _dials(count, _halves(count, options, open_options), share=share, skill=skill)
    return Toy(kind="reason", bands=("bounded", "open"), prompts=prompts, held_out=held_out, calls=calls, dials=dials)


@registry.register
def tools(prompts=16, options=4, prior=0.4, clear=0.55, skill=0.3, mix=(0.4, 0.4, 0.2)) -> Toy:
    """Strata by the number of calls. The label is drawn anew for every completion: the first option with probability
    `prior`. No call: answering the first option is right at `prior`. One call shows the label with probability `clear`,
    else another option. Two calls show it in a code that the demonstrator reads rightly with probability `skill`, else
    wrongly: the best in the end, and poor at the start. `mix` is how often the demonstrator makes none, one and two
    calls."""
    _require_sizes("tools", prompts, [options])
    _require("tools", options <= 5, "options", options, "must be at most 5: a code has five symbols")
    _require_shares("tools", prior=prior, clear=clear, skill=skill)
    ok = _are_numbers(mix, 3) and abs(sum(mix) - 1) < 1e-6 and min(mix) >= 0
    _require("tools", ok, "mix", mix, "must be three shares that sum to 1")
    dials = _dials(prompts, np.full(prompts, options), clear=clear, skill=skill, mix=mix)
    dials["prior"] = np.full(prompts, prior, np.float32)
    return Toy(kind="tools", bands=("even", "odd"), prompts=prompts, dials=dials)


@registry.register
def search(prompts=16, options=3, hard_options=8, memory=0.8, stop_right=0.95, give_up=0.5) -> Toy:
    """Search pays: the label is drawn anew for every completion from `options` digits (every other prompt: from
    `hard_options`); each digit is a try, and the environment says whether it is right. The last try counts. The
    demonstrator tries an untried digit with probability `memory`, ends after a right one with probability `stop_right`
    and gives up after a wrong one with probability `give_up`."""
    _require_sizes("search", prompts, [options, hard_options])
    _require_shares("search", memory=memory, stop_right=stop_right, give_up=give_up)
    dials = _dials(
        prompts, _halves(prompts, options, hard_options), memory=memory, stop_right=stop_right, give_up=give_up
    )
    return Toy(kind="search", bands=("easy", "hard"), prompts=prompts, dials=dials)
