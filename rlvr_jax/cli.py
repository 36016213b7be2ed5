"""`rlvr train | eval | sample | export | estimators`: thin commands over the functions of the same names."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

TRAIN_HELP = """Examples:
  rlvr train --config=configs/demo.py:grpo --workdir=runs/demo
  rlvr train --config=configs/demo.py:dr_grpo --workdir=runs/drgrpo --config.optimizer.learning_rate=3e-6
  rlvr train --config=configs/tiny.py:grpo --workdir=runs/loo --config.estimator.baseline=leave_one_out
Started again with the same workdir, a run goes on from its newest checkpoint."""
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

    text = "The catalogue of estimators, or one of them with its equation and source."
    show = add("estimators", text, ESTIMATORS_HELP)
    show.add_argument("name", nargs="?", metavar="NAME")
    show.add_argument("--markdown", action="store_true", help="the catalogue as the README's table")
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; an error of the user's is one line on stderr and exit status 2."""
    options, rest = parser().parse_known_args(arguments)
    logging.getLogger("absl").setLevel(logging.ERROR)  # Orbax warns of files that are not there yet
    run = {"train": _train, "eval": _eval, "sample": _sample, "export": _export, "estimators": _estimators}
    try:
        return run[options.command](options, [_override(item) for item in rest])
    except (ValueError, OSError, ImportError) as error:
        print(f"rlvr {options.command}: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"rlvr {options.command}: interrupted", file=sys.stderr)
        return 130


def _override(item: str) -> str:
    if not item.startswith("--config."):
        raise ValueError(f"unknown argument {item!r}; config keys are set with --config.KEY=VALUE")
    return item.removeprefix("--config.")


def _train(options, overrides) -> int:
    from rlvr_jax.config import load_config
    from rlvr_jax.train import train

    train(load_config(options.config, overrides), options.workdir, quiet=options.quiet)
    _show_run(options.workdir, options.quiet)
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

    if overrides:
        raise ValueError("`rlvr estimators` takes no config keys")
    if options.name and options.name not in catalogue:
        hint = nearest(options.name, catalogue)
        raise ValueError(f"NAME={options.name!r}: unknown{hint} Choose from {sorted(catalogue)}")
    page = describe(options.name) if options.name else catalogue_table() if options.markdown else catalogue_text()
    Console(highlight=False, markup=False).print(page, soft_wrap=options.markdown)
    return 0


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
