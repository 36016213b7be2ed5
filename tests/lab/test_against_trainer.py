"""A block of the lab is so many runs of the trainer: the same prompts, keys, verdicts, curves and last parameters."""

import contextlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tiny

import rlvr_jax.run as run_module
import rlvr_jax.train as train_module
from rlvr_jax.config import check, set_key
from rlvr_jax.lab.experiment import Knobs, Setting, make_experiment
from rlvr_jax.lab.world import World
from rlvr_jax.policy import RecurrentArchitecture, make_recurrent_policy
from rlvr_jax.rng import key_for
from rlvr_jax.run import init_state, make_parts, make_stream
from rlvr_jax.sharding import replicated
from rlvr_jax.types import Groups, Verdict

pytestmark = pytest.mark.usefixtures("quick_compiles")
STEPS, PROMPTS, GROUP, LENGTH, RATE = 4, 4, 4, 6, 0.02


def is_right(first_token, prompt_id):
    """A verdict that a policy of random weights meets one time in three: nothing is proved by rewards of 0."""
    return (first_token + prompt_id) % 3 == 0


def config_of(text, epochs, minibatches):
    """ "grpo reweight=history": an entry, with slots replaced."""
    name, *slots = text.split()
    config = tiny.get_config(name)
    for slot in slots:
        set_key(config, *f"estimator.{slot}".split("=", 1))
    config.tokenizer = "bytes(alphabet='0123456789+-=')"  # 15 ids: a third of six tokens hold an end
    config.steps, config.prompts_per_step, config.group_size = STEPS, PROMPTS, GROUP
    config.sampling.completion_length = LENGTH
    config.updates.epochs, config.updates.minibatches = epochs, minibatches
    config.updates.skip_inactive = False
    config.optimizer.learning_rate, config.optimizer.clip_norm = RATE, 0.0
    config.optimizer.estimator_learning_rate = 5.0
    config.log.report = False
    return config


def small_parts(config, estimator):
    """A recurrent policy in the decoder's place: the loop does not know, and it is traced in a third of the time."""
    parts = make_parts(config, estimator)
    shape = RecurrentArchitecture(vocabulary=parts.tokenizer.vocabulary_size, width=8)
    policy = make_recurrent_policy(shape)
    start = lambda: jax.jit(policy.init)(key_for(config.seed, 0, "init"))
    return parts._replace(policy=policy, init_policy=start)


# --- the trainer, without evaluation and checkpoints, which the lab has not ---


class _Nothing(contextlib.AbstractContextManager):
    records = ({},)

    def __init__(self, *_, **__):
        pass

    def __exit__(self, *_):
        pass

    def has(self, step):
        return True

    def save(self, *_):
        pass


def grade_on_host(task, tokenizer, rollouts, answers):
    first = rollouts.tokens[:, rollouts.prompt_mask.shape[1]]
    return [Verdict(float(ok), None, "") for ok in is_right(first, rollouts.prompt_id)]


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    """run(config, parts of) → (last state, curves {name: f64[steps]}); what does not depend on the estimator is
    compiled once."""
    compile_functions, shared = train_module.compile_functions, {}

    def run(config, parts_of):
        def compile_shared(config, parts):
            functions = compile_functions(config, parts)
            common = shared.setdefault(parts_of, functions)
            return functions._replace(sample=common.sample, score=common.score)

        patch.setattr(train_module, "compile_functions", compile_shared)
        patch.setattr(train_module, "make_parts", parts_of)
        workdir = tmp_path_factory.mktemp("run")
        state = train_module.train(config, workdir, quiet=True)
        lines = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
        names = lines[0].keys() & lines[-1].keys()
        return state, {name: np.asarray([line[name] for line in lines], float) for name in names}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train_module, "verify", grade_on_host)
        patch.setattr(run_module, "shardings_for", lambda tree, mesh: jax.tree.map(lambda x: replicated(mesh), tree))
        patch.setattr(train_module, "make_evaluation", lambda config, parts: (None, 0))
        patch.setattr(train_module, "EvaluationFile", _Nothing)
        patch.setattr(train_module, "to_scalars", dict)
        patch.setattr(train_module, "Checkpoints", _Nothing)
        patch.setattr(train_module, "restore_or_start", lambda parts, stream, checkpoints: (init_state(parts), 0))
        yield run


# --- the lab on the same prompts ---


