"""Policies and rollouts small enough to check by hand or by loops, for all tests."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rlvr_jax.config import defaults
from rlvr_jax.policy import Architecture, Policy, make_policy
from rlvr_jax.tasks import Problem
from rlvr_jax.tokenizer import left_pad
from rlvr_jax.types import Batch, Prompts

SIZES = {
    "vocabulary": 13,
    "width": 16,
    "layers": 2,
    "heads": 4,
    "kv_heads": 2,
    "head_size": 4,
    "hidden": 24,
    "rope_theta": 100.0,
}


def architecture(**changes) -> Architecture:
    return Architecture(**{**SIZES, **changes})


@functools.cache
def make(**changes) -> tuple[Policy, dict]:
    """(policy, parameters), equal for equal sizes however they are run; no norm scale is 1. Nothing is compiled."""
    policy = make_policy(architecture(**changes))
    rng = np.random.default_rng(2)

    def fill(path, leaf):
        noise = rng.standard_normal(leaf.shape).astype(np.float32)
        if path[-1].key == "scale":
            return jnp.asarray(1 + 0.2 * noise)
        return jnp.asarray(noise * leaf.shape[-1 if path[-1].key == "embedding" else -2] ** -0.5)

    return policy, jax.tree_util.tree_map_with_path(fill, jax.eval_shape(policy.init, jax.random.key(1)))


def random_prompts(seed, lengths, width=None, vocabulary=13, pad_id=0) -> Prompts:
    """Prompts of the given lengths, left-padded to `width`; real tokens may equal the pad id. Equal seeds give
    equal prompts at every width."""
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, vocabulary, length).tolist() for length in lengths]
    tokens, mask = left_pad(rows, width or max(lengths), pad_id)
    return Prompts(
        tokens=jnp.asarray(tokens),
        mask=jnp.asarray(mask),
        prompt_id=jnp.arange(len(rows), dtype=jnp.int32),
    )


def random_batch(seed, prompts=4, group=4, width=5, length=4, vocabulary=13) -> Batch:
    """Ragged rows with rows that do not count, rows of advantage 0, and all log-probabilities near −2."""
    rng = np.random.default_rng(seed)
    rows = prompts * group
    prompt = random_prompts(seed, rng.integers(1, width + 1, prompts).tolist(), width, vocabulary)
    repeat = lambda x: np.repeat(np.asarray(x), group, axis=0)
    lengths = rng.integers(1, length + 1, rows)
    logprobs = lambda: rng.normal(-2.0, 0.4, (rows, length)).astype(np.float32)
    advantages = rng.standard_normal(rows).astype(np.float32)
    advantages[:group] = 0.0  # a prompt without contrast
    valid = np.ones(rows, bool)
    valid[-2] = False
    completions = rng.integers(0, vocabulary, (rows, length)).astype(np.int32)
    batch = Batch(
        tokens=np.concatenate([repeat(prompt.tokens), completions], axis=1),
        prompt_mask=repeat(prompt.mask),
        completion_mask=np.arange(length)[None, :] < lengths[:, None],
        advantages=np.where(valid, advantages, 0.0).astype(np.float32),
        group=np.repeat(np.arange(prompts, dtype=np.int32), group),
        valid=valid,
        behaviour_logprobs=logprobs(),
        old_logprobs=logprobs(),
    )
    return jax.tree.map(jnp.asarray, batch)


class FixedTask:
    """A task whose prompts have the given lengths in tokens (bytes)."""

    def __init__(self, lengths):
        self.lengths = lengths

    def problems(self, split):
        return [Problem(i, chr(97 + i % 26) * length, "0") for i, length in enumerate(self.lengths)]

    def render(self, problem, tokenizer):
        return problem.prompt


def get_config(estimator: str = "grpo"):
    """The config of a run of these sizes: 16 prompts × 16 completions of 20 problems, 5 others held out."""
    config = defaults(estimator)
    config.task = "arithmetic(largest=4)"
    config.tokenizer = "bytes"
    config.steps = 3
    config.prompts_per_step = config.group_size = 16
    config.model.width, config.model.hidden, config.model.layers = 16, 24, 1
    config.sampling.prompt_length = 4
    config.sampling.completion_length = 3
    config.optimizer.learning_rate = 3e-3
    config.evaluate.problems = 5
    return config


def on_devices(devices: int, code: str) -> dict:
    """What `code` leaves in `result`, run in a process of its own with that many devices."""
    here = Path(__file__).parent
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "PYTHONPATH": str(here),
    }
    program = f"import json, jax\nassert jax.device_count() == {devices}\n{code}\nprint(json.dumps(result))"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=here.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def assert_trees_close(found, wanted, **tolerance):
    """Leaf by leaf, naming the leaf."""
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for (path, a), b in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(wanted)):
        np.testing.assert_allclose(a, b, err_msg=jax.tree_util.keystr(path), **tolerance)
