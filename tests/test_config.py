"""Configs: every key is known and read, every constraint is named with its numbers before any device work."""

import re
from pathlib import Path

import pytest

from rlvr_jax import config as config_module
from rlvr_jax.config import check, defaults, differences, estimator_of, flatten, load_config, set_key
from rlvr_jax.estimators import catalogue
from rlvr_jax.lab import check_lab

ROOT = Path(__file__).parents[1]
FLAT = flatten(defaults())


def small(**changes):
    """6 prompts × 4 completions; `changes` by dotted key with `__` for the dot."""
    config = defaults()
    config.tokenizer = "bytes"
    config.prompts_per_step, config.group_size = 6, 4
    config.evaluate.problems = 10
    for key, value in changes.items():
        set_key(config, key.replace("__", "."), value)
    return config


def refused(message, devices=1, **changes):
    with pytest.raises(ValueError, match=message):
        check(small(**changes), devices)


# --- keys that are not there ---

UNKNOWN = [
    ("optimizer.learning_rat", "optimizer.learning_rate"),  # misspelt
    ("learning_rate", "optimizer.learning_rate"),  # in another section
    ("evaluate.learning_rate", "optimizer.learning_rate"),
    ("group-size", "group_size"),  # with a hyphen
    ("updates.micro-batch-rows", "updates.micro_batch_rows"),
    ("optimiser.clip_norm", "optimizer.clip_norm"),
    ("model.widht", "model.width"),
]


@pytest.mark.parametrize(("key", "nearest"), UNKNOWN)
def test_unknown_key_on_the_command_line(key, nearest):
    with pytest.raises(ValueError, match=rf"config\.{re.escape(key)}: no such key.*'{nearest}'"):
        load_config(str(ROOT / "tests" / "tiny.py"), [f"{key}=1"])


def test_unknown_key_names_the_keys_of_its_section():
    with pytest.raises(ValueError, match=r"Keys there: \['evaluate.every', .*'evaluate.samples'"):
        set_key(defaults(), "evaluate.evry", 1)
    with pytest.raises(ValueError, match="no such key"):
        set_key(defaults(), "zzzzzz", 1)
    with pytest.raises(ValueError, match=r"is a section; its keys: \['optimizer.b1'"):
        set_key(defaults(), "optimizer", 1)


def config_file(tmp_path, line):
    file = tmp_path / "mine.py"
    file.write_text(
        f"from rlvr_jax.config import defaults\ndef get_config(estimator='grpo'):\n"
        f"    config = defaults(estimator)\n    {line}\n    return config\n"
    )
    return str(file)


@pytest.mark.parametrize(
    ("line", "key", "nearest"),
    [
        ("config.optimizer.learning_rat = 1e-5", "learning_rat", "learning_rate"),
        ("config.optimiser.learning_rate = 1e-5", "optimiser", "optimizer"),
        ("config.group_sise = 8", "group_sise", "group_size"),
        ("config.update({'group_sise': 8})", "group_sise", "group_size"),
    ],
)
def test_unknown_key_in_a_config_file(tmp_path, line, key, nearest):
    with pytest.raises(ValueError, match=rf"mine\.py.*{key}.*{nearest}"):
        load_config(config_file(tmp_path, line))


def test_key_in_the_wrong_place_of_a_config_file(tmp_path):
    with pytest.raises(ValueError, match=r"mine\.py.*learning_rate") as refusal:
        load_config(config_file(tmp_path, "config.learning_rate = 1e-5"))
    assert "optimizer.learning_rate" in str(refusal.value)
    assert len(str(refusal.value)) < 600  # a line, not the whole config


def test_unlocked_additions_are_caught_by_check():
    config = small()
    with config.unlocked():
        config.optimizer.learning_rat = 1e-5
    with pytest.raises(ValueError, match=r"optimizer\.learning_rat: no such key.*'optimizer.learning_rate'"):
        check(config)


# --- values ---


