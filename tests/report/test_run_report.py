import dataclasses
import json

import pytest

from rampcli.report import run_text
from rampcli.report.run_report import report_run
from rampcli.report.run_text import closing_lines, measured_table, runs_table, stage_table
from rampcli.report.sweep_results import result_of
from rampcli.runs import stages
from rampcli.runs.metrics import STAGE_METRICS, Metric
from rampcli.runs.record import read_run
from recorded_runs import STEPS, write_run
from report.table_cells import cells
from run_files import failure, metrics_row, state


@pytest.fixture
def run(tmp_path):
    return write_run(tmp_path / "small")


def parts_of(report):
    return {name: pytest.approx(seconds) for name, seconds in report.parts.items()}


def test_training_is_divided_by_what_its_steps_recorded(run):
    report = report_run(read_run(run.path))
    assert parts_of(report) == {
        "computing and exchange": 60 - 4,
        "waiting for data": 4,
        "between steps": 1,
        "validation": 3,
        "start and end": 6,
    }
    assert sum(report.parts.values()) == pytest.approx(report.time.elapsed_s)
    assert sum(map(report.share_of, report.parts)) == pytest.approx(1)
    assert report.time.goodput == pytest.approx(61 / 70)


def test_parts_of_a_run_that_took_no_time_have_no_share(run):
    run.events.write_text("")
    for kind, at in (("launch", 0.0), ("start", 1e-9), ("exit", 2e-9), ("launch", 1e9)):
        run.append_row(run.events, {"event": kind, "time": at, "step": 0, "consumed_samples": 0})
    report = report_run(read_run(run.path))
    assert [report.share_of(part) for part in report.parts] == [None] * len(report.parts)


def diagnose(run, share, *, phase=None):
    folder = run.folder_of_phase(phase).path / "tune/diagnose"
    folder.mkdir(parents=True)
    (folder / "diagnosis.json").write_text(json.dumps({"exchange_share": share}))


def record_profile(run, share, *, rank=0):
    facts = {"rank": rank, "steps": [2, 3], "files": [], "operators": []}
    run.append_event("profile", step=3, consumed_samples=12, exchange_share=share, **facts)


@pytest.mark.parametrize(("share", "exchange"), [(0.25, 14), (7.0, 56), (None, None)])
def test_a_diagnosis_tells_how_much_of_a_step_is_exchange(run, share, exchange):
    diagnose(run, share)
    parts = parts_of(report_run(read_run(run.path)))
    assert parts.get("exchange") == exchange
    assert ("computing" in parts) == (exchange not in (None, 56))


def test_each_phase_has_the_exchange_of_its_own_diagnosis(run):
    plan = json.loads((run.path / "plan.json").read_text())
    usual = {"sequence_length": 8, "stages": 1, "samples": None, "steps": None, "tokens": None}
    begin = dict.fromkeys(("first_sample", "first_step", "first_token"), 0)
    names = ("short", "long")
    phases = [{"name": one, "first_stage": k, **usual, **begin} for k, one in enumerate(names)]
    run.write_json(run.path / "plan.json", plan | {"phases": phases})
    diagnose(run, 0.5)
    diagnose(run, 0.25, phase="short")
    assert "exchange" not in parts_of(report_run(read_run(run.path)))
    diagnose(run, 0.75, phase="long")
    assert parts_of(report_run(read_run(run.path)))["exchange"] == (0.25 * 40 + 0.75 * 20) / 60 * 56


def test_profiled_steps_of_the_run_itself_tell_more_than_a_diagnosis(run):
    diagnose(run, 0.25)
    record_profile(run, None)  # of an earlier version
    assert parts_of(report_run(read_run(run.path)))["exchange"] == 14
    record_profile(run, 0.5)
    record_profile(run, 1.0, rank=1)
    assert parts_of(report_run(read_run(run.path)))["exchange"] == 0.75 * 56


def test_exchange_is_unknown_in_reinforcement_learning(run):
    record_profile(run, 0.5)
    record = dataclasses.replace(read_run(run.path), unit="prompts")
    assert {"computing and exchange", "waiting for responses"} <= {*parts_of(report_run(record))}


def test_one_process_exchanges_nothing(run):
    run.drop_rows_after(STEPS)
    parts = parts_of(report_run(read_run(run.path)))
    assert parts["computing"] == 40 - 2
    assert not {"exchange", "computing and exchange"} & {*parts}


