"""Checkpoints: tensors through torch.distributed.checkpoint's safetensors storage, the rest in a JSON manifest. No pickle.

A checkpoint is written aside, flushed, given its manifest and renamed: it is complete or absent. It loads at any world size.
"""

import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as load_tensors
from torch.distributed.checkpoint.state_dict_saver import save as save_tensors

from rampcli.engine.ranks import from_rank_0
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, RampcliError
from rampcli.models.decoder import Decoder
from rampcli.run_directory import MANIFEST, RunDirectory, flush, sha256, write_json

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
    """Saves and loads a model, of which each rank has its parts, and its optimisers. Every rank takes part in every call."""

    def __init__(
        self,
        run: RunDirectory,
        parts: Sequence[Decoder],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        keep_last: int,
        facts: dict[str, Any],
        tokenizer: str | None = None,
    ) -> None:
        """`facts` go into every manifest: what the checkpoint belongs to; the tokenizer's file into every checkpoint."""
        self.run = run
        self.parts = parts
        self.optimizers = optimizers
        self.keep_last = keep_last
        self.facts = facts
        self.tokenizer = tokenizer

    def save(self, state: TrainingState) -> None:
        """Write the checkpoint of `state`, and delete those beyond the last `keep_last`.

        Raises:
            RampcliError: the disk is full, say. Older checkpoints are as they were.
        """
        final = self.run.checkpoint_folder(state.step)
        if from_rank_0((final / MANIFEST).is_file()):
            return
        aside = final.with_name(f"{final.name}.tmp")
        try:
            if dist.get_rank() == 0:
                shutil.rmtree(aside, ignore_errors=True)
                aside.mkdir(parents=True)
            dist.barrier()
            save_tensors(self._tensors(copies=False), storage_writer=HuggingFaceStorageWriter(str(aside), save_distributed=True))
            if dist.get_rank() == 0:
                if self.tokenizer is not None:
                    (aside / TOKENIZER).write_text(self.tokenizer, encoding="utf-8")
                for path in aside.iterdir():
                    flush(path)
                files = {path.name: {"bytes": path.stat().st_size, "sha256": sha256(path)} for path in sorted(aside.iterdir())}
                write_json(aside / MANIFEST, {"format": FORMAT, **asdict(state), **self.facts, "files": files})
                flush(aside)
                aside.rename(final)
                flush(final.parent)
                self.run.remove_checkpoints(keep_last=self.keep_last)
                self.run.append_event("checkpoint", step=state.step, consumed_samples=state.consumed_samples)
        except (OSError, CheckpointException) as error:
            shutil.rmtree(aside, ignore_errors=True)  # on a full disk, this is the room in which to say so
            raise RampcliError(
                f"cannot save the checkpoint of step {state.step}: {_reason(error)}",
                remedy="room and permission in the run directory; then the same command goes on from the last checkpoint",
            ) from error
        dist.barrier()

    def load_newest(self) -> TrainingState:
        """Load the newest checkpoint that is whole; the initial state where there is none at all.

        Raises:
            ForeignCheckpointError: it was trained on another corpus.
            NoCheckpointError: there are checkpoints, but none is whole.
        """
        step = self._newest_whole_step()
        if step is None:
            return TrainingState()
        checkpoint = next(found for found in self.run.complete_checkpoints() if found.step == step)
        if checkpoint.manifest["corpus"] != self.facts["corpus"]:
            raise ForeignCheckpointError(
                f"{checkpoint.path} was trained on another corpus than this machine has", remedy="another name= or run_dir="
            )
        if step > 0:
            self._make_optimizer_state()
        load_tensors(self._tensors(copies=True), storage_reader=HuggingFaceStorageReader(str(checkpoint.path)))  # in place
        recent = [(loss, norm) for loss, norm in checkpoint.manifest.get("recent", [])]
        return TrainingState(
            step=step, consumed_samples=checkpoint.consumed_samples, order_hash=checkpoint.manifest["order_hash"], recent=recent
        )

    def _tensors(self, *, copies: bool) -> dict[str, Tensor]:
        """The weights and the state of the optimisers, by names that do not depend on how the model is split.

        Args:
            copies: also those that another part of the model has, and saves.
        """
        states = {parameter: state for optimizer in self.optimizers for parameter, state in optimizer.state.items()}
        tensors = {}
        for part in self.parts:
            for name, parameter in part.named_parameters() if copies else part.own_parameters().items():
                tensors[f"{MODEL}{name}"] = parameter.detach()
                tensors |= {f"{OPTIMIZER}{name}.{key}": value for key, value in states.get(parameter, {}).items()}
        return tensors

    def _make_optimizer_state(self) -> None:
        """Optimisers have no state before their first step; one along no gradient, of no size, makes it."""
        for optimizer in self.optimizers:
            rates = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] = 0.0
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
            optimizer.zero_grad()
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _newest_whole_step(self) -> int | None:
        """Rank 0 reads and checks; the others are told."""
        step = -1
        if dist.get_rank() == 0:
            found = self.run.complete_checkpoints()
            for checkpoint in reversed(found):
                damage = checkpoint.damage()
                if damage is None:
                    step = checkpoint.step
                    break
                self.run.append_event("fault", reason=f"{checkpoint.path.name} is damaged: {damage}")
            else:
                step = -2 if found else -1
        step = from_rank_0(step)
        if step == -2:
            raise NoCheckpointError(
                f"every checkpoint in {self.run.checkpoints} is damaged", remedy="another name= or run_dir= to start anew"
            )
        return None if step == -1 else step


def _reason(error: BaseException) -> str:
    if isinstance(error, CheckpointException):
        return "; ".join(sorted({str(failure[0]) for failure in error.failures.values()}))
    return str(error)
