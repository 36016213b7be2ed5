"""Qwen2.5-32B on 64 chips of v5p ("v5p-128" counts cores), all weights trained.

    rlvr plan --config=configs/pod_32b.py:dr_grpo --slice=v5p:4x4x4

Neither model nor problems come with the project: put them where `model.path` and `task` say, or set these keys.
"""

from rlvr_jax.config import defaults


def get_config(estimator: str = "grpo"):
    config = defaults(estimator)
    config.task = "jsonl(train='math_3_to_5.jsonl', held_out='math_500.jsonl')"
    config.steps = 500
    config.prompts_per_step = 128
    config.group_size = 8
    config.model.path = "Qwen2.5-32B"
    config.model.preset = "qwen2.5-32b"
    config.model.dtype = "bfloat16"
    config.model.remat = "block"
    config.sampling.prompt_length = 1024
    config.sampling.completion_length = 4096
    config.sampling.rows_at_once = 256  # a multiple of the chips
    config.updates.micro_batch_rows = 128  # a multiple of the chips
    config.updates.head_chunks = 16
    config.optimizer.learning_rate = 1e-6
    config.mesh.sample_model = 8  # one head of keys and values a chip
    config.evaluate.every = 50
    config.evaluate.problems = 500
    config.checkpoint.every = 50
    return config