def test_stages_are_shown_as_planned_and_as_trained(run):
    first, second = report_run(read_run(run.path)).stages
    assert (first.samples, first.planned_samples, first.steps, first.planned_steps) == (
        80,
        80,
        STEPS,
        20,
    )
    assert (second.samples, second.planned_samples, second.nodes, second.planned_nodes) == (
        160,
        320,
        None,
        2,
    )
    assert (first.world_sizes, second.world_sizes, first.nodes) == ([1], [2], 1)
    assert tuple(each.figures["tokens_per_s"] for each in (first, second)) == (256, 1024)
    assert (first.figures["mfu"], first.figures["reward"]) == (None, None)
    assert first.figures["loss"] == pytest.approx(sum(4.0 / step for step in range(11, 21)) / 10)


def test_a_stage_that_processes_of_several_worlds_have_trained_names_all_of_them(run):
    run.append_row(
        run.metrics, json.loads(run.metrics.read_text().splitlines()[-1]) | {"world_size": 4}
    )
    assert report_run(read_run(run.path)).stages[-1].world_sizes == [2, 4]


def test_rates_are_averaged_over_the_time_of_the_steps_and_rewards_over_the_last_steps(run):
    rates = [(10, 9.0, None)] * 9 + [(100, 1.0, None)] * 9 + [(10, 9.0, 0.5), (100, 1.0, 1.0)]
    rows = [
        metrics_row(tokens_per_s=rate, step_time_s=time, pairs=16, reward=reward, solved=reward)
        for rate, time, reward in rates
    ]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = report_run(read_run(run.path))
    stage = report.stages[0]
    shown = {name: stage.figures[name] for name in ("tokens_per_s", "reward", "solved")}
    assert (stage.pairs, shown) == (16, {"tokens_per_s": 19, "reward": 0.75, "solved": 0.75})
    table = stage_table(report)
    assert [str(column.header) for column in table.columns] == [
        *("stage", "batch", "pairs", "nodes", "processes", "samples", "steps", "reward", "solved"),
        "tokens/s",
    ]
    assert cells(table)["reward"] == ["0.750", "-"]
    run.append_row(run.metrics, metrics_row(step=21, reward=None))  # of a foreign program
    assert report_run(read_run(run.path)).stages[0].pairs is None


def test_text_in_a_column_of_numbers_counts_as_unknown(run):
    rows = [metrics_row(step=step, mfu_causal="x", data_time_s="y") for step in (1, 2)]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = report_run(read_run(run.path))
    assert report.stages[0].figures["mfu_causal"] is None
    assert "waiting for data" not in report.parts


def test_a_stage_of_an_earlier_plan_is_shown_without_plan(run):
    plan = json.loads((run.path / "plan.json").read_text())
    (run.path / "plan.json").write_text(json.dumps(plan | {"stages": plan["stages"][1:]}))
    first, _ = report_run(read_run(run.path)).stages
    assert (first.stage, first.samples, first.planned_samples) == (0, 80, None)


def test_a_run_that_ends_without_a_word_has_crashed_unless_it_is_training(run):
    run.write_state(state(step=2, status="running"))
    record = read_run(run.path)
    assert report_run(record).status == "crashed"
    assert report_run(record, now=200.0).status == "running"
    assert report_run(record, now=200.0).time.elapsed_s == pytest.approx(100)


def test_a_torn_last_row_and_missing_files_are_no_obstacle(run):
    whole = run.metrics.read_text()
    run.metrics.write_text(whole[:-20])
    assert sum(stage.steps for stage in report_run(read_run(run.path)).stages) == 2 * STEPS - 1
    for path in (run.metrics, run.events, run.path / "plan.json", run.path / "state.json"):
        path.unlink()
    report = report_run(read_run(run.path))
    assert (report.status, report.facts.step) == ("not started", 0)
    assert (report.stages, report.parts) == ([], {})


def add_noise(run, **columns):
    """Adds columns of the noise of the gradient to the tenth row."""
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    rows[9] |= {"grad_sq": -0.5, "grad_var": 60.0} | columns
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize(
    ("scale", "text"),
    [
        (
            (40, 25.5, 90.25),
            "40 sequences, 5.12K tokens (between 25.5 sequences, 3.26K tokens and 90.2 sequences,"
            " 11.6K tokens)",
        ),
        ((None, 25, None), ">= 25 sequences, 3.20K tokens"),
        ((None, None, None), "unknown yet (it takes 8 measured steps)"),
    ],
)
def test_a_report_says_the_noise_scale_after_the_last_step_that_measured_it(run, scale, text):
    assert report_run(read_run(run.path)).to_json()["noise_scale"] is None
    names = ("noise_scale", "noise_scale_low", "noise_scale_high")
    add_noise(run, **dict(zip(names, scale, strict=True)))
    report = report_run(read_run(run.path))
    assert report.to_json()["noise_scale"] == dict(
        zip(("value", "low", "high"), scale, strict=True)
    )
    line = f"noise scale of the gradient: {text}; the batch has 8 sequences"
    assert line in closing_lines(report)


