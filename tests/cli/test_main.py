"""The commands as users type them. Errors are tested in test_bad_inputs.py."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rampcli as package
from commands import run_command
from rampcli import llm
from rampcli.cli.main import COMMANDS
from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.settings.by_key import flatten, leaves

NODES = {256: 8, 512: 8, 768: 8, 1024: 8, 1280: 10, 1536: 12, 1792: 14, 2048: 16}
"""Nodes per batch size of gpt3_5b, from NeMo's documentation."""


def test_a_dry_run_prints_the_plan_and_what_this_machine_lacks_and_writes_nothing(
    succeed, tmp_path
):
    words = ["--factory", "gpt3_5b"]
    plan, dry_run = succeed("plan", *words), succeed("pretrain", *words, "--dry-run")
    assert dict(map(int, line.split()[1:3]) for line in plan.splitlines()[1:9]) == NODES
    assert dry_run.startswith(plan)
    notes = dry_run.removeprefix(plan).splitlines()  # on this machine, which lacks GPUs
    assert all(note.startswith("note: ") for note in notes)
    assert list(tmp_path.iterdir()) == []


def test_options_may_come_before_or_after_overrides(succeed):
    words = ["trainer.num_nodes=8", "--json", "rampup.node_policy=best", "--factory", "gpt3_5b"]
    assert succeed("plan", *words) == succeed(
        "plan", "-f", "gpt3_5b", "--json", "trainer.num_nodes=8", "rampup.node_policy=best"
    )


@pytest.mark.parametrize(
    ("words", "batch"),
    [
        (
            "llm pretrain --factory llama3_8b data.micro_batch_size=4 data.global_batch_size=16"
            " trainer.accumulate_grad_batches=1",
            "16",
        ),
        (
            "llm pretrain --factory llama3_8b model.micro_batch_size=4 model.global_batch_size=16"
            " trainer.strategy.context_parallel_size=2",
            "16",
        ),
        (
            "pretrain --factory gpt3_5b model.global_batch_size=1024"
            " model.rampup_batch_size=[256, 128, 50000000]",
            "256",
        ),
        (
            "pretrain --factory llama3_8b data.micro_batch_size=4 model.global_batch_size=1024"
            " model.rampup_batch_size=[256,128,50000000] trainer.num_nodes=16",
            "256",
        ),
    ],
)
def test_command_lines_of_nemos_documents_work_unchanged(words, batch, succeed):
    assert succeed(*words.split(), "--dry-run").splitlines()[1].split()[1] == batch


def test_cfg_is_yaml_and_what_a_worker_reads_with_the_source_of_each_value(succeed, tmp_path):
    words = ["data.global_batch_size=32", "optim.eps=0.001", "optim.min_lr=0.0001"]
    printed = succeed("pretrain", "--factory", "llama3_tiny", "--cfg", *words)
    (tmp_path / "config.yaml").write_text(printed)
    expected = resolve(apply_overrides(llm.llama3_tiny.pretrain_recipe(), words)).config
    assert snapshot.read(tmp_path / "config.yaml") == expected
    assert flatten(yaml.safe_load(printed)) == dict(leaves(expected))
    (line,) = [
        line for line in printed.splitlines() if line.strip().startswith("global_batch_size:")
    ]
    assert (
        "# data.global_batch_size=32 (command line); overrides 16 (batch/llama3_tiny.yaml:" in line
    )


def test_config_dir_adds_options_to_a_group(succeed, tmp_path):
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "mine.yaml").write_text("lr: 0.25\nmin_lr: 0.0\nwarmup_samples: 1\n")
    printed = succeed(
        "pretrain", "--factory", "llama3_tiny", "--config-dir", str(tmp_path), "optim=mine", "--cfg"
    )
    lines = [line.split("#") for line in printed.splitlines() if line.strip().startswith("lr:")]
    assert [(text.strip(), comment.partition(";")[0].strip()) for text, comment in lines] == [
        ("lr: 0.25", "optim/mine.yaml:1")
    ]


def test_a_recipe_takes_arguments(json_of):
    plan = json_of("plan", "--factory", "llama3_8b(num_nodes=2, num_gpus_per_node=4)")
    assert [(stage["num_nodes"], stage["world_size"]) for stage in plan["stages"]] == [(2, 8)]


def test_several_what_ifs_are_compared_in_every_combination(succeed):
    what_ifs = ("--what-if", "trainer.num_nodes=1,2", "--what-if", "data.micro_batch_size=1,2")
    rows = succeed("plan", "--factory", "llama3_8b", *what_ifs).splitlines()[1:5]
    assert [row.split()[:2] for row in rows] == [
        [f"trainer.num_nodes={nodes}", f"data.micro_batch_size={size}"]
        for nodes in (1, 2)
        for size in (1, 2)
    ]


def test_the_version_is_that_of_the_package(succeed):
    assert succeed("--version") == f"{package.__version__}\n"


@pytest.mark.parametrize(
    "command",
    [
        [],
        *([name] for name in COMMANDS),
        ["data", "build"],
        ["data", "inspect"],
        ["llm", "pretrain"],
    ],
    ids=" ".join,
)
def test_every_command_has_help(succeed, command):
    assert "Usage: rampcli" in succeed(*command, "--help")


def test_without_arguments_the_commands_are_listed_with_whole_sentences(rampcli):
    ended = rampcli()
    commands = (ended.stdout + ended.stderr).partition("Commands:")[2]
    assert "pretrain" in commands
    assert "..." not in commands
    assert ended.exit_code in (0, 2)  # click says 2 since 8.2


def test_a_failure_of_the_workers_is_shown_with_its_own_exit_code_and_the_log(tmp_path):
    words = ["data.sequence_length=16_000_000", "trainer.val_samples=0", "trainer.accelerator=cpu"]
    done = run_command(["pretrain", "--factory", "llama3_tiny", *words], cwd=tmp_path)
    assert done.returncode == 2
    assert "the training corpus of data.source=stdlib has" in done.stderr
    assert str(Path("runs/llama3_tiny/logs/stage_0.log")) in done.stderr


def test_a_terminal_without_unicode_still_shows_the_plan(tmp_path):
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "rampcli", "plan", "-f", "gpt3_5b", "name='naïve'"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    printed = ended.stdout.decode("ascii")
    assert printed.splitlines()[1].split()[:3] == ["0", "256", "8"]
    assert "runs/na?ve" in printed
    assert ended.stderr == b""


def test_a_deleted_working_directory_is_an_error(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    plan = (sys.executable, "-m", "rampcli", "plan", "-f", "gpt3_5b")
    command = ["sh", "-c", 'rmdir "$0" && exec "$@"', gone, *plan]
    ended = subprocess.run(command, cwd=gone, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("error: the working directory does not exist any more\n")


CTRL_C_AT_IMPORT = """
import os, runpy, signal, sys

class CtrlC:
    def find_spec(self, name, *_):
        if name == "MODULE":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv = ["rampcli", "plan", "--factory", "llama3_tiny"]
runpy.run_module("rampcli", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["rampcli.cli.main", "typer", "rampcli.cli.composing"])
def test_ctrl_c_during_an_import_ends_a_command_with_130_and_no_message(module):
    program = CTRL_C_AT_IMPORT.replace("MODULE", module)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")
