import json
import subprocess
import sys

import pytest
import torch

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.launch.run import describe
from rampcli.models import linear, masks
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.events import read_events
from rampcli.worker.assemble import (
    note_dense_masks,
    note_exact_products,
    note_few_processors,
    note_unused_gpus,
)
from tiny_runs import TINY, environment


def test_an_error_in_a_worker_names_the_word_that_was_typed(tmp_path):
    run = RunDirectory(tmp_path / "run")
    settings = TINY | {"trainer.accelerator": "gpu", "run_dir": str(run.path)}
    words = [f"{key}={value}" for key, value in settings.items()]
    describe(run, resolve(apply_overrides(llm.from_factory("llama3_tiny"), words)), words)
    ended = subprocess.run(
        [sys.executable, "-m", "rampcli.worker", str(run.path)],
        env={**environment(), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    place = "trainer.accelerator=gpu (command line)"
    assert ended.returncode == 2
    assert f"set by: {place}\n" in ended.stderr
    assert json.loads((run.path / "state.json").read_text())["error"]["set_by"] == [place]


@pytest.mark.parametrize(("visible", "warnings"), [("0,1", 1), ("", 0), ("-1", 0)])
def test_gpus_that_torch_cannot_use_are_recorded(tmp_path, monkeypatch, visible, warnings):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    run = RunDirectory(tmp_path / "run")
    run.claim()
    note_unused_gpus(run)
    found = read_events(run.events).warnings
    assert len(found) == warnings
    assert all("GPU 0, 1, and torch" in reason for reason in found)


@pytest.mark.parametrize(("processors", "warnings"), [(1, 1), (2, 0)])
def test_a_single_processor_beside_a_gpu_is_recorded(tmp_path, processors, warnings):
    run = RunDirectory(tmp_path / "run")
    run.claim()
    note_few_processors(run, processors)
    assert len(read_events(run.events).warnings) == warnings


@pytest.mark.parametrize(
    ("triton", "head_size", "documents", "warnings"),
    [
        (False, 16, True, 1),
        (False, 16, False, 0),
        (True, 16, True, 0),
        (False, 8, True, 0),  # the plan counts the mask
    ],
)
def test_a_mask_that_the_plan_does_not_count_is_recorded(
    tmp_path, monkeypatch, triton, head_size, documents, warnings
):
    monkeypatch.setattr(masks, "_has_triton", lambda: triton)
    run = RunDirectory(tmp_path / "run")
    run.claim()
    config = llm.from_factory("llama3_tiny")
    config.model.head_size, config.data.document_mask = head_size, documents
    note_dense_masks(run, config, torch.device("cuda"))
    found = read_events(run.events).warnings
    assert len(found) == warnings
    assert all("triton" in reason and "the mask of a sample takes" in reason for reason in found)


@pytest.mark.parametrize(
    ("device", "has_bf16", "precision", "warnings"),
    [
        ("cpu", False, "medium", 1),
        ("cpu", True, "medium", 0),
        ("cpu", False, "high", 0),
        ("cuda", False, "medium", 0),
    ],
)
def test_products_that_are_more_exact_than_asked_are_recorded(
    tmp_path, monkeypatch, device, has_bf16, precision, warnings
):
    monkeypatch.setattr(linear, "has_bf16_products", lambda: has_bf16)
    run = RunDirectory(tmp_path / "run")
    run.claim()
    trainer = llm.from_factory("llama3_tiny").trainer
    trainer.matmul_precision = precision
    note_exact_products(run, trainer, torch.device(device))
    found = read_events(run.events).warnings
    assert len(found) == warnings
    assert all("neither avx512_bf16" in reason for reason in found)
