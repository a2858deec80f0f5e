import contextlib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planted import plant_modules
from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError
from rampcli.launch.protocol import Job
from rampcli.launch.slurm import template
from rampcli.launch.slurm.scripts import MOST_SCRIPT_BYTES, SIGNAL_MARGIN_S, render_jobs
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.settings.config import Config
from tiny_runs import RAMP_OF_JOBS

SAME_PROCESSES = ("rampup.at_boundary=continue", "rampup.node_policy=fixed", "trainer.num_nodes=1")
RECORDER = '#!/bin/bash\nprintf "%s\\0" "$PWD" "$WORD" "$@" >"$(dirname "$0")/started"\n'
LOADER = '#!/bin/bash\nprintf "%s\\0" "$@" >>"$(dirname "$0")/loaded"\n'

COMMANDS = [
    "; touch canary #",
    "$(touch canary)",
    "`touch canary`",
    "' ; touch canary ; '",
    '" ; touch canary ; "',
    "\ntouch canary\n",
]
"""Values that run a command where bash takes them for code."""
hostile = st.text(
    alphabet=st.sampled_from(list(" \t\n'\"\\$`;&|()<>{}#*?!~=-%jéa\x01\x7f")),
    min_size=1,
    max_size=12,
)
commands = st.sampled_from(COMMANDS)
anything = st.one_of(hostile, commands).filter(
    lambda text: "${" not in text and text != "???"
)  # settings must not contain these


@cache
def recipe() -> Config:
    return llm.from_factory("llama3_tiny")


def compose(**settings: str) -> Config:
    return apply_overrides(
        recipe(), [f"{key}={value}" for key, value in (RAMP_OF_JOBS | settings).items()]
    ).config()


def scripts(*words: str, consumed_samples: int = 0) -> list[Job]:
    resolved = resolve(compose(**dict(word.split("=", 1) for word in words)))
    return render_jobs(resolved, RunDirectory(resolved.run_dir), consumed_samples=consumed_samples)


def directives(script: Job) -> list[str]:
    return [
        line.removeprefix("#SBATCH ")
        for line in script.text.splitlines()
        if line.startswith("#SBATCH ")
    ]


def with_template(tmp_path: Path, text: str) -> str:
    (tmp_path / "own.j2").write_text(text)
    return f"launch.slurm.template={tmp_path}/own.j2"


def test_each_group_of_stages_with_the_same_processes_is_a_job():
    assert [(job.stages, job.num_nodes) for job in scripts()] == [((0,), 1), ((1,), 2), ((2,), 3)]
    (together,) = scripts(*SAME_PROCESSES)
    assert (together.stages, together.script) == ((0, 1, 2), "slurm/stage_0.sbatch")


def test_stages_that_are_already_trained_need_no_job():
    rest = [job.script for job in scripts(consumed_samples=6)]
    assert rest == ["slurm/stage_1.sbatch", "slurm/stage_2.sbatch"]
    (last,) = scripts(*SAME_PROCESSES, consumed_samples=12)
    assert last.stages == (2,)
    assert scripts(consumed_samples=30) == []


def test_a_job_requests_the_nodes_and_processes_of_its_stages():
    for number, script in enumerate(
        scripts(
            "trainer.devices=2", "model.global_batch_size=6", "model.rampup_batch_size=[2,2,12]"
        )
    ):
        assert directives(script)[:4] == [
            f"--job-name=llama3_tiny.stage{number}",
            f"--nodes={script.num_nodes}",
            "--ntasks-per-node=2",
            f"--output=logs/stage_{number}.%j.log",
        ]


@pytest.mark.parametrize(
    ("words", "gpus"),
    [
        (["trainer.accelerator=gpu"], "--gpus-per-node=1"),
        (["trainer.accelerator=auto", "launch.slurm.gpus_per_node=4"], "--gpus-per-node=4"),
        (["trainer.accelerator=gpu", "launch.slurm.gpus_per_node=0"], None),
        (["trainer.accelerator=cpu", "launch.slurm.gpus_per_node=4"], None),
    ],
)
def test_a_job_requests_one_gpu_per_process_by_default_and_none_on_the_cpu(words, gpus):
    found = [directive for directive in directives(scripts(*words)[0]) if "gpu" in directive]
    assert found == ([gpus] if gpus else [])


def test_settings_become_directives_and_the_users_options_come_last():
    options = {"partition": "p", "account": "a", "qos": "q", "time": "1-02:00:00", "mem": "4G"}
    words = [f"launch.slurm.{name}={value}" for name, value in options.items()]
    own = "launch.slurm.sbatch_args=['--mem=8G','--comment=it is $5']"
    found = directives(scripts(*words, "launch.slurm.cpus_per_task=3", own)[0])
    assert {f"--{name}={value}" for name, value in options.items()} <= {*found}
    assert "--cpus-per-task=3" in found
    assert found[-2:] == ["--mem=8G", '"--comment=it is \\$5"']


