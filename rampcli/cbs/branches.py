"""The branches of `rampcli cbs`: composed together, linked to the checkpoint, and read again."""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isclose
from typing import Any

from rampcli.cbs.folder import CBS_FOLDER, BranchFolder, branched_samples
from rampcli.cbs.point import BranchPoint, Terms
from rampcli.cbs.results import Branch, add_results
from rampcli.checkpoint.compatibility import branch_off, check_resumable
from rampcli.config import snapshot
from rampcli.config.sweeps import Combination
from rampcli.errors import NoCheckpointError, UsageError
from rampcli.launch import run as launch
from rampcli.launch.files import read_files
from rampcli.launch.start_checks import check
from rampcli.launch.status import Queues, read_status
from rampcli.planning.run_plan import run_plan
from rampcli.report.sweep_plan import SweepRun
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import Checkpoint, complete_checkpoints, newest_checkpoint
from rampcli.runs.record import read_run

DEFAULT_MULTIPLES, DEFAULT_EXPONENT = (1, 2, 4, 8), 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Branches:
    """Checked branches of one checkpoint.

    Attributes:
        checkpoint: where they start, or None if the run has removed it.
        runs: the branches by multiple, in order.
    """

    run: RunDirectory
    folder: BranchFolder
    point: BranchPoint
    checkpoint: Checkpoint | None
    step: int
    terms: Terms
    runs: dict[int, SweepRun] = field(default_factory=dict)

    def link(self) -> None:
        """Makes the run directories of the branches, each with the checkpoint.

        Raises:
            RampcliError: a branch has no checkpoint and cannot get one, or cannot start.
        """
        self.run.refuse_links()
        self.run.make_folder(self.run.path / CBS_FOLDER)
        self.folder.claim()
        branches, consumed = self.runs.values(), self.point.consumed_samples
        for branch in branches:
            if newest_checkpoint(branch.directory) is not None:
                continue
            assert self.checkpoint is not None  # as checked
            launch.write_run_files(branch.directory, branch.resolved, branch.combination.words)
            settings = snapshot.identity(branch.resolved.trained_by(consumed).config)
            branch_off(self.checkpoint, branch.directory, settings=settings)
        self.folder.add({one.combination.folder: one.combination.values for one in branches})
        for branch in branches:
            if not branch.is_complete:
                check(branch.resolved)

    def result(self) -> dict[str, Any]:
        """Returns the content of result.json from what the branches have reached."""
        queues, point, phase = Queues(), self.point, self.point.phase.plan
        branches: dict[int, Branch] = {}
        for multiple, run in self.runs.items():
            batch = multiple * point.global_batch_size
            branches[multiple] = {
                "multiple": multiple,
                "global_batch_size": batch,
                "lr": run.resolved.at(point.consumed_samples).config.optim.lr,
                "run_dir": str(run.directory.path),
                "state": read_status(run.directory, queues).state,
                "steps": self.terms.samples // batch,
                "samples": self.terms.samples,
                **dict.fromkeys(("loss", "difference", "standard_error", "worse_than")),
                **dict.fromkeys(("hours", "gpu_hours")),
            }
        found = {
            multiple: read_run(run.directory)
            for multiple, run in self.runs.items()
            if run.directory.config.is_file()
        }
        facts = add_results(
            branches,
            found,
            end_sample=point.consumed_samples + self.terms.samples,
            sequence_length=phase.sequence_length,
            world_size=point.stage.world_size,
            decays=self.terms.decays,
        )
        if point.is_in_warmup:
            facts["notes"].append("the checkpoint is within the warm-up of the learning rate")
        return {
            "step": self.step,
            "consumed_samples": point.consumed_samples,
            "phase": phase.name,
            "sequence_length": phase.sequence_length,
            "global_batch_size": point.global_batch_size,
            "lr": point.lr,
            "exponent": self.terms.exponent,
            "decays": self.terms.decays,
            "samples": self.terms.samples,
            "samples_left": point.samples_left,
            **facts,
            "branches": list(branches.values()),
        }


def compose_branches(
    run: RunDirectory,
    *,
    at_sample: int | None,
    multiples: Sequence[int] | None,
    tokens: int | None,
    exponent: float | None,
    decays: bool | None,
) -> Branches:
    """Composes and checks the branches of a checkpoint. Nothing is written.

    What is not given is as in an earlier call for the same checkpoint, or the default.

    Args:
        run: the run.
        at_sample: the last checkpoint up to these consumed samples; None is the newest one.
        multiples: batches of the branches, divided by that of the run.
        tokens: fewest tokens of each branch.
        exponent: of the multiple, in the learning rate.
        decays: whether the learning rate of a branch falls.

    Raises:
        UsageError: a branch cannot be trained, or there are branches of other options.
        NoCheckpointError: the run has no such checkpoint.
    """
    folder, checkpoint, recorded = _find(run, at_sample)
    consumed = recorded["consumed_samples"] if checkpoint is None else checkpoint.consumed_samples
    planned = run_plan(snapshot.read(run.config), consumed_samples=consumed)
    if checkpoint is not None:
        check_resumable(checkpoint, planned, corpora={})
    point = BranchPoint.at(planned, consumed)
    before = [branch["multiple"] for branch in recorded.get("branches", ())]
    chosen = sorted({*(multiples or before or DEFAULT_MULTIPLES), *before})
    unless = {"exponent": DEFAULT_EXPONENT, "decays": True, **recorded}
    terms = Terms(
        samples=recorded["samples"]
        if recorded and tokens is None
        else point.samples(before or chosen, tokens=tokens),
        exponent=unless["exponent"] if exponent is None else exponent,
        decays=unless["decays"] if decays is None else decays,
    )
    if recorded:
        _check_same(folder, recorded, point, chosen, terms)
    branches = Branches(
        run=run,
        folder=folder,
        point=point,
        checkpoint=checkpoint,
        step=recorded["step"] if checkpoint is None else checkpoint.step,
        terms=terms,
    )
    for multiple in chosen:
        branches.runs[multiple] = _compose(branches, multiple)
    if checkpoint is None:
        _check_started(branches, recorded=before)
    return branches


