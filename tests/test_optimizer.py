"""Schedules by hand, AdamW by a transcription, and which parameters it moves."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rlvr_jax.optimizer import KINDS, SCHEDULES, clip_by_global_norm, make_optimizer, make_schedule


@pytest.mark.parametrize(
    ("decay", "wanted"),
    [
        # warm-up of 3 from 1/4: 0.25, 0.5, 0.75; the peak at update 3; 0 at update 11, eight later
        ("constant", {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 10: 1.0, 100: 1.0}),
        ("linear", {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 5: 0.75, 7: 0.5, 11: 0.0, 100: 0.0}),
        # ½(1 + cos(π·2/8)) = 0.853553
        ("cosine", {0: 0.25, 1: 0.5, 2: 0.75, 3: 1.0, 5: 0.853553, 7: 0.5, 11: 0.0, 100: 0.0}),
    ],
)
def test_schedules(decay, wanted):
    schedule = make_schedule(2.0, 3, decay, 11)
    for update, share in wanted.items():
        assert float(schedule(update)) == pytest.approx(2.0 * share, abs=1e-6), update


@pytest.mark.parametrize("decay", SCHEDULES)
def test_no_warmup_starts_at_the_peak(decay):
    assert float(make_schedule(2.0, 0, decay, 10)(0)) == 2.0
    schedule = make_schedule(2.0, 10, decay, 5)  # fewer updates than the warm-up: never above the peak
    values = [float(schedule(n)) for n in range(12)]
    assert max(values) <= 2.0 and values[0] == pytest.approx(2 / 11)


def run(gradients, **options):
    optimizer = make_optimizer(total_updates=10, **options)
    params = {"policy": {"w": jnp.asarray([1.0, -2.0])}, "estimator": {"lambda": jnp.asarray(0.5)}}
    state = optimizer.init(params)
    for gradient in gradients:
        of = {"policy": {"w": jnp.asarray(gradient)}, "estimator": {"lambda": jnp.asarray(2.0)}}
        updates, state = optimizer.update(of, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params["policy"]["w"]), float(params["estimator"]["lambda"])


def adamw(gradients, rate, b1, b2, decay, clip_norm):
    """Loshchilov & Hutter 2019, algorithm 2, in float64."""
    w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    for n, g in enumerate(np.float64(gradients), 1):
        norm = np.sqrt((g**2).sum())
        if clip_norm and norm > clip_norm:
            g = g * clip_norm / norm
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        step = (m / (1 - b1**n)) / (np.sqrt(v / (1 - b2**n)) + 1e-8)
        w = w - rate * (step + decay * w)
    return w


@pytest.mark.parametrize("clip_norm", [0.0, 1.0, 100.0])
def test_adamw(clip_norm):
    gradients = [[3.0, -4.0], [0.1, 0.2], [-1.0, 5.0]]
    found, exponent = run(gradients, learning_rate=0.1, b1=0.8, b2=0.9, weight_decay=0.05, clip_norm=clip_norm)
    np.testing.assert_allclose(found, adamw(gradients, 0.1, 0.8, 0.9, 0.05, clip_norm), rtol=1e-5)
    # the estimator's own: plain descent, 0.5 − 3·0.1·2; neither clipped nor decayed
    assert exponent == pytest.approx(0.5 - 0.6, abs=1e-6)


def test_rates_of_policy_and_estimator_are_apart():
    policy, exponent = run([[3.0, -4.0]], learning_rate=0.0, estimator_learning_rate=0.25)
    assert policy.tolist() == [1.0, -2.0] and exponent == 0.0
    policy, exponent = run([[3.0, -4.0]], learning_rate=0.1, estimator_learning_rate=0.0)
    # the first step of Adam is the rate, in the direction against the gradient
    np.testing.assert_allclose(policy, [0.9, -1.9], atol=1e-6)
    assert exponent == 0.5


def test_an_estimator_without_parameters():
    optimizer = make_optimizer(learning_rate=0.1, total_updates=1)
    params = {"policy": {"w": jnp.ones(2)}, "estimator": {}}
    updates, _ = optimizer.update(params, optimizer.init(params), params)
    assert jax.tree.structure(updates) == jax.tree.structure(params)


@pytest.mark.parametrize("largest", [0.5, 5.0, 100.0])
def test_clipping_is_that_of_optax(largest):
    gradient = {"a": jnp.asarray([3.0, -4.0]), "b": jnp.asarray([[12.0]])}  # norm 13
    found, _ = clip_by_global_norm(largest).update(gradient, optax.EmptyState())
    wanted, _ = optax.clip_by_global_norm(largest).update(gradient, optax.EmptyState())
    for name in gradient:
        np.testing.assert_allclose(found[name], wanted[name], rtol=1e-6)
    zero, _ = clip_by_global_norm(largest).update({"a": jnp.zeros(2)}, optax.EmptyState())
    assert zero["a"].tolist() == [0.0, 0.0]


# --- what is remembered, and whether it still learns ---

SHAPES = {"stacked": (3, 128, 256), "norm": (128,)}


def moments_in_bytes(**options):
    params = {"policy": {name: jnp.ones(shape) for name, shape in SHAPES.items()}, "estimator": {}}
    state = jax.eval_shape(make_optimizer(learning_rate=0.1, total_updates=9, **options).init, params)
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state) if x.size > 1)


def test_what_a_kind_remembers():
    stacked, norm = 3 * 128 * 256, 128
    assert moments_in_bytes() == 8 * (stacked + norm)
    assert moments_in_bytes(moments_dtype="bfloat16") == 6 * (stacked + norm)  # the first moment alone
    assert moments_in_bytes(kind="sgd") == 0
    # rows and columns of each of three matrices; a vector's own second moment whole
    assert moments_in_bytes(kind="adafactor") == 4 * (3 * (128 + 256) + norm)


def descend(**options):
    """Least squares from w = 0: (how far w is from the answer, w) after 60 updates."""
    rng = np.random.default_rng(0)
    wanted, inputs = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((128, 128), (512, 128)))
    loss = lambda params: jnp.square(inputs @ (params["policy"]["w"] - wanted)).mean()
    optimizer = make_optimizer(learning_rate=0.05, total_updates=60, clip_norm=0.0, **options)

    @jax.jit
    def update(params, state):
        change, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, change), state

    params = {"policy": {"w": jnp.zeros((128, 128))}, "estimator": {}}
    state = optimizer.init(params)
    for _ in range(60):
        params, state = update(params, state)
    return float(jnp.sqrt(jnp.square(params["policy"]["w"] - wanted).mean())), params["policy"]["w"]


def test_small_moments_still_learn():
    plain, w = descend()
    assert plain < 0.1
    rounded, close = descend(moments_dtype="bfloat16")
    assert rounded < 0.1 and 0 < float(jnp.abs(close - w).max()) < 0.05
    factored, _ = descend(kind="adafactor")
    assert factored < 0.1


def test_decay_of_every_kind_that_has_one():
    """Without a gradient a parameter shrinks by rate · decay, whatever the kind."""
    for kind in ("adam", "adafactor"):
        optimizer = make_optimizer(learning_rate=0.1, total_updates=1, weight_decay=0.5, kind=kind)
        params = {"policy": {"w": jnp.full((2,), 4.0)}, "estimator": {}}
        change, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
        np.testing.assert_allclose(change["policy"]["w"], -0.1 * 0.5 * 4.0, rtol=1e-6)


def test_kinds_that_cannot_be_are_refused():
    make = lambda **options: make_optimizer(learning_rate=0.1, total_updates=1, **options)
    with pytest.raises(ValueError, match=r"optimizer.kind='lion': choose from \['adam', 'sgd', 'adafactor'\]"):
        make(kind="lion")
    with pytest.raises(ValueError, match="optimizer.moments_dtype='float16': choose from"):
        make(moments_dtype="float16")
    for kind in KINDS[1:]:
        with pytest.raises(ValueError, match=f"moments_dtype='bfloat16': kind='{kind}' keeps none"):
            make(kind=kind, moments_dtype="bfloat16")
