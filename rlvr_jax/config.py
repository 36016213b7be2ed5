"""Every key of a run, and every constraint between them.

A config is a locked `ml_collections.ConfigDict`: a key that is not in `defaults()` cannot be set, by a config file
or by the command line. `check` runs before any device work.
"""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import math
import re
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from rlvr_jax.data import LONG_PROMPTS
from rlvr_jax.estimators import SLOTS, Estimator, catalogue, make_estimator
from rlvr_jax.optimizer import KINDS, MOMENTS, SCHEDULES
from rlvr_jax.policy import PRESETS, REMAT_POLICIES, Lora, resolve_model_path
from rlvr_jax.registry import nearest
from rlvr_jax.tasks import CHECKS, SPLITS, make_task
from rlvr_jax.tokenizer import make_tokenizer

# What may differ when a run is resumed: how long it goes on and what it shows, not what it computes. (The number of
# steps is part of what is computed where the learning rate decays over them.)
FREE_KEYS = ("steps", "evaluate.every", "evaluate.prompts_per_batch", "checkpoint.", "log.", "watchdog.")
FREE_KEYS += ("verify.workers",)


def defaults(estimator: str = "grpo") -> ConfigDict:
    """Every key with its default, locked. `estimator` is a name of the catalogue."""
    config = ConfigDict(
        {
            "seed": 0,
            "steps": 100,  # rollout batches
            "prompts_per_step": 8,
            "group_size": 8,  # completions per prompt
            "task": "arithmetic",  # "name(keyword=value)", see rlvr_jax/tasks
            "tokenizer": "",  # "bytes", a path, or "" for the model's own
            "model": {
                "path": "",  # a model file or "package:NAME/FILE"; "" trains a new one of the sizes below
                "preset": "",  # sizes of a public model, such as "qwen2.5-7b", in place of those below; no weights
                "width": 64,
                "layers": 2,
                "heads": 4,
                "kv_heads": 2,
                "head_size": 16,
                "hidden": 256,
                "rope_theta": 10_000.0,
                "dtype": "float32",  # activations and cache; parameters are float32
                # splash: the TPU's kernel, no scores in memory; plain: written out; auto: the kernel where it can run
                "attention": "auto",
                "scan_layers": True,  # one compiled block for all layers
                "remat": "none",  # what the backward pass recomputes: none, block, dots
            },
            # Low-rank adapters; rank 0 trains all weights.
            "lora": {
                "rank": 0,
                "alpha": 32.0,  # the adapters' product is multiplied by alpha / rank
                "targets": ("query", "key", "value", "output", "gate", "up", "down"),  # or "head", where it is not tied
            },
            "sampling": {
                "prompt_length": 16,  # tokens; prompts are padded to it, longer ones refused or dropped
                "completion_length": 8,  # tokens, the end token included
                "temperature": 1.0,
                "top_k": 0,  # 0: all
                "top_p": 1.0,
                "min_p": 0.0,  # of the likeliest token's probability; 0: all
                "stop_strings": (),  # a completion ends with the token that completes one of them
                "rows_at_once": 0,  # rows decoded together, the others take the places of those that end; 0: all
                "narrowings": 0,  # how often the loop goes on with half its rows when half have ended
                # mean |log-probability of the sampler − of the learner| on the first batch past which a run is refused
                "largest_mismatch": 0.05,
            },
            "data": {
                "long_prompts": "refuse",  # or "drop": left out and counted
                # Of problems that are read from files (rlvr_jax/tasks/checks.py), all counted and shown at the start.
                "fields": "refuse",  # missing or empty ones; or "drop": the row is left out
                "answers": "refuse",  # ones that no completion can be right for; or drop
                "repeats": "refuse",  # prompts that the split has already; or drop, keep
                "overlap": "refuse",  # training prompts that are held out too; or drop (from training), keep
                "encoding": "keep",  # a byte order mark, CRLF, U+2028 and other signs that are not text; or refuse
            },
            # Processes that grade, on each host those of its own rows.
            "verify": {
                "workers": 0,  # 0: one a processor, none for verifiers that only match a pattern; −1: none
                "time_limit": 5.0,  # seconds of one completion, then its outcome is 0
                "memory_mb": 2048,  # address space that grading may take in a process; 0: no limit
            },
            # A name of the catalogue; a slot given here replaces the entry's own ("" keeps it).
            "estimator": {"name": estimator, **dict.fromkeys(SLOTS, "")},
            "updates": {
                "epochs": 1,  # passes over one rollout batch
                "minibatches": 1,  # optimiser updates per pass
                "micro_batch_rows": 0,  # rows whose activations are held at once; 0: all. Never changes a result
                "completions_per_row": 1,  # completions that share a row with their prompt
                "head_chunks": 1,  # pieces of the completions that pass the output head one after the other
                # completions lie side by side without their padding, in rows of one of so many sizes; 0: padded
                "row_sizes": 0,
                "entropy_bonus": 0.0,
                "skip_inactive": True,  # micro-batches whose rows all have advantage 0 are not computed
            },
            "optimizer": {
                "kind": "adam",  # or sgd, adafactor
                "moments_dtype": "float32",  # or bfloat16 (the first moment of adam)
                "learning_rate": 1e-6,
                "warmup": 0,  # updates
                "decay": "constant",  # or linear, cosine: to 0 at the last update
                "b1": 0.9,
                "b2": 0.95,
                "weight_decay": 0.0,
                "clip_norm": 1.0,  # global norm; 0: none
                "estimator_learning_rate": 0.1,  # of what the estimator itself learns (λ-GRPO)
            },
            # Axes of the devices. What the sampler reads is cut over `sample_model` devices (0: as `model`) and is
            # whole in each such group.
            "mesh": {"data": -1, "model": 1, "replica": 1, "sample_model": 0},  # data −1: all that the others leave
            "evaluate": {
                "every": 0,  # steps; 0: only before the first and after the last
                "split": "held_out",  # or "train": says what was learnt, not whether it carries over
                "problems": 64,  # of that split
                "samples": 4,  # per problem, at sampling.temperature; greedy is evaluated beside it
                "prompts_per_batch": 32,
            },
            "checkpoint": {
                "every": 20,  # steps; 0: only after the last
                "keep": 1,  # the newest so many; 0: all
                "best": 0,  # the best so many are kept besides, of those whose step was evaluated
                "best_by": "greedy_pass@1",  # or sampled_pass@1, sampled_pass@k
                "grace_seconds": 25.0,  # from SIGTERM to the end: the step, and a checkpoint of it
            },
            # 0: no limit. A run that stands still is ended, with a status that asks for a restart.
            "watchdog": {
                "step_seconds": 0.0,  # longest time of a step, what is compiled for its sizes included; 0: no watchdog
                "other_seconds": 3600.0,  # of the start, the first step (it compiles), an evaluation, the end
                "lost_seconds": 60.0,  # a host that is silent for so long is gone
            },
            "log": {
                "rollout_groups": 2,  # groups a step whose best, worst and longest wrong rollout are kept
                "tensorboard": False,
                "report": True,  # plots and report.html at the end
            },
        }
    )
    return config.lock()


