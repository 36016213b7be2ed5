"""Sizes of public models, for plans and for training from scratch where no file is at hand.

As published, written down from memory and not compared with their config.json files (Qwen2.5: 2412.15115, Qwen2.5-Math:
2409.12122; Llama 3: 2407.21783; SmolLM2: 2502.02737).
"""

from __future__ import annotations

from typing import Any

from rlvr_jax.policy.transformer import Architecture


def _qwen2(width: int, layers: int, heads: int, kv_heads: int, hidden: int, **more: Any) -> dict[str, Any]:
    sizes = {"width": width, "layers": layers, "heads": heads, "kv_heads": kv_heads, "hidden": hidden}
    family = {"head_size": 128, "rope_theta": 1e6, "norm_epsilon": 1e-6, "qkv_bias": True, "context_length": 32768}
    return {"vocabulary": 152064, "tied": False, **family, **sizes, **more}


PRESETS: dict[str, dict[str, Any]] = {
    "smollm2-135m": {
        "vocabulary": 49152,
        "width": 576,
        "layers": 30,
        "heads": 9,
        "kv_heads": 3,
        "head_size": 64,
        "hidden": 1536,
        "rope_theta": 1e5,
        "context_length": 8192,
    },
    "qwen2.5-0.5b": _qwen2(896, 24, 14, 2, 4864, vocabulary=151936, tied=True, head_size=64),
    "qwen2.5-1.5b": _qwen2(1536, 28, 12, 2, 8960, vocabulary=151936, tied=True),
    "qwen2.5-7b": _qwen2(3584, 28, 28, 4, 18944),
    "qwen2.5-math-7b": _qwen2(3584, 28, 28, 4, 18944, rope_theta=1e4, context_length=4096),
    "qwen2.5-14b": _qwen2(5120, 48, 40, 8, 13824, norm_epsilon=1e-5),
    "qwen2.5-32b": _qwen2(5120, 64, 40, 8, 27648, norm_epsilon=1e-5),
}


def preset(name: str, **options: Any) -> Architecture:
    """The architecture of a public model; `options` are fields of `Architecture` that say how it is run.

    Raises:
      ValueError: no such preset.
    """
    if name not in PRESETS:
        raise ValueError(f"model.preset={name!r}: choose from {list(PRESETS)}")
    return Architecture(**PRESETS[name], **options)
