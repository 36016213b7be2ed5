"""The families of checkpoints this decoder computes: which `Architecture` a config.json describes, the config.json of
an `Architecture`, and which tensor of a file each parameter is.

A family is a row of data. What a config says beyond what is written here either changes nothing (`_INERT`) or is
refused: a checkpoint is computed as it was trained, or not at all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from rlvr_jax.policy.decoder import Decoder
from rlvr_jax.policy.rope import PLAIN, rope_scaling_from, rope_settings
from rlvr_jax.policy.transformer import Architecture
from rlvr_jax.types import PyTree

MOST_LAYERS = 4096  # more than any decoder has: a damaged header must not make us allocate for them
ACTIVATION_NAMES = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_FULL, _SLIDING = "full_attention", "sliding_attention"


@dataclasses.dataclass(frozen=True)
class Family:
    """One `model_type` of transformers.

    fields    fields of Architecture that every checkpoint of the family has
    keys      config keys of the family, with what transformers takes where they are absent
    pattern   every so many layers one has no window (0: the family's windows go by `max_window_layers`, if at all)
    """

    name: str
    transformers_class: str
    fields: Mapping[str, Any]
    keys: Mapping[str, Any]
    pattern: int = 0


_QWEN_KEYS = {
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
    "layer_types": None,
}
_GEMMA_KEYS = {
    "rms_norm_eps": 1e-6,
    "head_dim": 256,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "attention_bias": False,
    "use_bidirectional_attention": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "layer_types": None,
}
_GEMMA_FIELDS = {"post_norms": True, "norm_offset": 1.0}
FAMILIES = {
    family.name: family
    for family in (
        Family(
            "llama",
            "LlamaForCausalLM",
            {},
            {
                "rms_norm_eps": 1e-6,
                "max_position_embeddings": 2048,
                "tie_word_embeddings": False,
                "hidden_act": "silu",
                "head_dim": None,
                "attention_bias": False,
                "mlp_bias": False,
            },
        ),
        Family("qwen2", "Qwen2ForCausalLM", {"qkv_bias": True}, {**_QWEN_KEYS, "head_dim": None}),
        Family(
            "qwen3", "Qwen3ForCausalLM", {"qk_norm": True}, {**_QWEN_KEYS, "head_dim": 128, "attention_bias": False}
        ),
        Family(
            "gemma2",
            "Gemma2ForCausalLM",
            _GEMMA_FIELDS,
            {
                **_GEMMA_KEYS,
                "max_position_embeddings": 8192,
                "attn_logit_softcapping": 50.0,
                "final_logit_softcapping": 30.0,
            },
            pattern=2,
        ),
        Family(
            "gemma3_text",
            "Gemma3ForCausalLM",
            {**_GEMMA_FIELDS, "qk_norm": True},
            {
                **_GEMMA_KEYS,
                "max_position_embeddings": 131072,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "sliding_window_pattern": None,
                "_sliding_window_pattern": None,
                "rope_local_base_freq": 10_000.0,
            },
            pattern=6,
        ),
    )
}
_SIZES = {
    "vocabulary": "vocab_size",
    "width": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "hidden": "intermediate_size",
}
_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
# Keys that do not change what a forward pass computes.
_INERT = frozenset(
    (
        "architectures",
        "model_type",
        "torch_dtype",
        "dtype",
        "transformers_version",
        "initializer_range",
        "use_cache",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "attention_dropout",
        "pretraining_tp",
        "cache_implementation",
        "tokenizer_class",
        "name_or_path",
        "_name_or_path",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "id2label",
        "label2id",
        "chunk_size_feed_forward",
        "problem_type",
        "auto_map",
        "_attn_implementation",
        "attn_implementation",
        "transformers.js_config",
        "unsloth_fixed",
        "unsloth_version",
    )
)


def family_of(config: Mapping, where: str) -> Family:
    """The family a config names.

    Raises:
      ValueError: another `model_type`, or none; lists the choices.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        hint = " (the text part alone is a gemma3_text)" if kind == "gemma3" else ""
        raise ValueError(f"{where}: model_type={kind!r} is not supported{hint}; choose from {list(FAMILIES)}")
    return FAMILIES[kind]


def architecture_from_config(config: Mapping, where: str) -> dict:
    """Fields of `Architecture` for the dictionary of a config.json; `where` names it in errors.

    Raises:
      ValueError: a family, a kind of rotary positions or any other setting that is not supported, or a size that is
        missing or no positive whole number; names key, value and choices.
    """
    family = family_of(config, where)
    _refuse_unknown(config, family, where)
    get = lambda key: config.get(key, family.keys.get(key))
    size = lambda key, value: _size(where, key, value)
    fields = {field: size(key, config.get(key)) for field, key in _SIZES.items()}
    if fields["layers"] > MOST_LAYERS:
        raise ValueError(f"{where}: num_hidden_layers={fields['layers']} is more than {MOST_LAYERS}")
    heads, kv_heads = fields["heads"], config.get("num_key_value_heads")
    if kv_heads is None and family.name != "llama":
        raise ValueError(f"{where}: num_key_value_heads is missing")
    kv_heads = heads if kv_heads is None else size("num_key_value_heads", kv_heads)
    if heads % kv_heads:
        raise ValueError(f"{where}: num_key_value_heads={kv_heads} must divide num_attention_heads={heads}")
    head_size = get("head_dim")
    if head_size is None:
        if fields["width"] % heads:
            raise ValueError(
                f"{where}: head_dim is missing and hidden_size={fields['width']} is no multiple of {heads}"
            )
        head_size = fields["width"] // heads
    if size("head_dim", head_size) % 2:
        raise ValueError(f"{where}: head_dim={head_size} must be even (rotary pairs)")
    for key in ("attention_bias", "mlp_bias", "use_bidirectional_attention"):
        if get(key):
            raise ValueError(f"{where}: {key}={get(key)!r} is not supported; only false is")
    activation = get("hidden_activation" if "hidden_activation" in family.keys else "hidden_act")
    if not isinstance(activation, str) or activation not in ACTIVATION_NAMES:
        raise ValueError(f"{where}: activation {activation!r} is not supported; choose from {list(ACTIVATION_NAMES)}")
    tied = get("tie_word_embeddings")
    if not isinstance(tied, bool):
        raise ValueError(f"{where}: tie_word_embeddings={tied!r} must be true or false")
    length = size("max_position_embeddings", get("max_position_embeddings"))
    fields |= {
        "kv_heads": kv_heads,
        "head_size": head_size,
        "norm_epsilon": _positive(where, "rms_norm_eps", get("rms_norm_eps")),
        "tied": tied,
        "activation": ACTIVATION_NAMES[activation],
        "context_length": length,
        **_rope(config, family, length, where),
        **_windows(get, family, fields["layers"], where),
        **family.fields,
    }
    if "query_pre_attn_scalar" in family.keys:
        fields |= _gemma(get, fields, family, where)
    return fields


def _size(where: str, key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ValueError(f"{where}: {key}={value!r} must be a positive whole number")
    return value


def _positive(where: str, key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"{where}: {key}={value!r} must be a positive number")
    return float(value)


def _refuse_unknown(config: Mapping, family: Family, where: str) -> None:
    known = _INERT | set(family.keys) | {*_SIZES.values(), "num_key_value_heads", *_ROPE_KEYS}
    if family.name.startswith("gemma"):
        known |= {"hidden_act"}  # written by old versions beside hidden_activation, read by none
    for key, value in config.items():
        if key not in known and value not in (None, False, [], {}, ""):
            raise ValueError(
                f"{where}: key {key!r} (value {str(value)[:60]}) is not known for model_type={family.name!r}: it may "
                "change what the model computes. Take it out of the file if it does not"
            )


def _rope(config: Mapping, family: Family, length: int, where: str) -> dict:
    """Fields of the rotary positions, from `rope_parameters` or, as older files have it, `rope_theta` and
    `rope_scaling`."""
    local = "rope_local_base_freq" in family.keys
    settings = config.get("rope_parameters") or {}
    key = "rope_parameters" if settings else "rope_scaling"
    old = config.get("rope_scaling") or {}
    for name, value in (("rope_parameters", settings), ("rope_scaling", old)):
        if not isinstance(value, Mapping):
            raise ValueError(f"{where}: {name}={value!r} must be a dictionary")
    if settings and old and settings != old:
        raise ValueError(f"{where}: rope_parameters and rope_scaling are both there and differ")
    theta = config.get("rope_theta", 1_000_000.0 if local else 10_000.0)
    window_theta = config.get("rope_local_base_freq", family.keys.get("rope_local_base_freq", 0.0))
    settings = settings or old
    nested = {name: settings[name] for name in (_FULL, _SLIDING) if isinstance(settings.get(name), Mapping)}
    if nested and (not local or set(settings) - set(nested)):
        raise ValueError(f"{where}: {key} has {sorted(settings)}; by layer type only gemma3_text has it, and only so")
    if nested:
        inner = nested.get(_SLIDING, {})
        if rope_scaling_from(inner, length, f"{where}: {key}.{_SLIDING}") != PLAIN:
            raise ValueError(f"{where}: {key}.{_SLIDING}: rope_type={inner['rope_type']!r}; only 'default' here")
        window_theta = inner.get("rope_theta", window_theta)
        settings, key = nested.get(_FULL, {}), f"{key}.{_FULL}"
    theta = _positive(where, "rope_theta", settings.get("rope_theta", theta))
    if theta <= 1:
        raise ValueError(f"{where}: rope_theta={theta:g} must be above 1")
    return {
        "rope_theta": theta,
        "rope_scaling": rope_scaling_from(settings, length, f"{where}: {key}"),
        "window_rope_theta": _positive(where, "rope_local_base_freq", window_theta) if local else 0.0,
    }


def _windows(get: Callable, family: Family, layers: int, where: str) -> dict:
    """The window of each layer: from `layer_types`, else from the family's pattern."""
    if "sliding_window" not in family.keys:
        return {}
    window = get("sliding_window") if get("use_sliding_window") is not False else None
    kinds = get("layer_types")
    if kinds is None and family.pattern:
        given = get("sliding_window_pattern") or get("_sliding_window_pattern") or family.pattern
        pattern = _size(where, "sliding_window_pattern", given)
        kinds = [_SLIDING if (i + 1) % pattern else _FULL for i in range(layers)]
    elif kinds is None:
        first = get("max_window_layers")
        if isinstance(first, bool) or not isinstance(first, int):
            raise ValueError(f"{where}: max_window_layers={first!r} must be a whole number")
        kinds = [_SLIDING if window is not None and i >= first else _FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        raise ValueError(f"{where}: layer_types must name one of {[_FULL, _SLIDING]} for each of the {layers} layers")
    if _SLIDING not in kinds:
        return {}
    window = _size(where, "sliding_window", window)
    return {"windows": tuple(window if kind == _SLIDING else 0 for kind in kinds)}


def _gemma(get: Callable, fields: Mapping, family: Family, where: str) -> dict:
    cap = lambda key: 0.0 if get(key) is None else _positive(where, key, get(key))
    if family.name == "gemma3_text" and cap("attn_logit_softcapping"):
        # transformers' Gemma 3 reads the key and does not apply it: no telling what was meant
        raise ValueError(f"{where}: attn_logit_softcapping={get('attn_logit_softcapping')!r}; Gemma 3 has none")
    return {
        "embedding_scale": fields["width"] ** 0.5,
        "query_scale": _positive(where, "query_pre_attn_scalar", get("query_pre_attn_scalar")) ** -0.5,
        "attention_softcap": cap("attn_logit_softcapping"),
        "logit_softcap": cap("final_logit_softcapping"),
    }


def config_from_architecture(architecture: Architecture, where: str = "this architecture") -> dict:
    """The config.json, without token ids, of the family that an architecture belongs to: exactly that family's keys.

    Raises:
      ValueError: no family of `FAMILIES` computes it; names the fields in which the nearest one differs.
    """
    a = architecture
    if a.post_norms:
        family = FAMILIES["gemma3_text" if a.qk_norm else "gemma2"]
    else:
        family = FAMILIES["qwen2" if a.qkv_bias else "qwen3" if a.qk_norm else "llama"]
    left_out = ("sliding_window_pattern", "_sliding_window_pattern", "use_bidirectional_attention")
    values = {key: value for key, value in family.keys.items() if value is not None and key not in left_out}
    window = max(a.windows, default=0)
    types = [_SLIDING if size else _FULL for size in a.windows or (0,) * a.layers]
    rope = {**rope_settings(a.rope_scaling), "rope_theta": a.rope_theta}
    if "rope_local_base_freq" in family.keys:
        local = {"rope_type": "default", "rope_theta": a.window_rope_theta}
        rope = {_FULL: rope, _SLIDING: local}
        del values["rope_local_base_freq"]
    activation = {ours: theirs for theirs, ours in reversed(ACTIVATION_NAMES.items())}[a.activation]
    known = {
        **{key: getattr(a, field) for field, key in _SIZES.items()},
        "num_key_value_heads": a.kv_heads,
        "head_dim": a.head_size,
        "rms_norm_eps": a.norm_epsilon,
        "tie_word_embeddings": a.tied,
        "rope_parameters": rope,
    }
    own = {
        "hidden_act": activation,
        "hidden_activation": activation,
        "use_sliding_window": bool(window),
        "sliding_window": window or (None if "use_sliding_window" in family.keys else 4096),
        "layer_types": types,
        "max_window_layers": types.index(_SLIDING) if window else family.keys.get("max_window_layers"),
        "query_pre_attn_scalar": round(a.query_scale**-2) if a.query_scale else a.head_size,
        "attn_logit_softcapping": a.attention_softcap or None,
        "final_logit_softcapping": a.logit_softcap or None,
        "max_position_embeddings": a.context_length or family.keys["max_position_embeddings"],
    }
    config = {"model_type": family.name, "architectures": [family.transformers_class]}
    config |= values | known | {key: value for key, value in own.items() if key in family.keys}
    fields = {field.name: getattr(a, field.name) for field in dataclasses.fields(a)}
    fields["rope_scaling"] = a.rope_scaling or PLAIN
    again = Architecture(**{**architecture_from_config(config, where), **_run_options(a)})
    odd = {name: value for name, value in fields.items() if value != getattr(again, name) and name != "context_length"}
    if odd:
        raise ValueError(f"{where}: {odd} cannot be written as a {family.name!r}; families: {list(FAMILIES)}")
    return config


def _run_options(a: Architecture) -> dict:
    return {name: getattr(a, name) for name in ("dtype", "scan_layers", "remat")}


# --- which tensor each parameter is ---

_TRANSFORMERS = {
    "embed/embedding": "model.embed_tokens.weight",
    "final_norm/scale": "model.norm.weight",
    "head/kernel": "lm_head.weight",
    "blocks/attention/norm/scale": "model.layers.{}.input_layernorm.weight",
    "blocks/attention/query/kernel": "model.layers.{}.self_attn.q_proj.weight",
    "blocks/attention/query/bias": "model.layers.{}.self_attn.q_proj.bias",
    "blocks/attention/key/kernel": "model.layers.{}.self_attn.k_proj.weight",
    "blocks/attention/key/bias": "model.layers.{}.self_attn.k_proj.bias",
    "blocks/attention/value/kernel": "model.layers.{}.self_attn.v_proj.weight",
    "blocks/attention/value/bias": "model.layers.{}.self_attn.v_proj.bias",
    "blocks/attention/output/kernel": "model.layers.{}.self_attn.o_proj.weight",
    "blocks/attention/query_norm/scale": "model.layers.{}.self_attn.q_norm.weight",
    "blocks/attention/key_norm/scale": "model.layers.{}.self_attn.k_norm.weight",
    "blocks/mlp/norm/scale": "model.layers.{}.post_attention_layernorm.weight",
    "blocks/mlp/gate/kernel": "model.layers.{}.mlp.gate_proj.weight",
    "blocks/mlp/up/kernel": "model.layers.{}.mlp.up_proj.weight",
    "blocks/mlp/down/kernel": "model.layers.{}.mlp.down_proj.weight",
}
# Where both parts have a norm after them, the same name means another norm.
_TRANSFORMERS_POST = {
    "blocks/attention/post_norm/scale": "model.layers.{}.post_attention_layernorm.weight",
    "blocks/mlp/norm/scale": "model.layers.{}.pre_feedforward_layernorm.weight",
    "blocks/mlp/post_norm/scale": "model.layers.{}.post_feedforward_layernorm.weight",
}
_GGUF = {
    "embed/embedding": "token_embd.weight",
    "final_norm/scale": "output_norm.weight",
    "head/kernel": "output.weight",
    "blocks/attention/norm/scale": "blk.{}.attn_norm.weight",
    "blocks/attention/query/kernel": "blk.{}.attn_q.weight",
    "blocks/attention/query/bias": "blk.{}.attn_q.bias",
    "blocks/attention/key/kernel": "blk.{}.attn_k.weight",
    "blocks/attention/key/bias": "blk.{}.attn_k.bias",
    "blocks/attention/value/kernel": "blk.{}.attn_v.weight",
    "blocks/attention/value/bias": "blk.{}.attn_v.bias",
    "blocks/attention/output/kernel": "blk.{}.attn_output.weight",
    "blocks/attention/query_norm/scale": "blk.{}.attn_q_norm.weight",
    "blocks/attention/key_norm/scale": "blk.{}.attn_k_norm.weight",
    "blocks/attention/post_norm/scale": "blk.{}.post_attention_norm.weight",
    "blocks/mlp/norm/scale": "blk.{}.ffn_norm.weight",
    "blocks/mlp/gate/kernel": "blk.{}.ffn_gate.weight",
    "blocks/mlp/up/kernel": "blk.{}.ffn_up.weight",
    "blocks/mlp/down/kernel": "blk.{}.ffn_down.weight",
    "blocks/mlp/post_norm/scale": "blk.{}.post_ffw_norm.weight",
}


@dataclasses.dataclass(frozen=True)
class Leaf:
    """One parameter and the tensors it is made of.

    path      as `rlvr_jax.sharding.path_name` of the parameters: "blocks/attention/query/kernel"
    shape     of the parameter: [L, …] in blocks; kernels are [in, out]
    tensors   names in the file, one for each layer or one
    """

    path: str
    shape: tuple[int, ...]
    tensors: tuple[str, ...]

    @property
    def stacked(self) -> bool:
        return self.path.startswith("blocks/")

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of each tensor in a file: kernels are [out, in] there."""
        shape = self.shape[1:] if self.stacked else self.shape
        return shape[::-1] if self.path.endswith("/kernel") else shape


def leaves_of(architecture: Architecture, naming: str = "transformers") -> list[Leaf]:
    """Every parameter of an architecture in the order of its tree, with names of "transformers" or "gguf"."""
    names = _GGUF
    if naming == "transformers":
        names = _TRANSFORMERS | (_TRANSFORMERS_POST if architecture.post_norms else {})
    shapes = jax.eval_shape(Decoder(architecture).init, jax.random.key(0))
    leaves = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        text = jax.tree_util.keystr(path, simple=True, separator="/")
        layers = range(architecture.layers if text.startswith("blocks/") else 1)
        leaves.append(Leaf(text, leaf.shape, tuple(names[text].format(layer) for layer in layers)))
    return leaves


def check_tensors(names: Iterable[str], tensors: Any, leaves: Iterable[Leaf], where: str) -> None:
    """Whether a file's tensors are those that the parameters are made of; reads none of them.

    Args:
      names: the tensors that must all be used.
      tensors: `shape(name)`, which raises for a missing one, and `file_of(name)`.
      where: the file or folder, for errors.

    Raises:
      ValueError: a missing tensor, an unexpected shape, or a tensor that nothing uses; names file, tensor and shapes.
    """
    for leaf in leaves:
        for name in leaf.tensors:
            if (found := tensors.shape(name)) != leaf.stored_shape:
                raise ValueError(
                    f"{tensors.file_of(name)}: tensor {name!r} has shape {found}, expected {leaf.stored_shape}"
                )
    unused = sorted(set(names) - {name for leaf in leaves for name in leaf.tensors})
    if unused:
        raise ValueError(f"{where}: {len(unused)} tensors that nothing uses: {unused[:8]}")


def fill(
    leaves: Iterable[Leaf],
    tensors: Any,
    put: Callable[[str, np.ndarray], Any] | None = None,
    adapt: Callable[[str, np.ndarray], np.ndarray] = lambda path, array: array,
) -> PyTree:
    """Parameters out of a file's tensors (`check_tensors` has passed): a nested dict of float32 arrays, every element
    of each set from the file.

    Args:
      tensors: `[name]` → float32 array.
      put: called with (path, array) for each parameter as soon as it is built; what it returns takes the array's place,
        so that no more than one parameter is on the host. None: arrays stay.
      adapt: (path, tensor as stored) → tensor as transformers stores it.
    """
    params: dict = {}
    for leaf in leaves:
        read = lambda name, leaf=leaf: _turned(leaf, adapt(leaf.path, tensors[name]))
        if leaf.stacked:
            array = np.empty(leaf.shape, np.float32)
            for layer, name in enumerate(leaf.tensors):
                array[layer] = read(name)
        else:
            array = np.ascontiguousarray(read(leaf.tensors[0]))
        *parents, last = leaf.path.split("/")
        node = params
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = array if put is None else put(leaf.path, array)
        del array
    return params


def _turned(leaf: Leaf, array: np.ndarray) -> np.ndarray:
    return array.T if leaf.path.endswith("/kernel") else array
