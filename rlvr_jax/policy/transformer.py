"""A decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, a gated feed-forward part, tied or
untied head. Llama, Qwen and Gemma are one decoder: what tells them apart are fields of `Architecture`.

The layers are written as `flax.nnx` modules; nothing outside this room sees them. What attention attends to is the
caller's business (`attend`), so that training rows, prefill and decode share every other line.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from rlvr_jax.policy.rope import PLAIN, RopeScaling, rope_table, rotate
from rlvr_jax.types import Array

__all__ = ["ACTIVATIONS", "REMAT_POLICIES", "Architecture", "Block", "Edges", "LayerKind", "rope_table", "rotate"]

ATTENTIONS = ("plain", "splash")
REMAT_POLICIES = ("none", "block", "dots")
ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True)}


class LayerKind(NamedTuple):
    """What some layers do differently from others."""

    window: int  # a key is seen when query position − key position < window; 0: all earlier keys
    rope_theta: float
    rope_scaling: RopeScaling | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a decoder, what tells its family apart, and how it is to be run. Hashable: static under jit."""

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
    rope_scaling: RopeScaling | None = None  # of layers without a window, and of all where window_rope_theta is 0
    window_rope_theta: float = 0.0  # layers with a window turn by this one, unscaled; 0: as all layers
    windows: tuple[int, ...] = ()  # for each layer how far back a key may be, in positions (0: any); (): no windows
    qkv_bias: bool = False  # biases of query, key and value
    qk_norm: bool = False  # an RMSNorm of each head's query and key, before they are turned
    post_norms: bool = False  # an RMSNorm of what attention and the feed-forward part add, too
    norm_offset: float = 0.0  # norms multiply by offset + scale: 1 where checkpoints keep scale − 1
    activation: str = "silu"  # of the gate; a key of ACTIVATIONS
    embedding_scale: float = 1.0  # token vectors are multiplied by it (in `dtype`) where they enter
    query_scale: float = 0.0  # what query·key is multiplied by; 0: 1/√head_size
    attention_softcap: float = 0.0  # c: scores become c·tanh(score / c); 0: they stay
    logit_softcap: float = 0.0  # the same for logits
    context_length: int = 0  # positions the checkpoint was made for (0: not known); told, not enforced
    dtype: str = "float32"  # of activations and cache; parameters are float32
    attention: str = "plain"  # of whole rows; "splash": by the TPU's kernel where it can express it (policy/splash.py)
    scan_layers: bool = True  # one compiled block for all layers (small programs, quick compiles)
    remat: str = "none"  # what the backward pass recomputes: none, "block", or all but matrix products ("dots")

    def __post_init__(self):
        if self.windows and (len(self.windows) != self.layers or min(self.windows) < 0):
            raise ValueError(f"windows={self.windows}: give one number ≥ 0 for each of the {self.layers} layers")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"attention={self.attention!r}; choose from {list(ATTENTIONS)}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r}; choose from {list(ACTIVATIONS)}")

    def layer_kinds(self) -> tuple[tuple[LayerKind, ...], tuple[int, ...]]:
        """(the kinds of layers there are, for each layer the number of its kind)."""
        everywhere = (self.rope_theta, self.rope_scaling)
        windowed = (self.window_rope_theta, self.rope_scaling and PLAIN) if self.window_rope_theta else everywhere
        kinds = [
            LayerKind(window, *(windowed if window else everywhere)) for window in self.windows or (0,) * self.layers
        ]
        distinct = tuple(dict.fromkeys(kinds))
        return distinct, tuple(distinct.index(kind) for kind in kinds)

    def parameter_count(self) -> int:
        inner, outer = self.heads * self.head_size, self.kv_heads * self.head_size
        block = 2 * self.width * (inner + outer) + 3 * self.width * self.hidden
        block += 2 * self.width * (2 if self.post_norms else 1)
        block += (inner + 2 * outer if self.qkv_bias else 0) + (2 * self.head_size if self.qk_norm else 0)
        head = 0 if self.tied else self.vocabulary * self.width
        return self.vocabulary * self.width + head + self.layers * block + self.width


PRODUCT = "product"  # name of what linear layers give, for a policy of jax.checkpoint


@jax.custom_vjp
def _product(x: Array, kernel: Array) -> Array:
    """x [..., N] · kernel [N, M]. Its gradient to the kernel turns the narrower of its two factors, where the plain
    one turns [..., M] whatever is wide: on CPUs that copy, fused with what made the factor, cost a seventh of an
    update."""
    return jax.lax.dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())))


def _product_backward(kept, slope: Array):
    x, kernel = kept
    rows = tuple(range(x.ndim - 1))
    to_x = jax.lax.dot_general(slope, kernel, (((slope.ndim - 1,), (1,)), ((), ())))
    over_rows = lambda a, b: jax.lax.dot_general(a, b, ((rows, rows), ((), ())))
    narrow = x.shape[-1] <= slope.shape[-1]
    return to_x, over_rows(x, slope) if narrow else over_rows(slope, x).T