def world_of(parts):
    def grade(dials, prompts, rollouts, state):
        shape = (PROMPTS, GROUP)
        first = rollouts.tokens[:, rollouts.prompt_mask.shape[1]].reshape(shape)
        return Groups(
            outcome=is_right(first, prompts.prompt_id[:, None]).astype(jnp.float32),
            lengths=rollouts.lengths.reshape(shape),
            finished=rollouts.finished.reshape(shape),
            prompt_id=prompts.prompt_id,
        )

    return World(
        prompts=lambda dials, step: jax.tree.map(lambda x: x[step], dials["prompts"]),
        environment=None,
        grade=grade,
        measure=lambda dials, groups, state: {},
        count=parts.task.size,
        end_ids=parts.tokenizer.end_ids,
        pad_id=parts.tokenizer.pad_id,
    )


def lab_runs(configs, parts_of):
    """(parameters [R, …], curves {name: f32[steps, R]}) of one block of all configs, one column."""
    config = configs[0]
    parts = parts_of(config, check(config))
    stream, _ = make_stream(config, parts)
    recorded = [next(stream).prompts for _ in range(config.steps)]
    dials = {"prompts": jax.tree.map(lambda *x: jnp.stack([jnp.asarray(leaf) for leaf in x]), *recorded)}
    setting = Setting(
        steps=config.steps,
        group_size=GROUP,
        completion_length=LENGTH,
        kinds=("adam",),
        reference=0,
        epochs=config.updates.epochs,
        minibatches=config.updates.minibatches,
        b1=config.optimizer.b1,
        b2=config.optimizer.b2,
    )
    experiment = make_experiment(parts.policy, world_of(parts), [check(c) for c in configs], setting)
    runs = len(configs)
    knobs = Knobs(
        learning_rate=jnp.full(runs, config.optimizer.learning_rate),
        estimator_learning_rate=jnp.full(runs, config.optimizer.estimator_learning_rate),
        dynamic=jnp.zeros(runs, bool),
        budget=jnp.full((runs, config.steps), 10**6),
        share=jnp.ones((runs, config.steps)),
    )
    params, metrics = jax.jit(experiment)(parts.init_policy(), dials, knobs, jnp.int32(config.seed))
    return params, {name: np.asarray(mean.sum / mean.count) for name, mean in metrics.items()}


COMPARED = (
    "rollout/reward", "rollout/pass@1", "rollout/length", "rollout/truncated", "rollout/zero_variance_groups",
    "rollout/kept_groups", "rollout/advantage_abs", "update/gradient_norm", "update/entropy", "update/clip_fraction",
)  # fmt: skip


@pytest.mark.parametrize(
    ("names", "updates", "parts_of"),
    [
        # memory, learnt parameters, shaped rewards and dropped groups
        (("dapo reweight=history aggregate=learnable",), (1, 1), small_parts),
        # old log-probabilities, clipping, shuffled minibatches
        pytest.param(("dr_grpo", "lambda_grpo"), (2, 2), small_parts, marks=pytest.mark.slow),
        pytest.param(
            ("grpo", "dr_grpo", "balanced", "ha_dw_grpo", "lambda_grpo", "dapo"), (1, 1), make_parts,
            marks=pytest.mark.slow,
        ),
        pytest.param(("dapo", "grpo"), (2, 2), make_parts, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_block_is_so_many_training_runs(trainer, names, updates, parts_of):
    configs = [config_of(name, *updates) for name in names]
    params, curves = lab_runs(configs, parts_of)
    of_run = lambda run: jax.tree.map(lambda x: x[run], params)
    assert len({jax.tree.leaves(of_run(run))[0].tobytes() for run in range(len(names))}) == len(names)
    assert (curves["rollout/zero_variance_groups"] < 1).all()  # every step has something to learn from
    if updates != (1, 1):
        assert (curves["update/clip_fraction"] > 0).any()
    for run, config in enumerate(configs):
        state, wanted = trainer(config, parts_of)
        for name in COMPARED:
            np.testing.assert_allclose(
                curves[name][:, run], wanted[name], rtol=2e-5, atol=1e-6, err_msg=f"{names[run]} {name}"
            )
        found = of_run(run)
        tiny.assert_trees_close(found, jax.device_get(state.params["policy"]), rtol=1e-4, atol=1e-5)
        if state.params["estimator"]:
            learned = float(state.params["estimator"]["aggregate"]["lambda"])
            assert abs(learned) > 1e-3
            np.testing.assert_allclose(curves["update/lambda"][-1, run], learned, rtol=1e-4)
        assert bool(state.memory) == ("history" in names[run] or "ha_dw" in names[run])
