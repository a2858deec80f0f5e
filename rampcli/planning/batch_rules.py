"""Rules for settings that are tied to the batch, for a batch that is not the recipe's.

The rules are those of pretraining. None is known to hold in reinforcement learning, whose gradients
are noisy for other reasons: the responses to a prompt differ, and rollouts are reused.
"""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from math import sqrt

from rampcli.batch.quantities import shorten
from rampcli.config.layers import Precedence, edited_stack, stack_of
from rampcli.config.phases import sets_batch, sets_rate
from rampcli.config.translate import translate, without_alternatives
from rampcli.errors import ErrorReport
from rampcli.estimate.model_size import model_size
from rampcli.planning.phase_rates import continues_rate
from rampcli.planning.retuning import RETUNE, RetunedSetting, Retuning, TiedSetting
from rampcli.planning.run_plan import Resolved, ResolvedPhase, run_plan
from rampcli.schedule.couplings import coupling_factor
from rampcli.settings.by_key import leaves
from rampcli.settings.config import Config
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.settings.phase_keys import phase_key
from rampcli.settings.rl import is_rl

MOST_FACTOR = 4
"""Widest change of the batch for which the root of it was tried: OLMo 1B in arXiv 2505.23971."""
MOST_BATCH = 4096
"""Largest batch of arXiv 2507.07101, which begins at 1."""
LEAST_BETA2 = 0.5
"""Least beta2 that the rule gives. Below it, the average holds fewer than two steps."""
FEWEST_PARAMETERS, MOST_PARAMETERS = 111e6, 3.3e9
"""Sizes of the smallest and the largest model of arXiv 2505.13738."""
FOLLOWING = ("proposed", "applied")
"""States of a setting that follows its rule."""
NO_RULE = {
    OptimConfig.lr: "no rule is agreed on for Muon: arXiv 2602.03001 takes the square root, arXiv"
    " 2505.02222 finds Muon less sensitive to the batch than AdamW, arXiv 2510.09378 does not",
    OptimConfig.weight_decay: "its rule, arXiv 2505.13738, is one of AdamW",
}
"""What is known of the settings of Muon for which no rule is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Part:
    """The phases of a run whose settings follow one batch: a phase, or those with the run's batch.

    Attributes:
        phase: the phase, or None if the settings are those of the run.
        like: a phase that has the batch.
        config: the settings that apply.
        length: tokens of a sample of the run.
    """

    phase: str | None
    like: ResolvedPhase
    config: Config
    length: int

    @property
    def grows(self) -> bool:
        """Whether the batch grows in place of a decay, after the one that the settings are for."""
        return self.like.config.schedule.decay_style == "seesaw"

    @property
    def samples(self) -> int:
        """The batch in samples: the last one of a ramp or schedule, or the first one of Seesaw."""
        plan = self.like.plan
        return plan.ramp.thresholds[0].global_batch_size if self.grows else plan.global_batch_size

    @property
    def batch(self) -> float:
        """The batch in samples of the run's length."""
        return self.samples * self.like.plan.sequence_length / self.length

    @property
    def own(self) -> frozenset[str]:
        """Settings that the phase sets itself."""
        return frozenset() if self.phase is None else self.like.own

    def state(self, rule: RetunedSetting) -> str:
        """Returns the state of a tied setting."""
        stack = stack_of(self.config)
        if rule.value is None:
            return "unknown"
        if stack.entry(rule.key).source == RETUNE:
            return "applied"
        is_set = rule.key in self.own or stack.precedence(rule.key) > Precedence.EDITED
        return "kept" if is_set else "proposed"


def retunings_of(resolved: Resolved, recipe: Config) -> tuple[Retuning, ...]:
    """Returns how the batches of a run differ from its recipe's: those of the run and its phases.

    There are none in reinforcement learning.

    Raises:
        UsageError: the recipe has no batch of its own.
    """
    if is_rl(resolved.config):
        return ()
    alone = _plan_alone(recipe)
    if is_rl(alone.config):
        return ()
    found: list[Retuning] = []
    changed: frozenset[str] = frozenset()
    for part in _parts(resolved):
        theirs = _part_of_recipe(part, alone)
        if part.batch != theirs.batch or changed:
            found.append(_retuning(part, theirs, alone, changed))
        if part.phase is None and found:
            adapted = [one.key for one in found[0].settings if one.state in FOLLOWING]
            changed = frozenset(adapted) & {OptimConfig.beta2, OptimConfig.weight_decay}
    return tuple(found)


