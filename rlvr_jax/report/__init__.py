"""What a run did, on one page: `write_report` for a browser, `before_after_table` for the terminal."""

from rlvr_jax.report.page import write_report
from rlvr_jax.report.table import before_after_table

__all__ = ["before_after_table", "write_report"]
