"""Checkpoints: whole or not at all, bit for bit, and never into another model."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rlvr_jax.checkpoint import Checkpoints
from rlvr_jax.estimators import make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.types import TrainState

pytestmark = pytest.mark.usefixtures("quick_compiles")
DATA = {"next": 12, "epoch": 0}


def state_of(seed=0, **sizes) -> TrainState:
    """A state with all there can be: a history, a learnt exponent, an optimiser that has moved."""
    estimator = make_estimator("ha_dw_grpo", aggregate="learnable")
    params = {"policy": tiny.make(**sizes)[1], "estimator": estimator.init_params()}
    memory = estimator.init_memory(10)
    assert jax.tree.leaves(memory) and jax.tree.leaves(params["estimator"])
    optimizer = make_optimizer(learning_rate=1e-3, total_updates=3)
    state = TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(params), memory=memory)
    rng = np.random.default_rng(seed)

    def noise(x):
        values = rng.standard_normal(x.shape) if x.dtype == jnp.float32 else rng.integers(1, 99, x.shape)
        return jnp.asarray(values, x.dtype)

    return jax.tree.map(noise, state)


def abstract(state):
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device), state)


def assert_same_bits(found, wanted):
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted)):
        assert a.dtype == b.dtype, path
        np.testing.assert_array_equal(a, b, err_msg=jax.tree_util.keystr(path), strict=True)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(workdir, state): steps 2 and 5 are there, the state is that of step 5."""
    workdir, state = tmp_path_factory.mktemp("run"), state_of()
    with Checkpoints(workdir, keep=0) as checkpoints:
        checkpoints.save(2, state_of(seed=1), {"next": 3}, {"seed": 1})
        checkpoints.save(5, state, DATA, {"seed": 7, "model": {"path": ""}})
    return workdir, state


def test_what_was_saved_comes_back_bit_for_bit(saved):
    workdir, state = saved
    with Checkpoints(workdir) as checkpoints:
        assert checkpoints.latest() == 5 and checkpoints.steps() == [2, 5]
        found, data, config = checkpoints.restore(abstract(state))
        assert_same_bits(found, state)
        assert data == DATA and config == {"seed": 7, "model": {"path": ""}}
        older, data, _ = checkpoints.restore(abstract(state), 2)
        assert_same_bits(older, state_of(seed=1))
        assert data == {"next": 3}


def test_only_the_policy(saved):
    workdir, state = saved
    with Checkpoints(workdir) as checkpoints:
        wanted = abstract(state.params["policy"])
        found, step = checkpoints.restore_policy(wanted)
        assert step == 5
        assert_same_bits(found, state.params["policy"])
        older, step = checkpoints.restore_policy(wanted, 2)
        assert step == 2
        assert_same_bits(older, state_of(seed=1).params["policy"])


@pytest.mark.parametrize(
    ("sizes", "name", "there", "here"),
    [
        ({"layers": 4}, "blocks/attention/key/kernel", r"\(2, 16, 8\)", r"\(4, 16, 8\)"),
        ({"layers": 1}, "blocks/attention/key/kernel", r"\(2, 16, 8\)", r"\(1, 16, 8\)"),
        ({"width": 32}, "blocks/attention/key/kernel", r"\(2, 16, 8\)", r"\(2, 32, 8\)"),
        ({"vocabulary": 14}, "embed/embedding", r"\(13, 16\)", r"\(14, 16\)"),
        ({"tied": False}, "head/kernel", "nothing", r"\(16, 13\)"),
    ],
)
def test_another_architecture_is_refused(saved, sizes, name, there, here):
    workdir, _ = saved
    other = abstract(state_of(**sizes))
    message = rf"{workdir}.*policy/{name} is {there}.* there, and {here}.* here"
    with Checkpoints(workdir) as checkpoints:
        with pytest.raises(ValueError, match=message):
            checkpoints.restore(other)
        with pytest.raises(ValueError, match=message.replace("policy/", "")):
            checkpoints.restore_policy(other.params["policy"])


def test_another_dtype_is_refused(saved):
    workdir, state = saved
    wanted = abstract(state)
    policy = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16, sharding=x.sharding), wanted.params["policy"]
    )
    message = r"kernel is \(2, 16, 8\) float32 there, and \(2, 16, 8\) bfloat16 here"
    with Checkpoints(workdir) as checkpoints:
        with pytest.raises(ValueError, match=message):
            checkpoints.restore(wanted.replace(params={**wanted.params, "policy": policy}))
        with pytest.raises(ValueError, match=message):
            checkpoints.restore_policy(policy)