def test_a_job_is_warned_of_its_time_limit_early_enough_to_save():
    assert "--signal=B:USR1@150" in directives(scripts("launch.grace_s=89.5")[0])
    assert math.ceil(89.5) + SIGNAL_MARGIN_S == 150


def test_a_job_may_be_requeued_and_appends_to_its_log():
    assert {"--requeue", "--open-mode=append"} <= set(directives(scripts()[0]))


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path).resolve()


def named(folder: Path, name: str) -> Path:
    """Creates a folder with some name below another folder."""
    path = folder / "a" / (name.replace("/", "-") + "x")
    path.mkdir(parents=True)
    return path


def run_bash(text: str, *, folder: Path, path: Path) -> None:
    (folder / "script").write_text(text, encoding="utf-8")
    environment = {"PATH": f"{path}:{os.environ['PATH']}", "LANG": "C.UTF-8"}
    subprocess.run(
        ["bash", "script"],
        cwd=folder,
        env=environment,
        capture_output=True,
        timeout=300,
        check=False,
    )


def fake_programs(folder: Path) -> Path:
    """Creates a folder with programs `python` and `module` that record their arguments."""
    folder.mkdir()
    for name, text in (("python", RECORDER), ("module", LOADER)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def recorded(path: Path) -> list[str]:
    return os.fsdecode(path.read_bytes()).split("\0")[:-1]


@given(words=st.tuples(anything, anything, anything, anything, anything))
def test_a_run_of_any_name_in_any_folder_starts_only_its_own_command(words):
    typed, run, python, loaded, word = words
    with empty_folder() as folder:
        at, programs = named(folder, typed), fake_programs(folder / f"{python.replace('/', '-')}x")
        config = compose()
        config.name = f"{run}x".translate(dict.fromkeys((*range(32), 127, ord("/")), "?"))
        config.run_dir = str(folder / f"{run}x".replace("%", "").replace("\\", ""))
        config.launch.slurm.python = str(programs / "python")
        config.launch.slurm.modules = [loaded, "plain"]
        config.launch.slurm.environment = [f"WORD={word}"]
        with contextlib.chdir(at):
            script = render_jobs(resolve(config), RunDirectory(Path(config.run_dir)))[0]
        run_bash(script.text, folder=folder, path=programs)
        assert recorded(programs / "started") == [
            str(at),
            word,
            "-P",
            "-m",
            "rampcli.launch.slurm.job",
            config.run_dir,
            "0",
        ]
        assert recorded(programs / "loaded") == ["load", loaded, "load", "plain"]
        assert sorted(folder.iterdir()) == sorted([folder / "a", folder / "script", programs])
        assert list(at.iterdir()) == []


LINES = (
    "echo {{ run_dir }}",
    "echo '{{ run_dir }}'",
    'echo "{{ run_dir }}"',
    'echo "$(echo "{{ run_dir }}")"',
    "echo `echo {{ run_dir }}`",
    "# a comment: {{ run_dir }}",
    "cat <<end\n{{ run_dir }}\nend",
    "#SBATCH --comment={{ run_dir }}",
    "#SBATCH --comment={{ slurm.environment[0][2:] | replace('\\n', '') | directive }}",
    "echo {{ ['a', run_dir] }}",
    "echo {{ run_dir | safe }}",
    "echo {% set x %}{{ run_dir }}{% endset %}{{ x }}",
    "echo {{ 'a' ~ run_dir }}",
)
NEXT = "-- next script --\n"


@pytest.mark.parametrize(
    "word",
    COMMANDS,
)
def test_a_value_is_never_a_command_wherever_a_template_puts_it(tmp_path, word):
    config = compose()
    config.run_dir, config.launch.slurm.environment = str(tmp_path / f"x{word}"), [f"A={word}"]
    # One template for all scripts, because each is rendered in a process of its own.
    (tmp_path / "own.j2").write_text(
        NEXT.join(f"#!/bin/bash\n{line}\necho done >done\n" for line in LINES)
    )
    config.launch.slurm.template = str(tmp_path / "own.j2")
    script = render_jobs(resolve(config), RunDirectory(Path(config.run_dir)))[0]
    for number, (line, text) in enumerate(zip(LINES, script.text.split(NEXT), strict=True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        run_bash(text, folder=folder, path=folder)
        assert sorted(path.name for path in folder.iterdir()) == ["done", "script"], line
    assert not (tmp_path / "canary").exists()


def test_a_custom_template_is_used_instead(tmp_path):
    options = (
        "{% for option in slurm.sbatch_args %}\n#SBATCH {{ option | directive }}\n{% endfor %}\n"
    )
    own = with_template(tmp_path, "#!/bin/bash\n" + options + "exec {{ python }} {{ stages }}\n")
    (script,) = scripts(own, *SAME_PROCESSES, "launch.slurm.sbatch_args=[-C h100]")
    assert script.text == f'#!/bin/bash\n#SBATCH "-C h100"\nexec {sys.executable} 0 1 2\n'


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("#!/bin/bash\n{% if %}\n", "line 2"),
        ("#!/bin/bash\n\n{{ nodes }}\n", "line 3.*'nodes' is undefined.*num_nodes"),
        ("#!/bin/bash\n{{ slurm.partitions }}\n", "line 2.*no attribute 'partitions'"),
        ("{{ slurm.partition }}", "line 1.*None"),
        ("{{ slurm }}", "line 1.*cannot be printed"),
        ("{{ 1 // 0 }}", "line 1.*zero"),
        ("{{ run_dir.__class__.__mro__ }}", "line 1.*unsafe"),
        ("{% include '/etc/passwd' %}", "line 1"),
        ("\n#SBATCH --comment={{ 'a\\nb' | directive }}", "line 2.*one line"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused_with_the_line(tmp_path, text, wrong):
    with pytest.raises(UsageError, match=f"(?s){wrong}") as refused:
        scripts(with_template(tmp_path, text))
    assert refused.value.keys == ("launch.slurm.template",)


def test_a_template_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "large").write_bytes(b"x" * (MOST_SCRIPT_BYTES + 1))
    os.mkfifo(tmp_path / "fifo")
    for name, wrong in (
        ("nowhere", "No such file"),
        ("", "not a regular file"),
        ("fifo", "not a regular file"),
        ("binary", "decode"),
        ("large", "larger than 1,048,576 bytes"),
    ):
        with pytest.raises(UsageError, match=wrong) as refused:
            scripts(f"launch.slurm.template={tmp_path}/{name}")
        assert refused.value.keys == ("launch.slurm.template",)


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("\n" + LOOPS, "line 2 of the template .*: it uses more than 1 s of processor time"),
        ("{{ 9 ** (9 ** 8) }}", "the template .*: it uses more than 1 s of processor time"),
        ("\n{{ 'x' * 10 ** 10 }}", "line 2 of the template .*: it uses more than 1 GiB of memory"),
        (
            "{% for a in range(99999) %}\n{{ 'x' * 10 ** 5 }}\n{% endfor %}",
            "the template .*: it prints more than 4 MiB",
        ),
        (
            "\n{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
            "line 2 of the template .*: maximum recursion depth",
        ),
        ("{{ " + "(" * 100_000, "the template .*: maximum recursion depth"),
    ],
)
def test_a_template_that_exceeds_its_limits_is_refused(tmp_path, monkeypatch, text, wrong):
    monkeypatch.setattr(template, "CPU_S", 1)
    with pytest.raises(UsageError, match=wrong) as refused:
        scripts(with_template(tmp_path, text))
    assert refused.value.keys == ("launch.slurm.template",)
    assert len(str(refused.value)) < 1500


def test_rendering_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(template, "WALL_S", 0.001)
    with pytest.raises(UsageError, match=r"it was not rendered within 0\.001 s"):
        scripts(with_template(tmp_path, "#!/bin/bash\n"))


def test_a_custom_template_is_rendered_without_the_working_directory_on_the_path(
    tmp_path, monkeypatch
):
    plant_modules(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":")
    scripts(with_template(tmp_path, "#!/bin/bash\n"))
    assert not [*tmp_path.glob("ran.*")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        (":", ""),
        (":/a", "/a"),
        ("/a:", "/a"),
        ("/a::/b", "/a:/b"),
        (":::/a b::/c:::", "/a b:/c"),
        (".", "."),
        ("/a", "/a"),
    ],
)
def test_the_pythonpath_of_a_job_has_no_empty_entry(tmp_path, before, after):
    programs = fake_programs(tmp_path / "programs")
    (programs / "python").write_text(
        '#!/bin/bash\nprintf "%s\\0" "$PYTHONPATH" "$PYTHONSAFEPATH" >"$(dirname "$0")/started"\n'
    )
    (script,) = scripts(
        *SAME_PROCESSES,
        f"launch.slurm.python={programs}/python",
        f"launch.slurm.environment=['PYTHONPATH={before}']",
    )
    run_bash(script.text, folder=tmp_path, path=programs)
    assert recorded(programs / "started") == [after, "1"]


@pytest.mark.parametrize("name", ["50%", "a\\b"])
def test_a_run_directory_that_slurm_cannot_write_logs_into_is_refused(tmp_path, name):
    config = compose()
    config.run_dir = str(tmp_path / name)
    with pytest.raises(UsageError, match="Slurm cannot write logs") as refused:
        render_jobs(resolve(config), RunDirectory(Path(config.run_dir)))
    assert refused.value.keys == ("run_dir",)
