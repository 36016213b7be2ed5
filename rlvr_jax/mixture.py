"""Which problem comes next: several sets by weight, or a curriculum by pass rate. The position is saved and restored.

An order is an endless stream of places in a list of problems. It knows neither hosts nor tokens: every host draws the
same places and takes its own rows of the batch. Every draw is a function of (seed, draw number, what was observed), so
that a state is small and going on from it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Mixture:
    """Draws from several sets in fixed proportions; inside a set every problem once an epoch, reshuffled every epoch.

    After n draws each set has had its share of them to within one per other set: the set that is furthest behind its
    weight is next (ties: the first). No randomness in which set, only in the order inside.
    """

    def __init__(self, sets: Mapping[str, Sequence[int]], weights: Mapping[str, float] | None = None, *, seed: int):
        """sets: name → places of its problems. weights: name → share, by any scale; None: by the sets' sizes.

        Raises:
          ValueError: an empty set, a weight for no set, or none above 0 for one.
        """
        self._sets = {name: np.asarray(places, np.int64) for name, places in sets.items()}
        for name, places in self._sets.items():
            if not len(places):
                raise ValueError(f"data.weights: the set {name!r} has no problems")
        weights = {name: len(places) for name, places in sets.items()} if weights is None else dict(weights)
        if set(weights) != set(self._sets):
            raise ValueError(f"data.weights={weights!r}: name exactly the sets {list(self._sets)}")
        for name, weight in weights.items():
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
                raise ValueError(f"data.weights: {name}={weight!r}; must be a number above 0")
        total = sum(weights.values())
        self._shares = {name: weights[name] / total for name in self._sets}
        self._seed, self._taken, self._orders = seed, dict.fromkeys(self._sets, 0), {}

    def next(self, count: int) -> list[int]:
        """The next places."""
        return [self._one() for _ in range(count)]

    def _one(self) -> int:
        drawn = sum(self._taken.values()) + 1
        name = max(self._sets, key=lambda name: self._shares[name] * drawn - self._taken[name])
        places, taken = self._sets[name], self._taken[name]
        self._taken[name] += 1
        epoch, position = divmod(taken, len(places))
        return int(places[self._order(name, epoch)[position]])

    def _order(self, name: str, epoch: int) -> np.ndarray:
        """The order of a set in an epoch; only the newest of each set is held."""
        if self._orders.get(name, (-1,))[0] != epoch:
            words = [self._seed, epoch, *name.encode()]
            self._orders[name] = epoch, np.random.default_rng(words).permutation(len(self._sets[name]))
        return self._orders[name][1]

    def observe(self, places: Sequence[int], pass_rates: Sequence[float]) -> None:
        """Proportions do not depend on how it goes."""

    def get_state(self) -> dict[str, Any]:
        """Plain values that JSON keeps."""
        return {"kind": "mixture", "seed": self._seed, "taken": dict(self._taken)}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """
        Raises:
          ValueError: the state of another order: other sets or another seed.
        """
        _require_same(state, kind="mixture", seed=self._seed)
        if set(state["taken"]) != set(self._sets):
            raise ValueError(f"the saved position is of the sets {sorted(state['taken'])}, not {sorted(self._sets)}")
        self._taken, self._orders = {name: int(state["taken"][name]) for name in self._sets}, {}


class Curriculum:
    """Draws problems whose pass rate is near `target`, as far as it is known.

    A problem with estimated pass rate p is drawn with weight floor + (1 − floor)·exp(−(p − target)² / (2·width²)); one
    never seen has that of its prior: p = 1 − its rank by difficulty, the easiest 1, the hardest 0, or target where all
    are equally difficult. The estimate is a mean of the observed rates, each older one worth `decay` of the next;
    the prior counts as `prior` of an observation. Draws are without replacement inside a batch.
    """

    def __init__(
        self,
        difficulties: Sequence[float],
        *,
        seed: int,
        target: float = 0.5,
        width: float = 0.2,
        floor: float = 0.05,
        decay: float = 0.7,
        prior: float = 0.5,
    ):
        """difficulties: of every problem, larger is harder; any unit.

        Raises:
          ValueError: no problems, or a number outside its range.
        """
        if not len(difficulties):
            raise ValueError("data.curriculum: there are no problems")
        for name, value, low, high in (
            ("target", target, 0.0, 1.0),
            ("width", width, 1e-6, 10.0),
            ("floor", floor, 0.0, 1.0),
            ("decay", decay, 0.0, 1.0),
            ("prior", prior, 0.0, 100.0),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ValueError(f"data.curriculum: {name}={value!r}; must be in [{low:g}, {high:g}]")
        self._seed, self._drawn = seed, 0
        self._target, self._width, self._floor, self._decay, self._prior = target, width, floor, decay, prior
        self._expected = _expected(np.asarray(difficulties, np.float64), target)
        self._seen: dict[int, list[float]] = {}  # place → [decayed sum of pass rates, decayed count]

    def pass_rates(self) -> np.ndarray:
        """f64[problems], as estimated now."""
        rates = self._expected.copy()
        for place, (total, count) in self._seen.items():
            rates[place] = (total + self._prior * rates[place]) / (count + self._prior)
        return rates

    def weights(self) -> np.ndarray:
        """f64[problems], with which they are drawn; not normalised."""
        near = np.exp(-((self.pass_rates() - self._target) ** 2) / (2 * self._width**2))
        return self._floor + (1 - self._floor) * near

    def next(self, count: int) -> list[int]:
        """`count` different places (Efraimidis and Spirakis 2006: the largest of log(u)/weight).

        Raises:
          ValueError: more than there are problems.
        """
        if count > len(self._expected):
            raise ValueError(f"{count} different problems were asked for, there are {len(self._expected)}")
        uniform = np.random.default_rng([self._seed, self._drawn]).random(len(self._expected))
        self._drawn += 1
        keys = np.log(np.maximum(uniform, 1e-300)) / np.maximum(self.weights(), 1e-12)
        return [int(place) for place in np.argsort(-keys, kind="stable")[:count]]

    def observe(self, places: Sequence[int], pass_rates: Sequence[float]) -> None:
        """What the groups of a batch showed: mean outcome of each, of every host; NaN (no valid row) tells nothing.

        Must be the same on every host, or they would draw different problems.
        """
        for place, rate in zip(places, pass_rates, strict=True):
            if rate == rate:
                total, count = self._seen.get(int(place), (0.0, 0.0))
                self._seen[int(place)] = [total * self._decay + float(rate), count * self._decay + 1.0]

    def get_state(self) -> dict[str, Any]:
        """Plain values that JSON keeps, digit for digit."""
        seen = [[place, *values] for place, values in sorted(self._seen.items())]
        return {
            "kind": "curriculum",
            "seed": self._seed,
            "problems": len(self._expected),
            "drawn": self._drawn,
            "seen": seen,
        }

    def set_state(self, state: Mapping[str, Any]) -> None:
        """
        Raises:
          ValueError: the state of another order.
        """
        _require_same(state, kind="curriculum", seed=self._seed, problems=len(self._expected))
        self._drawn = int(state["drawn"])
        self._seen = {int(place): [float(total), float(count)] for place, total, count in state["seen"]}


def _expected(difficulties: np.ndarray, target: float) -> np.ndarray:
    """Pass rates before anything was seen: 1 for the easiest, 0 for the hardest, between them by rank."""
    values, inverse = np.unique(difficulties, return_inverse=True)
    if len(values) == 1:
        return np.full(len(difficulties), target, np.float64)
    return 1.0 - inverse / (len(values) - 1)


def _require_same(state: Mapping[str, Any], **ours: Any) -> None:
    for key, value in ours.items():
        if state.get(key) != value:
            raise ValueError(
                f"the saved position is of another order of the data: {key} {state.get(key)!r}, not {value!r}"
            )
