"""Rotary positions: the angle of each pair of a head's numbers, plain or stretched to longer contexts.

A checkpoint says which kind it was trained with; `RopeScaling` holds what that kind needs, `rope_scaling_from` reads
it out of a config's dictionary and refuses what is not here. Reference: Su et al. 2021, 2104.09864.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import jax.numpy as jnp
import numpy as np

from rlvr_jax.types import Array

ROPE_KINDS = ("default", "linear", "llama3", "yarn")
_REQUIRED = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_OPTIONAL = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
_LENGTH = "original_max_position_embeddings"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How the frequencies θ^(−2i/K) are slowed, and rounded. Hashable.

    - default: not at all.
    - linear: all divided by `factor` (Chen et al. 2023, 2306.15595).
    - llama3: wavelengths above original_length/low_frequency divided by `factor`, those below
      original_length/high_frequency kept, a ramp between them (Llama Team 2024, 2407.21783, and its released code).
    - yarn: pairs that turn more than `beta_fast` times in `original_length` kept, fewer than `beta_slow` times divided
      by `factor`, a ramp over the pairs between them, and cos and sin times `attention_factor`, 0.1·ln(factor) + 1
      where the checkpoint does not say (Peng et al. 2023, 2309.00071).

    Each gives the float32 numbers that transformers computes, which checkpoints were trained with: at position 3000 the
    last bit of a frequency is 10⁻⁴ radians. Without a RopeScaling (None) frequencies are plain, in XLA's roundings.
    """

    kind: str
    factor: float = 1.0
    original_length: int = 0  # positions before stretching; of llama3 and yarn
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True  # yarn's ramp begins and ends at whole pairs


PLAIN = RopeScaling(kind="default")


