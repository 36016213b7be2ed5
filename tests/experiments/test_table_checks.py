"""A table that could not be run or read is refused, by name, before anything runs."""

import dataclasses

import pytest
from synthetic_table import make_table, small

from experiments import table as tables
from experiments.checks import check, check_runnable, identity_of
from experiments.table import Claim, Measure, Panel, load, resolve, run_dir, run_keys, slug, table_names
from rlvr_jax.config import flatten

CLAIM = Claim("a", "b 2025", "c", "Dr. GRPO", "pass@1", "+")
MEASURE = Measure("pass@1", "rollout/pass@1")


def claims(**changes):
    return {"claims": (dataclasses.replace(CLAIM, **changes),)}


def measures(**changes):
    return {"measures": (dataclasses.replace(MEASURE, **changes),), "claims": ()}


def test_a_good_table_is_accepted():
    for table in (make_table(), small()):
        check(table)
        check_runnable(table)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"arms": {"GRPO": {}, "x": {"estimator.nam": "rloo"}}, "claims": ()},
            r"arm 'x': config.estimator.nam: .*'estimator.name'",
        ),
        ({"common": {"steps": 60, "step": 3}}, "common: config.step: no such key"),
        ({"common": {"steps": "many"}}, "common: config.steps='many': expected int"),
        ({"base": "configs/nowhere.py:grpo"}, "base='configs/nowhere.py:grpo'.*does not exist"),
        ({"arms": {"GRPO": {}, "x": {"estimator.name": "grpa"}}, "claims": ()}, "arm 'x'.*estimator.name='grpa'"),
        ({"arms": {"GRPO": {}, "again": {}}, "claims": ()}, "'GRPO' and 'again' are the same config"),
        (
            {"arms": {"GRPO": {}, "x": {"estimator.clip": "ppo(low=0.2, high=0.2)"}}, "claims": ()},
            "'GRPO' and 'x' are the same config",
        ),
        ({"columns": {"a": {}, "b": {"optimizer.kind": "sgd"}}}, "columns 'a' and 'b' are the same config"),
        ({"cases": {"a": {}, "b": {"group_size": 8}}}, "cases 'a' and 'b' are the same config"),
        ({"reference": "GRPo"}, r"reference='GRPo': not an arm. Did you mean 'GRPO'\?"),
        ({"seeds": (1,)}, "at least 2"),
        ({"seeds": (1, 2, 1)}, r"\[1\] more than once"),
        ({"seeds": (1, -2)}, "must be integers that are not negative"),
        ({"cases": {}}, "cases is empty"),
        ({"cases": {"": {}, "x": {"group_size": 4}}}, "the label '' is for a single one"),
        ({"arms": {"GRPO": {}, "grpo!": {"estimator.name": "rloo"}}, "claims": ()}, "both be the folder 'grpo'"),
        ({"arms": {"GRPO": {}, "panels": {"estimator.name": "rloo"}}, "claims": ()}, "'panels', which is taken"),
        ({"arms": {"GRPO": {}, "++": {"estimator.name": "rloo"}}, "claims": ()}, "no letter or digit"),
        ({"panels": (Panel("a b", "", "", dict), Panel("a-b", "", "", dict))}, "panels: 'a b' and 'a-b'"),
        (claims(arm="Dr GRPO"), r"arm='Dr GRPO': unknown. Did you mean 'Dr. GRPO'\?"),
        (claims(against="rloo"), "against='rloo': unknown"),
        (claims(against="Dr. GRPO"), "arm and against are both"),
        (claims(measure="pass@2"), r"measure='pass@2': unknown. Did you mean 'pass@1'\?"),
        (claims(cases=("easy",)), "cases='easy': unknown"),
        (claims(columns=("raw",)), "columns='raw': unknown"),
        (claims(direction="up"), "direction='up': unknown"),
        (claims(source=" "), "source=''"),
        (claims(text=""), "has no text"),
        (claims(direction="0"), "margin=None"),
        (claims(margin=0.1), "margin=0.1"),
        ({"measures": ()}, "measures is empty"),
        ({"measures": (MEASURE, MEASURE), "claims": ()}, r"\['pass@1'\] more than once"),
        ({"heatmaps": ("pass@2",)}, r"heatmaps='pass@2': no measure. Did you mean 'pass@1'\?.*'length of wrong'"),
        ({"heatmaps": ("pass@1", "pass@1")}, "heatmaps: 'pass@1' more than once"),
        (measures(kind="mean"), "kind='mean': choose from"),
        (measures(kind="at_equal"), "needs a value"),
        (measures(first=5, last=4), "last=4: must not be before first=5"),
        (measures(last=900), "step 900 is beyond the run's 60 steps"),
        (measures(better="more"), "better='more'"),
        (measures(smooth=0), "smooth=0"),
    ],
)
def test_refusals(changes, message):
    with pytest.raises(ValueError, match=f"table small: .*{message}"):
        check(small(**changes))


