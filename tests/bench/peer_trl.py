"""The Hugging Face side of the comparison: transformers' Llama and `generate`, TRL's log-probabilities, torch's AdamW.

`generate` has no refill and does not narrow: rows are static and run until the longest wanted has ended.
"""

from __future__ import annotations

import numpy as np
import torch
import transformers
import trl
from transformers import LlamaConfig, LlamaForCausalLM
from trl.trainer.utils import selective_log_softmax
from work import Geometry, Job, prompt_tokens, serve, update_rows

MICRO_BATCH_ROWS = {"update_demo": 16}  # of jobs whose rows do not fit into memory at once


def set_up(job: Job, name: str, lengths: np.ndarray, geometry: Geometry):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=geometry.vocabulary,
        hidden_size=geometry.width,
        intermediate_size=geometry.hidden,
        num_hidden_layers=geometry.layers,
        num_attention_heads=geometry.heads,
        num_key_value_heads=geometry.kv_heads,
        head_dim=geometry.head_size,
        tie_word_embeddings=True,
        rope_theta=100_000.0,
        max_position_embeddings=2048,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=geometry.vocabulary - 1,
    )
    model = LlamaForCausalLM(config).float()
    if job.kind == "sample":
        return sampling(job, lengths, geometry, model)
    return updating(job, geometry, model, MICRO_BATCH_ROWS.get(name, job.rows))


def sampling(job: Job, lengths: np.ndarray, geometry: Geometry, model):
    model.eval()
    model.generation_config.eos_token_id = None  # no row ends by chance, and nothing is spent on looking for it
    prompts = torch.tensor(prompt_tokens(job, geometry))

    def call(seed: int) -> dict:
        torch.manual_seed(seed)
        with torch.no_grad():
            found = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                max_new_tokens=int(lengths.max()),
                num_return_sequences=job.group,
                do_sample=True,
                top_k=0,
                top_p=1.0,
            )
        assert found.shape == (job.rows, job.prompt_length + lengths.max()), found.shape
        return {"tokens": int(lengths.sum())}

    return call


def updating(job: Job, geometry: Geometry, model, size: int):
    model.train()
    rows = update_rows(job, geometry)
    tokens = torch.tensor(np.concatenate([rows["prompt"], rows["completion"]], axis=1))
    advantages, old = torch.tensor(rows["advantage"])[:, None], torch.tensor(rows["old"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)

    def call(seed: int) -> dict:
        for first in range(0, job.rows, size):
            part = slice(first, first + size)
            logits = model(tokens[part], logits_to_keep=job.length + 1).logits[:, :-1]
            logprobs = selective_log_softmax(logits, tokens[part, -job.length :])
            ratio = torch.exp(logprobs - old[part])
            loss = -torch.min(ratio * advantages[part], torch.clamp(ratio, 0.8, 1.28) * advantages[part])
            (loss.mean() * size / job.rows).backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"tokens": job.rows * (job.prompt_length + job.length)}

    return call


if __name__ == "__main__":
    serve(set_up, f"transformers {transformers.__version__}, trl {trl.__version__}, torch {torch.__version__}")
