"""Small random checkpoints of every family, saved by transformers, and what transformers computes from them.

An oracle, run by hand in an environment of its own (`.venv-trl` of the Makefile); the package and its tests import
neither library:

    .venv-trl/bin/python tests/oracle/make_families.py tests/oracle/families

Every weight is random, norms and biases too, and sizes are such that windows, rotary positions, biases and norms all
matter. Writes for each name a folder with config.json and the weights (one of them in shards), and reference.npz:

    NAME/tokens, NAME/mask     i32[3, 20], bool[3, 20]: prompts of 20, 13 and 4 tokens, padded at their left
    NAME/padded                f32[3, 20, 96], logits; those of padding mean nothing
    NAME/long_tokens           i32[1, 200]: far more than the 32 or 64 positions that scaled rotary positions began with
    NAME/long                  f32[1, 12, 96], logits of its last 12 tokens
    NAME/far                   f32[1, 20, 96], logits of the first prompt at positions 3000 … 3019
    NAME/…_double              the same from the model in float64 (rotary positions and softmax stay float32 inside):
                               tells whose rounding a difference is
    versions                   str, of what computed it
"""

import json
import platform
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

V, D, LENGTHS, WIDTH, LONG, FAR = 96, 32, (20, 13, 4), 20, 200, 3000
SIZES = {
    "vocab_size": V,
    "hidden_size": D,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": [2, 3],
    "pad_token_id": 0,
    "attn_implementation": "eager",
}
rope = lambda kind, theta=100.0, **more: {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}
ORIGINAL = "original_max_position_embeddings"
GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
CASES = {
    "llama": ("Llama", {"num_hidden_layers": 3, **rope("default", 10000.0)}),
    "llama3": (
        "Llama",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            "tie_word_embeddings": True,
            **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, **{ORIGINAL: 64}),
        },
    ),
    "llama_linear": ("Llama", {"num_hidden_layers": 2, **rope("linear", factor=4.0)}),
    "llama_yarn": ("Llama", {"num_hidden_layers": 2, "head_dim": 16, **rope("yarn", factor=8.0, **{ORIGINAL: 32})}),
    "qwen2": ("Qwen2", {"num_hidden_layers": 2, "tie_word_embeddings": True, **rope("default", 1000.0)}),
    "qwen2_windows": (
        "Qwen2",
        {"num_hidden_layers": 3, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"num_hidden_layers": 2, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen3_yarn": (
        "Qwen3",
        {
            "num_hidden_layers": 2,
            "head_dim": 16,
            **rope("yarn", factor=4.0, attention_factor=1.3, beta_fast=16.0, beta_slow=2.0, **{ORIGINAL: 64}),
        },
    ),
    "gemma2": (
        "Gemma2",
        {
            "num_hidden_layers": 4,
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 5,
            "attn_logit_softcapping": 3.0,
            "final_logit_softcapping": 8.0,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "query_pre_attn_scalar": 20,
            "sliding_window": 5,
            "rope_parameters": GEMMA3_ROPE,
        },
    ),
}
SHARDED = ("llama_yarn",)


def make(kind: str, settings: dict) -> torch.nn.Module:
    config = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")(**SIZES, **settings)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float().eval()
    centre = 0.0 if kind.startswith("Gemma") else 1.0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            if "norm" in name:
                parameter.copy_(centre + 0.3 * noise)
            elif name.endswith("bias"):
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * (1.0 if "embed" in name or "lm_head" in name else 1.6) * D**-0.5)
    return model


def run(model, tokens, positions, mask=None) -> np.ndarray:
    with torch.no_grad():
        return model(input_ids=tokens, position_ids=positions, attention_mask=mask).logits.float().numpy()


def alone(model, tokens) -> np.ndarray:
    result = np.zeros((*tokens.shape, V), np.float32)
    for row, length in enumerate(LENGTHS):
        result[row, -length:] = run(model, tokens[row : row + 1, -length:], torch.arange(length)[None])[0]
    return result


def main(folder: str):
    target = Path(folder)
    versions = f"python {platform.python_version()}, torch {torch.__version__}, transformers {transformers.__version__}"
    arrays = {"versions": versions}
    for number, (name, (kind, settings)) in enumerate(CASES.items()):
        torch.manual_seed(number)
        rng = np.random.default_rng(number)
        model = make(kind, settings)
        tokens = torch.from_numpy(rng.integers(4, V, (3, WIDTH)))
        mask = torch.arange(WIDTH)[None] >= WIDTH - torch.tensor(LENGTHS)[:, None]
        positions = (mask.long().cumsum(-1) - 1).clamp(min=0)
        tokens = torch.where(mask, tokens, 0)
        long = torch.from_numpy(rng.integers(4, V, (1, LONG)))
        arrays |= {
            f"{name}/tokens": tokens.numpy().astype(np.int32),
            f"{name}/mask": mask.numpy(),
            f"{name}/long_tokens": long.numpy().astype(np.int32),
        }
        found = {}
        for suffix in ("", "_double"):
            # in float64 padding, which sees nothing, turns into NaN and spreads: there each prompt is run alone
            found[f"padded{suffix}"] = alone(model, tokens) if suffix else run(model, tokens, positions, mask.long())
            found[f"long{suffix}"] = run(model, long, torch.arange(LONG)[None])[:, -12:]
            found[f"far{suffix}"] = run(model, tokens[:1], torch.arange(FAR, FAR + WIDTH)[None])
            model.double()
        model.float()
        arrays |= {f"{name}/{key}": value for key, value in found.items()}
        shutil.rmtree(target / name, ignore_errors=True)
        model.save_pretrained(target / name, max_shard_size="20KB" if name in SHARDED else "1GB")
        (target / name / "generation_config.json").unlink(missing_ok=True)
        rounding = {
            key: float(np.abs(found[key] - found[f"{key}_double"])[mask if key == "padded" else ...].max())
            for key in ("padded", "long", "far")
        }
        size = float(np.abs(found["long"]).max())
        sys.stdout.write(f"{name}: largest logit {size:.1f}, float32 within {json.dumps(rounding)}\n")
    np.savez_compressed(target / "reference.npz", **arrays)


if __name__ == "__main__":
    main(*sys.argv[1:2])
