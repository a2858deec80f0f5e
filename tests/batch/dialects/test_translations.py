import json
import shlex
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rampcli.batch.dialects import DIALECTS, translate_plan
from rampcli.batch.dialects.maxtext import translate
from rampcli.batch.dialects.spellings import SPELLINGS
from rampcli.batch.nodes import Fleet
from rampcli.batch.plan import ParallelSizes
from rampcli.batch.ramp import RampSchedule
from rampcli.batch.run_settings import BatchSettings, RampSettings, RunLength
from rampcli.batch.step_schedule import from_step_schedule
from rampcli.batch.training_plan import plan_training

SEQUENCE_LENGTH = 10
SEQUENCE_WORDS = {"NeMo 1": "model.encoder_seq_length", "NeMo 2": "data.seq_length"}
RULES = {
    "NeMo 1": "megatron",
    "NeMo 2": "megatron",
    "Megatron-LM": "megatron",
    "MaxText": "maxtext",
}
NO_STEP_SCHEDULE = "has no step schedule; in samples it is"
OTHER_RULE = "semantics, so its stages begin at other samples"


def plan(
    rampup,
    target,
    *,
    fleet,
    micro,
    policy="nemo",
    semantics="megatron",
    schedule=None,
    decrease=False,
    **length,
):
    return plan_training(
        batch=BatchSettings(global_batch_size=target, micro_batch_size=micro),
        ramp=RampSettings(
            rampup_batch_size=rampup,
            step_batch_size_schedule=schedule,
            semantics=semantics,
            decrease_batch_size_if_needed=decrease,
        ),
        fleet=fleet,
        node_policy=policy,
        sequence_length=SEQUENCE_LENGTH,
        length=RunLength(**length),
    )


def fleet_of(num_nodes, devices, **parallel):
    return Fleet(num_nodes=num_nodes, devices=devices, parallel=ParallelSizes(**parallel))


@st.composite
def runs(draw, devices=(1, 2, 4, 8)):
    """Arguments of `plan`: a batch with or without a ramp. A run that ends reaches its target."""
    parallel = draw(
        st.sampled_from([{}, {"tensor": 2}, {"tensor": 2, "pipeline": 2}, {"context": 2}])
    )
    model = 2 ** (len(parallel) if "context" not in parallel else 1)
    fleet = fleet_of(
        draw(st.sampled_from([1, 2, 4])), model * draw(st.sampled_from(devices)), **parallel
    )
    micro = draw(st.integers(1, 4))
    unit = micro * fleet.devices * fleet.num_nodes
    start, increment, increments = (
        draw(st.integers(1, 3)),
        draw(st.integers(1, 2)),
        draw(st.integers(0, 4)),
    )
    run = {
        "rampup": [unit * start, unit * increment, draw(st.integers(1, 60)) * unit]
        if increments
        else None,
        "target": unit * (start + increment * increments),
        "fleet": fleet,
        "micro": micro,
        "policy": draw(st.sampled_from(["nemo", "fixed"])),
        "semantics": draw(st.sampled_from(["megatron", "maxtext"])),
    }
    at_target = draw(st.none() | st.integers(1, 50))
    return (
        run
        if at_target is None
        else run | {"max_steps": ramp_of(run).stages[-1].first_step + at_target}
    )


def ramp_of(run):
    return RampSchedule.from_rampup(
        run["rampup"], global_batch_size=run["target"], semantics=run["semantics"]
    )


def said(run, system):
    dialect = translate_plan(
        plan(**run), rampup_batch_size=run["rampup"], step_batch_size_schedule=run.get("schedule")
    )[system]
    assert shlex.split(str(dialect)) == list(dialect.words)
    return dialect


def assignments(dialect):
    return dict(word.split("=", 1) for word in dialect.words)


def flags(dialect):
    """Returns the words after each of Megatron-LM's arguments."""
    found = {}
    for word in dialect.words:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in found
            found[name] = []
        else:
            found[name].append(word)
    return found


def run_in_the_words_of_nemo(system, words, run):
    """Returns the run that NeMo's words mean, with what they cannot express taken from `run`."""
    ours = {
        SPELLINGS.get(key, key): json.loads(value)
        for key, value in words.items()
        if key != SEQUENCE_WORDS[system]
    }
    length = {"max_steps": ours.pop("trainer.max_steps")} if "trainer.max_steps" in ours else {}
    fleet = fleet_of(
        ours.pop("trainer.num_nodes"),
        ours.pop("trainer.devices"),
        **{
            axis: ours.pop(f"parallel.{axis}_parallel_size")
            for axis in ("tensor", "pipeline", "context")
        },
    )
    meant = {
        "rampup": ours.pop("model.rampup_batch_size", None),
        "target": ours.pop("model.global_batch_size"),
        "micro": ours.pop("data.micro_batch_size"),
    }
    assert not ours
    return meant | length | {"fleet": fleet, "policy": run["policy"], "semantics": run["semantics"]}