def test_values_are_read_as_the_type_of_their_default():
    config = defaults()
    for key, text, value in [
        ("optimizer.learning_rate", "1e-5", 1e-5),
        ("optimizer.learning_rate", "1", 1.0),
        ("steps", "7", 7),
        ("steps", "1e2", 100),
        ("steps", 7.0, 7),
        ("model.scan_layers", "false", False),
        ("model.scan_layers", "True", True),
        ("model.scan_layers", False, False),
        ("task", "compare(held_out=20)", "compare(held_out=20)"),
        ("tokenizer", "7", "7"),
        ("mesh.data", "-1", -1),
    ]:
        set_key(config, key, text)
        found = flatten(config)[key]
        assert found == value and type(found) is type(value), key


@pytest.mark.parametrize(
    ("key", "text", "kind"),
    [
        ("steps", "ten", "int"),
        ("steps", "1.5", "int"),
        ("steps", "True", "int"),
        ("steps", "", "int"),
        ("steps", "2 +", "int"),
        ("steps", "__import__('os')", "int"),
        ("optimizer.learning_rate", "fast", "float"),
        ("optimizer.learning_rate", "True", "float"),
        ("model.scan_layers", "1", "bool"),
        ("model.scan_layers", "yes", "bool"),
    ],
)
def test_a_value_of_another_type(key, text, kind):
    with pytest.raises(ValueError, match=rf"config\.{re.escape(key)}=.*: expected {kind}, such as"):
        set_key(defaults(), key, text)


@pytest.mark.parametrize("line", ["config.steps = 'ten'", "config.model.scan_layers = 'yes'", "config.steps = 1.5"])
def test_a_value_of_another_type_in_a_config_file(tmp_path, line):
    with pytest.raises(ValueError, match=r"mine\.py"):
        load_config(config_file(tmp_path, line))


def test_what_is_not_a_config(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.py does not exist"):
        load_config(str(tmp_path / "none.py"))
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ValueError, match=r"empty\.py defines no get_config"):
        load_config(str(tmp_path / "empty.py"))
    with pytest.raises(ValueError, match=r"steps: expected --config\.steps=VALUE"):
        load_config(config_file(tmp_path, "pass"), ["steps"])


def test_defaults_are_locked_and_fresh():
    config = defaults()
    with pytest.raises((AttributeError, KeyError)):
        config.nonsense = 1
    config.steps = 7
    assert defaults().steps == 100 and load_config(str(ROOT / "tests" / "tiny.py")).is_locked


def test_every_key_is_read_somewhere():
    sources = [path.read_text() for path in (ROOT / "rlvr_jax").rglob("*.py")]
    text = "\n".join(sources)
    text = text.replace(Path(config_module.__file__).read_text().split("def flatten")[0], "")  # not the defaults
    # sections that are passed whole, and keys that are passed by the names of a field
    whole = {"optimizer": r"\*\*config\.optimizer"}
    for key in FLAT:
        section, _, name = key.rpartition(".")
        if section == "estimator":
            continue  # the slots, by name; see below
        reads = [rf"\b(config|updates)\.{re.escape(key)}\b", rf"\b{section}\.{name}\b", rf"\"{name}\""]
        assert any(re.search(pattern, text) for pattern in [*reads, whole.get(section, "a^")]), key
    config = defaults()
    config.estimator.scale = "none"
    assert estimator_of(config).slots["scale"] == "none"


# --- constraints ---


def test_a_config_that_can_run_returns_its_estimator():
    estimator = check(small(estimator__clip="ppo(low=0.1, high=0.3)"))
    assert estimator.describe() == "grpo + clip=ppo(low=0.1, high=0.3)"


AT_LEAST_ONE = [
    *("steps", "prompts_per_step", "group_size", "sampling.prompt_length", "sampling.completion_length"),
    *("updates.epochs", "updates.minibatches", "updates.completions_per_row", "updates.head_chunks"),
    *("evaluate.problems", "evaluate.samples", "evaluate.prompts_per_batch", "mesh.model"),
    *("model.width", "model.layers", "model.heads", "model.kv_heads", "model.hidden"),
]
NOT_NEGATIVE = [
    *("updates.micro_batch_rows", "updates.entropy_bonus", "sampling.top_k", "log.rollout_groups"),
    *("optimizer.learning_rate", "optimizer.warmup", "optimizer.weight_decay", "optimizer.clip_norm"),
    *("optimizer.estimator_learning_rate", "evaluate.every", "checkpoint.every", "checkpoint.keep"),
]


