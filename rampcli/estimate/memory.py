"""Estimates the memory of a rank at the fullest moment of a training step, without torch.

A step is fullest at the end of a forward pass, in the backward pass of a layer, when gradients are
reduced, or in the optimiser's step. The terms follow `rampcli.train.step`, torch's FSDP2 and its
pipeline schedules. In reinforcement learning, generating responses may need more than a step.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from rampcli.batch.pairs import PairBatch
from rampcli.estimate.flights import Flight, PipelineSchedule
from rampcli.estimate.layer_memory import RankWeights, layer_memory, needs_fsdp, shards_and_replicas
from rampcli.estimate.model_size import count_averages, count_parameters, matrices_of, shapes_of
from rampcli.models.parts import (
    FP32,
    NUMBER_BYTES,
    HeadPart,
    MicroBatchPart,
    layer_parts,
    mask_bytes,
    norm_part,
    table_bytes,
)
from rampcli.settings.config import Config
from rampcli.settings.optimizers import optimizer_of
from rampcli.settings.rl import max_response_tokens

DRAW_BYTES, TOP_K_BYTES, TOP_P_BYTES = 20, 32, 40
"""Bytes per logit that `rampcli.models.sampler` needs to draw: from all tokens, with top-k, or with
top-p alone, which sorts all weights. They hold weights in fp32 and sums in fp64. Measured on a CPU.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes of one rank at the fullest moment of a step, by what they hold. An estimate.

    Misses the context of CUDA, buffers of NCCL, workspaces of kernels and fragmentation.

    Attributes:
        weights: this rank's shards in fp32, averages of them, and tables of positions.
        gradients: this rank's shards, and gradients before their reduction.
        optimizer: states of the optimiser, and what its step computes with.
        gathered: weights gathered from other ranks, and buffers of gathering and reducing.
        activations: results of the forward pass that the backward pass needs, what the backward
            pass of a layer computes, and what pipeline stages send and receive.
        logits: logits of a chunk of tokens, and the gradients that the loss holds.
        moment: when the step is fullest.
    """

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    gathered: int = 0
    activations: int = 0
    logits: int = 0
    moment: str = ""

    @property
    def peak_bytes(self) -> int:
        """Sum of all kinds."""
        return sum(self.by_kind().values())

    def by_kind(self) -> dict[str, int]:
        """Returns the bytes of each kind, by its name."""
        return {kind: getattr(self, kind) for kind in MEMORY_KINDS}


MEMORY_KINDS = tuple(field.name for field in fields(MemoryEstimate) if field.name != "moment")
"""What memory holds, in the order of a table."""


def estimate_memory(
    config: Config, *, data_parallel_size: int, micro_batch_size: int, accumulate_grad_batches: int
) -> MemoryEstimate:
    """Returns the estimate of the rank that needs most.

    A GPU computes, unless `trainer.accelerator=cpu`. Compiled layers usually need less.

    Args:
        config: settings that fit the model's split.
        micro_batch_size: samples per data-parallel rank in one forward and backward pass.
    """
    ranks = (
        RankMemory(
            config,
            pipeline_rank,
            data_ranks=data_parallel_size,
            samples=micro_batch_size,
            micro_batches=accumulate_grad_batches,
        )
        for pipeline_rank in range(config.parallel.pipeline_parallel_size)
    )
    return max(
        (moment for rank in ranks for moment in rank.moments()),
        key=lambda moment: moment.peak_bytes,
    )


def micro_batch_part(config: Config, *, samples: int) -> MicroBatchPart:
    """Returns a rank's part of a micro batch."""
    return MicroBatchPart(
        samples=samples,
        sequence=config.data.sequence_length,
        context=config.parallel.context_parallel_size,
        tensor=config.parallel.tensor_parallel_size,
        device="cpu" if config.trainer.accelerator == "cpu" else "cuda",
        number_bytes=NUMBER_BYTES[config.trainer.precision],
        has_documents=config.data.document_mask,
    )


