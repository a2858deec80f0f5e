"""What can be known before a start is told alike by a dry run, the doctor and the start."""

import json
import re
import subprocess
from dataclasses import replace

import pytest

from model_folders import MODEL, write_model
from models.families import GPT
from rampcli.cli.base import Base
from rampcli.cli.composing import compose_words
from rampcli.config import snapshot
from rampcli.launch.run import write_run_files
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST, complete_checkpoints
from rampcli.settings.model import ModelConfig
from run_files import manifest

RUN = ("--factory", "llama3_tiny", "trainer.accelerator=cpu")
TEXT = ("data=text", "data.path=a.txt", "data.tokenizer=bytes", "name=trained")
HUGE = ("model.hidden_size=65536", "model.num_layers=1000")
"""A checkpoint of terabytes."""


GPT2 = ModelConfig(num_layers=1, hidden_size=32, ffn_hidden_size=128, vocab_size=256, **GPT)
TIED = replace(MODEL, tie_embeddings=True)
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def write_folders(folder):
    """Writes a GPT-2 with 256 positions, and models whose files do not fit their config.json."""
    write_model(folder / "gpt2", GPT2, sequence_length=256)
    write_model(folder / "headless", others={HEAD: None})
    shape = (MODEL.vocab_size, MODEL.hidden_size)
    write_model(folder / "tied", TIED, others={HEAD: shape})


def other_corpus(folder):
    """Writes a text, and a checkpoint that was trained on another one."""
    (folder / "a.txt").write_text("some words of a text " * 100, encoding="utf-8")
    run = RunDirectory(folder / "runs" / "trained")
    run.checkpoint_folder(1).mkdir(parents=True)
    resolved = compose_words(Base(factory="llama3_tiny"), TEXT)
    settings = snapshot.identity(resolved.config)
    facts = manifest(step=1, consumed_samples=4, settings=settings)
    (run.checkpoint_folder(1) / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")


FOLDER = ("model=from_folder", "data.sequence_length=32")
POSITIONS = (
    ("model=from_folder", "model.init_from=gpt2", "data.sequence_length=1024"),
    "gpt2 has learned 256 positions, and data.sequence_length=1024",
)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        POSITIONS,
        ((*FOLDER, "model.init_from=headless"), f"headless does not hold {HEAD}"),
        (
            (*FOLDER, "model.init_from=tied"),
            f"{HEAD} in tied/model.safetensors differs from {EMBEDDING}, to which",
        ),
        (
            TEXT,
            "was trained on another corpus than this run reads",
        ),
        (("resume=must", "name=none"), "resume=must, but runs/none has no checkpoint"),
    ],
)
def test_files_that_do_not_fit_are_refused_by_a_dry_run_the_doctor_and_the_start(
    rampcli, tmp_path, words, message
):
    write_folders(tmp_path)
    other_corpus(tmp_path)
    start = rampcli("pretrain", *RUN, *words)
    assert message in start.stderr
    dry = rampcli("pretrain", *RUN, *words, "--dry-run")
    assert (dry.exit_code, dry.stderr, dry.stdout) == (start.exit_code, start.stderr, "")
    found = json.loads(rampcli("doctor", *RUN, *words, "--json").stdout)["checks"][-1]
    assert (found["name"], found["status"]) == ("start", "failure")
    assert message in found["finding"]


@pytest.mark.parametrize("name", ["backup", "my best", "step_10", "step_00000012"])
def test_a_renamed_checkpoint_is_offered_its_name_by_a_command_that_works(rampcli, tmp_path, name):
    run = RunDirectory(tmp_path / "runs/trained")
    resolved = compose_words(Base(factory="llama3_tiny"), ["name=trained"])
    write_run_files(run, resolved, [])
    folder = run.checkpoints / name
    folder.mkdir(parents=True)
    settings = snapshot.identity(resolved.config)
    facts = manifest(step=10, consumed_samples=40, settings=settings)
    (folder / MANIFEST).write_text(json.dumps(facts), encoding="utf-8")
    dry = ("pretrain", *RUN, "name=trained", "--dry-run")
    offered = [
        re.search(r"try: +(mv .*?)(, or .*)?$", rampcli(*words).stderr, re.MULTILINE)[1]
        for words in (
            dry,
            (*dry, "resume=must"),
            ("generate", "trained", "-p", "x"),
            ("export", "trained", "out"),
            ("plan", *RUN, "model.init_from=runs/trained"),
        )
    ]
    assert len(set(offered)) == 1
    subprocess.run(offered[0], shell=True, cwd=tmp_path, check=True)
    assert [one.path.name for one in complete_checkpoints(run)] == ["step_00000010"]
    ended = rampcli(*dry)
    assert (ended.exit_code, ended.stderr) == (0, "")


def test_a_plan_refuses_a_model_that_lacks_positions(refuse, tmp_path):
    write_folders(tmp_path)
    words, message = POSITIONS
    assert refuse("plan", *RUN, *words).startswith(f"error: {message}")


def test_tensors_that_the_model_does_not_have_are_named_by_a_plan_and_a_dry_run(rampcli, tmp_path):
    write_model(tmp_path / "adapted", others={"lora_A.weight": (4, 4), "rotary_emb.inv_freq": (4,)})
    words = (*RUN, *FOLDER, "model.init_from=adapted")
    note = "the model does not have these tensors of adapted: lora_A.weight"
    for command in (("plan", *words), ("pretrain", *words, "--dry-run")):
        assert f"note: {note}" in " ".join(rampcli(*command).stdout.split())
    assert note in json.loads(rampcli("plan", *words, "--json").stdout)["notes"]


def test_what_this_machine_lacks_is_noted_by_a_dry_run_and_refused_by_the_start(
    succeed, rampcli, tmp_path
):
    messages = (
        "this run needs 1 GPU (1 node of 1), and this machine has 0",
        f"the disk of {tmp_path} cannot hold one checkpoint: ",
    )
    words = (*RUN[:2], "trainer.accelerator=gpu", "trainer.max_steps=4", *HUGE)
    dry = succeed("pretrain", *words, "--dry-run")
    for message in messages:
        assert f"note: a start on this machine would be refused: {message}" in dry
    for given, message in zip((words, (*RUN, *HUGE)), messages, strict=True):
        refused = rampcli("pretrain", *given)
        assert (refused.exit_code, message in refused.stderr) == (2, True)
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_do_not_all_fit_are_noted_by_a_dry_run_and_the_doctor(rampcli):
    words = (*RUN, "checkpoint.keep_last=1_000_000_000")
    dry = rampcli("pretrain", *words, "--dry-run")
    assert "1000000001 more checkpoints of 6.2 MB will not fit; try: run_dir=" in dry.stdout
    checks = json.loads(rampcli("doctor", *words, "--json").stdout)["checks"]
    assert [check["name"] for check in checks if check["status"] == "warning"][:1] == ["disk"]
