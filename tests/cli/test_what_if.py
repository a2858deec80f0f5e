"""`rampcli plan --what-if`."""

import json
import shlex

import pytest


def test_a_comparison_has_one_row_per_value(succeed):
    lines = succeed("plan", "-f", "gpt3_5b", "--what-if", "trainer.num_nodes=8,16,12").splitlines()
    assert lines[0].split() == [
        "nodes",
        "GPUs",
        "batch",
        "accum",
        "memory",
        "samples",
        "steps",
        "tokens",
        "hours",
        "GPU-hours",
    ]
    assert lines[1].startswith(
        "trainer.num_nodes=8   8 8 8 8 8 8 8 8        64   2048      8  ~47GiB  133,965,568"
    )
    assert lines[2].startswith(
        "trainer.num_nodes=16  8 8 8 8 10 12 14 16   128   2048      4  ~47GiB  133,965,568"
    )
    assert lines[3].split() == ["trainer.num_nodes=12", "does", "not", "fit"]
    (reason,) = [line for line in lines[4:] if line]
    assert reason.startswith(
        "trainer.num_nodes=12 does not fit: model.global_batch_size=2048 does not divide into"
    )


def test_more_nodes_take_fewer_hours_and_as_many_gpu_hours(succeed):
    lines = succeed("plan", "-f", "llama3_8b", "--what-if", "trainer.num_nodes=1,2,4").splitlines()[
        1:
    ]
    hours, gpu_hours = zip(
        *([float(cell.replace(",", "")) for cell in line.split()[-2:]] for line in lines),
        strict=True,
    )
    assert hours == pytest.approx([hours[0], hours[0] / 2, hours[0] / 4], rel=0.001)
    assert gpu_hours == pytest.approx([gpu_hours[0]] * 3, rel=0.001)


def test_the_json_of_a_comparison_contains_each_plan(succeed, stages):
    words = ["-f", "gpt3_5b", "--what-if", "trainer.num_nodes=8,12,16", "--json"]
    small, wrong, large = json.loads(succeed("plan", *words))
    assert [row["words"] for row in (small, wrong, large)] == [
        f"trainer.num_nodes={nodes}" for nodes in (8, 12, 16)
    ]
    assert small["plan"]["stages"] == stages("-f", "gpt3_5b", "trainer.num_nodes=8")
    assert large["plan"]["stages"] == stages("-f", "gpt3_5b")
    assert (small["error"], large["error"], wrong["plan"]) == (None, None, None)
    assert "model.global_batch_size=2048 does not divide into" in wrong["error"]


def test_micro_batches_are_compared_only_with_a_throughput_for_each(rampcli, succeed):
    words = ["plan", "-f", "gpt3_5b", "--what-if", "data.micro_batch_size=1,16"]
    ended = rampcli(*words, "rampup.efficiency='1:9000 4:11500'")
    assert (ended.exit_code, ended.stdout) == (2, "")
    (remedy,) = [line for line in ended.stderr.splitlines() if line.lstrip().startswith("try:")]
    lines = succeed(*words, shlex.split(remedy.split("try:")[1])[0]).splitlines()
    assert "hours" in lines[0]
    assert "which is beyond the measured sizes" in lines[-1]


@pytest.mark.parametrize("json_wanted", [[], ["--json"]])
def test_a_comparison_without_any_plan_that_fits_is_refused(rampcli, json_wanted):
    ended = rampcli(
        "plan", "-f", "llama3_8b", "--what-if", "model.global_batch_size=510,511", *json_wanted
    )
    assert ended.exit_code == 2
    assert ended.stdout.count("does not divide into") == 2


@pytest.mark.parametrize("section", ["", "training."])
def test_a_compared_value_replaces_the_typed_one(succeed, stages, section):
    typed = f"{section}trainer.num_nodes=4"
    words = ["-f", "gpt3_5b", typed, "--what-if", "trainer.num_nodes=8", "--json"]
    (only,) = json.loads(succeed("plan", *words))
    assert only["plan"]["stages"] == stages("-f", "gpt3_5b", "trainer.num_nodes=8")


