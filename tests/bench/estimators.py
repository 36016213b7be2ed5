"""What each catalogue entry costs beside a training step, and beside TRL's and Tunix's functions for the same method.

    python tests/bench/estimators.py            (--quick: smaller arrays)

1,024 groups of 16 completions with up to 1,024 tokens: phase one (advantages), the weights of all tokens, and the
loss with its gradient in the log-probabilities and its metrics. Entries whose slots of a phase are the same share its
measurement. Old log-probabilities are given, so that the ratios are computed. Peers run in environments of their own,
as in tests/estimators/oracles, their functions in turn with ours (A B C A B C); without them their columns stay empty.
Ratios are ours / theirs, the median over the rounds. Memory is what a call allocates: by XLA's account for us and
Tunix, and by the growth of the resident set for TRL. TRL's advantages cannot be timed apart from the method that pads
its completions, which are given one token.

The train step of the 135M model is scaled up from an update of 64 completions of 12 tokens by the number of tokens
that it computes, which leaves out that attention grows with the square of the length.

Exit status 1: phase one is above 1/1000 of that step, or a loss is slower than TRL's.
"""

from __future__ import annotations

import argparse
import functools
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp

from rlvr_jax.estimators import SLOTS, catalogue, make_estimator
from rlvr_jax.optimizer import make_optimizer
from rlvr_jax.policy import make_policy
from rlvr_jax.types import Batch, Groups, TrainState
from rlvr_jax.update import make_update
from rlvr_jax.workdir import environment

ROOT = Path(__file__).parents[2]
ORACLES = ROOT / "tests" / "estimators" / "oracles"
sys.path[:0] = [str(ORACLES), str(Path(__file__).parent)]

import shared_rows  # noqa: E402
from exchange import Peer, compiled_memory, random_rows  # noqa: E402

_TRL_GSPO = {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4}
PEERS = {  # entry → settings of the peer's function for the same method
    "trl": {
        "grpo": {"loss_type": "grpo"},
        "grpo_no_std": {"loss_type": "grpo", "scale_rewards": "none"},
        "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none", "max_completion_length": 1024},
        "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
        "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
        "sapo": {"loss_type": "sapo"},
        "gspo": _TRL_GSPO,
        "gspo_token": _TRL_GSPO,
        "gmpo": {"trainer": "gmpo", "epsilon": 0.4, "epsilon_high": 0.4},
        "rloo": {"trainer": "rloo", "beta": 0.0},
    },
    "tunix": {
        "grpo": {"beta": 0.0},
        "dr_grpo": {"beta": 0.0, "advantage_estimator": "drgrpo", "loss_agg_mode": "sequence-mean-token-scale"},
        "dapo": {"beta": None, "epsilon_high": 0.28, "loss_agg_mode": "token-mean"},
        "gspo_token": {"beta": 0.0, "loss_algo": "gspo-token", "epsilon": 3e-4, "epsilon_high": 4e-4},
        "rloo": {"beta": 0.0, "advantage_estimator": "rloo", "loss_agg_mode": "seq-mean-token-sum"},
    },
}
PHASES = ("advantages", "weights", "loss")


class Ours:
    """Both phases over the same rows as the peers'."""

    def __init__(self, rows):
        groups, size = rows["rewards"].shape
        self.groups = Groups(
            outcome=jnp.asarray(rows["rewards"]), lengths=jnp.asarray(rows["lengths"].reshape(groups, size), jnp.int32)
        )
        self.logprobs = jnp.asarray(rows["policy"])
        self.batch = Batch(
            completion_mask=jnp.asarray(rows["mask"]),
            advantages=jnp.asarray(rows["advantages"]),
            old_logprobs=jnp.asarray(rows["old"]),
            group=jnp.repeat(jnp.arange(groups), size),
        )

    def prepare(self, name, phase):
        """A compiled call. Only the slots of the phase differ from grpo, so that equal work is measured once."""
        slots = make_estimator(name, completion_length=self.logprobs.shape[1]).slots
        mine = SLOTS[:5] if phase == "advantages" else SLOTS[5:]
        return self._compiled(phase, tuple((slot, slots[slot]) for slot in mine))

    @functools.cache  # noqa: B019
    def _compiled(self, phase, slots):
        est = make_estimator("grpo", **dict(slots))
        params = est.init_params()
        if phase == "advantages":
            function, arguments = est.advantages, (self.groups, est.init_memory(self.groups.outcome.shape[0]))
        elif phase == "weights":
            function, arguments = est.token_weights, (params, self.batch)
        else:
            function = jax.value_and_grad(est.loss, argnums=(0, 1), has_aux=True)
            arguments = (params, self.logprobs, self.batch)
        compiled = jax.jit(function).lower(*arguments).compile()
        memory = compiled_memory(compiled)

        def call():
            began = time.perf_counter()
            jax.block_until_ready(compiled(*arguments))
            return time.perf_counter() - began, memory

        return call


