"""Problems to padded prompts: a Grain pipeline whose position is saved with the run."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Sequence
from typing import Any

import grain
import numpy as np

from rlvr_jax.mixture import Mixture
from rlvr_jax.tasks import Problem, Task
from rlvr_jax.tokenizer import Tokenizer, left_pad
from rlvr_jax.types import Prompts

LONG_PROMPTS = ("refuse", "drop")


@dataclasses.dataclass(frozen=True)
class EncodedProblem:
    """A problem with its prompt as token ids."""

    problem: Problem
    text: str  # the prompt as the policy sees it
    ids: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class PromptBatch:
    """Prompts for the device, and what only the host needs: the problems and the prompts' texts."""

    prompts: Prompts  # numpy leaves
    problems: tuple[Problem, ...]
    texts: tuple[str, ...]


def encode_problems(
    task: Task,
    problems: Sequence[Problem],
    tokenizer: Tokenizer,
    prompt_length: int,
    long_prompts: str = "refuse",
) -> tuple[list[EncodedProblem], int]:
    """Renders and encodes every problem, before anything is trained on. Returns (those that fit, number dropped).

    A prompt is never cut: cutting left loses the instructions, cutting right the assistant's header.

    Raises:
      ValueError: a prompt has more than `prompt_length` tokens and `long_prompts` is "refuse"; or none fits.
    """
    encoded, too_long = [], []
    for problem in problems:
        text = task.render(problem, tokenizer)
        ids = tuple(tokenizer.encode(text))
        (encoded if len(ids) <= prompt_length else too_long).append(EncodedProblem(problem, text, ids))
    if too_long and (long_prompts == "refuse" or not encoded):
        longest = max(too_long, key=lambda item: len(item.ids))
        raise ValueError(
            f"sampling.prompt_length={prompt_length}: {len(too_long)} of {len(problems)} prompts are longer, the "
            f"longest {len(longest.ids)} tokens ({longest.problem.prompt[:60]!r}); raise it to {len(longest.ids)}"
            + (", or set data.long_prompts='drop'" if encoded else "")
        )
    return encoded, len(too_long)


def fingerprint(encoded: Sequence[EncodedProblem]) -> dict[str, int]:
    """What two hosts that read the same files have the same of: how many problems, and a checksum of them all."""
    content = (repr((item.ids, item.problem.answer, item.problem.problem_id)).encode() for item in encoded)
    checksum = 0
    for item in content:
        checksum = zlib.crc32(item, checksum)
    return {"problems": len(encoded), "checksum": checksum}


def to_batch_of_prompts(items: Sequence[EncodedProblem], prompt_length: int, pad_id: int) -> PromptBatch:
    """Left-padded prompts; masks from lengths, never from the pad id."""
    tokens, mask = left_pad([item.ids for item in items], prompt_length, pad_id)
    prompt_id = np.asarray([item.problem.problem_id for item in items], np.int32)
    return PromptBatch(
        prompts=Prompts(tokens=tokens, mask=mask, prompt_id=prompt_id),
        problems=tuple(item.problem for item in items),
        texts=tuple(item.text for item in items),
    )


class PromptStream:
    """An endless stream of prompt batches, reshuffled every epoch by (seed, epoch). Epochs are not cut at batches:
    where one ends inside a batch, a problem may be in it twice, as two groups.

    `get_state` gives the position after the last batch handed out (never that of a prefetched one), a plain
    JSON-able dict; `set_state` goes there.
    """

    def __init__(
        self,
        encoded: Sequence[EncodedProblem],
        *,
        prompts_per_step: int,
        prompt_length: int,
        pad_id: int,
        seed: int,
        order: Mixture | None = None,
    ):
        """order: says which of `encoded` comes next, in place of an epoch's shuffle.

        Raises:
          ValueError: fewer problems than one batch takes.
        """
        if prompts_per_step > len(encoded):
            raise ValueError(
                f"prompts_per_step={prompts_per_step} is more than the {len(encoded)} problems to train on"
            )
        self._encoded = list(encoded)
        self._pack = lambda items: to_batch_of_prompts(items, prompt_length, pad_id)
        self._order, self._count = order, prompts_per_step
        # Indices travel through the pipeline and become prompts at its end: Grain batches stay plain integers.
        order = grain.MapDataset.source(list(range(len(encoded))))
        if len(encoded) > 1:  # one problem has one order, and Grain's shuffle cannot count to it
            order = order.shuffle(seed=seed)
        self._iterator = iter(
            order.repeat(None if len(encoded) > 1 else 2**31).batch(prompts_per_step).to_iter_dataset()
        )

    def __iter__(self) -> PromptStream:
        return self

    def __next__(self) -> PromptBatch:
        places = next(self._iterator) if self._order is None else self._order.next(self._count)
        return self._pack([self._encoded[int(index)] for index in places])

    def get_state(self) -> dict[str, Any]:
        return self._iterator.get_state() if self._order is None else self._order.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        (self._iterator if self._order is None else self._order).set_state(state)


def mixture_of(task: Task, encoded: Sequence[EncodedProblem], seed: int) -> Mixture | None:
    """The order in which a task of several sets with weights hands out training problems; None: by size, shuffled."""
    if not getattr(task, "weights", None):
        return None
    ids = [problem.problem_id for problem in task.problems("train")]
    place_of = {item.problem.problem_id: place for place, item in enumerate(encoded)}
    sets = {
        name: [place_of[ids[place]] for place in places if ids[place] in place_of]
        for name, places in task.sets().items()
    }
    return Mixture(sets, dict(zip(sets, task.weights)), seed=seed)
