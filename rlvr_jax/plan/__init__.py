"""What a TPU slice would do with a config, as the TPU compiler sees it: nothing here is measured."""

from rlvr_jax.plan.plan import make_plan
from rlvr_jax.plan.show import show

__all__ = ["make_plan", "show"]
