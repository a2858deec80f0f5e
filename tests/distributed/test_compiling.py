"""Compiled layers train like others, and are compiled before the first step only."""

import re

import pytest

from runs import Run

ONE_PROCESS = ("trainer.num_nodes=1", "rampup.at_boundary=continue")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """Torch's folder for compiled code, empty at first."""
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(autouse=True)
def _told_of_compilations(monkeypatch, cache):
    monkeypatch.setenv("TORCH_LOGS", "recompiles")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    # Use the instructions that the processor says it has, without compiling a program for each.
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    monkeypatch.delenv(
        "TORCHINDUCTOR_CACHE_DIR", raising=False
    )  # torch itself sets it in the process of the tests


def of_kind(run: Run, kind: str) -> list[dict]:
    return [event for event in run.events if event["event"] == kind]


def compiled_again(run: Run) -> list[str]:
    """Returns the reasons for recompilations in the workers' logs."""
    logs = [path.read_text() for path in sorted(run.directory.logs.glob("*.log"))]
    return [
        line.partition("[__recompiles]")[2]
        for log in logs
        for line in log.splitlines()
        if re.search(r"- \d+/\d+:", line)
    ]


def test_a_ramp_with_validations_compiles_before_its_first_step_and_never_again(
    run, cache, undisturbed, assert_same_training
):
    ended = run.pretrain_from_scratch("trainer.compile=true", *ONE_PROCESS)
    assert ended.returncode == 0, ended.stderr
    assert_same_training(run, undisturbed)
    assert len(run.validations()) > len(of_kind(run, "stage")) > 1
    # Both layers share one graph. A pass without gradients has another one.
    assert len(compiled_again(run)) == 1
    assert "grad_mode" in compiled_again(run)[0]
    (event,) = of_kind(run, "compile")
    assert event["step"] == 0
    assert event["compile_s"] > max(row["step_time_s"] for row in run.rows)
    assert any(cache.rglob("*.so"))


def test_the_processes_of_a_later_stage_reuse_compiled_code(run, cache):
    ended = run.pretrain(
        "trainer.compile=true", "trainer.num_nodes=1", "model.rampup_batch_size=[2,6,48]"
    )
    assert ended.returncode == 0, ended.stderr
    (boundary,) = of_kind(run, "boundary")
    assert [event["step"] for event in of_kind(run, "compile")] == [0, boundary["step"] - 1]
    _, second = of_kind(run, "launch")
    assert max(path.stat().st_mtime for path in cache.rglob("*.so")) < second["time"]


def test_layers_are_compiled_for_each_micro_batch_size(run, assert_same_training):
    ramp = ("model.rampup_batch_size=[2,6,48]", "rampup.node_policy=fixed", *ONE_PROCESS)
    alone = type(run)(run.path.with_name("alone"))
    alone.workers(1, *ramp)
    words = ("trainer.compile=true", "rampup.micro_batch=largest", "data.micro_batch_size=8")
    ended = run.pretrain_from_scratch(*ramp, *words)
    assert ended.returncode == 0, ended.stderr
    assert {row["accumulate_grad_batches"] for row in run.rows} == {1}
    assert_same_training(run, alone)
    assert [event["step"] for event in of_kind(run, "compile")] == [
        event["step"] for event in of_kind(run, "stage")
    ]
    # torch.compile stops after eight versions of a layer, so none is kept for another size.
    assert len(compiled_again(run)) == len(of_kind(run, "compile")) == 2
    assert all("grad_mode" in reason for reason in compiled_again(run))


def test_a_missing_compiler_is_reported(run, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "no-compiler")
    ended = run.pretrain_from_scratch("trainer.compile=true", *ONE_PROCESS)
    assert ended.returncode == 1
    assert "torch.compile fails on this machine" in ended.stderr
    assert "trainer.compile=false" in ended.stderr
