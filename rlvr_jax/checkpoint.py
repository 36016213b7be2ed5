"""Orbax: one item holds the whole TrainState, the data iterator's position and the config, so none can be restored
without the others."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import orbax.checkpoint as ocp

from rlvr_jax.hosts import from_first
from rlvr_jax.types import PyTree, TrainState

_WRITTEN_LAST = "_CHECKPOINT_METADATA"


class Checkpoints:
    """The checkpoints of one run, under `workdir/checkpoints`.

    Saving is asynchronous and every host's work: each writes the parts its devices hold, in one directory that all
    see. `close` waits. An interrupted save leaves no checkpoint behind that `latest` would name. What one mesh and
    number of hosts has saved, any other restores.
    """

    def __init__(self, workdir: str | Path, keep: int = 1, create: bool = True, best: int = 0):
        """`keep`: how many of the newest to retain, 0 for all; `best`: how many besides, by `score`.
        `create=False`: to read a run, in which nothing is made or removed."""
        self.directory = Path(workdir).resolve() / "checkpoints"
        if create:
            from_first(self._remove_incomplete)
        elif not self.directory.is_dir():
            raise FileNotFoundError(f"workdir={workdir}: no checkpoint yet")
        self._kept = _Kept(keep, best)
        policy = {"preservation_policy": self._kept} if create else {}
        options = ocp.CheckpointManagerOptions(create=create, read_only=not create, **policy)
        self._manager = ocp.CheckpointManager(self.directory, options=options)

    def score(self, step: int, value: float) -> None:
        """What an evaluation says of the checkpoint of a step, for `best`; it counts from the next save on."""
        self._kept.scores[step] = value

    def _remove_incomplete(self) -> None:
        """A directory without the metadata that Orbax writes last is what a kill in the middle of a save left; it would
        be in the way of the next save of its step."""
        for path in self.directory.glob("*"):
            if path.is_dir() and path.name.isdigit() and not (path / _WRITTEN_LAST).exists():
                shutil.rmtree(path)

    def latest(self) -> int | None:
        """The newest complete step, None if there is none; the same on all hosts, which must ask together."""
        return from_first(lambda: max(self.steps(), default=None))

    def steps(self) -> list[int]:
        """The complete steps, in order."""
        return sorted(s for s in self._manager.all_steps() if (self.directory / str(s) / _WRITTEN_LAST).exists())

    def save(self, step: int, state: TrainState, data_state: Any, config: dict) -> None:
        """Starts writing the state after `step` rollout batches.

        Raises:
          RuntimeError: Orbax declined (a save that did nothing must not pass for one that did).
        """
        items = ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            data=ocp.args.JsonSave(data_state),
            config=ocp.args.JsonSave(config),
        )
        if not self._manager.save(step, args=items, force=True):
            raise RuntimeError(f"checkpoint of step {step} was not saved: {self.directory} holds {self.steps()}")

    def restore(self, abstract: TrainState, step: int | None = None) -> tuple[TrainState, Any, dict]:
        """The state, data position and config saved at `step` (the newest by default).

        `abstract` gives shapes, dtypes and shardings (`jax.ShapeDtypeStruct` leaves); arrays are born in them.

        Raises:
          FileNotFoundError: there is no such checkpoint; names the directory and the steps there are.
          ValueError: an array has another shape or dtype, is missing or is left over; names path and both sides.
        """
        step = self.latest() if step is None else step
        if step not in self.steps():
            raise FileNotFoundError(f"no checkpoint of step {step} in {self.directory}; steps there: {self.steps()}")
        restored = self._restore_checked(abstract, step)
        return restored["state"], restored["data"], restored["config"]

    def restore_policy(self, abstract: PyTree, step: int | None = None) -> tuple[PyTree, int]:
        """Only the policy's parameters, for evaluation and sampling; and the step they are of."""
        step = self.latest() if step is None else step
        if step not in self.steps():
            raise FileNotFoundError(f"no checkpoint of step {step} in {self.directory}; steps there: {self.steps()}")
        target = {"params": {"policy": abstract}}
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            path = self.directory / str(step) / "state"
            _check_shapes(target, reader.metadata(path).item_metadata, path, partial=True)
            args = ocp.args.PyTreeRestore(
                item=target,
                restore_args=ocp.checkpoint_utils.construct_restore_args(target),
                partial_restore=True,
            )
            with _naming_damage(path):
                restored = reader.restore(path, args=args)
        return restored["params"]["policy"], step

    def _restore_checked(self, abstract, step):
        path = self.directory / str(step)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
            _check_shapes(abstract, reader.metadata(path / "state").item_metadata, path)
        args = ocp.args.Composite(
            state=ocp.args.StandardRestore(abstract),
            data=ocp.args.JsonRestore(),
            config=ocp.args.JsonRestore(),
        )
        with _naming_damage(path):
            return self._manager.restore(step, args=args)

    def wait(self) -> None:
        """Returns when every save has been written."""
        self._manager.wait_until_finished()

    def close(self) -> None:
        self._manager.wait_until_finished()
        self._manager.close()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class _Kept(ocp.checkpoint_managers.PreservationPolicy):
    """The newest `keep` checkpoints (0: all), and the `best` of those with a score; the newer of two equals."""

    def __init__(self, keep: int, best: int):
        self.keep, self.best = keep, best
        self.scores: dict[int, float] = {}

    def should_preserve(self, checkpoints: Sequence, *, context) -> list[bool]:
        steps = sorted(checkpoint.step for checkpoint in checkpoints)
        scored = sorted((step for step in steps if step in self.scores), key=lambda step: (self.scores[step], step))
        kept = {*steps[-self.keep :], *scored[len(scored) - min(self.best, len(scored)) :]}
        return [checkpoint.step in kept for checkpoint in checkpoints]


@contextlib.contextmanager
def _naming_damage(path: Path):
    """What cannot be read is one line that names the checkpoint and the way out, not pages of the reader's stack."""
    try:
        yield
    except Exception as error:
        first = str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__
        raise ValueError(f"checkpoint {path} cannot be read ({first}); remove it to go on from an older one") from error


def _check_shapes(wanted: PyTree, metadata: PyTree, path: Path, partial: bool = False) -> None:
    """Compares by name what is wanted with what is saved, before any array is read."""

    def named(tree):
        leaves = jax.tree_util.tree_leaves_with_path(tree)
        return {
            jax.tree_util.keystr(where, simple=True, separator="/"): (tuple(leaf.shape), str(leaf.dtype))
            for where, leaf in leaves
            if hasattr(leaf, "shape")
        }

    wanted, saved = named(wanted), named(getattr(metadata, "tree", metadata))
    if not saved:
        raise ValueError(f"checkpoint {path} cannot be read (it lists no arrays); remove it to go on from an older one")
    for name in [*wanted, *(() if partial else saved)]:
        if wanted.get(name) != saved.get(name):
            show = lambda side: "{} {}".format(*side) if side else "nothing"
            raise ValueError(
                f"checkpoint {path}: {name} is {show(saved.get(name))} there, and {show(wanted.get(name))} here; "
                "the model of the config is not the one that was saved"
            )
