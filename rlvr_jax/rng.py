"""Random keys are derived, never stored: a resumed run draws what the uninterrupted one would have drawn."""

from __future__ import annotations

import zlib

import jax

from rlvr_jax.types import Array


def key_for(seed: int | Array, step: int | Array, purpose: str) -> Array:
    """The key of one purpose in one step: seed, then step, then crc32(purpose), each folded in."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def row_keys(key: Array, row_ids: Array) -> Array:
    """One key per row from the row's own id: a row's draw does not depend on its neighbours, on the order of the
    batch, or on the number of devices. `row_ids` i32[...] → keys[...]."""
    fold = lambda row_id: jax.random.fold_in(key, row_id)
    for _ in range(row_ids.ndim):
        fold = jax.vmap(fold)
    return fold(row_ids)
