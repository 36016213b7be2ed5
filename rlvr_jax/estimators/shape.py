"""Slot `shape`: the verifier's outcome → the reward. Part: `(groups) → rewards_PG`."""

from __future__ import annotations

import jax.numpy as jnp

from rlvr_jax.estimators.base import Part, known_length, require_between, require_length
from rlvr_jax.registry import Registry

registry = Registry("shape")


@registry.register
def none() -> Part:
    """reward = the reward as given, which is the outcome unless the caller set another."""
    return Part(apply=lambda groups: groups.rewards)


def _signed(outcome):
    return 2.0 * outcome - 1.0


@registry.register
def signed() -> Part:
    """reward = 2·outcome − 1: right is +1, wrong is −1."""
    return Part(apply=lambda groups: _signed(groups.outcome))


def overlong_penalty(lengths, max_length, cache):
    """clip(((max_length − cache) − lengths) / cache, −1, 0); with cache = 0 a step at max_length."""
    over = (max_length - cache) - lengths.astype(jnp.float32)
    # cache = 0 leaves no ramp: only the step from 0 to −1 above max_length remains
    slope = over / jnp.where(cache > 0, cache, 1)
    ramp = jnp.where(cache > 0, slope, jnp.where(over < 0, -1.0, 0.0))
    return jnp.clip(ramp, -1.0, 0.0)


@registry.register
def overlong(max_length="completion", cache=None, signed=True) -> Part:
    """reward = ±1 by the outcome, less a penalty that grows over the last `cache` tokens before `max_length`.

        reward = (2·outcome − 1) + clip(((max_length − cache) − length) / cache, −1, 0)

    Tokens. `max_length='completion'` is the configured completion length, `cache=None` a fifth of
    `max_length`; `signed=False` keeps the outcome in [0, 1].
    Reference: Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 13.
    Departs: verl leaves out the floor of −1, which only responses longer than `max_length` would meet.
    """
    require_length("shape=overlong", "max_length", max_length)
    if cache is not None:
        require_between("shape=overlong", "cache", cache, 0)

    def apply(groups):
        limit = known_length("shape=overlong", "max_length", max_length)
        tail = limit / 5 if cache is None else cache
        reward = _signed(groups.outcome) if signed else groups.outcome
        return reward + overlong_penalty(groups.lengths, limit, tail)

    return Part(apply=apply)
