"""Saves checkpoints: tensors in safetensors files, everything else in a JSON manifest. No pickle.

A checkpoint is written under another name, flushed, given its manifest and renamed, so it is
complete or absent. It loads on any number of ranks.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rampcli.checkpoint.shards import HostCopies, Shard, shards_to_save
from rampcli.checkpoint.state import (
    SPECIAL_TOKENS,
    TOKENIZER,
    AveragesAt,
    TrainingState,
    named_tensors,
)
from rampcli.checkpoint.tensor_files import write_shards
from rampcli.data.special_tokens import NONE_KNOWN, SpecialTokens
from rampcli.errors import RampcliError
from rampcli.files.checksums import page_sums
from rampcli.models.decoder import Decoder
from rampcli.parallel.ranks import (
    RankError,
    gather_from_all_ranks,
    on_all_ranks,
    use_device,
)
from rampcli.runs.directory import ASIDE, RunDirectory
from rampcli.runs.manifest import (
    MANIFEST,
    remove_checkpoints_from,
    remove_old_checkpoints,
)

CHECKPOINT_FORMAT = 1
SLOWEST_SAVE = timedelta(hours=12)
"""How long ranks wait for the slowest one to write its files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """A checkpoint that has just become complete.

    Attributes:
        save_s: seconds from the request until the checkpoint was complete.
        stall_s: seconds of these during which training waited.
    """

    step: int
    consumed_samples: int
    save_s: float
    stall_s: float


OnSaved = Callable[[SavedCheckpoint], None]
"""Called once a checkpoint is complete."""


