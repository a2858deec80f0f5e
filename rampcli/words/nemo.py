"""NeMo 1 and NeMo 2: their spellings of our keys, and a plan in their words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from rampcli.batch.node_policies import nemo_schedule
from rampcli.batch.quantities import listed
from rampcli.batch.run_settings import DECREASE_KEY
from rampcli.words.translation import Source, Translation, differences, to_assignments

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
LAUNCHER_GROUP = "training"
"""The group of NeMo's launcher whose options are whole runs, and the section of their settings."""
LAUNCHER_SECTION = f"{LAUNCHER_GROUP}."
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
