import io
import math
import tempfile
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Console

from lives import ACTS, Life
from rampcli import llm
from rampcli.cli.progress import Progress
from rampcli.config.compose import apply_overrides
from rampcli.files.locks import hold
from rampcli.launch.run import write_run_files
from rampcli.launch.status import read_status
from rampcli.planning.resolve import resolve
from rampcli.report.page_data import View, run_data
from rampcli.report.run_report import report_run
from rampcli.report.sweep_results import result_of
from rampcli.runs.directory import RunDirectory
from rampcli.runs.events import EventsFile, read_events
from rampcli.runs.facts import read_facts
from rampcli.runs.followed_run import FollowedRun
from rampcli.runs.record import read_run
from rampcli.runs.rows import LAST_EVENT_BYTES

TORN = '{"step": 7, "ti'


def near(value):
    """Returns a figure as a page shows it, in single precision."""
    return value if value is None else pytest.approx(value, rel=1e-5, abs=1e-5)


@pytest.fixture(scope="module")
def resolved():
    words = ["model.rampup_batch_size=[4,4,80]", "model.global_batch_size=8"]
    words += ["trainer.max_samples=400", "trainer.num_nodes=2", "data.sequence_length=128"]
    return resolve(apply_overrides(llm.from_factory("llama3_tiny"), words))


class Readers:
    """Everything that shows a run, while it grows."""

    def __init__(self, run, resolved):
        self.run, self.resolved = run, resolved
        self.file, self.page = EventsFile(run.events), FollowedRun("mine", run)
        self.progress = None

    def watch(self):
        self.progress = Progress(self.resolved, self.run, Console(file=io.StringIO()))
        return self.progress

    def check(self):
        """Compares what all of them show now."""
        status = read_status(self.run, file=self.file, most_event_bytes=None)
        ends = read_status(self.run).to_json()
        shown, record = status.to_json(), read_run(self.run)
        report = report_run(record).to_json()
        self.page.read()
        page = run_data(self.page, View())
        assert self.page.damage is None
        assert ends == shown | {"goodput": None}
        swept = result_of(record, values={}, state=shown["state"], problem=None)
        assert swept.steps == report["steps"] == shown["step"]
        self.compare_progress(shown, page, report, record)
        self.compare_speed(shown)
        self.compare_time(shown, page, report, record)
        self.compare_validations(shown, page, report)
        compare_stages(page, report)
        self.compare_while_held()

    def compare_while_held(self):
        """Compares what a page and the status say while processes hold the lock of the run."""
        with hold(self.run.lock):
            page, status = run_data(self.page, View()), read_status(self.run)
        assert page["starts"] == (status.state == "starting")
        assert (page["quiet"] is None) == (status.standstill is None)

    def compare_progress(self, shown, page, report, record):
        assert report["consumed_samples"] == shown["consumed_samples"]
        assert (report["status"] == "crashed") == (shown["state"] == "crashed")
        rows = len(record.metrics.get("step", ()))
        assert page["rows"] == rows
        if rows:
            last = {name: values[-1] for name, values in record.metrics.items()}
            for name in ("step", "consumed_samples", "stage", "global_batch_size", "loss"):
                value = None if math.isnan(last[name]) else last[name]
                assert page["last"][name] == near(value)
                if name == "loss":
                    assert shown[name] == value
            assert shown["step_at"] == record.last_step_at

    def compare_speed(self, shown):
        left = shown["stage_left_s"], shown["run_left_s"]
        speed = shown["tokens_per_s"], shown["mfu"]
        readers = [self.page.facts]
        if self.progress is not None and self.progress.waits_for is None:
            readers.append(self.progress.facts)
        for facts in readers:
            assert (facts.tokens_per_s, facts.mfu) == speed
            assert facts.time_left() == left
            assert (facts.step, facts.stage) == (shown["step"], shown["stage"])
            assert facts.last.get("loss") == shown["loss"]
            assert facts.num_nodes == shown["num_nodes"]
            assert facts.validation_losses == shown["validation_losses"]

    def compare_time(self, shown, page, report, record):
        spent = record.time_spent()
        assert shown["goodput"] == report["goodput"] == spent.goodput
        assert report["elapsed_s"] == spent.elapsed_s == sum(spent.parts.values())
        if page["spent"] is not None:
            assert page["spent"]["goodput"] == near(spent.goodput)
            assert page["spent"]["total_s"] == near(spent.elapsed_s)
            assert page["spent"]["running_s"] == near(spent.running_s)
            seconds = {part["name"]: near(part["s"]) for part in report["parts"]}
            assert {part["name"]: part["s"] for part in page["spent"]["parts"]} == seconds

    def compare_validations(self, shown, page, report):
        for corpus, loss in shown["validation_losses"].items():
            assert page["curves"][f"validation: {corpus}"]["y"][-1] == loss
            if loss is not None:
                assert report["validations"][corpus][-1][1] == loss
        assert (
            len(report["warnings"])
            == shown["warnings"]
            == page["marks"].get("fault", {"count": 0})["count"]
        )


