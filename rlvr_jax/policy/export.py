"""A policy's parameters → a checkpoint folder that transformers opens and `load_pretrained` reads back, bit for bit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rlvr_jax.policy.families import Leaf, config_from_architecture, leaves_of
from rlvr_jax.policy.safetensors_file import DTYPES, INDEX, NAMES, SINGLE, write_file
from rlvr_jax.policy.transformer import Architecture
from rlvr_jax.tokenizer import TextTokenizer, Tokenizer
from rlvr_jax.types import PyTree

# What a checkpoint folder has beside weights and config.json, and a trained copy keeps.
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "chat_template.jinja",
    "generation_config.json",
)


def save_pretrained(
    folder: str | Path,
    architecture: Architecture,
    params: PyTree,
    tokenizer: Tokenizer | None = None,
    source: str | Path | None = None,
    dtype: str = "float32",
    shard_bytes: int = 5_000_000_000,
) -> Path:
    """Writes `folder`: model.safetensors (or shards of at most `shard_bytes` with their index), config.json, and the
    tokenizer's files. The folder appears whole or not at all.

    Args:
      params: as `Policy.init` makes them, numpy or on devices; one layer of one parameter is fetched at a time.
        Adapters must be merged (`Lora.merge`).
      tokenizer: a TextTokenizer is written as tokenizer.json, its end tokens and template beside it.
      source: the folder of the checkpoint trained from: its tokenizer files are copied as they are, and its token ids
        go into config.json. Takes precedence over `tokenizer`; a GGUF file has none, and is passed over.
      dtype: of the weights: "float32", "bfloat16" or "float16". Only float32 comes back bit for bit.

    Raises:
      FileExistsError: the folder holds something.
      ValueError: another dtype, parameters that are not those of the architecture or not finite in `dtype`, or an
        architecture of no family.
    """
    folder = Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder}: there is something already; choose a new or an empty folder")
    if dtype not in NAMES:
        raise ValueError(f"dtype={dtype!r}; choose from {list(NAMES)}")
    config = {**config_from_architecture(architecture), "torch_dtype": dtype}
    leaves = leaves_of(architecture)
    values = _by_path(params, leaves)
    with _appearing(folder) as target:
        config |= _tokenizer_files(target, tokenizer, source)
        _write_json(target / "config.json", config)
        _write_weights(target, leaves, values, dtype, shard_bytes)
    return folder


@contextlib.contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """A folder beside `folder` to write into, which takes its name when all is written and goes when it is not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    target = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield target
        umask = os.umask(0)
        os.umask(umask)
        target.chmod(0o777 & ~umask)
        os.replace(target, folder)  # takes the place of an empty folder, never of a full one
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _by_path(params: PyTree, leaves: list[Leaf]) -> dict[str, Any]:
    if set(params) == {"base", "lora"}:
        raise ValueError("params: adapters are apart from the base; pass Lora.merge(params)")
    if isinstance(params.get("blocks"), tuple):
        raise ValueError("params: blocks are a tuple, as for decoding; pass the stacked ones")
    paths = jax.tree_util.tree_leaves_with_path(params)
    found = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
    wanted = {leaf.path: leaf.shape for leaf in leaves}
    if odd := sorted(set(found) ^ set(wanted)):
        where = "more than" if odd[0] in found else "without"
        raise ValueError(f"params are {where} those of the architecture: {odd[:6]}")
    for path, shape in wanted.items():
        if tuple(found[path].shape) != shape:
            raise ValueError(f"params: {path} has shape {tuple(found[path].shape)}, the architecture says {shape}")
    return found


def _write_weights(target: Path, leaves: list[Leaf], values: Mapping, dtype: str, shard_bytes: int) -> None:
    places = {name: (leaf, layer) for leaf in leaves for layer, name in enumerate(leaf.tensors)}

    def get(name: str) -> np.ndarray:
        leaf, layer = places[name]
        array = np.asarray(values[leaf.path][layer] if leaf.stacked else values[leaf.path])
        with np.errstate(over="ignore"):
            stored = (array.T if leaf.path.endswith("/kernel") else array).astype(DTYPES[NAMES[dtype]])
        if not np.isfinite(stored).all():
            raise ValueError(f"params: {leaf.path} of tensor {name!r} is not finite as {dtype}")
        return stored

    shapes = {name: leaf.stored_shape for name, (leaf, _) in places.items()}
    size = lambda name: int(np.prod(shapes[name])) * DTYPES[NAMES[dtype]].itemsize
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name in sorted(shapes, key=_reading_order):
        if shards[-1] and size(name) > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= size(name)
    files = [SINGLE]
    if len(shards) > 1:
        files = [f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards))]
        weight_map = {name: file for file, names in zip(files, shards) for name in names}
        total = {"total_size": sum(map(size, shapes))}
        _write_json(target / INDEX, {"metadata": total, "weight_map": weight_map})
    for file, names in zip(files, shards):
        write_file(target / file, [(name, shapes[name]) for name in names], get, dtype)


def _reading_order(name: str) -> tuple:
    """Layer by layer, what is of no layer first."""
    parts = name.split(".")
    return (1, int(parts[2]), name) if parts[1] == "layers" else (0, 0, name)


def _write_json(path: Path, content: Mapping) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _tokenizer_files(target: Path, tokenizer: Tokenizer | None, source: str | Path | None) -> dict:
    """Writes or copies them; returns the token ids that belong in config.json."""
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    if source is not None and Path(source).is_dir():
        for name in TOKENIZER_FILES:
            if (Path(source) / name).is_file():
                shutil.copyfile(Path(source) / name, target / name)
        config = Path(source) / "config.json"
        given = json.loads(config.read_bytes()) if config.is_file() else {}
        return {key: given[key] for key in keys if given.get(key) is not None}
    if tokenizer is None:
        return {}
    ends = list(tokenizer.end_ids)
    ids = dict(zip(keys, (tokenizer.bos_id, ends if len(ends) > 1 else ends[0], tokenizer.pad_id)))
    ids = {key: value for key, value in ids.items() if value is not None}
    _write_json(target / "generation_config.json", ids)
    if isinstance(tokenizer, TextTokenizer):
        tokenizer.core.save(str(target / "tokenizer.json"))
        text = lambda i: None if i is None else tokenizer.core.id_to_token(i)
        settings = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": text(ends[0]),
            "pad_token": text(tokenizer.pad_id),
            "bos_token": text(tokenizer.bos_id),
            "add_bos_token": tokenizer.add_bos,
            "chat_template": tokenizer.chat_template,
            "clean_up_tokenization_spaces": False,
        }
        _write_json(
            target / "tokenizer_config.json", {key: value for key, value in settings.items() if value is not None}
        )
    return ids
