"""The optax chain of a run: one optimiser for the policy, one for what an estimator learns."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax

SCHEDULES = ("constant", "linear", "cosine")
KINDS = ("adam", "sgd", "adafactor")
MOMENTS = ("float32", "bfloat16")


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


def clip_by_global_norm(largest: float) -> optax.GradientTransformation:
    """The gradient scaled so that its global norm is at most `largest` (Pascanu et al. 2012, 1211.5063). One factor for
    all, so that the compiler puts the product into the update of the moments; the division by the norm of optax's own
    is kept as a second gradient in memory."""

    def update(gradient, state, params=None):
        norm = optax.global_norm(gradient)
        factor = jnp.where(norm < largest, 1.0, largest / norm)
        return jax.tree.map(lambda x: x * factor.astype(x.dtype), gradient), state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


def make_policy_optimizer(
    kind: str,
    learning_rate: optax.ScalarOrSchedule,
    b1: float = 0.9,
    b2: float = 0.95,
    weight_decay: float = 0.0,
    moments_dtype: str = "float32",
) -> optax.GradientTransformation:
    """The rule of one `kind`, and what it remembers for a parameter:

    - "adam": AdamW (Loshchilov & Hutter 2019, 1711.05101), both moments, 8 bytes; with `moments_dtype` "bfloat16" 6:
      the first moment is rounded, the second is not, of whose changes of 1 − b2 a share would be lost below 2⁻⁸.
    - "sgd": the gradient itself; remembers nothing and knows no decay.
    - "adafactor" (Shazeer & Stern 2018, 1804.04235): a second moment by rows and columns of each matrix (of at least
      128 × 128, else whole), no first one: some 0.01 bytes. Steps are of the root mean square `learning_rate` at most,
      so that rates of Adam carry over; they are not relative to the parameters, and the decay is that of AdamW.

    Raises:
      ValueError: an unknown kind, or moments of a dtype that the kind does not have.
    """
    if kind not in KINDS:
        raise ValueError(f"optimizer.kind={kind!r}: choose from {list(KINDS)}")
    if moments_dtype not in (MOMENTS if kind == "adam" else MOMENTS[:1]):
        only = f"choose from {list(MOMENTS)}" if kind == "adam" else f"kind={kind!r} keeps none but float32"
        raise ValueError(f"optimizer.moments_dtype={moments_dtype!r}: {only}")
    if kind == "sgd":
        return optax.sgd(learning_rate)
    if kind == "adafactor":
        return optax.chain(
            optax.scale_by_factored_rms(),
            optax.clip_by_block_rms(1.0),
            optax.add_decayed_weights(weight_decay),
            optax.scale_by_learning_rate(learning_rate),
        )
    return optax.adamw(learning_rate, b1=b1, b2=b2, weight_decay=weight_decay, mu_dtype=moments_dtype)


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
    kind: str = "adam",
    moments_dtype: str = "float32",
) -> optax.GradientTransformation:
    """`make_policy_optimizer`'s rule on `params["policy"]` after clipping its gradient to the global norm `clip_norm`
    (0: no clipping); plain SGD with `estimator_learning_rate` on `params["estimator"]`, where an estimator has
    parameters of its own (λ-GRPO)."""
    schedule = make_schedule(learning_rate, warmup, decay, total_updates)
    policy = make_policy_optimizer(kind, schedule, b1, b2, weight_decay, moments_dtype)
    if clip_norm:
        policy = optax.chain(clip_by_global_norm(clip_norm), policy)
    groups = {"policy": policy, "estimator": optax.sgd(estimator_learning_rate)}
    return optax.partition(groups, lambda params: {name: name for name in params})
