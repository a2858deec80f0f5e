import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from processes import wait_until
from rampcli.errors import RampcliError, UsageError
from rampcli.launch.run import run, write_run_files
from rampcli.launch.slurm import chain, commands
from rampcli.launch.slurm.job import requeue_this_job
from rampcli.launch.slurm.launcher import LAUNCHER
from rampcli.launch.slurm.scripts import render_jobs
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.runs.directory import RunDirectory

LASTS = 'trap "exit 0" USR1\nfor _ in $(seq 600); do sleep 0.1; done\n'


@pytest.fixture
def directory(tmp_path) -> RunDirectory:
    return RunDirectory(tmp_path / "run")


def submit(resolved) -> chain.Chain:
    directory = RunDirectory(resolved.run_dir)
    directory.path.mkdir(exist_ok=True)
    LAUNCHER.submit(directory, render_jobs(resolved, directory))
    return chain.read(directory)


def started(interpreter: Path, job: str) -> list[str]:
    """Returns what a job has started: the folder, and the interpreter's arguments."""
    return os.fsdecode((interpreter.parent / f"started.{job}").read_bytes()).split("\0")[:-1]


def wait_until_started(interpreter: Path, job: str) -> None:
    """Waits until a job's script runs. A job that is disturbed before, though RUNNING, may fail."""
    wait_until((interpreter.parent / f"started.{job}").exists)


def environment_of(interpreter: Path, job: str) -> dict[str, str]:
    entries = os.fsdecode((interpreter.parent / f"started.{job}.env").read_bytes()).split("\0")[:-1]
    return dict(entry.split("=", 1) for entry in entries)


def states(directory: RunDirectory) -> list[str | None]:
    return [job.state for job in LAUNCHER.jobs(directory)]


def add_to(interpreter: Path, text: str) -> None:
    with interpreter.open("a") as script:
        script.write(text)


def test_jobs_run_one_after_another_each_on_the_nodes_of_its_stages(
    cluster, tiny, interpreter, directory
):
    resolved = tiny()
    jobs = [job.job for job in submit(resolved).jobs]
    cluster.wait_for(jobs[-1], "COMPLETED")
    facts = [cluster.job(job) for job in jobs]
    assert [fact["NumNodes"] for fact in facts] == ["1", "2", "3"]
    assert [fact["JobState"] for fact in facts] == ["COMPLETED"] * 3
    assert all(before["EndTime"] <= after["StartTime"] for before, after in pairwise(facts))
    for number, job in enumerate(jobs):
        assert started(interpreter, job) == [
            os.getcwd(),
            "-P",
            "-m",
            "rampcli.launch.slurm.job",
            str(directory.path),
            str(number),
        ]
        assert (directory.logs / f"stage_{number}.{job}.log").exists()
    assert LAUNCHER.active_jobs(directory) == []


def test_the_record_has_the_stages_and_the_dependency_of_each_job(cluster, tiny, directory):
    before = time.time()
    made = submit(tiny())
    record = json.loads((directory.path / "slurm/jobs.json").read_text())
    first, second, _ = (job["job"] for job in record["jobs"])
    assert record["jobs"][1] == {
        "job": second,
        "name": "llama3_tiny.stage1",
        "stages": [1],
        "num_nodes": 2,
        "global_batch_sizes": [2],
        "script": "slurm/stage_1.sbatch",
        "dependency": first,
    }
    assert before <= record["submitted"] + 0.001 <= time.time() + 0.001
    assert record["cancelled"] is False
    assert chain.read(directory) == made
    assert cluster.job(second)["WorkDir"] == str(directory.path)


def test_a_user_s_template_makes_the_jobs_and_those_after_a_failed_one_are_cancelled(
    cluster, tiny, interpreter, directory, tmp_path
):
    template = tmp_path / "own.j2"
    template.write_text(
        "#!/bin/bash\n#SBATCH --nodes={{ num_nodes }}\n#SBATCH --output={{ log | directive }}\n"
        "{{ python }} {{ run_dir }} {{ stages }}\nexit 3\n"
    )
    jobs = submit(tiny(f"launch.slurm.template={template}")).jobs
    for job in jobs[1:]:
        cluster.wait_for(job.job, "CANCELLED")
    assert states(directory) == ["FAILED", "CANCELLED", "CANCELLED"]
    assert LAUNCHER.jobs(directory)[0].reason == "NonZeroExitCode"
    assert started(interpreter, jobs[0].job) == [str(directory.path), str(directory.path), "0"]
    assert LAUNCHER.active_jobs(directory) == []


