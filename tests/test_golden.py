"""The learning curve of the tiny config stays what it was.

The first steps must agree closely. Later ones only on average: on another processor the last bits of a logit differ,
sooner or later a sampled token with them, and from there on the curve is another draw of the same experiment.

A change here means that a step computes something else than before. If that was intended, say so in the commit and
write the curve anew: `python tests/test_golden.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from rlvr_jax.config import load_config
from rlvr_jax.train import train

HERE = Path(__file__).resolve().parent
GOLDEN = HERE / "golden" / "tiny.json"
KEYS = (
    "rollout/reward",
    "rollout/length",
    "rollout/truncated",
    "update/gradient_norm",
    "update/entropy",
    "update/loss",
)
CLOSE = 3  # steps


def curve(workdir: str | Path) -> dict[str, list[float | None]]:
    config = load_config(f"{HERE.parent}/configs/tiny.py:grpo", ["steps=60", "evaluate.every=0", "log.report=False"])
    train(config, workdir, quiet=True)
    lines = [json.loads(line) for line in (Path(workdir) / "metrics.jsonl").read_text().splitlines()]
    return {key: [line[key] for line in lines if "update/loss" in line] for key in KEYS}


def test_the_tiny_curve_is_what_it_was(tmp_path):
    golden, found = json.loads(GOLDEN.read_text()), curve(tmp_path)
    for key in KEYS:
        assert len(found[key]) == len(golden[key]) == 60
        assert found[key][:CLOSE] == pytest.approx(golden[key][:CLOSE], rel=1e-3, abs=1e-4), (key, __doc__)
    late = lambda curves: np.mean(curves["rollout/reward"][40:])
    assert late(found) == pytest.approx(late(golden), abs=0.15), __doc__


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as workdir:
        GOLDEN.write_text(json.dumps(curve(workdir), indent=1) + "\n")
    sys.stdout.write(f"wrote {GOLDEN}\n")
