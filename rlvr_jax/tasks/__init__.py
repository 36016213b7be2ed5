"""Problems with verifiable answers: strings in, verdicts out."""

# each registers its tasks
from rlvr_jax.tasks import addsub10, arithmetic, compare, files, gsm8k, gym, math, mixed, multiple_choice, tfds  # noqa: F401
from rlvr_jax.tasks.checks import CHECKS
from rlvr_jax.tasks.grade import VERIFIERS
from rlvr_jax.tasks.pool import make_pool
from rlvr_jax.tasks.task import SPLITS, TASKS, Item, Problem, Task, make_task
from rlvr_jax.tasks.verify_choice import verify_choice
from rlvr_jax.tasks.verify_math import usable_gold, verify_math
from rlvr_jax.tasks.verify_numeric import verify_numeric
from rlvr_jax.tasks.verify_text import verify_exact, verify_f1

__all__ = [
    "CHECKS",
    "SPLITS",
    "TASKS",
    "VERIFIERS",
    "Item",
    "Problem",
    "Task",
    "make_pool",
    "make_task",
    "usable_gold",
    "verify_choice",
    "verify_exact",
    "verify_f1",
    "verify_math",
    "verify_numeric",
]