def test_a_config_that_its_program_refuses_is_refused_before_launching():
    table = small(arms={"GRPO": {}, "x": {"estimator.name": "rloo", "group_size": 1}}, claims=())
    check(table)
    with pytest.raises(ValueError, match="table small: x: config.group_size=1"):
        check_runnable(table)


def test_a_null_table_may_say_so():
    arms = {"GRPO": {}, "written out": {"estimator.clip": "ppo(low=0.2, high=0.2)"}}
    check(small(arms=arms, claims=(), allow_equal=True))
    plain, written = (resolve(small(arms=arms), "", arm, "", 3) for arm in arms)
    assert flatten(plain) != flatten(written)
    assert identity_of(plain) == identity_of(written)


def test_a_table_of_panels_needs_no_runs():
    panel = Panel("a", "A", "by arithmetic", dict)
    check(small(arms={}, measures=(), claims=(), seeds=(), curves=(), panels=(panel,)))


def test_later_differences_win_and_the_seed_is_set():
    table = small(
        common={"group_size": 4, "steps": 60},
        cases={"c": {"group_size": 6, "policy.width": 16}},
        arms={"GRPO": {}, "a": {"group_size": 12}},
        columns={"o": {"policy.width": 24}},
    )
    config = resolve(table, "c", "a", "o", 8)
    assert (config.group_size, config.policy.width, config.seed, config.steps) == (12, 24, 8, 60)
    assert resolve(table, "c", "GRPO", "o", 8).group_size == 6
    with pytest.raises(ValueError, match="arm='b': unknown"):
        resolve(table, "c", "b", "o", 8)


def test_places_and_order_of_runs(tmp_path):
    table = make_table()
    assert run_dir(tmp_path, table, "short answers", "λ-GRPO", "raw", 3) == (
        tmp_path / "synthetic/short-answers/lambda-grpo/raw/seed-3"
    )
    assert run_dir(tmp_path, small(), "", "Dr. GRPO", "", 3) == tmp_path / "small/dr.-grpo/seed-3"
    keys = run_keys(table)
    assert len(set(keys)) == len(keys) == 5 * 3 * 2 * 10
    assert [key.seed for key in keys] == sorted(key.seed for key in keys)
    assert slug("  ε = 0.2 / β ") == "epsilon-0.2-beta"


def test_tables_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "TABLES", tmp_path)
    (tmp_path / "small.py").write_text("from synthetic_table import small\nTABLE = small()\n")
    (tmp_path / "_helper.py").write_text("")
    (tmp_path / "other.py").write_text("from synthetic_table import small\nTABLE = small()\n")
    (tmp_path / "empty.py").write_text("")
    assert table_names() == ["empty", "other", "small"]
    assert load("small").name == "small"
    with pytest.raises(ValueError, match=r"table 'smal': there is none. Did you mean 'small'\? Choose from"):
        load("smal")
    with pytest.raises(ValueError, match="must be the file's name"):
        load("other")
    with pytest.raises(ValueError, match="defines no TABLE"):
        load("empty")
