import math
import re
from itertools import pairwise

import pytest
from rich.console import Console

from rampcli.errors import UsageError
from rampcli.report.plan_tables import (
    BAR_WIDTH,
    MOST_STAGE_ROWS,
    ROWS_AT_THE_ENDS,
    comparison_table,
    plan_summary,
    plan_table,
    plan_totals,
)
from rampcli.settings.by_key import leaves
from report.table_cells import cells

NEVER_DROPPED = {"stage", "batch", "nodes", "GPUs", "accum", "samples", "steps"}
RAMP_UP_PAGE = (
    "llama3_8b",
    "data.micro_batch_size=4",
    "model.global_batch_size=1024",
    "model.rampup_batch_size=[256,128,50000000]",
    "trainer.num_nodes=16",
)
"""The example of NeMo's page on the ramp-up of the batch size."""
PLANS = [
    ("gpt3_5b",),
    ("llama3_8b",),
    ("llama3_tiny",),
    RAMP_UP_PAGE,
    ("gpt3_5b", "trainer.max_steps=null"),
    ("gpt3_5b", "throughput.mfu=null"),
    ("gpt3_5b", "data.expansion_factor_real_data=2"),
    ("gpt3_5b", "model.step_batch_size_schedule='0:1024 1B:512'"),
]


def rows(table, *names: str) -> list[tuple[str, ...]]:
    columns = cells(table)
    return list(zip(*(columns[name] for name in names), strict=True))


def printed(table, width: int) -> list[str]:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_the_plan_of_nemos_ramp_up_example_follows_its_rule(planned):
    assert rows(plan_table(planned(*RAMP_UP_PAGE), width=160), "batch", "from", "steps")[:-1] == [
        ("256", "0", "32,553"),
        ("384", "8,333,568", "21,701"),
        ("512", "16,666,752", "16,276"),
        ("640", "25,000,064", "13,021"),
        ("768", "33,333,504", "10,851"),
        ("896", "41,667,072", "9,301"),
        ("1024", "50,000,768", "1,064,548"),
    ]


def test_the_plan_of_nemos_gpt3_5b_example_is_its_node_schedule(planned):
    nodes = [8, 8, 8, 8, 10, 12, 14, 16]
    assert rows(plan_table(planned("gpt3_5b"), width=160), "batch", "nodes")[:-1] == [
        (str(batch), str(count)) for batch, count in zip(range(256, 2049, 256), nodes, strict=True)
    ]


@pytest.mark.parametrize("width", [80, 100, 160])
@pytest.mark.parametrize("words", PLANS, ids=" ".join)
def test_a_plan_fits_the_terminal_and_keeps_batch_and_nodes(planned, words, width):
    table = plan_table(planned(*words), width=width)
    lines = printed(table, width)
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width
    assert len(lines) == len(table.rows) + 1
    assert set(cells(table)) >= NEVER_DROPPED


@pytest.mark.parametrize("words", PLANS, ids=" ".join)
def test_a_wider_terminal_shows_what_a_narrower_one_shows_and_more(planned, words):
    resolved = planned(*words)
    shown = [cells(plan_table(resolved, width=width)) for width in (1, 60, 80, 100, 120, 160, 1000)]
    for narrower, wider in pairwise(shown):
        assert narrower.items() <= wider.items()
    assert set(shown[0]) >= NEVER_DROPPED
    assert set(shown[-1]) >= NEVER_DROPPED | {
        "dp",
        "micro",
        "from",
        "tokens",
        "memory",
        "first lr",
        "last lr",
        "",
    }


def test_a_narrow_terminal_drops_the_bars_first_and_the_learning_rates_next(planned):
    resolved = planned("gpt3_5b")
    dropped, width = [], 200
    while len(cells(plan_table(resolved, width=width))) > 8 and width > 0:
        gone = (
            cells(plan_table(resolved, width=width)).keys()
            - cells(plan_table(resolved, width=width - 1)).keys()
        )
        dropped += sorted(gone)
        width -= 1
    assert dropped[:6] == ["", "first lr", "last lr", "memory", "micro", "from"]