def flatten(config: ConfigDict | dict, prefix: str = "") -> dict[str, Any]:
    """Nested config → {"optimizer.learning_rate": 1e-6, …}."""
    flat = {}
    for key, value in dict(config).items():
        nested = isinstance(value, (ConfigDict, dict))
        value = tuple(value) if isinstance(value, list) else value  # what JSON makes of a tuple
        flat |= flatten(value, f"{prefix}{key}.") if nested else {prefix + key: value}
    return flat


def unknown_key(key: str, valid: Iterable[str]) -> ValueError:
    """The error for a key that is not there, naming the nearest one by spelling or by its last part."""
    valid = list(valid)
    same_leaf = [name for name in valid if name.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1].replace("-", "_")]
    close = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    leaf = difflib.get_close_matches(key.rsplit(".", 1)[-1], [v.rsplit(".", 1)[-1] for v in valid], n=1)
    by_leaf = [name for name in valid if leaf and name.rsplit(".", 1)[-1] == leaf[0]]
    choice = (same_leaf or close or by_leaf or [None])[0]
    section = key.rpartition(".")[0]
    peers = [name for name in valid if name.rpartition(".")[0] == section]
    hint = f". Did you mean {choice!r}?" if choice else "."
    return ValueError(f"config.{key}: no such key{hint} Keys there: {peers or sorted(valid)}")


