"""NeMo, Megatron Bridge and Megatron-LM: their spellings of our keys, and a plan in their words.

Megatron-LM's words are NeMo's, so it has no spellings of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rampcli.batch.node_policies import nemo_schedule
from rampcli.batch.plan import GLOBAL_KEY
from rampcli.batch.position import STEPS_UNIT
from rampcli.batch.quantities import listed
from rampcli.batch.run_settings import DECREASE_KEY
from rampcli.batch.step_schedule import SCHEDULE_KEY, threshold_unit, to_entries
from rampcli.words.nemo_yaml import FORMAT
from rampcli.words.translation import (
    Source,
    System,
    Translation,
    differences,
    to_assignments,
    to_flags,
)

NEMO_1: dict[str, str] = {
    "model.micro_batch_size": "data.micro_batch_size",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
}
"""The model holds everything. Plans are written in these words too, so a key has one word."""
NEMO_2: dict[str, str] = {
    "data.global_batch_size": "model.global_batch_size",
    "data.rampup_batch_size": "model.rampup_batch_size",
    "trainer.strategy.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "trainer.strategy.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "trainer.strategy.context_parallel_size": "parallel.context_parallel_size",
}
"""The data module holds the batch sizes, and MegatronStrategy the axes. Plans are written so."""
BRIDGE: dict[str, str] = {
    "train.micro_batch_size": "data.micro_batch_size",
    "train.global_batch_size": "model.global_batch_size",
    "train.rampup_batch_size": "model.rampup_batch_size",
    "train.step_batch_size_schedule": "model.step_batch_size_schedule",
    "train.decrease_batch_size_if_needed": "rampup.decrease_batch_size_if_needed",
    "train.train_iters": "trainer.max_steps",
    "train.train_samples": "trainer.max_samples",
    "model.seq_length": "data.sequence_length",
    "dataset.seq_length": "data.sequence_length",
    "dataset.sequence_length": "data.sequence_length",
    "model.tensor_model_parallel_size": "parallel.tensor_parallel_size",
    "model.pipeline_model_parallel_size": "parallel.pipeline_parallel_size",
    "model.context_parallel_size": "parallel.context_parallel_size",
    "scheduler.lr_warmup_iters": "optim.warmup_steps",
    "scheduler.lr_warmup_samples": "optim.warmup_samples",
    "optimizer.lr": "optim.lr",
    "optimizer.min_lr": "optim.min_lr",
}
"""Megatron Bridge is NeMo's successor. The names are those of its `ConfigContainer` up to 0.6."""
BRIDGE_UNWRITTEN = ("train.train_samples", "dataset.sequence_length")
"""The first is refused together with a ramp, the second is the name in versions up to 0.5."""
ARGUMENTS: dict[str, str] = {
    "micro-batch-size": "data.micro_batch_size",
    "global-batch-size": "model.global_batch_size",
    "rampup-batch-size": "model.rampup_batch_size",
    "step-batch-size-schedule": "model.step_batch_size_schedule",
    "decrease-batch-size-if-needed": "rampup.decrease_batch_size_if_needed",
    "seq-length": "data.sequence_length",
    "tensor-model-parallel-size": "parallel.tensor_parallel_size",
    "pipeline-model-parallel-size": "parallel.pipeline_parallel_size",
    "context-parallel-size": "parallel.context_parallel_size",
    "train-samples": "trainer.max_samples",
    "train-iters": "trainer.max_steps",
}
"""Our key for each argument of `pretrain_gpt.py`."""
LAUNCHER_GROUP = "training"
"""The group of NeMo's launcher whose options are whole runs, and the section of their settings."""
OPTIM_SECTIONS = ("config", "lr_scheduler", "sched", "optim", "data")
"""Sections of NeMo's `optim` and `model`."""
MOST_SHOWN = 10
UNSUPPORTED = (DECREASE_KEY, "trainer.max_samples")
"""Our keys that NeMo has no word for."""


def write_nemo_1(source: Source) -> Translation:
    """Returns a batch in NeMo 1's words, in which NeMo's launcher chooses the nodes of a ramp."""
    written = _write(source, NEMO_1, sequence_length="model.encoder_seq_length")
    return replace(written, unsaid=(*written.unsaid, *_node_differences(source)))


