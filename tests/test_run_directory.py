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

from rampcli.checksums import sha256
from rampcli.errors import DamagedFileError, UsageError
from rampcli.own_folder import write_json
from rampcli.run_directory import MANIFEST, RunDirectory, Tail, read_rows
from run_files import coming, manifest, metrics_row, state

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
    directory.checkpoints.mkdir()
    return directory


def save(run, step, *, samples=None, complete=True):
    folder = run.checkpoint_folder(step)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes([step % 256]) * 100)
    if complete:
        files = {
            "model.safetensors": {"bytes": 100, "sha256": sha256(folder / "model.safetensors")}
        }
        consumed_samples = 8 * step if samples is None else samples
        write_json(
            folder / MANIFEST, manifest(step=step, consumed_samples=consumed_samples, files=files)
        )
    return folder


def steps(run):
    return [checkpoint.step for checkpoint in run.complete_checkpoints()]


def test_the_files_of_a_run_are_where_the_documents_say(tmp_path):
    run = RunDirectory(tmp_path)
    names = [
        path.relative_to(tmp_path).as_posix()
        for path in (run.config, run.metrics, run.events, run.checkpoints, run.logs)
    ]
    assert names == ["config.yaml", "metrics.jsonl", "events.jsonl", "checkpoints", "logs"]
    assert run.checkpoint_folder(123) == tmp_path / "checkpoints" / "step_00000123"


def test_the_state_is_read_as_it_was_written_and_is_none_before(run):
    assert run.read_state() is None
    for step in (1, 2):
        written = state(step=step, next=coming(command="rampcli ‹ü›"))
        run.write_state(written)
        assert run.read_state() == written


def test_a_reader_sees_a_whole_file_while_it_is_replaced_and_after_the_writer_is_killed(run):
    program = (
        "import sys, itertools; from pathlib import Path; from rampcli.run_directory import RunDirectory\n"
        "run = RunDirectory(Path(sys.argv[1]))\n"
        "for turn in itertools.count():\n"
        "    run.write_state({'status': 'x' * 100_000, 'step': turn, 'consumed_samples': turn, 'stage': 0, 'next': None})\n"
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
def test_rows_are_read_in_the_order_and_as_they_were_added(rows, tmp_path_factory):
    run = RunDirectory(tmp_path_factory.mktemp("rows"))
    written = [{"event": "note", "time": 1.0, "facts": row} for row in rows]
    for row in written:
        run.append_row(run.events, row)
    assert list(read_rows(run.events)) == written


def test_a_file_of_rows_that_is_not_there_has_none(tmp_path):
    assert list(read_rows(tmp_path / "rows.jsonl")) == []


@pytest.mark.parametrize("kept", range(16))
def test_a_last_row_that_was_cut_off_is_no_row(run, kept):
    run.append_row(run.metrics, metrics_row(step=1))
    whole = run.metrics.read_bytes()
    run.append_row(run.metrics, metrics_row(step=25))
    run.metrics.write_bytes(run.metrics.read_bytes()[: len(whole) + kept])
    assert list(read_rows(run.metrics)) == [metrics_row(step=1)]


def test_a_row_added_after_one_that_was_cut_off_is_read(run):
    run.append_row(run.metrics, metrics_row(step=1))
    run.metrics.write_bytes(run.metrics.read_bytes() + b'{"st')
    run.append_row(run.metrics, metrics_row(step=2))
    assert list(read_rows(run.metrics)) == [metrics_row(step=1), metrics_row(step=2)]


def test_an_event_carries_its_kind_its_facts_and_its_time(run):
    run.append_event("launch", world_size=2)
    run.append_event("exit")
    launch, exited = read_rows(run.events)
    assert launch == {"event": "launch", "time": launch["time"], "world_size": 2}
    assert exited == {"event": "exit", "time": exited["time"]}
    assert 1.7e9 < launch["time"] <= exited["time"]


def test_checkpoints_are_found_in_the_order_of_their_steps(run):
    for step in (90, 7, 123_456_789, 100):
        save(run, step)
    assert steps(run) == [7, 90, 100, 123_456_789]
    assert [checkpoint.consumed_samples for checkpoint in run.complete_checkpoints()] == [
        56,
        720,
        800,
        987_654_312,
    ]
    assert run.complete_checkpoints()[0].path == run.checkpoint_folder(7)


def test_a_folder_without_a_manifest_or_of_another_name_is_no_checkpoint(run):
    save(run, 5)
    save(run, 6, complete=False)
    save(run, 7).rename(run.checkpoints / "step_00000007.tmp")
    save(run, 8).rename(run.checkpoints / "step_8")
    assert steps(run) == [5]


def test_a_run_that_has_not_started_has_no_checkpoints(tmp_path):
    assert RunDirectory(tmp_path / "nowhere").complete_checkpoints() == []


def test_a_whole_checkpoint_has_no_damage(run):
    save(run, 5)
    assert run.complete_checkpoints()[0].damage() is None


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (None, "model.safetensors is missing"),
        (bytes([5]) * 99, "model.safetensors has 99 bytes instead of 100"),
        (bytes([5]) * 99 + bytes([4]), "model.safetensors has another checksum"),
    ],
)
def test_a_damaged_checkpoint_says_what_is_wrong(run, content, damage):
    file = save(run, 5) / "model.safetensors"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert run.complete_checkpoints()[0].damage() == damage


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [30]), (2, [20, 30]), (3, [10, 20, 30]), (9, [10, 20, 30])]
)
def test_the_newest_complete_checkpoints_are_kept_and_the_rest_is_gone(run, keep, left):
    for step in (10, 20, 30):
        save(run, step)
    save(run, 40, complete=False)
    run.remove_checkpoints(keep_last=keep)
    assert steps(run) == left
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        f"step_{step:08d}" for step in left
    ]
    assert all(checkpoint.damage() is None for checkpoint in run.complete_checkpoints())


