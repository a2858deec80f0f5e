import pytest

from rampcli.errors import DamagedFileError
from rampcli.files.checksums import sha256
from rampcli.files.guarded_folder import write_json
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import (
    MANIFEST,
    complete_checkpoints,
    consumed_samples,
    name_remedy,
    newest_checkpoint,
    read_checkpoints,
    remove_checkpoints_from,
    remove_old_checkpoints,
)
from run_files import manifest


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.path.mkdir()
    directory.checkpoints.mkdir()
    return directory


def save(run, step, *, complete=True):
    folder = run.checkpoint_folder(step)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes([step % 256]) * 100)
    if complete:
        files = {
            "model.safetensors": {"bytes": 100, "sha256": sha256(folder / "model.safetensors")}
        }
        content = manifest(step=step, consumed_samples=8 * step, files=files)
        write_json(folder / MANIFEST, content)
    return folder


def steps(run):
    return [checkpoint.step for checkpoint in complete_checkpoints(run)]


def test_checkpoints_are_found_in_the_order_of_their_steps(run):
    for step in (90, 7, 123_456_789, 100):
        save(run, step)
    assert steps(run) == [7, 90, 100, 123_456_789]
    assert [checkpoint.consumed_samples for checkpoint in complete_checkpoints(run)] == [
        56,
        720,
        800,
        987_654_312,
    ]
    assert complete_checkpoints(run)[0].path == run.checkpoint_folder(7)


def test_a_folder_without_a_manifest_or_with_another_name_is_not_a_checkpoint(run):
    save(run, 5)
    save(run, 6, complete=False)
    save(run, 7).rename(run.checkpoints / "step_00000007.tmp")
    save(run, 8).rename(run.checkpoints / "step_8")
    assert steps(run) == [5]


def test_a_checkpoint_that_was_renamed_is_kept_and_offered_its_name(run):
    save(run, 5).rename(run.checkpoints / "step_5_best")
    save(run, 6).rename(run.checkpoints / "step_00000006.tmp")
    save(run, 8)
    assert f"step_5_best {run.checkpoint_folder(5)}" in name_remedy(run)
    assert [name_remedy(run, step=step) for step in (6, 8, 9)] == [None, None, None]
    remove_old_checkpoints(run, keep_last=1)
    names = {path.name for path in run.checkpoints.iterdir()}
    assert names == {"step_5_best", "step_00000008"}
    save(run, 5)
    assert name_remedy(run) is None


def test_a_run_that_has_not_started_has_no_checkpoints(tmp_path):
    nowhere = RunDirectory(tmp_path / "nowhere")
    assert complete_checkpoints(nowhere) == []
    assert consumed_samples(nowhere) == 0


def test_a_run_has_consumed_the_samples_of_its_newest_checkpoint(run):
    for step in (5, 9):
        save(run, step)
    assert consumed_samples(run) == 72


def test_a_whole_checkpoint_has_no_damage(run):
    save(run, 5)
    assert complete_checkpoints(run)[0].damage() is None


@pytest.mark.parametrize(
    ("content", "damage"),
    [
        (None, "model.safetensors is missing"),
        (bytes([5]) * 99, "model.safetensors has 99 bytes instead of 100"),
        (
            bytes([5]) * 99 + bytes([4]),
            "model.safetensors does not have the checksum in its manifest",
        ),
    ],
)
def test_the_damage_of_a_checkpoint_is_described(run, content, damage):
    file = save(run, 5) / "model.safetensors"
    if content is None:
        file.unlink()
    else:
        file.write_bytes(content)
    assert complete_checkpoints(run)[0].damage() == damage


@pytest.mark.parametrize(
    ("keep", "left"), [(1, [30]), (2, [20, 30]), (3, [10, 20, 30]), (9, [10, 20, 30])]
)
def test_the_newest_complete_checkpoints_are_kept_and_all_others_removed(run, keep, left):
    for step in (10, 20, 30):
        save(run, step)
    save(run, 40, complete=False)
    remove_old_checkpoints(run, keep_last=keep)
    assert steps(run) == left
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        f"step_{step:08d}" for step in left
    ]
    assert all(checkpoint.damage() is None for checkpoint in complete_checkpoints(run))


@pytest.mark.parametrize(("keep", "left"), [(1, [30]), (2, [20, 30]), (3, [10, 20, 30])])
def test_a_damaged_checkpoint_is_removed_once_there_are_enough_newer_ones(run, keep, left):
    for step in (10, 20, 30):
        save(run, step)
    (run.checkpoint_folder(10) / MANIFEST).write_text("{")
    remove_old_checkpoints(run, keep_last=keep)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        f"step_{step:08d}" for step in left
    ]


def test_checkpoints_of_steps_that_were_taken_again_are_removed(run):
    for step in (10, 20, 30):
        save(run, step)
    remove_checkpoints_from(run, 20)
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step_00000010"]


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
def test_a_damaged_manifest_is_skipped_and_reported(run, facts):
    save(run, 5)
    write_json(save(run, 7) / MANIFEST, manifest() | facts)
    assert steps(run) == [5]
    damaged = read_checkpoints(run)[1][7]
    assert "step_00000007/manifest.json is damaged" in damaged.message


def test_a_run_with_only_damaged_manifests_does_not_count_as_one_without_checkpoints(run):
    (save(run, 7) / MANIFEST).write_text("{")
    with pytest.raises(DamagedFileError, match="manifest"):
        complete_checkpoints(run)


def test_the_newest_checkpoint_is_the_last_of_the_complete_ones(run):
    assert newest_checkpoint(run) is None
    save(run, 8, complete=False)
    assert newest_checkpoint(run) is None
    save(run, 5)
    (save(run, 9) / MANIFEST).write_text("{")
    assert newest_checkpoint(run).step == steps(run)[-1] == 5
    (run.checkpoint_folder(5) / MANIFEST).write_text("{")
    with pytest.raises(DamagedFileError, match="step_00000009"):
        newest_checkpoint(run)
