"""A policy of 0.1 M parameters learns one-digit sums from scratch (`make demo-tiny`), in about a minute on 2 cores.

    rlvr train --config=configs/tiny.py:grpo --workdir=runs/tiny

It starts from a uniform policy: one completion in 225 is right. What it learns is a table: nearly all of 34 sums, and
none that it has never seen. So it is evaluated on its training problems, and the report says so.
"""

from rlvr_jax.config import defaults
from rlvr_jax.tokenizer import ARITHMETIC_ALPHABET


def get_config(estimator: str = "grpo"):
    config = defaults(estimator)
    config.task = "arithmetic(largest=5, held_out=2)"
    config.tokenizer = f"bytes(alphabet={ARITHMETIC_ALPHABET!r})"
    config.steps = 250
    config.prompts_per_step = 16
    config.group_size = 16
    config.sampling.prompt_length = 4
    config.sampling.completion_length = 3
    config.updates.entropy_bonus = 0.05
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup = 5
    config.evaluate.every = 50
    config.checkpoint.every = 50
    config.evaluate.split = "train"
    config.evaluate.problems = 34
    return config
