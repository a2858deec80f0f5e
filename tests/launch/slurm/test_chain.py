import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rampcli.cli.cancel import ask_to_save
from rampcli.errors import DamagedFileError, UsageError
from rampcli.launch.slurm import chain
from rampcli.launch.slurm.commands import QUEUE_FORMAT
from rampcli.launch.slurm.launcher import LAUNCHER
from rampcli.runs.directory import RunDirectory
from run_files import chained_job

JOB = chained_job(dependency="6")
CHAIN = {"jobs": [JOB], "submitted": 1.5, "cancelled": False}
DEEP, MOST_JOBS = "[" * 100_000, 3
WRONG = (
    "--user=root",
    "-u",
    "1,2",
    "1 2",
    "1\n",
    "1_2",
    "1+0",
    "0",
    "-1",
    "٣",
    "",
    "1" * 11,
    "\x1b[2J",
    "a/b",
    "..",
    None,
    1,
    1.5,
    True,
    [],
    {},
)


@pytest.fixture
def directory(tmp_path, monkeypatch, programs) -> RunDirectory:
    """A run directory, with Slurm programs that record their arguments."""
    names = ("sbatch", "squeue", "scancel", "scontrol")
    programs(**{name: f'printf "%s\\n" {name} "$@" >>{tmp_path}/asked' for name in names})
    monkeypatch.setattr(chain, "MOST_JOBS", MOST_JOBS)  # many would take long to read
    (tmp_path / "run/slurm").mkdir(parents=True)
    return RunDirectory(tmp_path / "run")


def record(directory: RunDirectory) -> Path:
    return directory.path / "slurm/jobs.json"


def asked(directory: RunDirectory) -> list[str]:
    """Returns the arguments that Slurm's programs were given."""
    path = directory.path.parent / "asked"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def assert_refused(directory: RunDirectory, error: type[Exception]) -> None:
    for act in (
        LAUNCHER.jobs,
        LAUNCHER.is_cancelled,
        LAUNCHER.refuse_active,
        LAUNCHER.cancel,
        ask_to_save,
        lambda run: LAUNCHER.submit(run, []),
    ):
        with pytest.raises(error) as refused:
            act(directory)
        assert str(refused.value).replace("\n", "").isprintable()
    assert asked(directory) == []


DAMAGED = {
    "empty": b"",
    "no text": b"\xff\xfe",
    "a list": b"[]",
    "no fields": b"{}",
    "null": b"null",
    "deep": DEEP.encode(),
    "no JSON": b'{"jobs": NaN}',
    "too large": b" " * (chain.MOST_CHAIN_BYTES + 1),
    "too many jobs": json.dumps(CHAIN | {"jobs": [JOB] * (MOST_JOBS + 1)}).encode(),
    "a word for a time": json.dumps(CHAIN | {"submitted": "now"}).encode(),
    "a number for a truth": json.dumps(CHAIN | {"cancelled": 0}).encode(),
    **{
        f"without {name}": json.dumps({key: CHAIN[key] for key in CHAIN.keys() - {name}}).encode()
        for name in CHAIN
    },
    **{
        f"a job without {name}": json.dumps(
            CHAIN | {"jobs": [{key: JOB[key] for key in JOB.keys() - {name}}]}
        ).encode()
        for name in JOB
    },
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_is_refused_without_asking_slurm(directory, content):
    record(directory).write_bytes(content)
    assert_refused(directory, DamagedFileError)
    assert record(directory).read_bytes() == content


@pytest.mark.parametrize("field", JOB)
def test_a_record_with_a_field_that_no_submission_writes_is_refused(directory, field):
    allowed = {
        "name": ("-u", "1_2", "1+0", "0", "-1", "1" * 11, ".."),
        "num_nodes": (1,),
        "job": (None,),
        "dependency": (None,),
    }
    allowed |= {"stages": ([],), "global_batch_sizes": ([],)}
    for value in WRONG:
        if not any(
            value is one or (value == one and type(value) is type(one))
            for one in allowed.get(field, ())
        ):
            record(directory).write_text(json.dumps(CHAIN | {"jobs": [JOB | {field: value}]}))
            assert_refused(directory, DamagedFileError)


texts = st.one_of(st.text(max_size=8), st.from_regex(r"\A-{0,2}[a-z0-9=,_+ ]{1,8}\Z"))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3),
)


@given(
    job=st.fixed_dictionaries({}, optional=dict.fromkeys(JOB, values)),
    facts=st.fixed_dictionaries({}, optional=dict.fromkeys(CHAIN, values)),
)
@example(job={}, facts={})
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_slurm_is_only_ever_asked_about_numbers(directory, job, facts):
    (directory.path.parent / "asked").unlink(missing_ok=True)
    record(directory).write_text(json.dumps(CHAIN | {"jobs": [JOB | job]} | facts))
    try:
        LAUNCHER.cancel(directory)
    except DamagedFileError:
        assert asked(directory) == []
    ours = {
        "squeue",
        "--noheader",
        "--states=all",
        f"--format={QUEUE_FORMAT}",
        f"--user={os.getuid()}",
    }
    assert all(
        word in ours or (word.startswith("--jobs=") and word[7:].isdecimal() and word.isascii())
        for word in asked(directory)
    )


@pytest.mark.parametrize("name", ["slurm", "slurm/jobs.json", "logs", "logs/stage_0.7.log"])
def test_nothing_is_submitted_through_a_link(directory, name):
    outside = directory.path.parent / "outside"
    outside.mkdir()
    (outside / "jobs.json").write_text(json.dumps(CHAIN))
    link = directory.path / name
    if name == "slurm":
        link.rmdir()
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside / "jobs.json" if "." in name else outside)
    with pytest.raises(UsageError, match=f"{name} is a symbolic link"):
        LAUNCHER.submit(directory, [])
    if "slurm" in name:
        assert_refused(directory, UsageError)
    assert asked(directory) == []
    assert [path.name for path in outside.iterdir()] == ["jobs.json"]
    assert json.loads((outside / "jobs.json").read_text()) == CHAIN


def test_a_record_that_is_not_a_regular_file_is_refused(directory):
    os.mkfifo(record(directory))
    assert_refused(directory, DamagedFileError)
    record(directory).unlink()
    record(directory).mkdir()
    assert_refused(directory, DamagedFileError)


def test_a_record_may_have_fields_of_a_later_version(directory):
    record(directory).write_text(json.dumps(CHAIN | {"newer": 1, "jobs": [JOB | {"newer": 1}]}))
    assert chain.read(directory).jobs[0].job == "7"
