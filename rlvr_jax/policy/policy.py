"""The door of the room: a policy as pure functions over a plain nested dict of parameters.

Outside this room nobody can tell that flax exists: `jax.jit`, `jax.grad`, optax and Orbax see a dict

    {"embed": {"embedding": [V, D]}, "blocks": {…each leaf [L, …]}, "final_norm": {"scale": [D]}, ("head": …)}
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rlvr_jax.policy.decoding import CachedDecoder
from rlvr_jax.policy.transformer import Architecture
from rlvr_jax.types import PyTree


def _everything(params: PyTree) -> PyTree:
    return params


def _all_replaced(params: PyTree, trained: PyTree) -> PyTree:
    return trained


class Policy(NamedTuple):
    """Pure functions of one architecture; hashable, static under jit.

    - `init(key) → params`
    - `apply(params, tokens i32[B, S], positions i32[B, S], segments i32[B, S]) → hidden [B, S, D]`; see `visible`.
      `completions=(R, W)` says that every row ends with R completions of W places each, which saves the attention
      between them and changes nothing else
    - `logits(params, hidden [..., D]) → f32[..., V]`
    - `prefill(params, tokens i32[P, N], mask bool[P, N]) → (hidden [P, D] at each last token, PromptCache)`
    - `init_cache(prompts P, group G, length T) → Cache`
    - `decode(params, tokens i32[P, G], index, PromptCache, Cache) → (hidden [P, G, D], Cache)`: `tokens` is each
      completion's token number `index`, i32[], or i32[P, 1] where each row has a prompt of its own (after `gather`)
    - `for_decoding(params) → params` in the form that a decode loop reads fastest; call it once, outside the loop
    - `gather(PromptCache, Cache, rows i32[R]) → (PromptCache, Cache)` of these rows alone, each with its own prompt
    - `refill(PromptCache of prompts, which i32[R], fresh bool[R], PromptCache, Cache) → (PromptCache, Cache)`: rows of
      `gather` begun anew where `fresh`
    - `trainable(params) → the part of it that is trained`; all of it, unless the policy says otherwise
    - `with_trainable(params, that part) → params`
    """

    architecture: Architecture
    init: Callable
    apply: Callable
    logits: Callable
    prefill: Callable
    init_cache: Callable
    decode: Callable
    for_decoding: Callable
    gather: Callable | None = None
    refill: Callable | None = None
    trainable: Callable = _everything
    with_trainable: Callable = _all_replaced


def to_policy(architecture: Any, functions: Any) -> Policy:
    """The policy whose functions are the methods of one object; those with a default may be missing."""
    names = [name for name in Policy._fields[1:] if hasattr(functions, name) or name not in Policy._field_defaults]
    return Policy(architecture, **{name: getattr(functions, name) for name in names})


def make_policy(architecture: Architecture, gather_layer: Callable | None = None) -> Policy:
    """The policy of an architecture; see `Policy` for its functions. Where a device holds a part of each parameter,
    `gather_layer(block) → block` makes one layer's whole for `apply` (see `sharding.make_spread`)."""
    return to_policy(architecture, CachedDecoder(architecture, gather_layer))
