"""One optimiser update: the same however its rows are cut, ordered or packed, and the gradient of what it says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from rlvr_jax.estimators import make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import make_logprobs, needed_row_slots
from rlvr_jax.types import TrainState
from rlvr_jax.update import make_update, minibatches

pytestmark = pytest.mark.usefixtures("quick_compiles")
SIZES = {"layers": 1}
ROWS, GROUP = 16, 4
# parameters after a step of plain descent with rate 1 are the old ones minus the gradient
DESCENT = optax.sgd(1.0)


@functools.cache
def updater(name="grpo", optimizer=DESCENT, slots=(), **options):
    policy, _ = tiny.make(**SIZES)
    return jax.jit(make_update(policy, make_estimator(name, **dict(slots)), optimizer, **options))


def start(name="grpo", optimizer=DESCENT, exponent=0.7):
    estimator = make_estimator(name)
    params = {"policy": tiny.make(**SIZES)[1], "estimator": estimator.init_params()}
    if params["estimator"]:
        params["estimator"]["aggregate"]["lambda"] = jnp.asarray(exponent)
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(params), memory={})


def gradient(batch, name="grpo", **options):
    """(∂loss/∂params, metrics as floats)"""
    state = start(name)
    new, metrics = updater(name, **options)(state, batch)
    assert new.step == state.step
    found = jax.tree.map(jnp.subtract, state.params, new.params)
    return found, {key: metric.compute() for key, metric in metrics.items()}


@functools.cache
def batch_of(seed=0):
    return tiny.random_batch(seed, prompts=ROWS // GROUP, group=GROUP)


@functools.cache
def whole(name="grpo"):
    return gradient(batch_of(), name)


def test_loss_is_the_weighted_sum_of_token_losses():
    """GRPO by loops: mean over valid rows of the mean over tokens of −min(ρA, clip(ρ, 0.8, 1.2)·A)."""
    batch = batch_of()
    policy, params = tiny.make(**SIZES)
    score = jax.jit(make_logprobs(policy))
    logprobs, entropy = score(params, batch.tokens, batch.prompt_mask, batch.completion_mask)
    new, old, advantages = (np.float64(x) for x in (logprobs, batch.old_logprobs, batch.advantages))
    mask, valid = np.asarray(batch.completion_mask), np.asarray(batch.valid)
    loss, clipped, tokens, entropies = 0.0, 0, 0, 0.0
    for row in range(ROWS):
        for t in range(mask.shape[1]):
            if not (valid[row] and mask[row, t]):
                continue
            ratio = np.exp(new[row, t] - old[row, t])
            surrogate = min(ratio * advantages[row], np.clip(ratio, 0.8, 1.2) * advantages[row])
            loss -= surrogate / mask[row].sum() / valid.sum()
            clipped += surrogate != ratio * advantages[row]
            tokens += 1
            entropies += float(entropy[row, t])
    _, found = whole()
    assert found["loss"] == pytest.approx(loss, abs=1e-6)
    assert found["clip_fraction"] == pytest.approx(clipped / tokens) and clipped > 3
    assert found["entropy"] == pytest.approx(entropies / tokens, rel=1e-5)
    assert found["rows_skipped"] == 0
    gradient_norm = optax.global_norm(whole()[0]["policy"])
    assert found["gradient_norm"] == pytest.approx(float(gradient_norm), rel=1e-4)
    assert found["gradient_norm"] == found["gradient_norm_max"] > 0.01


@pytest.mark.parametrize(
    "options",
    [
        {"micro_batch_rows": 8},
        {"micro_batch_rows": 1},
        {"completions_per_row": 4, "micro_batch_rows": 4},
        {"completions_per_row": 2, "micro_batch_rows": 8, "head_chunks": 2, "skip_inactive": False},
        {"completions_per_row": 4, "micro_batch_rows": 8, "head_chunks": 3, "row_slots": 9},
    ],
)
def test_how_rows_are_cut_does_not_change_the_update(options):
    wanted, metrics = whole()
    found, others = gradient(batch_of(), **options)
    tiny.assert_trees_close(found, wanted, atol=1e-5)
    assert others["loss"] == pytest.approx(metrics["loss"], abs=1e-5)
    assert others["gradient_norm"] == pytest.approx(metrics["gradient_norm"], rel=1e-4)


def test_rows_that_do_not_fit_stop_the_update_from_passing_for_one():
    needed = needed_row_slots(batch_of().completion_mask.sum(axis=-1), 4)
    _, metrics = gradient(batch_of(), completions_per_row=4, row_slots=needed - 1)
    assert np.isnan(metrics["loss"]) and np.isnan(metrics["gradient_norm"])


def test_order_of_rows_does_not_change_the_update():
    wanted, metrics = whole()
    order = np.random.default_rng(0).permutation(ROWS)
    shuffled = jax.tree.map(lambda x: x[order], batch_of())
    found, others = gradient(shuffled, micro_batch_rows=8)
    tiny.assert_trees_close(found, wanted, atol=1e-5)
    assert others["loss"] == pytest.approx(metrics["loss"], abs=1e-5)

    units = np.concatenate([np.arange(4) + 4 * unit for unit in (2, 0, 3, 1)])
    moved = jax.tree.map(lambda x: x[units], batch_of())
    found, _ = gradient(moved, completions_per_row=4, micro_batch_rows=4)
    tiny.assert_trees_close(found, wanted, atol=1e-5)


def test_rows_without_gradient_are_skipped_and_counted():
    # rows 0–3 (a prompt without contrast) and row 14 (not valid) are quiet: of single rows 5 are skipped; of units
    # of four, one
    wanted, _ = whole()
    found, metrics = gradient(batch_of(), micro_batch_rows=1)
    assert metrics["rows_skipped"] == 5
    tiny.assert_trees_close(found, wanted, atol=1e-5)
    _, metrics = gradient(batch_of(), completions_per_row=4, micro_batch_rows=4)
    assert metrics["rows_skipped"] == 4
    # rows of a quiet unit do not hide between others: micro-batches of 8 rows are 2 units, none wholly quiet
    _, metrics = gradient(batch_of(), micro_batch_rows=8)
    assert metrics["rows_skipped"] == 0


def quiet_batch():
    return batch_of().replace(advantages=jnp.zeros(ROWS))


def test_nothing_is_skipped_where_quiet_rows_have_a_gradient():
    _, metrics = gradient(quiet_batch(), micro_batch_rows=8)
    assert metrics["rows_skipped"] == ROWS and metrics["gradient_norm"] == 0 and metrics["loss"] == 0
    penalised = quiet_batch().replace(reference_logprobs=batch_of().old_logprobs)
    _, metrics = gradient(penalised, slots=(("kl", "k3(beta=0.1)"),), micro_batch_rows=8)
    assert metrics["rows_skipped"] == 0 and metrics["gradient_norm"] > 1e-3


def test_learnt_exponent_has_the_gradient_of_its_loss():
    wanted, _ = whole("lambda_grpo")
    slope = float(wanted["estimator"]["aggregate"]["lambda"])
    step = 1e-2
    loss = [
        updater("lambda_grpo")(start("lambda_grpo", exponent=0.7 + h), batch_of())[1]["loss"].compute()
        for h in (-step, step)
    ]
    assert slope == pytest.approx((loss[1] - loss[0]) / (2 * step), rel=2e-3, abs=1e-6)
    assert abs(slope) > 1e-4
    found, _ = gradient(batch_of(), "lambda_grpo", micro_batch_rows=4)
    tiny.assert_trees_close(found, wanted, atol=1e-5)


def test_gradient_with_entropy_bonus_is_the_slope_of_the_loss():
    # without clipping the loss is smooth: its slope along the gradient is the gradient's norm squared
    options = {"slots": (("clip", "none"),), "entropy_bonus": 0.3}
    found, metrics = gradient(batch_of(), **options)
    norm = metrics["gradient_norm"]
    step = 0.01 / norm
    loss = []
    for h in (-step, step):
        state = start()
        moved = jax.tree.map(lambda p, g, h=h: p + h * g, state.params, found)
        loss.append(updater(**options)(state.replace(params=moved), batch_of())[1]["loss"].compute())
    assert (loss[1] - loss[0]) / (2 * step) == pytest.approx(norm**2, rel=5e-3)

    # quiet rows: what is left of the loss is −0.3 times the mean over rows of the mean entropy over tokens
    policy, params = tiny.make(**SIZES)
    batch = quiet_batch()
    score = jax.jit(make_logprobs(policy))
    _, entropy = score(params, batch.tokens, batch.prompt_mask, batch.completion_mask)
    mask = np.asarray(batch.completion_mask) & np.asarray(batch.valid)[:, None]
    per_row = (np.asarray(entropy) * mask).sum(axis=1) / mask.sum(axis=1).clip(1)
    _, metrics = gradient(batch, **options)
    assert metrics["loss"] == pytest.approx(-0.3 * per_row.sum() / (ROWS - 1), abs=1e-6)
    assert metrics["rows_skipped"] == 0 and metrics["gradient_norm"] > 0.01


ADAM = make_optimizer(learning_rate=0.1, total_updates=10, clip_norm=0.01)


def test_a_batch_without_a_valid_row_changes_only_the_optimisers_count():
    state = start(optimizer=ADAM)
    empty = batch_of().replace(valid=jnp.zeros(ROWS, bool), old_logprobs=jnp.full((ROWS, 4), jnp.nan))
    new, metrics = updater(optimizer=ADAM)(state, empty)
    for (path, a), b in zip(jax.tree.leaves_with_path(new), jax.tree.leaves(state)):
        counts = "count" in jax.tree_util.keystr(path)
        np.testing.assert_array_equal(a, b + counts, err_msg=jax.tree_util.keystr(path))
    assert metrics["loss"].compute() == 0 and metrics["gradient_norm"].compute() == 0
    assert metrics["rows_skipped"].compute() == ROWS


def test_what_stands_in_masked_places_does_not_matter():
    batch = batch_of()
    masked = ~np.asarray(batch.completion_mask) | ~np.asarray(batch.valid)[:, None]
    spoil = lambda x, value: jnp.where(masked, value, x)
    tokens = np.array(batch.tokens)
    tokens[:, 5:][masked] = 7
    spoiled = batch.replace(
        old_logprobs=spoil(batch.old_logprobs, -jnp.inf),
        behaviour_logprobs=spoil(batch.behaviour_logprobs, jnp.nan),
        advantages=jnp.where(batch.valid, batch.advantages, jnp.nan),
        tokens=jnp.asarray(tokens),
    )
    found, metrics = gradient(spoiled)
    tiny.assert_trees_close(found, whole()[0], atol=1e-6)
    assert np.isfinite(list(metrics.values())).all()


def test_gradient_is_clipped_to_the_global_norm():
    # the first moment after one update is (1 − b1) times the clipped gradient, whose norm is 0.01
    new, metrics = updater(optimizer=ADAM)(start(optimizer=ADAM), batch_of())
    moments = [x for path, x in jax.tree.leaves_with_path(new.opt_state) if ".mu" in jax.tree_util.keystr(path)]
    assert float(optax.global_norm(moments)) / 0.1 == pytest.approx(0.01, rel=1e-4)
    assert metrics["gradient_norm"].compute() == pytest.approx(whole()[1]["gradient_norm"], rel=1e-5)  # before


@pytest.mark.parametrize("count", [1, 2, 4])
def test_minibatches_part_the_groups(count):
    batch = batch_of()
    pieces = minibatches(batch, count, GROUP, jax.random.key(0))
    assert len(pieces) == count
    rows = [tuple(row) for piece in pieces for row in np.asarray(piece.tokens).tolist()]
    assert sorted(rows) == sorted(tuple(row) for row in np.asarray(batch.tokens).tolist())
    groups = []
    for piece in pieces:
        assert piece.valid.shape == (ROWS // count,)
        of_rows = np.asarray(piece.group).reshape(-1, GROUP)
        assert (of_rows == of_rows[:, :1]).all()  # whole, and adjacent
        groups += of_rows[:, 0].tolist()
        for row, advantage in zip(np.asarray(piece.tokens).tolist(), np.asarray(piece.advantages)):
            assert advantage == batch.advantages[np.asarray(batch.tokens).tolist().index(row)]
    assert sorted(groups) == [0, 1, 2, 3]


def test_minibatches_follow_their_key():
    order = lambda seed: tuple(int(piece.group[0]) for piece in minibatches(batch_of(), 4, GROUP, jax.random.key(seed)))
    assert order(3) == order(3)
    assert len({order(seed) for seed in range(8)}) > 2
