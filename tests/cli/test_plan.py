"""`rampcli plan`: JSON, dialects, measured throughput and plots."""

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import pytest

from plans import COUNTS, OF_A_FLEET
from rampcli import llm
from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.files.guarded_folder import replace_file
from rampcli.planning.resolve import resolve
from rampcli.report.plan_json import plan_json
from rampcli.runs.directory import RunDirectory
from run_files import metrics_row

STAGE = (
    *(*COUNTS, *OF_A_FLEET, "memory_bytes", "seconds", "seconds_from"),
    *("lr_factor", "beta2", "weight_decay"),
)
FOREIGN_ALONE = ("data.seq_length=", "max_target_length=", "steps=")
"""Words of other systems for settings that the recipe already has."""
DIALECTS = [
    ("NeMo 2", "gpt3_5b", ()),
    (
        "NeMo 2",
        "llama3_8b",
        (
            "model.rampup_batch_size=[256,128,50M]",
            "model.global_batch_size=1024",
            "trainer.num_nodes=16",
        ),
    ),
    ("NeMo 2", "llama3_8b", ("parallel.tensor_parallel_size=2", "data.micro_batch_size=4")),
    ("NeMo 2", "llama3_tiny", ()),
    ("Megatron Bridge", "gpt3_5b", ()),
    ("Megatron Bridge", "llama3_70b", ("trainer.num_nodes=8", "trainer.max_steps=100")),
    ("MaxText", "llama3_8b", ()),
    ("MaxText", "llama3_8b", ("per_device_batch_size=4", "gradient_accumulation_steps=2")),
    ("MaxText", "llama3_8b", ("trainer.num_nodes=8", "data.micro_batch_size=2")),
    (
        "MaxText",
        "llama3_8b",
        (
            "trainer.num_nodes=8",
            "parallel.context_parallel_size=1",
            "parallel.tensor_parallel_size=4",
            "parallel.pipeline_parallel_size=2",
            "parallel.data_parallel_shard_size=4",
            "data.micro_batch_size=2",
        ),
    ),
    (
        "MaxText",
        "gpt3_5b",
        (
            "per_device_batch_size=16",
            "enable_rampup_batch_size=true",
            "per_device_batch_size_start=4",
            "per_device_batch_size_increment=2",
            "global_rampup_samples=5000",
            "data.micro_batch_size=null",
        ),
    ),
]


def test_json_has_the_documented_keys_and_nothing_else_is_printed(succeed):
    plan = json.loads(succeed("plan", "--factory", "gpt3_5b", "--json", "trainer.max_steps=null"))
    assert list(plan) == [
        *("global_batch_size", "semantics", "sequence_length", "restarts_always", "stages"),
        *("seconds", "parameters", "embedding_parameters", "gradient_reduction", "compilation"),
        *("corpora", "retuning", "notes"),
    ]
    assert (plan["global_batch_size"], plan["semantics"], plan["sequence_length"]) == (
        2048,
        "megatron",
        2048,
    )
    assert {tuple(stage) for stage in plan["stages"]} == {STAGE}
    assert [stage["stage"] for stage in plan["stages"]] == list(range(8))
    assert plan["stages"][4].pop("memory_bytes") > 40 * 2**30
    assert plan["stages"][4].pop("seconds") == pytest.approx(
        1428480 * 2048 / (80 * 12_119), rel=1e-3
    )
    assert plan["stages"][4] == {
        "stage": 4,
        "global_batch_size": 1280,
        "first_sample": 5714944,
        "samples": 1428480,
        "first_step": 11627,
        "steps": 1116,
        "num_nodes": 10,
        "world_size": 80,
        "data_parallel_size": 80,
        "micro_batch_size": 4,
        "accumulate_grad_batches": 4,
        "seconds_from": "declared",
        "lr_factor": 1.0,
        "beta2": None,
        "weight_decay": None,
    }
    assert (plan["stages"][-1]["steps"], plan["stages"][-1]["samples"]) == (None, None)


def test_equal_plans_print_equal_json(succeed):
    assert succeed("plan", "-f", "gpt3_5b", "--json") == succeed(
        "plan", "-f", "gpt3_5b(num_nodes=16)", "--json"
    )