@pytest.mark.usefixtures("cluster")
def test_if_one_job_is_refused_the_others_are_cancelled_before_they_start(
    tiny, interpreter, directory, tmp_path
):
    template = tmp_path / "own.j2"
    refused = "{% if num_nodes == 3 %}\n#SBATCH --partition=nowhere\n{% endif %}\n"
    template.write_text(
        "#!/bin/bash\n#SBATCH --nodes={{ num_nodes }}\n" + refused + "exec {{ python }}\n"
    )
    with pytest.raises(
        RampcliError,
        match=r"nowhere.*cancelled the jobs that were already submitted: [0-9]+, [0-9]+",
    ) as error:
        submit(tiny(f"launch.slurm.template={template}"))
    assert error.value.keys == ("launch.slurm.partition",)
    assert states(directory) == ["CANCELLED", "CANCELLED", None]
    assert list(interpreter.parent.glob("started.*")) == []
    assert LAUNCHER.active_jobs(directory) == []


def test_a_run_with_queued_jobs_is_not_submitted_again(cluster, tiny, interpreter, directory):
    add_to(interpreter, LASTS)
    resolved = tiny()
    made = submit(resolved)
    with pytest.raises(
        UsageError, match=f"has jobs in the queue: {', '.join(job.job for job in made.jobs)}"
    ):
        submit(resolved)
    assert chain.read(directory) == made
    assert len(cluster.jobs().keys() & {job.job for job in LAUNCHER.active_jobs(directory)}) == 3


def interrupt_after(submissions: int, folder: Path) -> dict[str, str]:
    """Returns an environment whose sbatch kills its caller after the last submission.

    The job is submitted, but the caller does not learn its ID.
    """
    (folder / "bin").mkdir()
    program = folder / "bin/sbatch"
    program.write_text(
        f"""#!/bin/bash
answer=$({shutil.which("sbatch")} "$@") || exit
echo "$answer" >>{folder}/submitted
[ "$(wc -l <{folder}/submitted)" -lt {submissions} ] || kill -9 $PPID
echo "$answer"
"""
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}"}


SUBMIT = """
import sys
from pathlib import Path
from rampcli.planning.resolve import resolve
from rampcli.config.snapshot import read
from rampcli.launch.slurm.launcher import LAUNCHER
from rampcli.launch.slurm.scripts import render_jobs
from rampcli.runs.directory import RunDirectory
directory = RunDirectory(Path(sys.argv[1]))
LAUNCHER.submit(directory, render_jobs(resolve(read(directory.config)), directory))
"""


