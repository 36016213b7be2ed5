"""Orders of problems: proportions, epochs, weights by pass rate, and going on from a saved position exactly."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from rlvr_jax.mixture import Curriculum, Mixture

SETS = {"a": range(10), "b": range(10, 14), "c": range(14, 15)}


def through_json(state):
    return json.loads(json.dumps(state))


def test_proportions_hold_at_every_moment():
    weights = {"a": 5, "b": 3, "c": 2}
    order = Mixture(SETS, weights, seed=0)
    counts, name_of = Counter(), {place: name for name, places in SETS.items() for place in places}
    for draw, place in enumerate(order.next(1000), 1):
        counts[name_of[place]] += 1
        for name, weight in weights.items():
            assert abs(counts[name] - draw * weight / 10) <= 2
    assert counts == {"a": 500, "b": 300, "c": 200}


def test_by_hand():
    # shares ½, ½: the first set first, then the one behind, in turns
    order = Mixture({"x": [7], "y": [9]}, {"x": 1, "y": 1}, seed=3)
    assert order.next(4) == [7, 9, 7, 9]
    # shares ¾, ¼. Deficits at draw n are ¾n − taken, ¼n − taken: .75/.25 x, .5/.5 x (tie: first), .25/.75 y, 1/0 x
    assert Mixture({"x": [7], "y": [9]}, {"x": 3, "y": 1}, seed=3).next(4) == [7, 7, 9, 7]


def test_every_problem_once_an_epoch_and_every_epoch_another_order():
    drawn = [place for place in Mixture(SETS, {"a": 1, "b": 1, "c": 1}, seed=1).next(60) if place < 10]
    first, second = drawn[:10], drawn[10:20]
    assert sorted(first) == sorted(second) == list(range(10)) and first != second
    # without weights: by size, so that all sets end their epochs together
    assert sorted(Mixture(SETS, seed=1).next(15)) == list(range(15))
    assert Mixture(SETS, seed=1).next(30) != Mixture(SETS, seed=2).next(30)
    assert Mixture(SETS, seed=1).next(30) == Mixture(SETS, seed=1).next(30)


@pytest.mark.parametrize("before", [0, 1, 7, 29])
def test_a_restored_mixture_goes_on_exactly(before):
    make = lambda: Mixture(SETS, {"a": 1, "b": 2, "c": 0.5}, seed=4)
    straight = make()
    straight.next(before)
    state = through_json(straight.get_state())
    again = make()
    again.next(3)  # wherever it was
    again.set_state(state)
    assert again.next(50) == straight.next(50)


def test_what_cannot_be_mixed_is_refused():
    for arguments, says in [
        (({"a": []},), "the set 'a' has no problems"),
        ((SETS, {"a": 1}), r"name exactly the sets \['a', 'b', 'c'\]"),
        ((SETS, {"a": 1, "b": 0, "c": 1}), "b=0; must be a number above 0"),
        ((SETS, {"a": 1, "b": math.nan, "c": 1}), "b=nan"),
    ]:
        with pytest.raises(ValueError, match=says):
            Mixture(*arguments, seed=0)
    with pytest.raises(ValueError, match="of another order of the data: seed 0, not 1"):
        Mixture(SETS, seed=1).set_state(Mixture(SETS, seed=0).get_state())
    with pytest.raises(ValueError, match="of the sets"):
        Mixture(SETS, seed=0).set_state(Mixture({"z": [1]}, seed=0).get_state())


def test_weights_by_hand():
    order = Curriculum([0, 5, 10], seed=0, target=0.5, width=0.5, floor=0.1, decay=0.5, prior=1.0)
    # before anything is seen: 1, ½, 0; exp(−½²/(2·½²)) = e^(−½)
    assert order.pass_rates().tolist() == [1.0, 0.5, 0.0]
    edge = 0.1 + 0.9 * math.exp(-0.5)
    assert order.weights() == pytest.approx([edge, 1.0, edge])
    order.observe([2, 2], [0.25, 1.0])
    # sum ½·0.25 + 1 = 1.125, count 1.5; with the prior 0 counted once: 1.125 / 2.5
    assert order.pass_rates() == pytest.approx([1.0, 0.5, 0.45])
    order.observe([1], [math.nan])
    assert order.pass_rates()[1] == 0.5
    assert Curriculum([3, 3], seed=0, target=0.3).pass_rates().tolist() == [0.3, 0.3]


def test_draws_follow_the_weights():
    """4,000 single draws of 4 problems: counts within 5 standard errors of their weights."""
    order = Curriculum([0, 1, 2, 3], seed=9, floor=0.2, width=0.3)
    counts = Counter(order.next(1)[0] for _ in range(4000))
    shares = order.weights() / order.weights().sum()
    for place, share in enumerate(shares):
        assert abs(counts[place] / 4000 - share) < 5 * math.sqrt(share * (1 - share) / 4000)


def test_a_batch_repeats_nothing_and_moves_with_the_policy():
    """A policy whose pass rate rises from the easy to the hard: the mean difficulty of what is drawn rises after it."""
    difficulties = np.linspace(0, 1, 200)
    order, means = Curriculum(difficulties, seed=2, floor=0.02), []
    for step in range(120):
        batch = order.next(16)
        assert len(set(batch)) == 16
        skill = 0.2 + 0.6 * step / 120
        order.observe(batch, 1 / (1 + np.exp(20 * (difficulties[batch] - skill))))
        means.append(difficulties[batch].mean())
    assert np.mean(means[80:]) > np.mean(means[20:50]) + 0.1


@pytest.mark.parametrize("before", [0, 1, 20])
def test_a_restored_curriculum_goes_on_exactly(before):
    def run(order, steps):
        drawn = []
        for _ in range(steps):
            batch = order.next(5)
            order.observe(batch, [(place % 7) / 7 for place in batch])
            drawn.append(batch)
        return drawn

    make = lambda: Curriculum(np.arange(40) % 9, seed=6)
    straight, again = make(), make()
    run(straight, before)
    again.set_state(through_json(straight.get_state()))
    assert run(again, 30) == run(straight, 30)


def test_a_curriculum_that_cannot_be_is_refused():
    for arguments, says in [
        ({"difficulties": []}, "there are no problems"),
        ({"difficulties": [1], "target": 2}, r"target=2; must be in \[0, 1\]"),
        ({"difficulties": [1], "width": 0}, "width=0; must be in"),
        ({"difficulties": [1], "decay": math.nan}, "decay=nan"),
    ]:
        with pytest.raises(ValueError, match=says):
            Curriculum(**arguments, seed=0)
    with pytest.raises(ValueError, match="3 different problems were asked for, there are 2"):
        Curriculum([1, 2], seed=0).next(3)
    with pytest.raises(ValueError, match="problems 2, not 3"):
        Curriculum([1, 2, 3], seed=0).set_state(Curriculum([1, 2], seed=0).get_state())
