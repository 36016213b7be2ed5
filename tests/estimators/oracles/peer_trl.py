"""TRL's side of the comparison: its installed code computes the numbers, in an environment of its own.

    python peer_trl.py INPUTS OUTPUTS        (or --serve)

`GRPOTrainer._generate_and_score_completions` and `_compute_loss` (also of `RLOOTrainer` and of the experimental
`GMPOTrainer`) run as they are, on a trainer that `__init__` never saw: it has the attributes that these methods
read, at the defaults of the installed configuration unless the case sets them. Replaced are what a model, a sampler
and reward functions would do: `_get_per_token_logps_and_entropies` returns the given log-probabilities,
`_generate` completions of the given lengths, `_calculate_rewards` the given rewards (NaN: not scored, which is how
TRL says that a response does not count).

Not compared, because there is no slot for it: `vespo`, `off_policy_mask_threshold`, `top_entropy_quantile`, the
entropy bonus, `use_bias_correction_kl`, `normalize_then_sum`. RLOOTrainer multiplies whole-sequence ratios, which no
slot does; on-policy its gradient is compared.

When timing, `loss` is `_compute_loss` and its backward pass, metrics included, as a training step runs it;
`advantages` is the whole of `_generate_and_score_completions` over completions of one token, from which the
arithmetic cannot be cut out.
"""

from __future__ import annotations

import collections
import dataclasses
import types

import numpy as np
import torch
import trl
from exchange import run_peer
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOTrainer
from trl.trainer.utils import split_tensor_dict

TRAINERS = {"grpo": (GRPOTrainer, GRPOConfig), "rloo": (RLOOTrainer, RLOOConfig), "gmpo": (GMPOTrainer, GRPOConfig)}
SAME_NAME = (  # attributes that the trainer copies from its configuration
    "beta",
    "loss_type",
    "scale_rewards",
    "importance_sampling_level",
    "top_entropy_quantile",
    "off_policy_mask_threshold",
    "max_completion_length",
    "num_generations",
    "num_iterations",
    "multi_objective_aggregation",
    "mask_truncated_completions",
    "pad_to_multiple_of",
    "use_vllm",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_clip_max",
    "normalize_advantages",
    "reward_clip_range",
)


def defaults(config):
    """The defaults of a configuration, without building one."""
    fields = dataclasses.fields(config)
    return {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}


