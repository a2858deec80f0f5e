import json

import pytest
from rich.console import Console

from rampcli import llm
from rampcli.config.compose import lay_over
from rampcli.config.resolve import resolve
from rampcli.report.tables import plan_table, run_table, stages_trained, validations
from rampcli.run_directory import RunDirectory


def printed(table, width: int = 200) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


def columns(table, *indices: int) -> list[tuple[str, ...]]:
    return [tuple(line.split()[index] for index in indices) for line in printed(table).splitlines()[1:]]


def test_the_plan_of_nemos_ramp_up_page_is_the_table_that_its_rule_gives():
    words = [
        "data.micro_batch_size=4",
        "model.global_batch_size=1024",
        "model.rampup_batch_size=[256,128,50000000]",
        "trainer.num_nodes=16",
    ]
    plan = resolve(lay_over(llm.from_factory("llama3_8b"), words)).plan
    assert columns(plan_table(plan, bars=False), 1, 7, 9)[:-1] == [
        ("256", "0", "32,553"),
        ("384", "8,333,568", "21,701"),
        ("512", "16,666,752", "16,276"),
        ("640", "25,000,064", "13,021"),
        ("768", "33,333,504", "10,851"),
        ("896", "41,667,072", "9,301"),
    ]
    assert columns(plan_table(plan, bars=False), 1, 7)[-1] == ("1024", "50,000,768")


def test_the_plan_of_nemos_gpt3_5b_example_is_its_node_schedule():
    table = plan_table(resolve(llm.gpt3_5b.pretrain_recipe()).plan, bars=True)
    assert columns(table, 1, 2) == [
        (str(batch), nodes) for batch, nodes in zip(range(256, 2049, 256), ["8", "8", "8", "8", "10", "12", "14", "16"], strict=True)
    ]


def test_a_plan_fits_a_terminal_of_eighty_columns():
    lines = printed(plan_table(resolve(llm.gpt3_5b.pretrain_recipe()).plan, bars=False), width=80).splitlines()
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= 80


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    run = RunDirectory(tmp_path)
    rows = [
        {"stage": stage, "global_batch_size": size, "world_size": world, "loss": loss, "tokens_per_s": 100.0 * size, "step_time_s": 0.5}
        for stage, size, world, loss in [(0, 4, 1, 3.0), (0, 4, 2, 2.5), (1, 8, 2, 2.0)]
    ]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run.events.write_text('{"event": "validation", "loss": 3.5}\n{"event": "stage"}\n{"event": "validation", "loss": 2.1}\n')
    return run


def test_the_table_of_a_run_adds_up_its_steps(run):
    first, second = stages_trained(run)
    assert (first["samples"], first["steps"], first["world_sizes"], first["loss"], first["tokens_per_s"]) == (8, 2, [1, 2], 2.5, 400.0)
    assert (second["samples"], second["steps"], second["world_sizes"], second["loss"]) == (8, 1, [2], 2.0)
    assert validations(run) == [3.5, 2.1]
    assert "1, 2" in printed(run_table(run))
