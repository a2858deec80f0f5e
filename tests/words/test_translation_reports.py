"""What a translation reports that another system cannot express."""

from hypothesis import example, given

from plans import fleet_of
from rampcli.batch.step_schedule import from_step_schedule
from rampcli.words import DIALECTS, translate_plan
from rampcli.words.translation import Source
from tests.words.translating import (
    SEQUENCE_LENGTH,
    assignments,
    flags,
    plan,
    ramp_of,
    runs,
    said,
)

RULES = {
    "NeMo 1": "megatron",
    "NeMo 2": "megatron",
    "Megatron Bridge": "megatron",
    "Megatron-LM": "megatron",
    "MaxText": "maxtext",
}
NO_STEP_SCHEDULE = "has no step schedule; in samples it is"
OTHER_RULE = "semantics, so its stages begin at other samples"


@given(run=runs())
def test_a_ramp_with_semantics_that_a_system_lacks_is_reported(run):
    found = {
        system: [note for note in said(run, system).unsaid if OTHER_RULE in note]
        for system in DIALECTS
    }
    differs = {
        system for system, rule in RULES.items() if run["rampup"] and rule != run["semantics"]
    }
    assert {system for system, notes in found.items() if notes} == differs
    for system in differs:
        assert found[system] == [f"{system.rstrip(' 12')} ramps by {RULES[system]} {OTHER_RULE}"]


@given(run=runs())
@example(
    run={"rampup": [1, 1, 1], "target": 3, "fleet": fleet_of(1, 1), "micro": 1}
    | {"policy": "fixed", "semantics": "megatron"}
)
def test_a_ramp_is_also_written_as_a_step_schedule_for_newer_megatron(run):
    """In the example, two sizes fall due at one sample, which a step schedule may not have."""
    found = [note for note in said(run, "Megatron-LM").unsaid if "after 0.17" in note]
    if run["rampup"] is None:
        assert found == []
    else:
        [note] = found
        text = note.partition("--step-batch-size-schedule ")[2].strip("'")
        schedule, ramp = from_step_schedule(text, sequence_length=SEQUENCE_LENGTH), ramp_of(run)
        assert schedule.stages == ramp.stages
        for threshold in ramp.thresholds:
            consumed = threshold.first_sample
            assert schedule.global_batch_size_at(consumed) == ramp.global_batch_size_at(consumed)


@given(run=runs())
def test_a_ramp_is_reported_to_be_ignored_by_newer_versions_of_megatron_bridge(run):
    found = [note for note in said(run, "Megatron Bridge").unsaid if "ignores" in note]
    ignored = (
        "Megatron Bridge after 0.4 ignores train.rampup_batch_size:"
        f" every step has {run['target']} samples"
    )
    assert found == ([ignored] if run["rampup"] else [])


@given(run=runs())
def test_a_ramp_with_accumulation_is_reported_to_take_one_pass_in_maxtext(run):
    accumulate = plan(**run).stages[-1].accumulate_grad_batches
    found = [note for note in said(run, "MaxText").unsaid if "in one pass" in note]
    wanted = (
        "MaxText takes a step's samples in one pass;"
        f" here each rank takes {accumulate} micro batches"
    )
    assert found == ([wanted] if run["rampup"] and accumulate > 1 else [])


def test_a_step_schedule_is_written_in_tokens_for_megatron_and_reported_for_the_others():
    schedule = "samples: 0:4 60:16 100:8"
    run = {
        "rampup": None,
        "target": None,
        "schedule": schedule,
        "fleet": fleet_of(1, 1),
        "micro": 1,
        "max_samples": 200,
    }
    words = flags(said(run, "Megatron-LM"))
    [text] = words["step-batch-size-schedule"]
    assert text == "0:4 600:16 1000:8"
    assert from_step_schedule(text, sequence_length=SEQUENCE_LENGTH) == plan(**run).ramp
    assert "global-batch-size" not in words
    assert words["train-samples"] == [str(plan(**run).end_sample)]
    assert said(run, "Megatron-LM").unsaid == ()
    for system in ("NeMo 1", "NeMo 2", "Megatron Bridge", "MaxText"):
        name = system.rstrip(" 12")
        assert said(run, system).unsaid == (f"{name} {NO_STEP_SCHEDULE} 0:4 60:16 100:8",)
        assert not any("ramp" in word or "schedule" in word for word in said(run, system).words)


def test_thresholds_in_steps_are_written_in_tokens_for_megatron_which_is_reported():
    run = {
        "rampup": None,
        "target": None,
        "schedule": "steps: 0:4 15:16 18:8",
        "fleet": fleet_of(1, 1),
        "micro": 1,
        "max_samples": 200,
    }
    [text] = flags(said(run, "Megatron-LM"))["step-batch-size-schedule"]
    assert text == "0:4 600:16 1080:8"
    assert from_step_schedule(text, sequence_length=SEQUENCE_LENGTH) == plan(**run).ramp
    assert said(run, "Megatron-LM").unsaid == (
        "Megatron-LM has no thresholds in steps; here they are the same in tokens",
    )
    assert said(run, "NeMo 2").unsaid == (f"NeMo {NO_STEP_SCHEDULE} 0:4 60:16 108:8",)


