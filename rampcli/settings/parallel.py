"""How the model is split over the ranks."""

from collections.abc import Iterator
from math import gcd
from typing import TYPE_CHECKING

from rampcli.batch.division import divisors
from rampcli.batch.pipeline import PIPELINE_SIZE_KEY
from rampcli.batch.step_schedule import LENGTH_KEY
from rampcli.errors import UsageError, set_to
from rampcli.settings.attributes import Section
from rampcli.settings.facts import COST, any_phase
from rampcli.settings.fields import Keyed, keyed, setting, settings_class
from rampcli.settings.model import ModelConfig
from rampcli.settings.trainer import TrainerConfig

if TYPE_CHECKING:
    from rampcli.settings.config import Config


@keyed("parallel.")
@settings_class(kw_only=True)
class ParallelConfig(Section):
    """How the model is split. The remaining processes are data parallel."""

    tensor_parallel_size: Keyed[int] = setting(
        1, "Ranks that share each layer.", any_phase(COST), at_least=1
    )
    pipeline_parallel_size: Keyed[int] = setting(
        1,
        "Pipeline stages that the layers are divided into.",
        any_phase(COST).unread_by_rl(
            ", which splits a model over data-parallel and tensor-parallel ranks", unused=1
        ),
        at_least=1,
    )
    context_parallel_size: Keyed[int] = setting(
        1,
        "Ranks that share each sequence.",
        any_phase(COST).unread_by_rl(
            ", which splits a model over data-parallel and tensor-parallel ranks", unused=1
        ),
        at_least=1,
    )
    data_parallel_shard_size: Keyed[int | None] = setting(
        None,
        "Data-parallel ranks that share one copy of the weights; must divide their number. `1`:"
        " each rank has a copy. `null`: all ranks share one.",
        any_phase(COST),
        at_least=1,
    )
    virtual_pipeline_parallel_size: Keyed[int] = setting(
        1,
        "Groups of layers per pipeline rank, for the interleaved schedule. `1`: the 1F1B schedule.",
        any_phase(COST),
        at_least=1,
    )
    num_pipeline_microbatches: Keyed[int | None] = setting(
        None,
        "Parts of a micro batch that pass through the pipeline one after another; a multiple of"
        " the stages. `null`: the accumulated micro batches pass instead.",
        any_phase(COST),
        at_least=1,
    )


def check_tensor(config: "Config") -> Iterator[UsageError]:
    """Checks that heads, widths and vocabulary divide over the tensor axis."""
    model, ranks = config.model, config.parallel.tensor_parallel_size
    sizes = {
        ModelConfig.num_attention_heads: model.num_attention_heads,
        ModelConfig.num_query_groups: model.num_query_groups,
        ModelConfig.ffn_hidden_size: model.ffn_hidden_size,
        ModelConfig.vocab_size: model.vocab_size,
        ModelConfig.hidden_size: model.hidden_size,
    }
    given = {key: size for key, size in sizes.items() if size is not None}
    wrong = {key: size for key, size in given.items() if size % ranks}
    if wrong:
        *others, last = (f"{key}={size}" for key, size in wrong.items())
        parallel = config.parallel
        processes = config.trainer.num_nodes * config.trainer.devices
        other_axes = parallel.pipeline_parallel_size * parallel.context_parallel_size
        if processes % other_axes == 0:
            processes //= other_axes
        yield UsageError(
            f"{', '.join(others)} and {last} do not divide into"
            f" {ParallelConfig.tensor_parallel_size}={ranks}"
            if others
            else f"{last} does not divide into {ParallelConfig.tensor_parallel_size}={ranks}",
            keys=(ParallelConfig.tensor_parallel_size, *wrong),
            remedy=set_to(
                ParallelConfig.tensor_parallel_size,
                divisors(gcd(processes, *given.values()), most=ranks)[-1],
            ),
        )


def sequence_unit(config: "Config") -> int:
    """Returns the tokens that a sequence is a multiple of: tensor ranks x pieces per sequence."""
    context = config.parallel.context_parallel_size
    return (2 * context if context > 1 else 1) * config.parallel.tensor_parallel_size


def check_sequence(config: "Config") -> Iterator[UsageError]:
    """Checks that the sequence divides over tensor ranks, and in two pieces per context rank."""
    length, parallel = config.data.sequence_length, config.parallel
    context, tensor = parallel.context_parallel_size, parallel.tensor_parallel_size
    unit = sequence_unit(config)
    if length % unit:
        factors = {}
        if context > 1:
            factors[ParallelConfig.context_parallel_size] = (
                f"2 pieces x {ParallelConfig.context_parallel_size}={context}"
            )
        if tensor > 1:
            factors[ParallelConfig.tensor_parallel_size] = (
                f"{ParallelConfig.tensor_parallel_size}={tensor}"
            )
        below = length - length % unit
        lengths = [size for size in (below, below + unit) if size]
        yield UsageError(
            f"{LENGTH_KEY}={length} does not divide into {' x '.join(factors.values())}",
            keys=(LENGTH_KEY, *factors),
            remedy=set_to(LENGTH_KEY, *lengths),
        )


def check_pipeline_parts(config: "Config") -> Iterator[UsageError]:
    """Checks that layers divide over the pipeline, and that gradients are reduced once a step."""
    parallel, layers = config.parallel, config.model.num_layers
    ranks, parts = parallel.pipeline_parallel_size, parallel.virtual_pipeline_parallel_size
    if parts > 1 and ranks == 1:
        yield UsageError(
            f"{ParallelConfig.virtual_pipeline_parallel_size}={parts} needs a pipeline, and"
            f" {PIPELINE_SIZE_KEY}=1",
            keys=(ParallelConfig.virtual_pipeline_parallel_size, PIPELINE_SIZE_KEY),
            remedy=set_to(ParallelConfig.virtual_pipeline_parallel_size, 1),
        )
    # Layers that do not divide over the ranks are reported by `check_pipeline`.
    elif layers % ranks == 0 and layers % (ranks * parts):
        yield UsageError(
            f"model.num_layers={layers} does not divide into {PIPELINE_SIZE_KEY}={ranks} x"
            f" {ParallelConfig.virtual_pipeline_parallel_size}={parts}",
            keys=(
                ParallelConfig.virtual_pipeline_parallel_size,
                ModelConfig.num_layers,
                PIPELINE_SIZE_KEY,
            ),
            remedy=set_to(
                ParallelConfig.virtual_pipeline_parallel_size,
                divisors(layers // ranks, most=parts)[-1],
            ),
        )
    if ranks > 1 and config.trainer.accumulate_reduce == "each":
        yield UsageError(
            f"trainer.accumulate_reduce=each and {PIPELINE_SIZE_KEY}={ranks} exclude each"
            " other: a pipeline reduces after its last micro batch",
            keys=(TrainerConfig.accumulate_reduce, PIPELINE_SIZE_KEY),
            remedy=set_to(TrainerConfig.accumulate_reduce, "last"),
        )
