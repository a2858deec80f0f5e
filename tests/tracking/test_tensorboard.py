import pytest

from rampcli.errors import UsageError
from rampcli.runs.directory import RunDirectory
from rampcli.tracking.tensorboard import TensorBoard
from rampcli.tracking.tracker import Position
from tracked import read_tensorboard


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.claim()
    directory.make_folder(directory.trackers)
    return directory


def log_steps(tracker, *steps: int) -> None:
    for step in steps:
        metrics = {"samples": 4 * step, "tokens": 64 * step, "train/loss": 1 / step}
        tracker.log(metrics, step, time=1000.0 + step)


def test_points_after_the_position_of_a_killed_process_are_cut_off(run):
    killed = TensorBoard(run, Position())
    log_steps(killed, 1, 2, 3)
    killed.flush()
    position = Position(step=3, facts=dict(killed.facts))
    log_steps(killed, 4, 5)
    killed.flush()  # the position was not saved any more
    resumed = TensorBoard(run, position)
    log_steps(resumed, 4, 5, 6)
    resumed.close()
    curves = read_tensorboard(run.trackers / "tensorboard")
    assert [step for step, _ in curves["train/loss"]] == [1, 2, 3, 4, 5, 6]
    assert [at for at, _ in curves["train/loss vs tokens"]] == [64, 128, 192, 256, 320, 384]


def test_the_settings_are_a_table(run):
    tracker = TensorBoard(run, Position())
    not_utf8 = "\udcff.txt"  # Python's form of a file name that is not UTF-8
    tracker.log_config({"model.hidden_size": 128, "data.path": not_utf8})
    tracker.close()
    ((step, (text,)),) = read_tensorboard(run.trackers / "tensorboard")["settings"]
    assert step == 0
    assert text.splitlines()[2:] == [
        b"| `model.hidden_size` | `128` |",
        rb"| `data.path` | `\udcff.txt` |",
    ]


@pytest.mark.parametrize("name", ["../../config.yaml", "/etc/hosts", "events.out.tfevents.1.x"])
def test_only_its_own_event_files_are_cut(run, name):
    (run.path / "config.yaml").write_text("name: run\n")
    TensorBoard(run, Position(facts={"file": name, "bytes": 0})).close()
    assert (run.path / "config.yaml").read_text() == "name: run\n"


def test_a_link_in_its_folder_is_not_followed(run, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (run.trackers / "tensorboard").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="is a symbolic link"):
        TensorBoard(run, Position())
    assert list((tmp_path / "elsewhere").iterdir()) == []
