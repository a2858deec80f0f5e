"""`rampcli propose`."""

import json
import re
import shlex
from pathlib import Path

import pytest

from rampcli.cbs.folder import BranchFolder
from rampcli.config import snapshot
from rampcli.files.guarded_folder import replace_file
from rampcli.runs.directory import RunDirectory
from run_files import metrics_row

RUN = (
    *("model.rampup_batch_size=null", "model.global_batch_size=8", "data.micro_batch_size=4"),
    *("trainer.num_nodes=1", "trainer.max_samples=8192", "optim.optimizer=adamw"),
)


@pytest.fixture
def write(tmp_path, planned):
    """Returns a function that writes a run with the noise scales [(samples, scale)]."""

    def write_run(scales, *words, name="small"):
        run = RunDirectory(tmp_path / name)
        run.path.mkdir()
        by_key = {word.partition("=")[0]: word for word in (*RUN, *words)}
        resolved = planned("llama3_tiny", *by_key.values(), f"run_dir={name}")
        replace_file(run.config, snapshot.to_yaml(resolved.config))
        run.write_json(run.path / "plan.json", resolved.plan.to_json())
        for samples, scale in scales:
            columns = {"noise_scale": scale, "noise_scale_low": scale, "noise_scale_high": scale}
            row = metrics_row(
                step=samples // 8,
                consumed_samples=samples,
                global_batch_size=8,
                accumulate_grad_batches=2,
                **columns,
            )
            run.append_row(run.metrics, row)
        return name

    return write_run


@pytest.fixture
def propose(succeed):
    """Returns a function that proposes as data."""
    return lambda *words: json.loads(succeed("propose", *words, "--json"))


@pytest.fixture
def refused(rampcli):
    """Returns a function that runs a command that refuses its input, and returns the message."""

    def run(*words):
        ended = rampcli("propose", *words)
        assert (ended.exit_code, ended.stdout) == (2, "")
        return ended.stderr

    return run


def candidates(proposal):
    return {name: one for one in proposal["candidates"] for name in one["name"].split(", ")}


def stages(plan):
    return [(one["first_sample"], one["global_batch_size"]) for one in plan["stages"]]


RISING = [(1600, 7.0), (3200, 17.0), (4800, 40.0)]


def test_a_ramp_follows_the_measurements(write, propose):
    found = candidates(propose(write(RISING)))
    assert stages(found["proposed"]["plan"]) == [(0, 8), (3200, 16), (4800, 32)]
    assert sum(stage["samples"] for stage in found["proposed"]["plan"]["stages"]) == 8192
    assert stages(found["fixed small"]["plan"]) == stages(found["no ramp"]["plan"]) == [(0, 8)]
    assert stages(found["fixed large"]["plan"]) == [(0, 32)]
    assert len(found["Seesaw"]["plan"]["stages"]) > 2
    assert found["proposed"]["unknown"] == found["as it is"]["unknown"]
    assert found["fixed large"]["unknown"] == pytest.approx(4800 / 8192)


def test_the_printed_command_plans_the_proposal(write, propose, succeed):
    found = candidates(propose(write(RISING)))
    for one in found.values():
        if one["command"] is not None:
            _, _, *words = shlex.split(one["command"])
            assert stages(json.loads(succeed("plan", *words, "--json"))) == stages(one["plan"])


def test_what_is_tied_to_the_batch_follows_it(write, propose):
    found = candidates(propose(write(RISING), "--exponent", "1"))
    assert "schedule.batch_coupling=1" in found["proposed"]["words"]
    assert "optim.lr=0.024" in found["proposed"]["words"]  # 0.006 for 8 samples
    assert "schedule.beta2_coupling=half_life" in found["proposed"]["words"]
    assert "optim.lr=0.024" in found["fixed large"]["words"]
    assert not any("coupling" in word for word in found["fixed large"]["words"])
    assert not any("optim.lr" in word for word in found["fixed small"]["words"])


@pytest.mark.parametrize(
    ("scales", "verdict"),
    [
        ([], "proposal: none, because neither branches"),
        ([(1600, 15.0)], "proposal: no ramp, a fixed batch of 8 samples"),
        ([(8, 40.0)], "proposal: the ramp"),
        ([(7900, 40.0)], "proposal: no ramp: it would save"),
        (RISING, "proposal: the ramp, 40.8% fewer steps"),
    ],
)
def test_a_proposal_may_be_no_ramp(write, propose, scales, verdict):
    lines = propose(write(scales))["verdict"]
    assert lines[0].startswith(verdict), lines[0]


