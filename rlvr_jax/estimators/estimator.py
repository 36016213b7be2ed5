"""`Estimator`: ten filled slots, a frozen hashable value, and how strings become one."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools

from rlvr_jax.estimators import (
    advantage,
    aggregate,
    baseline,
    clip,
    correct,
    kl,
    loss,
    posterior,
    ratio,
    reweight,
    scale,
    select,
    shape,
)
from rlvr_jax.estimators.base import SLOTS, Parts
from rlvr_jax.estimators.catalogue import catalogue
from rlvr_jax.registry import Registry, nearest
from rlvr_jax.types import Array, Batch, Groups, PyTree

_MODULES = (shape, select, baseline, scale, reweight, correct, ratio, clip, kl, aggregate)
registries: dict[str, Registry] = {slot: module.registry for slot, module in zip(SLOTS, _MODULES)}
assert "posterior" in registries["baseline"].factories and posterior  # its import registers them

_anonymous = itertools.count()


@dataclasses.dataclass(frozen=True)
class Estimator:
    """Ten parts and their names. Static under `jit`: equal and hashed by its strings."""

    name: str
    strings: tuple[str, ...]  # in the order of SLOTS
    completion_length: int | None = dataclasses.field(compare=False, default=None)  # its effect is in `strings`
    parts: Parts = dataclasses.field(compare=False, repr=False, default=None)

    @property
    def slots(self) -> dict[str, str]:
        """Slot → its option, as resolved."""
        return dict(zip(SLOTS, self.strings))

    @property
    def needs(self) -> frozenset[str]:
        """What it needs besides masks and advantages: a subset of {"reference", "old", "prompt_id"}."""
        return frozenset().union(*(part.needs for part in self.parts))

    @property
    def min_group(self) -> int:
        """The smallest group size at which every part has something to compare."""
        return max(part.min_group for part in self.parts)

    def describe(self) -> str:
        """The difference from the nearest entry: "grpo + clip=ppo(low=0.2, high=0.28)"."""
        return _nearest_description(self)

    def init_memory(self, num_prompts: int) -> PyTree:
        """What the estimator remembers between rollout batches; {} when it remembers nothing."""
        return advantage.transform(self.parts).init(num_prompts)

    def init_params(self) -> PyTree:
        """What the estimator learns along with the policy; {} when nothing learns."""
        params = self.parts.aggregate.init()
        return {"aggregate": params} if params else {}

    def advantages(self, groups: Groups, memory: PyTree) -> tuple[Array, PyTree, dict]:
        """(advantages_PG: f32, 0 at rows that do not count; the moved memory; metrics), once per rollout batch."""
        _, advantages_PG, memory, metrics = self.estimate(groups, memory)
        return advantages_PG, memory, metrics

    def estimate(self, groups: Groups, memory: PyTree) -> tuple[Groups, Array, PyTree, dict]:
        """As `advantages`, after the groups as they then are: rewards shaped, rows that `select` drops invalid."""
        return advantage.estimate(self.parts, groups, memory)

    def token_weights(self, params: PyTree, batch: Batch) -> Array:
        """w_BT ≥ 0 of a whole optimiser update, 0 where masked or invalid; differentiable in `params`."""
        return loss.token_weights(self.parts, params, batch)

    def token_losses(self, logprobs_BT: Array, batch: Batch) -> tuple[Array, dict]:
        """(ℓ_BT, metrics), 0 where masked; row by row, so a batch may be cut anywhere."""
        return loss.token_losses(self.parts, logprobs_BT, batch)

    def loss(self, params: PyTree, logprobs_BT: Array, batch: Batch) -> tuple[Array, dict]:
        """(Σ w·ℓ, metrics), to be minimised in `params` and `logprobs_BT`."""
        return loss.loss(self.parts, params, logprobs_BT, batch)

    def with_parts(self, **parts) -> Estimator:
        """Slots replaced by parts built directly, whose arguments may be traced: `with_parts(clip=ppo(low=x))`.

        Such an estimator equals no other, so it belongs inside a traced function, not in its static
        arguments.
        """
        _check_slots(parts)
        strings = tuple(f"<part {next(_anonymous)}>" if slot in parts else text for slot, text in self.slots.items())
        return dataclasses.replace(self, strings=strings, parts=self.parts._replace(**parts))


def _check_slots(slots):
    for slot in slots:
        if slot not in SLOTS:
            hint = nearest(slot, SLOTS)
            raise ValueError(f"estimator: unknown slot {slot!r}{hint} Choose from {list(SLOTS)}")


def entry_slots(name: str) -> dict[str, str]:
    """The ten strings of a catalogue entry, before any configured length is put in.

    Raises:
      ValueError: no entry of that name; names the nearest and all valid ones.
    """
    if name not in catalogue:
        raise ValueError(
            f"estimator={name!r}: no such entry{nearest(str(name), catalogue)} Choose from {sorted(catalogue)}"
        )
    return {**catalogue["grpo"].slots, **catalogue[name].slots}


def _resolve(slot: str, text: str, completion_length) -> str:
    """The option as written, evenly spaced, with the configured length in place of 'completion'."""
    factory, keywords = registries[slot].parse(text)
    call = ast.parse(text.strip(), mode="eval").body
    name = call.id if isinstance(call, ast.Name) else call.func.id
    written = {k.arg: ast.get_source_segment(text.strip(), k.value) for k in getattr(call, "keywords", ())}
    for keyword, parameter in inspect.signature(factory).parameters.items():
        if completion_length is not None and keywords.get(keyword, parameter.default) == "completion":
            written[keyword] = str(completion_length)
    arguments = ", ".join(f"{keyword}={value}" for keyword, value in written.items())
    return f"{name}({arguments})" if arguments else name


def make_estimator(name: str, completion_length: int | None = None, **slots: str | None) -> Estimator:
    """A catalogue entry, with slots replaced: `make_estimator("grpo", clip="ppo(low=0.2, high=0.28)")`.

    Args:
      name: an entry of `catalogue`.
      completion_length: what slots take from the configuration (`constant`, `overlong`), tokens.
      **slots: option strings by slot; '' and None leave the entry's own.

    Raises:
      ValueError: unknown entry, slot, option or keyword, or a value out of range; names the valid choices.
    """
    _check_slots(slots)
    if completion_length is not None and completion_length <= 0:
        raise ValueError(f"estimator: completion_length={completion_length!r} must be positive")
    chosen = entry_slots(name) | {slot: text for slot, text in slots.items() if text}
    strings = tuple(_resolve(slot, chosen[slot], completion_length) for slot in SLOTS)
    parts = Parts(*(registries[slot].make(text) for slot, text in zip(SLOTS, strings)))
    unused = registries["ratio"].parse(chosen["ratio"])[0] is ratio.none
    if unused and registries["clip"].parse(chosen["clip"])[0] is not clip.none:
        raise ValueError(
            f"clip={chosen['clip']!r} needs a ratio, and ratio='none' has none; choose clip='none' or ratio='token'"
        )
    return Estimator(name, strings, completion_length, parts)


@functools.lru_cache(maxsize=1024)
def _canonical(slot: str, text: str) -> tuple:
    """Equal for strings that build the same part, whatever they leave to the defaults."""
    if text.startswith("<"):
        return (text,)
    factory, keywords = registries[slot].parse(text)
    defaults = {k: p.default for k, p in inspect.signature(factory).parameters.items()}
    return factory.__name__, tuple(sorted((k, repr(v)) for k, v in {**defaults, **keywords}.items()))


def _nearest_description(estimator: Estimator) -> str:
    def differences(name):
        strings = [_resolve(s, t, estimator.completion_length) for s, t in entry_slots(name).items()]
        return [
            f"{slot}={mine}"
            for slot, mine, theirs in zip(SLOTS, estimator.strings, strings)
            if _canonical(slot, mine) != _canonical(slot, theirs)
        ]

    # ties go to the entry it was made from, then to the catalogue's order
    names = [estimator.name, *catalogue]
    name = min(names, key=lambda name: len(differences(name)))
    return " + ".join([name, *differences(name)])
