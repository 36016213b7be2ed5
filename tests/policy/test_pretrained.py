"""Checkpoint folders and files that are not what they say are refused, each by one clear line; the others are read
whole, one parameter at a time."""

import functools
import json
import shutil
import struct
import weakref
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import tiny
import tokenizers

from rlvr_jax.policy import load_pretrained, make_policy
from rlvr_jax.policy.export import save_pretrained
from rlvr_jax.policy.families import config_from_architecture
from rlvr_jax.policy.pretrained import read_pretrained
from rlvr_jax.policy.safetensors_file import read_file, write_file
from rlvr_jax.policy.transformer import Architecture
from rlvr_jax.tokenizer import TextTokenizer, make_tokenizer

pytestmark = pytest.mark.usefixtures("quick_compiles")
ORACLE = Path(__file__).parents[1] / "oracle" / "families"
TOKENS = make_tokenizer("bytes(alphabet='0123456789')")
SHARDED, WHOLE = "llama_yarn", "qwen2"
SECOND = "model-00002-of-00007.safetensors"


@pytest.fixture
def shards(tmp_path):
    return Path(shutil.copytree(ORACLE / SHARDED, tmp_path / "shards"))


@pytest.fixture
def whole(tmp_path):
    return Path(shutil.copytree(ORACLE / WHOLE, tmp_path / "whole"))


def arrays_of(path):
    tensors = read_file(path)
    return {name: tensors[name] for name in tensors}


def rewrite(path, change):
    """The tensors of a file after `change(dict)`."""
    arrays = arrays_of(path)
    change(arrays)
    write_file(path, [(name, array.shape) for name, array in arrays.items()], arrays.get)


def rewrite_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


# --- incomplete and stray files ---


def test_a_file_of_the_index_is_absent(shards):
    (shards / SECOND).unlink()
    with pytest.raises(FileNotFoundError, match=rf"index.json: file '{SECOND}' is missing; \d tensors: \['"):
        read_pretrained(shards, TOKENS)


def test_a_file_is_cut_short(shards):
    path = shards / SECOND
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(ValueError, match=rf"{SECOND}: cut short: .* {len(content):,} bytes, .* {len(content) - 100:,}"):
        read_pretrained(shards, TOKENS)
    for size in (0, 7, 8, 20, 300):
        path.write_bytes(content[:size])
        with pytest.raises(ValueError, match=rf"{SECOND}: (cut short|not a safetensors file)"):
            read_pretrained(shards, TOKENS)
    path.write_bytes(content + b"\0")
    with pytest.raises(ValueError, match=rf"{SECOND}: its tensors need {len(content):,} bytes"):
        read_pretrained(shards, TOKENS)


def test_a_tensor_is_missing(shards, whole):
    name = next(iter(read_file(shards / SECOND)))
    rewrite(shards / SECOND, lambda arrays: arrays.pop(name))
    with pytest.raises(ValueError, match=rf"{SECOND}: tensor '{name}' is missing, which model.safetensors.index.json"):
        read_pretrained(shards, TOKENS)
    rewrite_json(shards / "model.safetensors.index.json", lambda index: index["weight_map"].pop(name))
    with pytest.raises(ValueError, match=rf"shards: tensor '{name}' is missing"):
        read_pretrained(shards, TOKENS)
    rewrite(whole / "model.safetensors", lambda arrays: arrays.pop("model.layers.1.self_attn.k_proj.bias"))
    with pytest.raises(
        ValueError, match=r"model.safetensors: tensor 'model.layers.1.self_attn.k_proj.bias' is missing"
    ):
        read_pretrained(whole, TOKENS)


def test_axes_are_swapped(whole):
    name = "model.layers.1.mlp.down_proj.weight"
    rewrite(whole / "model.safetensors", lambda arrays: arrays.update({name: arrays[name].T}))
    with pytest.raises(
        ValueError, match=rf"model.safetensors: tensor '{name}' has shape \(40, 32\), expected \(32, 40\)"
    ):
        read_pretrained(whole, TOKENS)


