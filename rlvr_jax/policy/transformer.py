"""A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied or untied head.

The layers are written as `flax.nnx` modules; nothing outside this room sees them. What attention attends to is the
caller's business (`attend`), so that training rows, prefill and decode share every other line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

from rlvr_jax.types import Array

REMAT_POLICIES = ("none", "block", "dots")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a decoder and how it is to be run. Hashable: static under jit."""

    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    hidden: int  # of the feed-forward part
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5
    tied: bool = True  # the output head is the embedding: one parameter
    dtype: str = "float32"  # of activations and cache; parameters are float32
    scan_layers: bool = True  # one compiled block for all layers (small programs, quick compiles)
    remat: str = "none"  # what the backward pass recomputes: none, "block", or all but matrix products ("dots")

    def parameter_count(self) -> int:
        attention = self.width * self.head_size * (2 * self.heads + 2 * self.kv_heads)
        block = attention + 3 * self.width * self.hidden + 2 * self.width
        head = 0 if self.tied else self.vocabulary * self.width
        return self.vocabulary * self.width + head + self.layers * block + self.width


def rope_table(positions: Array, head_size: int, theta: float) -> tuple[Array, Array]:
    """cos and sin of position·θ^(−2i/K), each f32[..., 1, K/2], for positions i32[...]."""
    frequency = theta ** (-jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    angle = jnp.expand_dims(positions.astype(jnp.float32), (-2, -1)) * jnp.expand_dims(
        frequency, tuple(range(positions.ndim + 1))
    )
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, table: tuple[Array, Array]) -> Array:
    """Rotary position embedding of x[..., heads, K], the two halves of K as the pairs (Su et al. 2021, 2104.09864)."""
    cos, sin = table
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)


def _linear(shape: Architecture, inputs: int, outputs: int, rngs: nnx.Rngs, scale: float = 1.0) -> nnx.Linear:
    init = nnx.initializers.variance_scaling(scale, "fan_in", "truncated_normal")
    return nnx.Linear(inputs, outputs, use_bias=False, kernel_init=init, dtype=jnp.dtype(shape.dtype), rngs=rngs)


def _norm(shape: Architecture, rngs: nnx.Rngs) -> nnx.RMSNorm:
    return nnx.RMSNorm(shape.width, epsilon=shape.norm_epsilon, dtype=jnp.dtype(shape.dtype), rngs=rngs)


class Attention(nnx.Module):
    """Projections around an attention that the caller supplies."""

    def __init__(self, shape: Architecture, rngs: nnx.Rngs):
        inner = shape.heads * shape.head_size
        self.head_size = shape.head_size
        self.norm = _norm(shape, rngs)
        self.query = _linear(shape, shape.width, inner, rngs)
        self.key = _linear(shape, shape.width, shape.kv_heads * shape.head_size, rngs)
        self.value = _linear(shape, shape.width, shape.kv_heads * shape.head_size, rngs)
        self.output = _linear(shape, inner, shape.width, rngs, scale=1 / (2 * shape.layers))

    def __call__(self, x: Array, rope: tuple[Array, Array], attend: Callable):
        normed = self.norm(x)
        heads = lambda projected: projected.reshape(*projected.shape[:-1], -1, self.head_size)
        query, key, value = heads(self.query(normed)), heads(self.key(normed)), heads(self.value(normed))
        query, key = rotate(query, rope), rotate(key, rope)
        attended = attend(query, key, value).astype(x.dtype)
        return self.output(attended.reshape(*x.shape[:-1], -1)), (key, value)


class FeedForward(nnx.Module):
    """down(silu(gate(x))·up(x)) (Shazeer 2020, 2002.05202)."""

    def __init__(self, shape: Architecture, rngs: nnx.Rngs):
        self.norm = _norm(shape, rngs)
        self.gate = _linear(shape, shape.width, shape.hidden, rngs)
        self.up = _linear(shape, shape.width, shape.hidden, rngs)
        self.down = _linear(shape, shape.hidden, shape.width, rngs, scale=1 / (2 * shape.layers))

    def __call__(self, x: Array) -> Array:
        normed = self.norm(x)
        return self.down(jax.nn.silu(self.gate(normed)) * self.up(normed))


class Block(nnx.Module):
    """One layer, pre-norm. Returns the new stream and this layer's keys and values."""

    def __init__(self, shape: Architecture, rngs: nnx.Rngs):
        self.attention = Attention(shape, rngs)
        self.mlp = FeedForward(shape, rngs)

    def __call__(self, x: Array, rope: tuple[Array, Array], attend: Callable):
        attended, kv = self.attention(x, rope, attend)
        x = x + attended
        return x + self.mlp(x), kv


class Embedding(nnx.Module):
    """Token vectors, and the head when it is tied to them."""

    def __init__(self, shape: Architecture, rngs: nnx.Rngs):
        init = nnx.initializers.normal(shape.width**-0.5)
        self.embedding = nnx.Param(init(rngs.params(), (shape.vocabulary, shape.width), jnp.float32))


class Edges(nnx.Module):
    """Everything of the decoder that is not a layer: embedding, final norm, and an untied head."""

    def __init__(self, shape: Architecture, rngs: nnx.Rngs):
        self.embed = Embedding(shape, rngs)
        self.final_norm = _norm(shape, rngs)
        if not shape.tied:
            self.head = _linear(shape, shape.width, shape.vocabulary, rngs)
