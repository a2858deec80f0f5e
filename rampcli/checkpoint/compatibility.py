"""Checks that a checkpoint fits the settings and corpus of a run, or gives it to another run.

World size, mesh and batch sizes may differ: a checkpoint loads on any number of ranks. A checkpoint
of a run in phases belongs to the phase that took its last step. Imports no torch.
"""

import os
from collections.abc import Mapping
from typing import Any

from rampcli.batch.averages import FROM, MERGE, MERGE_KEY, UniformMean
from rampcli.batch.quantities import counted
from rampcli.config import snapshot
from rampcli.config.layers import sources_named
from rampcli.errors import ForeignCheckpointError, NoCheckpointError, set_to, shown
from rampcli.files.guarded_folder import open_to_read
from rampcli.planning.run_plan import Resolved, ResolvedPhase, run_plan
from rampcli.plugins.extensions import OPTIMIZER_KEY
from rampcli.runs.directory import RunDirectory
from rampcli.runs.manifest import MANIFEST, Checkpoint
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.facts import RESULT
from rampcli.settings.phase_keys import UNTIL, phase_key
from rampcli.settings.rl import unit_of

OTHER_RUN_REMEDY = "another name= or run_dir="
MERGED_FROM = "merged_from_token"
"""Fact of a checkpoint's manifest: tokens before the weights that its mean holds."""
PHASES_REMEDY = f"the phases that it was trained with, or {OTHER_RUN_REMEDY}"


def check_resumable(
    checkpoint: Checkpoint, resolved: Resolved, *, corpora: Mapping[int, tuple[str, ...]]
) -> None:
    """Checks that a run may resume from a checkpoint, as `check_compatible` does.

    Args:
        resolved: the run that resumes.
        corpora: fingerprints of the training corpora of each phase, by its number. Those that are
            not open are left out.

    Raises:
        ForeignCheckpointError: it was trained with other settings, or on another corpus, or phases
            up to its own began elsewhere.
    """
    trained = resolved.trained_by(checkpoint.consumed_samples)
    with sources_named(resolved.config):
        _check_phase(checkpoint, resolved)
    with sources_named(trained.config):
        check_compatible(
            checkpoint,
            settings=snapshot.identity(trained.config),
            corpus=corpora.get(trained.plan.number, ()),
        )
    _check_reading(checkpoint, trained)
    with sources_named(resolved.config):
        _check_merge(checkpoint, resolved)


def check_ended_phases(earlier: Resolved, resolved: Resolved, *, consumed_samples: int) -> None:
    """Checks that phases which have ended keep what decides what they have learned.

    Args:
        earlier: the run as it was trained.
        resolved: the run that resumes.
        consumed_samples: progress of the run.

    Raises:
        ForeignCheckpointError: a phase sets something else than what it was trained with.
    """
    for now in resolved.phases:
        if now.plan.end is None or now.plan.end.samples > consumed_samples:
            return
        for then in earlier.phases:
            first = max(then.plan.first.samples, now.plan.first.samples)
            ends = [phase.plan.end for phase in (then, now)]
            if all(end is None or first < end.samples for end in ends):  # they share samples
                _check_same_settings(earlier, then, resolved, now)


def _check_same_settings(
    earlier: Resolved, then: ResolvedPhase, resolved: Resolved, now: ResolvedPhase
) -> None:
    """Checks what a phase of a run sets, or set, against the phase that trained its samples."""
    keys = dict.fromkeys(
        key
        for run, phase in ((earlier, then), (resolved, now))
        for key in run.config.phases.get(phase.name, ())
    )
    before, here = dict(leaves(then.config)), dict(leaves(now.config))
    for key in keys:
        if key != UNTIL and changes(key, RESULT) and before.get(key) != here.get(key):
            raise ForeignCheckpointError(
                f"phase {now.name} has ended, and was trained with {key}={shown(before.get(key))}"
                f" (here {shown(here.get(key))})",
                keys=(phase_key(now.name, key),),
                remedy=f"the settings that it was trained with, or {OTHER_RUN_REMEDY}",
            )


