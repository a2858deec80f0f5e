"""`rampcli plan`: JSON, comparisons, dialects, seesaw, measured throughput and pictures."""

import json
import re
import shlex
import xml.etree.ElementTree as ElementTree

import pytest

from rampcli import llm
from rampcli.config import snapshot
from rampcli.config.compose import lay_over
from rampcli.config.resolve import resolve
from rampcli.own_folder import replace_file
from rampcli.run_directory import RunDirectory
from run_files import metrics_row

STAGE = (
    "stage",
    "global_batch_size",
    "first_sample",
    "samples",
    "first_step",
    "steps",
    "num_nodes",
    "world_size",
    "data_parallel_size",
    "micro_batch_size",
    "accumulate_grad_batches",
)
QUARTER_COSINE = ("schedule.decay_style=quarter_cosine", "optim.min_lr=0", "optim.warmup_steps=0")
FOREIGN_ALONE = ("data.seq_length=", "max_target_length=", "steps=", "ici_")
"""Words of other systems for settings that the recipe already has."""


@pytest.fixture
def stages(succeed):
    """Returns a function that plans and returns the stages of `--json`."""
    return lambda *words: json.loads(succeed("plan", *words, "--json"))["stages"]


# JSON


def test_json_has_the_documented_keys_and_nothing_else_is_printed(succeed):
    plan = json.loads(succeed("plan", "--factory", "gpt3_5b", "--json", "trainer.max_steps=null"))
    assert list(plan) == ["global_batch_size", "semantics", "sequence_length", "stages"]
    assert (plan["global_batch_size"], plan["semantics"], plan["sequence_length"]) == (
        2048,
        "megatron",
        2048,
    )
    assert {tuple(stage) for stage in plan["stages"]} == {STAGE}
    assert [stage["stage"] for stage in plan["stages"]] == list(range(8))
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
    }
    assert (plan["stages"][-1]["steps"], plan["stages"][-1]["samples"]) == (None, None)


def test_equal_plans_print_equal_json(succeed):
    assert succeed("plan", "-f", "gpt3_5b", "--json") == succeed(
        "plan", "-f", "gpt3_5b(num_nodes=16)", "--json"
    )


# Comparisons


