"""Batches in the words of other systems mean the same run there."""

import json
from fractions import Fraction

import pytest
from hypothesis import given

from plans import fleet_of
from rampcli.batch.plan import SHARD_KEY, ParallelSizes
from rampcli.words import DIALECTS, SPELLINGS, maxtext_mesh
from rampcli.words.maxtext import read_batch
from tests.words.translating import (
    SEQUENCE_LENGTH,
    assignments,
    flags,
    plan,
    runs,
    said,
)

SEQUENCE_WORDS = {"NeMo 1": "model.encoder_seq_length", "NeMo 2": "data.seq_length"}


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
def test_a_batch_in_the_words_of_megatron_bridge_is_read_back_as_the_same_run(run):
    """Its words name no nodes: the launcher starts the processes."""
    words = assignments(said(run, "Megatron Bridge"))
    assert (
        int(words.pop("model.seq_length"))
        == int(words.pop("dataset.seq_length"))
        == SEQUENCE_LENGTH
    )
    ours = {SPELLINGS[key]: json.loads(value) for key, value in words.items()}
    fleet = fleet_of(
        run["fleet"].num_nodes,
        run["fleet"].devices,
        **{
            axis: ours.pop(f"parallel.{axis}_parallel_size")
            for axis in ("tensor", "pipeline", "context")
        },
    )
    back = run | {
        "rampup": ours.pop("model.rampup_batch_size", None),
        "target": ours.pop("model.global_batch_size"),
        "micro": ours.pop("data.micro_batch_size"),
        "fleet": fleet,
    }
    assert ours == ({"trainer.max_steps": run["max_steps"]} if "max_steps" in run else {})
    assert back == run
    assert plan(**back).stages == plan(**run).stages


def test_a_ramp_in_the_words_of_megatron_bridge_ends_with_a_step():
    """It refuses a ramp together with a number of samples."""
    run = {"rampup": [4, 4, 24], "target": 16, "fleet": fleet_of(1, 1), "micro": 1}
    run |= {"max_samples": 100}
    words = assignments(said(run, "Megatron Bridge"))
    assert words["train.train_iters"] == str(plan(**run).end_step)
    assert "train.train_samples" not in words


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
    sizes = {word: int(words.pop(word)) for word in maxtext_mesh.AXES if word in words}
    assert maxtext_mesh.read_mesh(
        sizes, num_devices=planned.stages[-1].world_size, parallel=ParallelSizes()
    ) == {
        "parallel.tensor_parallel_size": parallel.tensor,
        "parallel.pipeline_parallel_size": parallel.pipeline,
        "parallel.context_parallel_size": parallel.context,
    }
    accumulate = int(words.pop("gradient_accumulation_steps"))
    enabled = words.pop("enable_rampup_batch_size", None)
    inexact = {
        note.partition(" is exactly ")[0] for note in dialect.unsaid if "no decimal equals" in note
    }
    for name, note in (
        (note.partition(" ")[0], note) for note in dialect.unsaid if "no decimal equals" in note
    ):
        exact = Fraction(note.split(" is exactly ")[1].split(",")[0])
        assert float(exact) == float(words[name])
        assert Fraction(words[name]) != exact
    devices = run["fleet"].num_nodes * run["fleet"].devices
    if inexact:
        assert devices % 3 == 0
        return
    meant = read_batch(
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


def test_a_batch_is_written_in_the_words_of_five_systems():
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
        "Megatron Bridge": "train.micro_batch_size=2 train.global_batch_size=64"
        " train.train_iters=100 model.seq_length=10 dataset.seq_length=10"
        " model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=1"
        " model.context_parallel_size=1",
        "Megatron-LM": "--micro-batch-size 2 --global-batch-size 64 --seq-length 10"
        " --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1"
        " --context-parallel-size 1 --train-iters 100",
        "MaxText": "per_device_batch_size=1.0 gradient_accumulation_steps=8"
        " max_target_length=10 steps=100 ici_tensor_parallelism=2"
        " ici_pipeline_parallelism=1 ici_context_parallelism=1",
    }
    assert {system: said(run, system).unsaid for system in DIALECTS} == dict.fromkeys(DIALECTS, ())


@pytest.mark.parametrize("shard", [1, 2, 4])
def test_the_ranks_that_share_the_weights_are_read_back_from_maxtexts_words(shard):
    run = {"rampup": None, "target": 64, "fleet": fleet_of(2, 4, tensor=2), "micro": 2}
    words = assignments(said(run, "MaxText", data_parallel_shard_size=shard))
    sizes = {word: int(words[word]) for word in maxtext_mesh.AXES if word in words}
    meant = maxtext_mesh.read_mesh(sizes, num_devices=8, parallel=ParallelSizes())
    assert (meant["parallel.tensor_parallel_size"], meant[SHARD_KEY]) == (2, shard)


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


def test_the_words_are_those_of_the_largest_stage():
    run = {"rampup": [256, 256, 10_000_000], "target": 2048, "fleet": fleet_of(16, 8), "micro": 4}
    words = assignments(said(run, "NeMo 2"))
    assert (words["data.global_batch_size"], words["trainer.num_nodes"]) == ("2048", "16")


def test_systems_with_one_micro_batch_get_one_that_divides_those_of_all_stages():
    run = {"rampup": [4, 2, 100], "target": 8, "fleet": fleet_of(1, 1), "micro": 8}
    run |= {"micro_batch_rule": "largest", "policy": "fixed", "semantics": "maxtext"}
    assert [stage.micro_batch_size for stage in plan(**run).stages] == [4, 6, 8]
    for system, name in (("NeMo 1", "model"), ("NeMo 2", "data")):
        assert assignments(said(run, system))[f"{name}.micro_batch_size"] == "2"
        assert "NeMo has one micro batch, here 2; these stages have 4 to 8" in (
            said(run, system).unsaid
        )
    assert assignments(said(run, "Megatron Bridge"))["train.micro_batch_size"] == "2"
    assert flags(said(run, "Megatron-LM"))["micro-batch-size"] == ["2"]
    assert said(run, "MaxText").unsaid == ()


def test_a_run_that_ends_inside_its_ramp_is_written_with_the_ramps_target():
    run = {"rampup": [4, 4, 24], "target": 16, "fleet": fleet_of(1, 1), "micro": 1, "max_steps": 3}
    words = assignments(said(run, "NeMo 2"))
    assert (words["data.global_batch_size"], words["data.rampup_batch_size"]) == ("16", "[4,4,24]")
    assert flags(said(run, "Megatron-LM"))["global-batch-size"] == ["16"]
