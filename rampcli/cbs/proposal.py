"""Batches for a run that has measured its critical batch: the proposed one, beside others."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from rampcli.batch.node_policies import NODES_KEY
from rampcli.batch.plan import ACCUMULATE_KEY, GLOBAL_KEY
from rampcli.batch.ramp import RAMP_KEY, Threshold
from rampcli.batch.step_schedule import SCHEDULE_KEY, to_text
from rampcli.cbs.critical_batch import CriticalBatch, doubling_ramp, share_beyond
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError, shown
from rampcli.planning.batch_rules import retunings_of
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.plugins.extensions import OPTIMIZER
from rampcli.settings.by_key import changes, leaves
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.facts import LEARNING, SAMPLES, TENSORS
from rampcli.settings.optim import ScheduleConfig
from rampcli.settings.optimizers import OPTIMIZERS

PROPOSE = "rampcli propose"
AS_IT_IS, SMALL, LARGE = "as it is", "fixed small", "fixed large"
WITHOUT_RAMP, PROPOSED, SEESAW = "no ramp", "proposed", "Seesaw"


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A batch for the run.

    Attributes:
        name: of the candidate, or of several that are the same.
        words: overrides of the run's settings that train it. Empty if the run is like this.
        found: its plan, or why it does not fit.
        beyond: share of the samples that are beyond the critical batch.
        unknown: share of the samples for which that is unknown.
    """

    name: str
    words: tuple[str, ...]
    found: Resolved | UsageError
    beyond: float | None = None
    unknown: float | None = None


def thresholds_by_name(
    measured: Sequence[CriticalBatch], *, start: int, largest: int, end_sample: int
) -> dict[str, tuple[Threshold, ...]]:
    """Returns the batches to compare. Without measurements, there are only constant ones.

    Without a ramp, the batch is the largest one from `start` on that no measurement is below.

    Args:
        measured: in ascending order of `consumed_samples`.
        start: the smallest batch, in samples per step.
        largest: the largest batch: `start` times a power of two.
        end_sample: samples of the run.
    """
    found = {SMALL: _constant(start), LARGE: _constant(largest)}
    if measured:
        least = min(one.samples for one in measured)
        constant = start
        while 2 * constant <= min(least, largest):
            constant *= 2
        ramp = doubling_ramp(measured, start=start, largest=largest, end_sample=end_sample)
        found |= {WITHOUT_RAMP: _constant(constant), PROPOSED: ramp.thresholds}
    return found


def _constant(global_batch_size: int) -> tuple[Threshold, ...]:
    return (Threshold(0, global_batch_size),)


def plan_candidate(
    name: str,
    words: Sequence[str],
    run: Resolved,
    measured: Sequence[CriticalBatch],
    *,
    couplings: Sequence[str] = (),
    is_retuned: bool = True,
) -> Candidate:
    """Returns a candidate with its plan, and with the settings that are tied to its batch.

    Args:
        words: overrides of the run's settings. Of several for one setting, the last one applies.
        run: whose settings are those `as_recipe` returns, and whose end is known.
        measured: in ascending order of `consumed_samples`.
        couplings: overrides that let settings follow a batch that grows.
        is_retuned: whether settings that are tied to the batch follow it.
    """
    words = _changing({_key_of(word): word for word in words}.values(), run.config)
    try:
        found = _resolved(run, [*words, *couplings])
        retunings = retunings_of(found, run.config) if is_retuned else ()
        words += [
            *(couplings if len(found.plan.ramp.thresholds) > 1 else ()),
            *(word for one in retunings for word in one.words()),
        ]
        found = _resolved(run, words)
    except UsageError as error:
        return Candidate(name=name, words=tuple(words), found=error)
    end = found.plan.end_sample
    assert end is not None
    beyond, unknown = share_beyond(found.plan.stages, measured, end_sample=end)
    if dict(leaves(found.config)) == dict(leaves(run.config)):
        words = []
    return Candidate(name=name, words=tuple(words), found=found, beyond=beyond, unknown=unknown)


