"""Completion in real shells: their scripts, with the words that a user has typed before <TAB>."""

import os
import shutil
import subprocess
import sys

import pytest
import typer

from doc_examples import ROOT
from rampcli.cli.completion import SHELL_SCRIPTS, completions_of
from rampcli.cli.main import app

GPTS = ["gpt3_126m", "gpt3_175b", "gpt3_20b", "gpt3_5b"]
COMMAND = typer.main.get_command(app)
SHELLS = [shell for shell in ("zsh", "fish") if shutil.which(shell)]
"""Other shells than bash are tested only if they are installed, as they are in CI."""

BASH = r"""
set -e
{script}
compopt() {{ :; }}
# As readline does: COMP_LINE is the typed line, and COMP_WORDS is that line split at blanks and at
# the characters of COMP_WORDBREAKS.
COMP_LINE=$1
COMP_POINT=${{#1}}
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_rampcli_complete
printf '%s\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    """Puts a `rampcli` of this interpreter first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "rampcli"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m rampcli "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


def offered(*words):
    return completions_of(words, COMMAND)


def test_the_first_word_is_a_command():
    assert offered("") == list(COMMAND.commands)
    assert offered("pl") == ["plan"]
    assert offered("llm", "") == ["pretrain"]


def test_every_option_of_a_command_is_offered():
    options = {
        name
        for option in COMMAND.commands["plan"].params
        for name in option.opts
        if name.startswith("-")
    }
    assert set(offered("plan", "-")) == options | {"--help"}


@pytest.mark.parametrize("option", ["--factory", "-f"])
def test_a_factory_is_completed_to_the_recipes(option):
    expected = [
        "llama31_405b",
        "llama32_1b",
        "llama32_3b",
        "llama3_70b",
        "llama3_8b",
        "llama3_tiny",
    ]
    assert offered("pretrain", option, "llama3") == expected
    assert offered("recipes", "llama3") == expected
    assert "model.num_layers=" in offered("recipes", "llama3_tiny", "model.num_l")


def test_a_published_ramp_is_completed():
    assert offered("ramps", "nemotron4_") == ["nemotron4_15b", "nemotron4_340b"]


def test_a_group_is_completed_to_its_options():
    assert offered("plan", "-f", "gpt3_5b", "model=") == [
        f"model={path.stem}" for path in sorted((ROOT / "conf" / "model").glob("*.yaml"))
    ]


def test_keys_are_completed_section_by_section():
    assert {"model=", "model.", "name=", "rampup."} <= set(offered("plan", ""))
    assert offered("plan", "model.gl") == ["model.global_batch_size="]
    assert offered("explain", "model.gl") == ["model.global_batch_size"]


def test_a_phase_is_completed_by_the_names_before_and_to_the_settings_that_it_may_set():
    assert offered("plan", "-f", "llama3_tiny", "phases.long.until=1M", "phases.") == [
        "phases.long."
    ]
    inside = offered("plan", "-f", "llama3_tiny", "phases.long.")
    assert {"phases.long.until=", "phases.long.optim."} <= {*inside}
    assert "phases.long.seed=" not in inside
    assert offered("explain", "phases.long.optim.weight") == ["phases.long.optim.weight_decay"]
    assert "phases.long.schedule.decay_style=wsd" in offered(
        "plan", "-f", "llama3_tiny", "phases.long.schedule.decay_style="
    )


def test_an_enum_and_a_switch_are_completed_to_their_values():
    assert offered("plan", "rampup.node_policy=") == [
        f"rampup.node_policy={name}" for name in ("nemo", "best", "fixed")
    ]
    assert offered("plan", "data.audit_order=t") == ["data.audit_order=true"]


def test_spellings_of_other_systems_are_not_offered():
    assert "per_device_batch_size=" not in offered("plan", "")


@pytest.mark.parametrize(
    "words",
    [("plan", "--plot", ""), ("plan", "--config-dir", "x"), ("plan", "data.sequence_length=")],
)
def test_the_shell_offers_files_for_other_words(words):
    assert offered(*words) == []


@pytest.fixture
def mine(tmp_path):
    """A folder with options of its own, nested groups and primary files, named from outside."""
    for name in ("optim/fast", "exp/a", "exp/b", "exp/deep/x", "only/inner/y", "first", "second"):
        path = tmp_path / "mine" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("seed: 1\n", encoding="utf-8")
    return "mine"


@pytest.mark.parametrize("option", ["--config-dir", "-cd", "--config-path", "-cp", "-f"])
@pytest.mark.usefixtures("mine")
def test_groups_and_options_of_the_users_folder_are_offered(option):
    value = "mine/first.yaml" if option == "-f" else "mine"

    def found(word):
        return offered("plan", option, value, word)

    assert {"optim=fast", "optim=nemo_adam"} <= {*found("optim=")}
    assert {"exp=", "exp/", "only/", "optim="} <= {*found("")}
    assert "only=" not in found("")
    assert found("ex") == ["exp=", "exp/"]
    assert found("+ex") == ["+exp=", "+exp/"]
    assert found("+exp=") == ["+exp=a", "+exp=b"]
    assert found("exp=[a,") == ["exp=[a,a", "exp=[a,b"]
    assert found("exp/") == ["exp/deep="]
    assert found("exp/deep=") == ["exp/deep=x"]
    assert found("optim@other.optim=fa") == ["optim@other.optim=fast"]
    assert offered("plan", option, value, "--what-if", "exp=a,") == ["exp=a,a", "exp=a,b"]


