"""The nouns of the house, as immutable pytrees.

Shape legend, used as suffixes of names everywhere:

    P  prompts                    T  completion length (tokens, the configured maximum)
    G  completions per prompt     S  prompt + completion length (N = S − T is the prompt part)
    B  rows, B = P·G              V  vocabulary     D  width      L  layers
    M  micro-batches              H  heads          K  head size

dtypes: parameters and optimiser f32; activations and cache as configured; logits, log-probabilities, rewards,
advantages and losses f32; tokens i32; masks bool. Log-probabilities, entropies and divergences are in nats.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.verdict import Verdict as Verdict  # one of the nouns; it stands in a file without jax

Array = jax.Array
PyTree = Any


def _frozen_pytree(cls):
    cls = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    cls.replace = lambda self, **changes: dataclasses.replace(self, **changes)
    return functools.partial(jax.tree_util.register_dataclass, meta_fields=[])(
        cls, data_fields=[field.name for field in dataclasses.fields(cls)]
    )


def _is_array(x) -> bool:
    """True for concrete and traced arrays; false for the shape structs, shardings and None that also pass
    through a pytree's constructor, for which defaults must not be computed."""
    return isinstance(x, (jax.Array, np.ndarray))


def _accept_lists(instance) -> None:
    """Nested lists become arrays: what one types at a prompt is as good as what a program makes."""
    for field in dataclasses.fields(instance):
        if isinstance(getattr(instance, field.name), list):
            object.__setattr__(instance, field.name, jnp.asarray(getattr(instance, field.name)))


def _default(instance, name: str, make):
    if getattr(instance, name) is None:
        object.__setattr__(instance, name, make())


@_frozen_pytree
class Prompts:
    """What data hands to the sampler. Answers stay on the host: strings never enter a pytree.

    Example: the prompts "7+5=" and "1=" as bytes, N = 4:
    tokens [[55, 43, 53, 61], [0, 0, 49, 61]], mask [[1, 1, 1, 1], [0, 0, 1, 1]].
    """

    tokens: Array  # i32[P, N], left-padded
    mask: Array  # bool[P, N], true on real tokens
    prompt_id: Array  # i32[P], index of the problem in its source (keys per-prompt memory)


@_frozen_pytree
class Rollouts:
    """What the sampler returns: G rows for each prompt, rows of one prompt adjacent."""

    tokens: Array  # i32[B, S], prompt (left-padded), then completion (right-padded)
    prompt_mask: Array  # bool[B, N]
    completion_mask: Array  # bool[B, T], tokens the policy wrote, up to and including the end token
    attend_mask: Array  # bool[B, T], every real token after the prompt (a tool's too)
    behaviour_logprobs: Array  # f32[B, T], of the distribution really sampled; 0 where masked
    full_logprobs: Array  # f32[B, T], of the tempered distribution before anything was cut off; 0 where masked
    finished: Array  # bool[B], an end token was sampled; not finished = truncated
    prompt_id: Array  # i32[B]

    @property
    def lengths(self) -> Array:
        """i32[B], tokens the policy wrote, the end token included."""
        return self.completion_mask.sum(axis=-1, dtype=jnp.int32)


@_frozen_pytree
class Groups:
    """All that an advantage estimator may see: no tokens.

    Only `outcome` and `lengths` must be given; the others get neutral defaults.
    Example: one prompt, four completions, the first right: outcome [[1, 0, 0, 0]], lengths [[2, 4, 6, 8]].
    """

    outcome: Array  # f32[P, G], the verifier's verdict before any shaping, usually 0 or 1
    lengths: Array  # i32[P, G], tokens of the completion
    rewards: Array = None  # f32[P, G], after `shape`; default: outcome
    finished: Array = None  # bool[P, G]; default: all true
    stratum: Array = None  # i32[P, G], structural class (number of tool calls); default: 0
    valid: Array = None  # bool[P, G], false: no part of any statistic; default: all true
    prompt_id: Array = None  # i32[P]; default: 0 … P−1

    def __post_init__(self):
        _accept_lists(self)
        if not _is_array(self.outcome):
            return
        shape = self.outcome.shape
        _default(self, "rewards", lambda: self.outcome)
        _default(self, "finished", lambda: jnp.ones(shape, bool))
        _default(self, "stratum", lambda: jnp.zeros(shape, jnp.int32))
        _default(self, "valid", lambda: jnp.ones(shape, bool))
        _default(self, "prompt_id", lambda: jnp.arange(shape[0], dtype=jnp.int32))


@_frozen_pytree
class Batch:
    """Rows for the gradient.

    Only `completion_mask` and `advantages` must be given. `old_logprobs` None means: the policy being
    differentiated is still the one that starts the step (one update per rollout batch), so every ratio is 1 and
    its gradient is the policy gradient.
    """

    completion_mask: Array  # bool[B, T]
    advantages: Array  # f32[B], or f32[B, T] from a token-level part; zero where invalid
    old_logprobs: Array | None = None  # f32[B, T], the learner's at the start of the step
    behaviour_logprobs: Array | None = None  # f32[B, T], the sampler's; default: old_logprobs
    reference_logprobs: Array | None = None  # f32[B, T], only when slot `kl` needs it
    full_logprobs: Array | None = None  # f32[B, T], as in Rollouts; what the learner's are compared with
    group: Array = None  # i32[B], which group of this batch a row belongs to; default: each row its own
    valid: Array = None  # bool[B], false: no loss, and in no denominator; default: all true
    tokens: Array | None = None  # i32[B, S], as in Rollouts; not needed by the estimator
    prompt_mask: Array | None = None  # bool[B, N], as in Rollouts; not needed by the estimator
    attend_mask: Array = None  # bool[B, T], as in Rollouts; default: completion_mask

    def __post_init__(self):
        _accept_lists(self)
        if not _is_array(self.completion_mask):
            return
        rows = self.completion_mask.shape[0]
        _default(self, "behaviour_logprobs", lambda: self.old_logprobs)
        _default(self, "attend_mask", lambda: self.completion_mask)
        _default(self, "group", lambda: jnp.arange(rows, dtype=jnp.int32))
        _default(self, "valid", lambda: jnp.ones((rows,), bool))


@_frozen_pytree
class TrainState:
    """Everything that must survive a preemption. No key (derived from seed and step), no function."""

    step: Array  # i32[], rollout batches consumed (not optimiser updates)
    params: PyTree  # {"policy": …, "estimator": …}, f32; "estimator" is {} unless a part learns
    opt_state: PyTree
    memory: PyTree  # what stateful parts of the estimator remember; {} if none does