def test_files_outside_the_index_are_left_alone(shards):
    (shards / "model-00099-of-00007.safetensors").write_bytes(b"not even a file of tensors")
    (shards / "adapter.safetensors").write_bytes(b"")
    tiny.assert_trees_close(read_pretrained(shards, TOKENS)[2](), load_pretrained(ORACLE / SHARDED, TOKENS)[1], rtol=0)


def test_a_tensor_that_nothing_uses(whole):
    extra = {"model.layers.0.self_attn.gate.weight": np.ones((2, 2), np.float32)}
    rewrite(whole / "model.safetensors", lambda arrays: arrays.update(extra))
    with pytest.raises(
        ValueError, match=r"safetensors: 1 tensors that nothing uses: \['model.layers.0.self_attn.gate.weight'\]"
    ):
        read_pretrained(whole, TOKENS)


def test_known_needless_tensors_are_passed_over_and_listed(whole):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    rewrite(whole / "model.safetensors", lambda arrays: arrays.update(extra))
    assert read_pretrained(whole, TOKENS)[2].skipped == tuple(extra)
    assert read_pretrained(ORACLE / WHOLE, TOKENS)[2].skipped == ()


def test_every_parameter_is_set_from_the_file(monkeypatch):
    monkeypatch.setattr("rlvr_jax.policy.families.np.empty", lambda shape, dtype: np.full(shape, np.nan, dtype))
    for name in (SHARDED, WHOLE, "gemma3"):
        _, params, _ = load_pretrained(ORACLE / name, TOKENS)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_values_that_are_not_finite(whole):
    name = "model.layers.0.mlp.up_proj.weight"
    rewrite(whole / "model.safetensors", lambda arrays: arrays[name].__setitem__((1, 2), np.inf))
    load = read_pretrained(whole, TOKENS)[2]
    with pytest.raises(ValueError, match=rf"model.safetensors: tensor '{name}' holds values that are not finite"):
        load()


# --- tied or not ---


@functools.cache
def by_hand():
    """Embedding [[1,0],[0,1],[1,1]], head [[2,0],[0,3],[1,-1]]."""
    shape = Architecture(vocabulary=3, width=2, layers=1, heads=1, kv_heads=1, head_size=2, hidden=2, tied=True)
    params = jax.tree.map(np.asarray, make_policy(shape).init(jax.random.key(0)))
    params["embed"]["embedding"] = np.float32([[1, 0], [0, 1], [1, 1]])
    return shape, params


@pytest.mark.parametrize(
    ("tied", "head", "wanted"),
    [
        (True, None, [1, 2, 3]),
        (False, [[2, 0], [0, 3], [1, -1]], [2, 6, -1]),
        (False, None, "tensor 'lm_head.weight' is missing"),
        (True, [[1, 0], [0, 1], [1, 1]], [1, 2, 3]),
        (True, [[2, 0], [0, 3], [1, -1]], "'lm_head.weight' differs from 'model.embed_tokens.weight'"),
        (True, [[1, 0], [0, 1]], "'lm_head.weight' differs"),
    ],
)
def test_the_output_head(tmp_path, tied, head, wanted):
    # logits of the hidden state [1, 2]: of the embedding 1 2 3, of the head 2 6 −1
    out = save_pretrained(tmp_path / "model", *by_hand())
    rewrite_json(out / "config.json", lambda config: config.update(tie_word_embeddings=tied))
    if head is not None:
        rewrite(out / "model.safetensors", lambda arrays: arrays.update({"lm_head.weight": np.float32(head)}))
    if isinstance(wanted, str):
        with pytest.raises(ValueError, match=wanted):
            read_pretrained(out, TOKENS_OF_THREE)
        return
    policy, params, _ = load_pretrained(out, TOKENS_OF_THREE)
    hidden = jnp.asarray([[1.0, 2.0]])
    assert policy.logits(params, hidden).tolist() == [wanted]
    assert ("head" in params) is not tied  # one parameter where it is tied, and so it stays in training
    slope = jax.grad(lambda params: policy.logits(params, hidden)[0, 1])(params)
    assert slope["embed"]["embedding"].tolist() == ([[0, 0], [1, 2], [0, 0]] if tied else [[0, 0]] * 3)
    assert read_pretrained(out, TOKENS_OF_THREE)[2].skipped == (("lm_head.weight",) if tied and head else ())


