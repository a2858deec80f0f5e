"""Where a search starts, and how it takes hold of a run, without starting any trial."""

from rampcli import host_memory, llm
from rampcli.config.compose import apply_overrides
from rampcli.config.resolve import resolve
from rampcli.launch.run import describe
from rampcli.run_directory import RunDirectory
from rampcli.tune.run import folder_of, predict, trials_here
from rampcli.tune.sizes import candidates, own_candidate
from rampcli.tune.trial import Effort


def test_a_search_may_follow_a_diagnosis_in_the_same_run(tmp_path):
    words = [f"run_dir={tmp_path / 'run'}", "trainer.accelerator=cpu"]
    resolved = resolve(apply_overrides(llm.from_factory("llama3_tiny"), words))
    with trials_here(resolved, Effort(), diagnoses=True) as trials:
        describe(RunDirectory(trials.folder_of(own_candidate(resolved))), resolved, [])
    folder = folder_of(trials.run)
    describe(folder, resolved, [])  # as a search does before its first trial
    assert folder.config.exists()


def test_a_search_starts_with_the_smallest_size_if_the_memory_is_unknown(monkeypatch, tmp_path):
    config = apply_overrides(llm.from_factory("llama3_tiny"), ["trainer.accelerator=cpu"])
    resolved = resolve(config)
    sizes = candidates(resolved)
    assert predict(resolved.config, sizes) == sizes[-1].micro_batch_size
    monkeypatch.setattr(host_memory, "HOST", tmp_path / "meminfo")
    assert predict(resolved.config, sizes) == sizes[0].micro_batch_size