def _parts(resolved: Resolved) -> Iterator[_Part]:
    """Yields the parts of a run: phases with the batch of the run, and each other phase.

    A setting with a coupling is the one at the largest batch, which decides it for all phases.
    """
    run, phases = resolved.config, resolved.phases
    length, schedule = run.data.sequence_length, run.schedule

    def part(phase: ResolvedPhase, *, of_run: bool = False) -> _Part:
        name, config = (None, run) if of_run else (phase.plan.name, phase.config)
        return _Part(phase=name, like=phase, config=config, length=length)

    couplings = (
        schedule.batch_coupling,
        schedule.beta2_coupling,
        schedule.weight_decay_coupling,
    )
    if any(one != "none" for one in couplings):
        yield part(max(phases, key=lambda phase: part(phase).batch), of_run=True)
        return
    shared = [
        phase
        for phase in phases
        if not sets_batch(phase.own) and phase.plan.sequence_length == length
    ]
    if not shared:  # the schedule of the run may still be of one batch
        shared = [phase for phase in phases if not sets_rate(phase.own)]
        shared = shared if len({part(phase).batch for phase in shared}) == 1 else []
    if shared:
        yield part(shared[-1], of_run=True)
    batches = {part(phase).batch for phase in shared}
    yield from (part(phase) for phase in phases if part(phase).batch not in batches)


def _part_of_recipe(part: _Part, recipe: Resolved) -> _Part:
    """Returns the part of the recipe that is compared: its phase of this name, or its last one."""
    *_, last = recipe.phases
    like = next((one for one in recipe.phases if one.plan.name == part.like.plan.name), last)
    length = recipe.config.data.sequence_length
    return _Part(phase=like.plan.name, like=like, config=like.config, length=length)


def _retuning(part: _Part, theirs: _Part, recipe: Resolved, changed: Collection[str]) -> Retuning:
    """Returns how the batch of a part differs from the recipe's.

    Args:
        changed: settings of a phase that would have the values that another batch gives the run.
    """

    def kept(rule: RetunedSetting) -> RetunedSetting:
        if rule.value is not None or rule.key not in changed:
            return rule
        return replace(rule, value=values[rule.key])

    stack, values = stack_of(part.config), dict(leaves(theirs.config))
    length = theirs.like.plan.sequence_length
    return Retuning(
        phase=part.phase,
        batch=part.samples,
        grows=part.grows,
        recipe_batch=theirs.samples,
        recipe_length=None if length == part.like.plan.sequence_length else length,
        settings=tuple(
            TiedSetting(
                **asdict(rule)
                | {
                    "key": phase_key(part.phase, rule.key),
                    "sets": rule.sets and phase_key(part.phase, rule.sets),
                },
                state=part.state(rule),
                recipe=values[rule.key],
                now=stack.entry(rule.key).value,
                set_by=stack.entry(rule.key).place,
            )
            for rule in map(kept, _rules(part, theirs, recipe))
            if rule.value != values[rule.key] or rule.key in changed
        ),
        factor=part.batch / theirs.batch,
    )


def _plan_alone(recipe: Config) -> Resolved:
    """Returns a recipe with its plan. Its files are not read, and its other settings not checked.

    A recipe for fine-tuning has no model of its own, for example.
    """
    report = ErrorReport()
    stack, _ = translate(edited_stack(recipe, "recipe", Precedence.EDITED, report=report))
    report.close()
    return run_plan(without_alternatives(stack).config())


def _rules(part: _Part, theirs: _Part, recipe: Resolved) -> Iterator[RetunedSetting]:
    """Yields what the rules say about the recipe's settings."""
    config, optim = part.config, theirs.config.optim
    factor, optimizer = part.batch / theirs.batch, config.optim.optimizer
    rate = _rule_of_rate(part, theirs.config, factor)
    yield rate
    follows = part.state(rate) in FOLLOWING
    lr_factor = rate.value / optim.lr if rate.value and optim.lr else 1.0
    if follows:
        floor = _rounded(optim.min_lr * lr_factor)
        yield RetunedSetting(
            key=OptimConfig.min_lr, value=floor, rule=f"the same share of {OptimConfig.lr}"
        )
    if optimizer in OPTIMIZERS:  # in each of them, AdamW has some parameters
        is_tested = max(part.batch, theirs.batch) <= MOST_BATCH
        yield _rule_of_beta2(optim.beta2, factor, is_tested=is_tested)
    if optimizer == "adamw" and not follows and rate.value != config.optim.lr:
        # With another rate, the rule would answer that rate and not the batch.
        yield RetunedSetting(
            key=OptimConfig.weight_decay,
            value=None,
            rule=f"its rule needs {OptimConfig.lr} to follow the batch, and {OptimConfig.lr} stays"
            " as well",
        )
    elif optimizer == "adamw":
        yield _rule_of_decay(config, optim.weight_decay * factor / lr_factor)
    elif optimizer == "muon":
        yield RetunedSetting(
            key=OptimConfig.weight_decay, value=None, rule=NO_RULE[OptimConfig.weight_decay]
        )
    if optim.warmup_steps and (part.phase is None or rate.value is not None):
        samples = recipe.plan.ramp.samples_after(optim.warmup_steps)
        yield RetunedSetting(
            key=OptimConfig.warmup_steps,
            sets=OptimConfig.warmup_samples,
            value=samples,
            rule="the same samples",
        )