def test_what_is_left_over_is_refused(saved):
    # a run without history must not drop one in silence, nor a run with history start it anew
    workdir, state = saved
    wanted = abstract(state)
    with Checkpoints(workdir) as checkpoints:
        with pytest.raises(ValueError, match=r"memory/reweight/anchor is \(\) float32 there, and nothing here"):
            checkpoints.restore(wanted.replace(memory={}))
        extra = {**wanted.memory, "baseline": {"mean": wanted.step}}
        with pytest.raises(ValueError, match=r"memory/baseline/mean is nothing there, and \(\) int32 here"):
            checkpoints.restore(wanted.replace(memory=extra))


def test_a_missing_step_names_those_there(saved):
    workdir, state = saved
    with Checkpoints(workdir) as checkpoints:
        for restore, wanted in (
            (checkpoints.restore, abstract(state)),
            (checkpoints.restore_policy, abstract(state.params["policy"])),
        ):
            with pytest.raises(FileNotFoundError, match=r"no checkpoint of step 3 .*steps there: \[2, 5\]"):
                restore(wanted, 3)


def test_an_empty_directory(tmp_path):
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() is None and checkpoints.steps() == []
        with pytest.raises(FileNotFoundError, match=r"no checkpoint of step None .*steps there: \[\]"):
            checkpoints.restore(abstract({"x": jnp.zeros(2)}))


SMALL = TrainState(
    step=jnp.int32(1),
    params={"policy": {"w": jnp.arange(4.0)}, "estimator": {}},
    opt_state=(),
    memory={},
)


def save(checkpoints, step, state=SMALL):
    checkpoints.save(step, dataclasses.replace(state, step=jnp.int32(step)), DATA, {})
    checkpoints.wait()


@pytest.mark.parametrize("kind", ["empty", "half", "temporary"])
def test_an_interrupted_save_is_not_a_checkpoint(tmp_path, kind):
    with Checkpoints(tmp_path, keep=0) as checkpoints:
        save(checkpoints, 20)
        save(checkpoints, 25)
    folder = tmp_path / "checkpoints"
    if kind == "empty":
        (folder / "30").mkdir()
    elif kind == "half":  # killed while writing: the arrays are there, what closes the step is not
        (folder / "30" / "state").mkdir(parents=True)
        (folder / "30" / "state" / "_METADATA").write_text("{")
    else:
        (folder / "25").rename(folder / "30.orbax-checkpoint-tmp-7")
    complete = 20 if kind == "temporary" else 25
    with Checkpoints(tmp_path, keep=0) as checkpoints:
        assert checkpoints.latest() == complete
        found, data, _ = checkpoints.restore(abstract(SMALL))
        assert int(found.step) == complete and data == DATA
        for step in (30, 40):  # and the steps that were interrupted can be written after all
            save(checkpoints, step)
            assert int(checkpoints.restore(abstract(SMALL))[0].step) == step
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.latest() == 40


def test_a_save_that_did_nothing_is_an_error(tmp_path, monkeypatch):
    with Checkpoints(tmp_path, keep=0) as checkpoints:
        save(checkpoints, 2)
        monkeypatch.setattr(checkpoints._manager, "save", lambda *_, **__: False)
        with pytest.raises(RuntimeError, match=r"step 3 was not saved.*\[2\]"):
            save(checkpoints, 3)
        monkeypatch.undo()
        with pytest.raises(Exception, match="2"):  # of the same step a second time
            save(checkpoints, 2)


def test_old_checkpoints_go(tmp_path):
    with Checkpoints(tmp_path, keep=2) as checkpoints:
        for step in (1, 2, 3):
            save(checkpoints, step)
        assert checkpoints.steps() == [2, 3]


MESHES = """
import numpy as np
from test_checkpoint import Checkpoints, state_of
from rlvr_jax.sharding import make_mesh, shardings_for

def abstract(data, model):
    mesh = make_mesh(data, model)
    attach = lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s)
    return jax.tree.map(attach, state, shardings_for(state, mesh))

state, result = state_of(), []
with Checkpoints(WORKDIR) as checkpoints:
    for data, model in ((8, 1), (2, 4)):
        found = checkpoints.restore(abstract(data, model))[0]
        same = jax.tree.map(lambda a, b: bool((np.asarray(a) == np.asarray(b)).all()), found, state)
        embedding = found.params["policy"]["embed"]["embedding"]
        kernel = found.params["policy"]["blocks"]["mlp"]["up"]["kernel"]
        result.append([all(jax.tree.leaves(same)), list(kernel.addressable_shards[0].data.shape)])
"""


def test_another_mesh_reads_the_same_numbers(saved):
    # the kernel [2, 16, 24] is cut by data on its second axis and by model on its third
    result = tiny.on_devices(8, MESHES.replace("WORKDIR", json.dumps(str(saved[0]))))
    assert result == [[True, [2, 2, 24]], [True, [2, 8, 6]]]
