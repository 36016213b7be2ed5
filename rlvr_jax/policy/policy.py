"""The door of the room: a policy as pure functions over a plain nested dict of parameters.

Outside this room nobody can tell that flax exists: `jax.jit`, `jax.grad`, optax and Orbax see a dict

    {"embed": {"embedding": [V, D]}, "blocks": {…each leaf [L, …]}, "final_norm": {"scale": [D]}, ("head": …)}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from rlvr_jax.policy.decoding import CachedDecoder
from rlvr_jax.policy.transformer import Architecture


class Policy(NamedTuple):
    """Pure functions of one architecture; hashable, static under jit.

    - `init(key) → params`
    - `apply(params, tokens i32[B, S], positions i32[B, S], segments i32[B, S]) → hidden [B, S, D]`; see `visible`
    - `logits(params, hidden [..., D]) → f32[..., V]`
    - `prefill(params, tokens i32[P, N], mask bool[P, N]) → (hidden [P, D] at each last token, PromptCache)`
    - `init_cache(prompts P, group G, length T) → Cache`
    - `decode(params, tokens i32[P, G], index i32[], PromptCache, Cache) → (hidden [P, G, D], Cache)`: `tokens` is
      each completion's token number `index`
    - `for_decoding(params) → params` in the form that a decode loop reads fastest; call it once, outside the loop
    """

    architecture: Architecture
    init: Callable
    apply: Callable
    logits: Callable
    prefill: Callable
    init_cache: Callable
    decode: Callable
    for_decoding: Callable


def make_policy(architecture: Architecture) -> Policy:
    """The policy of an architecture; see `Policy` for its functions."""
    decoder = CachedDecoder(architecture)
    return Policy(architecture, *(getattr(decoder, name) for name in Policy._fields[1:]))