def set_key(config: ConfigDict, key: str, text: Any) -> None:
    """Sets one dotted key, read as the type its default has.

    Raises:
      ValueError: no such key, or a value of another type; names key, value and type.
    """
    flat = flatten(config)
    if any(name.startswith(f"{key}.") for name in flat):
        inside = [name for name in flat if name.startswith(f"{key}.")]
        raise ValueError(f"config.{key}={text!r}: is a section; its keys: {inside}")
    if key not in flat:
        raise unknown_key(key, flat)
    kind = type(flat[key])
    try:
        value = _read(text, kind)
    except (ValueError, SyntaxError, TypeError):
        raise ValueError(f"config.{key}={text!r}: expected {kind.__name__}, such as {flat[key]!r}") from None
    *sections, last = key.split(".")
    for section in sections:
        config = config[section]
    config[last] = value


def _read(text: Any, kind: type) -> Any:
    if kind is str:
        return str(text)
    value = ast.literal_eval(text.strip().capitalize() if kind is bool else text) if isinstance(text, str) else text
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if kind is tuple and isinstance(value, (list, str)):  # a list of one needs no brackets
        value = (value,) if isinstance(value, str) else tuple(value)
    if type(value) is not kind:
        raise ValueError
    return value


def load_config(text: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """ "configs/demo.py:dr_grpo" and ["optimizer.learning_rate=1e-6", …] → a locked config.

    Raises:
      FileNotFoundError: no such file. ValueError: no `get_config`, an unknown key, a value of another type.
    """
    path, _, argument = text.partition(":")
    if not Path(path).is_file():
        raise FileNotFoundError(f"--config={text}: {path} does not exist")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None:
        raise ValueError(f"--config={text}: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a config file does wrong when it is read
        raise ValueError(f"--config={text}: {type(error).__name__}: {error}") from None
    if not hasattr(module, "get_config"):
        raise ValueError(f"--config={text}: {path} defines no get_config(name)")
    takes_name = bool(inspect.signature(module.get_config).parameters)
    if argument and not takes_name:
        raise ValueError(f"--config={text}: get_config() of {path} takes no name; leave {':' + argument!r} out")
    try:
        config = module.get_config(argument) if argument else module.get_config()
    except (KeyError, AttributeError, TypeError) as error:
        raise _config_file_error(text, error) from None
    if not isinstance(config, ConfigDict):
        raise ValueError(f"--config={text}: get_config returned {type(config).__name__}, not the config")
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ValueError(f"--config.{override}: expected --config.{key}=VALUE")
        set_key(config, key, value)
    return config.lock()


def _config_file_error(text: str, error: Exception) -> ValueError:
    """ConfigDict's complaint about a key or a type, in one line that names the nearest key."""
    frame = traceback.extract_tb(error.__traceback__)
    inside = [f"line {f.lineno}: {f.line}" for f in frame if f.filename == text.partition(":")[0]]
    where = f"--config={text}{', ' + inside[-1] if inside else ''}"
    quoted = re.search(r"[\"'](\w+)[\"']", str(error))
    if isinstance(error, TypeError) or not quoted:
        return ValueError(f"{where}: {str(error).splitlines()[0]}")
    section = re.search(r"config\.([\w.]+)\.\w+ *=", inside[-1]) if inside else None
    key = f"{section.group(1)}.{quoted.group(1)}" if section else quoted.group(1)
    return ValueError(f"{where}: {unknown_key(key, flatten(defaults()))}")


def data_checks(config: ConfigDict) -> dict[str, str]:
    """What is done about faults of the data, as `make_task` takes it."""
    return {kind: config.data[kind] for kind in CHECKS}


def estimator_of(config: ConfigDict) -> Estimator:
    """The estimator a config names, with its slots replaced where the config says so.

    Raises:
      ValueError: unknown name, option or keyword.
    """
    slots = {slot: config.estimator[slot] for slot in SLOTS if config.estimator[slot]}
    name = config.estimator.name
    if name not in catalogue:
        raise ValueError(f"estimator.name={name!r}: unknown{nearest(name, catalogue)} Choose from {sorted(catalogue)}")
    return make_estimator(name, completion_length=config.sampling.completion_length, **slots)


def differences(ours: dict, theirs: dict) -> list[str]:
    """The keys that differ between two flat configs, as "key: theirs → ours", those of FREE_KEYS left out."""
    decays = ours.get("optimizer.decay", "constant") != "constant"
    names = [name for name in FREE_KEYS if not (decays and name == "steps")]
    free = lambda key: any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)
    keys = [key for key in {**theirs, **ours} if not free(key) and ours.get(key) != theirs.get(key)]
    return [f"{key}: {theirs.get(key)!r} → {ours.get(key)!r}" for key in keys]


def check(config: ConfigDict, devices: int = 1, sources: bool = True) -> Estimator:
    """Refuses a config that cannot run, before any device work; returns its estimator. `sources` false: model and
    problems need not be there.

    Raises:
      ValueError, FileNotFoundError: naming the key, the value, the constraint and the valid choices.
    """
    flat = flatten(config)
    for key in flat:
        if key not in flatten(defaults()):
            raise unknown_key(key, flatten(defaults()))
    _check_ranges(flat)
    estimator = estimator_of(config)
    _check_group(config, estimator)
    _check_rows(config, devices)
    if sources:
        _check_sources(config)
    return estimator


def _require(condition: bool, flat: dict, key: str, constraint: str) -> None:
    if not condition:
        raise ValueError(f"config.{key}={flat[key]!r}: {constraint}")


def _check_ranges(flat: dict) -> None:
    for key, value in flat.items():
        _require(not isinstance(value, float) or math.isfinite(value), flat, key, "must be finite")
    _require(flat["model.rope_theta"] > 0, flat, "model.rope_theta", "must be above 0")
    positive = (
        "steps prompts_per_step group_size sampling.prompt_length sampling.completion_length updates.epochs "
        "updates.minibatches updates.completions_per_row updates.head_chunks evaluate.problems evaluate.samples "
        "evaluate.prompts_per_batch mesh.model mesh.replica model.width model.layers model.heads model.kv_heads "
        "model.head_size model.hidden"
    )
    for key in positive.split():
        _require(flat[key] >= 1, flat, key, "must be at least 1")
    not_negative = (
        "updates.micro_batch_rows optimizer.learning_rate optimizer.warmup optimizer.weight_decay "
        "optimizer.clip_norm optimizer.estimator_learning_rate evaluate.every checkpoint.every checkpoint.keep "
        "sampling.top_k sampling.rows_at_once sampling.narrowings sampling.largest_mismatch updates.row_sizes "
        "updates.entropy_bonus log.rollout_groups lora.rank seed checkpoint.best checkpoint.grace_seconds "
        "watchdog.step_seconds watchdog.other_seconds watchdog.lost_seconds mesh.sample_model"
    )
    for key in not_negative.split():
        _require(flat[key] >= 0, flat, key, "must not be negative")
    _require(
        flat["sampling.temperature"] > 0,
        flat,
        "sampling.temperature",
        "must be above 0 to train: at 0 all completions of a prompt are the same, and no group has contrast "
        "(evaluation is greedy beside it)",
    )
    _require(flat["verify.workers"] >= -1, flat, "verify.workers", "must be −1, 0 or a number of processes")
    _require(flat["verify.time_limit"] > 0, flat, "verify.time_limit", "must be above 0 seconds")
    memory = flat["verify.memory_mb"]
    _require(memory == 0 or memory >= 256, flat, "verify.memory_mb", "must be 0 (no limit) or at least 256")
    _require(0 < flat["sampling.top_p"] <= 1, flat, "sampling.top_p", "must be in (0, 1]")
    _require(0 <= flat["sampling.min_p"] <= 1, flat, "sampling.min_p", "must be in [0, 1]")
    stops = flat["sampling.stop_strings"]
    _require(all(isinstance(s, str) and s for s in stops), flat, "sampling.stop_strings", "must be texts, none empty")
    for key in ("optimizer.b1", "optimizer.b2"):
        _require(0 <= flat[key] < 1, flat, key, "must be in [0, 1)")
    for key, choices in {
        "optimizer.decay": SCHEDULES,
        "optimizer.kind": KINDS,
        "optimizer.moments_dtype": MOMENTS if flat["optimizer.kind"] == "adam" else MOMENTS[:1],
        "model.attention": ("auto", "plain", "splash"),
        "model.remat": REMAT_POLICIES,
        "model.preset": ("", *PRESETS),
        "model.dtype": ("float32", "bfloat16"),
        "data.long_prompts": LONG_PROMPTS,
        **{f"data.{kind}": choices for kind, choices in CHECKS.items()},
        "evaluate.split": SPLITS,
        "checkpoint.best_by": ("greedy_pass@1", "sampled_pass@1", "sampled_pass@k"),
    }.items():
        _require(flat[key] in choices, flat, key, f"choose from {list(choices)}")
    if flat["lora.rank"]:
        Lora(rank=flat["lora.rank"], alpha=flat["lora.alpha"], targets=tuple(flat["lora.targets"]))
    if flat["checkpoint.best"]:
        _require(flat["evaluate.every"] > 0, flat, "checkpoint.best", "needs config.evaluate.every above 0")
        many = flat["evaluate.samples"] > 1 or not flat["checkpoint.best_by"].endswith("@k")
        _require(many, flat, "checkpoint.best_by", "needs config.evaluate.samples above 1")
    heads, kv_heads = flat["model.heads"], flat["model.kv_heads"]
    _require(heads % kv_heads == 0, flat, "model.kv_heads", f"must divide model.heads={heads}")
    _require(flat["model.head_size"] % 2 == 0, flat, "model.head_size", "must be even (rotary pairs)")


def _check_group(config: ConfigDict, estimator: Estimator) -> None:
    if config.group_size < estimator.min_group:
        raise ValueError(
            f"config.group_size={config.group_size}: the estimator {estimator.describe()!r} compares completions of "
            f"one prompt and needs at least {estimator.min_group}"
        )


def divisors(number: int, multiple_of: int = 1) -> list[int]:
    return [d for d in range(multiple_of, number + 1, multiple_of) if number % d == 0]


def _check_rows(config: ConfigDict, devices: int) -> None:
    """Every split of the rows must be even: nothing is dropped, nothing is padded in silence."""
    group, share, updates = config.group_size, config.updates.completions_per_row, config.updates
    if group % share:
        raise ValueError(
            f"config.updates.completions_per_row={share}: must divide group_size={group}: {divisors(group)}"
        )
    if config.prompts_per_step % updates.minibatches:
        raise ValueError(
            f"config.updates.minibatches={updates.minibatches}: must divide "
            f"prompts_per_step={config.prompts_per_step}: {divisors(config.prompts_per_step)}"
        )
    rows = config.prompts_per_step * group // updates.minibatches
    size = updates.micro_batch_rows or rows
    if rows % size or size % share:
        raise ValueError(
            f"config.updates.micro_batch_rows={size}: must divide the {rows} rows of an update "
            f"({config.prompts_per_step} prompts × group_size {group} / {updates.minibatches} minibatches) and be a "
            f"multiple of completions_per_row={share}: {divisors(rows, share)}"
        )
    _check_mesh(config, devices, size)


def _check_mesh(config: ConfigDict, devices: int, size: int) -> None:
    """`size` rows at once over `devices`."""
    share, mesh, rows = config.updates.completions_per_row, config.mesh, config.prompts_per_step * config.group_size
    rows //= config.updates.minibatches
    fixed = mesh.model * mesh.replica
    if devices % fixed or mesh.data not in (-1, devices // fixed):
        times = f" × config.mesh.replica={mesh.replica}" if mesh.replica > 1 else ""
        raise ValueError(
            f"config.mesh.data={mesh.data} × config.mesh.model={mesh.model}{times}: must equal the number of "
            f"devices, {devices}"
        )
    if devices % (mesh.sample_model or mesh.model):
        raise ValueError(f"config.mesh.sample_model={mesh.sample_model}: must divide the {devices} devices")
    data = devices // mesh.model
    if (size // share) % data:
        raise ValueError(
            f"config.updates.micro_batch_rows={size}: {size // share} rows of {share} completion(s) cannot be spread "
            f"evenly over {data} devices; with completions_per_row=1 micro-batches of "
            f"{[d for d in divisors(rows) if d % data == 0] or 'no size'} rows can"
        )


def _check_sources(config: ConfigDict) -> None:
    task = make_task(config.task, data_checks(config))
    there = len(task.problems(config.evaluate.split))
    if config.evaluate.problems > there:
        raise ValueError(
            f"config.evaluate.problems={config.evaluate.problems}: the split {config.evaluate.split!r} of "
            f"{config.task} has {there}"
        )
    train = len(task.problems("train"))
    if config.prompts_per_step > train:
        raise ValueError(
            f"config.prompts_per_step={config.prompts_per_step}: the train split of {config.task} has {train} problems"
        )
    if config.model.path:
        resolve_model_path(config.model.path)
    elif not config.tokenizer:
        raise ValueError("config.tokenizer='': a model trained from scratch (model.path='') needs one, e.g. 'bytes'")
    if config.tokenizer:
        make_tokenizer(config.tokenizer)
