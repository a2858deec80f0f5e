import os
import tempfile

import pytest

from rampcli import llm
from rampcli.errors import UsageError
from rampcli.launch.resources import gpus_needed, reserve_gpus
from rampcli.planning.resolve import resolve


@pytest.fixture
def claims(monkeypatch, tmp_path):
    """An empty folder for reservations."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def tiny(accelerator):
    """Returns configuration and plan of a run of two processes."""
    config = llm.llama3_tiny.pretrain_recipe()
    config.trainer.accelerator = accelerator
    resolved = resolve(config)
    return resolved.config, resolved.plan


@pytest.mark.parametrize(
    ("accelerator", "variable", "used"),
    [
        ("auto", "3,5,7", ["3", "5"]),
        ("auto", "3", []),
        ("cpu", "3,5", []),
        ("gpu", "3,5", ["3", "5"]),
    ],
)
def test_a_run_reserves_all_gpus_of_its_largest_stage_or_none(
    claims,  # noqa: ARG001
    monkeypatch,
    accelerator,
    variable,
    used,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with reserve_gpus(*tiny(accelerator)) as gpus:
        assert gpus == used


def test_concurrent_runs_get_different_gpus_until_there_are_too_few(claims, monkeypatch):  # noqa: ARG001
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,GPU-a/b,4")
    with reserve_gpus(*tiny("gpu")) as first, reserve_gpus(*tiny("auto")) as second:
        assert (first, second) == (["0", "1"], ["2", "GPU-a/b"])
        with (
            pytest.raises(UsageError, match="needs 2 GPUs, but other runs use 4 of the 5 GPUs"),
            reserve_gpus(*tiny("auto")),
        ):
            pass
        with reserve_gpus(*tiny("cpu")) as none:
            assert none == []
    with reserve_gpus(*tiny("gpu")) as again:
        assert again == ["0", "1"]


def test_a_run_that_needs_more_gpus_than_exist_is_refused_with_their_number(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    resolved = resolve(llm.gpt3_5b.pretrain_recipe())
    with pytest.raises(
        UsageError, match=r"needs 128 GPUs \(16 nodes of 8\), and this machine has 1"
    ):
        gpus_needed(resolved.config, resolved.plan)


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.mkdir(mode=0o777),
        lambda path: path.symlink_to("/var"),
        lambda path: path.touch(),
    ],
)
def test_gpus_are_not_reserved_in_a_folder_that_others_can_write_to(
    claims,  # noqa: ARG001
    monkeypatch,
    tmp_path,
    make,
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    before = os.umask(0)
    make(tmp_path / f"rampcli-gpus-{os.getuid()}")
    os.umask(before)
    with (
        pytest.raises(UsageError, match="is not a folder that only you can write to"),
        reserve_gpus(*tiny("gpu")),
    ):
        pass