def settings_of_checkpoint(config: Config, checkpoint: Checkpoint) -> Config:
    """Returns the settings with which a run took the last step of a checkpoint.

    Args:
        config: from the snapshot of the run.

    Raises:
        UsageError: the run cannot be planned.
    """
    if not config.phases:
        return config
    planned = run_plan(config, consumed_samples=checkpoint.consumed_samples)
    return planned.trained_by(checkpoint.consumed_samples).config


def merge_facts(resolved: Resolved) -> dict[str, int]:
    """Returns what a checkpoint records of the mean of weights that training computes."""
    rule = resolved.averages().get(MERGE)
    return {MERGED_FROM: rule.first_token} if isinstance(rule, UniformMean) else {}


def phase_facts(phase: ResolvedPhase) -> dict[str, Any] | None:
    """Returns what a checkpoint records of the phase that saves it; None if it has no name."""
    plan, reading = phase.plan, phase.reading
    if plan.name is None:
        return None
    return {
        "name": plan.name,
        "number": plan.number,
        "first_sample": plan.first.samples,
        "first_step": plan.first.steps,
        "first_token": plan.first.tokens,
        "reading": [
            [reading.first_sample],
            *([one.phase, one.corpus, one.samples] for one in reading.corpora),
        ],
    }


def _check_phase(checkpoint: Checkpoint, resolved: Resolved) -> None:
    """Checks that the phase of a checkpoint began where it begins now."""
    trained = resolved.trained_by(checkpoint.consumed_samples)
    saved, now = checkpoint.manifest.get("phase"), phase_facts(trained)
    place = f"{checkpoint.path} was saved"
    if saved is None or now is None:
        number = (saved or now or {"number": 0})["number"]
        if number == 0:  # a first phase reads what a run without phases reads
            return
        with_or_without = ("in", "without") if now is None else ("without", "in")
        had, has = (f"{word} phases" for word in with_or_without)
        raise ForeignCheckpointError(
            f"{place} by a run {had}, which is now {has}", keys=("phases",), remedy=PHASES_REMEDY
        )
    unit = unit_of(resolved.config).removesuffix("s")
    began = _describe_beginning(saved, unit)
    phases = {one.name: facts for one in resolved.phases if (facts := phase_facts(one))}
    begins = {_describe_beginning(facts, unit): name for name, facts in phases.items()}
    if began == _describe_beginning(now, unit):
        return
    place = f"{place} in phase {saved['name']}"
    if began in begins:
        key = phase_key(begins[began], UNTIL)
        raise ForeignCheckpointError(
            f"{place}, at step {checkpoint.step}. Here, {key} ends the phase before that step",
            keys=(key,),
            remedy=[
                set_to(key, f"steps:{checkpoint.step}", note=" or a later end"),
                OTHER_RUN_REMEDY,
            ],
        )
    if saved["name"] in phases:
        begins_now = _describe_beginning(phases[saved["name"]], unit)
        here = f"it begins {begins_now}, because a phase that has ended was changed"
    else:
        here = "no phase begins there"
    raise ForeignCheckpointError(
        f"{place}, which began {began}. Here, {here}",
        keys=("phases",),
        remedy=f"the settings in {checkpoint.path.parents[1] / 'config.yaml'}, or"
        f" {OTHER_RUN_REMEDY}",
    )


def _check_reading(checkpoint: Checkpoint, trained: ResolvedPhase) -> None:
    """Checks that the phase of a checkpoint began where it begins now in its corpora."""
    saved, now = checkpoint.manifest.get("phase"), phase_facts(trained)
    if saved is None or now is None or saved["reading"] == now["reading"]:
        return
    raise ForeignCheckpointError(
        f"{checkpoint.path} was saved in phase {saved['name']}, whose corpora begin elsewhere here,"
        " because phases before it read other samples",
        keys=("phases",),
        remedy=PHASES_REMEDY,
    )


