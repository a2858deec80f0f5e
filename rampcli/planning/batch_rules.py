"""Rules for settings that are tied to the batch, for a batch that is not the recipe's.

The rules are those of pretraining. None is known to hold in reinforcement learning, whose gradients
are noisy for other reasons: the responses to a prompt differ, and rollouts are reused.
"""

from collections.abc import Iterator
from dataclasses import asdict
from math import sqrt

from rampcli.batch.quantities import shorten
from rampcli.config.layers import Precedence, Stack, edited_stack, stack_of
from rampcli.config.translate import translate, without_alternatives
from rampcli.errors import Report
from rampcli.estimate.model_size import model_size
from rampcli.planning.retuning import RETUNE, Retuning, Rule, TiedSetting
from rampcli.planning.run_plan import Resolved, run_plan
from rampcli.schedule.learning_rate import coupling_factor
from rampcli.settings.by_key import leaves
from rampcli.settings.config import Config
from rampcli.settings.optim import OptimConfig, ScheduleConfig
from rampcli.settings.optimizers import OPTIMIZERS
from rampcli.settings.rl import is_rl

MOST_FACTOR = 4
"""Widest change of the batch for which the root of it was tried: OLMo 1B in arXiv 2505.23971."""
MOST_BATCH = 4096
"""Largest batch of arXiv 2507.07101, which begins at 1."""
LEAST_BETA2 = 0.5
"""Least beta2 that the rule gives. Below it, the average holds fewer than two steps."""
FEWEST_PARAMETERS, MOST_PARAMETERS = 111e6, 3.3e9
"""Sizes of the smallest and the largest model of arXiv 2505.13738."""
UNKNOWN = {
    OptimConfig.lr: "no rule is agreed on for Muon: arXiv 2602.03001 takes the square root, arXiv"
    " 2505.02222 finds Muon less sensitive to the batch than AdamW, arXiv 2510.09378 does not",
    OptimConfig.weight_decay: "its rule, arXiv 2505.13738, is one of AdamW",
}
"""What is known of the settings of Muon for which no rule is."""


def retuning_of(resolved: Resolved, recipe: Config) -> Retuning | None:
    """Returns how the batch of a run differs from its recipe's, or None if it does not.

    Returns None in reinforcement learning, too.

    Raises:
        UsageError: the recipe has no batch of its own.
    """
    if is_rl(resolved.config):
        return None
    alone = _plan_alone(recipe)
    batch, recipe_batch = resolved.plan.global_batch_size, alone.plan.global_batch_size
    if is_rl(alone.config) or batch == recipe_batch:
        return None
    stack, theirs = stack_of(resolved.config), dict(leaves(alone.config))
    length = alone.plan.sequence_length
    return Retuning(
        batch=batch,
        recipe_batch=recipe_batch,
        recipe_length=None if length == resolved.plan.sequence_length else length,
        settings=tuple(
            TiedSetting(
                **asdict(rule),
                state=_state(rule, stack),
                recipe=theirs[rule.key],
                now=stack.entry(rule.key).value,
                set_by=stack.entry(rule.key).place,
            )
            for rule in _rules(resolved, alone)
            if rule.value is None or rule.value != theirs[rule.key]
        ),
    )


def _plan_alone(recipe: Config) -> Resolved:
    """Returns a recipe with its plan. Its files are not read, and its other settings not checked.

    A recipe for fine-tuning has no model of its own, for example.
    """
    report = Report()
    stack, _ = translate(edited_stack(recipe, "recipe", Precedence.EDITED, report=report))
    report.close()
    return run_plan(without_alternatives(stack).config())


def _state(rule: Rule, stack: Stack) -> str:
    """Returns the state of a tied setting."""
    if rule.value is None:
        return "unknown"
    if stack.entry(rule.key).source == RETUNE:
        return "applied"
    return "kept" if stack.precedence(rule.key) > Precedence.EDITED else "proposed"


