"""Every estimator as a row of ten slots: pure mathematics over arrays, no model and no I/O.

from rlvr_jax.estimators import make_estimator
est = make_estimator("grpo", clip="ppo(low=0.2, high=0.28)")
advantages_PG, memory, metrics = est.advantages(groups, est.init_memory(num_prompts))
loss, metrics = est.loss(est.init_params(), logprobs_BT, batch)
"""

from rlvr_jax.estimators.base import SLOTS
from rlvr_jax.estimators.catalogue import Entry, catalogue
from rlvr_jax.estimators.compare import Comparison, compare, sweep
from rlvr_jax.estimators.compat import compat
from rlvr_jax.estimators.estimator import Estimator, make_estimator, registries
from rlvr_jax.estimators.pages import catalogue_table, catalogue_text, describe

__all__ = [
    "SLOTS",
    "Comparison",
    "Entry",
    "Estimator",
    "catalogue",
    "catalogue_table",
    "catalogue_text",
    "compare",
    "compat",
    "describe",
    "make_estimator",
    "registries",
    "sweep",
]