class RankMemory:
    """The memory of a rank of a pipeline: its weights, and its part of a micro batch."""

    def __init__(
        self,
        config: Config,
        pipeline_rank: int,
        *,
        data_ranks: int,
        samples: int,
        micro_batches: int,
    ) -> None:
        parallel, self.config, self.model = config.parallel, config, config.model
        tensor = parallel.tensor_parallel_size
        stages = parallel.pipeline_parallel_size
        self.virtual_stages = parallel.virtual_pipeline_parallel_size
        self.is_piped, self.is_last = stages > 1, pipeline_rank == stages - 1
        pieces = (parallel.num_pipeline_microbatches or 1) if self.is_piped else 1
        self.micro_batches = micro_batches * pieces
        self.schedule = PipelineSchedule(
            ranks=stages,
            rank=pipeline_rank,
            parts=self.virtual_stages,
            micro_batches=self.micro_batches,
        )
        self.number = NUMBER_BYTES[config.trainer.precision]
        self.batch = micro_batch_part(config, samples=max(1, samples // pieces))
        self.layer = layer_memory(config, self.batch)
        self.mask = mask_bytes(self.model, self.batch)
        self.layers = config.model.num_layers // (stages * self.virtual_stages)
        self.shards, self.replicas = shards_and_replicas(config, data_ranks)
        self.tensor = tensor
        self.weights = RankWeights.of(config, pipeline_rank, shards=self.shards)
        self.norm, self.head = norm_part(config.model), HeadPart(config.model)
        self.output = self.head.linear.weights // tensor
        self.optimizer = optimizer_of(config.optim.optimizer)
        self.is_wrapped = needs_fsdp(config, data_ranks)
        self.averages_gradients = not self.is_wrapped and self.replicas > 1
        # Gradients that are reduced once per step outlive their micro batch as a whole.
        self.keeps_whole = self.is_wrapped and (
            self.is_piped or (self.micro_batches > 1 and config.trainer.accumulate_reduce != "each")
        )
        # After each reduction, FSDP2 keeps the buffer that was reduced until the next one.
        self.reduces_each = self.is_wrapped and self.micro_batches > 1 and not self.keeps_whole
        self.last_buffer = FP32 * self.weights.rest if self.reduces_each else 0
        # As `rampcli.parallel.collectives.collectives_of` decides.
        self.overlaps_on_cpu = (
            self.batch.device == "cpu" and self.shards > 1 == self.replicas and not self.is_piped
        )

    def moments(self) -> Iterator[MemoryEstimate]:
        """Yields the memory at the moments that can be the fullest."""
        rest = self.at_rest()
        yield _plus(
            rest,
            "optimiser step",
            gradients=FP32 * self.weights.shard,
            optimizer=self._optimizer_work(),
        )
        if self.is_wrapped:
            yield from self._last_reductions(rest)
        elif self.averages_gradients:
            gradients = FP32 * self.weights.whole
            yield _averaging(_plus(rest, "", gradients=gradients), self.weights.rest)
        gathers_head = self.is_wrapped and not self.is_piped
        alone = [Flight(passes=1, held=float(self.micro_batches > 1))]
        if self.reduces_each and self.overlaps_on_cpu:  # the first micro batch
            alone.append(Flight(passes=1, held=0.0))
        for flight in self.schedule.flights() if self.is_piped else alone:
            held = _plus(rest, "", **self._held(flight))
            if self.is_last:
                yield _plus(
                    held,
                    "end of the forward pass",
                    gathered=(self.last_buffer if flight.held else 0)
                    + (0 if self.is_piped and flight.held else self._layer_buffer())
                    + (self.number * self.weights.head if gathers_head else 0),
                    activations=self.layers * self.layer.kept
                    + self.mask
                    + self.norm.kept(self.batch).saved
                    + self.head.kept(self.batch).saved,
                    logits=self.head.loss_bytes(self.batch),
                )
            if gathers_head and self.weights.head:
                yield from self._head_reduction(held)
            if self.averages_gradients:
                head = 0 if flight.held else FP32 * self.weights.head
                before = self._before_layers(_plus(held, "", gradients=head))
                yield _averaging(before, self.weights.head)
            for index in {self.layers - 1, max(0, self.layers - 2), 0}:
                yield from self._backward(held, flight, index)

    def at_rest(self) -> MemoryEstimate:
        """Returns what outlives a step: weights, averages, tables and optimiser states."""
        matrices = self.weights.layers * self.weights.matrices_shard
        states = self.optimizer.states * (self.weights.shard - matrices)
        states += self.optimizer.matrix_states * matrices
        tables = self.virtual_stages * table_bytes(self.model, self.batch)
        weights = self.weights.shard * (1 + count_averages(self.config))
        return MemoryEstimate(weights=FP32 * weights + tables, optimizer=FP32 * states)

    def _optimizer_work(self) -> int:
        """Returns the bytes that the optimiser's step computes with."""
        shapes = matrices_of(shapes_of(layer_parts(self.model).values()))
        matrices = Counter(shapes * self.weights.layers)
        return self.optimizer.work_bytes(matrices, self.shards * self.tensor, self.replicas)

    def _held(self, flight: Flight) -> dict[str, float]:
        """Returns what a rank holds beside the layers in their forward or backward pass."""
        gathered = gradients = activations = 0.0
        if self.is_wrapped:
            gathered = self.number * self._gathered_throughout()
        if self.is_piped or self.micro_batches > 1:
            whole = self.keeps_whole or not self.is_wrapped
            held = self.weights.whole if whole else self.weights.shard
            gradients = flight.held * FP32 * held
        if self.is_piped:
            activations = flight.exchanged * self.batch.hidden_bytes(self.model)
            activations += (flight.passes - 1) * (self.layers * self.layer.kept + self.mask)
        return {"gathered": gathered, "gradients": gradients, "activations": activations}

    def _gathered_throughout(self) -> int:
        """Returns the number of weights that stay gathered while the layers compute."""
        if self.is_piped:
            return self.weights.whole
        return 0 if self.weights.head else self.weights.rest

    def _layer_buffer(self) -> int:
        """Returns the bytes of the buffer into which a layer's weights are gathered."""
        if not self.is_wrapped or self.shards == 1:
            return 0
        return self.number * self.weights.layer_shard * self.shards

    def _backward(
        self, held: MemoryEstimate, flight: Flight, index: int
    ) -> Iterator[MemoryEstimate]:
        """Yields moments in the backward pass of a part's layer `index`."""
        layer, after = self.layer, self.layers - 1 - index
        below = index * layer.kept + self.mask
        gathered = self._reduced_before(flight, after)
        gradients = self._later_gradients(flight, after)
        ahead = self._layer_buffer() if index and not self.is_piped else 0
        in_place = (
            flight.held > 0 and self.number == FP32 and (self.keeps_whole or not self.is_wrapped)
        )
        bytes_per_number = 0 if in_place else self.number
        if self.is_wrapped and not self.is_piped:
            gathered += self.number * self.weights.layer
        base = _plus(held, "", gathered=gathered + ahead, gradients=gradients)
        yield _plus(
            base,
            "backward pass of a feed-forward layer",
            gradients=self.number * self.weights.last_of_layer,
            activations=below + layer.feed_forward,
        )
        yield _plus(
            base,
            "backward pass of attention",
            gradients=bytes_per_number * self.weights.layer,
            activations=below + layer.attention,
        )
        if self.is_wrapped and not self.is_piped:
            yield from self._reduction(
                _plus(
                    held,
                    "",
                    gathered=ahead,
                    gradients=gradients,
                    activations=(below if index else 0) + self.batch.hidden_bytes(self.model),
                ),
                self.weights.layer,
                self.weights.layer_shard,
                last=self.weights.last_of_layer,
            )
        elif self.averages_gradients:
            yield _averaging(
                _plus(
                    held,
                    "",
                    gradients=gradients + bytes_per_number * self.weights.layer,
                    activations=below + self.batch.hidden_bytes(self.model),
                ),
                self.weights.layer,
            )

    def _reduction(
        self, before: MemoryEstimate, weights: int, shard: int, *, last: int
    ) -> Iterator[MemoryEstimate]:
        """Yields moments in the reduction of the gradients of some weights.

        Args:
            before: memory without these gradients, unless they are held already.
            shard: number of them on this rank afterwards.
            last: numbers in the last matrix among them.
        """
        moment, buffer = "reduction of gradients", FP32 * weights
        number = FP32 if self.keeps_whole else self.number
        yield _plus(
            before,
            moment,
            gathered=buffer,
            gradients=0 if self.keeps_whole else number * weights,
        )
        # Gloo copies what it reduces and scatters. FSDP2 still refers to the last gradient.
        copy = buffer if self.batch.device == "cpu" and self.shards > 1 else 0
        kept = number * last if self.shards > 1 else 0
        yield _plus(
            before,
            moment,
            gathered=buffer + copy,
            gradients=FP32 * shard + kept - (FP32 * weights if self.keeps_whole else 0),
        )

    def _head_reduction(self, held: MemoryEstimate) -> Iterator[MemoryEstimate]:
        """Yields moments in the reduction of the gradients of the head, the first of a pass."""
        before = self._before_layers(_plus(held, "", gathered=self._layer_buffer()))
        yield from self._reduction(
            before, self.weights.head, self.weights.head_shard, last=self.output
        )

    def _before_layers(self, held: MemoryEstimate) -> MemoryEstimate:
        """Returns the memory before the backward passes of the layers."""
        kept = self.layers * self.layer.kept + self.mask
        return _plus(held, "", activations=kept + self.batch.hidden_bytes(self.model))

    def _reduced_before(self, flight: Flight, after: int) -> int:
        """Returns the bytes of the buffer that FSDP2 reduced last and has not freed yet.

        It is 0 if ranks reduce only at the end of a pipeline's step, or not with FSDP2.

        Args:
            after: layers whose backward pass is over.
        """
        if self.is_piped or not self.is_wrapped:
            return 0
        buffer = FP32 * (self.weights.layer if after else self.weights.head)
        if buffer == 0:  # this pass has reduced nothing yet
            return self.last_buffer if flight.held else 0
        waits = self.reduces_each and flight.held > 0  # FSDP2 adds what it has reduced before
        # Without waiting, gloo's copy of the buffer is in use, too.
        return 2 * buffer if self.overlaps_on_cpu and not waits else buffer

    def _later_gradients(self, flight: Flight, after: int) -> int:
        """Returns the bytes of gradients of the head and of later layers.

        Gradients that earlier micro batches have left are counted by `_held`. The result is
        negative if reductions have made shards of more of them than this micro batch adds.

        Args:
            after: layers whose backward pass is over.
        """
        output = self.output if self.is_last else 0
        if not self.is_wrapped:
            return 0 if flight.held else FP32 * (output + after * self.weights.layer)
        are_added_in_place = flight.held > 0 and self.keeps_whole and self.number == FP32
        # A tied output projection is reduced last, with the embedding.
        tied = 0 if self.weights.head or are_added_in_place else self.number * output
        whole = FP32 * (self.weights.head + after * self.weights.layer)
        shards = FP32 * (self.weights.head_shard + after * self.weights.layer_shard)
        if self.keeps_whole and not self.is_piped:
            return tied + shards - whole
        if flight.held:
            return tied
        return tied + (whole if self.is_piped else shards)

    def _last_reductions(self, rest: MemoryEstimate) -> Iterator[MemoryEstimate]:
        """Yields the memory when the last gradients of a step are reduced."""
        if self.is_piped:
            before = _plus(
                rest,
                "",
                gathered=self.number * self.weights.whole,
                gradients=FP32 * self.weights.whole,
            )
            yield from self._reduction(
                before,
                self.weights.layer,
                self.weights.layer_shard,
                last=self.weights.last_of_layer,
            )
        else:
            held = FP32 * self.weights.rest if self.keeps_whole else 0
            layers = FP32 * (self.weights.shard - self.weights.rest_shard)
            before = _plus(rest, "", gradients=held + layers)
        yield from self._reduction(before, self.weights.rest, self.weights.rest_shard, last=0)
        if self.is_piped and self.weights.head:
            yield from self._reduction(
                before, self.weights.head, self.weights.head_shard, last=self.output
            )


def _averaging(before: MemoryEstimate, weights: int) -> MemoryEstimate:
    """Returns the memory when the gradients of some weights are averaged over replicas."""
    return _plus(before, "reduction of gradients", gathered=FP32 * weights)


def _plus(estimate: MemoryEstimate, moment: str, **more: float) -> MemoryEstimate:
    """Returns an estimate with more bytes of some kinds, and another moment."""
    sums = {kind: getattr(estimate, kind) + int(size) for kind, size in more.items()}
    return replace(estimate, moment=moment, **sums)


def with_rollout(estimate: MemoryEstimate, config: Config, batch: PairBatch) -> MemoryEstimate:
    """Returns the larger of two estimates: the peak in training, and the peak while generating.

    Args:
        estimate: of training on micro batches of `batch`.
    """
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    ranks_of_data = batch.data_parallel_size
    number = NUMBER_BYTES[config.trainer.precision]
    # A model that FSDP2 holds has a whole copy that generates, see `rampcli.rl.sources.Policy`.
    weights = estimate.weights + (number * parameters if needs_fsdp(config, ranks_of_data) else 0)
    if config.rl.kl_weight > 0:
        shards = config.parallel.data_parallel_shard_size or batch.data_parallel_size
        weights += FP32 * parameters // (shards * config.parallel.tensor_parallel_size)
    training = replace(estimate, weights=weights)
    if config.rl.rollout_ranks:
        return training
    prompts = batch.prompts // (ranks_of_data * batch.rollouts)
    rollout = MemoryEstimate(
        weights=weights,
        optimizer=estimate.optimizer,
        activations=cache_bytes(config, prompts),
        logits=draw_bytes(config, prompts),
        moment="rollout",
    )
    return max(training, rollout, key=lambda moment: moment.peak_bytes)


def generating_bytes(config: Config, prompts: int) -> int:
    """Returns the bytes of a rank that only generates while it answers some prompts at once."""
    parameters = count_parameters(config.model, sequence_length=config.data.sequence_length)
    weights = NUMBER_BYTES[config.trainer.precision] * parameters
    return weights + cache_bytes(config, prompts) + draw_bytes(config, prompts)


def draw_bytes(config: Config, prompts: int) -> int:
    """Returns the bytes of the logits of a token of each pair, and of drawing from them."""
    drawing = DRAW_BYTES if config.rl.top_p is None else TOP_P_BYTES
    if config.rl.top_k is not None:
        drawing = TOP_K_BYTES
    pairs = prompts * (config.rl.generations_per_prompt or 1)
    return (FP32 + drawing) * pairs * config.model.vocabulary


def cache_bytes(config: Config, prompts: int) -> int:
    """Returns the bytes of keys and values while some prompts are answered at once.

    The responses to a prompt share its keys and values.
    """
    model = config.model
    cached = sum(part.cached_numbers for part in layer_parts(model).values())
    per_token = model.num_layers * cached
    pairs = prompts * (config.rl.generations_per_prompt or 1)
    number = NUMBER_BYTES[config.trainer.precision]
    response = max_response_tokens(config)
    tokens = prompts * (config.data.sequence_length - response) + pairs * response
    return number * per_token * tokens