@pytest.mark.parametrize(
    ("key", "value", "constraint"),
    [
        *((key, 0, "must be at least 1") for key in AT_LEAST_ONE),
        *((key, -1, "must not be negative") for key in NOT_NEGATIVE),
        ("sampling.temperature", 0.0, "must be above 0 to train"),
        ("sampling.temperature", -1.0, "must be above 0 to train"),
        ("sampling.top_p", 0.0, r"must be in \(0, 1\]"),
        ("sampling.top_p", 1.5, r"must be in \(0, 1\]"),
        ("optimizer.b1", 1.0, r"must be in \[0, 1\)"),
        ("optimizer.b2", -0.1, r"must be in \[0, 1\)"),
        ("optimizer.decay", "exponential", r"choose from \['constant', 'linear', 'cosine'\]"),
        ("model.remat", "all", r"choose from \['none', 'block', 'dots'\]"),
        ("model.dtype", "float16", r"choose from \['float32', 'bfloat16'\]"),
        ("evaluate.split", "test", r"choose from \['train', 'held_out'\]"),
        ("data.long_prompts", "cut", r"choose from \['refuse', 'drop'\]"),
        ("sampling.min_p", 1.5, r"must be in \[0, 1\]"),
        ("sampling.stop_strings", ("a", ""), "none empty"),
        ("optimizer.kind", "lion", "choose from"),
        ("lora.rank", -1, "must not be negative"),
        ("model.kv_heads", 3, "must divide model.heads=4"),
        ("model.head_size", 15, "must be even"),
        ("updates.completions_per_row", 3, r"must divide group_size=4: \[1, 2, 4\]"),
        ("updates.minibatches", 4, r"must divide prompts_per_step=6: \[1, 2, 3, 6\]"),
        ("evaluate.problems", 21, r"the split 'held_out' of arithmetic has 20"),
        ("prompts_per_step", 81, "the train split of arithmetic has 80 problems"),
        ("mesh.data", 2, "must equal the number of devices, 1"),
        ("mesh.model", 2, "must equal the number of devices, 1"),
        ("tokenizer", "", "a model trained from scratch .* needs one"),
    ],
)
def test_constraints(key, value, constraint):
    refused(rf"config\.{re.escape(key)}={re.escape(repr(value))}.*{constraint}", **{key.replace(".", "__"): value})


def test_values_at_the_bounds_are_accepted():
    check(small(**{key.replace(".", "__"): 0 for key in NOT_NEGATIVE}))
    check(small(sampling__top_p=1.0, optimizer__b1=0.0, evaluate__problems=20, prompts_per_step=80))
    check(small(updates__head_chunks=8, updates__minibatches=6, updates__completions_per_row=4))


def test_sources_that_are_not_there(tmp_path):
    for key, value in (
        ("model.path", str(tmp_path / "none.gguf")),
        ("model.path", "package:no_such_package/x.gguf"),
        ("tokenizer", str(tmp_path / "none.json")),
    ):
        with pytest.raises(FileNotFoundError, match=re.escape(value.rsplit("/", 1)[-1])):
            check(small(**{key.replace(".", "__"): value}))
    refused("task='arithmetik'.*Did you mean 'arithmetic'", task="arithmetik")
    refused("task='arithmetic.digit=2.'.*no keyword 'digit'", task="arithmetic(digit=2)")


def test_estimators_that_are_not_there():
    for name, message in (
        ("dr_gpo", r"estimator.name='dr_gpo': unknown. Did you mean 'dr_grpo'. Choose from .*'rloo'"),
        ("", "estimator.name=''"),
    ):
        refused(message, estimator__name=name)
    refused("scale='group_sdt'.*'group_std'", estimator__scale="group_sdt")
    refused("clip='ppo.lo=0.2.'.*'low'", estimator__clip="ppo(lo=0.2)")


# --- batches and groups: 6 prompts × 4 completions = 24 rows ---