def test_a_metric_that_an_observer_declares_is_summarised_over_the_steps_that_measured_it(run):
    rows = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for row in rows[::2]:  # 20 rows: 10 steps of 2 s, then 10 of 1 s
        row |= dict.fromkeys("abcd", row["step"])
    rows[4]["b"] = None
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ways = dict(zip("abcde", ("last", "mean", "max", "rate", "last"), strict=True))
    declared = [Metric(name, "", unit="m", summary=way) for name, way in ways.items()]
    run.write_columns([*declared, Metric("f", "")])
    report = report_run(read_run(run.path))
    means = {"a": 30.0, "b": (400 - 5) / 19, "c": 39.0, "d": (2 * 100 + 300) / 30, "e": None}
    assert report.to_json()["metrics"] == pytest.approx(means)
    first, *_ = zip(*cells(measured_table(report)).values(), strict=True)
    assert first == ("a", "m", "30", "the last 10 that measure it")
    other = dataclasses.replace(report, record=dataclasses.replace(report.record, name="other"))
    compared = cells(runs_table([report, other]))
    shown = dict(zip(compared[""], compared["other"], strict=True))
    assert (shown["c"], "e" in shown, "f" in shown) == ("39", False, False)


def test_runs_are_compared_by_the_goals_that_metrics_declare(run, monkeypatch):
    wins = Metric("grad_norm", "", summary="last", column="won", is_goal=True)
    for module in (stages, run_text):
        monkeypatch.setattr(module, "STAGE_METRICS", (*STAGE_METRICS, wins))
    rows = [json.loads(line) | {"grad_norm": 3.0} for line in run.metrics.read_text().splitlines()]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = report_run(read_run(run.path))
    compared = cells(runs_table([report]))
    shown = dict(zip(compared[""], compared[report.name], strict=True))
    assert (shown["won"], "reward" in shown) == ("3.000", False)
    assert list(shown).index("loss") + 1 == list(shown).index("won")


def test_validations_count_once_per_step_and_by_corpus(run):
    for step, loss, corpus in ((5, 3.0, "wiki"), (5, 2.5, "wiki"), (5, 2.0, "code")):
        run.append_event("validation", step=step, consumed_samples=9, loss=loss, corpus=corpus)
    run.append_event("validation", step=9, consumed_samples=9, loss=None)
    found = report_run(read_run(run.path)).validations
    assert found == {"": [(0, 5.5)], "wiki": [(5, 2.5)], "code": [(5, 2.0)]}


def test_the_validations_of_averaged_weights_stand_beside_those_of_the_weights(run):
    for step, loss in ((5, 3.0), (9, 2.0)):
        place = {"step": step, "consumed_samples": 4 * step}
        run.append_event("validation", **place, loss=loss, ema_loss=loss - 0.25)
    report = report_run(read_run(run.path))
    assert report.validations == {"": [(0, 5.5), (5, 3.0), (9, 2.0)]}
    assert report.to_json()["ema_validations"] == {"": [(5, 2.75), (9, 1.75)]}
    line = "validation loss 5.500 -> 2.000; of the averaged weights 2.750 -> 1.750"
    assert line in closing_lines(report)


def test_validations_of_steps_that_are_repeated_do_not_count(run):
    for step, loss in ((5, 3.0), (10, 2.0), (15, 1.0), (8, 2.5)):
        run.append_event("validation", step=step, consumed_samples=4 * step, loss=loss)
    report = report_run(read_run(run.path))
    assert report.validations == {"": [(0, 5.5), (5, 3.0), (8, 2.5)]}
    swept = result_of(read_run(run.path), values={}, state="running", problem=None)
    assert swept.validation_losses == swept.best_validation_losses == {"": 2.5}


@pytest.mark.parametrize(("saved", "progress"), [(7, (40, 240)), (50, (50, 300))])
def test_progress_is_that_of_the_state_if_rows_of_steps_are_missing(run, saved, progress):
    run.write_state(state(step=saved, consumed_samples=6 * saved))
    facts = report_run(read_run(run.path)).to_json()
    assert (facts["steps"], facts["consumed_samples"]) == progress


def test_events_are_counted_and_warnings_and_errors_kept(run):
    run.write_state(state(status="failed", error=failure()))
    run.append_event("fault", reason="a node was lost")
    run.append_event("boundary", step=1, consumed_samples=4, lost_s=5.0)
    run.append_event("boundary", step=2, consumed_samples=8, lost_s=7.0)
    run.append_event("lost", step=1, consumed_samples=4, steps=3, lost_s=1.0, last_step_at=None)
    report = report_run(read_run(run.path))
    facts = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert (facts["boundary_s"], facts["counts"]["boundary"], facts["lost_steps"]) == (6.0, 2, 3)
    assert facts["warnings"] == ["a node was lost"]
    assert facts["error"]["message"] == "the disk is full"