class Peer:
    """One batch under one configuration.

    Settings: fields of the configuration, and `trainer` (grpo, rloo, gmpo), `old` (false: on-policy) and
    `micro_batches`.
    """

    def __init__(self, batch, settings, timing=False):
        settings = dict(settings)
        self.batch, self.timing = batch, timing
        self.micro_batches = settings.pop("micro_batches", 1)
        self.trainer_class, config = TRAINERS[settings.pop("trainer", "grpo")]
        old = settings.pop("old", True)
        args = defaults(config) | {
            "num_generations": batch["rewards"].shape[1],
            "gradient_accumulation_steps": self.micro_batches,
            "steps_per_generation": self.micro_batches,
            "num_iterations": 2 if old else 1,  # with two, TRL keeps the old log-probabilities
            "pad_to_multiple_of": None,  # what "auto" comes to on a processor
            **settings,
        }
        self.args = types.SimpleNamespace(**args)
        tensor = lambda name: torch.tensor(batch[name]) if name in batch else None
        self.policy = tensor("policy").requires_grad_()
        self.old, self.reference, self.rewards = tensor("old"), tensor("reference"), tensor("rewards")
        if self.trainer_class is RLOOTrainer and not timing:
            self.old = self.policy.detach()
        self.entropies = torch.zeros_like(self.policy)
        self.trainer = self._stand_in()
        self.inputs = self._inputs(old) if timing else None

    def _stand_in(self):
        trainer = object.__new__(self.trainer_class)
        args = self.args
        for name in SAME_NAME:
            if hasattr(args, name):
                setattr(trainer, name, getattr(args, name))
        trainer.args = args
        trainer.epsilon_low = args.epsilon
        trainer.epsilon_high = args.epsilon if args.epsilon_high is None else args.epsilon_high
        trainer.model = types.SimpleNamespace(training=True, is_gradient_checkpointing=False)
        trainer.ref_model = types.SimpleNamespace(name="reference")
        trainer.accelerator = types.SimpleNamespace(
            device=torch.device("cpu"),
            process_index=0,
            num_processes=1,
            gather=lambda x: x,
            reduce=lambda x, reduction: x,
        )
        trainer.current_gradient_accumulation_steps = self.micro_batches
        trainer.reward_weights, trainer.reward_funcs, trainer.reward_func_names = torch.ones(1), [None], ["reward"]
        trainer.environment_factories = trainer.environments = trainer.processing_class = None
        trainer.tools, trainer._is_vlm, trainer.log_multimodal = [], False, False
        trainer._tokenizer = types.SimpleNamespace(pad_token_id=0)
        trainer.eos_token_ids = [1]
        trainer.aux_loss_enabled = trainer._entropy_bonus_enabled = False
        trainer._metrics = {"train": collections.defaultdict(list)}
        log = collections.defaultdict(list)
        log["rewards"], log["extra"] = collections.defaultdict(list), collections.defaultdict(list)
        trainer._logs, trainer._pending_extra_logs, trainer._pending_metrics = log, {}, {}
        trainer._calculate_rewards = lambda *_: self.rewards.reshape(-1, 1)
        trainer._generate = self._generate
        trainer._get_per_token_logps_and_entropies = self._logprobs
        self.rows = slice(None)  # those of the micro-batch whose loss is computed
        return trainer

    def _generate(self, prompts):
        lengths = [1] * len(prompts) if self.timing else self.batch["lengths"].tolist()
        completions = [[1] * n for n in lengths]
        prompt_ids, texts = [[1]] * len(prompts), [""] * len(prompts)
        if self.trainer_class is RLOOTrainer:
            return prompt_ids, completions, texts
        behaviour = None
        if "behaviour" in self.batch:
            behaviour = [row[:n].tolist() for row, n in zip(self.batch["behaviour"], lengths)]
        return prompt_ids, completions, None, texts, behaviour, {}, None, [None] * len(prompts)

    def _logprobs(self, model, *_, compute_entropy=False, **__):
        if compute_entropy:
            return self.policy[self.rows], self.entropies[self.rows], None
        width = 1 if self.timing else None
        return (self.reference if model is self.trainer.ref_model else self.old)[:, :width], None, None

    def _inputs(self, old):
        """As `_generate_and_score_completions` returns them; the token ids, which nothing reads, in one byte each."""
        mask = torch.tensor(self.batch["mask"])
        inputs = {
            "prompt_ids": torch.ones(len(mask), 1, dtype=torch.int8),
            "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
            "completion_ids": mask.to(torch.int8),
            "completion_mask": mask.to(torch.long),
            "advantages": torch.tensor(self.batch["advantages"]),
            "num_items_in_batch": mask.sum(),
        }
        if old:
            inputs["old_per_token_logps"] = self.old
        if self.trainer_class is RLOOTrainer:
            inputs["old_logps"] = (self.old * mask).sum(1)
        if self.reference is not None:
            inputs["ref_per_token_logps"] = self.reference
        return inputs

    def advantages(self):
        return self.trainer._generate_and_score_completions([{"prompt": ""}] * self.rewards.numel())

    def loss(self):
        """(Σ of the micro-batches' losses, its gradient in the log-probabilities)."""
        self.policy.grad = None
        total, size = 0.0, len(self.policy) // self.micro_batches
        pieces = [self.inputs] if self.micro_batches == 1 else split_tensor_dict(self.inputs, self.micro_batches)
        for i, piece in enumerate(pieces):
            self.rows = slice(i * size, (i + 1) * size)
            loss = self.trainer._compute_loss(self.trainer.model, piece)
            loss.backward()
            total += loss.item()
        return total, self.policy.grad

    def answer(self):
        self.inputs = self.advantages()
        loss, gradient = self.loss()
        return {
            "advantages": self.inputs["advantages"].numpy(),
            "loss": np.float32(loss),
            "gradient": gradient.numpy(),
        }


if __name__ == "__main__":
    run_peer(Peer, f"trl {trl.__version__}, torch {torch.__version__}")
