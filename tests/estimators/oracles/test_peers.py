"""Our numbers against those of installed trainers: advantages, losses and gradients, from the same rewards.

    make test-oracles

Each peer lives in an environment of its own: RLVR_TRL_PYTHON and RLVR_TUNIX_PYTHON name its Python, else it is that
of `.venv-trl` or `.venv-tunix` beside this checkout's environment. Where it is absent, its tests are skipped. Both
sides compute from the same float32 arrays; advantages are each side's own, so a case goes from rewards to gradients.

Where they differ: of equal rewards that float32 cannot hold, TRL and Tunix make rounding noise over eps, and here it
is 0, so groups of equal rewards are 0, ½ or 1, except in a test of this difference. Tunix leaves a row without a
token out of the number of rows, TRL and we count it: here rows have tokens. With beta > 0, TRL multiplies the penalty
by the ratio unless use_bias_correction_kl=False.
"""

import functools
import os
import subprocess
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exchange import read, write

from rlvr_jax.estimators import compat, make_estimator
from rlvr_jax.types import Batch, Groups

pytestmark = [pytest.mark.oracle, pytest.mark.usefixtures("quick_compiles")]
HERE, ROOT = Path(__file__).parent, Path(__file__).parents[3]
P, G, T = 6, 4, 12


def random_batch(kind, seed):
    """Binary, graded, or ragged (graded, some rewards NaN: no response there). Two groups are constant."""
    rng = np.random.default_rng(seed)
    levels = [0.0, 1.0] if kind == "binary" else [0.0, 0.1, 0.3, 0.7, 1.0]
    rewards = rng.choice(np.float32(levels), (P, G))
    rewards[0], rewards[1] = (1.0 if kind == "binary" else 0.5), 0.0
    if kind == "ragged":
        rewards[rng.random((P, G)) < 0.25] = np.nan
        rewards[2, 1:] = np.nan  # a group of one
    rows = P * G
    lengths = rng.integers(1, T + 1, rows)
    lengths[:2] = T, 1
    policy = -rng.exponential(1.0, (rows, T))
    moved = lambda scales: policy + rng.choice(scales, (rows, 1)) * rng.normal(size=(rows, T))
    fields = {"policy": policy, "old": moved([0.02, 0.3, 1.0]), "reference": moved([0.5]), "behaviour": moved([0.2])}
    return {
        "rewards": rewards,
        "lengths": lengths,
        "mask": np.arange(T)[None] < lengths[:, None],
        **{name: values.astype(np.float32) for name, values in fields.items()},
    }


def equal_rewards():
    """Seven times 0.3, 0.9 and 0.1, whose float32 means are not themselves."""
    rewards = np.repeat(np.float32([[0.3], [0.9], [0.1]]), 7, axis=1)
    tokens = np.full((rewards.size, 1), -1, np.float32)
    names = ("policy", "old", "reference", "behaviour")
    lengths = np.ones(rewards.size, np.int64)
    return {"rewards": rewards, "lengths": lengths, "mask": tokens < 0, **dict.fromkeys(names, tokens)}


BATCHES = {f"{kind}-{seed}": random_batch(kind, seed) for kind in ("binary", "graded", "ragged") for seed in (0, 1)}
EVERYTHING = ("advantages", "loss", "gradient")


def case(entry, slots=None, compared=EVERYTHING, length=None, **settings):
    return {"estimator": (entry, length, slots or {}), "compared": compared, "settings": settings}


_TRL = compat("trl")
_SCALE = {"scale": _TRL["scale"]}
_GRPO = _TRL | {"aggregate": "sequence_mean"}
_GSPO = {"importance_sampling_level": "sequence", "loss_type": "grpo", "epsilon": 3e-4, "epsilon_high": 4e-4}
_K3 = {"kl": "k3(beta=0.04)"}
_PLAIN_KL = {"beta": 0.04, "use_bias_correction_kl": False}


