"""`rlvr COMMAND`: thin commands over the functions of the same names; `rlvr --help` lists them."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

TRAIN_HELP = """Examples:
  rlvr train --config=configs/demo.py:grpo --workdir=runs/demo
  rlvr train --config=configs/demo.py:dr_grpo --workdir=runs/drgrpo --config.optimizer.learning_rate=3e-6
  rlvr train --config=configs/tiny.py:grpo --workdir=runs/loo --config.estimator.baseline=leave_one_out
Started again with the same workdir, a run goes on from its newest checkpoint.
On a TPU pod the same line runs on every worker, with --distributed. Exit status 75 (SIGTERM), 76 (a step stood still)
and 77 (another host is gone) ask for a restart."""
DOCTOR_HELP = """Examples:
  rlvr doctor --workdir=/mnt/bucket/run --config=configs/demo.py
  rlvr doctor --workdir=/mnt/bucket/run --distributed        (on every worker of a pod at once)"""
PLAN_HELP = """Examples:
  rlvr plan --config=configs/pod.py:dr_grpo --slice=v5p:4x4x4
  rlvr plan --config=configs/pod.py --slice=v5e:8x8 --only=update --config.model.remat=dots
The TPU compiler is asked, on this machine; no TPU and no weights are needed (config.model.preset names the sizes)."""
EVAL_HELP = """Examples:
  rlvr eval --workdir=runs/demo
  rlvr eval --config=configs/demo.py --config.evaluate.problems=50      (the model before training)"""
SAMPLE_HELP = """Examples:
  rlvr sample --workdir=runs/demo
  rlvr sample --workdir=runs/demo --prompt="Which number is larger, 17 or 71?" --samples=4"""


EXPORT_HELP = """Examples:
  rlvr export --workdir=runs/demo --to=runs/demo/model      (a folder that transformers opens)
  rlvr export --config=configs/demo.py --to=smollm2 --dtype=bfloat16      (the model before training)"""
ESTIMATORS_HELP = """Examples:
  rlvr estimators
  rlvr estimators dr_grpo"""
LENGTHS_HELP = """Examples:
  rlvr lengths runs/demo                                    (a run of this project)
  rlvr lengths output/completions --tokenizer=Qwen2.5-0.5B  (what TRL's GRPOTrainer logs with log_completions)
  rlvr lengths rollout_dump/ --limit=4096 --html=why.html   (verl's trainer.rollout_data_dir)
  rlvr lengths first.jsonl last.jsonl                       (no column with the step: each file is one)
Plain JSON lines need step, group or prompt, reward, length; optional are finished, tokens, text."""
AUDIT_HELP = """Examples:
  rlvr audit grpo dr_grpo balanced
  rlvr audit grpo dr_grpo --log rollouts.jsonl --html=audit.html
  rlvr audit dapo --log output/completions --limit=4096 --completion-length=4096"""


def parser() -> argparse.ArgumentParser:
    form = argparse.RawDescriptionHelpFormatter
    top = argparse.ArgumentParser(prog="rlvr", description="Reinforcement learning with verifiable rewards, in JAX.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add = lambda name, text, epilog: commands.add_parser(
        name, help=text, description=text, epilog=epilog, formatter_class=form, allow_abbrev=False
    )

    train = add("train", "Train a policy; or go on with a run.", TRAIN_HELP)
    train.add_argument("--config", required=True, metavar="FILE.py[:NAME]", help="NAME: an estimator of the catalogue")
    train.add_argument("--workdir", required=True, metavar="DIR", help="the run's directory")
    train.add_argument("--quiet", action="store_true", help="no table, no progress bar")

    text = "Check every host before a run: versions, clocks, devices, memory, the workdir, the network."
    doctor = add("doctor", text, DOCTOR_HELP)
    doctor.add_argument("--workdir", metavar="DIR", help="where the run is to be")
    doctor.add_argument("--config", metavar="FILE.py[:NAME]", help="checked too")
    for command in (train, doctor):
        command.add_argument("--distributed", action="store_true", help="several hosts; jax finds them (TPU pods)")
        command.add_argument("--coordinator", default="", metavar="HOST:PORT", help="else: of process 0")
        command.add_argument("--processes", type=int, default=0, metavar="N", help="how many there are")
        command.add_argument("--process-index", type=int, default=-1, metavar="I", help="which one this is, from 0")

    text = "What a TPU slice would do with a config, by the compiler's estimate: memory, time, traffic."
    plan = add("plan", text, PLAN_HELP)
    plan.add_argument("--config", required=True, metavar="FILE.py[:NAME]")
    plan.add_argument("--slice", required=True, metavar="KIND:SHAPE", help="such as v5e:8x8 or v5p:4x4x4")
    plan.add_argument("--only", nargs="+", default=[], metavar="PROGRAM", help="of the four programs these alone")
    plan.add_argument("--json", action="store_true", help="print JSON")

    judge = add("eval", "pass@1 on the problems a config evaluates on, greedy and sampled, with intervals.", EVAL_HELP)
    sample = add("sample", "Completions of evaluation problems or of your own prompt, with verdicts.", SAMPLE_HELP)
    export = add("export", "Write a policy as a checkpoint folder: safetensors, config and tokenizer.", EXPORT_HELP)
    export.add_argument("--to", required=True, metavar="DIR", help="a new or empty folder")
    export.add_argument("--dtype", default="float32", help="of the weights: float32, bfloat16 or float16")
    for command in (judge, sample, export):
        command.add_argument("--workdir", metavar="DIR", help="a run; its newest checkpoint is used")
        command.add_argument("--config", metavar="FILE.py[:NAME]", help="instead of a run: the untrained model")
        command.add_argument(
            "--checkpoint", type=int, metavar="STEP", help="a checkpoint of the run other than the newest"
        )
    for command in (judge, sample):
        command.add_argument("--seed", type=int, default=0)
    judge.add_argument("--output", metavar="FILE.json", help="also write the numbers, outcomes and examples there")
    sample.add_argument("--prompt", help="a prompt of your own (no verdict)")
    sample.add_argument("--problems", type=int, default=3, help="evaluation problems to show")
    sample.add_argument("--samples", type=int, default=4, help="completions per prompt")
    sample.add_argument("--greedy", action="store_true", help="the likeliest completion instead of samples")

    text = "Why the mean length changed: accuracy, longer right or wrong completions, or truncation."
    lengths = add("lengths", text, LENGTHS_HELP)
    lengths.add_argument("log", nargs="+", metavar="LOG", help=".jsonl, .jsonl.gz, .parquet, or a directory of them")
    lengths.add_argument("--before", metavar="FIRST:LAST", help="steps to compare from (default: the first fifth)")
    lengths.add_argument("--after", metavar="FIRST:LAST", help="steps to compare with (default: the last fifth)")
    _add_log_options(lengths)
    lengths.add_argument("--plots", metavar="DIR", help="write the figures there, as PNG")

    text = "What weight a token gets under estimators: by length, group accuracy, sign; and on the rollouts of a log."
    audit = add("audit", text, AUDIT_HELP)
    audit.add_argument("name", nargs="+", metavar="NAME", help="an estimator of the catalogue")
    audit.add_argument("--log", nargs="+", default=[], metavar="LOG", help="rollouts, as for `rlvr lengths`")
    audit.add_argument("--group-size", type=int, metavar="G", help="of the curves (default: the log's, else 8)")
    audit.add_argument("--reference", type=float, metavar="N", help="tokens (default: the log's median, else 512)")
    audit.add_argument("--completion-length", type=int, metavar="N", help="for dr_grpo, dapo and what takes it")
    _add_log_options(audit)

    text = "The catalogue of estimators, or one of them with its equation and source."
    show = add("estimators", text, ESTIMATORS_HELP)
    show.add_argument("name", nargs="?", metavar="NAME")
    show.add_argument("--markdown", action="store_true", help="the catalogue as the README's table")
    return top


def _add_log_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--reward", metavar="COLUMN", help="the column that says whether an answer is right")
    command.add_argument("--correct-above", type=float, default=0.5, metavar="X", help="right: reward above X (0.5)")
    command.add_argument("--length-column", metavar="COLUMN", help="lengths, lists of tokens, or texts")
    command.add_argument("--step", metavar="COLUMN")
    command.add_argument("--prompt", metavar="COLUMN", help="identity of the problem")
    command.add_argument("--limit", type=float, metavar="N", help="completion limit; as long as that means cut")
    command.add_argument("--tokenizer", metavar="FOLDER", help="counts the tokens of logs that have texts alone")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--html", metavar="FILE.html", help="also write one self-contained page")


def _log_options(options) -> dict:
    """Keywords of `rlvr_jax.diagnose.foreign.Log`."""
    count = None
    if options.tokenizer:
        from rlvr_jax.tokenizer import make_tokenizer

        tokenizer = make_tokenizer(options.tokenizer)
        count = lambda text: len(tokenizer.encode(text, start=False))
    return {
        "reward": options.reward,
        "length": options.length_column,
        "step": options.step,
        "prompt": options.prompt,
        "correct_above": options.correct_above,
        "limit": options.limit,
        "count": count,
    }


def _window(name: str, text: str | None):
    from rlvr_jax.diagnose.lengths import Window

    if text is None:
        return None
    first, _, last = text.partition(":")
    try:
        return Window(int(first), int(last or first))
    except ValueError:
        raise ValueError(f"--{name}={text!r}: expected FIRST:LAST, two steps") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; an error of the user's is one line on stderr and exit status 2."""
    options, rest = parser().parse_known_args(arguments)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns of files that are not there yet
    run = {
        "train": _train,
        "doctor": _doctor,
        "plan": _plan,
        "eval": _eval,
        "sample": _sample,
        "export": _export,
        "estimators": _estimators,
        "lengths": _lengths,
        "audit": _audit,
    }
    try:
        return run[options.command](options, [_override(item) for item in rest])
    except (ValueError, OSError, ImportError) as error:
        print(f"rlvr {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return _ends(options, error, 2)
    except KeyboardInterrupt as error:
        print(f"rlvr {options.command}: interrupted", file=sys.stderr)
        return _ends(options, error, 130)
    except Exception as error:
        if not _several(options):
            raise
        traceback.print_exc()
        return _ends(options, error, 1)


def _several(options) -> bool:
    return options.command in ("train", "doctor") and bool(
        options.distributed or options.coordinator or options.processes or options.process_index >= 0
    )


def _ends(options, error: BaseException, status: int) -> int:
    """The exit status of an error. One that other hosts do not have ends this process without waiting for them."""
    if _several(options):
        from rlvr_jax import hosts

        if not isinstance(error, hosts.OnEveryHost):
            hosts.leave(status)
    return status


def _join(options) -> None:
    """Makes this process one of several, if the flags say so."""
    if _several(options):
        from rlvr_jax import hosts

        hosts.start(options.coordinator, options.processes, options.process_index)


def _override(item: str) -> str:
    if not item.startswith("--config."):
        raise ValueError(f"unknown argument {item!r}; config keys are set with --config.KEY=VALUE")
    return item.removeprefix("--config.")


def _train(options, overrides) -> int:
    from rlvr_jax import hosts
    from rlvr_jax.config import load_config

    config = load_config(options.config, overrides)
    _join(options)
    from rlvr_jax.train import train

    train(config, options.workdir, quiet=options.quiet)
    _show_run(options.workdir, options.quiet or not hosts.first())
    return 0


def _doctor(options, overrides) -> int:
    from rlvr_jax.config import load_config

    if overrides and not options.config:
        raise ValueError(f"--config.{overrides[0]}: changes a config; give --config=FILE.py[:NAME]")
    config = load_config(options.config, overrides) if options.config else None
    _join(options)
    from rlvr_jax.doctor import examine, show

    checks = examine(options.workdir, config)
    show(checks)
    return 0 if all(check.well for check in checks) else 1


def _plan(options, overrides) -> int:
    os.environ.update(JAX_PLATFORMS="cpu", TPU_SKIP_MDS_QUERY="1")  # the compiler is asked, no chip is looked for
    from rich.console import Console

    from rlvr_jax.config import load_config
    from rlvr_jax.plan import make_plan, show
    from rlvr_jax.plan.plan import NAMES

    for name in options.only:
        if name not in NAMES:
            raise ValueError(f"--only={name!r}: choose from {list(NAMES)}")
    config = load_config(options.config, overrides)
    plan = make_plan(config, options.slice, tuple(options.only) or NAMES)
    if options.json:
        _print_json(plan)
    else:
        Console(highlight=False).print(show(plan, config))
    return 0


def _show_run(workdir: str, quiet: bool) -> None:
    from rich.console import Console

    from rlvr_jax.evaluate import EvaluationFile
    from rlvr_jax.report import before_after_table

    if not quiet:
        console = Console()
        evaluations = EvaluationFile(workdir)
        console.print(before_after_table(evaluations.records, evaluations.difference()))
        report = Path(workdir) / "report.html"
        if report.exists():
            console.print(f"report: {report}", soft_wrap=True, highlight=False)


def _open(options, overrides):
    """(config, parts, params, step) of a run's checkpoint, or of the untrained model of a config."""
    import jax

    from rlvr_jax.checkpoint import Checkpoints
    from rlvr_jax.config import check, defaults, flatten, load_config, set_key
    from rlvr_jax.run import abstract_state, make_parts
    from rlvr_jax.workdir import read_config

    if bool(options.workdir) == bool(options.config):
        raise ValueError("give either --workdir (a run) or --config (the untrained model)")
    if options.config and options.checkpoint is not None:
        raise ValueError(f"--checkpoint={options.checkpoint}: an untrained model (--config) has none; give --workdir")
    if options.config:
        config = load_config(options.config, overrides)
    else:
        saved = read_config(options.workdir)
        if saved is None:
            raise FileNotFoundError(f"workdir={options.workdir}: no run there (no config.json)")
        config = defaults()
        for key, value in flatten(saved).items():
            set_key(config, key, value)
        for item in overrides:
            key, _, value = item.partition("=")
            set_key(config, key, value)
    parts = make_parts(config, check(config, jax.device_count()))
    if options.config:
        return config, parts, parts.init_policy(), 0
    with Checkpoints(options.workdir, keep=0, create=False) as checkpoints:
        wanted = abstract_state(parts).params["policy"]
        params, step = checkpoints.restore_policy(wanted, options.checkpoint)
    return config, parts, params, step


def _what(options, step: int) -> str:
    return f"untrained model of {options.config}" if options.config else f"{options.workdir}, checkpoint of step {step}"


def _eval(options, overrides) -> int:
    import json

    from rich.console import Console

    from rlvr_jax.report import before_after_table
    from rlvr_jax.rng import key_for
    from rlvr_jax.run import make_evaluation

    config, parts, params, step = _open(options, overrides)
    evaluate, dropped = make_evaluation(config, parts)
    console = Console()
    console.print(f"{_what(options, step)}; {config.task}", highlight=False, soft_wrap=True)
    if dropped:
        console.print(f"{dropped} prompts longer than {config.sampling.prompt_length} tokens left out")
    evaluation = evaluate(params, step, key_for(options.seed, 0, "evaluate"))
    console.print(before_after_table([evaluation.record]))
    if options.output:
        outcomes = {mode: values.tolist() for mode, values in evaluation.outcomes.items()}
        Path(options.output).write_text(json.dumps({**evaluation.record, "outcomes": outcomes}, indent=1))
    return 0


def _sample(options, overrides) -> int:
    import jax
    from rich.console import Console
    from rich.text import Text

    from rlvr_jax.rng import key_for
    from rlvr_jax.rollout import completion_ids, fetch, verify
    from rlvr_jax.run import sampler_options
    from rlvr_jax.sampling import SamplingMethod, make_sampler
    from rlvr_jax.sharding import put_rows

    config, parts, params, step = _open(options, overrides)
    batch = _prompts_to_sample(options, config, parts)
    group = 1 if options.greedy else options.samples
    sampler = make_sampler(
        parts.policy,
        group_size=group,
        method=SamplingMethod(temperature=0.0) if options.greedy else parts.method,
        **sampler_options(config, parts),
    )
    prompts = put_rows(batch.prompts, parts.mesh)
    rollouts = fetch(jax.jit(sampler)(params, prompts, key_for(options.seed, 0, "sample")))
    own = options.prompt is not None
    verdicts = None if own else verify(parts.task, parts.tokenizer, rollouts, [p.answer for p in batch.problems])
    console = Console(highlight=False)
    console.print(Text(_what(options, step)))
    for row in range(len(batch.problems) * group):
        if row % group == 0:
            console.print(Text(f"\n{batch.problems[row // group].prompt}", style="bold"))
        text = parts.tokenizer.decode(completion_ids(rollouts, row))
        line = Text("  ") + Text(repr(text)) + Text("" if rollouts.finished[row] else " …cut")
        if verdicts:
            right = verdicts[row].outcome > 0.5
            line += Text(f"  {verdicts[row].reason}", style="green" if right else "red")
        console.print(line)
    return 0


def _export(options, overrides) -> int:
    from rich.console import Console

    from rlvr_jax.policy import Lora, save_pretrained

    config, parts, params, step = _open(options, overrides)
    if config.lora.rank:
        params = Lora(rank=config.lora.rank, alpha=config.lora.alpha, targets=tuple(config.lora.targets)).merge(params)
    source = config.model.path if Path(config.model.path).is_dir() else None
    folder = save_pretrained(
        options.to, parts.policy.architecture, params, parts.tokenizer, source=source, dtype=options.dtype
    )
    Console(highlight=False).print(f"{_what(options, step)} → {folder} ({options.dtype})", soft_wrap=True)
    return 0


def _estimators(options, overrides) -> int:
    from rich.console import Console

    from rlvr_jax.estimators import catalogue, catalogue_table, catalogue_text, describe
    from rlvr_jax.registry import nearest

    _no_keys("estimators", overrides)
    if options.name and options.name not in catalogue:
        hint = nearest(options.name, catalogue)
        raise ValueError(f"NAME={options.name!r}: unknown{hint} Choose from {sorted(catalogue)}")
    page = describe(options.name) if options.name else catalogue_table() if options.markdown else catalogue_text()
    Console(highlight=False, markup=False).print(page, soft_wrap=options.markdown)
    return 0


def _no_keys(command: str, overrides) -> None:
    if overrides:
        raise ValueError(f"`rlvr {command}` takes no config keys")


def _print_json(value) -> None:
    import json

    print(json.dumps(value, indent=1, ensure_ascii=False))


def _lengths(options, overrides) -> int:

    from rlvr_jax.report import lengths

    _no_keys("lengths", overrides)
    windows = [_window(name, getattr(options, name)) for name in ("before", "after")]
    report = lengths.measure(options.log, *windows, **_log_options(options))
    written = lengths.write(report, options.html, options.plots)
    return _show_report(lengths, report, written, options.json)


def _show_report(kind, report, written, as_json: bool) -> int:
    """Prints what `lengths` or `audit` of rlvr_jax.report found, as a screen or as JSON."""
    from rich.console import Console

    if as_json:
        _print_json(kind.as_json(report))
        return 0
    console = Console(highlight=False)
    console.print(kind.shown(report))
    for path in written:
        console.print(f"wrote {path}", soft_wrap=True)
    return 0


def _audit(options, overrides) -> int:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # a few small arrays: no accelerator is looked for

    from rlvr_jax.report import audit

    _no_keys("audit", overrides)
    report = audit.measure(
        options.name,
        options.log,
        group_size=options.group_size,
        reference=options.reference,
        completion_length=options.completion_length,
        **_log_options(options),
    )
    written = audit.write(report, options.html)
    return _show_report(audit, report, written, options.json)


def _prompts_to_sample(options, config, parts):
    from rlvr_jax.data import encode_problems, to_batch_of_prompts
    from rlvr_jax.run import encode_evaluation
    from rlvr_jax.tasks import Problem

    length = config.sampling.prompt_length
    if options.samples < 1 or options.problems < 1:
        raise ValueError(f"--samples={options.samples} --problems={options.problems}: both must be at least 1")
    if options.prompt is not None:
        problem = Problem(0, options.prompt, "", 0.0)
        encoded, _ = encode_problems(parts.task, [problem], parts.tokenizer, length)
    else:
        encoded = encode_evaluation(config, parts)[0]
        if options.problems > len(encoded):
            raise ValueError(f"--problems={options.problems}: the config evaluates on {len(encoded)} problems")
        encoded = encoded[: options.problems]
    return to_batch_of_prompts(encoded, length, parts.tokenizer.pad_id)


if __name__ == "__main__":
    sys.exit(main())
