"""The sampler and its methods."""

from rlvr_jax.sampling.methods import SamplingMethod
from rlvr_jax.sampling.sampler import make_sampler

__all__ = ["SamplingMethod", "make_sampler"]
