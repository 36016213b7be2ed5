"""A toy experiment inside one jit: the base of the tables in experiments/tables.

python -m experiments.launch length
"""

from rlvr_jax.lab import lab_defaults


def get_config(estimator: str = "grpo"):
    return lab_defaults(estimator)