def _rules(resolved: Resolved, recipe: Resolved) -> Iterator[Rule]:
    """Yields what the rules say about the recipe's settings."""
    config, optim = resolved.config, recipe.config.optim
    batches = resolved.plan.global_batch_size, recipe.plan.global_batch_size
    factor, optimizer = batches[0] / batches[1], config.optim.optimizer
    rate = _rule_of_rate(config, recipe.config, factor)
    yield rate
    follows = _state(rate, stack_of(config)) in ("proposed", "applied")
    lr_factor = rate.value / optim.lr if rate.value and optim.lr else 1.0
    if follows:
        floor = _rounded(optim.min_lr * lr_factor)
        yield Rule(key=OptimConfig.min_lr, value=floor, rule=f"the same share of {OptimConfig.lr}")
    if optimizer in OPTIMIZERS:  # in each of them, AdamW has some parameters
        is_tested = max(batches) <= MOST_BATCH
        yield _rule_of_beta2(optim.beta2, factor, is_tested=is_tested)
    if optimizer == "adamw" and not follows and rate.value != config.optim.lr:
        # With another rate, the rule would answer that rate and not the batch.
        yield Rule(
            key=OptimConfig.weight_decay,
            value=None,
            rule=f"its rule needs {OptimConfig.lr} to follow the batch, and {OptimConfig.lr} stays"
            " as well",
        )
    elif optimizer == "adamw":
        yield _rule_of_decay(config, optim.weight_decay * factor / lr_factor)
    elif optimizer == "muon":
        yield Rule(key=OptimConfig.weight_decay, value=None, rule=UNKNOWN[OptimConfig.weight_decay])
    if optim.warmup_steps:
        samples = recipe.plan.ramp.samples_after(optim.warmup_steps)
        yield Rule(
            key=OptimConfig.warmup_steps,
            sets=OptimConfig.warmup_samples,
            value=samples,
            rule="the same samples",
        )


def _rule_of_rate(config: Config, recipe: Config, factor: float) -> Rule:
    """Returns the rule for the learning rate: the exponent of the coupling, or the square root.

    No rule leads from the rate of one optimiser to that of another.
    """
    optimizer, coupling = config.optim.optimizer, config.schedule.batch_coupling
    recipe_lr, recipe_optimizer = recipe.optim.lr, recipe.optim.optimizer
    if optimizer != recipe_optimizer:
        unknown = f"the recipe's rate is one for {recipe_optimizer}, and this run has {optimizer}"
        return Rule(key=OptimConfig.lr, value=None, rule=unknown)
    if coupling != "none":
        value = _rounded(recipe_lr * coupling_factor(coupling, factor))
        return Rule(
            key=OptimConfig.lr, value=value, rule=f"as {ScheduleConfig.batch_coupling}={coupling}"
        )
    if optimizer != "adamw":
        unknown = f"no rule is known for optim.optimizer={optimizer}"
        known = UNKNOWN[OptimConfig.lr] if optimizer == "muon" else unknown
        return Rule(key=OptimConfig.lr, value=None, rule=known)
    return Rule(
        key=OptimConfig.lr,
        value=_rounded(recipe_lr * sqrt(factor)),
        rule=f"the square root of {factor:.4g}x the batch",
        source="arXiv 2205.10287",
        tested=None
        if 1 / MOST_FACTOR <= factor <= MOST_FACTOR
        else f"changes up to {MOST_FACTOR}x (arXiv 2505.23971)",
    )


def _rule_of_beta2(beta2: float, factor: float, *, is_tested: bool) -> Rule:
    """Returns the rule for AdamW's second decay rate."""
    value = float(f"{1 - _rounded(1 - beta2**factor):.12g}")
    if value < LEAST_BETA2 and value != beta2:
        exact = f"{beta2**factor:.2g}"
        unknown = f"the same half-life in samples would be {exact}, an average over one step or so"
        return Rule(key=OptimConfig.beta2, value=None, rule=unknown)
    return Rule(
        key=OptimConfig.beta2,
        value=value,
        rule="the same half-life in samples",
        source="arXiv 2507.07101",
        tested=None if is_tested else f"batches up to {MOST_BATCH:,}",
    )


def _rule_of_decay(config: Config, value: float) -> Rule:
    """Returns the rule for the weight decay."""
    is_tested = FEWEST_PARAMETERS <= model_size(config).parameters <= MOST_PARAMETERS
    return Rule(
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
