"""Low-rank adapters (Hu et al. 2021, 2106.09685): a linear layer W becomes W + α/r·A·B, and only A and B are trained.

B starts at zero, so the policy of step 0 is the base's. The parameters are {"base": the policy's own, "lora": a tree of
the adapted layers alone, each {"lora_a": [(L,) in, r], "lora_b": [(L,) r, out]}}; what an update differentiates and an
optimiser remembers is "lora". For decoding and for export adapters are merged into the kernels.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rlvr_jax.policy.adapters import A, B
from rlvr_jax.policy.policy import Policy
from rlvr_jax.types import Array, PyTree

TARGETS = ("query", "key", "value", "output", "gate", "up", "down", "head")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """Which linear layers are adapted, and how. `targets`: patterns of which one must match a layer's whole name, such
    as "query" or "query|value"; "head" only where it is not tied to the embedding."""

    rank: int
    alpha: float
    targets: tuple[str, ...] = TARGETS[:-1]

    def __post_init__(self):
        if self.rank < 1:
            raise ValueError(f"lora.rank={self.rank}: must be at least 1")
        if not self.alpha > 0:
            raise ValueError(f"lora.alpha={self.alpha}: must be above 0")
        for target in self.targets:
            if not any(re.fullmatch(target, name) for name in TARGETS):
                raise ValueError(f"lora.targets={target!r}: matches no linear layer; choose from {list(TARGETS)}")
        if not self.targets:
            raise ValueError(f"lora.targets=(): name at least one of {list(TARGETS)}")

    def init(self, key: Array, base: PyTree) -> PyTree:
        """The tree "lora" for parameters `base`: A normal with variance 1/in, B zero.

        Raises:
          ValueError: a target has no layer in `base` (the head of a tied model, a policy without linear layers).
        """
        kernels = dict(_kernels(base))
        for target in self.targets:
            if not any(re.fullmatch(target, path[-1]) for path in kernels):
                there = sorted({path[-1] for path in kernels})
                raise ValueError(f"lora.targets={target!r}: this policy has no such linear layer; it has {there}")
        chosen = [path for path in kernels if any(re.fullmatch(target, path[-1]) for target in self.targets)]
        tree: dict = {}
        for path, own in zip(chosen, jax.random.split(key, len(chosen))):
            *stack, inputs, outputs = kernels[path].shape
            a = jax.random.normal(own, (*stack, inputs, self.rank)) * inputs**-0.5
            _put(tree, path, {A: a, B: jnp.zeros((*stack, self.rank, outputs))})
        return tree

    def weave(self, params: PyTree) -> PyTree:
        """Adapters beside their kernels, B times α/r: what the decoder computes with. No kernel is touched."""
        scaled = lambda pair: {A: pair[A], B: pair[B] * (self.alpha / self.rank)}
        return _join(params["base"], params["lora"], lambda layer, pair: {**layer, **scaled(pair)})

    def merge(self, params: PyTree) -> PyTree:
        """Parameters of the base policy that compute the same: kernel + α/r·A·B. For decoding and for export."""

        def add(layer, pair):
            added = jnp.matmul(pair[A], pair[B], precision="highest") * (self.alpha / self.rank)
            return {**layer, "kernel": layer["kernel"] + added.astype(layer["kernel"].dtype)}

        return _join(params["base"], params["lora"], add)


def with_lora(policy: Policy, *, rank: int, alpha: float, targets: Sequence[str] = TARGETS[:-1]) -> Policy:
    """`policy` with adapters; its parameters are {"base", "lora"}, those of a loaded model {"base": loaded, "lora":
    Lora(…).init(key, loaded)}. Every function takes merged parameters of the base policy too, such as `for_decoding`
    gives.

    Raises:
      ValueError: a rank, α or target that cannot be; `init` where the policy has no such layer.
    """
    lora = Lora(rank=rank, alpha=alpha, targets=tuple(targets))
    adapted = lambda params: "lora" in params
    woven = lambda params: lora.weave(params) if adapted(params) else params

    def init(key: Array) -> PyTree:
        first, second = jax.random.split(key)
        base = policy.init(first)
        return {"base": base, "lora": lora.init(second, base)}

    return policy._replace(
        init=init,
        apply=lambda params, *rows, **layout: policy.apply(woven(params), *rows, **layout),
        logits=lambda params, hidden: policy.logits(woven(params), hidden),
        prefill=lambda params, *prompts: policy.prefill(woven(params), *prompts),
        decode=lambda params, *state: policy.decode(woven(params), *state),
        for_decoding=lambda params: policy.for_decoding(lora.merge(params) if adapted(params) else params),
        trainable=lambda params: params["lora"],
        with_trainable=lambda params, trained: {**params, "lora": trained},
    )


def _kernels(tree: PyTree, path: tuple[str, ...] = ()):
    """(path of a linear layer, its kernel), in the order of a sorted tree."""
    for name in sorted(tree):
        if name == "kernel":
            yield path, tree[name]
        elif isinstance(tree[name], dict):
            yield from _kernels(tree[name], (*path, name))


def _put(tree: dict, path: tuple[str, ...], value: PyTree) -> None:
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def _join(base: PyTree, lora: PyTree, combine) -> PyTree:
    """`base` with `combine(layer, its adapter)` in place of each layer that `lora` names."""
    if A in lora:
        return combine(base, lora)
    return {name: _join(value, lora[name], combine) if name in lora else value for name, value in base.items()}
