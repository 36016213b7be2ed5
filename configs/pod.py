"""A 7B model with the settings of the Dr. GRPO paper: the base of the tables on a TPU slice.

    python -m experiments.launch length --base configs/pod.py:grpo --slice v5e:8x8

Liu et al. 2025 (2503.20783): Qwen2.5-Math-7B, MATH levels 3 to 5, 128 prompts × 8 completions of at most 3,000 tokens
at temperature 1, AdamW at 1e-6, one update a rollout batch, no KL term. Neither model nor problems come with the
project: put a checkpoint folder or a GGUF file, and JSON lines, where `model.path` and `task` say, or set these keys.
Where the model is not at hand, `rlvr plan` goes by the sizes of `model.preset`.

With the name "dapo" the batches are those of Yu et al. 2025 (2503.14476): 512 prompts × 16, 16 updates a rollout batch,
20 steps' warm-up; completions stay at 3,000 tokens, since Qwen2.5-Math-7B has 4,096 positions (theirs: 20,480).
"""

from rlvr_jax.config import defaults


def get_config(estimator: str = "grpo"):
    config = defaults(estimator)
    config.task = "jsonl(train='math_3_to_5.jsonl', held_out='math_500.jsonl')"
    config.steps = 500
    config.prompts_per_step = 128
    config.group_size = 8
    if estimator == "dapo":
        config.prompts_per_step, config.group_size = 512, 16
        config.updates.minibatches = 16
        config.optimizer.warmup = 320  # updates
    config.model.path = "Qwen2.5-Math-7B"
    config.model.preset = "qwen2.5-math-7b"
    config.model.width, config.model.hidden, config.model.layers = 3584, 18944, 28
    config.model.heads, config.model.kv_heads, config.model.head_size = 28, 4, 128
    config.model.dtype = "bfloat16"
    config.model.remat = "block"
    config.sampling.prompt_length = 1024
    config.sampling.completion_length = 3000
    config.updates.micro_batch_rows = 256  # a multiple of the chips
    config.updates.head_chunks = 10
    config.sampling.rows_at_once = 512  # a multiple of the chips too
    config.mesh.sample_model = 4  # one head of keys and values a chip
    config.optimizer.learning_rate = 1e-6
    config.optimizer.clip_norm = 1.0
    config.evaluate.every = 50
    config.evaluate.problems = 500
    config.checkpoint.every = 50
    return config