def test_a_comparison_has_one_row_per_value(succeed):
    lines = succeed("plan", "-f", "gpt3_5b", "--what-if", "trainer.num_nodes=8,16,12").splitlines()
    assert lines[0].split() == [
        "nodes",
        "GPUs",
        "batch",
        "accum",
        "samples",
        "steps",
        "tokens",
        "hours",
        "GPU-hours",
    ]
    assert lines[1].startswith(
        "trainer.num_nodes=8   8 8 8 8 8 8 8 8        64   2048      8  133,965,568  75,000    274B"
    )
    assert lines[2].startswith(
        "trainer.num_nodes=16  8 8 8 8 10 12 14 16   128   2048      4  133,965,568  75,000    274B"
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


@pytest.mark.parametrize("json_wanted", [[], ["--json"]])
def test_a_comparison_without_any_plan_that_fits_is_refused(rampcli, json_wanted):
    ended = rampcli(
        "plan", "-f", "llama3_8b", "--what-if", "model.global_batch_size=510,511", *json_wanted
    )
    assert ended.exit_code == 2
    assert ended.stdout.count("does not divide into") == 2


@pytest.mark.parametrize("json_wanted", [[], ["--json"]])
def test_an_error_of_every_plan_is_shown_once(rampcli, json_wanted):
    ended = rampcli(
        "plan",
        "-f",
        "llama3_8b",
        "--what-if",
        "trainer.num_nodes=1,3",
        "modle.x=3",
        "seed=-1",
        *json_wanted,
    )
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert [line for line in ended.stderr.splitlines() if line.startswith("error: ")] == [
        "error: there is no setting modle.x",
        "error: seed=-1 is below 0",
    ]


def test_a_compared_value_replaces_the_typed_one(succeed, stages):
    words = ["-f", "gpt3_5b", "trainer.num_nodes=4", "--what-if", "trainer.num_nodes=8", "--json"]
    (only,) = json.loads(succeed("plan", *words))
    assert only["plan"]["stages"] == stages("-f", "gpt3_5b", "trainer.num_nodes=8")


def test_options_of_a_group_and_ranges_and_lists_can_be_compared(succeed):
    def compared(what_if):
        return [
            row["words"]
            for row in json.loads(succeed("plan", "-f", "gpt3_5b", "--what-if", what_if, "--json"))
        ]

    assert compared("model=llama3_8b,gpt3_5b") == ["model=llama3_8b", "model=gpt3_5b"]
    assert compared("seed=range(1,4)") == ["seed=1", "seed=2", "seed=3"]
    assert len(compared("model.rampup_batch_size=[256,256,10M],[1024,1024,10M],null")) == 3


# Other systems' words


def pasted(words):
    return [word for word in words if not word.startswith(FOREIGN_ALONE)]


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
    ("MaxText", "llama3_8b", ()),
    ("MaxText", "llama3_8b", ("per_device_batch_size=4", "gradient_accumulation_steps=2")),
    ("MaxText", "llama3_8b", ("trainer.num_nodes=8", "data.micro_batch_size=2")),
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
        if word.startswith(("parallel.", "trainer.num_nodes=")) and system == "MaxText"
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
        assert back == stages("-f", recipe, *words)


def test_dialects_are_printed_as_lines_to_paste_under_their_names(succeed):
    lines = succeed("plan", "-f", "gpt3_5b", "--dialects").splitlines()
    found = json.loads(succeed("plan", "-f", "gpt3_5b", "--dialects", "--json"))
    assert (
        [line[2:] for line in lines if re.match(r"# \S", line)]
        == list(found)
        == ["NeMo 1", "NeMo 2", "Megatron-LM", "MaxText"]
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


# Seesaw


@pytest.mark.parametrize(("factor", "saved"), [("2", 22.0), ("1.5", 27.1), ("1.1", 33.8)])
def test_seesaw_on_a_quarter_cosine_saves_the_steps_that_the_paper_reports(succeed, factor, saved):
    printed = succeed(
        "plan", "-f", "llama3_8b", "--seesaw", "--seesaw-factor", factor, *QUARTER_COSINE
    )
    before, after, share, limit = re.search(
        r"([\d,]+) steps become ([\d,]+), ([\d.]+)% fewer; ([\d.]+)% in the limit", printed
    ).groups()
    assert float(share) == pytest.approx(saved, abs=0.1)
    assert float(limit) == pytest.approx(36.3, abs=0.1)
    before, after = (int(count.replace(",", "")) for count in (before, after))
    assert before == 1_168_251
    assert 1 - after / before == pytest.approx(saved / 100, abs=0.001)


@pytest.mark.parametrize(
    "words",
    [("llama3_8b", *QUARTER_COSINE), ("gpt3_5b", "model.rampup_batch_size=null")],
    ids=" ".join,
)
def test_pasted_words_of_seesaw_give_the_same_stages(succeed, stages, words):
    recipe, *rest = words
    printed = succeed("plan", "-f", recipe, "--seesaw", *rest)
    line = printed.splitlines()[printed.splitlines().index("train it with:") + 1]
    assert stages("-f", recipe, *shlex.split(line)) == stages("-f", recipe, "--seesaw", *rest)


@pytest.mark.parametrize(
    "words",
    [
        ["schedule.batch_coupling=linear"],
        ["schedule.decay_style=wsd", "schedule.wsd_decay_samples=2M"],
    ],
)
def test_the_learning_rate_falls_under_seesaw_with_any_schedule(succeed, words):
    fixed = [
        "model.rampup_batch_size=null",
        "trainer.max_steps=null",
        "trainer.max_samples=10M",
        "optim.warmup_steps=0",
    ]
    small = ["model.global_batch_size=64", "data.micro_batch_size=1", "trainer.num_nodes=1"]
    lines = succeed("plan", "-f", "gpt3_5b", *fixed, *small, *words, "--seesaw").splitlines()
    header = lines[0].split("  ")
    assert "last lr" in map(str.strip, header)
    rates = [float(line.split()[-2]) for line in lines[1:] if line[:6].strip().isdigit()]
    assert len(rates) > 2
    assert rates == sorted(rates, reverse=True)


def test_seesaw_reads_as_many_samples_as_before(stages):
    grown = stages("-f", "llama3_8b", "--seesaw", *QUARTER_COSINE)
    (before,) = stages("-f", "llama3_8b", *QUARTER_COSINE)
    end = grown[-1]["first_sample"] + grown[-1]["samples"]
    assert before["samples"] <= end < before["samples"] + grown[-1]["global_batch_size"]
    sizes = [stage["global_batch_size"] for stage in grown]
    assert sizes == [512 * 2**stair for stair in range(len(sizes))]


# Measured throughput


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
                tokens_per_s=tokens_per_s,
            )
            run.append_row(run.metrics, row)
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


def test_measured_throughput_applies_to_other_nodes_batches_and_comparisons(succeed, earlier):
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
    ).splitlines()[1:]
    hours = [float(line.split()[-2]) for line in lines]
    assert hours == pytest.approx([256, 128, 64], rel=0.01)


def test_throughput_of_another_model_is_refused_with_the_key_and_its_place(rampcli, earlier):
    ended = rampcli(
        "plan", "-f", "llama3_tiny", "--measured", earlier.path.name, "model.hidden_size=256"
    )
    assert ended.exit_code == 2
    assert "that run had model.hidden_size=128, and this one has 256" in ended.stderr
    assert "set by: model.hidden_size=256 (command line)" in ended.stderr


# Plots


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


def test_a_plot_of_seesaw_shows_its_steps_and_does_not_change_the_json(rampcli, tmp_path):
    ended = rampcli(
        "plan", "-f", "llama3_8b", "--seesaw", *QUARTER_COSINE, "--plot", "x.svg", "--json"
    )
    assert ended.exit_code == 0, ended.stderr
    wide_stages = json.loads(ended.stdout)["stages"][:3]
    sizes = {str(stage["global_batch_size"]) for stage in wide_stages}
    assert sizes <= {
        element.text for element in ElementTree.fromstring((tmp_path / "x.svg").read_bytes()).iter()
    }


@pytest.mark.parametrize("option", [["--plot", "x.svg"], ["--dialects"], ["--seesaw"]])
def test_options_for_one_plan_are_refused_in_a_comparison(rampcli, tmp_path, option):
    ended = rampcli("plan", "-f", "gpt3_5b", "--what-if", "seed=1,2", *option)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert f"--what-if compares plans, and {option[0]} is about one" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_python_and_the_command_line_give_the_same_plan(stages):
    words = [
        "trainer.num_nodes=8",
        "model.rampup_batch_size=[512,256,10M]",
        "rampup.node_policy=best",
    ]
    typed = stages("-f", "gpt3_5b", *words)
    assert typed == resolve(lay_over(llm.gpt3_5b.pretrain_recipe(), words)).plan.to_json()["stages"]
