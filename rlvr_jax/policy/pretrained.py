"""A model file or folder → a policy, its parameters and its tokenizer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlvr_jax.policy.families import Leaf, architecture_from_config, check_tensors, fill, leaves_of
from rlvr_jax.policy.gguf import checked_leaves, params_from_gguf, read_gguf, resolve_model_path
from rlvr_jax.policy.policy import Policy, make_policy
from rlvr_jax.policy.safetensors_file import SafeTensors, read_file, read_folder
from rlvr_jax.policy.transformer import Architecture
from rlvr_jax.tokenizer import TextTokenizer, Tokenizer, make_tokenizer
from rlvr_jax.types import PyTree

__all__ = ["Weights", "load_pretrained", "read_pretrained", "resolve_model_path"]

CONFIG = "config.json"
# Buffers that old checkpoints carry along and nobody reads: they follow from the config.
HARMLESS = re.compile(r"\.rotary_emb\.inv_freq$|\.self_attn\.(masked_bias|bias)$")
_ROWS = 4096  # compared at once


class Weights:
    """`weights(put=None)` → params, read from files that have been opened and checked.

    put(path, array) is called for each parameter as soon as it is built and float32 on the host; what it returns takes
    the array's place. Paths are those of `rlvr_jax.sharding.path_name`, such as "blocks/attention/query/kernel"
    ([L, in, out]). With a `put` that moves arrays to devices the host never holds more than one of them.

    skipped  names of tensors in the files that are known to be needless
    """

    def __init__(self, load: Callable, skipped: tuple[str, ...] = ()):
        self._load, self.skipped = load, skipped

    def __call__(self, put: Callable[[str, np.ndarray], Any] | None = None) -> PyTree:
        return self._load(put)


def read_pretrained(path: str | Path, tokenizer: Tokenizer | str | None = None, **run_options: Any):
    """Reads and checks the headers of a model; its weights come with the returned `load()`.

    Args:
      path: a GGUF file; a folder with config.json, model.safetensors or model.safetensors.index.json and its shards,
        and tokenizer.json; or one .safetensors file with the others beside it. Or "package:NAME/FILE".
      tokenizer: one, or a name for `make_tokenizer`; takes the place of the model's own, which then need not be there.
      run_options: fields of `Architecture` that say how to run the model (dtype, scan_layers, remat).

    Returns (Architecture, Tokenizer, `Weights`), load() → params as numpy arrays.

    Raises:
      FileNotFoundError: no such file, or the package of "package:NAME/FILE" is not installed.
      ValueError: damaged, cut short, of a family or with a setting that is not supported, or tensors that are missing,
        of another shape than the config says, or of no use; names file, tensor and shapes.
    """
    path = resolve_model_path(path)
    if isinstance(tokenizer, str):
        tokenizer = make_tokenizer(tokenizer) if tokenizer else None
    if path.is_dir() or path.suffix == ".safetensors":
        return _read_safetensors(path, tokenizer, run_options)
    model = read_gguf(path)
    checked_leaves(model)
    if tokenizer is None:
        tokenizer = TextTokenizer.from_gguf(model.tokenizer_fields, name=path.stem)
    architecture = Architecture(**model.architecture, **run_options)
    check_ids(tokenizer, architecture, str(path))
    return architecture, tokenizer, Weights(lambda put=None: params_from_gguf(model, put))


def load_pretrained(
    path: str | Path, tokenizer: Tokenizer | str | None = None, **run_options: Any
) -> tuple[Policy, PyTree, Tokenizer]:
    """path → (policy, params, tokenizer); see `read_pretrained` for arguments and errors.

    params is a nested dict of float32 numpy arrays; tied embeddings are one parameter.
    """
    architecture, tokenizer, load = read_pretrained(path, tokenizer, **run_options)
    return make_policy(architecture), load(), tokenizer


def read_config(path: Path) -> dict:
    """The dictionary of a config.json; ValueError where it is none, FileNotFoundError where there is none."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file; it says what the weights beside it compute")
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{path}: expected a dictionary, found {type(config).__name__}")
    return config


def _read_safetensors(path: Path, tokenizer: Tokenizer | None, run_options: dict):
    folder = path if path.is_dir() else path.parent
    config = folder / CONFIG
    architecture = Architecture(**architecture_from_config(read_config(config), str(config)), **run_options)
    tensors = read_folder(path) if path.is_dir() else read_file(path)
    leaves = leaves_of(architecture)
    skipped = [name for name in tensors if HARMLESS.search(name)]
    if architecture.tied and "lm_head.weight" in tensors:
        _refuse_another_head(tensors, leaves)
        skipped.append("lm_head.weight")
    check_tensors(set(tensors) - set(skipped), tensors, leaves, str(tensors.where))
    if tokenizer is None:
        tokenizer = TextTokenizer.from_file(folder)
    check_ids(tokenizer, architecture, str(path))
    return architecture, tokenizer, Weights(lambda put=None: fill(leaves, tensors, put), tuple(skipped))


def _refuse_another_head(tensors: SafeTensors, leaves: list[Leaf]) -> None:
    """Raises ValueError where a file says that the head is the embedding, and has a head that is not."""
    name = next(leaf.tensors[0] for leaf in leaves if leaf.path == "embed/embedding")
    same = tensors.shape(name) == tensors.shape("lm_head.weight")
    if same:
        head, embedding = tensors.stored("lm_head.weight"), tensors.stored(name)
        rows = range(0, len(head), _ROWS)
        same = all(np.array_equal(head[row : row + _ROWS], embedding[row : row + _ROWS]) for row in rows)
    if not same:
        raise ValueError(
            f"{tensors.where}: tie_word_embeddings is true, but tensor 'lm_head.weight' differs from {name!r}; set "
            "it to false in config.json to use the head, or take the head out"
        )


def check_ids(tokenizer: Tokenizer, architecture: Architecture, where: str) -> None:
    """Raises ValueError where a special id of the tokenizer is none of the model's vocabulary."""
    for i in {*tokenizer.end_ids, tokenizer.pad_id, tokenizer.bos_id} - {None}:
        if i >= architecture.vocabulary:
            raise ValueError(
                f"{where}: special id {i} of tokenizer {tokenizer.name!r} is beyond the model's vocabulary of "
                f"{architecture.vocabulary}"
            )