def _resolved(run: Resolved, words: Sequence[str]) -> Resolved:
    stack = apply_overrides(run.config, words, place=PROPOSE)
    return resolve(stack, read_files=lambda _: run.phases[0].files)


def batch_words(thresholds: Sequence[Threshold], run: Resolved) -> list[str]:
    """Returns the overrides that give a run these batches and its samples.

    A constant batch has the nodes of the stage with the largest batch up to it.
    """
    if len(thresholds) == 1:
        size = thresholds[0].global_batch_size
        batch = [f"{GLOBAL_KEY}={size}", f"{SCHEDULE_KEY}=null"]
        stages = [stage for stage in run.plan.stages if stage.global_batch_size <= size]
        stage = max(stages or run.plan.stages[:1], key=attrgetter("global_batch_size"))
        batch.append(f"trainer.num_nodes={stage.num_nodes}")
    else:
        batch = [f"{SCHEDULE_KEY}='{to_text(thresholds)}'", f"{GLOBAL_KEY}=null"]
    return [
        *batch,
        *(f"{key}=null" for key in (RAMP_KEY, ACCUMULATE_KEY, NODES_KEY)),
        *("trainer.max_steps=null", "trainer.max_tokens=null"),
        f"trainer.max_samples={run.plan.end_sample}",
    ]


def _key_of(word: str) -> str:
    return word.partition("=")[0]


def _changing(words: Iterable[str], config: Config) -> list[str]:
    """Returns the words without those that leave a setting as it is."""
    values = dict(leaves(config))
    return [word for word in words if word != f"{_key_of(word)}={shown(values[_key_of(word)])}"]


def coupling_words(config: Config, exponent: float | None) -> list[str]:
    """Returns the overrides that let settings follow the batch within a run.

    The learning rate follows with `exponent`. None leaves the run's coupling, or takes 0.5 if it
    has none. AdamW's second decay rate keeps its half-life in tokens. The weight decay keeps
    AdamW's timescale, for which no rule is known with Muon.
    """
    words = []
    if exponent is not None:
        words.append(f"{ScheduleConfig.batch_coupling}={exponent:g}")
    elif config.schedule.batch_coupling == "none":
        words.append(f"{ScheduleConfig.batch_coupling}=sqrt")
    if config.optim.optimizer in OPTIMIZERS:  # in each of them, AdamW has some parameters
        words.append("schedule.beta2_coupling=half_life")
    if config.optim.optimizer == "adamw":
        words.append("schedule.weight_decay_coupling=timescale")
    return words


def largest_batch(
    run: Resolved, measured: Sequence[CriticalBatch], *, start: int, limit: int | None
) -> int:
    """Returns the largest batch to compare: the largest doubling of `start` that a limit allows.

    Args:
        limit: in samples. None stands for the largest batch of the run or of the measurements.
    """
    if limit is None:
        sizes = [stage.global_batch_size for stage in run.plan.ramp.stages]
        limit = int(max([*sizes, *(one.samples for one in measured)]))
    largest = start
    while 2 * largest <= limit:
        largest *= 2
    return largest


def differing_keys(one: Config, other: Config) -> list[str]:
    """Returns the settings in which runs measure different things: model, data or optimiser."""
    theirs = dict(leaves(other))
    return [key for key, value in leaves(one) if _is_measured(key) and theirs.get(key) != value]


def _is_measured(key: str) -> bool:
    """Returns whether the critical batch is measured for one value of a setting only.

    Another learning rate or another share of held-out samples leaves it about as it is.
    """
    section = key.partition(".")[0]
    return (
        changes(key, TENSORS | SAMPLES | LEARNING)
        and (section in ("model", "data") or key == OPTIMIZER)
        and key != DataConfig.split
    )
