import json
import subprocess
import sys
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.errors import DamagedFileError, UsageError
from rampcli.run_directory import RunDirectory, Tail, read_rows
from run_files import coming, metrics_row, state

ROWS = st.lists(
    st.dictionaries(
        st.text(max_size=4), st.integers() | st.text(max_size=8) | st.none(), max_size=3
    ),
    max_size=6,
)


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


def test_state_is_read_back_unchanged_and_is_None_before_the_start(run):
    assert run.read_state() is None
    for step in (1, 2):
        written = state(step=step, next=coming(command="rampcli ‹ü›"))
        run.write_state(written)
        assert run.read_state() == written


def test_readers_see_a_whole_state_during_writes_and_after_the_writer_is_killed(run):
    program = (
        "import sys, itertools; from pathlib import Path\n"
        "from rampcli.run_directory import RunDirectory\n"
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


@given(rows=ROWS)
def test_rows_are_read_in_order_as_they_were_appended(rows, tmp_path_factory):
    run = RunDirectory(tmp_path_factory.mktemp("rows"))
    written = [{"event": "note", "time": 1.0, "facts": row} for row in rows]
    for row in written:
        run.append_row(run.events, row)
    assert list(read_rows(run.events)) == written


def test_a_missing_file_has_no_rows(tmp_path):
    assert list(read_rows(tmp_path / "rows.jsonl")) == []


@pytest.mark.parametrize("kept", range(16))
def test_an_incomplete_last_row_is_ignored(run, kept):
    run.append_row(run.metrics, metrics_row(step=1))
    whole = run.metrics.read_bytes()
    run.append_row(run.metrics, metrics_row(step=25))
    run.metrics.write_bytes(run.metrics.read_bytes()[: len(whole) + kept])
    assert list(read_rows(run.metrics)) == [metrics_row(step=1)]


def test_a_row_appended_after_an_incomplete_one_is_read(run):
    run.append_row(run.metrics, metrics_row(step=1))
    run.metrics.write_bytes(run.metrics.read_bytes() + b'{"st')
    run.append_row(run.metrics, metrics_row(step=2))
    assert list(read_rows(run.metrics)) == [metrics_row(step=1), metrics_row(step=2)]


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


def test_responses_of_steps_that_will_be_taken_again_are_dropped(run):
    for step in (2, 4):
        run.append_row(run.responses, {"step": step, "response": str(step)})
    run.drop_rows_after(3)
    assert [row["response"] for row in read_rows(run.responses)] == ["2"]


def test_a_run_without_metrics_has_none_to_drop(run):
    run.drop_rows_after(3)
    assert list(read_rows(run.metrics)) == []
    assert not run.responses.exists()


def event(name):
    return {"event": name, "time": 1.0}


def test_a_tail_yields_each_new_row_once_and_waits_for_the_end_of_a_line(run):
    run.append_row(run.events, event("old"))
    tail = Tail(run.events)
    tail.skip()
    assert list(tail.rows()) == []
    with run.events.open("a") as file:
        file.write('{"event": "a", "time": 1.0}\n{"event": "b"')
    assert list(tail.rows()) == [event("a")]
    with run.events.open("a") as file:
        file.write(', "time": 1.0}\n')
    assert list(tail.rows()) == [event("b")]
    assert list(tail.rows()) == []


def test_a_tail_reads_a_row_that_replaces_an_incomplete_one(run):
    run.append_row(run.events, event("old"))
    run.events.write_bytes(run.events.read_bytes() + b'{"cut o')
    tail = Tail(run.events)
    tail.skip()
    run.append_row(run.events, event("longer than what was cut off"))
    assert list(tail.rows()) == [event("longer than what was cut off")]


def test_a_tail_waits_for_a_file_that_does_not_exist_yet(run):
    tail = Tail(run.events)
    tail.skip()
    assert list(tail.rows()) == []
    run.append_row(run.events, event("first"))
    assert list(tail.rows()) == [event("first")]


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b'{"step": 2}',
        b'{"step": 2, "loss": NaN}',
        b"[" * 200_000,
        b"\xff\xfe",
        b"x" * 2**21,
        json.dumps(metrics_row(step=-1)).encode(),
        json.dumps(metrics_row(step="2")).encode(),
        json.dumps(metrics_row(step=True)).encode(),
        json.dumps(metrics_row(world_size=0)).encode(),
        json.dumps(metrics_row(step_time_s=0)).encode(),
        json.dumps(metrics_row(consumed_samples=10**30)).encode(),
        b'{"step": ' + b"1" * 5000 + b"}",
    ],
    ids=range(13),
)
def test_a_damaged_row_is_one_error(run, line):
    run.append_row(run.metrics, metrics_row())
    run.metrics.write_bytes(run.metrics.read_bytes() + line + b"\n")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl.* is damaged"):
        list(read_rows(run.metrics))


def test_metrics_are_set_aside_under_a_new_name(run):
    assert run.set_metrics_aside() is None
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