def test_the_length_of_a_bar_is_proportional_to_its_batch(planned):
    bars = cells(plan_table(planned("gpt3_5b"), width=160))[""]
    assert [len(bar) for bar in bars] == [BAR_WIDTH * stage // 8 for stage in range(1, 9)] + [0]
    falling = cells(
        plan_table(planned("gpt3_5b", "model.step_batch_size_schedule='0:1024 1B:512'"), width=160)
    )[""]
    assert [len(bar) for bar in falling] == [BAR_WIDTH, BAR_WIDTH // 2, 0]


@pytest.mark.parametrize("words", [("gpt3_5b",), ("llama3_tiny",), RAMP_UP_PAGE], ids=" ".join)
def test_the_totals_are_the_sums_of_the_stages(planned, words):
    resolved = planned(*words)
    columns = cells(plan_table(resolved, width=1000))
    assert columns["stage"][-1] == "total"
    for name in ("samples", "steps"):
        *stages, total = map(number, columns[name])
        assert total == sum(stages)
    assert number(columns["samples"][-1]) == resolved.plan.end_sample
    assert [
        columns[name][-1]
        for name in (
            "batch",
            "nodes",
            "GPUs",
            "dp",
            "micro",
            "accum",
            "from",
            "memory",
            "first lr",
            "last lr",
        )
    ] == [""] * 10


def test_a_plan_of_one_stage_is_its_own_total(planned):
    table = plan_table(planned("llama3_8b"), width=160)
    assert len(table.rows) == 1
    assert "total" not in cells(table)["stage"]


def test_hours_are_samples_over_throughput_and_the_total_includes_restarts(planned):
    words = [
        "throughput.samples_per_s_per_gpu=2",
        "rampup.restart_s=1800",
        "trainer.max_samples=11M",
    ]
    resolved = planned("gpt3_5b", *words)
    columns = cells(plan_table(resolved, width=1000))
    seconds = [stage.samples / (2 * stage.world_size) for stage in resolved.plan.stages]
    gpu_seconds = [stage.samples / 2 for stage in resolved.plan.stages]
    assert [number(cell) for cell in columns["hours"]] == pytest.approx(
        [s / 3600 for s in seconds] + [sum(seconds) / 3600 + 7 * 0.5], rel=0.05
    )
    assert [number(cell) for cell in columns["GPU-hours"]] == pytest.approx(
        [s / 3600 for s in gpu_seconds] + [sum(gpu_seconds) / 3600], rel=0.05
    )


@pytest.mark.parametrize(
    ("samples_per_s", "hours"), [(0.001, "6,250"), (0.01, "625"), (1, "6.2"), (100, "0.062")]
)
def test_hours_are_rounded_to_useful_precision(planned, samples_per_s, hours):
    words = [
        "model.rampup_batch_size=null",
        "model.global_batch_size=2560",
        "trainer.max_samples=2880000",
    ]
    resolved = planned("gpt3_5b", *words, f"throughput.samples_per_s_per_gpu={samples_per_s}")
    assert resolved.plan.end_sample == 2_880_000
    assert cells(plan_table(resolved, width=160))["hours"] == [hours]


def test_fewer_micro_batches_are_slower_according_to_the_efficiency(planned):
    efficiency = "rampup.efficiency='1:1000 2:2000 3:3000 4:4000'"
    resolved = planned("gpt3_5b", efficiency, "rampup.restart_s=0")
    columns = cells(plan_table(resolved, width=1000))
    rates = {"1": 1000, "2": 2000, "3": 3000, "4": 4000}
    for accum, gpu_hours, stage in zip(
        columns["accum"], columns["GPU-hours"], resolved.plan.stages, strict=False
    ):
        assert number(gpu_hours) == pytest.approx(
            stage.samples * 2048 / rates[accum] / 3600, rel=0.05
        )


def test_without_throughput_no_hours_are_shown(planned):
    resolved = planned("gpt3_5b", "throughput.mfu=null")
    assert not {"hours", "GPU-hours"} & cells(plan_table(resolved, width=160)).keys()
    assert [plan_totals(resolved.plan)[name] for name in ("hours", "GPU-hours")] == ["-", "-"]
    assert [line for line in plan_summary(resolved) if "hours" in line] == []


def test_the_totals_of_a_single_step_are_in_the_singular(planned):
    resolved = planned("llama3_tiny", "trainer.max_steps=1")
    assert plan_summary(resolved)[0].startswith("4 samples, 1 step, 512 tokens;")


def test_a_run_without_end_has_no_totals(planned):
    resolved = planned("gpt3_5b", "trainer.max_steps=null")
    columns = cells(plan_table(resolved, width=160))
    for name in ("samples", "steps", "tokens", "hours", "GPU-hours"):
        assert columns[name][-2:] == ["-", "-"]
    assert columns["last lr"][-2] == "-"
    assert plan_summary(resolved)[0] == "a run without end; run directory runs/gpt3_5b"


def test_a_stage_shows_the_learning_rates_of_its_first_and_last_step(planned):
    resolved = planned("gpt3_5b")
    rate, columns = resolved.phases[0].rate, cells(plan_table(resolved, width=160))
    for first, last, stage in zip(
        columns["first lr"], columns["last lr"], resolved.plan.stages, strict=False
    ):
        size = stage.global_batch_size
        assert first == f"{rate.at(stage.first_sample + size, global_batch_size=size):.2e}"
        assert last == f"{rate.at(stage.end_sample, global_batch_size=size):.2e}"
    assert columns["last lr"][-2] == f"{resolved.config.optim.min_lr:.2e}"


def test_loaded_samples_are_shown_if_hosts_read_for_others(planned):
    columns = cells(plan_table(planned("gpt3_5b", "data.expansion_factor_real_data=2"), width=160))
    assert [number(cell) for cell in columns["load"][:-1]] == [
        2 * batch for batch in range(256, 2049, 256)
    ]
    assert [number(cell) for cell in columns["hosts"][:-1]] == [4, 4, 4, 4, 5, 6, 7, 8]
    assert not {"load", "hosts"} & cells(plan_table(planned("gpt3_5b"), width=160)).keys()


@pytest.mark.parametrize(
    ("per_device", "tensor", "factor"),
    [(0.5, 2, 4), (0.5, 2, 1), (0.25, 4, 2), (1, 2, 2), (2, 1, 4), (5, 1, 1.6), (2, 1, 0.5)],
)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_line_about_hosts_counts_the_samples_that_the_column_shows(
    planned, per_device, tensor, factor, accumulate
):
    resolved = planned(
        "llama3_8b",
        "trainer.num_nodes=8",
        "parallel.context_parallel_size=1",
        f"parallel.tensor_parallel_size={tensor}",
        f"per_device_batch_size={per_device}",
        f"gradient_accumulation_steps={accumulate}",
        f"expansion_factor_real_data={factor}",
    )
    (load,) = map(number, cells(plan_table(resolved, width=160))["load"])
    assert load == 64 * max(per_device, 1) * max(factor, 1) * accumulate
    (line,) = [line for line in plan_summary(resolved) if line.startswith("reading: ")]
    largest_group = math.ceil(factor)
    samples = float(re.search(r"([\d.]+) samples of a step", line)[1])
    assert samples == load / max(factor, 1) / 8 * largest_group
    assert ("a factor below 1 changes nothing" in line) == (factor < 1)
    assert ("one per device" in line) == (per_device < 1)


def test_a_pipeline_shows_its_bubble_and_hours_that_contain_it(planned):
    words = ["gpt3_5b", "parallel.pipeline_parallel_size=4", "data.micro_batch_size=8"]
    assert "bubble" not in cells(plan_table(planned("gpt3_5b"), width=160))
    few, many = (planned(*words, f"num_pipeline_microbatches={parts}") for parts in (4, 8))
    stages = few.plan.stages
    assert cells(plan_table(few, width=1000))["bubble"][:-1] == [
        f"{3 / (4 * stage.accumulate_grad_batches + 3):.1%}" for stage in stages
    ]
    compared = cells(comparison_table([("4", few), ("8", many), ("none", planned("gpt3_5b"))]))
    assert compared["bubble"] == ["8.6%", "4.5%", "0.0%"]
    hours, fewer, fewest = map(float, compared["hours"])
    assert hours > fewer > fewest
    assert plan_summary(few)[1].partition(";")[0].endswith("plus the bubble of the pipeline")
    measured = planned(*words, "rampup.efficiency='8x1:9000'")
    assert "which contains the bubble of its pipeline" in plan_summary(measured)[1]


def test_a_plan_of_very_many_stages_shows_the_first_and_the_last(planned):
    few = ["llama3_8b", "model.global_batch_size=480", "model.rampup_batch_size=[8,8,50M]"]
    many = ["llama3_8b", "model.global_batch_size=488", "model.rampup_batch_size=[8,8,50M]"]
    assert len(plan_table(planned(*few), width=160).rows) == MOST_STAGE_ROWS + 1
    stages = cells(plan_table(planned(*many), width=160))["stage"]
    first, last = (
        range(ROWS_AT_THE_ENDS),
        range(MOST_STAGE_ROWS + 1 - ROWS_AT_THE_ENDS, MOST_STAGE_ROWS + 1),
    )
    assert stages == [*map(str, first), "...", *map(str, last), "total"]
    samples = cells(plan_table(planned(*many), width=160))["samples"]
    assert number(samples[-1]) == planned(*many).plan.end_sample


def test_the_summary_has_totals_the_run_directory_and_the_source_of_the_hours(planned):
    summary = plan_summary(planned("gpt3_5b", "name=first"))
    assert summary == [
        "133,965,568 samples, 75,000 steps, 274,361,483,264 tokens; run directory runs/first",
        "hours: an estimate from FLOPs, at 40% of 989 TFLOP/s per GPU, as declared;"
        " the total counts 7 restarts of 60 s",
        "model: 5.05B parameters, 214M of them embeddings; 54.4 tokens per parameter",
        "trainer.compile: the plan chose true; compiling takes ~1:35 and saves ~5:10:44 of"
        " ~2 d 03:47:23",
        "data: mock (random tokens)",
    ]


def test_the_source_of_the_time_of_a_restart_is_shown_unless_it_is_the_default(planned):
    (hours,) = (line for line in plan_summary(planned("gpt3_5b", "rampup.restart_s=7"))[1:2])
    assert hours.endswith("7 restarts of 7 s (command line)")


def test_the_total_counts_only_restarts_that_happen(planned):
    grown = plan_summary(planned("gpt3_5b", "rampup.at_boundary=continue"))[1]
    assert grown.endswith("; the total counts 4 restarts of 60 s")
    assert "restart" not in plan_summary(planned("llama3_8b"))[1]


def test_printing_a_table_does_not_change_the_plan(planned):
    resolved = planned("gpt3_5b")
    before = dict(leaves(resolved.config))
    plan_table(resolved, width=80)
    plan_summary(resolved)
    assert dict(leaves(resolved.config)) == before


def test_a_comparison_has_a_row_per_plan_and_an_empty_row_for_one_that_does_not_fit(planned):
    small, large = planned("gpt3_5b", "trainer.num_nodes=8"), planned("gpt3_5b")
    columns = cells(
        comparison_table(
            [("small", small), ("large", large), ("wrong", UsageError("12 does not divide"))]
        )
    )
    assert columns[""] == ["small", "large", "wrong"]
    assert columns["nodes"] == ["8 8 8 8 8 8 8 8", "8 8 8 8 10 12 14 16", "does not fit"]
    assert columns["GPUs"] == ["64", "128", ""]
    assert columns["steps"] == ["75,000", "75,000", ""]
    totals = [plan_totals(one.plan) for one in (small, large)]
    for name in ("hours", "GPU-hours"):
        assert columns[name][:2] == [of_plan[name] for of_plan in totals]
    assert [
        columns[name][2] for name in ("batch", "accum", "samples", "tokens", "hours", "GPU-hours")
    ] == [""] * 6


def test_a_comparison_shows_micro_batches_that_differ(planned):
    plans = [
        (f"micro {size}", planned("gpt3_5b", f"data.micro_batch_size={size}")) for size in (2, 4, 4)
    ]
    assert cells(comparison_table(plans[:2]))["micro"] == ["2", "4"]
    assert "micro" not in cells(comparison_table(plans[1:]))


def test_a_comparison_shows_the_first_and_last_nodes_of_many_stages(planned):
    many = planned("llama3_8b", "model.rampup_batch_size=[32,32,50M]", "trainer.num_nodes=4")
    assert len(many.plan.stages) > 10
    nodes = [stage.num_nodes for stage in many.plan.stages]
    assert cells(comparison_table([("many", many)]))["nodes"] == [f"{nodes[0]} ... {nodes[-1]}"]