_product.defvjp(lambda x, kernel: (_product(x, kernel), (x, kernel)), _product_backward)


def product(x: Array, kernel: Array, dimensions, **options) -> Array:
    """`jax.lax.dot_general` as a linear layer calls it, by `_product`; named, because a policy of jax.checkpoint sees
    no product inside of it."""
    return checkpoint_name(_product(x, kernel), PRODUCT)


def _linear(
    shape: Architecture, inputs: int, outputs: int, rngs: nnx.Rngs, scale: float = 1.0, bias: bool = False
) -> nnx.Linear:
    init = nnx.initializers.variance_scaling(scale, "fan_in", "truncated_normal")
    options = {"use_bias": bias, "kernel_init": init, "dot_general": product}
    return nnx.Linear(inputs, outputs, dtype=jnp.dtype(shape.dtype), rngs=rngs, **options)


class OffsetNorm(nnx.Module):
    """x/rms(x)·(offset + scale) in float32, the checkpoint's own `scale` as the parameter (Gemma keeps scale − 1)."""

    def __init__(self, size: int, shape: Architecture):
        self.offset, self.epsilon, self.dtype = shape.norm_offset, shape.norm_epsilon, jnp.dtype(shape.dtype)
        self.scale = nnx.Param(jnp.full((size,), 1 - shape.norm_offset, jnp.float32))

    def __call__(self, x: Array) -> Array:
        x = x.astype(jnp.float32)
        factor = jax.lax.rsqrt(jnp.square(x).mean(axis=-1, keepdims=True) + self.epsilon)
        scale = self.offset + self.scale[...].reshape((1,) * (x.ndim - 1) + (-1,))
        return (x * factor * scale).astype(self.dtype)


def _norm(shape: Architecture, rngs: nnx.Rngs, size: int = 0) -> nnx.Module:
    if shape.norm_offset:
        return OffsetNorm(size or shape.width, shape)
    return nnx.RMSNorm(size or shape.width, epsilon=shape.norm_epsilon, dtype=jnp.dtype(shape.dtype), rngs=rngs)


class Attention(nnx.Module):
    """Projections around an attention that the caller supplies, which divides scores by √head_size."""

    def __init__(self, shape: Architecture, rngs: nnx.Rngs):
        inner = shape.heads * shape.head_size
        self.head_size = shape.head_size
        self.query_factor = shape.query_scale * shape.head_size**0.5 if shape.query_scale else 1.0
        self.norm = _norm(shape, rngs)
        self.query = _linear(shape, shape.width, inner, rngs, bias=shape.qkv_bias)
        self.key = _linear(shape, shape.width, shape.kv_heads * shape.head_size, rngs, bias=shape.qkv_bias)
        self.value = _linear(shape, shape.width, shape.kv_heads * shape.head_size, rngs, bias=shape.qkv_bias)
        self.output = _linear(shape, inner, shape.width, rngs, scale=1 / (2 * shape.layers))
        if shape.qk_norm:
            self.query_norm = _norm(shape, rngs, shape.head_size)
            self.key_norm = _norm(shape, rngs, shape.head_size)
        if shape.post_norms:
            self.post_norm = _norm(shape, rngs)

    def __call__(self, x: Array, rope: tuple[Array, Array], attend: Callable):
        normed = self.norm(x)
        heads = lambda projected: projected.reshape(*projected.shape[:-1], -1, self.head_size)
        query, key, value = heads(self.query(normed)), heads(self.key(normed)), heads(self.value(normed))
        if hasattr(self, "query_norm"):
            query, key = self.query_norm(query), self.key_norm(key)
        # another scale of the scores enters with the turn, which is computed in float32
        query_rope = rope if self.query_factor == 1.0 else tuple(part * self.query_factor for part in rope)
        query, key = rotate(query, query_rope), rotate(key, rope)
        attended = attend(query, key, value).astype(x.dtype)
        added = self.output(attended.reshape(*x.shape[:-1], -1))
        return self.post_norm(added) if hasattr(self, "post_norm") else added, (key, value)


class FeedForward(nnx.Module):
    """down(activation(gate(x))·up(x)) (Shazeer 2020, 2002.05202)."""

    def __init__(self, shape: Architecture, rngs: nnx.Rngs):
        self.activation = shape.activation
        self.norm = _norm(shape, rngs)
        self.gate = _linear(shape, shape.width, shape.hidden, rngs)
        self.up = _linear(shape, shape.width, shape.hidden, rngs)
        self.down = _linear(shape, shape.hidden, shape.width, rngs, scale=1 / (2 * shape.layers))
        if shape.post_norms:
            self.post_norm = _norm(shape, rngs)

    def __call__(self, x: Array) -> Array:
        normed = self.norm(x)
        added = self.down(ACTIVATIONS[self.activation](self.gate(normed)) * self.up(normed))
        return self.post_norm(added) if hasattr(self, "post_norm") else added


class Block(nnx.Module):
    """One layer. Returns the new stream and this layer's keys and values."""

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
