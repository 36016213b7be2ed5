"""Metrics of a run: files and console. The mergeable values themselves are in `rlvr_jax.means`."""

from rlvr_jax.metrics.console import COLUMNS, Column, progress
from rlvr_jax.metrics.writer import MetricsWriter, iterate_jsonl, read_jsonl

__all__ = ["COLUMNS", "Column", "MetricsWriter", "iterate_jsonl", "progress", "read_jsonl"]
