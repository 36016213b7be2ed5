"""The sampler and its methods."""

from rlvr_jax.sampling.methods import SamplingMethod
from rlvr_jax.sampling.sampler import Environment, make_sampler

__all__ = ["Environment", "SamplingMethod", "make_sampler"]
