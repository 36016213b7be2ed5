"""Adapters: the base at step 0, alone in training, and the same numbers merged."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tiny

from rlvr_jax.estimators import make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import Lora, make_logprobs, make_recurrent_policy, with_lora
from rlvr_jax.policy.recurrent import RecurrentArchitecture
from rlvr_jax.sampling import make_sampler
from rlvr_jax.sharding import make_mesh, shardings_for, spec_for
from rlvr_jax.types import TrainState
from rlvr_jax.update import make_update, trained_part

pytestmark = pytest.mark.usefixtures("quick_compiles")
RANK, ALPHA = 2, 6.0


def adapted(targets=("query", "gate|down"), moved=True, **changes):
    """(policy, adapted policy, its parameters); with `moved` B is not zero any more."""
    policy, base = tiny.make(**changes)
    lora = with_lora(policy, rank=RANK, alpha=ALPHA, targets=targets)
    tree = Lora(rank=RANK, alpha=ALPHA, targets=targets).init(jax.random.key(0), base)
    if moved:
        rng = np.random.default_rng(0)
        tree = jax.tree.map(lambda x: x + jnp.asarray(0.1 * rng.standard_normal(x.shape), x.dtype), tree)
    return policy, lora, {"base": base, "lora": tree}


def hidden_and_logits(policy, params):
    batch = tiny.random_batch(1)
    positions = jnp.broadcast_to(jnp.arange(9)[None], batch.tokens.shape)

    def run(params):
        hidden = policy.apply(params, batch.tokens, positions, jnp.ones_like(batch.tokens))
        return hidden, policy.logits(params, hidden)

    return jax.jit(run)(params)


@pytest.mark.parametrize("changes", [{}, {"scan_layers": False, "tied": False}])
def test_step_0_is_the_base_exactly(changes):
    targets = ("query", "key", "value", "output", "gate", "up", "down", *([] if changes == {} else ["head"]))
    policy, lora, params = adapted(targets, moved=False, **changes)
    for found, wanted in zip(hidden_and_logits(lora, params), hidden_and_logits(policy, params["base"])):
        np.testing.assert_array_equal(found, wanted)
    assert jax.tree.structure(jax.eval_shape(lora.init, jax.random.key(1))) == jax.tree.structure(params)


@pytest.mark.parametrize("changes", [{}, {"scan_layers": False, "tied": False}])
def test_merged_is_unmerged(changes):
    targets = ("query|key", "output", "up", "down", *([] if changes == {} else ["head"]))
    policy, lora, params = adapted(targets, **changes)
    merged = Lora(rank=RANK, alpha=ALPHA, targets=targets).merge(params)
    assert jax.tree.structure(merged) == jax.tree.structure(params["base"])
    wanted, before = hidden_and_logits(lora, params), hidden_and_logits(policy, params["base"])
    assert float(jnp.abs(wanted[1] - before[1]).max()) > 0.1
    for found, value in zip(hidden_and_logits(policy, merged), wanted):
        np.testing.assert_allclose(found, value, atol=1e-5)
    for found, value in zip(hidden_and_logits(lora, merged), wanted):  # merged parameters through the same door
        np.testing.assert_allclose(found, value, atol=1e-5)


def test_gradient_of_one_linear_layer_is_the_chain_rule_s():
    """y = x·(W + α/r·A·B), loss = Σ c·y: ∂A = α/r·xᵀ·c·Bᵀ, ∂B = α/r·(x·A)ᵀ·c. The layer is the untied head."""
    _, lora, params = adapted(("head",), tied=False)
    rng = np.random.default_rng(3)
    x, c = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in ((5, 16), (5, 13)))
    loss = lambda trained: (c * lora.logits(lora.with_trainable(params, trained), x)).sum()
    gradient = jax.grad(loss)(lora.trainable(params))["head"]
    x, c = np.float64(x), np.float64(c)
    a, b = (np.float64(params["lora"]["head"][name]) for name in ("lora_a", "lora_b"))
    np.testing.assert_allclose(gradient["lora_a"], ALPHA / RANK * x.T @ c @ b.T, atol=1e-4)
    np.testing.assert_allclose(gradient["lora_b"], ALPHA / RANK * (x @ a).T @ c, atol=1e-4)


def test_gradient_through_the_layers_is_that_of_merged_kernels():
    """∂/∂A of the whole policy: the chain rule through kernel + α/r·A·B, layer by layer."""
    policy, lora, params = adapted()
    batch = tiny.random_batch(2)

    def total(policy, params):
        logprobs, _ = make_logprobs(policy)(params, batch.tokens, batch.prompt_mask, batch.completion_mask)
        return jnp.where(batch.completion_mask, logprobs, 0.0).sum()

    merge = Lora(rank=RANK, alpha=ALPHA, targets=("query", "gate|down")).merge
    through = lambda trained: total(policy, merge({**params, "lora": trained}))
    beside = lambda trained: total(lora, lora.with_trainable(params, trained))
    wanted, found = (jax.jit(jax.grad(f))(params["lora"]) for f in (through, beside))
    tiny.assert_trees_close(found, wanted, atol=1e-4)
    assert float(optax.global_norm(wanted)) > 1


def state_of(lora, params, optimizer):
    params = {"policy": params, "estimator": {}}
    opt_state = optimizer.init(trained_part(lora, params))
    return TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=opt_state, memory={})


def test_only_adapters_are_trained_and_remembered():
    _, lora, params = adapted(moved=False)
    optimizer = make_optimizer(learning_rate=0.01, total_updates=9, weight_decay=0.1)
    state = state_of(lora, params, optimizer)
    update = jax.jit(make_update(lora, make_estimator("grpo"), optimizer, micro_batch_rows=8))
    new, metrics = update(state, tiny.random_batch(0))
    new, _ = update(new, tiny.random_batch(0))  # A has no gradient while B is zero
    before, after = params, new.params["policy"]
    jax.tree.map(np.testing.assert_array_equal, after["base"], before["base"])
    moved = jax.tree.map(lambda x, y: float(jnp.abs(x - y).max()), after["lora"], before["lora"])
    assert min(jax.tree.leaves(moved)) > 1e-3
    assert metrics["gradient_norm"].compute() > 0.01
    numbers = lambda tree: sum(x.size for x in jax.tree.leaves(tree) if x.size > 1)
    assert numbers(state.opt_state) == 2 * numbers(params["lora"])


def test_no_gradient_of_the_base_is_held():
    # A hundredth of the parameters is trained: no temporary array is as large as the base's gradient
    _, lora, _ = adapted(width=128, heads=8, head_size=16, hidden=512, vocabulary=64, layers=8)
    params = jax.eval_shape(lora.init, jax.random.key(0))
    batch = tiny.random_batch(0, prompts=1, group=2)

    def total(trained, base):
        rows = (batch.tokens, batch.prompt_mask, batch.completion_mask)
        return make_logprobs(lora)({"base": base, "lora": trained}, *rows)[0].sum()

    compiled = jax.jit(jax.grad(total)).lower(params["lora"], params["base"]).compile()
    size = sum(4 * x.size for x in jax.tree.leaves(params["base"]))
    assert compiled.memory_analysis().temp_size_in_bytes < size / 2


def test_sampler_draws_from_the_adapted_policy():
    _, lora, params = adapted()
    sample = make_sampler(lora, group_size=4, completion_length=6, end_ids=(), pad_id=0)
    rollouts = jax.jit(sample)(params, tiny.random_prompts(0, [2, 3]), jax.random.key(0))
    score = lambda params: make_logprobs(lora)(params, rollouts.tokens, rollouts.prompt_mask, rollouts.attend_mask)[0]
    found = jax.jit(score)(params)
    np.testing.assert_allclose(found, rollouts.behaviour_logprobs, atol=1e-4)
    assert float(jnp.abs(jax.jit(score)(params["base"]) - found).max()) > 1e-2


def test_every_leaf_has_a_place():
    *_, params = adapted(("query", "output", "head"), tied=False)
    shardings = shardings_for({"policy": params}, make_mesh(1, 1))
    assert jax.tree.structure(shardings) == jax.tree.structure({"policy": params})
    names = ["/lora/blocks/attention/output/lora_a", "/lora/blocks/attention/query/lora_b", "/lora/head/lora_b"]
    mesh = jax.sharding.AbstractMesh((1, 2), ("data", "model"))
    cut = [spec_for(name, (2, 4, 4) if "blocks" in name else (4, 4), mesh) for name in names]
    assert [spec.index("model") for spec in cut] == [1, 2, 1]


def test_what_cannot_be_adapted_is_refused():
    policy, base = tiny.make()
    with pytest.raises(ValueError, match="lora.rank=0: must be at least 1"):
        with_lora(policy, rank=0, alpha=1.0)
    with pytest.raises(ValueError, match="lora.alpha=0.0: must be above 0"):
        with_lora(policy, rank=1, alpha=0.0)
    with pytest.raises(ValueError, match=r"lora.targets='querry': matches no linear layer; choose from \['query'"):
        with_lora(policy, rank=1, alpha=1.0, targets=("querry",))
    with pytest.raises(ValueError, match=r"lora.targets='head': this policy has no such linear layer; it has \['down'"):
        Lora(rank=1, alpha=1.0, targets=("head",)).init(jax.random.key(0), base)
    recurrent = make_recurrent_policy(RecurrentArchitecture(vocabulary=5))
    with pytest.raises(ValueError, match=r"this policy has no such linear layer; it has \[\]"):
        with_lora(recurrent, rank=1, alpha=1.0).init(jax.random.key(0))
