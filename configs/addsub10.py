"""SmolLM2-135M-Instruct learns sums and differences within 10 (`make demo CONFIG=addsub10`).

    rlvr train --config=configs/addsub10.py:grpo --workdir=runs/addsub10

187 problems in all, 50 of them held out: training sees most of the others about twice.
"""

from pathlib import Path

from rlvr_jax.config import load_config


def get_config(estimator: str = "grpo"):
    config = load_config(f"{Path(__file__).with_name('demo.py')}:{estimator}")
    config.task = "addsub10(held_out=50)"
    config.sampling.prompt_length = 44
    config.evaluate.problems = 50
    return config
