"""What a verifier says of one completion. Imports nothing: the processes that grade know no jax."""

from __future__ import annotations

from typing import NamedTuple


class Verdict(NamedTuple):
    """A verifier's judgement of one completion; host side.

    Outcome NaN means that there is none: the checker failed, not the policy. Such a sample is not wrong, it is left
    out of every statistic.
    """

    outcome: float  # in [0, 1], or NaN
    extracted: str | None  # the answer that was found, None if none
    reason: str  # why: "correct", "≠ 42", "no answer line", "not ended", "time limit: 5 s", "invalid: …"

    @property
    def valid(self) -> bool:
        return self.outcome == self.outcome

    @classmethod
    def invalid(cls, reason: str) -> Verdict:
        """No verdict, and why there is none."""
        return cls(float("nan"), None, f"invalid: {reason}")
