"""Problems with verifiable answers: strings in, verdicts out."""

from rlvr_jax.tasks import addsub10, arithmetic, compare, files  # noqa: F401  (each registers its task)
from rlvr_jax.tasks.task import SPLITS, TASKS, Problem, Task, make_task

__all__ = ["SPLITS", "TASKS", "Problem", "Task", "make_task"]
