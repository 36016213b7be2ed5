"""What changes how a run is computed changes nothing of it; what changes what is trained does that and no more."""

import json

import jax
import numpy as np
import pytest
from test_train import learned, metrics_of, saved_state, small

import rlvr_jax.train as train_module
from rlvr_jax.cli import main
from rlvr_jax.policy import load_pretrained
from rlvr_jax.tokenizer import ByteTokenizer, make_tokenizer
from rlvr_jax.train import train

LONG = ("sampling.completion_length=6", "steps=3", "sampling.top_k=7")
TURNS = ("sampling.rows_at_once=8", "sampling.narrowings=1")
PACKED = (
    "updates.row_sizes=3",
    "updates.completions_per_row=4",
    "updates.micro_batch_rows=16",
    "updates.head_chunks=3",
)


def curves(lines):
    """Numbers of each step but those that say how it was computed."""
    drop = ("compile", "rows_skipped")
    return [{k: v for k, v in line.items() if not any(word in k for word in drop)} for line in learned(lines)]


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("plain")
    train(small(*LONG), workdir, quiet=True)
    return curves(metrics_of(workdir))


def test_rows_in_turns_and_packed_updates_change_no_curve(plain, tmp_path):
    train(small(*LONG, *TURNS, *PACKED), tmp_path, quiet=True)
    found = curves(metrics_of(tmp_path))
    assert len(found) == len(plain)
    for line, wanted in zip(found, plain):
        assert line.keys() == wanted.keys()
        for name in wanted:
            if wanted[name] is None:  # the mean of nothing
                assert line[name] is None
                continue
            np.testing.assert_allclose(line[name], wanted[name], rtol=2e-3, atol=2e-5, err_msg=name)


def test_sampler_and_learner_agree_at_every_step_though_the_sampler_cuts(plain):
    steps = [line for line in plain if "update/behaviour_mismatch" in line]
    assert len(steps) == 3
    for line in steps:
        assert 0 <= line["update/behaviour_mismatch"] < 1e-5
        assert 1 <= line["update/behaviour_ratio_max"] < 1 + 1e-4


def test_two_models_in_one_run_are_refused(tmp_path, monkeypatch):
    compile_functions = train_module.compile_functions

    def off_by_a_temperature(config, parts):
        run = compile_functions(config, parts)
        wrong = jax.jit(lambda logprobs: 1.5 * logprobs)
        return run._replace(score=lambda *args: wrong(run.score(*args)))

    monkeypatch.setattr(train_module, "compile_functions", off_by_a_temperature)
    with pytest.raises(ValueError, match=r"differ by (.|\n)*largest_mismatch=0.05: one of the two computes"):
        train(small(*LONG), tmp_path, quiet=True)
    assert not list((tmp_path / "checkpoints").glob("[1-9]*"))  # nothing was trained


def test_adapters_alone_are_trained_saved_taken_up_and_exported(tmp_path):
    options = ("steps=2", "lora.rank=2", "lora.targets=('query', 'down')", "optimizer.moments_dtype=bfloat16")
    config = small(*options, "checkpoint.every=1", "checkpoint.keep=0")
    train(config, tmp_path / "run", quiet=True)
    state, *_ = saved_state(tmp_path / "run", config)
    policy = state.params["policy"]
    assert policy.keys() == {"base", "lora"}
    trained = jax.tree.leaves(policy["lora"])
    assert len(trained) == 4 and all(np.abs(leaf).max() > 0 for leaf in trained)  # B began at zero
    base = train_module.make_parts(config, train_module.check(config)).init_policy()["base"]
    for now, then in zip(jax.tree.leaves(policy["base"]), jax.tree.leaves(base), strict=True):
        np.testing.assert_array_equal(now, then)
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim == 3]
    assert len(moments) == 8 and {str(leaf.dtype) for leaf in moments} == {"float32", "bfloat16"}

    whole = metrics_of(tmp_path / "run")  # the same run, stopped after one step and taken up
    train(small(*options[1:], "steps=1", "checkpoint.every=1", "checkpoint.keep=0"), tmp_path / "again", quiet=True)
    train(config, tmp_path / "again", quiet=True)
    last = lambda lines: [line for line in lines if "update/loss" in line][-1]
    assert last(learned(metrics_of(tmp_path / "again"))) == last(learned(whole))

    out = tmp_path / "model"
    assert main(["export", f"--workdir={tmp_path / 'run'}", f"--to={out}"]) == 0
    _, params, _ = load_pretrained(out, tokenizer=config.tokenizer)
    kernel = lambda tree: np.asarray(tree["blocks"]["attention"]["query"]["kernel"])
    adapter = policy["lora"]["blocks"]["attention"]["query"]
    merged = kernel(policy["base"]) + np.asarray(adapter["lora_a"]) @ np.asarray(adapter["lora_b"]) * (32 / 2)
    np.testing.assert_allclose(kernel(params), merged, atol=1e-5)
    np.testing.assert_array_equal(params["embed"]["embedding"], policy["base"]["embed"]["embedding"])
    assert main(["export", f"--workdir={tmp_path / 'run'}", f"--to={out}"]) == 2  # never over something
    assert json.loads((out / "config.json").read_text())["model_type"]


@pytest.mark.parametrize("name", ["bytes", "bytes(alphabet='01+')"])
def test_what_each_byte_token_stands_for(name):
    tokenizer = make_tokenizer(name)
    assert isinstance(tokenizer, ByteTokenizer)
    pieces = tokenizer.token_bytes()
    assert len(pieces) == tokenizer.vocabulary_size
    assert b"".join(pieces[i] for i in tokenizer.encode("10+1")) == b"10+1"
    assert pieces[tokenizer.pad_id] == pieces[tokenizer.end_ids[0]] == b""
