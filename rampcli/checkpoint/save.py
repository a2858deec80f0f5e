"""Checkpoints: tensors in safetensors files, the rest in a JSON manifest. No pickle.

A checkpoint is written aside, flushed, given its manifest and renamed: it is complete or absent. It loads at any world size.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from rampcli.checkpoint.shards import Block, HostCopies, block_of, blocks_to_save
from rampcli.checkpoint.tensor_files import read_blocks, write_blocks
from rampcli.checksums import page_sums
from rampcli.config import snapshot
from rampcli.errors import (
    DamagedFileError,
    ForeignCheckpointError,
    NoCheckpointError,
    RampcliError,
    reason_of,
)
from rampcli.models.decoder import Decoder
from rampcli.parallel.ranks import from_all_ranks, from_rank_0
from rampcli.run_directory import MANIFEST, Checkpoint, RunDirectory

FORMAT = 1
MODEL, OPTIMIZER = "model.", "optimizer.state."
TOKENIZER = "tokenizer.json"


@dataclass(slots=True)
class TrainingState:
    """Where a run is.

    Attributes:
        step: optimiser steps.
        consumed_samples: samples that they have read.
        order_hash: hash of the order in which they were read; None: not audited.
        recent: loss and gradient norm of the last steps, where later ones are compared with them.
    """

    step: int = 0
    consumed_samples: int = 0
    order_hash: str | None = None
    recent: list[tuple[float, float]] = field(default_factory=list)


class Checkpoints:
    """Saves and loads a model, of which each rank has its parts, and its optimisers. Every rank takes part in every call.

    With `in_background`, training goes on while a checkpoint is written. A thread on each rank copies what is to be saved into host
    memory, writes it, and agrees with the others in a process group of their own. An optimiser's step, which changes what is being
    copied, waits for the copy; nothing else does.
    """

    def __init__(
        self,
        run: RunDirectory,
        parts: Sequence[Decoder],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        keep_last: int,
        facts: dict[str, Any],
        tokenizer: str | None = None,
        in_background: bool = False,
    ) -> None:
        """`facts` go into every manifest: what the checkpoint belongs to; the tokenizer's file into every checkpoint."""
        self.run = run
        self.parts = parts
        self.optimizers = optimizers
        self.keep_last = keep_last
        self.facts = facts
        self.tokenizer = tokenizer
        self.stall_s = 0.0  # that training has waited for the checkpoint that is being saved
        self._step: int | None = (
            None  # of that which was loaded, or is being saved, or was saved last
        )
        self._saving: Future[None] | None = None
        self._copying: Future[list[Block]] | None = None
        self._copies = HostCopies()
        self._group = dist.new_group(backend="gloo") if in_background else None
        self._threads = (
            ThreadPoolExecutor(2, thread_name_prefix="checkpoint") if in_background else None
        )
        for optimizer in optimizers:
            optimizer.register_step_pre_hook(lambda *_: self._wait_for_copy())

    def save(self, state: TrainingState, *, is_last: bool = False) -> None:
        """Write the checkpoint of `state`, and delete those beyond the last `keep_last`; in the background, where that is chosen.

        Args:
            state: where the run is.
            is_last: nothing is trained any more: return once it is written.

        Raises:
            RampcliError: this checkpoint, or the one before it, cannot be written: the disk is full, say. Older ones are as they were.
        """
        began = time.perf_counter()
        self.wait()
        if state.step != self._step:
            self._step = state.step
            manifest = {"format": FORMAT, **asdict(state), **self.facts}
            if self._threads is None or is_last:
                self._write(manifest, lambda: blocks_to_save(self._tensors(copies=False)), began)
            else:
                self.stall_s = 0.0
                self._copying = self._threads.submit(
                    self._copies.of(list(self._tensors(copies=False)))
                )
                self._saving = self._threads.submit(
                    self._write, manifest, self._copying.result, began, trains=True
                )
                self.stall_s += time.perf_counter() - began

    @property
    def has_failed(self) -> bool:
        """Whether this rank knows that the checkpoint that is being saved cannot be; `wait` says why, on every rank."""
        return (
            self._saving is not None
            and self._saving.done()
            and self._saving.exception() is not None
        )

    def wait(self) -> None:
        """Return once no checkpoint is being saved.

        Raises:
            RampcliError: as `save`.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _wait_for_copy(self) -> None:
        copying, self._copying = self._copying, None
        if copying is not None:
            began = time.perf_counter()
            copying.exception()
            self.stall_s += time.perf_counter() - began

    def _write(
        self,
        manifest: dict[str, Any],
        blocks: Callable[[], list[Block]],
        began: float,
        *,
        trains: bool = False,
    ) -> None:
        """Write a checkpoint, step by step with the other ranks: what one cannot do ends it on all of them.

        Args:
            manifest: without its `files`.
            blocks: gives this rank's.
            began: when the checkpoint was asked for, by `time.perf_counter`.
            trains: training goes on meanwhile.
        """
        final = self.run.checkpoint_folder(manifest["step"])
        aside = final.with_name(f"{final.name}.tmp")
        is_first = dist.get_rank() == 0
        try:
            self._together(lambda: self._make_anew(aside) if is_first else {})
            shares = self._together(lambda: write_blocks(aside, blocks(), rank=dist.get_rank()))
            manifest["files"] = {name: facts for share in shares for name, facts in share.items()}
            self._together(lambda: self._complete(aside, final, manifest) if is_first else {})
        except _CannotSave as error:
            if is_first:
                with suppress(
                    OSError, RampcliError
                ):  # why the save failed says more; the next save removes what this one left
                    self.run.remove_tree(
                        aside
                    )  # on a full disk, this is the room in which to say so
            raise RampcliError(
                f"cannot save the checkpoint of step {manifest['step']}: {error}",
                remedy="room and permission in the run directory; then the same command goes on from the last checkpoint",
            ) from error
        if is_first:
            save_s = time.perf_counter() - began
            times = {
                "save_s": round(save_s, 3),
                "stall_s": round(self.stall_s if trains else save_s, 3),
            }
            self.run.append_event(
                "checkpoint",
                step=manifest["step"],
                consumed_samples=manifest["consumed_samples"],
                **times,
            )

    def _together(self, work: Callable[[], dict[str, Any]]) -> list[dict[str, Any]]:
        """Do this rank's part of something; what all ranks have to say of theirs.

        Raises:
            _CannotSave: one of them failed, for whatever reason: none is left waiting for it.
        """
        cause: Exception | None = None
        try:
            said = {"did": work()}
        except Exception as error:
            said, cause = {"failed": {"reason": reason_of(error)}}, error
        everyone = from_all_ranks(said, self._group)
        if reasons := sorted({each["failed"]["reason"] for each in everyone if "failed" in each}):
            raise _CannotSave("; ".join(reasons)) from cause
        return [each["did"] for each in everyone]

    def _make_anew(self, folder: Path) -> dict[str, Any]:
        """Make an empty folder, also if someone has deleted the folder above it."""
        self.run.remove_tree(folder)
        self.run.make_folder(folder)
        return {}

    def _complete(self, aside: Path, final: Path, manifest: dict[str, Any]) -> dict[str, Any]:
        """Let what is written become the checkpoint."""
        if self.tokenizer is not None:
            content = self.tokenizer.encode()
            self.run.replace(aside / TOKENIZER, content)
            manifest["files"][TOKENIZER] = {"bytes": len(content), "sums": page_sums(content)}
        self.run.write_json(aside / MANIFEST, manifest)
        self.run.flush(aside)
        self.run.remove_checkpoints_from(manifest["step"])
        self.run.rename(aside, final)
        self.run.remove_checkpoints(keep_last=self.keep_last)
        return {}

    def load_newest(self) -> TrainingState:
        """Load the newest checkpoint that is whole, and say which are not. Returns the initial state if there is no checkpoint at all.

        Raises:
            ForeignCheckpointError: it was trained on another corpus, or with other settings.
            NoCheckpointError: there are checkpoints, but none is whole.
        """
        readable, unreadable = self.run.read_checkpoints()
        for error in unreadable if dist.get_rank() == 0 else ():
            self.run.append_event("fault", reason=error.message)
        found = {checkpoint.step: checkpoint for checkpoint in readable}
        step = from_rank_0(max(found, default=-1))
        if step == -1 and not from_rank_0(len(unreadable)):
            return TrainingState()
        while step != -1:
            checkpoint = found.get(step)
            if checkpoint is not None:
                self._check_belonging(checkpoint)
            if self._is_whole(checkpoint) and checkpoint is not None:
                self._step = step
                recent = [(loss, norm) for loss, norm in checkpoint.manifest.get("recent", [])]
                order_hash = checkpoint.manifest["order_hash"]
                return TrainingState(
                    step=step,
                    consumed_samples=checkpoint.consumed_samples,
                    order_hash=order_hash,
                    recent=recent,
                )
            step = from_rank_0(max((earlier for earlier in found if earlier < step), default=-1))
        raise NoCheckpointError(
            f"every checkpoint in {self.run.checkpoints} is damaged",
            remedy="another name= or run_dir= to start anew",
        )

    def _check_belonging(self, checkpoint: Checkpoint) -> None:
        snapshot.check_settings(
            checkpoint.manifest["settings"], self.facts["settings"], run_dir=self.run.path
        )
        if checkpoint.manifest["corpus"] != self.facts["corpus"]:
            raise ForeignCheckpointError(
                f"{checkpoint.path} was trained on another corpus than this machine has",
                remedy="another name= or run_dir=",
            )

    def _is_whole(self, checkpoint: Checkpoint | None) -> bool:
        """Load a checkpoint in place, while each rank compares its share of the files with their checksums.

        Every rank returns the same. `checkpoint` is None on a rank that does not see a checkpoint that rank 0 sees.
        """
        damage = "a rank cannot read its manifest" if checkpoint is None else self._load(checkpoint)
        damages = [
            each["damage"]
            for each in from_all_ranks({"damage": damage}, self._group)
            if each["damage"] is not None
        ]
        if damages and dist.get_rank() == 0 and checkpoint is not None:
            self.run.append_event(
                "fault", reason=f"{checkpoint.path.name} is damaged: {damages[0]}"
            )
        return not damages

    def _load(self, checkpoint: Checkpoint) -> str | None:
        """Load this rank's part, and returns what is wrong with the checkpoint, or None."""
        if checkpoint.step > 0:
            self._make_optimizer_state()
        names, rank, ranks = sorted(checkpoint.files), dist.get_rank(), dist.get_world_size()
        mine = [name for number, name in enumerate(names) if number * ranks // len(names) == rank]
        try:
            damage = checkpoint.damage(by_checksum=False)
            if damage is None:
                blocks = [block_of(name, tensor) for name, tensor, _ in self._tensors(copies=True)]
                read_blocks(checkpoint.path, checkpoint.files, blocks, to_check=mine)
        except (DamagedFileError, OSError) as error:
            return reason_of(error)
        return damage

    def _tensors(self, *, copies: bool) -> Iterator[tuple[str, Tensor, Tensor]]:
        """The weights and the state of the optimisers, by names that do not depend on how the model is split, with their parameters.

        Args:
            copies: also those that another part of the model has, and saves.
        """
        states = {
            parameter: state
            for optimizer in self.optimizers
            for parameter, state in optimizer.state.items()
        }
        for part in self.parts:
            for name, parameter in (
                part.named_parameters() if copies else part.own_parameters().items()
            ):
                yield f"{MODEL}{name}", parameter, parameter
                for key, value in states.get(parameter, {}).items():
                    yield f"{OPTIMIZER}{name}.{key}", value, parameter

    def _make_optimizer_state(self) -> None:
        """A parameter has no state before its first step; one along no gradient, of no size, makes it. One gradient at a time is held."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                rate, group["lr"] = group["lr"], 0.0
                for parameter in group["params"]:
                    if parameter not in optimizer.state:
                        parameter.grad = torch.zeros_like(parameter)
                        optimizer.step()
                        parameter.grad = None
                group["lr"] = rate


class _CannotSave(Exception):
    """The reasons of all ranks that have one."""
