"""Metrics as (sum, count): micro-batches, devices, hosts and seeds merge without means of means."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import jax
import jax.numpy as jnp

from rlvr_jax.masked import masked_count, masked_max, masked_min, masked_sum
from rlvr_jax.types import Array


def _metric(cls):
    cls = dataclasses.dataclass(frozen=True)(cls)
    names = [field.name for field in dataclasses.fields(cls)]
    return jax.tree_util.register_dataclass(cls, data_fields=names, meta_fields=[])


@_metric
class Mean:
    """A mean that can still be merged: Σ values and how many there were, both f32[]."""

    sum: Array
    count: Array

    @classmethod
    def of(cls, values: Array, mask: Array | None = None) -> Mean:
        """The mean of `values` where `mask` (everywhere when None)."""
        values = jnp.asarray(values)
        mask = jnp.ones(values.shape, bool) if mask is None else jnp.broadcast_to(mask, values.shape)
        return cls(masked_sum(values, mask), masked_count(mask))

    def merge(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)

    def compute(self) -> float:
        """The mean as a float; NaN when nothing was counted."""
        count = float(self.count)
        return float(self.sum) / count if count else float("nan")


@_metric
class Max:
    """A maximum; −inf when nothing was seen."""

    value: Array

    @classmethod
    def of(cls, values: Array, mask: Array | None = None) -> Max:
        values = jnp.asarray(values, jnp.float32)
        return cls(masked_max(values, jnp.ones(values.shape, bool) if mask is None else mask))

    def merge(self, other: Max) -> Max:
        return Max(jnp.maximum(self.value, other.value))

    def compute(self) -> float:
        return float(self.value)


@_metric
class Min:
    """A minimum; +inf when nothing was seen."""

    value: Array

    @classmethod
    def of(cls, values: Array, mask: Array | None = None) -> Min:
        values = jnp.asarray(values, jnp.float32)
        return cls(masked_min(values, jnp.ones(values.shape, bool) if mask is None else mask))

    def merge(self, other: Min) -> Min:
        return Min(jnp.minimum(self.value, other.value))

    def compute(self) -> float:
        return float(self.value)


Metric = Mean | Max | Min
Metrics = Mapping[str, Metric]


def merge(first: Metrics, second: Metrics) -> dict[str, Metric]:
    """Both sets of metrics as one; a name in both is merged by its own rule."""
    merged = dict(first)
    for name, metric in second.items():
        merged[name] = merged[name].merge(metric) if name in merged else metric
    return merged


def reduce_stacked(metrics: Metrics) -> dict[str, Metric]:
    """Metrics whose leaves carry a leading axis (from `lax.scan`), merged over it."""
    over = {
        Mean: lambda m: Mean(m.sum.sum(0), m.count.sum(0)),
        Max: lambda m: Max(m.value.max(0)),
        Min: lambda m: Min(m.value.min(0)),
    }
    return {name: over[type(metric)](metric) for name, metric in metrics.items()}


def compute(metrics: Metrics, prefix: str = "") -> dict[str, float]:
    """Names to floats, after one explicit fetch from the device."""
    fetched = jax.device_get(dict(metrics))
    return {prefix + name: metric.compute() for name, metric in fetched.items()}


def neutral(shapes: Metrics) -> dict[str, Metric]:
    """Metrics that change nothing when merged, of the structure of `shapes` (from `jax.eval_shape`)."""
    empty = {
        Mean: lambda: Mean(jnp.zeros(()), jnp.zeros(())),
        Max: lambda: Max(jnp.full((), -jnp.inf)),
        Min: lambda: Min(jnp.full((), jnp.inf)),
    }
    return {name: empty[type(metric)]() for name, metric in shapes.items()}
