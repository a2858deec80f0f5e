import pytest

from rampcli.report.run_plots import number_axis, plot_sweep
from rampcli.report.sweep_results import SweepResult, best_of, results_table
from report.svg_texts import texts
from report.table_cells import cells


def result(loss, *, state="complete", validation=None, **values):
    losses = {} if validation is None else {"": validation}
    return SweepResult(
        run_dir="-".join(values.values()),
        values=values,
        state=state,
        loss=loss,
        validation_losses=losses,
        best_validation_losses=losses,
    )


@pytest.mark.parametrize(
    ("results", "best"),
    [
        ([result(3.0), result(2.0)], 1),
        ([result(2.0, state="training"), result(3.0)], 1),
        ([result(2.0, validation=4.0), result(3.0, validation=3.5)], 1),
        ([result(2.0, state="failed"), result(None)], None),
        ([], None),
    ],
)
def test_the_best_run_is_complete_and_has_the_lowest_validation_or_training_loss(results, best):
    assert best_of(results) is (None if best is None else results[best])


def test_a_table_keeps_the_order_of_the_runs_and_marks_the_best():
    results = [result(3.0, seed="2"), result(None, state="waiting", seed="1"), result(2.0, lr="1")]
    assert cells(results_table(results, best_of(results))) == {
        "seed": ["2", "1", "-"],
        "lr": ["-", "-", "1"],
        "state": ["complete", "waiting", "complete"],
        "steps": ["0"] * 3,
        "loss": ["3.000", "-", "2.000"],
        "tokens/s": ["-"] * 3,
        "": ["", "", "best"],
    }


@pytest.mark.parametrize(
    ("values", "axis"),
    [
        ([{"lr": "0.1", "seed": "1"}, {"lr": "0.2", "seed": "1"}], "lr"),
        ([{"seed": "1", "lr": "1"}, {"seed": "2", "lr": "2"}, {"seed": "2", "lr": "3"}], "lr"),
        ([{"data": "mock", "lr": "1"}, {"data": "text", "lr": "1"}], None),
        ([{"lr": "1"}, {"seed": "2"}], None),
    ],
)
def test_the_axis_is_the_setting_with_the_most_numbers(values, axis):
    assert number_axis([result(1.0, **one) for one in values]) == axis


def test_a_picture_has_a_line_for_each_combination_of_the_other_values(tmp_path):
    results = [
        result(float(loss), lr=lr, data=data)
        for loss, (lr, data) in enumerate(
            [("0.1", "$a$"), ("0.2", "$a$"), ("0.1", "<b>"), ("0.2", "<b>")]
        )
    ]
    for name in ("x.svg", "y.svg"):
        plot_sweep(results, "lr", tmp_path / name, title="mine")
    picture = (tmp_path / "x.svg").read_bytes()
    assert picture == (tmp_path / "y.svg").read_bytes()
    assert {"data=$a$", "data=<b>", "lr", "loss", "mine"} <= {*texts(picture)}
