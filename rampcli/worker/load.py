"""Builds the model of this rank and loads the newest checkpoint, or the weights to start from."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from rampcli.checkpoint.compatibility import check_resumable, merge_facts, phase_facts
from rampcli.checkpoint.load import load_newest, open_run, read_weights
from rampcli.checkpoint.save import Checkpoints
from rampcli.checkpoint.starting_weights import check_starting_weights, is_run
from rampcli.checkpoint.state import Averages, TrainingState
from rampcli.config import snapshot
from rampcli.data.special_tokens import SpecialTokens
from rampcli.errors import RampcliError
from rampcli.models.decoder import Decoder
from rampcli.models.initialize import WeightFolder
from rampcli.parallel.mesh import Meshes
from rampcli.parallel.ranks import broadcast_from_rank_0, gather_from_all_ranks
from rampcli.planning.run_plan import Resolved, ResolvedPhase
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import complete_checkpoints
from rampcli.settings.config import Config
from rampcli.train.average import WeightAverage, begun
from rampcli.train.build import build_parts
from rampcli.train.optimizers import build_optimizers, check_coupled


@dataclass(frozen=True, kw_only=True, slots=True)
class Loaded:
    """A model and its optimisers with the newest checkpoint loaded.

    Attributes:
        tokenizer: contents of tokenizer.json, if this rank reads data.
        special_tokens: special tokens of the data.
        averages: averages of the weights, by setting of the section `average`.
    """

    parts: list[Decoder]
    optimizers: Sequence[torch.optim.Optimizer]
    state: TrainingState
    checkpoints: Checkpoints
    tokenizer: str | None
    special_tokens: SpecialTokens
    averages: Mapping[str, WeightAverage]


def load_model_and_state(
    resolved: Resolved,
    phase: ResolvedPhase,
    run: RunDirectory,
    meshes: Meshes,
    device: torch.device,
    *,
    fingerprints: tuple[str, ...] | None,
    tokenizer: str | None,
    special_tokens: SpecialTokens,
) -> Loaded:
    """Builds the model and its optimisers, and loads the newest checkpoint. Every rank calls this.

    Args:
        phase: the phase of the run that goes on.
        fingerprints: of the data that this rank reads, or None if another rank reads for it.
    """
    config = phase.config
    if broadcast_from_rank_0(not complete_checkpoints(run)):
        parts = build_initial_model(config, meshes, device, run=run)
    else:
        parts = build_parts(config, meshes, device, filled=False)
    optimizers = build_optimizers(parts, config.optim)
    check_coupled(optimizers, config)
    settings = snapshot.identity(config)
    corpus = agreed_fingerprints(fingerprints)
    averages = {kind: WeightAverage(parts, rule) for kind, rule in resolved.averages().items()}

    def averages_at(consumed_samples: int) -> Averages:
        tokens = resolved.plan.tokens_at(consumed_samples)
        return {kind: one.values for kind, one in begun(averages, tokens).items()}

    check = partial(check_resumable, resolved=resolved, corpora={phase.plan.number: corpus})
    state = load_newest(run, parts, optimizers, averages_at, check=check)
    check_same_phase(resolved, phase, run, state)
    if dist.get_rank() == 0:
        run.drop_rows_after(state.step)
    facts = phase_facts(phase)
    checkpoints = Checkpoints(
        run,
        parts,
        optimizers,
        averages_at,
        keep_last=config.checkpoint.keep_last,
        facts={
            "settings": settings,
            "corpus": corpus[0],
            "world_size": dist.get_world_size(),
            "started_from": starting_step(config, run),
            **merge_facts(resolved),
            **({} if facts is None else {"phase": facts}),
        },
        tokenizer=tokenizer,
        special_tokens=special_tokens,
        in_background=config.checkpoint.async_,
        saved_step=state.step,
    )
    return Loaded(
        parts=parts,
        optimizers=optimizers,
        state=state,
        checkpoints=checkpoints,
        tokenizer=tokenizer,
        special_tokens=special_tokens,
        averages=averages,
    )


def check_same_phase(
    resolved: Resolved, phase: ResolvedPhase, run: RunDirectory, state: TrainingState
) -> None:
    """Checks that these processes train the phase of the checkpoint that they have loaded.

    Raises:
        RampcliError: a newer checkpoint is damaged, and the loaded one is of an earlier phase.
    """
    of_state = resolved.at(state.consumed_samples)
    if of_state.plan.number == phase.plan.number:
        return
    damaged = [str(one.path) for one in complete_checkpoints(run) if one.step > state.step]
    raise RampcliError(
        f"the checkpoints after step {state.step} are damaged, and that step is in phase"
        f" {of_state.name}, not in {phase.name}",
        remedy=f"rm -r {shlex.join(damaged)}; then the same command resumes from step {state.step}",
    )


def agreed_fingerprints(fingerprints: tuple[str, ...] | None) -> tuple[str, ...]:
    """Returns the fingerprints of the corpora after checking that all ranks found the same.

    A rank has None if another rank reads for it.

    Raises:
        RampcliError: the fingerprints differ.
    """
    ranks = gather_from_all_ranks({"fingerprints": fingerprints})
    agreed, *others = {tuple(rank["fingerprints"]) for rank in ranks if rank["fingerprints"]}
    if others:
        raise RampcliError(
            "the hosts do not read the same corpora",
            remedy="the same files, with the same names, on all of them",
        )
    return agreed


def starting_step(config: Config, run: RunDirectory) -> int | None:
    """Returns the step of the run in `model.init_from` whose weights a run has started from.

    None if it has not started from a run, or an earlier version did not record the step.
    """
    if saved := complete_checkpoints(run):
        step: int | None = saved[-1].manifest.get("started_from")
        return step
    folder = config.model.init_from
    if folder is None or not is_run(Path(folder).expanduser()):
        return None
    return open_run(Path(folder).expanduser(), step=None)[1].step


def build_initial_model(
    config: Config,
    meshes: Meshes,
    device: torch.device,
    *,
    step: int | None = None,
    run: RunDirectory | None = None,
) -> list[Decoder]:
    """Returns this rank's parts of the model with the weights that the run starts from.

    Args:
        step: step of the run in `model.init_from`; None for its newest checkpoint.
        run: rank 0 records there which tensors of `model.init_from` are not used.

    Raises:
        UsageError: `model.init_from` holds another model.
        NoCheckpointError: it is a run without a complete checkpoint.
    """
    folder = check_starting_weights(config)
    if folder is None:
        return build_parts(config, meshes, device)
    if not is_run(folder):
        weights = WeightFolder(folder, config.model, sequence_length=config.data.sequence_length)
        if weights.unused and run is not None and dist.get_rank() == 0:
            run.append_event("unused_weights", reason=weights.describe_unused())
        return build_parts(config, meshes, device, weights.rows_of)
    _, checkpoint = open_run(folder, step=step)
    parts = build_parts(config, meshes, device, filled=False)
    for part in parts:
        read_weights(checkpoint, dict(part.named_parameters()))
    return parts
