"""What a part of an estimator is, and the ten slots it can fill.

A part is a frozen value holding pure functions and three declarations: what it `needs` of the batch, the
smallest group it makes sense for, and the invariances it `declares` (one battery of tests holds every part
to them). Phase-one parts are written for the G completions of one prompt and lifted over prompts by
`per_group`; those that need the whole batch say `per_batch`. Suffixes of names: see the legend in
`rlvr_jax.types`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rlvr_jax.masked import masked_max, masked_min
from rlvr_jax.registry import nearest
from rlvr_jax.types import Array, Groups, PyTree

MAX_LOG_RATIO = 20.0  # e²⁰ ≈ 5·10⁸ is finite in float32, in values and in gradients
CORRECT = 0.5  # a graded outcome above this counts as correct where a method knows only two classes

NEEDS = frozenset({"reference", "old", "prompt_id"})
DECLARABLE = frozenset(
    {
        "shift_invariant",  # adding one number to all rewards of the batch changes nothing
        "scale_equivariant",  # multiplying all rewards by a positive number multiplies the values by it
        "scale_invariant",  # ... changes nothing, with eps = 0
        "zero_sum",  # the values of a group sum to 0
        "zero_sum_batch",  # the values of the batch sum to 0
        "zero_without_contrast",  # a group whose valid rewards are equal gets exactly 0
        "unit_sum",  # the token weights of the batch sum to 1 when every valid row has a token
        "sign_preserving",  # the sign of every value stays
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Declared:
    needs: frozenset[str] = frozenset()
    min_group: int = 1
    declares: frozenset[str] = frozenset()

    def __post_init__(self):
        assert self.needs <= NEEDS, self.needs
        assert self.declares <= DECLARABLE, self.declares


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part(_Declared):
    """A stateless part. The signature of `apply` is the slot's:

    shape    (groups) → rewards_PG
    select   (rewards_PG, groups) → keep_P
    correct  (old_BT, behaviour_BT, mask_BT) → weight_BT, detached
    ratio    (logprobs_BT, old_BT, mask_BT, advantages_B1) → log_ratio_BT, or None: no ratio
    clip     (log_ratio_BT, logprobs_BT, advantages_B1) → (loss_BT, clipped_BT: −1 low, 0 no, +1 high)
    kl       (logprobs_BT, reference_BT) → penalty_BT
    """

    apply: Callable


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdvantageTransform(_Declared):
    """A part of the slots baseline, scale and reweight; it may remember."""

    update: Callable  # (values_PG, memory, groups) → (values_PG, memory)
    init: Callable[[int], PyTree] | None = None  # (num_prompts) → memory; None: it remembers nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenWeights(_Declared):
    """A part of the slot aggregate; it may learn."""

    weights: Callable  # (params, rows: aggregate.Rows) → w_BT ≥ 0, 0 where masked
    init: Callable[[], PyTree] = dict


class Parts(NamedTuple):
    """The ten slots in the order of application: five before the gradient, five inside it."""

    shape: Part
    select: Part
    baseline: AdvantageTransform
    scale: AdvantageTransform
    reweight: AdvantageTransform
    correct: Part
    ratio: Part
    clip: Part
    kl: Part
    aggregate: TokenWeights


SLOTS = Parts._fields


def per_batch(f: Callable[[Array, Groups], Array], **declared) -> AdvantageTransform:
    """Lifts f(values_PG, groups) → values_PG to a transform without memory."""
    return AdvantageTransform(update=lambda values, memory, groups: (f(values, groups), memory), **declared)


def per_group(f: Callable[[Array, Groups], Array], **declared) -> AdvantageTransform:
    """Lifts f(values_G, group) → values_G to a transform over all prompts; `group` has the fields of `Groups`
    without their leading axis."""
    return per_batch(jax.vmap(f), **declared)


def chain(transforms: dict[str, AdvantageTransform]) -> AdvantageTransform:
    """Applies transforms in order; memory is a dict by slot, without the slots that remember nothing."""

    def init(num_prompts):
        return {slot: t.init(num_prompts) for slot, t in transforms.items() if t.init is not None}

    def update(values_PG, memory, groups):
        memory = dict(memory)
        for slot, transform in transforms.items():
            if transform.init is None:
                values_PG, _ = transform.update(values_PG, {}, groups)
                continue
            if slot not in memory:
                raise ValueError(f"{slot}: it remembers; pass the memory that init_memory(num_prompts) made")
            values_PG, memory[slot] = transform.update(values_PG, memory[slot], groups)
        return values_PG, memory

    return AdvantageTransform(init=init, update=update)


def has_contrast(values: Array, valid: Array, axis=None) -> Array:
    """True where the valid values are not all equal. Compares max with min: in float32 the standard
    deviation of 0.3, 0.3, … is not 0, and dividing rounding by rounding gives advantages of full size."""
    return masked_max(values, valid, axis) > masked_min(values, valid, axis)


def to_groups(values_B: Array, group_B: Array, group_size: int) -> Array:
    """f[B, …] → f[P, G, …] by group id, whatever the order of the rows; within a group rows keep their order.

    Every id must occur `group_size` times; groups come out in ascending order of id.
    """
    order = jnp.argsort(group_B, stable=True)
    return values_B[order].reshape(-1, group_size, *values_B.shape[1:])


def to_rows(values_PG: Array, group_B: Array) -> Array:
    """f[P, G, …] → f[B, …]: the inverse of `to_groups` for the rows whose group ids are `group_B`."""
    order = jnp.argsort(group_B, stable=True)
    flat = values_PG.reshape(-1, *values_PG.shape[2:])
    return jnp.zeros_like(flat).at[order].set(flat)


def require_between(part: str, keyword: str, value, low: float, high: float = float("inf"), above: bool = False):
    """Refuses a plain number outside [low, high], or outside (low, high] when `above`; traced arrays pass."""
    if not (isinstance(value, (int, float)) or hasattr(value, "dtype")):
        raise ValueError(f"{part}: {keyword}={value!r} must be a number")
    if isinstance(value, (int, float)) and not (low <= value <= high and (value > low or not above)):
        least = f"above {low}" if above else f"at least {low}"
        most = "" if high == float("inf") else f" and at most {high}"
        raise ValueError(f"{part}: {keyword}={value!r} must be {least}{most}")


def require_whole(part: str, keyword: str, value, low: int):
    """Refuses what is not a whole number of at least `low`: it sizes an array, so it cannot be traced."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise ValueError(f"{part}: {keyword}={value!r} must be a whole number of at least {low}")


def require_choice(part: str, keyword: str, value: str, choices: Iterable[str]):
    """Refuses a word that is not one of `choices`."""
    if value not in choices:
        hint = nearest(str(value), choices)
        raise ValueError(f"{part}: {keyword}={value!r} is unknown{hint} Choose from {sorted(choices)}")


def require_length(part: str, keyword: str, value):
    """Refuses a length in tokens that is not positive; 'completion' waits for the configured one."""
    if not isinstance(value, str):
        require_between(part, keyword, value, 0, above=True)
    elif value != "completion":
        raise ValueError(f"{part}: {keyword}={value!r} must be a number of tokens or 'completion'")


def known_length(part: str, keyword: str, value):
    """The length, or the error of an estimator that was made without it."""
    if isinstance(value, str):
        raise ValueError(
            f"{part}: {keyword} is not known; pass completion_length to make_estimator, or {keyword}=... in the slot"
        )
    return value