def _check_merge(checkpoint: Checkpoint, resolved: Resolved) -> None:
    """Checks that a checkpoint holds the mean of weights that goes on, if that has begun."""
    first = merge_facts(resolved).get(MERGED_FROM)
    tokens = resolved.plan.tokens_at(checkpoint.consumed_samples)
    if first is None or tokens <= first or checkpoint.manifest.get(MERGED_FROM) == first:
        return
    raise ForeignCheckpointError(
        f"{MERGE_KEY}={resolved.config.average.merge} begins before {checkpoint.path}, after"
        f" {counted(tokens, 'token')}, which holds no mean of the weights from there on",
        keys=(MERGE_KEY,),
        remedy=[
            set_to(MERGE_KEY, f"{FROM}{tokens}", note=" for the weights from here on"),
            set_to(MERGE_KEY, None),
        ],
    )


def _describe_beginning(facts: Mapping[str, Any], unit: str) -> str:
    samples, steps = counted(facts["first_sample"], unit), counted(facts["first_step"], "step")
    if unit == "prompt":
        return f"after {samples} and {steps}"
    return f"after {samples}, {steps} and {counted(facts['first_token'], 'token')}"


def check_compatible(
    checkpoint: Checkpoint, *, settings: Mapping[str, Any], corpus: tuple[str, ...] = ()
) -> None:
    """Checks that a run may resume from a checkpoint.

    Args:
        checkpoint: the checkpoint. Settings that its version did not have count as the default.
            Some settings are not compared if the checkpoint lacks them: those of reinforcement
            learning, the optimiser, and those of an extension, which its name implies.
        settings: `snapshot.identity` of the run's configuration.
        corpus: fingerprints of the run's corpora: the one that checkpoints get, and the one that
            earlier versions gave them. Empty if the corpora are not open.

    Raises:
        ForeignCheckpointError: it was trained with other settings or on another corpus.
    """
    unrecorded = {
        key: value
        for key, value in settings.items()
        if key.startswith("rl.") or key == OPTIMIZER_KEY
    }
    saved = {**snapshot.identity(Config()), **unrecorded, **checkpoint.manifest["settings"]}
    if differing := [key for key in settings if key in saved and saved[key] != settings[key]]:
        shown = [f"{key}={saved[key]} (here {settings[key]})" for key in differing[:3]]
        if len(differing) > 3:
            shown.append("...")
        run_dir = checkpoint.path.parents[1]
        raise ForeignCheckpointError(
            f"the checkpoints in {run_dir} belong to another configuration: {', '.join(shown)}",
            keys=tuple(differing),
            remedy=f"the settings that they were saved with, or {OTHER_RUN_REMEDY}",
        )
    if corpus and checkpoint.manifest["corpus"] not in corpus:
        raise ForeignCheckpointError(
            f"{checkpoint.path} was trained on another corpus than this run reads",
            remedy=f"the corpus of the checkpoint, or {OTHER_RUN_REMEDY}",
        )


def branch_off(checkpoint: Checkpoint, run: RunDirectory, *, settings: Mapping[str, Any]) -> None:
    """Links the files of a checkpoint into another run, or copies them where links do not work.

    The manifest is written last, so an interrupted call leaves no checkpoint.

    Args:
        checkpoint: of a run with the same tensors. It stays as it is.
        run: the other run, whose directory exists.
        settings: `snapshot.identity` of the other run.

    Raises:
        NoCheckpointError: the checkpoint was removed meanwhile, as a run that trains does.
    """
    folder = run.checkpoint_folder(checkpoint.step)
    run.make_folder(folder)
    try:
        for name in checkpoint.files:
            run.remove_file(folder / name)
            try:
                os.link(checkpoint.path / name, folder / name, follow_symlinks=False)
            except FileNotFoundError:
                raise
            except OSError:  # another disk, or one without hard links
                with open_to_read(checkpoint.path / name) as file:
                    run.replace(folder / name, file)
    except FileNotFoundError as error:
        raise NoCheckpointError(
            f"{checkpoint.path} was removed while branches were made from it",
            remedy="the same command again, which takes the newest checkpoint",
        ) from error
    run.write_json(folder / MANIFEST, {**checkpoint.manifest, "settings": dict(settings)})
