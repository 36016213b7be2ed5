"""Every catalogue entry written out a second time: float64, loops over lists, no array operation, nothing
shared.

`phase_one(name, ...)` → advantages and the rows that count; `weights(name, ...)` and `losses(name, ...)` →
phase two. Settings are those of the catalogue, with the completion length the tests use.
"""

from math import comb, exp, lgamma, log, sqrt

import numpy as np

LENGTH = 10  # completion_length of the tests
BINS, WINDOW = 8, 10


def mean(xs):
    return sum(xs) / len(xs)


def std(xs, ddof):
    m = mean(xs)
    return sqrt(sum((x - m) ** 2 for x in xs) / (len(xs) - ddof))


def flat(xs):
    return max(xs) == min(xs)


# ---- phase one, methods of one group: (rewards, lengths, strata) of the valid responses → advantages


def centred(r, L, k):
    return [0.0] * len(r) if flat(r) else [x - mean(r) for x in r]


def standard(r, L, k, ddof=1, eps=1e-6):
    if flat(r):
        return [0.0] * len(r)
    return [(x - mean(r)) / (std(r, ddof) + eps) for x in r]


def leave_one_out(r, L, k):
    if flat(r):
        return [0.0] * len(r)
    return [x - mean(r[:i] + r[i + 1 :]) for i, x in enumerate(r)]


def stratified(r, L, k):
    out = []
    for i, x in enumerate(r):
        mine = [y for y, s in zip(r, k) if s == k[i]]
        san = 0.0 if flat(mine) else (x - mean(mine)) / (std(mine, 0) + 1e-8)
        gn = 0.0 if flat(r) else (x - mean(r)) / (std(r, 0) + 1e-8)
        out.append(0.6 * san + 0.4 * gn)
    return out


def sign_group(r, L, k):
    wins = sum(x > 0.5 for x in r)
    losses = len(r) - wins
    if wins == 0 or losses == 0:
        return [0.0] * len(r)
    return [1.0 if x > 0.5 else -wins / losses for x in r]


def opo(r, L, k):
    if flat(r):
        return [0.0] * len(r)
    b = sum(x * n for x, n in zip(r, L)) / sum(L)
    return [x - b for x in r]


def maxrl(r, L, k):
    return [0.0] * len(r) if flat(r) else [(x - mean(r)) / mean(r) for x in r]


def maxnorm(r, L, k):
    if max(r) - min(r) <= 0.01:
        return [0.0] * len(r)
    u = [x - mean(r) for x in r]
    return [x / max(max(abs(y) for y in u), 0.01) for x in u]


