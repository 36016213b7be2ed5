"""One chip (Colab's v5e-1, or one of Kaggle's): a 0.5 B model learns sums and differences, low-rank adapters alone.

    rlvr train --config=configs/colab.py:dr_grpo --workdir=runs/colab

Put Qwen2.5-0.5B-Instruct (safetensors, config.json, tokenizer.json; 1 GB) where `model.path` says, or set that key.
Not run on a TPU yet. By arithmetic: 494 M parameters in float32 are 1.8 GiB, the adapters with their moments 0.1 GiB,
the cache of 128 rows 0.2 GiB, logits of one of 4 head chunks over 151,936 words 0.2 GiB: far within the 16 GiB of a v5e
chip. What the curve will look like is not known: a model of this size gets many of these problems right from the start.
`tpu_setup/colab.ipynb` runs this file.
"""

from rlvr_jax.config import defaults


def get_config(estimator: str = "grpo"):
    config = defaults(estimator)
    config.task = "addsub10(held_out=50)"
    config.steps = 60
    config.prompts_per_step = 16
    config.group_size = 8
    config.model.path = "Qwen2.5-0.5B-Instruct"
    config.model.dtype = "bfloat16"
    config.lora.rank = 16
    config.sampling.prompt_length = 96
    config.sampling.completion_length = 32
    config.updates.micro_batch_rows = 32
    config.updates.head_chunks = 4
    config.optimizer.learning_rate = 1e-4
    config.optimizer.warmup = 3
    config.evaluate.every = 20
    config.evaluate.problems = 50
    config.checkpoint.every = 20
    return config
