"""Phase two of every catalogue entry written out a second time: weights, losses and gradients, in float64
loops."""

from math import exp

import numpy as np
from transcription import LENGTH, flat, mean, std


def lambda_weights(L, valid, group, A, lam=0.0):
    out = [0.0] * len(L)
    ids = sorted({group[b] for b in range(len(L)) if valid[b]})
    for i in ids:
        rows = [b for b in range(len(L)) if valid[b] and group[b] == i]
        ls = [L[b] for b in rows]
        z = [0.0 if flat(ls) else (x - mean(ls)) / (std(ls, 0) + 1e-8) for x in ls]
        g = [max(1 + x / 9, 1e-6) ** lam for x in z]
        total = sum(exp(x) for x in g)
        for b, x in zip(rows, g):
            out[b] = len(rows) * exp(x) / total / sum(ls) / len(ids) if sum(ls) else 0.0
    return out


def balanced_weights(L, valid, group, A):
    out = [0.0] * len(L)
    ids = sorted({group[b] for b in range(len(L)) if valid[b]})
    for i in ids:
        rows = [b for b in range(len(L)) if valid[b] and group[b] == i]
        for side in (1, -1):
            members = [b for b in rows if A[b] * side > 0]
            tokens = sum(L[b] for b in members)
            for b in members:
                out[b] = len(members) / (len(rows) * tokens) / len(ids) if tokens else 0.0
    return out


def row_weights(name, L, valid, group, A):
    """One weight per row, the same at each of its tokens."""
    B = len(L)
    rows = sum(valid)
    tokens = sum(L[b] for b in range(B) if valid[b])
    if name in ("reinforce", "rloo"):
        w = [1 / rows] * B
    elif name in ("reinforce_pp", "reinforce_pp_baseline", "dapo", "ha_dw_dapo", "cispo", "gpg"):
        w = [1 / tokens] * B
    elif name == "dr_grpo":
        w = [1 / (rows * LENGTH)] * B
    elif name == "length_power":
        w = [L[b] ** (0.5 - 1) / rows if L[b] else 0.0 for b in range(B)]
    elif name == "lambda_grpo":
        w = lambda_weights(L, valid, group, A)
    elif name == "balanced":
        w = balanced_weights(L, valid, group, A)
    else:
        w = [1 / (L[b] * rows) if L[b] else 0.0 for b in range(B)]
    return [w[b] if valid[b] else 0.0 for b in range(B)]


def clipped_loss(ratio, A, low, high):
    return -min(ratio * A, min(max(ratio, 1 - low), 1 + high) * A)


def row_losses(name, new, old, A, fixed):
    """Losses of the tokens of one row. `fixed`: the log-probabilities as a stop-gradient holds them."""
    d = [n - o for n, o in zip(new, old)]
    fixed_d = [n - o for n, o in zip(fixed, old)]
    if name in ("reinforce", "rloo", "gpg"):
        return [-A * n for n in new]
    if name in ("gspo", "ha_dw_gspo"):
        return [clipped_loss(exp(mean(d)), A, 3e-4, 4e-4)] * len(d)
    if name == "gspo_token":
        return [clipped_loss(exp(mean(fixed_d) + n - f), A, 3e-4, 4e-4) for n, f in zip(new, fixed)]
    if name == "gmpo":
        s = (A > 0) - (A < 0)
        m = [s * min(s * x, s * min(max(x, -0.4), 0.4)) if s else x for x in d]
        return [-A * exp(mean(m))] * len(d)
    if name == "cispo":
        return [-min(max(exp(x), 0.0), 5.0) * A * n for x, n in zip(fixed_d, new)]
    if name == "sapo":
        tau = 1.0 if A > 0 else 1.05
        return [-4 / tau / (1 + exp(-tau * (exp(x) - 1))) * A for x in d]
    high = 0.28 if name in ("dapo", "ha_dw_dapo") else 0.2
    return [clipped_loss(exp(x), A, 0.2, high) for x in d]


def total_loss(name, new, old, mask, valid, group, A, weights, detached=None):
    """Σ w·ℓ over the tokens that count."""
    total = 0.0
    for b in range(len(new)):
        places = [t for t in range(len(new[b])) if mask[b][t]] if valid[b] else []
        if not places:
            continue
        held = new if detached is None else detached
        rows = [[float(x[b][t]) for t in places] for x in (new, old, held)]
        losses = row_losses(name, rows[0], rows[1], float(A[b]), rows[2])
        total += sum(weights[b] * x for x in losses)
    return total


def gradient(name, new, old, mask, valid, group, A, weights, h=1e-6):
    """d total_loss / d new by central differences, stop-gradients held."""
    out = np.zeros_like(new)
    for b, t in np.ndindex(*new.shape):
        if not (mask[b][t] and valid[b]):
            continue
        sides = []
        for step in (h, -h):
            moved = new[b : b + 1].copy()
            moved[0, t] += step
            one = slice(b, b + 1)  # only row b moves, so only row b needs adding up
            sides.append(total_loss(name, moved, old[one], mask[one], [True], group, A[one], weights[one], new[one]))
        out[b, t] = (sides[0] - sides[1]) / (2 * h)
    return out