def pasted(words):
    return [word for word in words if not word.startswith(FOREIGN_ALONE)]


@pytest.mark.parametrize(
    ("system", "recipe", "words"),
    DIALECTS,
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_pasted_words_of_another_system_give_the_same_stages(
    succeed, stages, system, recipe, words
):
    dialect = json.loads(succeed("plan", "-f", recipe, *words, "--dialects", "--json"))[system]
    unsaid_by_all = [
        word
        for word in words
        if word.startswith("trainer.num_nodes=") and system in {"MaxText", "Megatron Bridge"}
    ]
    back = stages("-f", recipe, *unsaid_by_all, *pasted(dialect["words"]))
    batches = (
        "global_batch_size",
        "first_sample",
        "steps",
        "num_nodes",
        "world_size",
        "data_parallel_size",
    )
    assert [[stage[name] for name in batches] for stage in back] == [
        [stage[name] for name in batches] for stage in stages("-f", recipe, *words)
    ]
    if not dialect["unsaid"]:
        here = stages("-f", recipe, *words)
        for stage in (*back, *here):  # other systems do not name every setting that it depends on
            del stage["memory_bytes"], stage["seconds"]
        assert back == here


def test_dialects_are_printed_as_lines_to_paste_under_their_names(succeed):
    lines = succeed("plan", "-f", "gpt3_5b", "--dialects").splitlines()
    found = json.loads(succeed("plan", "-f", "gpt3_5b", "--dialects", "--json"))
    assert (
        [line[2:] for line in lines if re.match(r"# \S", line)]
        == list(found)
        == ["NeMo 1", "NeMo 2", "Megatron Bridge", "Megatron-LM", "MaxText"]
    )
    for name, dialect in found.items():
        assert shlex.split(lines[lines.index(f"# {name}") + 1]) == dialect["words"]
    unsaid = [
        line.removeprefix("#   not the same: ")
        for line in lines
        if line.startswith("#   not the same: ")
    ]
    assert unsaid == [reason for dialect in found.values() for reason in dialect["unsaid"]]


def test_the_words_of_nemo_and_megatron_are_as_documented_there(succeed):
    found = json.loads(succeed("plan", "-f", "gpt3_5b", "--dialects", "--json"))
    assert {"model.rampup_batch_size=[256,256,10000000]", "model.encoder_seq_length=2048"} <= set(
        found["NeMo 1"]["words"]
    )
    assert {"data.rampup_batch_size=[256,256,10000000]", "data.seq_length=2048"} <= set(
        found["NeMo 2"]["words"]
    )
    megatron = " ".join(found["Megatron-LM"]["words"])
    assert (
        "--micro-batch-size 4 --global-batch-size 2048 --rampup-batch-size 256 256 10000000"
        in megatron
    )
    assert "--train-samples 133965568" in megatron


@pytest.fixture
def earlier(tmp_path):
    """Returns a run directory of llama3_tiny in which every GPU made 1000 tokens per second."""
    run = RunDirectory(tmp_path / "earlier")
    run.path.mkdir()
    replace_file(run.config, snapshot.to_yaml(resolve(llm.llama3_tiny.pretrain_recipe()).config))
    for stage, (world, accumulate) in enumerate([(1, 1), (1, 2), (1, 3), (2, 2)]):
        for tokens_per_s in [1.0, 1.0, 1.0, 900.0 * world, 1000.0 * world, 1100.0 * world]:
            row = metrics_row(
                stage=stage,
                world_size=world,
                accumulate_grad_batches=accumulate,
                global_batch_size=4 * world * accumulate,
                tokens_per_s=tokens_per_s,
            )
            run.append_row(run.metrics, row)
    for lost_s in (2.0, 9.0, 4.5):
        run.append_event("boundary", lost_s=lost_s)
    return run


def test_hours_are_computed_from_the_throughput_of_an_earlier_run(succeed, earlier):
    printed = succeed(
        "plan",
        "-f",
        "llama3_tiny",
        "--measured",
        earlier.path.name,
        "trainer.max_samples=7200000",
        "rampup.restart_s=0",
    )
    total = next(line for line in printed.splitlines() if line.startswith("total")).split()
    samples, gpu_hours = (float(total[index].replace(",", "")) for index in (1, 5))
    assert gpu_hours == pytest.approx(samples * 128 / 1000 / 3600, rel=0.01)
    assert "measured in earlier" in next(
        line for line in printed.splitlines() if line.startswith("hours: ")
    )
    assert "hours" not in succeed("plan", "-f", "llama3_tiny")


def test_measured_throughput_applies_to_other_nodes_and_comparisons(succeed, earlier):
    words = [
        "-f",
        "llama3_tiny",
        "--measured",
        earlier.path.name,
        "rampup.restart_s=0",
        "model.rampup_batch_size=null",
    ]
    lines = succeed(
        "plan", *words, "--what-if", "trainer.num_nodes=1,2,4", "trainer.max_samples=7200000"
    ).splitlines()[1:4]
    # Four micro batches per step, as on one node, were not measured.
    hours = [line.split()[-2] for line in lines]
    assert hours[0] == "?"
    assert [float(one) for one in hours[1:]] == pytest.approx([128, 64], rel=0.01)


def test_plans_with_measured_hours_or_a_grown_batch_show_how_often_texts_are_read(
    succeed, earlier, tmp_path
):
    (tmp_path / "a.txt").write_text("words " * 2000)
    words = ("-f", "llama3_tiny", "data=text", "data.path=a.txt", "trainer.val_samples=0")
    constant = ("model.rampup_batch_size=null", "schedule.decay_style=cosine")

    def reads(*options: str) -> list[str]:
        lines = succeed("plan", *words, *constant, *options).splitlines()
        return [line for line in lines if "read" in line and "a.txt" in line]

    assert len(reads()) == 2
    assert reads("--measured", earlier.path.name) == reads()
    grown = reads("--seesaw")  # it ends a few samples later
    assert [line.partition(" samples")[0] for line in grown] == [
        line.partition(" samples")[0] for line in reads()
    ]


def test_hours_of_sizes_that_were_not_measured_are_unknown(succeed, earlier):
    words = ["-f", "llama3_tiny", "--measured", earlier.path.name, "trainer.num_nodes=1"]
    sizes = "data.micro_batch_size=1,2,4,8"
    batch = ("model.rampup_batch_size=null", "model.global_batch_size=8")
    printed = succeed("plan", *words, *batch, "--what-if", sizes)
    rows = [line.split() for line in printed.splitlines() if line.startswith("data.")]
    assert [row[-2] == "?" for row in rows] == [True, True, False, True]
    assert "no throughput was measured for 1 x 8, 2 x 4 and 8 x 1 (micro batch" in printed
    found = json.loads(succeed("plan", *words, *batch, "data.micro_batch_size=1", "--json"))
    assert (found["seconds"], found["stages"][0]["seconds"]) == (None, None)
    assert found["stages"][0]["seconds_from"] == "unknown"


def test_the_time_of_a_restart_is_measured_unless_it_is_typed(succeed, earlier):
    words = ["plan", "-f", "llama3_tiny", "--measured", earlier.path.name]
    assert "3 restarts of 4.5 s (measured in earlier)" in succeed(*words)
    assert "3 restarts of 11 s (command line)" in succeed(*words, "rampup.restart_s=11")


def test_each_phase_has_measured_hours_or_a_note(succeed, earlier):
    phases = ["phases.short.until=20_000", "phases.short.data.sequence_length=64"]
    phases.append("phases.main.until=40_000")
    words = ["plan", "-f", "llama3_tiny", "--measured", earlier.path.name, *phases]
    printed = succeed(*words)
    assert "hours: phase main: rampup.efficiency (measured in earlier); the total" in printed
    assert "1 restart of 4.5 s (measured in earlier)" in printed
    assert "note: phase short was not measured: earlier had data.sequence_length=128" in printed
    stages = json.loads(succeed(*words, "--json"))["stages"]
    assert [stage["seconds"] is None for stage in stages] == [True, False]


def test_several_runs_are_combined_and_tell_how_fast_other_micro_batches_are(
    succeed, earlier, tmp_path
):
    other = RunDirectory(tmp_path / "other")
    other.path.mkdir()
    replace_file(other.config, earlier.config.read_text())
    point = {"micro_batch_size": 8, "accumulate_grad_batches": 1, "tokens_per_s_per_gpu": 2000.0}
    found = {"device": "cpu", "device_name": "x", "points": [point]}
    (other.path / "tune.json").write_text(json.dumps(found))
    (other.path / "tune").mkdir()
    replace_file(other.path / "tune/config.yaml", earlier.config.read_text())
    measured = [word for run in (earlier, other) for word in ("--measured", run.path.name)]
    words = ["-f", "llama3_tiny", *measured, "model.rampup_batch_size=null"]
    lines = succeed(
        "plan", *words, "--what-if", "data.micro_batch_size=4,8", "trainer.max_samples=7200000"
    ).splitlines()
    assert lines[0].split()[3:5] == ["micro", "accum"]
    slow, fast = (float(line.split()[-2].replace(",", "")) for line in lines[1:])
    assert fast == pytest.approx(slow / 2, rel=0.02)


def test_throughput_of_another_model_is_refused_with_the_key_and_its_place(rampcli, earlier):
    ended = rampcli(
        "plan", "-f", "llama3_tiny", "--measured", earlier.path.name, "model.hidden_size=256"
    )
    assert ended.exit_code == 2
    assert "that run had model.hidden_size=128, and this one has 256" in ended.stderr
    assert "set by: model.hidden_size=256 (command line)" in ended.stderr


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_plan_is_drawn_and_printed(rampcli, tmp_path, suffix):
    ended = rampcli("plan", "-f", "gpt3_5b", "--plot", f"x{suffix}")
    assert ended.exit_code == 0, ended.stderr
    assert "133,965,568 samples" in ended.stdout
    assert ended.stdout.endswith(f"wrote x{suffix}\n")
    content = (tmp_path / f"x{suffix}").read_bytes()
    if suffix == ".svg":
        assert {"2048", "gpt3_5b"} <= {
            element.text for element in ElementTree.fromstring(content).iter()
        }
    else:
        assert content.startswith(b"\x89PNG\r\n\x1a\n")


def test_python_and_the_command_line_give_the_same_plan(stages):
    words = [
        "trainer.num_nodes=8",
        "model.rampup_batch_size=[512,256,10M]",
        "rampup.node_policy=best",
    ]
    typed = stages("-f", "gpt3_5b", *words)
    resolved = resolve(apply_overrides(llm.gpt3_5b.pretrain_recipe(), words))
    assert typed == plan_json(resolved)["stages"]


def test_dialects_of_a_phase_are_those_of_a_run_that_begins_with_it(succeed):
    fleet = ("plan", "-f", "llama3_tiny", "data.micro_batch_size=1", "trainer.max_steps=null")
    own = ("model.global_batch_size=16", "model.rampup_batch_size=[8,4,160]")
    phases = ("phases.a.until=samples:320", "phases.b.until=samples:960")
    ramp = [f"phases.b.{word}" for word in own]
    found = json.loads(succeed(*fleet, *phases, *ramp, "--dialects", "--json"))
    alone = succeed(*fleet, *own, "trainer.max_samples=640", "--dialects", "--json")
    assert found["b"] == json.loads(alone)
    printed = succeed(*fleet, *phases, *ramp, "--dialects").splitlines()
    titles = [f"# {system}, phase {name}" for name, each in found.items() for system in each]
    assert [line for line in printed if line in titles] == titles


def test_dialects_of_a_phase_within_the_ramp_of_its_run_have_the_rest_of_the_ramp(succeed):
    words = ("model.global_batch_size=16", "model.rampup_batch_size=[8,4,160]")
    phases = ("phases.a.until=samples:40", "phases.b.until=samples:960")
    fleet = ("plan", "-f", "llama3_tiny", "data.micro_batch_size=1", "trainer.max_steps=null")
    found = json.loads(succeed(*fleet, *words, *phases, "--dialects", "--json"))
    tokens = 128 * 40
    assert f"0:8 {tokens}:12 {3 * tokens}:16" in found["b"]["Megatron-LM"]["words"]
    assert not any("0:8" in word for word in found["a"]["Megatron-LM"]["words"])