TOKENS_OF_THREE = make_tokenizer("bytes(alphabet='0')")


# --- a header is not to be trusted ---


def with_header(path, header, data=b"\0" * 64):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"[]", "no dictionary"),
        (b"{ ", "damaged"),
        (b'{"a": 1, "a": 1}', "a key appears twice"),
        (b"[" * 100_000, "damaged"),
        (b"\xff\xfe{}", "damaged"),
        ({"a": 1}, "tensor 'a' is 1"),
        ({"a": {"dtype": "F4", "shape": [16], "data_offsets": [0, 64]}}, "tensor 'a' is"),
        ({"a": {"dtype": "F32", "shape": [-4, -4], "data_offsets": [0, 64]}}, "tensor 'a' is"),
        ({"a": {"dtype": "F32", "shape": [16.0], "data_offsets": [0, 64]}}, "tensor 'a' is"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 64]}}, "tensor 'a' is"),
        ({"a": {"dtype": "F32", "shape": [10**30], "data_offsets": [0, 64]}}, "tensor 'a' is"),
        ({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 64]}}, "of shape .* has 64 bytes"),
        ({"a": {"dtype": "F32", "shape": [16], "data_offsets": [64, 0]}}, "has -64 bytes"),
        ({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0]}}, "tensor 'a' is"),
        ({"a": {"dtype": "F32", "shape": [16], "data_offsets": [64, 128]}}, "begins at 64, not at 0"),
        (
            {name: {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]} for name in "ab"},
            "tensor 'b' begins at 0, not at 32",
        ),
        ({"a": {"dtype": "F32", "shape": [32], "data_offsets": [0, 128]}}, "cut short"),
    ],
)
def test_damaged_headers(tmp_path, header, says):
    with pytest.raises(ValueError, match=rf"x.safetensors: .*{says}"):
        read_file(with_header(tmp_path / "x.safetensors", header))


def test_a_header_longer_than_any(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(ValueError, match="not a safetensors file .a header of 9,223,372,036,854,775,808 bytes"):
        read_file(path)


def test_dtypes(tmp_path):
    path = tmp_path / "x.safetensors"
    values = np.float32([[1.5, -2.0], [3.25, 0.125]])
    for dtype, kind in (("float32", np.float32), ("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        write_file(path, [("a", (2, 2)), ("b", (2,))], {"a": values, "b": values[0]}.get, dtype)
        found = read_file(path)
        assert found.stored("a").dtype == kind and found["a"].dtype == np.float32
        assert found["a"].tolist() == values.tolist() and found["b"].tolist() == values[0].tolist()
    header = {"a": {"dtype": "I32", "shape": [16], "data_offsets": [0, 64]}}
    with pytest.raises(ValueError, match=r"tensor 'a' has dtype I32; supported: \['F32', 'F16', 'BF16'\]"):
        read_file(with_header(path, header))["a"]


@pytest.mark.parametrize("file", ["../whole/model.safetensors", "/etc/passwd", "a/../b.safetensors", "x.bin", 3])
def test_an_index_names_files_of_its_folder_only(shards, file):
    def change(index):
        index["weight_map"]["lm_head.weight"] = file

    rewrite_json(shards / "model.safetensors.index.json", change)
    with pytest.raises(ValueError, match=r"index.json: tensor 'lm_head.weight' is said to be in .*beside it"):
        read_pretrained(shards, TOKENS)


def test_an_index_that_its_files_contradict(shards):
    name = next(iter(read_file(shards / SECOND)))

    def change(index):
        index["weight_map"][name] = "model-00001-of-00007.safetensors"

    rewrite_json(shards / "model.safetensors.index.json", change)
    with pytest.raises(ValueError, match=rf"tensor '{name}' belongs in 'model-00001-of-00007"):
        read_pretrained(shards, TOKENS)
    (shards / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ValueError, match=r"index.json: no weight_map"):
        read_pretrained(shards, TOKENS)


def test_what_is_not_there(tmp_path, whole):
    with pytest.raises(FileNotFoundError, match=r"model='.*none': no such file"):
        read_pretrained(tmp_path / "none", TOKENS)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match=r"empty/config.json: no such file; it says what the weights"):
        read_pretrained(tmp_path / "empty", TOKENS)
    shutil.copy(whole / "config.json", tmp_path / "empty")
    (tmp_path / "empty" / "pytorch_model.bin").touch()
    with pytest.raises(FileNotFoundError, match=r"neither model.safetensors nor .*it has \['config.json', 'pytorch_mo"):
        read_pretrained(tmp_path / "empty", TOKENS)
    for text, says in (("{", "not JSON"), ("[]", "expected a dictionary, found list")):
        (whole / "config.json").write_text(text)
        with pytest.raises(ValueError, match=f"config.json: {says}"):
            read_pretrained(whole, TOKENS)
    with pytest.raises(FileNotFoundError, match=r"tokenizer.json does not exist"):
        read_pretrained(ORACLE / WHOLE)


# --- ways in ---


def test_one_file_beside_its_config_is_the_folder(whole):
    found = read_pretrained(whole / "model.safetensors", TOKENS)
    wanted = read_pretrained(whole, TOKENS)
    assert found[0] == wanted[0]
    tiny.assert_trees_close(found[2](), wanted[2](), rtol=0, atol=0)


@pytest.mark.parametrize("name", [SHARDED, "gemma2"])
def test_each_parameter_leaves_the_host_before_the_next_is_built(name):
    architecture, _, load = read_pretrained(ORACLE / name, TOKENS)
    wanted, alive, seen = load(), [], {}

    def put(path, array):
        assert array.dtype == np.float32 and type(array) is np.ndarray
        assert all(reference() is None for reference in alive), path
        alive.append(weakref.ref(array))
        seen[path] = array.shape
        return array.copy()

    tiny.assert_trees_close(load(put), wanted, rtol=0, atol=0)
    shapes = jax.eval_shape(make_policy(architecture).init, jax.random.key(0))
    paths = {jax.tree_util.keystr(path, simple=True, separator="/"): x for path, x in jax.tree.leaves_with_path(shapes)}
    assert seen == {path: leaf.shape for path, leaf in paths.items()}


def text_tokenizer(**options):
    words = ["<s>", "</s>", "<|eot|>", "a", "b", "ab"]
    core = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=[("a", "b")])
    )
    core.add_special_tokens(words[:3])
    return TextTokenizer(core, "words", end_ids=(1, 2), bos_id=0, add_bos=True, **options)