@pytest.mark.parametrize(("keep", "left"), [(1, [30]), (2, [20, 30]), (3, [10, 20, 30])])
def test_a_damaged_checkpoint_goes_when_enough_newer_ones_are_there(run, keep, left):
    for step in (10, 20, 30):
        save(run, step)
    (run.checkpoint_folder(10) / MANIFEST).write_text("{")
    run.remove_checkpoints(keep_last=keep)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        f"step_{step:08d}" for step in left
    ]


def test_checkpoints_of_steps_that_were_taken_again_are_removed(run):
    for step in (10, 20, 30):
        save(run, step)
    run.remove_checkpoints_from(20)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_00000010"]


def test_rows_that_threads_add_at_a_time_are_all_there(run):
    with ThreadPoolExecutor(8) as threads:
        deque(
            threads.map(
                lambda number: run.append_event("note", number=number, text="x" * 5000), range(200)
            )
        )
    assert sorted(row["number"] for row in read_rows(run.events)) == list(range(200))


def test_steps_that_will_be_taken_again_leave_the_metrics(run):
    for step in range(1, 6):
        run.append_row(run.metrics, metrics_row(step=step, loss=1 / step))
    before = run.metrics.read_text(encoding="utf-8").splitlines(keepends=True)
    run.metrics.write_text("".join(before) + '{"step": 6, "lo', encoding="utf-8")
    run.forget_after(3)
    assert run.metrics.read_text(encoding="utf-8") == "".join(before[:3])
    run.append_row(run.metrics, metrics_row(step=4))
    assert [row["step"] for row in read_rows(run.metrics)] == [1, 2, 3, 4]


def test_forgetting_in_a_run_without_metrics_leaves_none(run):
    run.forget_after(3)
    assert list(read_rows(run.metrics)) == []


def event(name):
    return {"event": name, "time": 1.0}


def test_a_tail_gives_each_new_row_once_and_waits_for_the_end_of_a_line(run):
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


def test_a_row_that_replaces_one_that_was_cut_off_is_read_whole(run):
    run.append_row(run.events, event("old"))
    run.events.write_bytes(run.events.read_bytes() + b'{"cut o')
    tail = Tail(run.events)
    tail.skip()
    run.append_row(run.events, event("longer than what was cut off"))
    assert list(tail.rows()) == [event("longer than what was cut off")]


def test_a_file_that_does_not_exist_yet_has_no_rows(run):
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
def test_a_row_that_no_run_wrote_is_one_message(run, line):
    run.append_row(run.metrics, metrics_row())
    run.metrics.write_bytes(run.metrics.read_bytes() + line + b"\n")
    with pytest.raises(DamagedFileError, match=r"metrics\.jsonl.* is damaged"):
        list(read_rows(run.metrics))


def test_metrics_are_kept_aside_under_a_name_of_their_own(run):
    assert run.set_metrics_aside() is None
    for number in (1, 2):
        run.append_row(run.metrics, metrics_row(step=number))
        aside = run.set_metrics_aside()
        assert (aside.name, run.metrics.exists()) == (f"metrics.{number}.jsonl", False)
        assert [row["step"] for row in read_rows(aside)] == [number]


@pytest.mark.parametrize(
    "facts",
    [
        {"step": 6},
        {"consumed_samples": -1},
        {"files": {"../../secret": {"bytes": 1, "sums": "0"}}},
        {"files": {"/etc/passwd": {"bytes": 1, "sums": "0"}}},
        {"files": {"model.safetensors": {"bytes": 1}}},
        {"files": {"model.safetensors": {"bytes": -1, "sums": "0"}}},
        {"files": []},
        {"recent": [[1.0]]},
        {"settings": {"seed": {}}},
    ],
    ids=str,
)
def test_a_manifest_that_no_save_wrote_is_passed_over_for_an_older_one_and_named(run, facts):
    save(run, 5)
    write_json(save(run, 7) / MANIFEST, manifest() | facts)
    assert steps(run) == [5]
    _, (damaged,) = run.read_checkpoints()
    assert "step_00000007/manifest.json is damaged" in damaged.message


def test_where_every_manifest_is_damaged_a_run_does_not_pass_for_one_without_checkpoints(run):
    (save(run, 7) / MANIFEST).write_text("{")
    with pytest.raises(DamagedFileError, match="manifest"):
        run.complete_checkpoints()


def test_a_run_directory_of_an_earlier_version_is_recognised_and_a_folder_with_alike_names_is_not(
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
