import pytest

from rampcli.errors import RampcliError
from rampcli.launch.slurm import commands


@pytest.fixture
def slurm_says(programs):
    """Makes Slurm programs that fail with a message.

    Test clusters have no accounting, limits or faults that would cause these messages.
    """

    def say(words: str) -> None:
        names = ("sbatch", "squeue", "scancel", "scontrol")
        programs(**{name: f"echo '{name}: error: {words}' >&2; exit 1" for name in names})

    return say


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (
            "Batch job submission failed: Invalid account or account/partition combination"
            " specified",
            "launch.slurm.account",
        ),
        ("Batch job submission failed: Invalid partition name specified", "launch.slurm.partition"),
        ("Batch job submission failed: Invalid qos specification", "launch.slurm.qos"),
        (
            "Batch job submission failed: Requested time limit is invalid"
            " (missing or exceeds some limit)",
            "launch.slurm.time",
        ),
        ("Invalid --time specification", "launch.slurm.time"),
        (
            "Batch job submission failed: Memory specification can not be satisfied",
            "launch.slurm.mem",
        ),
        (
            "Batch job submission failed: Invalid generic resource (gres) specification",
            "launch.slurm.gpus_per_node",
        ),
        (
            "Batch job submission failed: Requested node configuration is not available",
            "trainer.num_nodes",
        ),
    ],
)
def test_an_error_of_slurm_is_shown_with_the_setting_that_it_concerns(
    tmp_path, slurm_says, words, key
):
    slurm_says(words)
    (tmp_path / "script").write_text("#!/bin/bash\n")
    with pytest.raises(RampcliError) as refused:
        commands.submit(tmp_path / "script", folder=tmp_path)
    assert refused.value.message == f"sbatch: {words}"
    assert refused.value.keys[0] == key
    assert refused.value.remedy
    assert refused.value.exit_code == 1


def test_a_controller_that_does_not_answer_is_an_error(slurm_says):
    slurm_says("Unable to contact slurm controller (connect failure)")
    for act in (
        lambda: commands.jobs_by_id(["1"]),
        commands.jobs_of_this_user,
        lambda: commands.cancel(["1"]),
        lambda: commands.requeue("1"),
    ):
        with pytest.raises(RampcliError, match="Unable to contact") as refused:
            act()
        assert "scontrol ping" in str(refused.value)


def test_a_command_that_hangs_is_given_up(programs, monkeypatch):
    programs(squeue="exec sleep 60")
    monkeypatch.setattr(commands, "TIME_LIMIT_S", 0.2)
    with pytest.raises(RampcliError, match=r"squeue did not answer within 0\.2 s"):
        commands.jobs_of_this_user()


def test_missing_programs_are_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "script").write_text("#!/bin/bash\n")
    with pytest.raises(RampcliError, match="sbatch is not on PATH") as refused:
        commands.submit(tmp_path / "script", folder=tmp_path)
    assert refused.value.keys == ("launch.launcher",)
    assert "launch=local" in str(refused.value)


@pytest.fixture
def sbatch(tmp_path, programs):
    """Makes an sbatch that prints given text and records its environment."""

    def answer(words: str) -> None:
        programs(sbatch=f"env -0 >{tmp_path}/environment; printf -- '{words}'")
        (tmp_path / "script").write_text("#!/bin/bash\n")

    return answer


@pytest.mark.parametrize(("path", "inherited"), [(":", None), ("/a::/b:", "/a:/b"), ("", None)])
def test_jobs_do_not_inherit_the_working_directory_in_pythonpath(
    tmp_path, sbatch, monkeypatch, path, inherited
):
    monkeypatch.setenv("PYTHONPATH", path)
    sbatch("7;cluster")
    assert commands.submit(tmp_path / "script", folder=tmp_path) == "7"
    environment = dict(
        entry.split("=", 1) for entry in (tmp_path / "environment").read_text().split("\0")[:-1]
    )
    assert environment.get("PYTHONPATH") == inherited
    assert environment["PYTHONSAFEPATH"] == "1"


@pytest.mark.parametrize(
    "words", ["", "Submitted batch job 7", "7_1", "7+0", "--user=root", "1,2", "\033[2J7", "0"]
)
def test_output_that_is_not_a_job_id_is_shown(tmp_path, sbatch, words):
    sbatch(words)
    with pytest.raises(RampcliError, match="instead of a job ID") as refused:
        commands.submit(tmp_path / "script", folder=tmp_path)
    assert str(refused.value).replace("\n", "").isprintable()
