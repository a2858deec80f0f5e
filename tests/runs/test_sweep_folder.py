import pytest

from rampcli.errors import DamagedFileError, UsageError
from rampcli.runs.sweep_folder import MOST_FOLDER_RUNS, MOST_SETTINGS, SweepFolder, find_sweep


@pytest.fixture
def folder(tmp_path):
    sweep = SweepFolder(tmp_path / "runs/mine_sweep")
    sweep.claim()
    return sweep


def test_runs_of_the_last_command_come_first_in_its_order_and_none_is_forgotten(folder):
    assert folder.read() == {}
    one, two, three = ({"seed": str(number)} for number in (1, 2, 3))
    folder.add({"seed=1": one, "seed=3": three})
    folder.add({"seed=3": three, "seed=2": two})
    assert list(folder.read().items()) == [("seed=3", three), ("seed=2", two), ("seed=1", one)]


def test_a_sweep_is_found_by_path_and_by_name(folder):
    assert find_sweep(str(folder.path)) == folder
    assert find_sweep("mine_sweep").path.resolve() == folder.path.resolve()
    assert find_sweep("runs") is None


@pytest.mark.parametrize("name", ["", ".", "..", "/etc", "a/b", "a\0", "a\ud800", "a\x1b"])
def test_a_list_holds_names_of_folders_in_the_folder(folder, name):
    folder.add({name: {"seed": "1"}})
    with pytest.raises(DamagedFileError, match="is not a name"):
        folder.read()


def test_a_run_that_is_a_link_is_refused(folder, tmp_path):
    (folder.path / "seed=1").symlink_to(tmp_path)
    with pytest.raises(UsageError, match="symbolic link"):
        folder.run_path("seed=1")


@pytest.mark.parametrize(
    ("values", "excess"),
    [
        ([{}] * (MOST_FOLDER_RUNS + 1), "more than 5,000 runs"),
        (
            [{f"key_{number}": "1"} for number in range(MOST_SETTINGS + 1)],
            "runs that differ in more than 100 settings",
        ),
    ],
)
def test_a_list_too_long_for_a_table_is_neither_written_nor_read(folder, values, excess):
    names = [f"seed={number}" for number in range(len(values))]
    with pytest.raises(UsageError, match=f"would have {excess}"):
        folder.add(dict(zip(names, values, strict=True)))
    assert folder.read() == {}
    runs = [{"folder": name, "values": of} for name, of in zip(names, values, strict=True)]
    folder.write_json(folder.listing, {"runs": runs})
    with pytest.raises(DamagedFileError, match=f"lists {excess}"):
        folder.read()
