"""Verdicts: every word and every corner of the rules on rows made to measure; what null and planted tables are told."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from experiments.verdict import Row, verdict
from rlvr_jax.diagnose.effects import effect, holm, smallest_detectable

NAN = math.nan
COLUMNS = ("raw", "matched", "adam")


def make(mean: float, half: float, n: int = 10, missing: int = 0):
    """An effect with this mean and half width of its 95 % interval."""
    shape = np.linspace(-1, 1, n)
    values = mean + shape / shape.std(ddof=1) * half * math.sqrt(n) / stats.t.ppf(0.975, n - 1)
    return effect(np.append(values, [NAN] * missing), np.zeros(n + missing))


def rows_of(places: dict) -> list[Row]:
    """{(case, column): (mean, half)} → rows, adjusted by Holm among themselves."""
    effects = [make(*numbers) for numbers in places.values()]
    return [Row(*place, one, p) for place, one, p in zip(places, effects, holm([one.p for one in effects]))]


def one_case(*numbers, case: str = "", columns=COLUMNS) -> dict:
    return {(case, column): pair for column, pair in zip(columns, numbers)}


YES, NO, REVERSE = (0.05, 0.01), (0.002, 0.01), (-0.05, 0.01)  # mean, half width


@pytest.mark.parametrize(
    "places, word",
    [
        (one_case(YES, YES, YES), "holds"),
        ({("", ""): YES}, "holds"),
        ({("easy", ""): YES, ("hard", ""): YES}, "holds"),
        (one_case(NO, NO, NO), "does not show here"),
        ({("", ""): NO}, "does not show here"),
        (one_case(REVERSE, REVERSE, REVERSE), "the reverse shows here"),
        (one_case(NO, REVERSE, NO), "does not show here, reversed when the column is matched"),
        (one_case(NO, REVERSE, REVERSE), "the reverse shows here"),
        # Gone under both controls, and the intervals exclude half of raw's 0.05.
        (one_case(YES, NO, NO), "is step size"),
        (one_case(YES, NO), "is step size"),
        (one_case(YES, (-0.004, 0.01), (0.0, 0.0)), "is step size"),
        # A residue: 0.012 ≤ 0.05/4, and 0.016 ≤ 0.05/2.
        (one_case(YES, (0.012, 0.004), NO), "is step size"),
        (one_case(YES, (0.012, 0.004), (0.012, 0.004)), "is step size"),
        (one_case(YES, (0.013, 0.004), NO), "holds only when the column is raw or matched"),
        (one_case(YES, (0.013, 0.004), (0.012, 0.004)), "holds"),
        # Not shown under Adam, but the interval reaches beyond half of raw's: absence is not proven.
        (one_case(YES, NO, (0.01, 0.02)), "holds only when the column is raw"),
        (one_case(YES, YES, NO), "holds only when the column is raw or matched"),
        (one_case(NO, YES, YES), "holds only when the column is matched or adam"),
        (one_case(YES, NO, REVERSE), "holds only when the column is raw, reversed when the column is adam"),
        # Step size cannot be said without raw, without a control, or where a column of its own shows the claim.
        (one_case(YES, NO, columns=("sgd", "matched")), "holds only when the column is sgd"),
        (one_case(YES, NO, columns=("raw", "lion")), "holds only when the column is raw"),
        (one_case(YES, NO, YES, columns=("raw", "adam", "lion")), "holds only when the column is raw or lion"),
        (one_case(YES, NO, NO, columns=("raw", "adam", "lion")), "is step size"),
    ],
)
def test_words_within_a_case(places, word):
    assert verdict("+", rows_of(places)).word == word


@pytest.mark.parametrize(
    "easy, hard, word",
    [
        ((YES, YES, YES), (NO, NO, NO), "holds only when easy"),
        ((NO, NO, NO), (YES, YES, YES), "holds only when hard"),
        ((YES, YES, YES), (YES, YES, NO), "holds only when easy or hard (raw, matched)"),
        ((YES, YES, NO), (YES, YES, NO), "holds only when the column is raw or matched"),
        ((YES, NO, NO), (NO, NO, NO), "is step size"),
        ((YES, NO, NO), (YES, (0.012, 0.004), NO), "is step size"),
        ((YES, YES, YES), (YES, NO, NO), "holds only when easy"),  # hard is step size
        ((YES, YES, YES), (YES, (0.012, 0.004), (0.012, 0.004)), "holds only when easy"),  # so it is with a residue
        ((YES, YES, YES), (REVERSE, REVERSE, REVERSE), "holds only when easy, reversed when hard"),
        ((YES, YES, NO), (REVERSE, NO, NO), "holds only when easy (raw, matched), reversed when hard (raw)"),
        ((YES, NO, NO), (REVERSE, REVERSE, NO), "holds only when easy (raw), reversed when hard (raw, matched)"),
        ((REVERSE, NO, NO), (NO, NO, NO), "does not show here, reversed when easy (raw)"),
        ((REVERSE, REVERSE, NO), (NO, NO, REVERSE), "the reverse shows here"),
        ((YES, NO, (0.01, 0.02)), (NO, NO, NO), "holds only when easy (raw)"),
        ((YES, YES, YES), (YES, NO, REVERSE), "holds only when easy or hard (raw), reversed when hard (adam)"),
    ],
)
def test_words_over_cases(easy, hard, word):
    places = one_case(*easy, case="easy") | one_case(*hard, case="hard")
    assert verdict("+", rows_of(places)).word == word
    mirrored = {place: (-mean, half) for place, (mean, half) in places.items()}
    assert verdict("-", rows_of(mirrored)).word == word


@pytest.mark.parametrize(
    "places, margin, word",
    [
        (one_case(NO, NO, NO), 0.02, "holds"),
        (one_case((0.01, 0.005), NO), 0.02, "holds"),  # significant, and small enough to count as none
        (one_case((0.0, 0.0), (0.0, 0.0)), 0.0, "holds"),
        (one_case(NO, NO, (0.002, 0.02)), 0.02, "not shown to be equal"),
        (one_case(NO, (0.02, 0.01)), 0.02, "not shown to be equal"),  # a difference shows, perhaps a negligible one
        (one_case(NO, YES), 0.02, "the reverse shows here"),
        (one_case(REVERSE, YES), 0.02, "the reverse shows here"),
    ],
)
def test_claims_of_no_difference(places, margin, word):
    assert verdict("0", rows_of(places), margin=margin).word == word


def test_sentences_have_the_numbers():
    say = lambda direction, places, **more: verdict(direction, rows_of(places), unit="pass@1", **more).sentence
    assert say("+", {("", ""): YES}) == (
        "The claimed difference shows: +0.050 pass@1 [+0.040, +0.060] (10 seeds, adjusted p < 0.001)."
    )
    assert say("+", one_case(YES, (0.05, 0.03), YES)) == (
        "The claimed difference shows in all 3 comparisons, most weakly +0.050 pass@1 [+0.020, +0.080] under matched "
        "norms (10 seeds, adjusted p = 0.004)."
    )
    assert say("+", one_case(YES, (0.012, 0.004), NO)) == (
        "The claimed difference of +0.050 pass@1 [+0.040, +0.060] with raw steps (10 seeds, adjusted p < 0.001) is "
        "step size: a residue of +0.012 pass@1 [+0.008, +0.016] remains under matched norms."
    )
    assert say("+", one_case(YES, NO, NO, case="easy") | one_case(NO, NO, NO, case="hard")) == (
        "The claimed difference of +0.050 pass@1 [+0.040, +0.060] for easy with raw steps (10 seeds, adjusted p < "
        "0.001) is step size: with that controlled, it is no more than +0.002 pass@1 [-0.008, +0.012] for easy under "
        "matched norms (10 seeds, adjusted p = 1.000); in the other cases it does not show at all."
    )
    # sd = 0.01·√10/2.262157 = 0.0139790; λ(10) = 3.149633: 0.0139790·3.149633/√10 = 0.013923
    assert say("+", {("", ""): NO}) == (
        "The claimed difference does not show: +0.002 pass@1 [-0.008, +0.012] (10 seeds, adjusted p = 0.662); a single "
        "test finds a true one of 0.014 four times in five."
    )
    assert "0.014 to 0.028, depending on the comparison, four times in five." in say("+", one_case(NO, (0.002, 0.02)))
    assert say("-", {("", ""): YES}).startswith("The opposite of the claim shows: +0.050 pass@1 [+0.040, +0.060] (10")
    assert say("-", one_case(YES, NO)).endswith(
        "and is step size: with that controlled, it is no more than +0.002 pass@1 [-0.008, +0.012] under matched norms "
        "(10 seeds, adjusted p = 0.662)."
    )
    same = say("+", {("", ""): (0.0, 0.0)})
    assert same.endswith("+0.000 pass@1 [+0.000, +0.000] (10 seeds, adjusted p = 1.000), the same on every seed.")


def test_sentences_of_mixed_verdicts_and_equality():
    say = lambda direction, places, **more: verdict(direction, rows_of(places), **more).sentence
    mixed = say("+", one_case(YES, YES, NO, case="easy") | one_case(REVERSE, NO, NO, case="hard"))
    assert mixed.startswith("The claimed difference shows in 2 of 6 comparisons, most clearly +0.050 [+0.040, +0.060] ")
    assert "; the reverse shows in 1, most clearly -0.050 [-0.060, -0.040] for hard with raw steps (" in mixed
    assert "; where nothing shows, the interval that reaches furthest is +0.002 [-0.008, +0.012] for " in mixed
    assert "ruled out" not in mixed  # shown under matched norms
    steps = say("+", one_case(YES, YES, YES, case="easy") | one_case(YES, NO, NO, case="hard"))
    assert "; for hard it is step size: with that controlled, it is no more than +0.002" in steps
    assert say("+", one_case(YES, NO, (0.01, 0.02))).endswith(", so that step size is not ruled out.")
    assert " +0.002 [-0.008, +0.012] in column b (10 seeds, " in say("+", one_case(YES, NO, columns=("a", "b")))
    within = say("0", one_case(NO, (0.001, 0.02)), margin=0.03)
    assert "lies within ±0.030 in all 2 comparisons, reaching furthest with +0.001 [-0.019, +0.021] under" in within
    assert say("0", {("", ""): NO}, margin=0.01) == (
        "A difference of up to 0.012 is still allowed where ±0.010 counts as none: +0.002 [-0.008, +0.012] (10 seeds, "
        "adjusted p = 0.662)."
    )
    beyond = say("0", one_case(NO, YES), margin=0.01)
    assert beyond.startswith("The arms differ by more than 0.010 in 1 of 2 comparisons, most clearly +0.050 [+0.040, ")


def test_small_numbers_are_not_written_as_zero():
    rows = rows_of({("", ""): (0.00005, 0.00001)})
    assert "+5e-05 [+4e-05, +6e-05]" in verdict("+", rows).sentence
    assert "+0.00005 [+0.00004, +0.00006]" in verdict("+", rows, digits=5).sentence
    assert "+12 tokens [+10, +14]" in verdict("+", rows_of({("", ""): (12.0, 2.0)}), "tokens", digits=0).sentence


def test_no_verdict_without_an_interval():
    lone = effect([1.0, NAN, NAN], [0.0, 0.0, 0.0])
    rows = [*rows_of(one_case(YES, YES)), Row("", "adam", lone, NAN)]
    for direction, margin in (("+", None), ("-", None), ("0", 1.0)):
        found = verdict(direction, rows, margin=margin)
        assert found.word == "cannot be judged"
        assert found.sentence.startswith(
            "Under Adam, only 1 of 3 pairs of seeds could be measured; of those that can, "
        )
        assert (
            "the clearest is +0.050 [+0.040, +0.060] with raw steps (10 seeds, adjusted p < 0.001)." in found.sentence
        )
    assert verdict("+", [Row("", "", lone, NAN)]).sentence == "Only 1 of 3 pairs of seeds could be measured."
    both = verdict("+", [Row("easy", "", lone, NAN), Row("hard", "", lone, NAN)]).sentence
    assert both.startswith("For easy, only 1 of 3 pairs") and both.endswith(
        "2 of 2 comparisons in all cannot be judged."
    )


@pytest.mark.parametrize("n, missing, word", [(5, 5, "holds"), (4, 5, "cannot be judged"), (9, 1, "holds")])
def test_half_of_the_pairs_must_be_measured(n, missing, word):
    one = make(0.05, 0.01, n, missing)
    found = verdict("+", [Row("", "", one, one.p)])
    assert found.word == word
    assert f"{n} of {n + missing} " in found.sentence


@pytest.mark.parametrize("n, word", [(2, "cannot be judged"), (5, "cannot be judged"), (6, "holds")])
def test_equal_differences_need_six_seeds(n, word):
    one = effect(np.arange(n) + 3, np.arange(n))
    assert verdict("+", [Row("", "", one, one.p)]).word == word
    assert verdict("0", [Row("", "", one, one.p)], margin=5).word == word
    same = effect(np.arange(n), np.arange(n))
    assert verdict("0", [Row("", "", same, same.p)], margin=0).word == "holds"


def test_the_adjusted_p_decides():
    one = make(0.05, 0.045)
    assert one.p < 0.05
    assert verdict("+", [Row("", "", one, 0.06)]).word == "does not show here"
    assert verdict("-", [Row("", "", one, 0.06)]).word == "does not show here"
    assert verdict("0", [Row("", "", one, 0.06)], margin=0.001).word == "not shown to be equal"
    assert verdict("0", [Row("", "", one, 0.04)], margin=0.001).word == "the reverse shows here"


ROWS = st.dictionaries(
    st.tuples(st.sampled_from(["easy", "hard"]), st.sampled_from([*COLUMNS, "lion"])),
    st.tuples(st.floats(-0.1, 0.1), st.floats(0.001, 0.1)),
    min_size=1,
)


@given(ROWS, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_any_rows_get_one_of_the_words(places, random):
    rows = rows_of(places)
    found = verdict("+", rows)
    shown = [row.p < 0.05 and row.effect.mean > 0 for row in rows]
    reverse = [row.p < 0.05 and row.effect.mean < 0 for row in rows]
    mixed = ("holds only when", "does not show here, reversed when")
    kind = next((word for word in mixed if found.word.startswith(f"{word} ")), found.word)
    assert kind in ("holds", "is step size", "does not show here", "the reverse shows here", *mixed)
    assert any(shown) == (kind in ("holds", "holds only when", "is step size"))
    assert (kind == "the reverse shows here") == (not any(shown) and 0 < len(rows) <= 2 * sum(reverse))
    assert (kind == mixed[1]) == (not any(shown) and 0 < 2 * sum(reverse) < len(rows))
    assert kind != "holds" or all(shown)
    assert (", reversed when " in found.word) == (any(reverse) and kind != "the reverse shows here")
    assert found.sentence.endswith(".") and "\n" not in found.sentence and "nan" not in found.sentence
    random.shuffle(rows)
    other = verdict("+", rows)
    assert other.word == found.word or kind in mixed  # the order of the names is the table's


def words_on(tables: int, planted: float, cases: str, seed: int) -> Counter:
    """Words for claims of these cases × 3 columns × 10 seeds, each a family of its own."""
    rng = np.random.default_rng(seed)
    places = [(case, column) for case in cases for column in COLUMNS]
    a, b = (rng.normal(0.5, 0.05, (tables, len(places), 10)) for _ in "ab")
    found = Counter()
    for left, right in zip(a + planted, b):
        effects = [effect(*pair) for pair in zip(left, right)]
        rows = [Row(*place, one, p) for place, one, p in zip(places, effects, holm([one.p for one in effects]))]
        found[verdict("+", rows).word.split(" when ")[0]] += 1
    return found


def test_words_on_null_tables():
    # Any word but "does not show here" is a family-wise error. Measured: 950, "holds only when" 30, the reverse 20.
    found = words_on(1000, 0.0, "pqrs", seed=11)
    wrong = 1000 - found["does not show here"]
    assert wrong / 1000 < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000), found
    one_sided = wrong - found["does not show here, reversed"]  # half of the errors have the claimed sign
    assert one_sided / 1000 < 0.025 + 3 * math.sqrt(0.025 * 0.975 / 1000), found
    assert found["holds"] == 0


def test_words_on_planted_tables():
    detectable = smallest_detectable(0.05 * math.sqrt(2), 10)
    found = words_on(
        100, 2 * detectable, "pqrs", seed=12
    )  # twice that in every row: shown in every row, after Holm too
    assert found["holds"] > 90 and found["holds"] + found["holds only"] == 100, found
    # Alike in all columns and found four times in five: a control that misses it by chance is no absence.
    assert words_on(300, detectable, "p", seed=1)["is step size"] <= 3


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda rows: verdict("up", rows), "direction = 'up'"),
        (lambda rows: verdict("+", []), "rows is empty"),
        (lambda rows: verdict("+", rows + rows), "column 'raw' 2 times"),
        (lambda rows: verdict("+", [rows[0]._replace(p=1.5)]), "p = 1.5"),
        (lambda rows: verdict("+", [rows[0]._replace(p=rows[0].effect.p / 2)]), "the effect's own"),
        (lambda rows: verdict("0", rows), "margin = None"),
        (lambda rows: verdict("0", rows, margin=-0.1), "margin = -0.1"),
        (lambda rows: verdict("0", rows, margin=NAN), "margin = nan"),
        (lambda rows: verdict("+", rows, margin=0.1), "others take none"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(rows_of(one_case(YES, NO)))