@pytest.mark.parametrize("system", SEQUENCE_WORDS)
@given(run=runs())
def test_a_batch_in_nemos_words_is_read_back_as_the_same_run(system, run):
    words = assignments(said(run, system))
    assert int(words[SEQUENCE_WORDS[system]]) == SEQUENCE_LENGTH
    back = run_in_the_words_of_nemo(system, words, run)
    assert back == run
    assert plan(**back).stages == plan(**run).stages


@given(run=runs())
def test_a_batch_in_the_words_of_megatron_has_the_numbers_of_the_run(run):
    planned, words = plan(**run), flags(said(run, "Megatron-LM"))
    parallel = run["fleet"].parallel
    expected = {
        "micro-batch-size": [run["micro"]],
        "global-batch-size": [run["target"]],
        "rampup-batch-size": run["rampup"],
        "seq-length": [SEQUENCE_LENGTH],
        "tensor-model-parallel-size": [parallel.tensor],
        "pipeline-model-parallel-size": [parallel.pipeline],
        "context-parallel-size": [parallel.context],
        "train-samples": None
        if run["rampup"] is None or planned.end_sample is None
        else [planned.end_sample],
        "train-iters": None if run["rampup"] or planned.end_step is None else [planned.end_step],
    }
    assert words == {
        name: list(map(str, values)) for name, values in expected.items() if values is not None
    }


@given(run=runs(devices=(1, 2, 3, 4, 8)))
def test_a_batch_in_maxtexts_words_is_read_back_as_the_same_run_or_has_no_exact_decimal(run):
    planned, dialect = plan(**run), said(run, "MaxText")
    words = assignments(dialect)
    assert words.pop("max_target_length") == str(SEQUENCE_LENGTH)
    assert words.pop("steps", None) == (None if planned.end_step is None else str(planned.end_step))
    parallel = run["fleet"].parallel
    axes = {
        axis: int(words.pop(f"ici_{axis}_parallelism", 1))
        for axis in ("tensor", "pipeline", "context")
    }
    assert ParallelSizes(**axes) == parallel
    accumulate = int(words.pop("gradient_accumulation_steps"))
    enabled = words.pop("enable_rampup_batch_size", None)
    inexact = {
        note.partition(" is exactly ")[0]
        for note in dialect.unsaid
        if "which has no decimal" in note
    }
    for name, note in (
        (note.partition(" ")[0], note) for note in dialect.unsaid if "which has no decimal" in note
    ):
        exact = Fraction(note.split(" is exactly ")[1].split(",")[0])
        assert float(exact) == float(words[name])
        assert Fraction(words[name]) != exact
    devices = run["fleet"].num_nodes * run["fleet"].devices
    if inexact:
        assert devices % 3 == 0
        return
    meant = translate(
        {
            name: float(value) if "per_device" in name else int(value)
            for name, value in words.items()
        }
        | ({} if enabled is None else {"enable_rampup_batch_size": enabled == "true"}),
        num_devices=devices,
        model_parallel_size=parallel.model_parallel_size,
        settings={
            "model.global_batch_size": None,
            "trainer.accumulate_grad_batches": accumulate,
            "parallel.pipeline_parallel_size": parallel.pipeline,
        },
    )
    assert meant["model.global_batch_size"] == run["target"]
    assert meant.get("model.rampup_batch_size") == run["rampup"]
    if run["rampup"] is None:
        assert meant["data.micro_batch_size"] == run["micro"]
        assert accumulate == planned.stages[-1].accumulate_grad_batches
    else:
        assert meant["data.micro_batch_size"] % run["micro"] == 0


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
def test_a_ramp_with_accumulation_is_reported_to_take_one_pass_in_maxtext(run):
    accumulate = plan(**run).stages[-1].accumulate_grad_batches
    found = [note for note in said(run, "MaxText").unsaid if "in one pass" in note]
    wanted = (
        "MaxText takes a step's samples in one pass;"
        f" here each rank takes {accumulate} micro batches"
    )
    assert found == ([wanted] if run["rampup"] and accumulate > 1 else [])


def test_a_batch_is_written_in_the_words_of_four_systems():
    run = {
        "rampup": None,
        "target": 64,
        "fleet": fleet_of(2, 4, tensor=2),
        "micro": 2,
        "max_steps": 100,
    }
    assert {system: str(said(run, system)) for system in DIALECTS} == {
        "NeMo 1": "model.micro_batch_size=2 model.global_batch_size=64 model.encoder_seq_length=10"
        " model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=1"
        " model.context_parallel_size=1 trainer.num_nodes=2 trainer.devices=4"
        " trainer.max_steps=100",
        "NeMo 2": "data.micro_batch_size=2 data.global_batch_size=64 data.seq_length=10"
        " trainer.strategy.tensor_model_parallel_size=2"
        " trainer.strategy.pipeline_model_parallel_size=1"
        " trainer.strategy.context_parallel_size=1 trainer.num_nodes=2 trainer.devices=4"
        " trainer.max_steps=100",
        "Megatron-LM": "--micro-batch-size 2 --global-batch-size 64 --seq-length 10"
        " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1"
        " --context-parallel-size 1 --train-iters 100",
        "MaxText": "per_device_batch_size=1.0 gradient_accumulation_steps=8"
        " max_target_length=10 steps=100 ici_tensor_parallelism=2",
    }
    assert {system: said(run, system).unsaid for system in DIALECTS} == dict.fromkeys(DIALECTS, ())


