import json
import os
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import run_command
from rampcli import llm
from rampcli.cli.base import Base
from rampcli.cli.sweep_runs import (
    MOST_COMBINATIONS,
    check_at_once,
    compose_sweep,
    name_combinations,
)
from rampcli.config.compose import apply_overrides
from rampcli.config.sweeps import Combination
from rampcli.errors import UsageError
from rampcli.launch.run_lock import lock_run
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import COMPLETE, RunDirectory
from rampcli.runs.sweep_folder import SweepFolder
from recorded_runs import write_run
from report.svg_texts import texts
from tiny_runs import Run, environment

SWEEP = ["sweep", "--factory", "llama3_tiny"]
RAMP = ["model.rampup_batch_size=[4,4,80]", "model.global_batch_size=8"]
ON_TWO_GPUS = ("trainer.accelerator=auto", "trainer.num_nodes=2", "trainer.devices=1")
WORDS = [*RAMP, "trainer.max_samples=400", "trainer.num_nodes=2"]


def all_of(**values):
    return [
        Combination(words=(), values=dict(zip(values, chosen, strict=True)))
        for chosen in product(*values.values())
    ]


GRID = all_of(a="123", b="12", c="1")


@given(st.sets(st.sampled_from(range(len(GRID))), min_size=1))
def test_the_name_of_some_combinations_fits_them_and_no_other(indices):
    some = [GRID[index] for index in sorted(indices)]
    name = name_combinations(some, GRID)
    if " or " in name:
        listed = name.split(" or ")
        assert listed[:MOST_COMBINATIONS] == [*map(str, some[:MOST_COMBINATIONS])]
        assert listed[MOST_COMBINATIONS:] == (
            [f"{len(some) - MOST_COMBINATIONS} more"] if len(some) > MOST_COMBINATIONS else []
        )
        return
    allowed = {
        key: values.split(",") for key, _, values in (x.partition("=") for x in name.split())
    }
    assert some == [
        one for one in GRID if all(one.values[key] in values for key, values in allowed.items())
    ]


@pytest.fixture
def folder(tmp_path):
    """A sweep of two learning rates, of which the second has stopped half-way."""
    sweep = SweepFolder(tmp_path / "runs/llama3_tiny_sweep")
    sweep.claim()
    for lr in ("0.1", "0.5"):
        write_run(sweep.path / f"optim.lr={lr}", f"optim.lr={lr}", loss=4 * float(lr))
    RunDirectory(sweep.path / "optim.lr=0.1").change_status(COMPLETE)
    sweep.add({f"optim.lr={lr}": {"optim.lr": lr} for lr in ("0.5", "0.1")})
    return sweep


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (["optim.lr=0.1,0.5"], False),
        (["optim.lr=0.2,0.3"], False),
        (["optim.lr=0.2"], False),
        (["optim.lr=0.1,0.5", "seed=1234,1"], False),
        (["optim.lr=0.1,0.5", "trainer.max_samples=800"], False),
        (["optim.lr=0.1,0.5", "data.micro_batch_size=2"], False),
        (["optim.lr=0.1,0.5", "optim.beta2=0.5"], True),
        (["optim.lr=0.2,0.3", "optim.beta2=0.5"], True),
        (["optim.lr=0.2", "model.num_layers=3"], True),
        (["optim.lr=0.2", "trainer.matmul_precision=medium"], True),
        (["optim.lr=0.2", "data.tokenizer=characters"], True),
        (["seed=1,2", "data.sequence_length=64"], True),
    ],
)
def test_a_folder_takes_runs_whose_other_settings_are_those_of_its_runs(
    words, is_refused, folder, rampcli
):
    given = [word for word in WORDS if word.split("=")[0] not in {w.split("=")[0] for w in words}]
    before = folder.read()
    ended = rampcli(*SWEEP, *given, *words, "--dry-run")
    assert ended.exit_code == (4 if is_refused else 0), ended.stderr
    assert folder.read() == before


def test_results_are_shown_for_runs_that_train_are_damaged_or_have_not_started(
    folder, succeed, json_of
):
    folder.add({"optim.lr=1.0": {"optim.lr": "1.0"}, "optim.lr=2.0": {"optim.lr": "2.0"}})
    (folder.path / "optim.lr=2.0").symlink_to(folder.path / "optim.lr=0.5")
    facts = json_of("report", "llama3_tiny_sweep")
    assert facts["best"] == "runs/llama3_tiny_sweep/optim.lr=0.1"
    assert {run["values"]["optim.lr"]: run["state"] for run in facts["runs"]} == {
        "1.0": "not started",
        "2.0": "damaged",
        "0.5": "interrupted",
        "0.1": "complete",
    }
    printed = succeed("report", "runs/llama3_tiny_sweep")
    assert "optim.lr=2.0 is a symbolic link" in printed


