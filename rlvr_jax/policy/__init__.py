"""The policy: a decoder behind pure functions over a plain dict of parameters."""

from rlvr_jax.policy.attention import Cache, PromptCache
from rlvr_jax.policy.export import save_pretrained
from rlvr_jax.policy.logprobs import (
    bucket,
    make_logprobs,
    make_predictors,
    needed_row_slots,
    to_rows,
    trim_prompts,
    trimmed_columns,
)
from rlvr_jax.policy.lora import Lora, with_lora
from rlvr_jax.policy.policy import Policy, make_policy
from rlvr_jax.policy.presets import PRESETS, preset
from rlvr_jax.policy.pretrained import load_pretrained, read_pretrained, resolve_model_path
from rlvr_jax.policy.recurrent import Cell, RecurrentArchitecture, from_cell, make_recurrent_policy
from rlvr_jax.policy.transformer import REMAT_POLICIES, Architecture

__all__ = [
    "PRESETS",
    "REMAT_POLICIES",
    "Architecture",
    "Cache",
    "Cell",
    "Lora",
    "Policy",
    "PromptCache",
    "RecurrentArchitecture",
    "bucket",
    "from_cell",
    "load_pretrained",
    "make_logprobs",
    "make_policy",
    "make_predictors",
    "make_recurrent_policy",
    "needed_row_slots",
    "preset",
    "read_pretrained",
    "resolve_model_path",
    "save_pretrained",
    "to_rows",
    "trim_prompts",
    "trimmed_columns",
    "with_lora",
]
