"""The sampler, its methods, and what ends a completion."""

from rlvr_jax.sampling.methods import Draw, SamplingMethod
from rlvr_jax.sampling.sampler import Environment, make_sampler
from rlvr_jax.sampling.stops import StopStrings, make_stop_strings

__all__ = ["Draw", "Environment", "SamplingMethod", "StopStrings", "make_sampler", "make_stop_strings"]