def _rate_elsewhere(part: _Part) -> str | None:
    """Returns why the learning rate of a phase is no setting that follows its batch, or None."""
    if part.phase is None:
        return None
    if OptimConfig.lr in part.own:
        return "the phase sets it, and no rule leads there from the recipe's rate"
    if not sets_rate(part.own):
        coupling = ScheduleConfig.batch_coupling
        return f"it is the rate of the run, which {coupling} can scale by the batch"
    is_later = part.like.plan.number > 0
    if is_later and continues_rate(part.config, part.own):
        return "the phase begins at the rate at which the phase before it ends"
    return None


def _rule_of_rate(part: _Part, recipe: Config, factor: float) -> RetunedSetting:
    """Returns the rule for the learning rate: the exponent of the coupling, or the square root.

    No rule leads from the rate of one optimiser to that of another.
    """
    optimizer, coupling = part.config.optim.optimizer, part.config.schedule.batch_coupling
    recipe_lr, recipe_optimizer = recipe.optim.lr, recipe.optim.optimizer
    if (elsewhere := _rate_elsewhere(part)) is not None:
        return RetunedSetting(key=OptimConfig.lr, value=None, rule=elsewhere)
    if optimizer != recipe_optimizer:
        unknown = f"the recipe's rate is one for {recipe_optimizer}, and this run has {optimizer}"
        return RetunedSetting(key=OptimConfig.lr, value=None, rule=unknown)
    if coupling != "none":
        value = _rounded(recipe_lr * coupling_factor(coupling, factor))
        return RetunedSetting(
            key=OptimConfig.lr, value=value, rule=f"as {ScheduleConfig.batch_coupling}={coupling}"
        )
    if optimizer != "adamw":
        unknown = f"no rule is known for optim.optimizer={optimizer}"
        known = NO_RULE[OptimConfig.lr] if optimizer == "muon" else unknown
        return RetunedSetting(key=OptimConfig.lr, value=None, rule=known)
    return RetunedSetting(
        key=OptimConfig.lr,
        value=_rounded(recipe_lr * sqrt(factor)),
        rule=f"the square root of {factor:.4g}x the batch",
        source="arXiv 2205.10287",
        tested=None
        if 1 / MOST_FACTOR <= factor <= MOST_FACTOR
        else f"changes up to {MOST_FACTOR}x (arXiv 2505.23971)",
    )


def _rule_of_beta2(beta2: float, factor: float, *, is_tested: bool) -> RetunedSetting:
    """Returns the rule for AdamW's second decay rate."""
    value = float(f"{1 - _rounded(1 - beta2**factor):.12g}")
    if value < LEAST_BETA2 and value != beta2:
        exact = f"{beta2**factor:.2g}"
        unknown = f"the same half-life in samples would be {exact}, an average over one step or so"
        return RetunedSetting(key=OptimConfig.beta2, value=None, rule=unknown)
    return RetunedSetting(
        key=OptimConfig.beta2,
        value=value,
        rule="the same half-life in samples",
        source="arXiv 2507.07101",
        tested=None if is_tested else f"batches up to {MOST_BATCH:,}",
    )


def _rule_of_decay(config: Config, value: float) -> RetunedSetting:
    """Returns the rule for the weight decay."""
    is_tested = FEWEST_PARAMETERS <= model_size(config).parameters <= MOST_PARAMETERS
    return RetunedSetting(
        key=OptimConfig.weight_decay,
        value=_rounded(value),
        rule="the same average of weights in samples",
        source="arXiv 2505.13738",
        tested=None
        if is_tested
        else f"models of {shorten(FEWEST_PARAMETERS)} to {shorten(MOST_PARAMETERS)} parameters",
    )


def _rounded(value: float) -> float:
    """Returns a value with four digits, as it is printed and can be typed."""
    return float(f"{value:.4g}")
