"""Reinforcement learning with verifiable rewards for language models, in JAX."""

__version__ = "0.1.0"
