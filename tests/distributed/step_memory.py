"""The memory of training steps: the bytes of living tensors, operation by operation."""

import gc
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch.distributed._tools import MemTracker
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rampcli.data.loader import MicroBatch
from rampcli.settings.config import Config
from rampcli.train.average import WeightAverage
from rampcli.train.optimizers import build_optimizers
from rampcli.train.step import accumulate_gradient, update_weights
from ranks import build_passes, joined

CPU = torch.device("cpu")


class Census(TorchDispatchMode):
    """Counts the storages of all tensors that operations return, until they are freed.

    Torch's trackers follow modules, which they expect to be called once per step: neither
    pipelines nor several micro batches are. This counts the same bytes, see
    `test_the_census_agrees_with_torchs_trackers`.

    Attributes:
        current: bytes that live now.
        peak: most of them so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.living: dict[int, tuple[int, weakref.ref]] = {}
        self.current = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if DTensor in types:  # its operations on local tensors come here next
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            # Wrappers around other tensors have storages without memory.
            if type(leaf) in (torch.Tensor, torch.nn.Parameter) and leaf.device == CPU:
                storage = leaf.untyped_storage()
                self.count(storage, storage.nbytes())
        return result

    def __enter__(self):
        self.resize = torch.UntypedStorage.resize_

        def resize(storage, size):  # FSDP frees and allocates gathered weights by this
            self.resize(storage, size)
            self.count(storage, size)
            return storage

        torch.UntypedStorage.resize_ = resize
        return super().__enter__()

    def __exit__(self, *details):
        torch.UntypedStorage.resize_ = self.resize
        return super().__exit__(*details)

    def count(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        known = self.living.get(key)
        if known is not None and known[0] == size and known[1]() is storage:
            return
        self.forget(key)
        reference = weakref.ref(storage, lambda gone: self.forget(key, gone))
        self.living[key] = size, reference
        self.current += size
        self.peak = max(self.peak, self.current)

    def forget(self, key: int, reference: weakref.ref | None = None) -> None:
        known = self.living.get(key)
        if known is not None and reference in (None, known[1]):
            self.current -= known[0]
            del self.living[key]


class Steps:
    """Training steps of this rank on random tokens."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.passes = build_passes(config)
        self.parts = self.passes.parts
        self.optimizers = build_optimizers(self.parts, config.optim)
        self.ema = None if config.average.ema is None else WeightAverage(self.parts)

    def batch(self, micro_batch_size: int, micro_batches: int) -> list[MicroBatch]:
        """Returns micro batches; two documents in each sample if there is a document mask."""
        length = self.config.data.sequence_length
        shape = (micro_batches, micro_batch_size, length)
        tokens = torch.randint(self.config.model.vocab_size, shape)
        positions = (torch.arange(length) % (length // 2)).expand(shape).contiguous()
        has_documents = self.config.data.document_mask
        return [
            MicroBatch(each, each, place if has_documents else None)
            for each, place in zip(tokens, positions, strict=True)
        ]

    def take(self, batch: list[MicroBatch]) -> None:
        accumulate_gradient(
            self.passes, batch, global_tokens=batch[0].tokens.numel(), gradient_clip_val=1.0
        )
        update_weights(self.optimizers, lr=1e-3)
        if self.ema is not None:
            self.ema.move(0.5)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keeps the garbage collector from freeing tensors at arbitrary moments.

    What remains is up to 4 %: threads of gloo free the tensors of a collective a little later.
    """
    gc.disable()
    yield
    gc.enable()


def step_peaks(settings: Sequence[tuple[Config, Sequence[tuple[int, int]]]]) -> list[list[int]]:
    """Returns this rank's bytes at the peak of a step.

    Args:
        settings: configurations, and the micro batch sizes and numbers of micro batches to take
            with each.
    """
    gc.freeze()  # collecting what imports created takes longer than a step
    with joined():
        return [_peaks(config, batches) for config, batches in settings]


def _peaks(config: Config, batches: Sequence[tuple[int, int]]) -> list[int]:
    parallel, peaks = config.parallel, []
    # DTensor and pipelines try out operations on each new shape.
    tries_shapes = parallel.tensor_parallel_size > 1 or parallel.pipeline_parallel_size > 1
    with Census() as census:
        steps = None
        for batch in batches:
            if steps is None:
                steps = Steps(config)
                steps.take(steps.batch(*batch))
            elif tries_shapes:
                steps.take(steps.batch(*batch))
            micro_batches = steps.batch(*batch)
            gc.collect()
            census.peak = census.current
            with uncollected():
                steps.take(micro_batches)
            peaks.append(census.peak)
    return peaks


def forward_rests(settings: Sequence[tuple[Config, Sequence[tuple[int, int]]]]) -> list[list[int]]:
    """Returns this rank's bytes after forward passes without backward passes.

    The arguments are those of `step_peaks`.
    """
    gc.freeze()
    with joined():
        return [_rests(config, batches) for config, batches in settings]


def _rests(config: Config, batches: Sequence[tuple[int, int]]) -> list[int]:
    rests = []
    with Census() as census:
        steps = Steps(config)
        for batch in batches:
            steps.passes.forward(steps.batch(*batch))
            gc.collect()
            rests.append(census.current)
    return rests


def tracked_peak(config: Config, micro_batch_size: int) -> int:
    """Returns the peak of a step, as torch's tracker counts it.

    The step before it is not counted: in that one, DTensor tries out operations on tensors with
    global shapes.

    Args:
        config: the configuration; no pipeline and no FSDP.
        micro_batch_size: samples of the steps' only micro batch.
    """
    with joined():
        steps = Steps(config)
        (model,) = steps.parts
        steps.optimizers = [torch.optim.AdamW(model.parameters(), fused=True)]
        steps.take(steps.batch(micro_batch_size, 1))
        batch, tracker = steps.batch(micro_batch_size, 1), MemTracker()
        tracker.track_external(model, *steps.optimizers, batch[0].tokens, batch[0].labels)
        gc.collect()
        with uncollected(), tracker:
            steps.take(batch)
        peak: int = tracker.get_tracker_snapshot("peak")[CPU]["Total"]
    return peak