def compare_stages(page, report):
    """Compares the stages of a page with those of a report."""
    for stage in report["stages"]:
        parts = [part for part in page["trained"]["parts"] if part["stage"] == stage["stage"]]
        assert sum(part["steps"] for part in parts) == stage["steps"]
        assert sum(part["samples"] for part in parts) == stage["samples"]
        assert sorted({part["world_size"] for part in parts}) == stage["world_sizes"]
        if parts:
            tokens = sum(part["tokens_per_s"] * part["steps_s"] for part in parts)
            steps_s = sum(part["steps_s"] for part in parts)
            assert tokens / steps_s == near(stage["tokens_per_s"])


def test_a_named_run_has_the_warnings_and_validations_of_its_newest_events_as_in_a_list(tmp_path):
    run = RunDirectory(tmp_path)
    for kind, facts in (("launch", {}), ("fault", {"reason": "early"}), ("launch", {})):
        run.append_event(kind, **facts)
    run.append_event("start", step=0)
    early = {"step": 1, "consumed_samples": 4, "corpus": "wiki", "loss": 3.0}
    run.append_event("validation", **early)
    with run.events.open("a") as file:
        file.write(2 * LAST_EVENT_BYTES // 30 * '{"event": "load", "time": 1.0}\n')
    run.append_event("slow_data", reason="late")
    run.append_event("validation", **early | {"step": 2, "corpus": "code", "loss": 2.0})
    named = read_facts(run, EventsFile(run.events), most_event_bytes=None)
    listed = read_facts(run)
    assert (named.has_whole_clock, listed.has_whole_clock) == (True, False)
    assert named.events.warnings == listed.events.warnings == ["late"]
    assert named.validation_losses == listed.validation_losses == {"wiki": 3.0, "code": 2.0}
    assert named.time_spent() == read_events(run.events).clock.spent(last_step_at=0.0)


ACT = st.sampled_from(ACTS) | st.just("step")
STRETCH = st.lists(ACT, max_size=6) | st.integers(1, 25).map(lambda count: ["step"] * count)


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(STRETCH, max_size=8), st.sets(st.integers(0, 150), max_size=4), st.booleans())
def test_all_that_show_a_run_agree_on_every_figure_at_any_moment(
    resolved, stretches, moments, is_torn
):
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder, "mine"))
        write_run_files(run, resolved, [])
        readers = Readers(run, resolved)
        life = Life(plan=resolved.plan, run=run, watch=readers.watch)
        readers.check()
        for number, _ in enumerate(life.after_each_write(chain.from_iterable(stretches))):
            if number in moments:
                for path in (run.metrics, run.events) if is_torn else ():
                    with path.open("a") as file:
                        file.write(TORN)
                readers.check()
        readers.check()
