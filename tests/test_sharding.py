"""Where arrays live: every parameter has a rule, and an array without one is an error."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny
from jax.sharding import AbstractMesh, AxisType, PartitionSpec

from rlvr_jax.estimators import catalogue, make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import make_policy, with_lora
from rlvr_jax.sharding import RULES, make_mesh, path_name, put_rows, rows_sharding, shardings_for, spec_for
from rlvr_jax.types import TrainState

MESH = AbstractMesh((4, 2), ("data", "model"), (AxisType.Auto,) * 2)
ONE = jax.devices()[:1]


def shapes_of(estimator="grpo", **sizes):
    """A whole TrainState as shapes."""
    policy, estimator = (
        make_policy(tiny.architecture(**sizes)),
        make_estimator(estimator, completion_length=4),
    )
    optimizer = make_optimizer(learning_rate=1e-3, total_updates=2)

    def make(key):
        params = {"policy": policy.init(key), "estimator": estimator.init_params()}
        return TrainState(
            step=jnp.zeros((), jnp.int32),
            params=params,
            opt_state=optimizer.init(params),
            memory=estimator.init_memory(7),
        )

    return jax.eval_shape(make, jax.random.key(0))


def test_specs_by_name():
    # data cuts the width for memory, model the heads and the hidden layer; layers stay together
    wanted = {
        "embed/embedding": PartitionSpec("model", "data"),
        "blocks/attention/query/kernel": PartitionSpec(None, "data", "model"),
        "blocks/attention/key/kernel": PartitionSpec(None, "data", "model"),
        "blocks/attention/value/kernel": PartitionSpec(None, "data", "model"),
        "blocks/attention/output/kernel": PartitionSpec(None, "model", "data"),
        "blocks/attention/norm/scale": PartitionSpec(),
        "blocks/mlp/gate/kernel": PartitionSpec(None, "data", "model"),
        "blocks/mlp/up/kernel": PartitionSpec(None, "data", "model"),
        "blocks/mlp/down/kernel": PartitionSpec(None, "model", "data"),
        "blocks/mlp/norm/scale": PartitionSpec(),
        "final_norm/scale": PartitionSpec(),
        "head/kernel": PartitionSpec("data", "model"),
    }
    wanted |= {f"blocks/attention/{name}/bias": PartitionSpec(None, "model") for name in ("query", "key", "value")}
    norms = ("attention/query_norm", "attention/key_norm", "attention/post_norm", "mlp/post_norm")
    wanted |= {f"blocks/{name}/scale": PartitionSpec() for name in norms}
    sizes = {"qkv_bias": True, "qk_norm": True, "post_norms": True, "norm_offset": 1.0}
    shapes = shapes_of(tied=False, vocabulary=16, **sizes).params["policy"]
    found = {path_name(path): spec_for(path_name(path), leaf.shape, MESH) for path, leaf in leaves(shapes)}
    assert found == wanted


def leaves(tree):
    return jax.tree.leaves_with_path(tree)


@pytest.mark.parametrize("name", sorted(catalogue))
def test_every_array_of_every_state_has_a_rule(name):
    state = shapes_of(name)
    for (path, leaf), sharding in zip(leaves(state), jax.tree.leaves(shardings_for(state, make_mesh(devices=ONE)))):
        sharding.shard_shape(leaf.shape)  # raises where it does not fit
        text = path_name(path)
        if text.split("/")[0] == "opt_state" and leaf.ndim:  # moments lie where their parameter lies
            parameter = text[text.index("policy/") :].rpartition("mu/")[2].rpartition("nu/")[2]
            own = parameter.removeprefix("policy/")
            assert spec_for(text, leaf.shape, MESH) == spec_for(own, leaf.shape, MESH), text


def test_every_rule_is_used():
    names = [path_name(path) for path, _ in leaves(shapes_of("ha_dw_grpo", tied=False, qkv_bias=True))]
    names += [path_name(path) for path, _ in leaves(shapes_of("lambda_grpo"))]
    policy = make_policy(tiny.architecture(tied=False))
    adapted = with_lora(policy, rank=2, alpha=2.0, targets=("query", "output", "head"))
    names += [path_name(path) for path, _ in leaves(jax.eval_shape(adapted.init, jax.random.key(0)))]
    for pattern, _ in RULES:
        assert any(re.search(pattern, name) for name in names), pattern


def test_factored_moments_have_a_place():
    policy = make_policy(tiny.architecture(width=128, heads=8, head_size=16, hidden=256, vocabulary=128))
    optimizer = make_optimizer(learning_rate=1e-3, total_updates=2, kind="adafactor")
    state = lambda key: optimizer.init({"policy": policy.init(key), "estimator": {}})
    state = {"opt_state": jax.eval_shape(state, jax.random.key(0))}
    for path, leaf in leaves(state):
        spec = spec_for(path_name(path), leaf.shape, MESH)
        assert len(spec) <= leaf.ndim, path_name(path)
    shardings_for(state, make_mesh(devices=ONE))


def test_an_array_without_a_rule_is_an_error():
    with pytest.raises(ValueError, match=r"no sharding rule matches 'blocks/conv/kernel' of shape \(2, 3\)"):
        spec_for("blocks/conv/kernel", (2, 3), MESH)
    with pytest.raises(ValueError, match="'a/bias'"):
        shardings_for({"a": {"bias": jnp.zeros(3)}}, make_mesh(devices=ONE))
    assert spec_for("step", (), MESH) == PartitionSpec()
    assert spec_for("blocks/conv/kernel", (1, 1), MESH) == PartitionSpec()


def test_an_axis_that_does_not_divide_is_left_out():
    # 13 words over model = 2: not cut there; 16 over data = 4: cut
    assert spec_for("embed/embedding", (13, 16), MESH) == PartitionSpec(None, "data")
    assert spec_for("embed/embedding", (14, 18), MESH) == PartitionSpec("model", None)


def test_first_match_wins():
    rules = ((r"kernel", PartitionSpec("data")), (r"head/kernel", PartitionSpec("model")))
    assert spec_for("head/kernel", (8,), MESH, rules) == PartitionSpec("data")


def test_meshes():
    assert dict(make_mesh(devices=ONE).shape) == {"data": 1, "model": 1}
    for data, model in ((2, 1), (1, 2), (-1, 3), (0, 1), (-2, 1)):
        with pytest.raises(ValueError, match=rf"× mesh.model={model} must equal the number of devices, 1"):
            make_mesh(data, model, devices=ONE)


def test_rows_that_cannot_be_cut_are_on_every_device():
    assert rows_sharding(MESH, 8).spec == PartitionSpec("data")
    assert rows_sharding(MESH, 6).spec == PartitionSpec(None)
    mesh = make_mesh(devices=ONE)
    placed = put_rows({"x": np.arange(6).reshape(3, 2), "y": np.arange(3)}, mesh)
    assert isinstance(placed["x"], jax.Array) and placed["x"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert placed["y"].sharding == rows_sharding(mesh, 3)


EIGHT = """
import jax.numpy as jnp, numpy as np
import tiny
from rlvr_jax.sharding import make_mesh, put_rows, shardings_for
policy, params = tiny.make()
row = (jnp.arange(8)[None].repeat(8, 0), jnp.arange(8)[None].repeat(8, 0), jnp.ones((8, 8), int))
run = jax.jit(lambda params, *row: policy.logits(params, policy.apply(params, *row)))
alone = np.asarray(run(params, *row))
mesh = make_mesh(2, 4)
placed = jax.tree.map(jax.device_put, params, shardings_for(params, mesh))
found = np.asarray(run(placed, *put_rows(jax.device_get(row), mesh)))
kernel = placed["blocks"]["mlp"]["down"]["kernel"]
result = [float(np.abs(found - alone).max()), list(kernel.addressable_shards[0].data.shape)]
"""


def test_a_sharded_policy_computes_the_same():
    # down [2, 24, 16]: model cuts its second axis, data its third
    result = tiny.on_devices(8, EIGHT)
    difference, shape = result
    assert difference < 1e-5 and shape == [2, 6, 8]
