import json

import pytest

from rampcli import llm
from rampcli.config import snapshot
from rampcli.config.compose import lay_over
from rampcli.config.resolve import Resolved, resolve
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, UsageError
from rampcli.launch.run import run
from rampcli.run_directory import MANIFEST, RunDirectory


def tiny(tmp_path, *words: str) -> Resolved:
    return resolve(lay_over(llm.from_factory("llama3_tiny"), [f"run_dir={tmp_path}/run", "trainer.accelerator=cpu", *words]))


@pytest.fixture
def resolved(tmp_path) -> Resolved:
    return tiny(tmp_path)


def leave_checkpoint(resolved: Resolved, *, consumed_samples: int, **changed) -> RunDirectory:
    directory = RunDirectory(resolved.run_dir)
    folder = directory.checkpoint_folder(7)
    folder.mkdir(parents=True)
    settings = snapshot.identity(resolved.config) | changed
    manifest = {"step": 7, "consumed_samples": consumed_samples, "settings": settings, "files": {}}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return directory


def test_a_run_that_is_complete_is_not_started_again(resolved):
    leave_checkpoint(resolved, consumed_samples=resolved.plan.end_sample)
    outcome = run(resolved)
    assert (outcome.status, outcome.started, outcome.exit_code) == ("complete", False, 0)
    assert sorted(path.name for path in resolved.run_dir.iterdir()) == ["checkpoints", "lock"]


@pytest.mark.parametrize(
    ("key", "theirs"), [("seed", 1), ("model.hidden_size", 64), ("model.rampup_batch_size", None), ("data.source", "mock")]
)
def test_a_checkpoint_of_another_configuration_is_refused_with_the_difference(resolved, key, theirs):
    leave_checkpoint(resolved, consumed_samples=8, **{key: theirs})
    with pytest.raises(ForeignCheckpointError, match=f"{key}={theirs}") as refused:
        run(resolved)
    assert refused.value.exit_code == 4


def test_resume_must_wants_a_checkpoint(tmp_path):
    with pytest.raises(NoCheckpointError) as refused:
        run(tiny(tmp_path, "resume=must"))
    assert refused.value.exit_code == 5
    assert not (tmp_path / "run").exists()


def test_resume_never_wants_none(tmp_path):
    resolved = tiny(tmp_path, "resume=never")
    leave_checkpoint(resolved, consumed_samples=8)
    with pytest.raises(UsageError, match="step 7"):
        run(resolved)


@pytest.mark.parametrize("axis", ["tensor", "pipeline", "context"])
def test_parallelism_that_the_engine_lacks_is_refused_before_anything_is_written(tmp_path, axis):
    words = [
        f"run_dir={tmp_path}/run",
        "trainer.accelerator=cpu",
        "trainer.devices=2",
        "trainer.num_nodes=1",
        f"parallel.{axis}_parallel_size=2",
        "rampup.node_policy=fixed",
    ]
    with pytest.raises(UsageError, match="data-parallel only"):
        run(resolve(lay_over(llm.from_factory("llama3_tiny"), words)))
    assert not (tmp_path / "run").exists()