def test_what_published_results_contradict_is_said(write, propose):
    assert any("Muon" in line for line in propose(write(RISING, "optim.optimizer=muon"))["verdict"])


def test_without_a_ramp_nothing_is_said_of_ramps(write, propose):
    timed = [(8 * step, None) for step in range(1, 6)]
    found = propose(write(timed, "optim.optimizer=muon", "schedule.decay_style=constant"))
    assert {len(one["plan"]["stages"]) for one in found["candidates"] if one["plan"]} == {1}
    assert not any("Muon" in line or "restart" in line for line in found["verdict"])


def test_laws_say_where_they_do_not_hold(write, succeed):
    printed = succeed("propose", write(RISING))
    assert re.search(r"Power Lines .* fitted on 111M to 3.3B parameters", printed)
    assert re.search(r"nanochat .* fitted with muon", printed)


def add_branches(run, samples, batch, *, exponent=0.5, is_lower_bound=False, notes=()):
    """Writes the results of branches of a checkpoint."""
    folder = BranchFolder.of(RunDirectory(Path(run)), samples)
    folder.claim()
    result = {
        "step": samples // 8,
        "consumed_samples": samples,
        "sequence_length": 128,
        "global_batch_size": 8,
        "lr": 0.006,
        "exponent": exponent,
        "decays": True,
        "samples": 64,
        "samples_left": None,
        "critical_batch_size": batch,
        "is_lower_bound": is_lower_bound,
        "notes": [*notes],
        "branches": [],
    }
    folder.write_json(folder.result, result)


def test_branches_decide_rather_than_the_noise_scale(write, propose, succeed):
    run = write(RISING)
    add_branches(run, 800, 16, exponent=0.25)
    add_branches(run, 4000, 64, is_lower_bound=True, notes=["rough"])
    proposal = propose(run)
    found = candidates(proposal)["proposed"]
    assert stages(found["plan"]) == [(0, 8), (800, 16), (4000, 64)]
    assert "schedule.batch_coupling=0.5" in found["words"]  # of the newest branches
    assert [one["exponent"] for one in proposal["branches"]] == [0.25, 0.5]
    assert len(proposal["noise_scale"]) == len(RISING)
    assert "note: branches after 4,000 samples: rough" in succeed("propose", run)
    assert re.search(r"4,000  branches, rate x k\^0.5 .*>= 64", succeed("propose", run))


def test_samples_beyond_the_critical_batch_are_counted(write, propose):
    run = write([])
    add_branches(run, 0, 4)
    proposal = propose(run)
    assert candidates(proposal)["as it is"]["beyond"] == 1
    assert any("100.0% of its samples" in line for line in proposal["verdict"])


def test_branches_without_a_result_measure_nothing(write, propose):
    run = write([])
    add_branches(run, 800, None)
    assert propose(run)["verdict"][0].startswith("proposal: none")


def test_hours_are_those_that_a_run_has_measured(write, propose):
    measured = [(8 * step, 7.0) for step in range(1, 6)]  # in two micro batches of 4 samples
    found = candidates(propose(write([*measured, *RISING])))
    assert found["as it is"]["plan"]["seconds"] == 8192 * 128 / 1024
    assert found["fixed large"]["plan"]["seconds"] is None  # eight micro batches


def test_other_runs_add_their_measurements(write, propose):
    write(RISING, "model.global_batch_size=16", "seed=5", name="other")
    found = candidates(propose(write([]), "other"))
    assert stages(found["proposed"]["plan"])[-1] == (4800, 32)


def test_a_batch_is_limited(write, propose):
    found = candidates(propose(write(RISING), "--largest", "16", "--start", "4"))
    assert stages(found["proposed"]["plan"]) == [(0, 4), (3200, 16)]


def test_a_batch_above_the_noise_scale_is_said(write, propose):
    lines = propose(write(RISING), "--start", "16")["verdict"]
    assert any("above the noise scale until sample 1,600" in line for line in lines)


def test_a_run_counts_once_whatever_its_name(write, propose, tmp_path):
    run = write(RISING)
    assert len(propose(run, str(tmp_path / run))["noise_scale"]) == len(RISING)


