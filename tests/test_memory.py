"""What an update holds in memory, by the compiled program's own analysis; only compiled, never run."""

import functools

import jax
import jax.numpy as jnp
import pytest

from rlvr_jax.estimators import make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import Architecture, make_logprobs, make_policy
from rlvr_jax.types import Batch, TrainState
from rlvr_jax.update import make_update, trained_part

MIB = 2**20
ROWS, PROMPT, LENGTH = 8, 8, 64


def policy_of(vocabulary=8192, **changes):
    sizes = {"width": 64, "layers": 1, "heads": 2, "kv_heads": 1, "head_size": 16, "hidden": 64}
    return make_policy(Architecture(vocabulary=vocabulary, **{**sizes, **changes}))


def rows(row_count=ROWS, length=LENGTH):
    shape = jax.ShapeDtypeStruct
    return Batch(
        tokens=shape((row_count, PROMPT + length), jnp.int32),
        prompt_mask=shape((row_count, PROMPT), bool),
        completion_mask=shape((row_count, length), bool),
        attend_mask=shape((row_count, length), bool),
        advantages=shape((row_count,), jnp.float32),
        group=shape((row_count,), jnp.int32),
        valid=shape((row_count,), bool),
    )


@functools.cache
def of_gradient(vocabulary, chunks):
    """Temporary bytes of the gradient of all log-probabilities."""
    policy = policy_of(vocabulary)
    score, batch = make_logprobs(policy, head_chunks=chunks), rows()
    total = lambda params, *rows: score(params, *rows)[0].sum()
    params = jax.eval_shape(policy.init, jax.random.key(0))
    lowered = jax.jit(jax.value_and_grad(total)).lower(params, batch.tokens, batch.prompt_mask, batch.attend_mask)
    return lowered.compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("vocabulary", [8192, 32768, 131072])
def test_memory_grows_with_the_chunk_and_not_with_all_tokens(vocabulary):
    table, logits = 4 * 64 * vocabulary, 4 * ROWS * LENGTH * vocabulary
    # the table's gradient, one chunk's logits, and what does not know V
    assert of_gradient(vocabulary, 32) < 1.1 * (table + logits / 32) + 5 * MIB


def test_with_the_vocabulary_grows_a_chunk():
    """The slope in V, in float32 numbers: of the table's width and a chunk's tokens, not of all tokens."""
    small, large, tokens = 8192, 131072, ROWS * LENGTH
    slope = {n: (of_gradient(large, n) - of_gradient(small, n)) / (large - small) / 4 for n in (1, 32)}
    assert slope[1] > 2 * tokens
    assert slope[32] < 1.1 * (tokens / 32 + 64)


@functools.cache
def of_update(micro_batch_rows=0, remat="block", layers=4, length=8, head_chunks=1, **options):
    """(memory analysis of a compiled update, bytes of the parameters)."""
    policy = policy_of(width=256, hidden=1024, remat=remat, layers=layers)
    optimizer = make_optimizer(learning_rate=1e-3, total_updates=9, **options)

    def start():
        params = {"policy": policy.init(jax.random.key(0)), "estimator": {}}
        opt_state = optimizer.init(trained_part(policy, params))
        return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=opt_state, memory={})

    options = {"micro_batch_rows": micro_batch_rows, "head_chunks": head_chunks}
    update, state = make_update(policy, make_estimator("grpo"), optimizer, **options), jax.eval_shape(start)
    compiled = jax.jit(update, donate_argnums=0).lower(state, rows(4, length)).compile()
    return compiled.memory_analysis(), sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.params))


def test_an_update_holds_one_gradient_and_changes_its_state_in_place():
    analysis, size = of_update()
    assert analysis.alias_size_in_bytes > 2.9 * size  # parameters and both moments
    # what is clipped and scaled is no second gradient; one micro-batch is not added to zeros
    assert size < analysis.temp_size_in_bytes < 1.5 * size


def test_accumulation_holds_two_gradients():
    analysis, size = of_update(micro_batch_rows=1)
    assert 2 * size < analysis.temp_size_in_bytes < 2.5 * size


@pytest.mark.slow
def test_recomputing_layers_needs_less():
    temps = [of_update(remat=name, layers=8, length=128, head_chunks=8)[0] for name in ("none", "dots", "block")]
    none, dots, block = (analysis.temp_size_in_bytes for analysis in temps)
    assert block < 0.7 * dots < 0.7 * 0.7 * none