def test_a_list_of_runs_cannot_control_the_terminal_or_break_a_picture(folder, succeed, tmp_path):
    evil = {"\x1b[2J": "\x1b]0;x\x07", "optim.lr": "0.1"}
    folder.add({"optim.lr=0.1": evil, "optim.lr=0.5": {**evil, "optim.lr": "0.5"}})
    RunDirectory(folder.path / "optim.lr=0.5").change_status(COMPLETE)
    printed = succeed("report", str(folder.path), "--plot", "x.svg")
    assert "\x1b" not in printed
    assert r"\x1b[2J" in printed
    assert "optim.lr" in texts((tmp_path / "x.svg").read_bytes())


@pytest.mark.usefixtures("folder")
def test_a_page_and_a_comparison_take_the_runs_of_a_sweep(succeed, tmp_path):
    succeed("report", "llama3_tiny_sweep", "--html", "sweep.html")
    assert "optim.lr=0.5" in (tmp_path / "sweep.html").read_text()
    write_run(tmp_path / "runs/base", "optim.lr=0.2")
    rows = [line.split() for line in succeed("report", "llama3_tiny_sweep", "base").splitlines()]
    assert ["optim.lr", "0.5", "0.1", "0.2"] in rows


def test_a_run_that_another_command_trains_is_left_out(folder, rampcli):
    (run := RunDirectory(folder.path / "optim.lr=0.5")).claim()
    with lock_run(run):
        ended = rampcli(*SWEEP, *WORDS, "optim.lr=choice(0.5)")
    assert ended.exit_code == 0, ended.stderr
    assert f"run 1 of 1: optim.lr=0.5 is trained by process {os.getpid()} on" in ended.stdout


def test_a_dry_run_needs_no_gpus(succeed, refuse, tmp_path):
    words = ["sweep", "--factory", "llama3_8b", "optim.lr=0.1,0.2", "trainer.max_steps=10"]
    assert "2 runs" in succeed(*words, "--dry-run")
    assert refuse(*words).count("this run needs 8 GPUs") == 1
    assert [*tmp_path.iterdir()] == []


def test_a_dry_run_prints_json_alone(json_of, tmp_path):
    words = ["optim.lr=0.1,0.2", "throughput.samples_per_s_per_gpu=1", "trainer.max_samples=3600"]
    facts = json_of(*SWEEP, *words, "--dry-run")
    assert [run["values"] for run in facts["runs"]] == [{"optim.lr": "0.1"}, {"optim.lr": "0.2"}]
    assert {run["state"] for run in facts["runs"]} == {"not started"}
    assert all(run["hours"] > 0.4 for run in facts["runs"])
    assert [*tmp_path.iterdir()] == []


def test_hours_of_sizes_that_were_not_measured_are_unknown_as_in_a_plan(succeed):
    words = ["model.global_batch_size=4,16,64", "rampup.efficiency='4x1:9000 4x4:14000'"]
    few = ("model.rampup_batch_size=null", "trainer.num_nodes=1", "trainer.max_steps=10000")
    printed = succeed(*SWEEP, *few, *words, "--dry-run").splitlines()
    rows = [line.split() for line in printed]
    (column,) = [row.index("hours") for row in rows if "state" in row]
    marks = {row[0]: row[column] == "?" for row in rows if row[0] in ("4", "16", "64")}
    assert marks == {"4": False, "16": False, "64": True}
    (total,) = [row for row in rows if row[0] == "total"]
    assert total[column].startswith(">=")
    words[0] = f"--what-if={words[0]}"
    (note,) = [line for line in printed if line.startswith("note: no throughput was measured")]
    assert note in succeed("plan", *SWEEP[1:], *few, *words).splitlines()


def test_a_sweep_that_trains_prints_json_alone(tmp_path):
    settings = ["model.rampup_batch_size=null", "trainer.num_nodes=1", "trainer.max_samples=16"]
    words = Run(tmp_path / "sweep").overrides([*settings, "optim.lr=0.01,0.001"])
    done = run_command(["sweep", "--factory", "llama3_tiny", *words, "--json"], environment())
    states = [run["state"] for run in json.loads(done.stdout)["runs"]]
    assert (done.returncode, states) == (0, [COMPLETE, COMPLETE])


def learning_rates(*words, **base):
    """Returns the learning rate and the micro batch of each run of a sweep."""
    _, runs = compose_sweep(Base(**base), words, starts=False)
    configs = [run.resolved.config for run in runs]
    return [(config.optim.lr, config.data.micro_batch_size) for config in configs]