def test_what_the_run_does_already_has_no_command(write, propose):
    found = propose(write([(1600, 7.0)]))["candidates"][0]
    assert found["name"] == "as it is, fixed small, fixed large, no ramp, proposed"
    assert (found["words"], found["command"]) == ([], None)


def test_a_small_batch_has_the_nodes_of_its_stage(write, propose):
    words = ("trainer.num_nodes=2", "model.rampup_batch_size=[4,4,2400]")
    found = candidates(propose(write(RISING, *words)))
    assert [stage["num_nodes"] for stage in found["fixed small"]["plan"]["stages"]] == [1]


@pytest.mark.parametrize(
    ("words", "wrong"), [(("--start", "9000"), "--start 8"), (("--largest", "4"), "--largest 8")]
)
def test_limits_that_leave_no_batch_are_refused(write, refused, words, wrong):
    assert wrong in refused(write(RISING), *words)


def test_a_start_that_does_not_fit_is_said(write, propose):
    proposal = propose(write(RISING), "--start", "3")
    assert candidates(proposal)["proposed"]["command"] is None
    assert any("fixed small" in line and "does not fit" in line for line in proposal["verdict"])


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("model.hidden_size=64",), "model.hidden_size"),
        (("data.sequence_length=64",), "data.sequence_length"),
        (("data.eod_mask_loss=false",), "data.eod_mask_loss"),
    ],
)
def test_measurements_of_another_model_or_other_data_are_refused(write, refused, words, wrong):
    write(RISING, *words, name="other")
    assert wrong in refused(write(RISING), "other")


def test_a_run_without_end_is_refused(write, refused):
    assert "trainer.max_samples" in refused(write([], "trainer.max_samples=null"))


PHASES = ("phases.a.until=steps:512", "phases.b.until=steps:1024")


def test_each_phase_has_a_ramp_by_what_was_measured_with_its_samples(write, propose, succeed):
    run = write(RISING, *PHASES, "trainer.max_samples=null", "phases.b.data.sequence_length=64")
    proposal = propose(run)
    found = candidates(proposal)
    # What 17 said of samples of 128 tokens says nothing of those of 64, and 40 says nothing of 128.
    assert stages(found["proposed"]["plan"]) == [(0, 8), (3200, 16), (4096, 8), (4800, 32)]
    assert stages(found["fixed small"]["plan"]) == [(0, 8), (4096, 8)]
    assert stages(found["fixed large"]["plan"]) == [(0, 16), (4096, 32)]
    assert [one["phase"] for one in found["proposed"]["plan"]["stages"]] == ["a", "a", "b", "b"]
    assert found["proposed"]["unknown"] == found["as it is"]["unknown"]
    assert found["as it is"]["unknown"] == pytest.approx((1600 + 3200 - 1600 + 704) / 8192)
    assert proposal["verdict"][0].startswith("proposal: the ramp, ")
    for one in found.values():
        if one["command"] is not None:
            _, _, *words = shlex.split(one["command"])
            assert stages(json.loads(succeed("plan", *words, "--json"))) == stages(one["plan"])


def test_what_was_measured_holds_in_later_phases_with_the_same_samples(write, propose):
    found = candidates(propose(write(RISING, *PHASES, "trainer.max_samples=null")))
    assert stages(found["proposed"]["plan"]) == [(0, 8), (3200, 16), (4096, 16), (4800, 32)]


def test_a_phase_without_measurements_stays_as_it_is(write, propose):
    words = ("trainer.max_samples=null", "phases.b.model.global_batch_size=16")
    run = write(RISING[:2], *PHASES, *words, "phases.b.data.sequence_length=64")
    found = candidates(propose(run))["proposed"]
    assert stages(found["plan"]) == [(0, 8), (3200, 16), (4096, 16)]
    assert not any(word.startswith("phases.b.model") for word in found["words"])


def test_a_longer_run_takes_what_a_short_one_measured_in_any_of_its_phases(write, propose, refused):
    short = write(RISING, "data.sequence_length=64", name="short")
    long = write([], *PHASES, "trainer.max_samples=null", "phases.b.data.sequence_length=64")
    found = candidates(propose(long, short))["proposed"]
    assert stages(found["plan"]) == [(0, 8), (4096, 16), (4800, 32)]
    other = write(RISING, "data.sequence_length=32", name="other")
    assert "data.sequence_length is another one" in refused(long, other)
