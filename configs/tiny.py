"""A policy of under a million parameters learns one-digit sums from scratch (`make demo-tiny`), in about a minute.

    rlvr train --config=configs/tiny.py:grpo --workdir=runs/tiny
"""

from rlvr_jax.config import defaults
from rlvr_jax.tokenizer import ARITHMETIC_ALPHABET


def get_config(estimator: str = "grpo"):
    config = defaults(estimator)
    config.task = "arithmetic(largest=4)"
    config.tokenizer = f"bytes(alphabet={ARITHMETIC_ALPHABET!r})"
    config.steps = 150
    config.prompts_per_step = 16
    config.group_size = 16
    config.model.width = 64
    config.model.hidden = 256
    config.sampling.prompt_length = 4
    config.sampling.completion_length = 3
    config.optimizer.learning_rate = 3e-3
    config.optimizer.warmup = 5
    config.evaluate.every = 50
    config.evaluate.problems = 5
    return config