@pytest.mark.usefixtures("mine")
def test_a_folder_may_be_given_with_an_equals_sign_and_one_that_is_missing_adds_nothing():
    assert offered("plan", "--config-dir=mine", "exp=") == ["exp=a", "exp=b"]
    assert offered("plan", "--config-dir=yours", "exp=") == []
    assert offered("plan", "exp=") == []


@pytest.mark.parametrize("option", ["--config-name", "-cn"])
@pytest.mark.usefixtures("mine")
def test_primary_files_are_completed(option):
    assert offered("plan", "-cp", "mine", option, "") == ["config", "first", "second"]
    assert offered("plan", "-cd", "mine", option, "s") == ["second"]
    assert offered("plan", "-cp", "mine", "--config-name=s") == ["--config-name=second"]
    assert offered("plan", option, "") == ["config"]


def test_what_can_be_shown_is_completed():
    assert offered("plan", "-f", "gpt3_5b", "--cfg", "") == ["sources", "job", "hydra", "all"]
    assert offered("plan", "-f", "gpt3_5b", "--cfg", "model.gl") == ["model.global_batch_size="]
    assert offered("plan", "--info", "defaults-") == ["defaults-tree"]
    assert {*offered("plan", "--cfg", "job", "-p", "launch.s")} == {
        "launch.slurm",
        "launch.start_timeout_s",
        "launch.step_timeout_s",
    }


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize(
    ("line", "pieces", "replies"),
    [
        ("rampcli plan model.gl", ["rampcli", "plan", "model.gl"], ["model.global_batch_size="]),
        (
            "rampcli plan rampup.node_policy=",
            ["rampcli", "plan", "rampup.node_policy", "="],
            ["nemo", "best", "fixed"],
        ),
        (
            "rampcli plan rampup.node_policy=b",
            ["rampcli", "plan", "rampup.node_policy", "=", "b"],
            ["best"],
        ),
        (
            "rampcli plan data=mock model=gpt",
            ["rampcli", "plan", "data", "=", "mock", "model", "=", "gpt"],
            GPTS,
        ),
        ("rampcli plan -f  gp", ["rampcli", "plan", "-f", "gp"], GPTS),
        ("rampcli llm ", ["rampcli", "llm", ""], ["pretrain"]),
    ],
)
def test_words_that_bash_splits_at_equals_signs_are_joined(line, pieces, replies):
    assert in_bash(line, *pieces) == replies


@pytest.mark.usefixtures("on_path")
def test_an_interactive_bash_completes_a_value_after_tab(tmp_path):
    """Uses a real readline in a pty: <TAB> after `=` completes the value in the line."""
    import pty
    import select
    import time

    (tmp_path / "rc").write_text(
        'PS1="$ "\nbind "set enable-bracketed-paste off"\n'
        'eval "$(rampcli completion bash)"\necho ready\n',
        encoding="utf-8",
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvp("bash", ["bash", "--norc", "--rcfile", str(tmp_path / "rc"), "-i"])
    seen = b""

    def read_until(text):
        nonlocal seen
        deadline = time.monotonic() + 300
        while text not in seen and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.5)[0]:
                seen += os.read(terminal, 4096)
        return text in seen

    try:
        os.write(terminal, f". {tmp_path}/rc\n".encode())
        assert read_until(b"ready")
        os.write(terminal, b"echo rampcli plan; rampcli plan rampup.node_policy=be\t")
        assert read_until(b"rampup.node_policy=best "), seen
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


ZSH = r"""
autoload -Uz compinit && compinit -u -d {dump}
{script}
# Print the arguments of compadd. The rest of the function runs unchanged.
compadd() {{ while [[ $1 != -- ]]; do shift; done; shift; print -l -- "$@"; }}
_files() {{ print FILES; }}
words=("$@")
CURRENT=$#
_rampcli_complete
"""


@pytest.mark.usefixtures("on_path", "mine")
def test_bash_completes_an_option_of_a_nested_group_of_the_users_folder():
    pieces = ["rampcli", "plan", "-cd", "mine", "+exp/deep", "="]
    assert in_bash("rampcli plan -cd mine +exp/deep=", *pieces) == ["x"]


def words_of(*command):
    """Returns the words that a program prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.split()


def in_bash(line, *pieces):
    return words_of(
        "bash", "-c", BASH.format(script=SHELL_SCRIPTS["bash"].read_text()), "bash", line, *pieces
    )


def in_zsh(tmp_path, *words):
    script = ZSH.format(script=SHELL_SCRIPTS["zsh"].read_text(), dump=tmp_path / "zcompdump")
    return words_of("zsh", "-f", "-c", script, "zsh", *words)


def in_fish(_, *words):
    script = f"{SHELL_SCRIPTS['fish'].read_text()}\ncomplete -C '{' '.join(words)}'\n"
    return words_of("fish", "--no-config", "-c", script)


IN = {"zsh": in_zsh, "fish": in_fish}


@pytest.mark.usefixtures("on_path")
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "replies"),
    [
        (["rampcli", "plan", "model.gl"], ["model.global_batch_size="]),
        (
            ["rampcli", "plan", "-f", "gpt3_5b", "rampup.node_policy="],
            [f"rampup.node_policy={name}" for name in ("nemo", "best", "fixed")],
        ),
        (["rampcli", "plan", "-f", "gp"], GPTS),
    ],
)
def test_zsh_and_fish_offer_the_same_completions(shell, words, replies, tmp_path):
    assert sorted(IN[shell](tmp_path, *words)) == sorted(replies)


@pytest.mark.parametrize("shell", sorted(SHELL_SCRIPTS))
def test_a_script_is_printed_unchanged(shell, succeed):
    assert succeed("completion", shell) == SHELL_SCRIPTS[shell].read_text()
