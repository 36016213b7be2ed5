"""Fully sharded data parallelism written out computes what one device computes: on 8 devices, values and gradients,
whatever is trained and however layers are run; and it moves each weight as little as it promises."""

import pytest
import tiny

CASE = """
import jax.numpy as jnp, numpy as np, re
import tiny
from rlvr_jax.estimators import make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import make_policy, with_lora
from rlvr_jax.sharding import make_mesh, make_spread, put_rows, shardings_for
from rlvr_jax.types import TrainState
from rlvr_jax.update import make_update, trained_part

sizes, model, options, rank = {sizes}, {model}, {options}, {rank}
plain, params = tiny.make(**sizes)
batch = tiny.random_batch(0, prompts=8, group=4)
estimator = make_estimator("grpo")
optimizer = make_optimizer(kind="sgd", learning_rate=0.1, total_updates=9, clip_norm=0.0)
mesh = make_mesh(-1, model)
adapt = lambda policy: with_lora(policy, rank=rank, alpha=4.0) if rank else policy
if rank:
    init = adapt(plain).init(jax.random.key(3))
    params = {{"base": params, "lora": jax.tree.map(lambda x: x + 0.1, init["lora"])}}

def run(policy, over_rows, params, batch, lower=False):
    state = TrainState(step=jnp.zeros((), jnp.int32), params={{"policy": params, "estimator": {{}}}}, memory={{}},
                       opt_state=optimizer.init(trained_part(policy, {{"policy": params, "estimator": {{}}}})))
    update = jax.jit(make_update(policy, estimator, optimizer, over_rows=over_rows, **options))
    text = update.lower(state, batch).compile().as_text() if lower else ""
    state, metrics = update(state, batch)
    return jax.device_get(state.params["policy"]), float(metrics["loss"].compute()), text

whole = lambda function: function
one, loss, _ = run(adapt(plain), whole, jax.device_put(params, jax.devices()[0]), batch)
spread = make_spread(mesh, params, "float32")
placed = jax.tree.map(jax.device_put, params, shardings_for(params, mesh))
learner = adapt(make_policy(plain.architecture, spread.layer))
many, other, text = run(learner, spread.over_rows, placed, put_rows(jax.device_get(batch), mesh), lower=True)
gap = jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), one, many))
moved = jax.tree.leaves(jax.tree.map(lambda a, b: float(np.abs(a - b).max()), one, jax.device_get(params)))
kinds = [len(re.findall(kind + r"(?:-start)?[(]", text)) for kind in ("all-gather", "reduce-scatter")]
result = [max(gap), max(moved), abs(loss - other), *kinds]
"""


@pytest.mark.parametrize(
    "sizes, model, options, rank",
    [
        ({}, 1, {}, 0),
        ({"remat": "block", "tied": False}, 1, {"completions_per_row": 4, "head_chunks": 3}, 0),
        ({"scan_layers": False, "qkv_bias": True}, 2, {"micro_batch_rows": 16, "row_slots": 0}, 0),
        ({}, 1, {"micro_batch_rows": 16}, 2),
    ],
    ids=["tied", "untied, shared rows, chunks", "unrolled, two axes", "adapters"],
)
def test_an_update_on_eight_devices_is_that_of_one(sizes, model, options, rank):
    code = CASE.format(sizes=sizes, model=model, options=options, rank=rank)
    gap, moved, loss, gathers, scatters = tiny.on_devices(8, code)
    assert gap < 2e-5 and loss < 1e-5
    assert moved > 1e-3  # there was something to compare
    assert gathers > 0
    if not rank and model == 1:
        assert scatters > 0
