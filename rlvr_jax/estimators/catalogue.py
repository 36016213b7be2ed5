"""The literature as data: name → slots, reference, equation, departures. Each entry is a difference from
`grpo`.

Formulas read in secondary texts say so under `departures`. Left out, because their formula is not public or
needs more than log-probabilities and verdicts: TGRL (arXiv:2609.33589, needs the logits at two
temperatures), KTAE (arXiv:2505.16826, needs tokens, and its three mixing weights are not printed), BASIS
(arXiv:2605.27293, its weights), V0.5 (arXiv:2603.10848, its shrinkage), FADE (arXiv:2607.01490) and DaGRPO
(arXiv:2512.06337), of which only abstracts could be read. CoBA-RL, LSPO and e3's curriculum choose data and
budgets, which is no estimator's work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Entry:
    """One published estimator."""

    slots: Mapping[str, str]  # what differs from grpo; grpo itself has all ten
    reference: str
    equation: str
    departures: str = ""


_GRPO_SLOTS = {
    "shape": "none",
    "select": "all",
    "baseline": "group_mean",
    "scale": "group_std(ddof=1, eps=1e-6)",
    "reweight": "none",
    "correct": "none",
    "ratio": "token",
    "clip": "ppo(low=0.2, high=0.2)",
    "kl": "none",
    "aggregate": "sequence_mean",
}
_PLAIN = {"scale": "none", "ratio": "none", "clip": "none", "aggregate": "sequence_sum"}
_GSPO = {"ratio": "sequence", "clip": "ppo(low=0.0003, high=0.0004)"}
_DAPO = {
    "shape": "overlong(max_length='completion')",
    "select": "informative",
    "clip": "ppo(low=0.2, high=0.28)",
    "aggregate": "token_mean",
}
_HISTORY = {"reweight": "history(variant='anchor', strength=1.3)"}
_HA_DW = "Yang et al. 2026, HA-DW, arXiv:2601.08521"
_HA_DW_DEPARTS = (
    "eta = 0.1, window = 10 and the first anchor are not in the paper. The authors' code is variant='window' "
    "with strength=1.5."
)

catalogue: dict[str, Entry] = {
    "grpo": Entry(
        slots=_GRPO_SLOTS,
        reference="Shao et al. 2024, DeepSeekMath, arXiv:2402.03300, eq. 3",
        equation="A = (r − mean r)/(std r + ε);  J = mean_i (1/L_i) Σ_t min(ρA, clip(ρ, 1−ε, 1+ε)A)",
        departures="The paper prints neither ddof, the ε of the std nor the clip bound; ddof 1 and 1e-6 are "
        "verl's. Its KL term (k3, β = 0.04) is off: kl='k3(beta=0.04)' puts it back.",
    ),
    "reinforce": Entry(
        slots={"baseline": "none", **_PLAIN},
        reference="Williams 1992, Machine Learning 8",
        equation="J = mean_i r_i Σ_t log π",
    ),
    "rloo": Entry(
        slots={"baseline": "leave_one_out", **_PLAIN},
        reference="Ahmadian et al. 2024, arXiv:2402.14740; as a U-statistic: arXiv:2603.01162",
        equation="A_i = r_i − mean_{j≠i} r_j;  J = mean_i A_i Σ_t log π",
    ),
    "reinforce_pp": Entry(
        slots={"baseline": "batch_mean", "scale": "batch_std", "aggregate": "token_mean"},
        reference="Hu et al. 2025, REINFORCE++, arXiv:2501.03262",
        equation="A = (r − mean_batch r)/(std_batch r + ε)",
        departures="The paper's KL term, inside the reward, is off.",
    ),
    "reinforce_pp_baseline": Entry(
        slots={"scale": "batch_std", "aggregate": "token_mean"},
        reference="Hu et al. 2025, REINFORCE++-baseline, arXiv:2501.03262",
        equation="A = (r − mean_group r)/(std_batch(r − mean_group r) + ε)",
        departures="The paper's KL term (k2) is off: kl='k2(beta=...)' puts it back.",
    ),
    "grpo_no_std": Entry(
        slots={"scale": "none"},
        reference="the no_std arm of arXiv:2601.23135",
        equation="A = r − mean r",
        departures="Read in a secondary text.",
    ),
    "dr_grpo": Entry(
        slots={"scale": "none", "aggregate": "constant(length='completion')"},
        reference="Liu et al. 2025, Understanding R1-Zero-like training, arXiv:2503.20783, §3.2",
        equation="A = r − mean r;  J = (1/(B·L_max)) Σ_i Σ_t min(ρA, clip(ρ)A)",
    ),
    "dapo": Entry(
        slots=_DAPO,
        reference="Yu et al. 2025, DAPO, arXiv:2503.14476, eq. 8–13",
        equation="R = ±1 + overlong(L);  A = (R − mean R)/std R, groups with 0 < #correct < G;  "
        "J = (1/Σ L) Σ_i Σ_t min(ρA, clip(ρ, 1−0.2, 1+0.28)A)",
        departures="Drawing prompts until the batch is full of informative groups is the trainer's; here "
        "the others are dropped. Tokens are counted over the batch, as in its code; the paper's formula "
        "counts per group.",
    ),
    "bnpo": Entry(
        slots={"scale": "beta"},
        reference="Xiao et al. 2025, BNPO, arXiv:2506.02864",
        equation="A = (r − p̂)/Beta(p̂; 1 + a/3, 1 + b/3), (a, b) from mean and variance of p̂ over the batch",
        departures="The form was read in a secondary text; the thirds and the fit of (a, b) were confirmed in none. "
        "TRL's loss of that name (a token mean over the micro-batch) depends on the machine and is not offered.",
    ),
    "lambda_grpo": Entry(
        slots={"aggregate": "learnable"},
        reference="Wang et al. 2025, λ-GRPO, arXiv:2510.06870",
        equation="z = (L − mean L)/std L;  f = G·softmax((1 + r·z)^λ);  J = (1/Σ L) Σ_i f_i Σ_t (surrogate)",
        departures="Read in secondary texts; the start of λ (0), ddof and eps are not printed.",
    ),
    "ha_dw_grpo": Entry(
        slots=_HISTORY,
        reference=_HA_DW,
        equation="A ← A·s·exp(−sgn(A)·(p̂ − C)), C an anchor moved by past batches",
        departures=_HA_DW_DEPARTS,
    ),
    "ha_dw_gspo": Entry(
        slots=_HISTORY | _GSPO,
        reference=_HA_DW,
        equation="HA-DW's factor on GSPO's advantage",
        departures=_HA_DW_DEPARTS,
    ),
    "ha_dw_dapo": Entry(
        slots=_HISTORY | _DAPO,
        reference=_HA_DW,
        equation="HA-DW's factor on DAPO's advantage",
        departures=_HA_DW_DEPARTS + " The anchor sees the groups that `select` keeps.",
    ),
    "stratified_grpo": Entry(
        slots={"baseline": "stratified", "scale": "none"},
        reference="Zhu et al. 2025, Stratified GRPO, arXiv:2510.06214",
        equation="A = α·(R − mean_k)/std_k + (1 − α)·(R − mean)/std, k the stratum (number of tool calls)",
        departures="Read in secondary texts; strata are taken within one prompt's group, ddof 0, eps 1e-8.",
    ),
    "balanced": Entry(
        slots={"aggregate": "balanced"},
        reference="Balanced Aggregation 2026, arXiv:2605.04077",
        equation="J = (|S₊|/G)·mean over tokens of S₊ + (|S₋|/G)·mean over tokens of S₋, per group",
        departures="Read in secondary texts; groups without contrast stay in the mean over groups.",
    ),
    "sign_balance": Entry(
        slots={"baseline": "sign(scope='batch')", "scale": "none"},
        reference="SignBalance 2026, arXiv:2609.04063, eq. 11",
        equation="A₊ = c, A₋ = −c·n₊/n₋, counted over the batch",
        departures="Read in secondary texts; the scope of the counts and the empty class are open.",
    ),
    "sign_balance_group": Entry(
        slots={"baseline": "sign(scope='group')", "scale": "none"},
        reference="SignBalance 2026, arXiv:2609.04063, eq. 11",
        equation="A₊ = c, A₋ = −c·n₊/n₋, counted over the group",
        departures="The other reading of the paper: GRPO (ddof 0) times √(n₊/n₋).",
    ),
    "e3": Entry(
        slots={},
        reference="Setlur et al. 2025, e3, arXiv:2506.09026",
        equation="GRPO",
        departures="The paper's curriculum over difficulty and token budget is data, not estimator.",
    ),
    "e3_masked": Entry(
        slots={"reweight": "negatives(weight=0.0)"},
        reference="Setlur et al. 2025, e3, arXiv:2506.09026, the arm without negative gradients",
        equation="A ← max(A, 0)",
        departures="Read in secondary texts.",
    ),
    "gspo": Entry(
        slots=_GSPO,
        reference="Zheng et al. 2025, GSPO, arXiv:2507.18071, eq. 5–7",
        equation="s = exp((1/L) Σ_t log ρ_t);  J = mean_i min(sA, clip(s, 1−3e-4, 1+4e-4)A)",
    ),
    "gspo_token": Entry(
        slots={**_GSPO, "ratio": "sequence_token"},
        reference="Zheng et al. 2025, GSPO-token, arXiv:2507.18071, eq. 13–14",
        equation="s_t = sg[s]·π_t/sg[π_t]",
    ),
    "gmpo": Entry(
        slots={"ratio": "geometric", "clip": "none"},
        reference="Zhao et al. 2025, GMPO, arXiv:2507.20673",
        equation="J = mean_i A·exp((1/L) Σ_t m_t), m_t = log ρ_t clipped to ±0.4 on the side A pushes to",
    ),
    "cispo": Entry(
        slots={"clip": "cispo", "aggregate": "token_mean"},
        reference="MiniMax 2025, MiniMax-M1, arXiv:2506.13585",
        equation="J = (1/Σ L) Σ_i Σ_t sg[clip(ρ, 1 − low, 1 + high)]·A·log π",
        departures="The paper gives no upper bound; 1 + high = 5 is TRL's documented value.",
    ),
    "sapo": Entry(
        slots={"clip": "soft"},
        reference="Gao et al. 2025, SAPO, arXiv:2511.20347",
        equation="J = mean_i (1/L_i) Σ_t (4/τ)·σ(τ(ρ − 1))·A, τ = 1 where A > 0, else 1.05",
    ),
    "gpg": Entry(
        slots={
            "scale": "none",
            "reweight": "informative_share",
            "ratio": "none",
            "clip": "none",
            "aggregate": "token_mean",
        },
        reference="Chu et al. 2025, GPG, arXiv:2504.02546",
        equation="J = (1/Σ L) Σ_i Σ_t α·(r − mean r)·log π, α = groups / groups with contrast",
        departures="The paper's text was not read: α over groups with contrast is a reading. verl's code has the form "
        "α·(r − mean r)/F_norm with F_norm = 1, but takes α as responses over responses whose reward is not 0.",
    ),
    "opo": Entry(
        slots={"baseline": "length_weighted", "scale": "none"},
        reference="Hao et al. 2025, OPO, arXiv:2505.23585",
        equation="A = r − Σ L·r / Σ L",
        departures="The paper trains strictly on-policy, where the ratio and its clip do nothing.",
    ),
    "maxrl": Entry(
        slots={"scale": "group_mean"},
        reference="Tajwar et al. 2026, MaxRL, arXiv:2602.02710",
        equation="A = (r − p̂)/p̂",
    ),
    "length_power": Entry(
        slots={"scale": "none", "aggregate": "length_power(alpha=0.5)"},
        reference="2026, arXiv:2607.23364",
        equation="w(L) = L^(α−1) per token, mean over rows",
        departures="Read in secondary texts; α = 0.5 is a choice, the paper treats the family.",
    ),
    "curverl": Entry(
        slots={"scale": "none", "reweight": "pass_rate_curve"},
        reference="CurveRL 2026, arXiv:2605.24331, and the authors' code",
        equation="A = w(p̂)·(r − p̂), w = mass of p̂'s bin / cumulated mass, over past pass rates",
        departures="The histogram's bins are an argument: pass_rate_curve(bins=group_size).",
    ),
    "mapp": Entry(
        slots={"baseline": "posterior", "scale": "none"},
        reference="MaPP 2026, arXiv:2609.34990",
        equation="A = E[μ_G(p)] where right, −E[μ_G(1−p)] where wrong, p under the prompt's Beta posterior "
        "without the response itself",
        departures="Sampling prompts by their score is data, not estimator. Groups without contrast keep advantages.",
    ),
    "maxnorm_ac": Entry(
        slots={"baseline": "maxnorm", "scale": "none"},
        reference="MaxNorm-AC 2026, arXiv:2609.19164",
        equation="A = u / max(max_j |u_j|, floor), u = r − mean r",
        departures="Read in secondary texts; the binning rule is not public: a group within `floor` is one "
        "bin, others are not binned, and the KL term stays.",
    ),
    "avspo": Entry(
        slots={"baseline": "virtual_sample", "scale": "none"},
        reference="AVSPO 2026, arXiv:2605.21125, the authors' code",
        equation="all outcomes of the batch equal: A = (r − mean)/(std + 1e-4) with one opposite virtual "
        "reward in every group's mean and std; else GRPO's A with eps 1e-4",
        departures="The released rule; the paper's adaptive number of virtual rewards is not public.",
    ),
    "pass_at_k": Entry(
        slots={"baseline": "pass_at_k(k=4)", "scale": "none"},
        reference="Chen et al. 2025, Pass@k training, arXiv:2508.10751, eq. 14–15",
        equation="R̄ = 1 − C(n₋,k)/C(n,k), σ² = R̄(1−R̄);  A₊ = (1−R̄)/σ, A₋ = (1−R̄ − C(n₋−1,k−1)/C(n−1,k−1))/σ",
        departures="k = 4 is a choice.",
    ),
}