def pass_at_k(r, L, k_, k=4):
    n, wrong = len(r), sum(x <= 0.5 for x in r)
    if n < k:
        return [0.0] * n
    R = 1 - comb(wrong, k) / comb(n, k)
    if R in (0.0, 1.0):
        return [0.0] * n
    sigma = sqrt(R * (1 - R))
    return [(1 - R) / sigma if x > 0.5 else (1 - R - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / sigma for x in r]


def negatives_masked(r, L, k):
    return [max(a, 0.0) for a in standard(r, L, k)]


GROUP_METHODS = {
    "rloo": leave_one_out,
    "grpo_no_std": centred,
    "dr_grpo": centred,
    "length_power": centred,
    "stratified_grpo": stratified,
    "sign_balance_group": sign_group,
    "e3_masked": negatives_masked,
    "opo": opo,
    "maxrl": maxrl,
    "maxnorm_ac": maxnorm,
    "pass_at_k": pass_at_k,
    "reinforce": lambda r, L, k: list(r),
} | dict.fromkeys(
    (
        "grpo",
        "lambda_grpo",
        "balanced",
        "e3",
        "gspo",
        "gspo_token",
        "gmpo",
        "cispo",
        "sapo",
        "dapo",
        "ha_dw_grpo",
        "ha_dw_gspo",
        "ha_dw_dapo",
    ),
    standard,
)


# ---- phase one, methods of the batch: groups is a list of (rewards, lengths, strata), empty groups included


def overlong(length):
    cache = LENGTH / 5
    if length <= LENGTH - cache:
        return 0.0
    return max((LENGTH - cache - length) / cache, -1.0)


def batch_of(groups):
    return [x for r, _, _ in groups for x in r]


def reinforce_pp(groups, state, ids):
    every = batch_of(groups)
    if flat(every):
        return [[0.0] * len(r) for r, _, _ in groups]
    m, s = mean(every), std(every, 1)
    return [[(x - m) / (s + 1e-6) for x in r] for r, _, _ in groups]


def reinforce_pp_baseline(groups, state, ids):
    first = [centred(*g) if g[0] else [] for g in groups]
    every = [x for a in first for x in a]
    if flat(every):
        return [[0.0] * len(a) for a in first]
    s = std(every, 1)
    return [[x / (s + 1e-6) for x in a] for a in first]


def sign_batch(groups, state, ids):
    every = batch_of(groups)
    wins = sum(x > 0.5 for x in every)
    losses = len(every) - wins
    if wins == 0 or losses == 0:
        return [[0.0] * len(r) for r, _, _ in groups]
    return [[1.0 if x > 0.5 else -wins / losses for x in r] for r, _, _ in groups]


def gpg(groups, state, ids):
    present = sum(bool(r) for r, _, _ in groups)
    informative = sum(bool(r) and not flat(r) for r, _, _ in groups)
    share = present / informative if informative else 0.0
    return [[a * share for a in centred(*g)] if g[0] else [] for g in groups]


def beta_density(x, a, b):
    return exp((a - 1) * log(x) + (b - 1) * log(1 - x) + lgamma(a + b) - lgamma(a) - lgamma(b))


def bnpo(groups, state, ids):
    rates = [mean(r) for r, _, _ in groups if r]
    m, v = mean(rates), std(rates, 0) ** 2
    total = 100.0 if v < 1e-12 else min(max(m * (1 - m) / v - 1, 0.0), 100.0)
    out = []
    for g in groups:
        r = g[0]
        if not r or flat(r):
            out.append([0.0] * len(r))
            continue
        density = beta_density(mean(r), 1 + total * m / 3, 1 + total * (1 - m) / 3)
        out.append([a / density for a in centred(*g)])
    return out


def curverl(groups, state, ids):
    pools = state.setdefault("pools", [])
    rates = [mean(r) for r, _, _ in groups if r]
    place = lambda p: min(int(p * (BINS + 1) + 1e-9), BINS)
    now = [place(p) for p in rates if 0 < p < 1]
    past = [b for pool in pools[-WINDOW:] for b in pool]
    pool = past if past else now
    out = []
    for g in groups:
        r = g[0]
        p = mean(r) if r else 0.0
        if not 0 < p < 1:
            out.append([0.0] * len(r))
            continue
        mass = sum(b == place(p) for b in pool)
        below = sum(b <= place(p) for b in pool)
        out.append([a * (mass / below if below else 0.0) for a in centred(*g)])
    if rates:
        pools.append(now)
    return out


def beta_function(a, b):
    return exp(lgamma(a) + lgamma(b) - lgamma(a + b))


def expected_mu(a, b, n):
    return sum(
        comb(n - 1, S - 1) * beta_function(a + S - 1, b + n - S) / beta_function(a, b) * sqrt((n - S) / S)
        for S in range(1, n)
    )


def mapp(groups, state, ids):
    out = []
    for (r, _, _), i in zip(groups, ids):
        if not r:
            out.append([])
            continue
        a, b = state.get(i, (1.0, 1.0))
        n, S = len(r), sum(x > 0.5 for x in r)
        a, b = 0.5 * a + 0.5 + S, 0.5 * b + 0.5 + n - S
        state[i] = (a, b)
        up = expected_mu(a - 1, b, n) if S else None
        down = -expected_mu(b - 1, a, n) if n > S else None
        out.append([up if x > 0.5 else down for x in r])
    return out


def avspo(groups, state, ids):
    right = [x > 0.5 for x in batch_of(groups)]
    virtual = [] if any(right) and not all(right) else [0.0 if all(right) else 1.0]
    out = []
    for r, _, _ in groups:
        whole = list(r) + virtual
        if not r or flat(whole):
            out.append([0.0] * len(r))
        else:
            out.append([(x - mean(whole)) / (std(whole, 1) + 1e-4) for x in r])
    return out


BATCH_METHODS = {
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "sign_balance": sign_batch,
    "gpg": gpg,
    "bnpo": bnpo,
    "curverl": curverl,
    "mapp": mapp,
    "avspo": avspo,
}


def anchor_factor(outcomes, advantages, state):
    """HA-DW on every group; `outcomes` are those of the groups that count."""
    every = [x for o in outcomes for x in o]
    if not every:
        return advantages
    y = mean(every)
    prior = state.get("anchor", y)
    past = state.setdefault("posteriors", [])[-10:]
    sigma = 1.0 if len(past) < 2 else std(past, 0)
    gain = min(max(0.1 * sigma, 0.0), 1.0)
    state["anchor"] = (1 - gain) * prior + gain * y
    state["posteriors"].append(state["anchor"])
    out = []
    for o, advantage in zip(outcomes, advantages):
        gap = mean(o) - prior if o else 0.0
        side = lambda a: (a > 0) - (a < 0)
        out.append([a * 1.3 * exp(-side(a) * side(gap) * abs(gap)) for a in advantage])
    return out


def phase_one(name, outcome, lengths, stratum, valid, ids, state):
    """(advantages f64[P, G], rows that count bool[P, G]); moves `state`, a dict, for methods that
    remember."""
    P, G = outcome.shape
    counts = valid.copy()
    if name in ("dapo", "ha_dw_dapo"):
        for p in range(P):
            mine = [outcome[p, g] for g in range(G) if valid[p, g]]
            if not mine or flat(mine):
                counts[p] = False
    groups, outcomes = [], []
    for p in range(P):
        rows = [g for g in range(G) if counts[p, g]]
        raw = [float(outcome[p, g]) for g in rows]
        rewards = raw
        if name in ("dapo", "ha_dw_dapo"):
            rewards = [2 * x - 1 + overlong(int(lengths[p, g])) for x, g in zip(raw, rows)]
        groups.append((rewards, [int(lengths[p, g]) for g in rows], [int(stratum[p, g]) for g in rows]))
        outcomes.append(raw)
    if name in BATCH_METHODS:
        found = BATCH_METHODS[name](groups, state, [int(i) for i in ids])
    else:
        found = [GROUP_METHODS[name](*g) if g[0] else [] for g in groups]
    if name.startswith("ha_dw"):
        found = anchor_factor(outcomes, found, state)
    advantages = np.zeros((P, G))
    for p in range(P):
        for a, g in zip(found[p], [g for g in range(G) if counts[p, g]]):
            advantages[p, g] = a
    return advantages, counts
