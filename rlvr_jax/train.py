"""The training loop: sample, verify, estimate, update.

What it does without: a replay buffer and asynchronous rollouts (a batch is used by the parameters that sampled it),
a learned critic, a reward model. What an estimator is, it does not know.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np
from ml_collections import ConfigDict

from rlvr_jax import hosts
from rlvr_jax.checkpoint import Checkpoints
from rlvr_jax.compiles import CompileCounter
from rlvr_jax.config import check, flatten
from rlvr_jax.data import PromptBatch
from rlvr_jax.evaluate import EvaluationFile, to_scalars
from rlvr_jax.means import Metrics, compute, merge
from rlvr_jax.metrics import MetricsWriter
from rlvr_jax.report import write_report
from rlvr_jax.rollout import Graded, fetch, in_order, to_graded, to_groups, to_records, verify
from rlvr_jax.run import Parts, compile_functions, keys_on, make_evaluation, make_parts, make_stream, restore_or_start
from rlvr_jax.sharding import put_rows, rows_sharding
from rlvr_jax.tasks import Task
from rlvr_jax.tokenizer import Tokenizer
from rlvr_jax.types import Rollouts, TrainState
from rlvr_jax.watchdog import AGAIN, Stop, Stopped, Watch
from rlvr_jax.workdir import claim_together, open_workdir, versions


def train(config: ConfigDict, workdir: str | Path, *, quiet: bool = False) -> TrainState:
    """Trains as `config` says; one step = one rollout batch: sample, verify, estimate, update.

    Leaves config.json, metrics.jsonl, rollouts.jsonl, evaluation.json, checkpoints/ and report.html in `workdir`.
    Where `workdir` has a checkpoint of this config, goes on from it, bit for bit. The processes of a run
    (`hosts.start`) all call it alike: each samples, verifies and updates its rows, the first writes.

    Raises:
      ValueError, FileNotFoundError: a config that cannot run, a damaged model file, or a workdir of another
        config; before any device work, and with nothing written.
      Stopped: SIGTERM came; the step was finished and a checkpoint of it saved. A SystemExit.
    """
    estimator = hosts.together(lambda: check(config, jax.device_count()))
    with (
        Watch(**config.watchdog.to_dict()) as watch,
        Stop(config.checkpoint.grace_seconds) as stop,
        contextlib.ExitStack() as opened,
    ):
        check_hosts(config)
        workdir = hosts.from_first(lambda: open_workdir(workdir, config))
        parts = hosts.together(lambda: make_parts(config, estimator))
        stream, dropped = make_stream(config, parts)
        evaluate, dropped_evaluation = make_evaluation(config, parts)
        run, task, tokenizer = compile_functions(config, parts), parts.task, parts.tokenizer
        one_update = config.updates.epochs * config.updates.minibatches == 1
        key_of, rows = keys_on(config.seed, parts.mesh), config.prompts_per_step * config.group_size
        own = hosts.own_rows(rows_sharding(parts.mesh, rows), rows)  # whose verdicts are this process's to find

        opened.enter_context(claim_together(workdir, config))
        checkpoints = opened.enter_context(Checkpoints(workdir, config.checkpoint.keep, best=config.checkpoint.best))
        compiles = opened.enter_context(CompileCounter())
        state, start = restore_or_start(parts, stream, checkpoints)
        saved = start
        stop.late = lambda: f"{watch.where} has not ended; the newest checkpoint is of step {saved or 'none'}"
        reference = parts.init_policy() if "reference" in estimator.needs else None
        evaluations = EvaluationFile(workdir, before_step=start, shared=True)
        options = {"tensorboard": config.log.tensorboard, "quiet": quiet, "enabled": hosts.first()}
        writer = opened.enter_context(MetricsWriter(workdir, config.steps, start, **options))
        for line in introduction(config, parts, start, dropped, dropped_evaluation):
            writer.say(line)
        log = StepLog(writer, compiles)
        if config.checkpoint.best:
            for record in evaluations.records:
                checkpoints.score(record["step"], score_of(record, config.checkpoint.best_by))

        def judge(step: int) -> None:
            """Evaluates on the held-out problems, once per step; the key is that of every other evaluation."""
            watch.other(f"the evaluation of step {step}")
            if not evaluations.has(step):
                evaluations.add(evaluate(state.params["policy"], step, key_of(0, "evaluate")))
            writer.write(step, to_scalars(evaluations.records[-1]))
            if config.checkpoint.best:
                checkpoints.score(step, score_of(evaluations.records[-1], config.checkpoint.best_by))

        if start in (0, config.steps) or due(start, config.evaluate.every):
            judge(start)
        log.restart()
        for step in range(start, config.steps):
            watch.step(step)
            batch = next(stream)
            prompts, key = put_rows(batch.prompts, parts.mesh), key_of(step, "sample")
            shuffles = [key_of(step, f"shuffle {epoch}") for epoch in range(config.updates.epochs)]
            with jax.transfer_guard("disallow"):  # every copy below is an explicit one
                # 1. sample: the behaviour policy is the current one
                rollouts = run.sample(state.params["policy"], prompts, key)
                log.close()  # the step before: its numbers are fetched while this one samples
                watch.reach("sample")
                seen = fetch(rollouts, own)
                log.lap("sample_s")
                # 2. verify: the only host work in the loop. Each host has verdicts of its own rows, then all of all.
                watch.reach("verify")
                shown = np.unique(np.linspace(0, len(batch.problems) - 1, config.log.rollout_groups).astype(int))
                asked = stop.asked  # whoever hears SIGTERM: all end after the same step
                work = functools.partial(grade, task, tokenizer, seen, batch, own, config.group_size, shown, watch)
                found = hosts.exchange(lambda work=work, asked=asked: (work(), asked))
                graded, ending = in_order(part for part, _ in found), any(asked for _, asked in found)
                groups = put_rows(to_groups(graded, batch.prompts.prompt_id, config.group_size), parts.mesh)
                log.lap("verify_s")
                # 3. estimate: outcomes → advantages; memory moves one step
                watch.reach("estimate")
                groups, advantages, memory, from_estimate, means = run.estimate(groups, state.memory)
                # 4. update: one or more optimiser updates on this batch. When it is one, the old policy is the
                # one being differentiated, and needs no pass of its own.
                watch.reach("update")
                rollouts, slots = run.trim(rollouts, batch.prompts.mask, [row.attended for row in graded])
                first = step == start
                old = run.score(state.params["policy"], rollouts, slots) if first or not one_update else None
                gap = {} if old is None else run.mismatch(rollouts, old)
                if first:
                    writer.say(agreement(gap, config.sampling.largest_mismatch))
                old = None if one_update else old
                known = None if reference is None else run.score(reference, rollouts, slots)
                lines, from_updates = run.to_batch(rollouts, groups, advantages, old, known), {}
                for shuffle in shuffles:
                    for minibatch in run.minibatches(lines, shuffle):
                        state, from_update = run.update(state, minibatch, slots)
                        from_updates = merge(from_updates, from_update) if from_updates else from_update
                state = run.advance(state, memory)
            records = to_records(batch, graded, jax.device_get(means), shown)
            # of the policy that sampled; where it was updated more than once, updates have drifted from it
            log.open(step, records, {"rollout/": from_estimate, "update/": {**from_updates, **gap}})

            last = step + 1 == config.steps
            ending = ending or (stop.asked and hosts.count() == 1)  # several must have agreed
            if last or ending or due(step + 1, config.checkpoint.every):
                log.close()  # what is before a checkpoint is on disk before it
                watch.reach("checkpoint")
                checkpoints.save(step + 1, state, stream.get_state(), config.to_dict())
                saved = step + 1
            if ending:
                checkpoints.wait()
                writer.say(f"SIGTERM: stopped after step {step}, with a checkpoint of {step + 1} steps. {AGAIN}")
                raise Stopped
            if last or due(step + 1, config.evaluate.every):
                log.close()
                judge(step + 1)
                log.restart()
        watch.other("the end")
        opened.close()
        if config.log.report:
            hosts.from_first(lambda: write_report(workdir) and None)
    return state


def check_hosts(config: ConfigDict) -> None:
    """That all processes of the run are of one mind, before they do anything together.

    Raises:
      ValueError: a host has other packages or another config, on all of them; names the first differences.
    """
    if hosts.count() > 1:
        hosts.agree("installed packages", versions())
        hosts.agree("config", flatten(config))


def grade(
    task: Task,
    tokenizer: Tokenizer,
    seen: Rollouts,
    batch: PromptBatch,
    own: np.ndarray,
    group_size: int,
    read: Sequence[int],
    watch: Watch,
) -> dict[int, Graded]:
    """Verdicts of this process's rows of a batch, with the texts of the groups in `read`."""
    verdicts = verify(task, tokenizer, seen, [batch.problems[row // group_size].answer for row in own])
    texts = {int(group) * group_size + k for group in read for k in range(group_size)}
    graded = to_graded(tokenizer, seen, verdicts, own, texts)
    watch.reach("the other hosts' verdicts")
    return graded


def score_of(evaluation: Mapping, name: str) -> float:
    """What an evaluation's record says under a name such as "greedy_pass@1"."""
    mode, _, measure = name.partition("_")
    return evaluation[mode][measure]


def agreement(gap: Mapping[str, Metrics], limit: float) -> str:
    """What the first batch says of sampler and learner, for a person.

    Raises:
      ValueError: they differ by more than `limit` nats a token in the mean: trained on, the difference would be taken
        for a policy that has moved.
    """
    found = {name: float(value) for name, value in compute(jax.device_get(gap)).items()}
    mean, ratio = found["behaviour_mismatch"], found["behaviour_ratio_max"]
    text = f"sampler and learner differ by {mean:.1e} nats a token in the mean, the largest ratio is {ratio:.6g}"
    if not mean <= limit:
        raise ValueError(
            f"{text}; config.sampling.largest_mismatch={limit}: one of the two computes another model. Compare them in "
            "float32 (config.model.dtype), or raise the limit if the difference is understood"
        )
    return f"{text} (first batch; refused above {limit})"


def due(step: int, every: int) -> bool:
    """Whether `step` is one of every `every` steps; 0 means never."""
    return every > 0 and step % every == 0


class StepLog:
    """Holds a step's metrics on the device until the next step has been dispatched, so that fetching them never
    makes the device wait; and says where the time of a step went.

    Time is what the host waited for: `update_s` is estimate and update together, `sample_s` begins when they ended.
    """

    def __init__(self, writer: MetricsWriter, compiles: CompileCounter):
        self._writer, self._compiles = writer, compiles
        self._pending: tuple[int, Sequence[dict], Mapping[str, Metrics]] | None = None
        self.restart()

    def restart(self) -> None:
        """What happened until now (loading, evaluation) is not a step's time."""
        self._laps: dict[str, float] = {}
        self._mark = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self._laps[f"time/{name}"] = now - self._mark
        self._mark = now

    def open(self, step: int, records: Sequence[dict], metrics: Mapping[str, Metrics]) -> None:
        """A dispatched step: `records` for rollouts.jsonl, metrics by prefix."""
        self._pending = (step, records, metrics)

    def close(self) -> None:
        """Fetches and writes the step that is open, if one is; waits until its update is done."""
        if self._pending is None:
            return
        (step, records, groups), self._pending = self._pending, None
        scalars = {}
        for prefix, metrics in groups.items():
            scalars |= compute(metrics, prefix)
        self.lap("update_s")
        programs, seconds = self._compiles.take()
        laps, self._laps = self._laps, {}
        scalars |= {
            **laps,
            "time/step_s": sum(laps.values()),
            "time/compilations": programs,
            "time/compile_s": seconds,
        }
        self._writer.write_rollouts(step, records)
        self._writer.write(step, scalars)
        self._writer.close_step()


def introduction(config: ConfigDict, parts: Parts, start: int, dropped: int, dropped_evaluation: int) -> list[str]:
    """What a person should know before the first step."""
    architecture, estimator = parts.policy.architecture, parts.estimator
    judged = config.evaluate.problems - dropped_evaluation
    split = {"held_out": "held-out", "train": "training"}[config.evaluate.split]
    rows = config.prompts_per_step * config.group_size
    lines = [
        f"{estimator.describe()} on {config.task}: {config.steps} steps × {config.prompts_per_step} prompts × "
        f"{config.group_size} completions; evaluated on {judged} {split} problems",
        f"policy: {config.model.path or 'from scratch'}, {architecture.parameter_count() / 1e6:.1f} M parameters; "
        f"mesh {dict(parts.mesh.shape)} of {jax.devices()[0].device_kind}"
        + (f" on {hosts.count()} hosts" if hosts.count() > 1 else ""),
    ]
    if dropped or dropped_evaluation:
        lines.append(
            f"left out: {dropped} training and {dropped_evaluation} evaluation prompts of more than "
            f"{config.sampling.prompt_length} tokens"
        )
    lines += parts.task.report()
    data = parts.mesh.shape["data"]
    if config.prompts_per_step % data:
        lines.append(
            f"{config.prompts_per_step} prompts cannot be cut into {data} parts: every device samples all {rows} rows "
            "(the update is spread)"
        )
    if start >= config.steps:
        lines.append(f"complete: the checkpoint is of step {start}; raise --config.steps to go on")
    elif start:
        lines.append(f"going on from the checkpoint of step {start}")
    if start < config.steps:
        lines.append("the first step compiles, and takes longer")
    return lines


if __name__ == "__main__":
    from rlvr_jax.cli import main

    sys.exit(main(["train", *sys.argv[1:]]))
