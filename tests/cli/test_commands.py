import json
import os
import subprocess
import sys

import pytest


def rampcli(*words: str, cwd=None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([sys.executable, "-m", "rampcli", *words], cwd=cwd, env=environment, capture_output=True, text=True, check=False)


WRONG = [
    (["pretrain", "--factory", "llama3_9b"], ["there is no recipe llama3_9b", "llama3_8b"]),
    (["pretrain", "--factory", "llama3_8b(num_nodes='x')"], ["num_nodes='x' is not an integer"]),
    (["pretrain", "--factory", "__import__('os')"], ["is not a recipe's name"]),
    (["pretrain", "-f", "llama3_8b", "model.global_batchsize=1"], ["no setting model.global_batchsize", "model.global_batch_size"]),
    (["pretrain", "-f", "llama3_8b", "model.rampup_batch_size=[1,2]"], ["has 2 values; it takes three", "command line"]),
    (["pretrain", "-f", "llama3_8b", "model.rampup_batch_size=[256,", "128"], ["never closed"]),
    (["pretrain", "-f", "llama3_8b", "trainer.devices=eight"], ["trainer.devices=eight is not an integer", "command line"]),
    (
        ["pretrain", "-f", "llama3_8b", "--dry-run", "model.global_batch_size=510"],
        ["does not divide", "model.global_batch_size=508 or 512"],
    ),
    (["plan", "-f", "llama3_8b", "model=nothing"], ["there is no conf/model/nothing.yaml", "llama3_8b"]),
    (["plan", "-f", "gpt3_5b", "rampup.node_policy=fixed"], ["stage 0 of the ramp, batch size 256, does not divide", "multiples of 512"]),
    (["plan", "-f", "llama3_8b", "global_batch_size"], ["is not KEY=VALUE"]),
    (["plan", "-f", "llama3_8b", "seed=${oc.env:HOME}"], ["references (${...})", "are not resolved here"]),
    (["plan", "-f", "llama3_8b", "model._target_=os.system"], ["there is no setting model._target_"]),
    (["pretrain", "-f", "llama3_8b"], ["needs 8 GPUs (1 node of 8), and this machine has 0", "--dry-run"]),
    (["pretrain"], ["--factory"]),
]


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_bad_input_gets_one_clear_message_and_exit_code_2_and_writes_nothing(words, said, tmp_path):
    done = rampcli(*words, cwd=tmp_path)
    assert done.returncode == 2
    for part in said:
        assert part in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_prints_the_whole_plan_and_writes_nothing(tmp_path):
    done = rampcli("pretrain", "--factory", "gpt3_5b", "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    nodes = {256: 8, 512: 8, 768: 8, 1024: 8, 1280: 10, 1536: 12, 1792: 14, 2048: 16}
    assert dict(map(int, line.split()[1:3]) for line in done.stdout.splitlines()[1:9]) == nodes
    assert list(tmp_path.iterdir()) == []


def test_json_is_the_contract_and_nothing_else_is_printed(tmp_path):
    done = rampcli("plan", "--factory", "gpt3_5b", "--json", "trainer.max_steps=null", cwd=tmp_path)
    plan = json.loads(done.stdout)
    assert set(plan) == {"global_batch_size", "semantics", "sequence_length", "stages"}
    assert plan["stages"][4] == {
        "stage": 4,
        "global_batch_size": 1280,
        "first_sample": 5714944,
        "samples": 1428480,
        "first_step": 11627,
        "steps": 1116,
        "num_nodes": 10,
        "world_size": 80,
        "data_parallel_size": 80,
        "micro_batch_size": 4,
        "accumulate_grad_batches": 4,
    }
    assert (plan["stages"][-1]["steps"], plan["stages"][-1]["samples"]) == (None, None)


NEMO = [
    [
        "llm",
        "pretrain",
        "--factory",
        "llama3_8b",
        "data.micro_batch_size=4",
        "data.global_batch_size=16",
        "trainer.accumulate_grad_batches=1",
    ],
    [
        "llm",
        "pretrain",
        "--factory",
        "llama3_8b",
        "model.micro_batch_size=4",
        "model.global_batch_size=16",
        "trainer.strategy.context_parallel_size=2",
    ],
    ["pretrain", "--factory", "gpt3_5b", "model.global_batch_size=1024", "model.rampup_batch_size=[256,", "128,", "50000000]"],
]


@pytest.mark.parametrize("words", NEMO, ids=" ".join)
def test_command_lines_of_nemos_documents_paste_unchanged(words):
    done = rampcli(*words, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1].split()[1] in ("16", "256")


def test_cfg_prints_a_configuration_that_a_worker_could_read(tmp_path):
    from rampcli.config import snapshot

    done = rampcli("pretrain", "--factory", "llama3_tiny", "--cfg", "data.global_batch_size=32")
    (tmp_path / "config.yaml").write_text(done.stdout)
    assert snapshot.read(tmp_path / "config.yaml").model.global_batch_size == 32


def test_a_folder_of_further_options_can_be_chosen_from(tmp_path):
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "mine.yaml").write_text("lr: 0.25\nmin_lr: 0.0\nwarmup_samples: 1\n")
    done = rampcli("pretrain", "--factory", "llama3_tiny", "--config-dir", str(tmp_path), "optim=mine", "--cfg")
    assert "lr: 0.25" in done.stdout
    (tmp_path / "optim" / "mine.yaml").write_text("\n\nlearning_rate: 0.25\n")
    done = rampcli("pretrain", "--factory", "llama3_tiny", "--config-dir", str(tmp_path), "optim=mine", "--cfg")
    assert done.returncode == 2
    assert "there is no setting optim.learning_rate" in done.stderr
    assert "optim/mine.yaml:3" in done.stderr


def test_a_failure_of_the_workers_is_said_with_its_own_exit_code_and_the_log(tmp_path):
    done = rampcli("pretrain", "--factory", "llama3_tiny", "data.sequence_length=400_000_000", "trainer.val_samples=0", cwd=tmp_path)
    assert done.returncode == 2
    assert "the training corpus of data.source=stdlib has" in done.stderr
    assert "runs/llama3_tiny/logs/stage_0.log" in done.stderr
