"""Compiled layers train like others, and are compiled before the first step only."""

import re
from functools import partial

import pytest
import torch
from torch._dynamo.callback import callback_handler
from torch._logging import set_logs

from rampcli.machine.activity import COMPILING, activity
from tiny_runs import Run, assert_same_training

ONE_PROCESS = ("trainer.num_nodes=1", "rampup.at_boundary=continue")


@pytest.fixture(scope="module")
def cache(request):
    """Torch's folder for compiled code, which later test runs use as well.

    Torch looks code up by its text, options and versions.
    """
    return request.config.cache.mkdir("compiled")


@pytest.fixture(autouse=True)
def _compiler(monkeypatch, cache):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    # Use the instructions that the processor says it has, without compiling a program for each.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    monkeypatch.delenv(
        "TORCHINDUCTOR_CACHE_DIR", raising=False
    )  # torch itself sets it in the process of the tests


def log_graphs() -> None:
    """Prints what a rank does whenever torch makes a graph, and why it makes another one.

    Graphs consist of the operations themselves. C++ for them would take half a minute.
    """
    torch.compile = partial(torch.compile, backend="aot_eager")
    set_logs(recompiles=True)
    callback_handler.register_start_callback(
        lambda _: print("torch compiles while this rank is", activity()[0])
    )


def lines_of_logs(run: Run) -> list[str]:
    logs = [path.read_text() for path in sorted(run.directory.logs.glob("*.log"))]
    return [line for log in logs for line in log.splitlines()]


def compiled_again(run: Run) -> list[str]:
    """Returns the reasons for recompilations in the workers' logs."""
    return [
        line.partition("[__recompiles]")[2]
        for line in lines_of_logs(run)
        if re.search(r"- \d+/\d+:", line)
    ]


def test_each_micro_batch_size_is_compiled_before_its_first_step_and_never_again(run):
    # Micro batches of 2 and 8 samples, and two of 8 per step in the third stage.
    ramp = (
        "model.rampup_batch_size=null",
        "model.global_batch_size=null",
        "model.step_batch_size_schedule='samples: 0:2 16:8 48:16'",
        "rampup.node_policy=fixed",
        "trainer.max_samples=80",
        *ONE_PROCESS,
    )
    alone = run.beside("alone")
    alone.workers(1, *ramp)
    words = ("trainer.compile=true", "rampup.micro_batch=largest", "data.micro_batch_size=8")
    words += ("average.ema=1",)  # which is validated in place of the weights that it follows
    command = run.start(*ramp, *words, prepare=log_graphs)
    command.ends_with(0)
    assert_same_training(run, alone)
    stages = [event["step"] for event in run.events_of("stage")]
    compilations = run.events_of("compile")
    assert [event["step"] for event in compilations] == stages[:2]
    assert [row["accumulate_grad_batches"] for row in run.rows][-1] == 2
    assert len(run.validations()) > len(stages) == 3
    of_average = {event["step"]: event["ema_loss"] for event in run.events_of("validation")}
    assert of_average == pytest.approx(run.validations(), abs=1e-6)
    # Both layers share one graph. A pass without gradients has another one. torch.compile stops
    # after eight versions of a layer, so none is kept for another size.
    assert len(compiled_again(run)) == len(compilations)
    assert all("grad_mode" in reason for reason in compiled_again(run))
    activities = [line for line in lines_of_logs(run) if line.startswith("torch compiles while")]
    assert {*activities} == {f"torch compiles while this rank is {COMPILING}"}


def test_the_processes_of_a_later_stage_reuse_compiled_code_that_trains_like_other_code(run, cache):
    words = ("trainer.num_nodes=1", "model.rampup_batch_size=[2,6,48]")
    run.complete("trainer.compile=true", *words)
    alone = run.beside("alone")
    alone.workers(1, "rampup.at_boundary=continue", *words)
    assert_same_training(run, alone)
    (boundary,) = run.events_of("boundary")
    assert [event["step"] for event in run.events_of("compile")] == [0, boundary["step"] - 1]
    _, second = run.events_of("launch")
    assert max(path.stat().st_mtime for path in cache.rglob("*.so")) < second["time"]


def test_compiled_tensor_ranks_train_as_one_process_does(run):
    words = ("rampup.node_policy=fixed", "model.num_query_groups=2", *ONE_PROCESS)
    words += ("model.rampup_batch_size=[4,4,6]", "data.micro_batch_size=4")
    words += ("trainer.max_samples=24", "trainer.val_samples=4")
    alone = run.beside("alone")
    alone.workers(1, *words)
    two = ("trainer.devices=2", "parallel.tensor_parallel_size=2", "trainer.compile=true")
    run.complete(*words, *two)
    assert {row["world_size"] for row in run.rows} == {2}
    assert [row["compiles"] for row in run.events_of("load")] == [True]
    assert_same_training(run, alone)


@pytest.fixture
def _no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("_no_compiler")
def test_a_missing_compiler_is_reported(run):
    ended = run.pretrain("trainer.compile=true", *ONE_PROCESS)
    assert ended.returncode == 1
    assert "torch.compile fails on this machine" in ended.stderr
    assert "trainer.compile=false" in ended.stderr


@pytest.mark.usefixtures("_no_compiler")
def test_a_run_whose_plan_chose_to_compile_trains_without_a_compiler_and_says_so(run):
    # So slow that the run takes long enough to pay for compilation.
    ended = run.complete("throughput.samples_per_s_per_gpu=0.001", *ONE_PROCESS)
    reasons = [event["reason"] for event in run.events_of("fault")]
    (reason,) = [one for one in reasons if "compile" in one]
    assert reason.startswith("rank 0 cannot compile layers, so no rank does")
    assert reason in ended.stdout
    assert [row["compiles"] for row in run.events_of("load")] == [False]
    assert run.events_of("compile") == []