def test_micro_batches_that_do_not_divide_the_rows():
    refused(
        r"micro_batch_rows=5: must divide the 24 rows .*\[1, 2, 3, 4, 6, 8, 12, 24\]",
        updates__micro_batch_rows=5,
    )
    refused(r"micro_batch_rows=48.*24 rows", updates__micro_batch_rows=48)
    refused(
        r"micro_batch_rows=6.*multiple of completions_per_row=4: \[4, 8, 12, 24\]",
        updates__micro_batch_rows=6,
        updates__completions_per_row=4,
    )
    refused(
        r"micro_batch_rows=8: must divide the 12 rows .* 2 minibatches",
        updates__micro_batch_rows=8,
        updates__minibatches=2,
    )
    check(small(updates__micro_batch_rows=8))
    check(small(updates__micro_batch_rows=8, updates__completions_per_row=2))


def test_rows_over_eight_devices():
    check(small(), devices=8)  # 3 rows each; groups straddle devices, advantages are taken of the whole batch
    check(small(mesh__data=8), devices=8)
    check(small(mesh__model=4), devices=8)
    refused(
        r"6 rows of 4 completion\(s\) cannot be spread evenly over 8 devices; .*\[8, 24\]",
        devices=8,
        updates__completions_per_row=4,
    )
    refused("4 rows of 1 completion.* over 8 devices", devices=8, updates__micro_batch_rows=4)
    refused("mesh.data=4 × config.mesh.model=1.*devices, 8", devices=8, mesh__data=4)
    refused("mesh.data=-1 × config.mesh.model=3.*devices, 8", devices=8, mesh__model=3)


def test_groups_too_small_to_compare():
    refused("group_size=1: the estimator 'grpo' .* needs at least 2", group_size=1)
    refused("group_size=0: must be at least 1", group_size=0)
    check(small(group_size=1, estimator__name="reinforce"))
    refused("group_size=0", group_size=0, estimator__name="reinforce")
    check(small(evaluate__samples=3))  # the evaluation has a group of its own


# --- the configs of the repository ---


@pytest.mark.parametrize("file", sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
def test_every_config_takes_every_estimator(file, monkeypatch):
    # whether the model is installed and the problems of a pod are at hand is not what is asked here
    monkeypatch.setattr(config_module, "resolve_model_path", lambda path: Path(path))
    chips = 64 if file.startswith("pod") else 1  # of their slices; the small one is cut into as few as 8
    checked = lambda config: check(config, 8 if file == "pod_1p5b" else chips, sources=chips == 1)
    check_one = (lambda config: check_lab(config)[1]) if file == "lab" else checked
    for name in catalogue:
        config = load_config(f"{ROOT / 'configs' / file}.py:{name}")
        assert config.estimator.name == name and config.is_locked
        assert check_one(config).name == name
    assert load_config(f"{ROOT / 'configs' / file}.py").estimator.name == "grpo"


# --- what may differ when a run goes on ---


def test_differences_between_configs():
    ours, theirs = flatten(small()), flatten(small())
    assert differences(ours, theirs) == []
    ours |= {"optimizer.learning_rate": 1e-5, "seed": 1}
    assert sorted(differences(ours, theirs)) == ["optimizer.learning_rate: 1e-06 → 1e-05", "seed: 0 → 1"]
    del theirs["group_size"]
    assert "group_size: None → 4" in differences(ours, theirs)
    theirs["old_key"] = 3
    assert "old_key: 3 → None" in differences(ours, theirs)


def test_how_long_a_run_goes_on_may_differ():
    for key in FLAT:
        free = key.split(".")[0] in ("checkpoint", "log", "watchdog")
        free = free or key in ("steps", "evaluate.every", "evaluate.prompts_per_batch", "verify.workers")
        assert (differences({**FLAT, key: "other"}, FLAT) == []) is free, key


def test_where_the_learning_rate_decays_the_number_of_steps_may_not_differ():
    decaying = {**FLAT, "optimizer.decay": "cosine"}
    assert differences({**decaying, "steps": 7}, decaying) == ["steps: 100 → 7"]
