"""Qwen2.5-1.5B on eight chips, all weights trained.

    rlvr plan --config=configs/pod_1p5b.py:dr_grpo --slice=v5e:2x4

Neither model nor problems come with the project: put them where `model.path` and `task` say, or set these keys.
"""

from rlvr_jax.config import defaults


def get_config(estimator: str = "grpo"):
    config = defaults(estimator)
    config.task = "jsonl(train='math_3_to_5.jsonl', held_out='math_500.jsonl')"
    config.steps = 500
    config.prompts_per_step = 64
    config.group_size = 8
    config.model.path = "Qwen2.5-1.5B"
    config.model.preset = "qwen2.5-1.5b"
    config.model.dtype = "bfloat16"
    config.model.remat = "block"
    config.sampling.prompt_length = 1024
    config.sampling.completion_length = 2048
    config.sampling.rows_at_once = 128  # a multiple of the chips
    config.updates.micro_batch_rows = 32  # a multiple of the chips
    config.updates.head_chunks = 16
    config.optimizer.learning_rate = 1e-6
    config.mesh.sample_model = 2  # one head of keys and values a chip
    config.evaluate.every = 50
    config.evaluate.problems = 500
    config.checkpoint.every = 50
    return config
