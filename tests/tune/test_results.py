"""What a search reuses of an earlier one."""

import json

import pytest

from rampcli.runs.directory import RunDirectory
from rampcli.tune.run import Search
from rampcli.tune.trial import TIMED_OUT
from rampcli.tune.trial_files import Effort
from searches import resolved_search, trial_of

EFFORT = Effort()


@pytest.fixture
def search(tmp_path):
    """Searches, and returns the sizes that were tried and what was reported about earlier ones.

    The search is interrupted after `until` trials, whose outcomes have `facts`.
    """

    def run(*words, fresh=False, until=None, effort=EFFORT, **facts):
        resolved = resolved_search(run.path, *words)
        directory = RunDirectory(run.path)
        directory.claim()
        tried, lines = [], []

        def attempt(candidate):
            if len(tried) == until:
                return None
            tried.append(candidate.micro_batch_size)
            return trial_of(candidate, **facts)

        found = Search(resolved, effort, fresh=fresh)
        assert found.continue_with(attempt, lines.append) == (until is None)
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
    for number, word in enumerate(("model.hidden_size=64", "optim.optimizer=adamw"), start=1):
        tried, lines = search(word)
        assert tried
        key = word.partition("=")[0]
        assert lines[0].startswith(f"earlier results are kept in {search.path}/tune.{number}.json")
        assert key in lines[0]
    assert (search.path / "tune.1.json").read_bytes() == before
    assert (search.path / "tune.2.json").exists()


def test_results_with_other_threads_or_processors_are_not_mixed(search, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    search()
    for threads in ("2", None):
        monkeypatch.delenv("OMP_NUM_THREADS")
        if threads is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        tried, (line,) = search()
        assert tried
        assert "(OMP_NUM_THREADS)" in line
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {*range(97)})
    tried, (line,) = search()
    assert tried
    assert "(processors)" in line


def test_results_of_the_cpu_and_of_other_gpus_are_not_mixed(search, monkeypatch, tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\ncase "$*" in *=name*) echo "model $1";; esac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    auto = "trainer.accelerator=auto"
    assert search()[0]
    assert search(auto) == ([], [])  # this is the CPU as well
    for gpu in ("GPU-one", "GPU-two"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpu)
        tried, (line,) = search(auto)
        assert tried
        assert "(gpus" in line
    assert search("trainer.accelerator=gpu") == ([], [])


def test_a_search_that_continues_on_another_device_starts_again(search):
    assert search(until=2)[0] == [4, 2]
    tried, (line,) = search(device_name="another processor")
    assert "(device)" in line
    assert [*tried[:1], *sorted(tried[1:])] == [1, 2, 4]
    assert search(device_name="another processor") == ([], [])


@pytest.mark.parametrize("times", [[0.5], [0.5] * 5, [0.4, 0.6] * 4])
def test_a_size_that_needs_more_steps_is_tried_again_once_it_may_have_them(search, times):
    quick = Effort(most_steps=len(times))
    tried, _ = search(effort=quick, times=times)
    assert search(effort=quick) == ([], [])
    assert search(effort=Effort(most_steps=1)) == ([], [])
    assert set(search()[0]) == set(tried)


def test_results_that_were_set_aside_are_not_mixed_with_those_of_another_device(search):
    assert search(until=2)[0] == [4, 2]
    assert search("model.hidden_size=64", until=0)[0] == []
    tried, _ = search(device_name="another processor")
    assert sorted(tried) == [1, 2, 4]


def test_a_size_that_is_known_precisely_is_not_tried_again_with_more_steps(search):
    search(effort=Effort(most_steps=8))
    assert search(effort=Effort(most_steps=1000)) == ([], [])


def test_a_size_that_timed_out_is_tried_again_with_more_time_only(search):
    outcome = {"verdict": TIMED_OUT, "reason": "no result", "medians": {}, "timeout_s": 20.0}
    tried, _ = search(effort=Effort(timeout_s=20.0), **outcome)
    for timeout_s in (20.0, 10.0):
        assert search(effort=Effort(timeout_s=timeout_s)) == ([], [])
    assert search(effort=Effort(timeout_s=21.0))[0][0] == tried[0]


def test_a_search_finds_its_results_again_after_another_one(search):
    search(until=2)
    search("model.hidden_size=64")
    tried, (line,) = search()
    assert (tried, line.partition(":")[0]) == (
        [1],
        f"earlier results are kept in {search.path}/tune.2.json",
    )
    (search.path / "tune.3.json").write_text("{")
    assert search("model.hidden_size=64") == ([], [])


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