def _sampler(mode):
    return {"use_vllm": True, "vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.5}


TRL = {
    "defaults": case("grpo", _TRL),
    "defaults, on-policy": case("grpo", _TRL, old=False),
    "defaults, two micro-batches": case("grpo", _TRL, micro_batches=2),
    "grpo": case("grpo", _GRPO, loss_type="grpo"),
    "grpo, two micro-batches": case("grpo", _GRPO, loss_type="grpo", micro_batches=2),
    "bnpo's loss": case("grpo", _TRL, loss_type="bnpo"),
    "dr_grpo": case("dr_grpo", length=20, loss_type="dr_grpo", scale_rewards="none", max_completion_length=20),
    "clip-higher": case("grpo", _TRL | {"clip": "ppo(low=0.2, high=0.28)"}, epsilon_high=0.28),
    "dual clip": case("grpo", _GRPO | {"clip": "ppo(dual=1.5)"}, loss_type="grpo", delta=1.5),
    "cispo": case("cispo", _SCALE, loss_type="cispo", epsilon_high=5.0),
    "sapo": case("sapo", _SCALE, loss_type="sapo"),
    "gspo": case("gspo", _SCALE, **_GSPO),
    "gspo_token": case("gspo_token", _SCALE, **_GSPO),
    "luspo": case("gspo", _SCALE | {"aggregate": "sequence_sum"}, **_GSPO | {"loss_type": "luspo"}),
    "gmpo": case("gmpo", _SCALE, trainer="gmpo", epsilon=0.4, epsilon_high=0.4),
    "scale of the batch": case(
        "grpo", _TRL | {"scale": "batch_std(ddof=1, eps=1e-4, of='rewards')"}, scale_rewards="batch"
    ),
    "no scale": case("grpo_no_std", loss_type="grpo", scale_rewards="none"),
    "k3, grpo": case("grpo", _GRPO | _K3, loss_type="grpo", **_PLAIN_KL),
    "k3, dapo": case("grpo", _TRL | _K3, **_PLAIN_KL),
    "token_truncate": case("grpo", _TRL | {"correct": "truncated(cap=1.5)"}, **_sampler("token_truncate")),
    "token_mask": case("grpo", _TRL | {"correct": "masked(low=0.0, high=1.5)"}, **_sampler("token_mask")),
    "sequence_truncate": case(
        "grpo", _TRL | {"correct": "truncated(cap=1.5, level='sequence')"}, **_sampler("sequence_truncate")
    ),
    "sequence_mask": case(
        "grpo", _TRL | {"correct": "masked(low=0.0, high=1.5, level='sequence')"}, **_sampler("sequence_mask")
    ),
    # its loss is that of a ratio of whole responses, whose gradient on-policy is that of A·log π
    "rloo, on-policy": case("rloo", compared=("advantages", "gradient"), trainer="rloo", beta=0.0),
}

_TUNIX = compat("tunix")
_NO_KL = {"kl": "none"}
TUNIX = {
    "defaults": case("grpo", _TUNIX),
    "defaults, on-policy": case("grpo", _TUNIX, old=False),
    "grpo": case("grpo", beta=0.0),
    "token-mean": case("grpo", {"aggregate": "token_mean"}, beta=0.0, loss_agg_mode="token-mean"),
    "seq-mean-token-sum": case("grpo", {"aggregate": "sequence_sum"}, beta=0.0, loss_agg_mode="seq-mean-token-sum"),
    "sequence-mean-token-sum-norm": case(
        "grpo", {"aggregate": "sequence_sum"}, beta=0.0, loss_agg_mode="sequence-mean-token-sum-norm"
    ),
    "drgrpo": case(
        "dr_grpo",
        length=T,
        beta=0.0,
        advantage_estimator="drgrpo",
        loss_agg_mode="sequence-mean-token-scale",
    ),
    "rloo": case("grpo", {"baseline": "leave_one_out", "scale": "none"}, beta=0.0, advantage_estimator="rloo"),
    "clip-higher": case(
        "grpo",
        {"clip": "ppo(low=0.2, high=0.28)", "aggregate": "token_mean"},
        beta=None,
        epsilon_high=0.28,
        loss_agg_mode="token-mean",
    ),
    "dual clip": case("grpo", {"clip": "ppo(dual=1.5)"}, beta=0.0, epsilon_c=1.5),
    "gspo-token": case("gspo_token", beta=0.0, loss_algo="gspo-token", epsilon=3e-4, epsilon_high=4e-4),
    "gspo-token is gspo": case("gspo", beta=0.0, loss_algo="gspo-token", epsilon=3e-4, epsilon_high=4e-4),
    "mse_kl": case("grpo", {"kl": "k2(beta=0.04)"}, kl_loss_mode="mse_kl"),
    "low_var_kl": case("grpo", _K3, kl_loss_mode="low_var_kl"),
    "low_var_kl, token-mean": case(
        "grpo", _K3 | {"aggregate": "token_mean"}, kl_loss_mode="low_var_kl", loss_agg_mode="token-mean"
    ),
    "sampler's correction": case("grpo", {"correct": "truncated(cap=1.5)"}, beta=0.0, cap=1.5),
    "ppo": case("grpo", {"aggregate": "token_mean"}, policy_loss_fn="ppo", epsilon_low=0.2, epsilon_high=0.2),
}

PEERS = {
    "trl": (TRL, "peer_trl.py", BATCHES),
    # it has no responses that do not count
    "tunix": (TUNIX, "peer_tunix.py", {name: batch for name, batch in BATCHES.items() if "ragged" not in name}),
}


def python_of(peer):
    """The peer's Python, or a skip that says where it was looked for."""
    variable, place = f"RLVR_{peer.upper()}_PYTHON", ROOT / f".venv-{peer}" / "bin" / "python"
    found = Path(os.environ.get(variable, place))
    if not found.exists():
        pytest.skip(f"no {peer} here: {variable} is not set and there is no {place.relative_to(ROOT)}")
    return found


@functools.cache
def answers(peer):
    """{case/batch: {array: values}}, of one run of the peer's script over all cases."""
    cases, script, batches = PEERS[peer]
    asked = [
        {"name": f"{name}|{batch}", "batch": batch, "settings": one["settings"]}
        for name, one in cases.items()
        for batch in batches
    ]
    asked.append({"name": "equal rewards", "batch": "equal", "settings": {}})
    python = python_of(peer)
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory() as folder:
        given, found = Path(folder) / "given.npz", Path(folder) / "found.npz"
        write(given, batches | {"equal": equal_rewards()}, asked)
        done = subprocess.run(
            [python, HERE / script, given, found], capture_output=True, text=True, env=environment, timeout=900
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return read(found)[0]


@functools.partial(jax.jit, static_argnums=0)
def from_rewards(est, groups, rows, logprobs):
    """Advantages, loss, its gradient, and Σ |w·ℓ|."""
    advantages, _, _ = est.advantages(groups, est.init_memory(P))
    rows = rows.replace(advantages=advantages.reshape(-1))
    params = est.init_params()
    (loss, _), gradient = jax.value_and_grad(est.loss, argnums=1, has_aux=True)(params, logprobs, rows)
    terms = jnp.abs(est.token_weights(params, rows) * est.token_losses(logprobs, rows)[0]).sum()
    return {"advantages": rows.advantages, "loss": loss, "gradient": gradient, "terms": terms}


def ours(one, batch):
    name, length, slots = one["estimator"]
    est = make_estimator(name, completion_length=length, **slots)
    groups = Groups(
        outcome=jnp.asarray(batch["rewards"]),
        valid=jnp.asarray(~np.isnan(batch["rewards"])),
        lengths=jnp.asarray(batch["lengths"].reshape(P, G), jnp.int32),
    )
    settings = one["settings"]
    on_policy = not settings.get("old", True) or settings.get("trainer") == "rloo"
    old = batch["policy"] if on_policy else batch["old"]
    rows = Batch(
        completion_mask=jnp.asarray(batch["mask"]),
        advantages=jnp.zeros(P * G),
        old_logprobs=jnp.asarray(old),
        reference_logprobs=jnp.asarray(batch["reference"]),
        behaviour_logprobs=jnp.asarray(batch["behaviour"]),
        group=jnp.repeat(jnp.arange(P), G),
    )
    return jax.tree.map(np.asarray, from_rewards(est, groups, rows, jnp.asarray(batch["policy"])))


def differences(one, batch, expected):
    """{what: largest difference over the largest value}; of the loss, which may cancel, over Σ |w·ℓ|."""
    found = ours(one, batch)
    sizes = {what: np.abs(expected[what]).max() for what in one["compared"]} | {"loss": found["terms"]}
    assert min(sizes.values()) > 1e-3, sizes
    return {what: np.abs(found[what] - expected[what]).max() / sizes[what] for what in one["compared"]}


@pytest.mark.parametrize("peer, name", [(peer, name) for peer, (cases, _, _) in PEERS.items() for name in cases])
def test_values_and_gradients(peer, name):
    cases, _, batches = PEERS[peer]
    theirs = answers(peer)
    for batch_name, batch in batches.items():
        found = differences(cases[name], batch, theirs[f"{name}|{batch_name}"])
        assert max(found.values()) < 1e-5, (batch_name, found)


@pytest.mark.parametrize("peer, most", [("trl", 1e-3), ("tunix", 0.1)])
def test_equal_rewards(peer, most):
    """Exactly 0 here; theirs is the rounding of a mean over eps."""
    theirs = answers(peer)["equal rewards"]["advantages"]
    assert 0 < np.abs(theirs).max() < most
    est = make_estimator("grpo", **compat(peer))
    rewards = jnp.asarray(equal_rewards()["rewards"])
    advantages, _, _ = est.advantages(Groups(outcome=rewards, lengths=jnp.ones(rewards.shape, jnp.int32)), {})
    assert (np.asarray(advantages) == 0).all()