class Checkpoints:
    """Saves a model, its optimisers and averages of its weights. Every rank makes every call.

    Ranks communicate in a process group of their own over gloo: one rank may write for much longer
    than another, and NCCL would end the run.

    With `in_background`, training continues during a save. A thread on each rank copies the tensors
    to host memory and writes them. Only the next optimiser step, which changes the tensors, waits
    for the copy. Whoever changes averages or weights otherwise calls `wait_for_copy` before.

    Args:
        averages_at: averages of the weights to save after some consumed samples.
        keep_last: complete checkpoints to keep.
        facts: what the checkpoints belong to, for their manifests: `settings`, `corpus`,
            `world_size`.
        tokenizer: content of the tokenizer's file, stored in every checkpoint, or None.
        saved_step: step of the checkpoint that was loaded, which is not saved again.
    """

    def __init__(
        self,
        run: RunDirectory,
        parts: Sequence[Decoder],
        optimizers: Sequence[torch.optim.Optimizer],
        averages_at: AveragesAt = lambda _: {},
        *,
        keep_last: int,
        facts: dict[str, Any],
        tokenizer: str | None = None,
        special_tokens: SpecialTokens = NONE_KNOWN,
        in_background: bool = False,
        saved_step: int | None = None,
    ) -> None:
        self.run = run
        self.parts = parts
        self.optimizers = optimizers
        self.averages_at = averages_at
        self.keep_last = keep_last
        self.facts = facts
        self.texts = (
            {}
            if tokenizer is None
            else {TOKENIZER: tokenizer, SPECIAL_TOKENS: special_tokens.to_json()}
        )
        self.stall_s = 0.0
        self._step = saved_step
        self._saving: Future[None] | None = None
        self._copying: Future[list[Shard]] | None = None
        self._copies = HostCopies()
        self._group = dist.new_group(backend="gloo", timeout=SLOWEST_SAVE)
        self._threads = (
            ThreadPoolExecutor(
                2,
                thread_name_prefix="checkpoint",
                initializer=use_device,
                initargs=(next(parts[0].parameters()).device,),
            )
            if in_background
            else None
        )
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: self.wait_for_copy())

    def save(
        self, state: TrainingState, *, is_last: bool = False, on_saved: OnSaved = lambda _: None
    ) -> None:
        """Saves a checkpoint, in the background if so chosen, and removes old ones.

        A step that was loaded or saved last is not saved again.

        Args:
            is_last: return only when the checkpoint is complete, because training is over.
            on_saved: called on every rank once the checkpoint is complete, possibly by another
                thread.

        Raises:
            RampcliError: this checkpoint or the one before it cannot be written, for example
                because the disk is full. Older checkpoints are unchanged.
        """
        began = time.perf_counter()
        self.wait()
        if state.step == self._step:
            return
        self._step = state.step
        saved = partial(SavedCheckpoint, step=state.step, consumed_samples=state.consumed_samples)
        manifest = {"format": CHECKPOINT_FORMAT, **asdict(state), **self.facts}
        averages = self.averages_at(state.consumed_samples)
        tensors = list(named_tensors(self.parts, self.optimizers, averages, copies=False))
        if self._threads is None or is_last:
            self._write(manifest, lambda: shards_to_save(tensors))
            save_s = time.perf_counter() - began
            on_saved(saved(save_s=save_s, stall_s=save_s))
            return

        def write(copies: Future[list[Shard]]) -> None:
            self._write(manifest, copies.result)
            save_s = time.perf_counter() - began
            on_saved(saved(save_s=save_s, stall_s=self.stall_s))

        self.stall_s = 0.0
        self._copying = self._threads.submit(self._copies.prepare(tensors))
        self._saving = self._threads.submit(write, self._copying)
        self.stall_s += time.perf_counter() - began

    @property
    def has_failed(self) -> bool:
        """Whether the background save has failed on this rank. If so, `wait` raises the error."""
        return (
            self._saving is not None
            and self._saving.done()
            and self._saving.exception() is not None
        )

    def wait(self) -> None:
        """Waits until no checkpoint is being saved.

        Raises:
            RampcliError: the background save failed.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def wait_for_copy(self) -> None:
        """Waits until the tensors of the save in progress may change."""
        copying, self._copying = self._copying, None
        if copying is not None:
            began = time.perf_counter()
            copying.exception()  # waits without raising: the background save raises the error
            self.stall_s += time.perf_counter() - began

    def _write(self, manifest: dict[str, Any], shards: Callable[[], list[Shard]]) -> None:
        """Writes a checkpoint. A failure on one rank is raised on all of them.

        Args:
            manifest: the manifest without its `files`.
            shards: returns the shards that this rank saves.
        """
        final = self.run.checkpoint_folder(manifest["step"])
        aside = final.with_name(f"{final.name}{ASIDE}")
        is_first = dist.get_rank() == 0
        on_all = partial(on_all_ranks, group=self._group)
        try:
            on_all(lambda: self._make_empty_folder(aside) if is_first else None)
            share = on_all(lambda: write_shards(aside, shards(), rank=dist.get_rank()))
            shares = gather_from_all_ranks(share, self._group)
            manifest["files"] = {name: facts for each in shares for name, facts in each.items()}
            on_all(lambda: self._complete(aside, final, manifest) if is_first else None)
        except RankError as error:
            if is_first:
                # Make room on a full disk, so that the failure can be recorded. If this fails too,
                # the error of the save says more, and the next save removes the folder.
                with suppress(OSError, RampcliError):
                    self.run.remove_tree(aside)
            raise RampcliError(
                f"cannot save the checkpoint of step {manifest['step']}: {error}",
                remedy="free disk space or grant write permission in the run directory;"
                " then the same command resumes from the last checkpoint",
            ) from error

    def _make_empty_folder(self, folder: Path) -> None:
        """Makes an empty folder, and its parents in case a user has deleted them."""
        self.run.remove_tree(folder)
        self.run.make_folder(folder)

    def _complete(self, aside: Path, final: Path, manifest: dict[str, Any]) -> None:
        """Completes a checkpoint whose tensors are written, and removes those that it replaces."""
        for name, text in self.texts.items():
            content = text.encode()
            self.run.replace(aside / name, content)
            manifest["files"][name] = {"bytes": len(content), "sums": page_sums(content)}
        self.run.write_json(aside / MANIFEST, manifest)
        self.run.flush(aside)
        remove_checkpoints_from(self.run, manifest["step"])
        self.run.rename(aside, final)
        remove_old_checkpoints(self.run, keep_last=self.keep_last)