def test_words_with_brackets_are_quoted_for_a_shell():
    run = {"rampup": [4, 4, 24], "target": 16, "fleet": fleet_of(1, 1), "micro": 1}
    assert "'data.rampup_batch_size=[4,4,24]'" in str(said(run, "NeMo 2"))


@pytest.mark.parametrize(
    "rampup", [[16, 4, 100], [4, 4, 0]], ids=["start at the target", "no samples"]
)
@pytest.mark.parametrize("system", DIALECTS)
def test_a_ramp_of_zero_steps_is_omitted_for_systems_that_would_divide_by_zero(rampup, system):
    run = {"rampup": rampup, "target": 16, "fleet": fleet_of(1, 1), "micro": 1}
    assert said(run, system) == said(run | {"rampup": None}, system)
    assert "ramp" not in str(said(run, system))


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
    for system, name in (("NeMo 1", "NeMo"), ("NeMo 2", "NeMo"), ("MaxText", "MaxText")):
        assert said(run, system).unsaid == (f"{name} {NO_STEP_SCHEDULE} 0:4 60:16 100:8",)
        assert not any("ramp" in word or "schedule" in word for word in said(run, system).words)


def test_megatron_gets_the_flag_to_decrease_only_if_a_batch_is_decreased():
    run = {
        "rampup": [4, 2, 60],
        "target": 12,
        "micro": 2,
        "fleet": fleet_of(1, 2),
        "decrease": True,
    }
    words = flags(said(run, "Megatron-LM"))
    assert words["decrease-batch-size-if-needed"] == []
    assert (words["rampup-batch-size"], words["global-batch-size"]) == (["4", "2", "60"], ["12"])
    assert "decrease-batch-size-if-needed" not in flags(
        said(run | {"micro": 1, "fleet": fleet_of(1, 1)}, "Megatron-LM")
    )


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
    assert any(
        "to fit all the GPUs of a job" in reason for reason in said(run, "Megatron-LM").unsaid
    )
    one_node = run | {"rampup": [4, 2, 60], "target": 12, "fleet": fleet_of(1, 2)}
    assert not any(
        "to fit all the GPUs of a job" in reason for reason in said(one_node, "Megatron-LM").unsaid
    )


def test_maxtexts_pipeline_words_are_written_and_a_batch_that_maxtext_refuses_is_reported():
    planned = plan(None, 64, fleet=fleet_of(1, 8, pipeline=4), micro=4)
    words = {"rampup_batch_size": None, "step_batch_size_schedule": None}
    dialect = translate_plan(
        planned, **words, num_pipeline_microbatches=8, expansion_factor_real_data=2
    )["MaxText"]
    assert {"num_pipeline_microbatches=8", "expansion_factor_real_data=2"} <= {*dialect.words}
    assert dialect.unsaid == ()
    single = plan(None, 64, fleet=fleet_of(1, 8, pipeline=4), micro=1)
    assert translate_plan(single, **words)["MaxText"].unsaid == (
        "MaxText's pipeline splits a pass into 4 microbatches,"
        " and 2 samples do not divide into them",
    )


def test_a_size_per_device_that_maxtext_truncates_is_reported():
    dialect = said(
        {"rampup": None, "target": 230, "fleet": fleet_of(10, 10, tensor=10), "micro": 23},
        "MaxText",
    )
    assert dialect.unsaid == ("MaxText truncates 100 x per_device_batch_size=2.3 to 229",)


def test_the_words_are_those_of_the_largest_stage():
    run = {"rampup": [256, 256, 10_000_000], "target": 2048, "fleet": fleet_of(16, 8), "micro": 4}
    words = assignments(said(run, "NeMo 2"))
    assert (words["data.global_batch_size"], words["trainer.num_nodes"]) == ("2048", "16")


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
        "per_device_batch_size_start is exactly 2/3, which has no decimal",
        "per_device_batch_size_increment is exactly 2/3, which has no decimal",
    )


def test_a_run_that_ends_inside_its_ramp_is_written_with_the_ramps_target():
    run = {"rampup": [4, 4, 24], "target": 16, "fleet": fleet_of(1, 1), "micro": 1, "max_steps": 3}
    words = assignments(said(run, "NeMo 2"))
    assert (words["data.global_batch_size"], words["data.rampup_batch_size"]) == ("16", "[4,4,24]")
    assert flags(said(run, "Megatron-LM"))["global-batch-size"] == ["16"]
