"""The slots with which other trainers' GRPO, at its defaults, gives the same numbers."""

from __future__ import annotations

from rlvr_jax.estimators.catalogue import catalogue
from rlvr_jax.registry import nearest

# Differences from grpo, as read in: TRL 2026-07, verl 2026-01, Tunix 2026-08, oat 2025-10, OpenRLHF 2026;
# tests/estimators/oracles compares with installed TRL 1.16 and Tunix 0.1.7.
LIBRARIES: dict[str, dict[str, str]] = {
    # loss_type="dapo", scale_rewards="group", beta=0
    "trl": {"scale": "group_std(ddof=1, eps=0.0001)", "aggregate": "token_mean"},
    # loss_agg_mode="token-mean", clip_ratio_c=3, use_kl_loss=False
    "verl": {"clip": "ppo(low=0.2, high=0.2, dual=3.0)", "aggregate": "token_mean"},
    # loss_agg_mode="sequence-mean-token-mean", beta=0.04, kl_loss_mode="kl"
    "tunix": {"kl": "k1(beta=0.04, allow=True)"},
    # critic_type="grpo"
    "oat": {"scale": "group_std(ddof=1, eps=1e-08)"},
    # advantage_estimator="group_norm"
    "openrlhf": {"scale": "group_std(ddof=1, eps=1e-09)", "aggregate": "token_mean"},
}


def compat(library: str) -> dict[str, str]:
    """The ten slot strings that reproduce a library's GRPO: `make_estimator("grpo", **compat("trl"))`.

    The strings for TRL and Tunix are compared with the installed libraries; those for verl, oat and OpenRLHF
    follow their sources as read at the dates above. Where they still differ: oat takes its mean over each
    micro-batch, which one micro-batch per update undoes; TRL counts the tokens of all rollouts and gives each of
    several updates the same share; Tunix leaves rows without a token out of the number of rows; verl gives a group
    of one the reward itself; all of them turn equal rewards that float32 cannot hold into rounding noise over eps,
    here it is 0.

    Raises:
      ValueError: unknown library; names the nearest and the valid ones.
    """
    if library not in LIBRARIES:
        hint = nearest(str(library), LIBRARIES)
        raise ValueError(f"compat={library!r}: unknown library{hint} Choose from {sorted(LIBRARIES)}")
    return {**catalogue["grpo"].slots, **LIBRARIES[library]}
