"""What a search reuses of an earlier one."""

import json

import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.config.resolve import resolve
from rampcli.run_directory import RunDirectory
from rampcli.tune.median import median_of
from rampcli.tune.run import Search
from rampcli.tune.trial import FITS, Trial

SEARCH = (
    "trainer.accelerator=cpu",
    "trainer.num_nodes=1",
    "model.rampup_batch_size=null",
    "model.global_batch_size=4",
    "data.micro_batch_size=1",
)


def trial_of(candidate, **facts):
    """Returns a trial that fits and takes the same time with every size."""
    outcome = {
        "micro_batch_size": candidate.micro_batch_size,
        "verdict": FITS,
        "reason": None,
        "world_size": candidate.stage.world_size,
        "data_parallel_size": candidate.stage.data_parallel_size,
        "accumulate_grad_batches": candidate.stage.accumulate_grad_batches,
        "medians": {candidate.timed[-1]: median_of([0.5] * 8)},
        "peak_memory_bytes": 1,
        "device": "cpu",
        "device_name": "a processor",
    }
    return Trial(**outcome | facts)


@pytest.fixture
def search(tmp_path):
    """Searches, and returns the sizes that were tried and what was reported about earlier ones."""

    def run(*words, fresh=False, **facts):
        overrides = [f"run_dir={run.path}", *SEARCH, *words]
        resolved = resolve(apply_overrides(llm.from_factory("llama3_tiny"), overrides))
        directory = RunDirectory(run.path)
        directory.claim()
        tried, lines = [], []

        def attempt(candidate):
            tried.append(candidate.micro_batch_size)
            return trial_of(candidate, **facts)

        found = Search.of(resolved, directory, fresh=fresh, exhaustive=False)
        assert found.continue_with(attempt, lines.append)
        return tried, [line for line in lines if "trying" not in line]

    run.path = tmp_path / "run"
    return run


def test_settings_that_change_neither_time_nor_memory_keep_the_results(search):
    assert search()[0]
    for word in (
        "seed=4611686018427387904",
        "optim.lr=2e-3",
        "optim.min_lr=1e-5",
        "optim.weight_decay=0.2",
        "optim.beta2=0.99",
        "schedule.decay_style=linear",
        "data.split=[90,10,0]",
        "model.init_std=0.01",
        "trainer.max_steps=7",
        "rampup.node_policy=fixed",
        "launch.elastic=true",
    ):
        assert search(word) == ([], []), word


def test_results_under_other_conditions_are_set_aside_with_a_word(search):
    search()
    before = (search.path / "tune.json").read_bytes()
    for number, word in enumerate(("model.hidden_size=64", "optim.optimizer=muon"), start=1):
        tried, lines = search(word)
        assert tried
        key = word.partition("=")[0]
        assert lines[0].startswith(f"earlier results are kept in {search.path}/tune.{number}.json")
        assert key in lines[0]
    assert (search.path / "tune.1.json").read_bytes() == before
    assert (search.path / "tune.2.json").exists()


def test_fresh_results_do_not_replace_earlier_ones(search):
    search()
    tried, lines = search(fresh=True)
    assert tried
    assert lines == [f"earlier results are kept in {search.path}/tune.1.json"]


def test_conditions_from_an_untrusted_file_are_printed_visibly(search):
    search()
    path = search.path / "tune.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"conditions": {"\x1b[2J": 10**30}}))
    _, (line,) = search()
    assert line.isprintable()