def test_options_of_a_group_and_ranges_and_lists_can_be_compared(succeed):
    def compared(what_if):
        return [
            row["words"]
            for row in json.loads(succeed("plan", "-f", "gpt3_5b", "--what-if", what_if, "--json"))
        ]

    assert compared("model=llama3_8b,gpt3_5b") == ["model=llama3_8b", "model=gpt3_5b"]
    assert compared("trainer.num_nodes=range(16,49,16)") == [
        f"trainer.num_nodes={nodes}" for nodes in (16, 32, 48)
    ]
    assert len(compared("model.rampup_batch_size=[256,256,10M],[1024,1024,10M],null")) == 3


def test_couplings_are_compared_by_what_they_set_in_each_stage(succeed):
    words = ("--what-if", "schedule.batch_coupling=none,sqrt", "model.rampup_batch_size=[4,4,800]")
    lines = succeed("plan", "-f", "llama3_tiny", "model.global_batch_size=8", *words).splitlines()
    assert lines[0].endswith("  lr factor")
    assert not {"beta2", "weight decay"} & {name.strip() for name in lines[0].split("  ")}
    assert [line.split("  ")[-1].strip() for line in lines[1:3]] == ["1", "0.707 1"]


def test_numbers_that_differ_look_different_and_equal_plans_are_named(succeed, rampcli):
    words = ("plan", "-f", "gpt3_5b", "--what-if")
    near = succeed(*words, "schedule.batch_coupling=0.6,0.6001").splitlines()
    assert near[1].split("  ")[-1] != near[2].split("  ")[-1]
    equal = succeed(*words, "schedule.batch_coupling=none,0.5,sqrt")
    assert "same for schedule.batch_coupling=0.5 and schedule.batch_coupling=sqrt" in equal
    zero = ("schedule.weight_decay_coupling=none,timescale", "optim.weight_decay=0")
    refused = rampcli(*words, *zero, "name='a b'")
    assert refused.exit_code == 2
    assert "are the same for each value" in refused.stderr
    assert f"--factory gpt3_5b {zero[1]} \"name='a b'\" {zero[0]}, which" in refused.stderr


@pytest.mark.parametrize("section", ["", "training."])
@pytest.mark.parametrize(
    ("key", "values"), [("model.micro_batch_size", "12"), ("model.data.seq_length", ["8", "16"])]
)
def test_keys_of_nemo_are_compared_over_its_files(section, key, values, nemo_tree, succeed, stages):
    what_if = f"--what-if=+{section}{key}={','.join(values)}"
    rows = json.loads(succeed("plan", *nemo_tree, f"+{key}=4", what_if, "--json"))
    alone = [stages(*nemo_tree, f"+{key}={value}") for value in values]
    assert [row["plan"]["stages"] for row in rows] == alone
    assert alone[0] != alone[1]


def test_a_variable_of_a_file_is_compared(succeed, stages, tmp_path):
    text = "defaults: [config, _self_]\nsize: 8\nmodel:\n  global_batch_size: ${size}\n"
    (tmp_path / "mine.yaml").write_text(f"{text}  rampup_batch_size: null\n")
    rows = json.loads(succeed("plan", "-f", "mine.yaml", "--what-if", "size=8,16", "--json"))
    alone = [stages("-f", "mine.yaml", f"size={size}") for size in (8, 16)]
    assert [row["plan"]["stages"] for row in rows] == alone


def test_a_compared_key_of_nemo_that_changes_nothing_is_refused_or_noted(
    rampcli, succeed, nemo_tree
):
    refused = rampcli("plan", *nemo_tree, "--what-if", "model.hidden_dropout=0,0.1")
    assert refused.exit_code == 2
    assert "give the same plan: model.hidden_dropout: no model here has dropout" in refused.stderr
    refused = rampcli("plan", *nemo_tree, "--what-if", "model.fp8=null,false")
    assert "model.fp8 changes no setting of the run" in refused.stderr
    left_out = succeed("plan", *nemo_tree, "--what-if", "model.hidden_dropout=0.1")
    assert "no model here has dropout; the plan leaves it out" in left_out
    unchanged = succeed("plan", *nemo_tree, "--what-if", "model.fp8=false")
    assert "note: model.fp8=false (command line) does not change the run here" in unchanged


def test_a_compared_key_that_no_file_has_is_refused_with_near_ones(rampcli, nemo_tree):
    refused = rampcli("plan", *nemo_tree, "--what-if", "model.optim.lrr=1,2")
    assert (refused.exit_code, "try:    optim.lr=" in refused.stderr) == (2, True)
