"""Whole experiments inside one jit: the same pure functions as the training loop, composed a second time.

A block is one task and one seed under several estimators and optimisers: warm start, then `steps` of sample, verify,
estimate and update, all runs side by side. `run_block(configs, reference)` compiles once for a table.
"""

from rlvr_jax.lab.block import run_block
from rlvr_jax.lab.config import check_lab, lab_defaults

__all__ = ["check_lab", "lab_defaults", "run_block"]