def write_nemo_2(source: Source) -> Translation:
    """Returns a batch in NeMo 2's words."""
    return _write(source, NEMO_2, sequence_length="data.seq_length")


def _write(source: Source, spellings: Mapping[str, str], *, sequence_length: str) -> Translation:
    """Returns a batch in a version's spellings. NeMo shares our other keys."""
    words = {key: word for word, key in spellings.items()}
    words["data.sequence_length"] = sequence_length
    values = {
        words.get(key, key): value
        for key, value in source.values().items()
        if key not in UNSUPPORTED
    }
    return Translation(words=to_assignments(values), unsaid=differences(source, "NeMo"))


def _node_differences(source: Source) -> Iterator[str]:
    """Returns the nodes that NeMo's launcher gives the stages, if here they have others.

    NeMo without its launcher trains all stages on the same nodes.
    """
    plan = source.plan
    here = [stage.num_nodes for stage in plan.stages]
    if source.ramp is None or plan.ramp.decreased or len({*here}) == 1:
        return
    by_size = nemo_schedule(
        plan.ramp.scheduled_sizes(),
        micro_batch_size=source.micro_batch_size,
        fleet=replace(plan.fleet, num_nodes=source.stage.num_nodes),
    )
    launcher = [by_size[stage.global_batch_size] for stage in plan.stages]
    if launcher != here:
        yield (
            f"NeMo's launcher gives the stages {_as_words(launcher)} nodes;"
            f" here they have {_as_words(here)}"
        )


def _as_words(nodes: Sequence[int | None]) -> str:
    return listed(["no" if n is None else str(n) for n in nodes], most=MOST_SHOWN)


def write_bridge(source: Source) -> Translation:
    """Returns a batch in Megatron Bridge's words."""
    values = source.values()
    unsaid = differences(source, "Megatron Bridge", decreases=True)
    if source.ramp is not None:
        unsaid += (
            "Megatron Bridge after 0.4 ignores train.rampup_batch_size:"
            f" every step has {source.plan.global_batch_size} samples",
        )
    words = {
        word: values[key]
        for word, key in BRIDGE.items()
        if key in values and word not in BRIDGE_UNWRITTEN
    }
    return Translation(words=to_assignments(words), unsaid=unsaid)


def write_megatron(source: Source) -> Translation:
    """Returns a batch as arguments of Megatron-LM's `pretrain_gpt.py`."""
    plan, values = source.plan, source.values()
    # Megatron-LM refuses two batch sizes at one threshold.
    thresholds = to_entries(plan.ramp.distinct_thresholds(), per_sample=plan.sequence_length)
    if source.steps is not None:
        values |= {GLOBAL_KEY: None, SCHEDULE_KEY: thresholds}
    batch_changes = source.ramp is not None or source.steps is not None
    values["trainer.max_steps" if batch_changes else "trainer.max_samples"] = None
    unsaid = differences(source, "Megatron-LM", has_steps=True, decreases=True)
    if source.ramp is not None and not plan.ramp.decreased:
        unsaid += (
            "Megatron core after 0.17 has no --rampup-batch-size;"
            f" use --step-batch-size-schedule {thresholds!r}",
        )
    if threshold_unit(source.step_batch_size_schedule or "") == STEPS_UNIT:
        unsaid += ("Megatron-LM has no thresholds in steps; here they are the same in tokens",)
    words = to_flags({argument: values.get(key) for argument, key in ARGUMENTS.items()})
    return Translation(words=words, unsaid=unsaid)


SYSTEMS = {
    "NeMo 1": System(
        spellings=NEMO_1,
        files=FORMAT,
        write=write_nemo_1,
        refused={
            LAUNCHER_GROUP: (
                "is a group of NeMo's launcher",
                ("--factory NAME; `rampcli recipes` lists the names",),
            )
        },
    ),
    "NeMo 2": System(spellings=NEMO_2, write=write_nemo_2),
    "Megatron Bridge": System(
        spellings=BRIDGE,
        write=write_bridge,
        remarks={
            "model.seq_length": "Equal to `dataset.seq_length`.",
            "dataset.sequence_length": "The name of `dataset.seq_length` in versions up to 0.5.",
        },
    ),
    "Megatron-LM": System(write=write_megatron),
}