def test_a_tokenizer_goes_with_the_weights(tmp_path):
    template = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer = text_tokenizer(pad_id=1, chat_template=template)
    shape, params = tiny.architecture(), tiny.make()[1]
    out = save_pretrained(tmp_path / "first", shape, params, tokenizer)
    config = json.loads((out / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]) == (0, [1, 2], 1)
    copied = save_pretrained(tmp_path / "second", shape, params, source=out)
    for folder in (out, copied):
        found = load_pretrained(folder)[2]
        assert (found.end_ids, found.pad_id, found.bos_id, found.add_bos) == ((1, 2), 1, 0, True)
        # the start token once, whether the template writes it or not
        text = found.apply_chat_template([{"role": "user", "content": "ab"}])
        assert text == "<s>ab" and found.encode(text) == found.encode("ab") == [0, 5]
        assert found.encode("ab", start=False) == [5]
    assert json.loads((copied / "config.json").read_text()) == config
    assert not (tmp_path / "third").exists()


def test_special_ids_beyond_the_vocabulary(tmp_path):
    shape, params = tiny.architecture(vocabulary=2), tiny.make(vocabulary=2)[1]
    out = save_pretrained(tmp_path / "model", shape, params)
    with pytest.raises(ValueError, match="special id 2 of tokenizer 'words' is beyond the model's vocabulary of 2"):
        read_pretrained(out, text_tokenizer())


def test_run_options_and_the_written_config_are_apart(tmp_path):
    shape, params = tiny.architecture(dtype="bfloat16", remat="dots", scan_layers=False), tiny.make()[1]
    assert config_from_architecture(shape) == config_from_architecture(tiny.architecture())
    out = save_pretrained(tmp_path / "model", shape, params)
    found = read_pretrained(out, TOKENS_OF_THREE, dtype="bfloat16", remat="block")[0]
    assert (found.dtype, found.remat, found.scan_layers) == ("bfloat16", "block", True)