@pytest.mark.parametrize("submissions", [1, 2, 3])
def test_a_kill_during_submission_leaves_no_running_or_unknown_job_and_the_command_submits_again(
    cluster, tiny, interpreter, directory, tmp_path, submissions
):
    resolved = tiny()
    write_run_files(directory, resolved, [])
    killed = subprocess.run(
        [sys.executable, "-c", SUBMIT, directory.path],
        env=interrupt_after(submissions, tmp_path),
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    submitted = (tmp_path / "submitted").read_text().split()
    assert [job.job for job in LAUNCHER.active_jobs(directory)] == submitted
    assert chain.read(directory).submitted is None
    assert list(interpreter.parent.glob("started.*")) == []
    again = run(resolved)
    assert {cluster.jobs()[job] for job in submitted} == {"CANCELLED"}
    cluster.wait_for(again.jobs[-1].job, "COMPLETED")


def test_an_interrupted_chain_can_be_cancelled(cluster, tiny, directory, tmp_path):
    write_run_files(directory, tiny(), [])
    subprocess.run(
        [sys.executable, "-c", SUBMIT, directory.path],
        env=interrupt_after(2, tmp_path),
        check=False,
    )
    LAUNCHER.cancel(directory)
    assert [cluster.jobs()[job] for job in (tmp_path / "submitted").read_text().split()] == [
        "CANCELLED"
    ] * 2


@pytest.mark.parametrize(
    "options",
    [[], ["--job-name=llama3_tiny.stage0"], ["--chdir={run}"]],
    ids=["stranger", "name", "folder"],
)
def test_a_job_without_the_name_and_folder_of_the_run_is_never_its_job(
    cluster, tiny, directory, options
):
    submit(tiny())
    other = cluster.submit(
        "--hold",
        "--output=/dev/null",
        *(option.format(run=directory.path) for option in options),
        "--wrap=true",
    )
    record = directory.path / "slurm/jobs.json"
    facts = json.loads(record.read_text())
    cluster.run("scancel", facts["jobs"][0]["job"])
    for job in (other, None):
        facts["jobs"][0]["job"] = job
        record.write_text(json.dumps(facts))
        assert other not in [job.job for job in LAUNCHER.active_jobs(directory)]
        LAUNCHER.cancel(directory)
        assert cluster.job(other)["JobState"] == "PENDING"


def test_jobs_that_slurm_no_longer_lists_are_over(cluster, tiny, directory):
    submit(tiny())
    record = directory.path / "slurm/jobs.json"
    facts = json.loads(record.read_text())
    for job, unknown in zip(facts["jobs"], ("900001", "900002", "900003"), strict=True):
        cluster.run("scancel", job["job"])
        job["job"] = unknown
    record.write_text(json.dumps(facts))
    assert states(directory) == [None, None, None]
    assert LAUNCHER.active_jobs(directory) == []
    record.write_text(json.dumps(facts | {"jobs": facts["jobs"][:1]}))
    assert states(directory) == [None]


def test_cancelling_lets_a_running_job_save_and_removes_waiting_ones(
    cluster, tiny, interpreter, directory
):
    add_to(interpreter, 'trap "touch $record.saved; exit 0" USR1\n' + LASTS.partition("\n")[2])
    first, *_ = submit(tiny()).jobs
    wait_until_started(interpreter, first.job)
    assert not LAUNCHER.is_cancelled(directory)
    now = LAUNCHER.cancel(directory)
    assert LAUNCHER.is_cancelled(directory)
    assert [job.state for job in now[1:]] == ["CANCELLED", "CANCELLED"]
    cluster.wait_for(first.job, "COMPLETED")
    assert (interpreter.parent / f"started.{first.job}.saved").exists()
    assert LAUNCHER.active_jobs(directory) == []


def test_cancelling_removes_waiting_jobs(cluster, tiny, interpreter, directory):
    cluster.occupy()
    submit(tiny())
    assert [job.state for job in LAUNCHER.cancel(directory)] == ["CANCELLED"] * 3
    assert list(interpreter.parent.glob("started.*")) == []
    assert LAUNCHER.cancel(directory) == []


def test_neither_the_user_s_defaults_nor_an_outer_allocation_change_a_chain(
    cluster, tiny, interpreter, directory, monkeypatch
):
    of_allocation = {
        "SLURM_JOB_ID": "5",
        "SLURM_NTASKS": "33",
        "SLURM_NTASKS_PER_NODE": "7",
        "SLURM_MEM_PER_CPU": "9",
        "SLURM_STEP_ID": "0",
    }
    of_user = {
        "SBATCH_PARTITION": "urgent",
        "SBATCH_TIMELIMIT": "7",
        "SBATCH_JOB_NAME": "mine",
        "SBATCH_ARRAY_INX": "0-3",
        "SBATCH_WAIT": "1",
        "SBATCH_NO_REQUEUE": "1",
        "SBATCH_COMMENT": "kept",
        "SBATCH_SIGNAL": "TERM@1",
        "SQUEUE_STATES": "COMPLETED",
        "SQUEUE_PARTITION": "urgent",
        "SCANCEL_INTERACTIVE": "1",
        "SCANCEL_STATE": "SUSPENDED",
        "PYTHONPATH": ":/a::/b:",
    }
    for name, value in (of_allocation | of_user).items():
        monkeypatch.setenv(name, value)
    jobs = submit(tiny("launch.slurm.partition=main", "launch.slurm.time=5")).jobs
    cluster.wait_for(jobs[-1].job, "COMPLETED")
    facts = cluster.job(jobs[1].job)
    assert [facts[name] for name in ("JobName", "Partition", "TimeLimit", "Requeue")] == [
        "llama3_tiny.stage1",
        "main",
        "00:05:00",
        "1",
    ]
    environment = environment_of(interpreter, jobs[1].job)
    assert environment["SLURM_JOB_ID"] == jobs[1].job
    assert environment["SLURM_NTASKS_PER_NODE"] == "1"
    assert not {"SLURM_MEM_PER_CPU", "SLURM_STEP_ID"} & environment.keys()
    assert (environment["PYTHONPATH"], environment["PYTHONSAFEPATH"]) == ("/a:/b", "1")
    assert states(directory) == ["COMPLETED"] * 3


def test_a_default_of_the_user_s_applies_to_an_unset_setting(cluster, tiny, monkeypatch):
    monkeypatch.setenv("SBATCH_TIMELIMIT", "7")
    assert cluster.job(submit(tiny()).jobs[0].job)["TimeLimit"] == "00:07:00"


@pytest.mark.parametrize(
    "name",
    ["x; touch canary #", "a b\n\"'$(touch canary)`touch canary`", "x|\x1f\x1e\n", "-né", "*?"],
)
def test_a_run_of_any_name_in_any_folder_harms_nothing(
    cluster, tiny, interpreter, tmp_path, name, monkeypatch
):
    (tmp_path / f"{name}.").mkdir()
    monkeypatch.chdir(tmp_path / f"{name}.")
    config = tiny("trainer.num_nodes=1", "model.rampup_batch_size=null").config
    config.name, config.run_dir = "".join(filter(str.isprintable, name)), str(tmp_path / name)
    (job,) = submit(resolve(config)).jobs
    cluster.wait_for(job.job, "COMPLETED")
    assert started(interpreter, job.job) == [
        os.getcwd(),
        "-P",
        "-m",
        "rampcli.launch.slurm.job",
        config.run_dir,
        "0",
    ]
    assert states(RunDirectory(Path(config.run_dir))) == ["COMPLETED"]
    assert list((tmp_path / name / "logs").iterdir()) == [
        tmp_path / name / f"logs/stage_0.{job.job}.log"
    ]
    assert not [*tmp_path.rglob("canary")]
    assert sorted(tmp_path.iterdir()) == sorted(
        [interpreter.parent, tmp_path / f"{name}.", tmp_path / name]
    )


@pytest.fixture
def one_job(tiny) -> Resolved:
    return tiny("trainer.num_nodes=1", "model.rampup_batch_size=null")


@given(
    comment=st.text(alphabet=st.sampled_from(list(" '\"\\$`#;|&()!%=-aé")), min_size=1, max_size=10)
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_sbatch_reads_an_option_as_it_was_written(cluster, one_job, tmp_path, comment):
    one_job.config.launch.slurm.sbatch_args = [f"--comment={comment}"]
    (script,) = render_jobs(one_job, RunDirectory(one_job.run_dir))
    (tmp_path / "script").write_text(script.text)
    output = cluster.run(
        "sbatch", "--verbose", "--partition=nowhere", tmp_path / "script", check=False
    ).stderr  # nothing is submitted, because the partition does not exist
    assert re.findall(r"^sbatch: comment {2,}: (.*)$", output, re.MULTILINE) == [comment]


def test_a_requeued_job_runs_again_under_its_id_before_the_next_ones(
    cluster, tiny, interpreter, directory, monkeypatch
):
    add_to(interpreter, '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exit 0\n' + LASTS)
    first, *later = submit(tiny()).jobs
    wait_until_started(interpreter, first.job)
    monkeypatch.setenv("SLURM_JOB_ID", first.job)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")  # of another start of this job
    requeue_this_job(directory)
    assert (cluster.job(first.job)["JobState"], commands.restarts(first.job)) == ("RUNNING", 0)
    monkeypatch.delenv("SLURM_RESTART_COUNT")
    requeue_this_job(directory)
    assert [each.job for each in LAUNCHER.active_jobs(directory)] == [
        first.job,
        *(each.job for each in later),
    ]
    cluster.wait_for(first.job, "PENDING")
    cluster.release(first.job)
    cluster.wait_for(first.job, "COMPLETED")
    assert cluster.job(first.job)["Restarts"] == "1"


@pytest.mark.usefixtures("cluster")
def test_without_a_controller_no_job_is_recorded_as_submitted(
    tiny, tmp_path, directory, monkeypatch
):
    lines = Path(os.environ["SLURM_CONF"]).read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("SlurmctldPort=", "MessageTimeout="))]
    other = ["SlurmctldPort=19999", "SlurmctldTimeout=1", "MessageTimeout=2"]
    (tmp_path / "slurm.conf").write_text("\n".join([*kept, *other, ""]))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    with pytest.raises(RampcliError, match="Unable to contact"):
        submit(tiny())
    assert chain.read(directory).submitted is None