def train_step_seconds(groups, size, tokens):
    """(seconds of one update over the rows, scaled; seconds measured; tokens computed in it)."""
    policy, estimator = make_policy(shared_rows.SMOLLM2), make_estimator("grpo")
    optimizer = make_optimizer(learning_rate=1e-5, total_updates=10)
    update = jax.jit(
        make_update(policy, estimator, optimizer, completions_per_row=shared_rows.GROUP, micro_batch_rows=16),
        donate_argnums=0,
    )
    params = {"policy": policy.init(jax.random.key(0)), "estimator": {}}
    state = TrainState(step=jnp.zeros((), jnp.int32), params=params, opt_state=optimizer.init(params), memory={})
    batch, seconds = shared_rows.batch(), []
    for _ in range(3):  # the first compiles
        began = time.perf_counter()
        state, _ = jax.block_until_ready(update(state, batch))
        seconds.append(time.perf_counter() - began)
    prompt = shared_rows.PROMPT_LENGTH
    computed = shared_rows.PROMPTS * (prompt + shared_rows.GROUP * shared_rows.LENGTH)
    least = min(seconds[1:])
    return least / computed * groups * (prompt + size * tokens), least, computed


def peers(rows):
    """The peers' processes, of those that are installed."""
    found = {}
    for name in PEERS:
        python = Path(os.environ.get(f"RLVR_{name.upper()}_PYTHON", ROOT / f".venv-{name}" / "bin" / "python"))
        if python.exists():
            found[name] = Peer(python, ORACLES / f"peer_{name}.py", **rows)
        else:
            print(f"no {name}: {python} does not exist")
    return found


def measured(calls, rounds):
    """{who: [(seconds, MiB)]} of calls that take turns."""
    found = {who: [] for who in calls}
    for call in calls.values():
        call()
    for _ in range(rounds):
        for who, call in calls.items():
            found[who].append(tuple(call()))
    return found


def seconds(pairs):
    return [pair[0] for pair in pairs]


def milliseconds(pairs):
    return f"{min(seconds(pairs)) * 1e3:8.1f} / {statistics.median(seconds(pairs)) * 1e3:8.1f}"


def ratio(found, who):
    if who not in found:
        return None
    return statistics.median(ours / theirs for ours, theirs in zip(seconds(found["ours"]), seconds(found[who])))


def memory(pairs):
    peaks = [pair[1] for pair in pairs if pair[1] is not None]
    return f"{statistics.median(peaks):6.0f}" if peaks else "     –"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="64 groups of 256 tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--entries", nargs="*", choices=list(catalogue), default=list(catalogue))
    parser.add_argument("--train-step", type=float, help="seconds of a train step on these rows, instead of measuring")
    args = parser.parse_args()
    size = {"groups": 64, "size": 16, "tokens": 256} if args.quick else {"groups": 1024, "size": 16, "tokens": 1024}

    print(f"{environment()['processor']}, {environment()['cores']} cores, commit {environment()['commit']}")
    print(f"{platform.system()}, jax {jax.__version__}, {time.strftime('%Y-%m-%d')}, {size}, {args.rounds} rounds")
    if args.train_step:
        step = args.train_step
        print(f"a train step on these rows: {step:.0f} s (given)")
    else:
        step, small, tokens = train_step_seconds(**size)
        print(f"a train step on these rows: {step:.0f} s, scaled up from {small:.2f} s for {tokens} tokens")
    ours, theirs = Ours(random_rows(**size)), peers(size)
    for peer in theirs.values():
        print(peer.version)

    shared = {}  # a call of ours without a peer → its measurement

    def of(name, phase):
        call = ours.prepare(name, phase)
        calls = {"ours": call}
        if phase != "weights":
            for who, peer in theirs.items():
                if name in PEERS[who]:
                    calls[who] = functools.partial(peer.ask, phase=phase, settings=PEERS[who][name])
        if len(calls) > 1:
            return measured(calls, args.rounds)
        if call not in shared:
            shared[call] = measured(calls, args.rounds)
        return shared[call]

    columns = "".join(f" {phase + ' ms, min / median':>26}" for phase in PHASES)
    print(f"{'entry':22}{columns} {'loss MiB':>9}   ours / theirs, and their MiB")
    failed = []
    for name in args.entries:
        found = {phase: of(name, phase) for phase in PHASES}
        text = "".join(f" {milliseconds(found[phase]['ours']):>26}" for phase in PHASES)
        text += f" {memory(found['loss']['ours']):>9}  "
        for who in theirs:
            if who in found["loss"]:
                text += (
                    f" {who}: advantages {ratio(found['advantages'], who):.3f}, loss {ratio(found['loss'], who):.2f},"
                )
                text += f" {memory(found['loss'][who]).strip()};"
        print(f"{name:22}{text}", flush=True)
        slowest = statistics.median(seconds(found["advantages"]["ours"]))
        if slowest > step / 1000:
            failed.append(f"{name}: phase one {slowest:.3f} s, a train step {step:.1f} s")
        if "trl" in found["loss"] and ratio(found["loss"], "trl") > 1:
            failed.append(f"{name}: the loss is {ratio(found['loss'], 'trl'):.2f} times TRL's")
    for peer in theirs.values():
        peer.close()
    print("\n".join(failed) or "phase one is below 1/1000 of a train step, and no loss is slower than TRL's")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
