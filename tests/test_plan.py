"""A plan: the TPU compiler's program texts read by hand, and small models compiled for slices that are not here."""

import json

import pytest

from rlvr_jax.cli import main
from rlvr_jax.plan.chips import CHIPS, parse_slice
from rlvr_jax.plan.hlo import array_bytes, costs, trips
from rlvr_jax.plan.plan import NAMES, advice, link_seconds

pytest.importorskip("libtpu")

# A loop of 3 turns around one product and one gather; a gather that starts in one fusion and ends in another.
TEXT = """HloModule m

%cond (p: (s32[], f32[8,4])) -> pred[] {
  %limit = s32[]{:T(128)} constant(3)
  %other = s32[] constant(99)
  %p = (s32[], f32[8,4]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  ROOT %lt = pred[] compare(%i, %limit), direction=LT
}

%inner (a: f32[8,16], b: f32[16,4]) -> f32[8,4] {
  %a = f32[8,16]{1,0} parameter(0)
  %b = f32[16,4]{1,0} parameter(1)
  ROOT %dot = f32[8,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %g = f32[16,4]{1,0:T(8,128)} all-gather(%x), channel_id=1, replica_groups={{0,1}}, dimensions={0}
  %f = f32[8,4]{1,0} fusion(%y, %g), kind=kOutput, calls=%inner, backend_config={"estimated_cycles":"100"}
}

%start (q: bf16[4]) -> bf16[8] {
  %ag = bf16[8]{0} all-gather(%q), channel_id=2, replica_groups={{0,1}}, dimensions={0}
  ROOT %c = bf16[8]{0} custom-call(%ag), custom_call_target="AsyncCollectiveStart"
}

%beside (q: bf16[4]) -> bf16[8] {
  %ag2 = bf16[8]{0} all-gather(%q), channel_id=2, replica_groups={{0,1}}, dimensions={0}
}

ENTRY %main (z: f32[8,4]) -> f32[8,4] {
  %s = bf16[8]{0} fusion(%z), kind=kCustom, calls=%start, backend_config={"estimated_cycles":"7"}
  %t = bf16[8]{0} fusion(%s), kind=kOutput, calls=%beside, backend_config={"estimated_cycles":"20"}
  %w = (s32[], f32[8,4]) while(%init), condition=%cond, body=%body
  %r = f32[4,4]{1,0} reduce-scatter(%k), channel_id=3, replica_groups={{0,1}}, dimensions={0}
}
"""


def test_costs_by_hand():
    found = costs(TEXT, 2)
    assert found.cycles == 3 * 100 + 7 + 20
    # a turn gathers 16·4·4 bytes; the fusion's gather counts once, 8·2; a scatter takes 2·(4·4·4) in
    assert found.collective_bytes == {"all-gather": 3 * 256 + 16, "reduce-scatter": 128}
    assert found.product_flops == 3 * 2 * 8 * 4 * 16
    assert found.unknown_loops == () and found.kernels == 0


def test_a_loop_without_a_bound_counts_once_and_is_named():
    found = costs(TEXT.replace("ROOT %lt = pred[] compare(%i, %limit), direction=LT", "ROOT %lt = pred[] copy(%i)"), 2)
    assert found.cycles == 100 + 7 + 20 and found.unknown_loops == ("body",)


def test_turns():
    lines = ["%n = s32[] constant(5)", "ROOT %c = pred[] compare(%i, %n), direction=LE"]
    assert trips(lines) == 6 and trips(lines, start=2) == 4
    assert trips(["%n = s32[] constant(5)", "ROOT %c = pred[] compare(%n, %i), direction=GT"]) == 5
    assert array_bytes("(bf16[2,3]{1,0:T(8,128)(2,1)}, u32[])") == [12, 4]


def test_a_product_written_as_a_window():
    # [2, 5, 8] by [8, 28, 16] as 28 outputs of 28 taps over one entry: each meets it once, so 2·(2·5)·8·(28·16)
    window = "window={size=1x28 pad=0_0x27_27 rhs_reversal=0x1}"
    text = f"""ENTRY %m (x: f32[1]) -> f32[1] {{
  %a = bf16[2,5,8,1] parameter(0)
  %b = bf16[28,8,16,1] parameter(1)
  %c = bf16[2,5,16,28] convolution(%a, %b), {window}, dim_labels=0bf1_1io0->0bf1
}}
"""
    assert costs(text, 1).product_flops == 2 * (2 * 5) * 8 * (28 * 16)


def test_links_by_hand():
    # 4 chips: 3/4 of 100 GB over 100 GB/s one way; a sum left whole goes twice
    assert link_seconds({"all-gather": 100e9}, CHIPS["v5e"], 4) == pytest.approx(0.75)
    assert link_seconds({"all-reduce": 100e9}, CHIPS["v5e"], 4) == pytest.approx(1.5)


@pytest.mark.parametrize("name", ["v5e", "v5e:3x3", "v7:2x2", "v5p:8x8"])
def test_slices_that_are_not(name):
    with pytest.raises(ValueError, match="choose from|kinds:"):
        parse_slice(name)


CONFIG = """
from rlvr_jax.config import defaults
def get_config(estimator="dr_grpo"):
    config = defaults(estimator)
    config.tokenizer, config.prompts_per_step, config.group_size = "bytes", 4, 4
    config.model.width, config.model.hidden, config.model.heads, config.model.kv_heads = 256, 512, 4, 2
    config.model.head_size, config.model.dtype, config.model.remat = 128, "bfloat16", "block"
    config.sampling.prompt_length = config.sampling.completion_length = 64
    return config
"""


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "small.py"
    path.write_text(CONFIG)
    return str(path)


def plan_of(capsys, *arguments):
    status = main(["plan", *arguments, "--json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    return json.loads(captured.out)


def test_a_plan_of_a_small_model(config_file, capsys):
    plan = plan_of(capsys, f"--config={config_file}", "--slice=v5e:2x2")
    assert plan["chips"] == 4 and "estimate" in plan["kind"]
    keys = {"hbm_gib_per_chip", "fits", "flops_per_chip", "estimated_compute_s", "estimated_mfu", "collective_gib"}
    for name in NAMES:
        assert keys | {"compile_s"} <= set(plan[name]) and plan[name]["fits"] is True
        assert plan[name]["estimated_compute_s"] > 0
    moved = plan["update"]["collective_gib"]
    assert moved["all-gather"] > 0 and moved["reduce-scatter"] > 0
    step = plan["step"]
    assert step["total_s"] == pytest.approx(step["sample_s"] + step["score_s"] + step["update_s"], abs=2e-3)


def test_what_does_not_divide_is_refused(config_file, capsys):
    assert main(["plan", f"--config={config_file}", "--slice=v5e:8x8"]) == 2
    assert "cannot be spread evenly over 64 devices" in capsys.readouterr().err
    assert main(["plan", f"--config={config_file}", "--slice=v5e:2x2", "--only=sample"]) == 2
    assert "choose from" in capsys.readouterr().err


def test_advice_names_keys():
    from rlvr_jax.config import defaults

    split = {"parameters": 1.0, "optimiser": 2.0, "cache": 9.0, "activations": 30.0}
    plan = {"update": {"fits": False, "hbm_split_gib": split}, "sample_decode": {"fits": False, "hbm_split_gib": split}}
    lines = advice(defaults(), plan)
    assert "rows_at_once" in lines[0] and "remat" in lines[1] and "micro_batch_rows" in lines[1]
