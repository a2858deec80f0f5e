import tempfile
from pathlib import Path

import pytest

from rampcli.errors import UsageError
from rampcli.runs.directory import RunDirectory
from rampcli.runs.worker_defaults import ON_GPUS, OTHER_NAMES, recorded, set_defaults

CACHE, FLIGHT_RECORD = "TORCHINDUCTOR_CACHE_DIR", "TORCH_FR_DUMP_TEMP_FILE"


@pytest.fixture
def set_in(tmp_path, monkeypatch):
    """Sets the defaults of rank 3 in an environment with a home folder, and returns it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def set_in(**environment):
        environment = {
            "XDG_CACHE_HOME": str(tmp_path / "home"),
            "MASTER_PORT": "4711",
        } | environment
        set_defaults(RunDirectory(Path("run")), rank="3", environment=environment)
        return environment

    return set_in


@pytest.mark.parametrize("name", [*ON_GPUS, FLIGHT_RECORD, CACHE])
def test_defaults_are_set_and_recorded_and_those_of_the_user_are_kept(set_in, name):
    assert recorded(set_in())[name] == set_in()[name]
    assert recorded(set_in(**{name: "as the user has it"}))[name] == "as the user has it"


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_variable_that_the_user_has_set_by_its_earlier_name_is_kept_too(set_in, name):
    environment = set_in(**{OTHER_NAMES[name]: "as the user has it"})
    assert name not in environment
    assert recorded(environment)[OTHER_NAMES[name]] == "as the user has it"


def test_the_last_collectives_go_into_the_logs_of_the_run_and_not_through_a_link(set_in, tmp_path):
    logs = tmp_path / "run" / "logs"
    assert set_in()[FLIGHT_RECORD] == f"{logs}/flight_record_4711_rank_"
    logs.mkdir(parents=True)
    link = logs / "flight_record_4711_rank_3"
    link.symlink_to(tmp_path / "elsewhere")
    set_in()
    assert not link.is_symlink()


def test_a_folder_for_compiled_layers_is_made_only_if_the_user_has_chosen_none(set_in, tmp_path):
    set_in(**{CACHE: "elsewhere"})
    assert not (tmp_path / "home").exists()
    assert set_in()[CACHE] == str(tmp_path / "home" / "rampcli" / "compiled")
    assert (tmp_path / "home" / "rampcli" / "compiled").is_dir()


def test_without_a_writable_home_compiled_layers_are_kept_in_a_private_folder(set_in, tmp_path):
    (tmp_path / "file").touch()
    folder = Path(set_in(XDG_CACHE_HOME=str(tmp_path / "file"))[CACHE])
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="is not a folder that only you can write to"):
        set_in(XDG_CACHE_HOME=str(tmp_path / "file"))


def test_each_node_of_a_slurm_job_keeps_compiled_layers_on_its_own_disk(set_in, tmp_path):
    assert Path(set_in(SLURM_JOB_ID="7")[CACHE]).parent == tmp_path
    assert not (tmp_path / "home").exists()
