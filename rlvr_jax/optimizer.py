"""The optax chain of a run: one optimiser for the policy, one for what an estimator learns."""

from __future__ import annotations

import optax

SCHEDULES = ("constant", "linear", "cosine")


def make_schedule(peak: float, warmup: int, decay: str, total: int) -> optax.Schedule:
    """Learning rate by optimiser update: linear from peak/(warmup+1) over `warmup` updates, then constant, or
    linear or cosine to 0 at `total`."""
    after = {
        "constant": lambda: optax.constant_schedule(peak),
        "linear": lambda: optax.linear_schedule(peak, 0.0, max(total - warmup, 1)),
        "cosine": lambda: optax.cosine_decay_schedule(peak, max(total - warmup, 1)),
    }[decay]()
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(peak / (warmup + 1), peak, warmup), after], [warmup])


def make_policy_optimizer(
    kind: str, learning_rate: optax.ScalarOrSchedule, b1: float = 0.9, b2: float = 0.95, weight_decay: float = 0.0
) -> optax.GradientTransformation:
    """`kind`: "adam" is AdamW (Loshchilov & Hutter 2019, 1711.05101), "sgd" the gradient itself."""
    if kind == "sgd":
        return optax.sgd(learning_rate)
    return optax.adamw(learning_rate, b1=b1, b2=b2, weight_decay=weight_decay)


def make_optimizer(
    *,
    learning_rate: float,
    total_updates: int,
    warmup: int = 0,
    decay: str = "constant",
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: float = 0.0,
    clip_norm: float = 1.0,
    estimator_learning_rate: float = 0.1,
) -> optax.GradientTransformation:
    """AdamW on `params["policy"]` after clipping its gradient to the global
    norm `clip_norm` (0: no clipping); plain SGD with `estimator_learning_rate` on `params["estimator"]`, where an
    estimator has parameters of its own (λ-GRPO)."""
    schedule = make_schedule(learning_rate, warmup, decay, total_updates)
    policy = make_policy_optimizer("adam", schedule, b1, b2, weight_decay)
    if clip_norm:
        policy = optax.chain(optax.clip_by_global_norm(clip_norm), policy)
    groups = {"policy": policy, "estimator": optax.sgd(estimator_learning_rate)}
    return optax.partition(groups, lambda params: {name: name for name in params})
