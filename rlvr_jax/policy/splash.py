"""Attention on TPU without the scores in memory: the splash kernel that comes with jax (Dao et al. 2022, 2205.14135).

What it can express exactly of `attention.visible` are rows of one segment with padding: a query sees earlier keys of
its own segment number. Rows that several completions share are not of that kind (completions see the prompt, whose
number is another), nor are layers of several kinds in one scan, whose window is not known when the kernel is made:
both stay with the plain path. Outputs at padding differ from the plain path's, and are read by nobody.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from rlvr_jax.types import Array

BLOCK = 512  # queries, and keys, of a tile; rows are padded to a multiple of LANES
LANES = 128


@functools.cache
def _kernel(heads: int, length: int, window: int, softcap: float, interpret: bool):
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    size = (length, length)
    # position differences are differences of places, since the real tokens of a row of one segment are adjacent
    one = splash.LocalMask(size, (window - 1, 0), 0) if window else splash.CausalMask(size)
    block = max(n for n in range(LANES, min(BLOCK, length) + 1, LANES) if length % n == 0)
    sides = ("block_q", "block_kv", "block_kv_compute", "block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute")
    blocks = splash.BlockSizes(**dict.fromkeys((*sides, "block_q_dq", "block_kv_dq"), block))
    with jax.ensure_compile_time_eval():
        return splash.make_splash_mha(
            splash.MultiHeadMask([one] * heads),
            block_sizes=blocks,
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=softcap or None,
            interpret=interpret,
        )


def attend_splash(segments: Array, window: int = 0, softcap: float = 0.0, interpret: bool = False):
    """`attend_row` by the kernel, for rows of `segments` i32[B, S] that are 1 where real and 0 where padded, the real
    tokens adjacent. Scores and their softmax are float32; none of them is written to memory.

    `interpret` runs the kernel's arithmetic without a TPU.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash

    length = segments.shape[1]
    whole = -(-length // LANES) * LANES
    pad = whole - length
    padded = jnp.pad(segments, ((0, 0), (0, pad)))

    def attend(query, key, value):
        kernel = _kernel(query.shape[2], whole, window, softcap, interpret)
        # [B, S, H, K] → [B, H, S, K], padded at the end, where nothing real looks
        lead = lambda x: jnp.pad(jnp.swapaxes(x, 1, 2), ((0, 0), (0, 0), (0, pad), (0, 0)))
        run = jax.vmap(lambda q, k, v, s: kernel(q, k, v, splash.SegmentIds(s, s)))
        attended = run(lead(query * query.shape[-1] ** -0.5), lead(key), lead(value), padded)
        return jnp.swapaxes(attended, 1, 2)[:, :length].astype(value.dtype)

    return attend
