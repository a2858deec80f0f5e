import json

import pytest

from rampcli import llm
from rampcli.cli.base import Base
from rampcli.cli.composing import compose_words
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST
from rampcli.settings.by_key import leaves
from run_files import manifest

FIXED = ["rampup.node_policy=fixed", "model.rampup_batch_size=[256,1792,10M]"]
"""A ramp whose first stage does not fit its nodes, and whose second stage does."""


@pytest.fixture
def behind(tmp_path):
    """A run directory with a checkpoint after the first stage."""
    run = RunDirectory(tmp_path / "run")
    folder = run.checkpoint_folder(39063)
    folder.mkdir(parents=True)
    (folder / MANIFEST).write_text(json.dumps(manifest(step=39063, consumed_samples=10_000_128)))
    return run


def test_words_are_applied_to_the_recipe_and_resolved():
    words = ["trainer.num_nodes=8", "model.rampup_batch_size=[256,", "256,", "10M]"]
    typed = compose_words(Base(factory="gpt3_5b"), words)
    written = resolve(
        apply_overrides(
            llm.gpt3_5b.pretrain_recipe(),
            ["trainer.num_nodes=8", "model.rampup_batch_size=[256,256,10M]"],
        )
    )
    assert dict(leaves(typed.config)) == dict(leaves(written.config))
    assert typed.plan == written.plan


def test_stages_before_the_checkpoint_are_not_checked_on_a_resume(behind):
    words = [*FIXED, f"run_dir={behind.path}"]
    resolved = compose_words(Base(factory="gpt3_5b"), words, resumes=True)
    assert [stage.global_batch_size for stage in resolved.plan.passed] == [256]
    assert [stage.global_batch_size for stage in resolved.plan.stages] == [2048]
    with pytest.raises(UsageError, match=r"256 \(stage 0\)"):
        compose_words(Base(factory="gpt3_5b"), words)


def test_a_run_without_a_run_directory_starts_at_sample_zero(tmp_path):
    with pytest.raises(UsageError, match=r"256 \(stage 0\)"):
        compose_words(
            Base(factory="gpt3_5b"), [*FIXED, f"run_dir={tmp_path}/nothing"], resumes=True
        )
