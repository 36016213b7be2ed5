"""A model file → a policy, its parameters and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlvr_jax.policy.gguf import params_from_gguf, read_gguf, resolve_model_path
from rlvr_jax.policy.policy import Policy, make_policy
from rlvr_jax.policy.transformer import Architecture
from rlvr_jax.tokenizer import TextTokenizer, Tokenizer
from rlvr_jax.types import PyTree


def read_pretrained(path: str | Path, **run_options: Any):
    """Reads and checks the header of a model file; its weights come with the returned `load()`.

    Returns (Architecture, Tokenizer, load), load() → params as numpy arrays. `run_options` are fields of
    `Architecture` that say how to run the model (dtype, scan_layers, remat).

    Raises:
      FileNotFoundError: no such file, or the package of "package:NAME/FILE" is not installed.
      ValueError: damaged, cut short, or of an architecture that is not supported.
    """
    model = read_gguf(resolve_model_path(path))
    sizes = {name: value for name, value in model.architecture.items() if name != "context_length"}
    tokenizer = TextTokenizer.from_gguf(model.tokenizer_fields, name=Path(model.path).stem)
    return Architecture(**sizes, **run_options), tokenizer, lambda: params_from_gguf(model)


def load_pretrained(path: str | Path, **run_options: Any) -> tuple[Policy, PyTree, Tokenizer]:
    """path → (policy, params, tokenizer); see `read_pretrained` for arguments and errors.

    params is a nested dict of float32 numpy arrays; tied embeddings are one parameter.
    """
    architecture, tokenizer, load = read_pretrained(path, **run_options)
    return make_policy(architecture), load(), tokenizer