def test_keys_of_nemo_vary_over_its_files(nemo_tree, tmp_path):
    file = {"factory": "conf/training/gpt3/tiny.yaml"}
    tree = {"config_dir": tmp_path / "conf"}
    varied = "model.optim.lr=0.1,0.2"
    assert learning_rates(varied, **file) == [(0.1, 2), (0.2, 2)]
    assert learning_rates(nemo_tree[-1], f"training.{varied}", **tree) == [(0.1, 2), (0.2, 2)]
    both = learning_rates("training=gpt3/tiny,gpt3/other", varied, **tree)
    assert both == [(0.1, 2), (0.2, 2), (0.1, 1), (0.2, 1)]
    fixed = ["model.micro_batch_size=4", "+model.optim.sched.name=CosineAnnealing"]
    assert learning_rates(*fixed, varied, **file) == [(0.1, 4), (0.2, 4)]


def test_a_variable_of_a_file_varies(tmp_path):
    text = "defaults: [config, _self_]\nrate: 1\noptim:\n  lr: ${rate}\n"
    (tmp_path / "mine.yaml").write_text(text)
    assert [lr for lr, _ in learning_rates("rate=0.1,0.2", factory="mine.yaml")] == [0.1, 0.2]


@pytest.mark.parametrize("group", ["rates@optim", "deep/rates@optim"])
def test_options_vary_in_the_section_that_they_are_put_into(group, tmp_path):
    path = tmp_path / "mine" / group.partition("@")[0]
    path.mkdir(parents=True)
    for name, lr in (("a", 0.1), ("b", 0.2)):
        (path / f"{name}.yaml").write_text(f"lr: {lr}\n")
    found = learning_rates(f"+{group}=a,b", factory="llama3_tiny", config_dir=Path("mine"))
    assert [lr for lr, _ in found] == [0.1, 0.2]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["model.hidden_dropout=0,0.1"], "the same plan: model.hidden_dropout: no model here has"),
        (["model.optim.lr=1,1.0"], "give the same plan"),
        (["+run.name=b,c"], "the same plan: run.name changes no setting of the run"),
        (["model.optim.lr=1,2", "optim.lr=3"], "set one setting to different values"),
        (["model.optim.lrr=1,2"], "there is no setting model.optim.lrr"),
    ],
)
@pytest.mark.usefixtures("nemo_tree")
def test_a_sweep_over_a_file_of_nemo_whose_runs_would_be_alike_is_refused(words, problem, refuse):
    file = "conf/training/gpt3/tiny.yaml"
    assert problem in refuse("sweep", "-f", file, *words, "--dry-run")


@pytest.mark.usefixtures("nemo_tree")
def test_a_sweep_over_a_file_of_nemo_trains_and_takes_further_values():
    def sweep(value):
        words = ["-f", "conf/training/gpt3/tiny.yaml", f"model.optim.lr={value}", "--json"]
        done = run_command(["sweep", *words], environment())
        assert done.returncode == 0, done.stderr
        rows = json.loads(done.stdout)["runs"]
        return {row["values"]["model.optim.lr"]: row["state"] for row in rows}

    assert sweep("choice(0.1)") == {"0.1": COMPLETE}
    assert sweep("2e-1") == {"0.2": COMPLETE, "0.1": COMPLETE}


def runs_of(count, *words, complete=0):
    """Returns runs of two processes each, the first of which are complete."""
    config = apply_overrides(llm.from_factory("llama3_tiny"), [*ON_TWO_GPUS, *words])
    resolved = resolve(config)
    return [
        SimpleNamespace(resolved=resolved, is_complete=number < complete) for number in range(count)
    ]


@pytest.mark.parametrize(
    ("gpus", "at_once", "complete", "remedy"),
    [
        ("0,1,2,3", 2, 0, None),
        ("0,1,2,3", 3, 0, "--at-once 2"),
        ("0,1,2", 2, 0, "--at-once 1"),
        ("0,1,2,3", 9, 1, None),  # two are left
        ("", 3, 0, None),  # they train on the CPU
    ],
)
def test_each_run_at_once_needs_gpus_of_its_own(monkeypatch, gpus, at_once, complete, remedy):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    runs = runs_of(3, complete=complete)
    check_at_once(runs, at_once, starts=False)
    if remedy is None:
        check_at_once(runs, at_once, starts=True)
        return
    with pytest.raises(UsageError) as raised:
        check_at_once(runs, at_once, starts=True)
    assert raised.value.remedy == remedy
    check_at_once(runs, int(remedy.split()[1]), starts=True)


def test_jobs_are_left_to_their_queue():
    runs = runs_of(2, "launch=slurm")
    check_at_once(runs, 1, starts=False)
    with pytest.raises(UsageError, match="launch=slurm are jobs"):
        check_at_once(runs, 2, starts=False)
