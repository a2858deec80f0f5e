from rampcli.errors import UsageError
from rampcli.report.comparison import comparison_table
from rampcli.report.plan_tables import plan_totals
from tests.report.table_cells import cells


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