def test_megatron_gets_the_word_to_decrease_only_if_a_batch_is_decreased():
    run = {
        "rampup": [4, 2, 60],
        "target": 12,
        "micro": 2,
        "fleet": fleet_of(1, 2),
        "decrease": True,
    }
    words = flags(said(run, "Megatron-LM"))
    assert words["decrease-batch-size-if-needed"] == []
    bridge = assignments(said(run, "Megatron Bridge"))
    assert bridge["train.decrease_batch_size_if_needed"] == "true"
    assert bridge["train.rampup_batch_size"] == "[4,2,60]"
    assert (words["rampup-batch-size"], words["global-batch-size"]) == (["4", "2", "60"], ["12"])
    fits = run | {"micro": 1, "fleet": fleet_of(1, 1)}
    assert "decrease-batch-size-if-needed" not in flags(said(fits, "Megatron-LM"))
    assert "train.decrease_batch_size_if_needed" not in assignments(said(fits, "Megatron Bridge"))


def test_a_decrease_is_reported_for_nemo_and_for_megatron_if_stages_have_their_own_nodes():
    run = {
        "rampup": [16, 2, 200],
        "target": 24,
        "micro": 2,
        "fleet": fleet_of(6, 2),
        "policy": "best",
        "decrease": True,
        "max_samples": 800,
    }
    for system in ("NeMo 1", "NeMo 2"):
        assert "NeMo cannot decrease batches that do not fit" in said(run, system).unsaid
    one_node = run | {"rampup": [4, 2, 60], "target": 12, "fleet": fleet_of(1, 2)}
    for system in ("Megatron Bridge", "Megatron-LM"):
        reason = (
            f"{system} decreases a batch to fit all the GPUs of a job;"
            " here each stage has its own nodes"
        )
        assert reason in said(run, system).unsaid
        assert reason not in said(one_node, system).unsaid


def test_nodes_that_nemos_launcher_would_not_choose_are_reported():
    run = {"rampup": [256, 256, 10_000], "target": 1024, "micro": 4, "fleet": fleet_of(16, 8)}
    assert said(run, "NeMo 1").unsaid == ()
    assert said(run | {"nodes": [8, 8, 12, 16]}, "NeMo 1").unsaid == ()
    assert said(run | {"policy": "fixed", "micro": 2}, "NeMo 1").unsaid == ()
    for other in ({"nodes": [8, 16, 8, 16]}, {"policy": "best"}):
        [reason] = said(run | other, "NeMo 1").unsaid
        assert reason.startswith(
            "NeMo's launcher gives the stages 8, 8, 12 and 16 nodes; here they"
        )
        assert said(run | other, "NeMo 2").unsaid == ()


def test_maxtexts_pipeline_words_are_written_and_a_batch_that_maxtext_refuses_is_reported():
    planned = plan(None, 64, fleet=fleet_of(1, 8, pipeline=4), micro=4)
    source = Source(
        plan=planned.phases[0], num_pipeline_microbatches=8, expansion_factor_real_data=2
    )
    dialect = translate_plan(source)["MaxText"]
    assert {"num_pipeline_microbatches=8", "expansion_factor_real_data=2"} <= {*dialect.words}
    assert dialect.unsaid == ()
    single = plan(None, 64, fleet=fleet_of(1, 8, pipeline=4), micro=1)
    assert translate_plan(Source(plan=single.phases[0]))["MaxText"].unsaid == (
        "MaxText's pipeline splits a pass into 4 microbatches,"
        " and 2 samples do not divide into them",
    )


def test_a_size_per_device_that_maxtext_truncates_is_reported():
    dialect = said(
        {"rampup": None, "target": 230, "fleet": fleet_of(10, 10, tensor=10), "micro": 23},
        "MaxText",
    )
    assert dialect.unsaid == ("MaxText truncates 100 x per_device_batch_size=2.3 to 229",)


def test_a_batch_per_device_without_an_exact_decimal_is_reported_as_a_fraction():
    run = {
        "rampup": [4, 4, 24],
        "target": 12,
        "fleet": fleet_of(1, 6, tensor=3),
        "micro": 2,
        "policy": "fixed",
        "semantics": "maxtext",
    }
    dialect = said(run, "MaxText")
    assert dialect.unsaid == (
        "MaxText takes a step's samples in one pass; here each rank takes 3 micro batches",
        "per_device_batch_size_start is exactly 2/3, which no decimal equals",
        "per_device_batch_size_increment is exactly 2/3, which no decimal equals",
    )