def _number(where: str, key: str, value, low: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= low:
        raise ValueError(f"{where}: {key}={value!r} must be a number above {low:g}")
    return float(value)


def _magnitude(factor: float, weight: float = 1.0) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def rope_scaling_from(settings: Mapping, context_length: int, where: str) -> RopeScaling:
    """The scaling that a config's `rope_scaling` or `rope_parameters` asks for.

    Args:
      settings: keys as transformers writes them ("rope_type" or "type", "factor", …); "rope_theta" is not read here.
      context_length: stands in where llama3 or yarn leave their original length out.
      where: file and key, for errors.

    Raises:
      ValueError: another kind, a key that the kind does not have, or a value that is no positive number.
    """
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind not in ROPE_KINDS:
        raise ValueError(f"{where}: rope_type={kind!r} is not supported; choose from {list(ROPE_KINDS)}")
    known = {"rope_type", "type", "rope_theta", *_REQUIRED[kind], *_OPTIONAL.get(kind, ())}
    known |= {_LENGTH} if kind in ("llama3", "yarn") else set()
    given = {key: value for key, value in settings.items() if value is not None}
    if given.get("partial_rotary_factor") == 1:
        del given["partial_rotary_factor"]
    if odd := sorted(set(given) - known):
        raise ValueError(
            f"{where}: {odd[0]}={given[odd[0]]!r} is not supported with rope_type={kind!r}; it takes {sorted(known)}"
        )
    if missing := [key for key in _REQUIRED[kind] if key not in given]:
        raise ValueError(f"{where}: rope_type={kind!r} needs {missing}")
    if kind == "default":
        return PLAIN
    number = lambda key, default=None: _number(where, key, given.get(key, default))
    factor = number("factor")
    if kind == "linear":
        return RopeScaling(kind=kind, factor=factor)
    length = number(_LENGTH, context_length)
    if length != int(length):
        raise ValueError(f"{where}: {_LENGTH}={length!r} must be a whole number")
    if kind == "llama3":
        low, high = number("low_freq_factor"), number("high_freq_factor")
        if low >= high:
            raise ValueError(f"{where}: low_freq_factor={low:g} must be below high_freq_factor={high:g}")
        return RopeScaling(
            kind=kind, factor=factor, original_length=int(length), low_frequency=low, high_frequency=high
        )
    weights = [given.get(key) for key in ("mscale", "mscale_all_dim")]
    inferred = _magnitude(factor)
    if all(weights):
        inferred = _magnitude(factor, number("mscale")) / _magnitude(factor, number("mscale_all_dim"))
    # 0 means "the usual", as for transformers
    beta = lambda key, default: _number(where, key, given.get(key) or default)
    truncate = given.get("truncate", True)
    if not isinstance(truncate, bool):
        raise ValueError(f"{where}: truncate={truncate!r} must be true or false")
    return RopeScaling(
        kind=kind,
        factor=factor,
        original_length=int(length),
        beta_fast=beta("beta_fast", 32.0),
        beta_slow=beta("beta_slow", 1.0),
        attention_factor=number("attention_factor", inferred),
        truncate=truncate,
    )


def rope_settings(scaling: RopeScaling | None) -> dict:
    """The dictionary that `rope_scaling_from` reads back as `scaling`."""
    if scaling is None or scaling.kind == "default":
        return {"rope_type": "default"}
    settings = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        settings |= {"low_freq_factor": scaling.low_frequency, "high_freq_factor": scaling.high_frequency}
    if scaling.kind == "yarn":
        settings |= {name: getattr(scaling, name) for name in ("attention_factor", "beta_fast", "beta_slow")}
        settings |= {} if scaling.truncate else {"truncate": False}
    return settings if scaling.kind == "linear" else {**settings, _LENGTH: scaling.original_length}


def frequencies(head_size: int, theta: float, scaling: RopeScaling) -> np.ndarray:
    """f32[K/2]: radians a position turns each pair, slowed by `scaling`; in the order and the roundings of the
    formulas of transformers."""
    one = np.float32(1.0)
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    periods = (theta ** np.float64(exponents)).astype(np.float32)  # the power itself rounds once, as torch's does
    plain, factor = one / periods, np.float32(scaling.factor)
    if scaling.kind == "default":
        return plain
    if scaling.kind == "linear":
        return plain / factor
    if scaling.kind == "llama3":
        turns = one / (one / plain * np.float32(2 * math.pi)) * np.float32(scaling.original_length)
        low, high = np.float32(scaling.low_frequency), np.float32(scaling.high_frequency)
        keep = np.clip((turns - low) / (high - low), 0, 1, dtype=np.float32)
        return (one - keep) * plain / factor + keep * plain
    # the pair, counted in fractions, that turns so many times in the original length
    pair = lambda turns: head_size * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(theta))
    low, high = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    high = high + 0.001 if low == high else high
    ramp = (np.arange(head_size // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low)
    keep = one - np.clip(ramp, 0, 1, dtype=np.float32)
    return one / (factor * periods) * (one - keep) + plain * keep


def rope_table(
    positions: Array, head_size: int, theta: float, scaling: RopeScaling | None = None
) -> tuple[Array, Array]:
    """cos and sin of position·θ^(−2i/K), each f32[..., 1, K/2], for positions i32[...]; slowed by `scaling`."""
    if scaling is None:
        frequency = theta ** (-jnp.arange(0, head_size, 2, dtype=jnp.float32) / head_size)
    else:
        frequency = jnp.asarray(frequencies(head_size, theta, scaling))
    angle = jnp.expand_dims(positions.astype(jnp.float32), (-2, -1)) * jnp.expand_dims(
        frequency, tuple(range(positions.ndim + 1))
    )
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if scaling is None or scaling.attention_factor == 1.0:
        return cos, sin
    return cos * scaling.attention_factor, sin * scaling.attention_factor


def rotate(x: Array, table: tuple[Array, Array]) -> Array:
    """Rotary position embedding of x[..., heads, K], the two halves of K as the pairs (Su et al. 2021, 2104.09864)."""
    cos, sin = table
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(x.dtype)