def _compose(branches: Branches, multiple: int) -> SweepRun:
    combination = Combination(words=(), values={"multiple": str(multiple)})
    resolved, words = branches.point.branch(
        multiple,
        branches.terms,
        run_dir=branches.folder.run_path(combination.folder),
        read_files=read_files,
    )
    newest = newest_checkpoint(RunDirectory(resolved.run_dir))
    return SweepRun(
        combination=Combination(words=tuple(words), values=combination.values),
        resolved=resolved,
        is_complete=launch.is_trained(resolved, newest),
    )


def _find(
    run: RunDirectory, at_sample: int | None
) -> tuple[BranchFolder, Checkpoint | None, dict[str, Any]]:
    """Returns the folder of the branches, their checkpoint and what an earlier call recorded."""
    checkpoints = {one.consumed_samples: one for one in complete_checkpoints(run)}
    places = [*checkpoints]
    if at_sample is not None:  # also those of checkpoints that the run has removed
        places = sorted({*checkpoints, *branched_samples(run)})
    fitting = [place for place in places if at_sample is None or place <= at_sample]
    if not fitting:
        raise NoCheckpointError(
            f"{run.path} has no checkpoint"
            + ("" if not places else f" of {at_sample:,} samples or fewer"),
            remedy=f"--at {places[0]}" if places else "a run that has saved one",
        )
    folder = BranchFolder.of(run, fitting[-1])
    return folder, checkpoints.get(fitting[-1]), folder.read_result() or {}


def _check_started(branches: Branches, *, recorded: Sequence[int]) -> None:
    """Checks that all branches have a checkpoint, as that of the run is gone.

    Args:
        recorded: multiples of an earlier call.
    """
    missing = {
        multiple
        for multiple, branch in branches.runs.items()
        if newest_checkpoint(branch.directory) is None
    }
    if not missing:
        return
    started, kept = {*branches.runs} - missing, newest_checkpoint(branches.run)
    remedies = []
    if missing.isdisjoint(recorded) and len(started) > 1:
        remedies.append(f"--multiples {_as_word(started)}")
    if kept is not None:
        remedies.append(f"--at {kept.consumed_samples}")
    raise NoCheckpointError(
        f"{branches.run.path} has removed its checkpoint after"
        f" {branches.point.consumed_samples:,} samples, from which multiple"
        f" {_as_word(missing)} would start",
        remedy=remedies or "a run that has saved one",
    )


def _as_word(multiples: Iterable[int]) -> str:
    return ",".join(map(str, sorted(multiples)))


def _check_same(
    folder: BranchFolder,
    recorded: Mapping[str, Any],
    point: BranchPoint,
    chosen: Sequence[int],
    wanted: Terms,
) -> None:
    """Checks that branches continue those in a folder, and take whole steps.

    The run gives another batch or rate if it was given another length or schedule since then.

    Args:
        recorded: what an earlier call recorded.
        chosen: multiples of the batch, with those in the folder.
    """
    lr, batch = recorded["lr"], recorded["global_batch_size"]
    if not isclose(lr, point.lr) or batch != point.global_batch_size:
        raise UsageError(
            f"{folder.path} holds branches that began with batch {batch:,} and learning rate"
            f" {lr:.3g}; the run's settings have changed since then, and give batch"
            f" {point.global_batch_size:,} and {point.lr:.3g} there",
            remedy=f"rampcli report {shlex.quote(str(folder.path))}, for their losses",
        )
    terms = Terms(**{name: recorded[name] for name in ("samples", "exponent", "decays")})
    fitting = [one for one in chosen if terms.samples % (one * batch) == 0]
    multiples = f"--multiples {_as_word(fitting)}"
    if terms != wanted:
        rate = "--decay" if terms.decays else "--constant"
        length = terms.samples * recorded["sequence_length"]
        same = f"--tokens {length} --exponent {terms.exponent} {rate}"
        raise UsageError(
            f"{folder.path} holds branches of {terms}, not of {wanted}",
            remedy=[
                same if len(fitting) == len(chosen) else f"{same} {multiples}",
                "--at SAMPLES of another checkpoint",
            ],
        )
    if wrong := [one for one in chosen if one not in fitting]:
        raise UsageError(
            f"--multiples {_as_word(chosen)}: {terms.samples:,} samples, which the branches in"
            f" {folder.path} train on, are no whole number of steps of {wrong[0]} x"
            f" {batch} samples",
            remedy=multiples,
        )
