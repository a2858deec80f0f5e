import json

import pytest
import torch

from commands import Command
from rampcli import llm
from rampcli.launch.run import write_run_files
from rampcli.models import linear, masks
from rampcli.runs.directory import RunDirectory
from rampcli.worker import assemble
from rampcli.worker.assemble import departures_from_plan
from tiny_runs import TINY, environment


def test_an_error_in_a_worker_names_the_word_that_was_typed(tmp_path, planned):
    run = RunDirectory(tmp_path / "run")
    settings = TINY | {"trainer.accelerator": "gpu", "run_dir": str(run.path)}
    words = [f"{key}={value}" for key, value in settings.items()]
    write_run_files(run, planned("llama3_tiny", *words), words)
    without_gpus = environment() | {"CUDA_VISIBLE_DEVICES": ""}
    worker = Command([str(run.path)], without_gpus, program="rampcli.worker")
    _, errors = worker.communicate()
    place = "trainer.accelerator=gpu (command line)"
    assert worker.returncode == 2
    assert f"set by: {place}\n" in errors
    assert json.loads((run.path / "state.json").read_text())["error"]["set_by"] == [place]


def assert_faults(device, *, words, count, **changes):
    """Checks that a rank on a device has a number of faults, each described by some words.

    Args:
        changes: settings that differ from the recipe's, with `__` in place of the dot.
    """
    config = llm.from_factory("llama3_tiny")
    for key, value in changes.items():
        section, _, name = key.partition("__")
        setattr(getattr(config, section), name, value)
    found = [*departures_from_plan(config, torch.device(device))]
    assert len(found) == count
    assert all(word in fault for fault in found for word in words)


@pytest.mark.parametrize(("visible", "count"), [("0,1", 1), ("", 0), ("-1", 0)])
def test_gpus_that_torch_cannot_use_are_recorded(monkeypatch, visible, count):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert_faults("cpu", words=["GPU 0, 1, and torch"], count=count)
    assert_faults("cpu", words=[], count=0, trainer__accelerator="cpu")


@pytest.mark.parametrize(("processors", "count"), [(1, 1), (2, 0)])
def test_a_single_processor_beside_a_gpu_is_recorded(monkeypatch, processors, count):
    monkeypatch.setattr(assemble, "processors", lambda: processors)
    assert_faults("cuda", words=["a process may use 1 processor"], count=count)
    assert_faults("cpu", words=[], count=0, trainer__accelerator="cpu")


@pytest.mark.parametrize(
    ("triton", "head_size", "documents", "count"),
    [
        (False, 16, True, 1),
        (False, 16, False, 0),
        (True, 16, True, 0),
        (False, 8, True, 0),  # the plan counts the mask
    ],
)
def test_a_mask_that_the_plan_does_not_count_is_recorded(
    monkeypatch, triton, head_size, documents, count
):
    monkeypatch.setattr(masks, "_has_triton", lambda: triton)
    monkeypatch.setattr(assemble, "processors", lambda: 2)
    words = ["triton", "the mask of a sample takes"]
    settings = {"model__head_size": head_size, "data__document_mask": documents}
    assert_faults("cuda", words=words, count=count, **settings)


@pytest.mark.parametrize(
    ("device", "has_bf16", "precision", "count"),
    [
        ("cpu", False, "medium", 1),
        ("cpu", True, "medium", 0),
        ("cpu", False, "high", 0),
        ("cuda", False, "medium", 0),
    ],
)
def test_products_that_are_more_exact_than_asked_are_recorded(
    monkeypatch, device, has_bf16, precision, count
):
    monkeypatch.setattr(linear, "has_bf16_products", lambda: has_bf16)
    monkeypatch.setattr(assemble, "processors", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["neither avx512_bf16"]
    assert_faults(device, words=words, count=count, trainer__matmul_precision=precision)
