"""How `rampcli tune` ends, with outcomes of trials that no rank is started for."""

import json
import os
import signal

import pytest

from rampcli.cli.tune_search import tune_table
from rampcli.machine.lifeline import STOPPING
from rampcli.tune.median import Median
from rampcli.tune.trial import FITS, OUT_OF_MEMORY, Trial, Trials
from rampcli.tune.trial_files import SIGNS, Result, TrialDirectory


@pytest.fixture
def tune(rampcli, monkeypatch):
    """Runs a search or a diagnosis in which every attempt calls a function with the candidate."""

    def run(attempt, *words):
        monkeypatch.setattr(Trials, "attempt", lambda _, candidate: attempt(candidate))
        return rampcli("tune", "--factory", "llama3_tiny", "trainer.num_nodes=1", *words)

    return run


def outcome(candidate, verdict, medians):
    stage = candidate.stage
    return Trial(
        micro_batch_size=candidate.micro_batch_size,
        verdict=verdict,
        reason=None if verdict == FITS else "rank 0 ran out of memory",
        world_size=stage.world_size,
        data_parallel_size=stage.data_parallel_size,
        accumulate_grad_batches=stage.accumulate_grad_batches,
        medians=medians,
        peak_memory_bytes=None,
        device=None,
        device_name=None,
    )


def does_not_fit(candidate):
    return outcome(candidate, OUT_OF_MEMORY, {})


def is_faster_if_larger(candidate):
    step_s = 1 / candidate.micro_batch_size
    median = Median(s=step_s, low_s=step_s, high_s=step_s, steps=6)
    return outcome(candidate, FITS, {candidate.stage.accumulate_grad_batches: median})


@pytest.fixture(params=STOPPING)
def number(request):
    """A stop signal with its default handler, even if the tests run under nohup."""
    before = signal.signal(request.param, signal.SIG_DFL)
    yield request.param
    signal.signal(request.param, before)


@pytest.mark.parametrize("option", ["--fresh", "--diagnose"])
def test_the_exit_code_names_the_signal_that_stopped_it(option, number, tune):
    def stop(_):
        os.kill(os.getpid(), number)

    ended = tune(stop, option)
    assert ended.exit_code == (130 if number == signal.SIGINT else 75)
    assert "interrupted" in ended.stdout


def test_a_search_that_has_found_nothing_yet_says_that_it_plots_nothing(tune, tmp_path):
    ended = tune(lambda _: None, "--plot", "found.svg")
    assert ended.stdout.endswith("nothing to plot yet\n")
    assert not (tmp_path / "found.svg").exists()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_search_in_which_nothing_fits_fails(options, tune):
    ended = tune(does_not_fit, *options)
    assert ended.exit_code == 1
    assert "not even data.micro_batch_size=1 fits" in ended.stderr
    if options:
        assert json.loads(ended.stdout)["recommended"] is None


def test_the_times_of_the_most_steps_can_be_read_back(tune, tmp_path):
    assert tune(does_not_fit, "--steps", "10001").exit_code == 2
    trial = TrialDirectory(tmp_path)
    time = 0.01 / 3  # has as many digits as there are
    result = Result(
        step_s={count: [time] * 10_000 for count in (1, 8)},
        peak_memory_bytes=[2**40] * 1000,
        signs=dict.fromkeys(SIGNS, 20_000),
    )
    trial.write_result(result)
    assert trial.read_result() == result


def test_the_settings_for_the_recommended_size_are_printed_last(tune):
    ended = tune(
        is_faster_if_larger, "model.rampup_batch_size=null", "gradient_accumulation_steps=8"
    )
    assert ended.stdout.endswith(
        "train with:\n"
        "  data.micro_batch_size=32 gradient_accumulation_steps=null model.global_batch_size=32\n"
    )


def test_the_settings_for_the_recommended_size_of_a_phase_are_those_of_the_phase(tune, rampcli):
    words = ("model.rampup_batch_size=null", "phases.a.until=1M", "phases.b.until=2M")
    more = ("phases.b.gradient_accumulation_steps=8", "phases.b.model.global_batch_size=32")
    ended = tune(is_faster_if_larger, "--phase", "b", *words, *more)
    *_, line = ended.stdout.splitlines()
    assert line.split() == [
        "phases.b.data.micro_batch_size=32",
        "phases.b.gradient_accumulation_steps=null",
    ]
    typed = dict(word.split("=", 1) for word in (*words, *more, *line.split()))
    command = ("plan", "--factory", "llama3_tiny", "trainer.num_nodes=1", "--json")
    settings = [f"{key}={value}" for key, value in typed.items()]
    (_, stage) = json.loads(rampcli(*command, *settings).stdout)["stages"]
    assert (stage["micro_batch_size"], stage["accumulate_grad_batches"]) == (32, 1)
    planned = json.loads(rampcli(*command, *settings, "--measured", "runs/llama3_tiny").stdout)
    assert [stage["seconds"] is None for stage in planned["stages"]] == [True, False]


def test_sizes_that_times_cannot_tell_apart_and_a_slower_one_are_named(tune):
    def attempt(candidate):
        size = candidate.micro_batch_size
        step_s = {1: 1.0, 2: 0.52, 4: 0.5, 8: 0.9}.get(size, 1.0) * (1 + size / 1000)
        median = Median(s=step_s, low_s=0.9 * step_s, high_s=1.1 * step_s, steps=9)
        return outcome(candidate, FITS, {candidate.stage.accumulate_grad_batches: median})

    words = ("model.rampup_batch_size=null", "model.global_batch_size=16", "--exhaustive")
    lines = tune(attempt, *words).stdout.splitlines()
    assert (
        "by the intervals (+-), 2 and 4 may each be the smallest size within 3% of the best: more"
        " --steps or an idle machine tells them apart"
    ) in lines
    assert (
        "8 is slower than 4: `rampcli tune --diagnose` with data.micro_batch_size=8 measures where"
        " its time goes"
    ) in lines


def test_times_that_follow_from_shorter_steps_are_marked_with_the_steps_that_were_timed(tune):
    def attempt(candidate):
        medians = {
            count: Median(s=count, low_s=count, high_s=count, steps=9) for count in candidate.timed
        }
        return outcome(candidate, FITS, medians)

    words = ("model.rampup_batch_size=null", "model.global_batch_size=32", "trainer.devices=1")
    lines = tune(attempt, *words, "--exhaustive").stdout.splitlines()
    steps_s = {words[0]: words[4] for words in map(str.split, lines) if words[0].isdigit()}
    assert steps_s["2"] == "~16.000"
    assert steps_s["4"] == "8.000"
    assert (
        "s/step with ~ was not measured: it follows from the medians of steps of 1 and 8 micro"
        " batches; a step of the run has 32 with 1 and 16 with 2"
    ) in lines


@pytest.mark.parametrize(
    ("sizes", "doublings"), [([2, 4, 6, 3], ["", "4.00x", "4.00x", ""]), ([1, 8], ["", ""])]
)
def test_the_table_compares_the_throughput_with_that_of_half_the_size(sizes, doublings):
    def trial(size):
        median = Median(s=1 / size, low_s=1 / size, high_s=1 / size, steps=6)
        return Trial(
            micro_batch_size=size,
            verdict=FITS,
            reason=None,
            world_size=2,
            data_parallel_size=2,
            accumulate_grad_batches=1,
            medians={1: median},
            peak_memory_bytes=None,
            device=None,
            device_name=None,
        )

    table = tune_table([trial(size) for size in sizes], sequence_length=1)
    assert list(table.columns[-1].cells) == doublings
