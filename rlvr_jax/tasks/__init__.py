"""Problems with verifiable answers: strings in, verdicts out."""

from rlvr_jax.tasks import addsub10, arithmetic, compare, files  # noqa: F401  (each registers its task)
from rlvr_jax.tasks.task import SPLITS, TASKS, Problem, Task, make_task
from rlvr_jax.tasks.verify_choice import verify_choice
from rlvr_jax.tasks.verify_math import usable_gold, verify_math

__all__ = ["SPLITS", "TASKS", "Problem", "Task", "make_task", "usable_gold", "verify_choice", "verify_math"]
