import os
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest

from rampcli.errors import DamagedFileError, UsageError
from rampcli.runs.directory import RunDirectory, find_run, runs_in
from rampcli.runs.rows import read_rows
from run_files import coming, metrics_row, state


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    return directory


def test_files_have_the_documented_paths(tmp_path):
    run = RunDirectory(tmp_path)
    names = [
        path.relative_to(tmp_path).as_posix()
        for path in (run.config, run.metrics, run.events, run.checkpoints, run.logs)
    ]
    assert names == ["config.yaml", "metrics.jsonl", "events.jsonl", "checkpoints", "logs"]
    assert run.checkpoint_folder(123) == tmp_path / "checkpoints" / "step_00000123"


def test_a_folder_of_a_phase_belongs_to_its_run_and_a_run_of_that_name_to_itself(tmp_path):
    run = RunDirectory(tmp_path / "phase=a")
    assert run.whole_run == run.folder_of_phase(None) == run.folder_of_phase("b").whole_run == run


def test_state_is_read_back_unchanged_and_is_None_before_the_start(run):
    assert run.read_state() is None
    for step in (1, 2):
        written = state(step=step, next=coming(command="rampcli ‹ü›"))
        run.write_state(written)
        assert run.read_state() == written


def test_readers_see_a_whole_state_during_writes_and_after_the_writer_is_killed(run):
    program = (
        "import sys, itertools; from pathlib import Path\n"
        "from rampcli.runs.directory import RunDirectory\n"
        "run = RunDirectory(Path(sys.argv[1]))\n"
        "for turn in itertools.count():\n"
        "    counts = {'step': turn, 'consumed_samples': turn, 'stage': 0}\n"
        "    run.write_state({'status': 'x' * 100_000, **counts, 'next': None})\n"
        "    print(turn, flush=True)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", program, str(run.path)],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    try:
        states = [run.read_state() for _ in islice(writer.stdout, 30) for _ in range(10)]
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    states.append(run.read_state())
    assert len(states) == 301
    assert all(state["step"] == state["consumed_samples"] for state in states)
    assert states[-1]["step"] >= 29


def test_an_event_has_its_kind_facts_and_time(run):
    run.append_event("launch", world_size=2)
    run.append_event("exit")
    launch, exited = read_rows(run.events)
    assert launch == {"event": "launch", "time": launch["time"], "world_size": 2}
    assert exited == {"event": "exit", "time": exited["time"]}
    assert 1.7e9 < launch["time"] <= exited["time"]


def test_threads_may_append_rows_at_the_same_time(run):
    with ThreadPoolExecutor(8) as threads:
        deque(
            threads.map(
                lambda number: run.append_event("note", number=number, text="x" * 5000), range(200)
            )
        )
    assert sorted(row["number"] for row in read_rows(run.events)) == list(range(200))


def test_metrics_of_steps_that_will_be_taken_again_are_dropped(run):
    for step in range(1, 6):
        run.append_row(run.metrics, metrics_row(step=step, loss=1 / step))
    before = run.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    run.metrics.write_text("".join(before) + '{"step": 6, "lo', encoding="utf-8")
    run.drop_rows_after(3)
    assert run.metrics.read_text(encoding="utf-8") == "".join(before[:3])
    run.append_row(run.metrics, metrics_row(step=4))
    assert [row["step"] for row in read_rows(run.metrics)] == [1, 2, 3, 4]


def test_dropped_steps_are_recorded_as_lost_work(run):
    run.drop_rows_after(0)
    assert not run.events.exists()
    for step in range(1, 6):
        row = metrics_row(step=step, consumed_samples=4 * step, time=100.0 + step)
        run.append_row(run.metrics, row)
    run.drop_rows_after(3)
    run.set_metrics_aside()
    first, second = read_rows(run.events)
    for event, step, samples, steps, last in ((first, 3, 12, 2, 105.0), (second, 0, 0, 3, 103.0)):
        assert event == {
            "event": "lost",
            "time": event["time"],
            "step": step,
            "consumed_samples": samples,
            "steps": steps,
            "lost_s": 0.5 * steps,
            "last_step_at": last,
        }


def test_responses_of_steps_that_will_be_taken_again_are_dropped(run):
    for step in (2, 4):
        run.append_row(run.responses, {"step": step, "response": str(step)})
    run.drop_rows_after(3)
    assert [row["response"] for row in read_rows(run.responses)] == ["2"]


def test_a_run_without_metrics_has_none_to_drop(run):
    run.drop_rows_after(3)
    assert list(read_rows(run.metrics)) == []
    assert not run.responses.exists()


def test_metrics_are_set_aside_under_a_new_name(run):
    assert run.set_metrics_aside() is None
    (run.trackers / "wandb").mkdir(parents=True)
    run.metrics.touch()  # a start that failed has dropped its rows
    assert run.set_metrics_aside() is None
    assert not run.trackers.exists()
    for number in (1, 2):
        run.append_row(run.metrics, metrics_row(step=number))
        run.append_row(run.responses, {"step": number})
        aside = run.set_metrics_aside()
        assert (aside.name, run.metrics.exists()) == (f"metrics.{number}.jsonl", False)
        assert not run.responses.exists()
        assert [row["step"] for row in read_rows(aside)] == [number]


def test_a_run_directory_of_an_earlier_version_is_recognised_and_a_foreign_folder_is_not(
    run, tmp_path
):
    run.config.write_text("name: run\n")
    run.write_state(state())
    run.claim()
    assert run.is_claimed()
    foreign = RunDirectory(tmp_path / "foreign")
    foreign.path.mkdir()
    for name in ("config.yaml", "plan.json"):
        (foreign.path / name).write_text("mine")
    with pytest.raises(UsageError, match="not empty, and rampcli did not make it"):
        foreign.claim()
    assert sorted(path.name for path in foreign.path.iterdir()) == ["config.yaml", "plan.json"]


def test_a_run_is_found_by_its_path_or_by_its_name_below_runs(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in ("runs/single", "single", "runs/other"):
        Path(name).mkdir(parents=True)
    for name in ("runs/single", "runs/other"):
        Path(name, "config.yaml").touch()
    found = {
        word: find_run(word).path for word in ("single", "runs/single", "other", "./runs/other")
    }
    assert found == {word: Path("runs", Path(word).name) for word in found}
    Path("single/config.yaml").touch()
    assert find_run("single").path == Path("single")
    for word in ("nowhere", "", ".", "..", "runs", "../single"):
        with pytest.raises(UsageError, match="is not a run directory"):
            find_run(word)


def test_the_runs_in_a_folder_are_those_of_rampcli_and_the_newest_is_first(tmp_path):
    assert runs_in(tmp_path / "nowhere") == []
    for age, name in enumerate(("b", "a", "earlier", "foreign", "unstarted")):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir()
        run.config.touch()
        if name not in ("foreign", "earlier"):
            run.mark()
        if name not in ("foreign", "unstarted"):
            run.write_state(state())
            os.utime(run.state, (1e9 - age, 1e9 - age))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "file").touch()
    assert [run.path.name for run in runs_in(tmp_path)] == ["b", "a", "earlier", "unstarted"]
    RunDirectory(tmp_path / "unstarted").events.touch()
    assert runs_in(tmp_path)[0].path.name == "unstarted"


def test_a_plan_is_read_if_there_is_one_and_checked(tmp_path):
    run = RunDirectory(tmp_path)
    assert run.read_plan() is None
    (tmp_path / "plan.json").write_text('{"sequence_length": 8, "stages": [{"stage": -1}]}')
    with pytest.raises(DamagedFileError, match=r"stages\[0\].stage"):
        run.read_plan()
