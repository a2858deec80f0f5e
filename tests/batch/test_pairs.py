"""Prompts x generations: what is accepted divides exactly, and what is refused cannot."""

import re
from copy import deepcopy
from math import prod

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from rampcli.batch.micro_batch import UNLIMITED, MicroBatchRule
from rampcli.batch.pairs import GENERATIONS_KEY, PROMPTS_KEY, PairSettings
from rampcli.batch.plan import UPDATES_KEY
from rampcli.config.values import put
from rampcli.errors import UsageError, UsageErrors
from rampcli.planning.run_plan import run_plan
from rampcli.settings.config import Config

SPELT = {PROMPTS_KEY: "model.global_batch_size"}


def config_of(**changed):
    """Returns a configuration of RL with some settings; `__` stands for the dot in a key."""
    config = Config()
    for name, value in changed.items():
        put(config, name.replace("__", "."), value)
    return config


@st.composite
def runs(draw):
    """Configurations of small runs, with and without a ramp. About half of them divide."""
    tensor = draw(st.sampled_from([1, 1, 2]))
    generations = draw(st.integers(2, 6))
    splits = draw(st.booleans())
    micro = draw(
        st.none()
        | st.integers(1, 3).map(lambda groups: groups * generations)
        | st.integers(1, 2 * generations)
    )
    unit = draw(st.sampled_from([1, 2, 4, 12]))
    start, steps = unit * draw(st.integers(1, 3)), draw(st.integers(0, 3))
    increment = unit * draw(st.integers(1, 3))
    return config_of(
        model__global_batch_size=start + steps * increment,
        model__rampup_batch_size=[start, increment, 300 * steps] if steps else None,
        rl__generations_per_prompt=generations,
        rl__micro_batch_size=micro,
        rl__split_groups=splits,
        rl__updates_per_rollout=draw(st.sampled_from([1, 1, 2, 3])),
        trainer__num_nodes=draw(st.integers(1, 4)),
        trainer__devices=tensor * draw(st.integers(1, 2)),
        parallel__tensor_parallel_size=tensor,
        rampup__node_policy=draw(st.sampled_from(["nemo", "best", "fixed"])),
        rampup__micro_batch=draw(st.sampled_from(["fixed", "largest"])),
    )


def batch_sizes(config):
    """Returns the prompts per step of each stage of the schedule, in ascending order."""
    target, ramp = config.model.global_batch_size, config.model.rampup_batch_size
    return [target] if ramp is None else list(range(ramp[0], target + 1, ramp[1]))


def prompts_together(config):
    """Returns the prompts of a micro batch that every stage must have, or None if it varies."""
    micro, generations = config.rl.micro_batch_size, config.rl.generations_per_prompt
    if micro is None or config.rampup.micro_batch == "largest":
        return None
    return max(1, micro // generations)


def holds_groups(config):
    """Returns whether a micro batch is whole groups, or a whole part of one if that is allowed."""
    micro, generations = config.rl.micro_batch_size, config.rl.generations_per_prompt
    if micro is None or micro % generations == 0:
        return True
    return config.rl.split_groups and generations % micro == 0


def has_factorisation(config):
    """Returns whether every stage divides on nodes that the policy may give it, by trying all."""
    processes = config.trainer.devices
    tensor, updates = config.parallel.tensor_parallel_size, config.rl.updates_per_rollout
    most, sizes = config.trainer.num_nodes, batch_sizes(config)

    def divides(prompts, nodes, together):
        ranks = nodes * processes // tensor
        return prompts % (updates * ranks * together) == 0

    def launcher_has_nodes(together):
        """Goes down from the largest batch, which has all the nodes, as NeMo's launcher does."""
        limit = most
        for prompts in reversed(sizes[:-1]):
            fitting = [
                nodes
                for nodes in range(1, limit + 1)
                if divides(prompts, nodes, together)
                and prompts % (updates * together * processes * nodes) == 0
            ]
            if not fitting:
                return False
            limit = max(fitting)
        return divides(sizes[-1], most, together)

    fixed = prompts_together(config)
    if config.rampup.node_policy == "fixed":
        return all(divides(prompts, most, fixed or 1) for prompts in sizes)
    if config.rampup.node_policy == "best":
        return all(
            any(divides(prompts, nodes, fixed or 1) for nodes in range(1, most + 1))
            for prompts in sizes
        )
    return launcher_has_nodes(fixed or 1)


def refusal(config):
    """Returns the errors with which a plan is refused; none if it is accepted."""
    try:
        run_plan(config)
    except UsageErrors as several:
        return list(several.errors)
    except UsageError as error:
        return [error]
    return []


ONE_KIND = settings(suppress_health_check=[HealthCheck.filter_too_much])
"""For laws of accepted or of refused runs alone: many are of the other kind."""


@ONE_KIND
@given(config=runs())
def test_pairs_of_each_stage_are_the_product_of_their_parts(config):
    assume(not refusal(config))
    resolved = run_plan(config)
    assert [stage.global_batch_size for stage in resolved.plan.stages] == batch_sizes(config)
    for stage in resolved.plan.stages:
        batch = resolved.phases[0].pairs(stage)
        assert batch.prompts == stage.global_batch_size
        assert batch.generations == config.rl.generations_per_prompt
        assert batch.updates == config.rl.updates_per_rollout
        tensor = config.parallel.tensor_parallel_size
        assert batch.data_parallel_size * tensor == stage.world_size
        parts = (
            batch.updates,
            batch.accumulation,
            batch.micro_batch_size,
            batch.data_parallel_size,
        )
        assert batch.pairs == batch.prompts * batch.generations == prod(parts)
        numbers = [int(number) for number in re.findall(r"\d+", str(batch))]
        assert numbers == [batch.prompts, batch.generations, batch.pairs, *parts]


@ONE_KIND
@given(config=runs())
def test_a_micro_batch_is_the_one_that_is_set_or_the_largest_that_divides(config):
    assume(not refusal(config))
    resolved, given_pairs = run_plan(config), config.rl.micro_batch_size
    for batch in map(resolved.phases[0].pairs, resolved.plan.stages):
        of_an_update = batch.pairs // batch.updates // batch.data_parallel_size
        whole_groups = batch.micro_batch_size % batch.generations == 0
        parts_of_one = batch.generations % batch.micro_batch_size == 0
        assert whole_groups or (config.rl.split_groups and parts_of_one)
        assert batch.rollouts * max(batch.micro_batch_size, batch.generations) == (
            of_an_update * batch.updates
        )
        if given_pairs is None:
            assert (batch.micro_batch_size, batch.accumulation) == (of_an_update, 1)
        elif config.rampup.micro_batch == "fixed":
            assert batch.micro_batch_size == given_pairs
        else:
            assert batch.micro_batch_size == max(
                size
                for size in range(1, given_pairs + 1)
                if of_an_update % size == 0
                and (size % batch.generations == 0 or size == given_pairs)
            )


@given(config=runs())
@example(  # With updates, NeMo's launcher has one node for 6 prompts.
    config=config_of(
        model__global_batch_size=8,
        model__rampup_batch_size=[2, 2, 300],
        rl__generations_per_prompt=4,
        rl__updates_per_rollout=2,
        rl__micro_batch_size=4,
        trainer__num_nodes=2,
    )
)
def test_a_plan_is_refused_exactly_if_its_pairs_do_not_divide(config):
    assert (not refusal(config)) == (holds_groups(config) and has_factorisation(config))


def applied(config, remedy):
    """Returns the configurations that a remedy means, one for each of its values."""
    if isinstance(remedy, str):
        multiple = re.fullmatch(r"batch sizes that are multiples of (\d+)", remedy)[1]
        if config.rampup.node_policy == "nemo" and config.parallel.tensor_parallel_size > 1:
            return []  # NeMo's launcher has a stricter condition if the model is split.
        changed, steps = deepcopy(config), len(batch_sizes(config)) - 1
        whole = int(multiple) * config.trainer.num_nodes  # The largest batch has all the nodes.
        changed.model.global_batch_size = whole * (steps + 1)
        if steps:
            changed.model.rampup_batch_size = [whole, whole, 300 * steps]
        return [changed]
    ((key, values),) = remedy.values.items()
    configs = []
    for value in values:
        changed = deepcopy(config)
        put(changed, SPELT.get(key, key), value)
        configs.append(changed)
    return configs


@ONE_KIND
@given(config=runs())
@example(
    config=config_of(
        model__global_batch_size=24,
        model__rampup_batch_size=[6, 6, 300],
        rl__generations_per_prompt=4,
        rl__updates_per_rollout=2,
        rl__micro_batch_size=8,
        trainer__num_nodes=2,
        rampup__node_policy="fixed",
    )
)
def test_every_remedy_of_a_refusal_leads_to_an_accepted_plan(config):
    errors = refusal(config)
    assume(len(errors) == 1)
    for remedy in errors[0].remedies:
        for changed in applied(config, remedy):
            again = refusal(changed)
            if holds_groups(config):
                assert again == [], remedy
            else:  # The micro batch is checked first. Its remedy may show that the batch is wrong.
                assert holds_groups(changed), remedy
                assert not has_factorisation(changed) or again == [], remedy


PRODUCT = re.compile(
    r"into (?P<factors>.*) = (?P<product>\d+)|multiples? of (?P<multiple>\d+) = (?P<parts>.*) on"
)


def product_of(text):
    """Returns the product of the factors in a message, `groups of 4 x 3 data-parallel ranks`."""
    return prod(int(re.findall(r"\d+", factor)[-1]) for factor in text.split(" x "))


@ONE_KIND
@given(config=runs())
def test_the_products_in_a_refusal_are_right(config):
    errors = refusal(config)
    assume(errors)
    products = [found for error in errors if (found := PRODUCT.search(error.message))]
    assume(products)
    for found in products:
        factors, product = (found[1], found[2]) if found[1] else (found[4], found[3])
        assert product_of(factors) == int(product), found.string
        assert "data." not in found.string


@ONE_KIND
@given(
    prompts=st.integers(1, 60),
    settings=st.builds(
        PairSettings,
        generations=st.integers(2, 6),
        micro_batch_size=st.none() | st.integers(1, 12),
        updates=st.integers(1, 3),
        splits_groups=st.booleans(),
    ),
    ranks=st.integers(1, 6),
)
def test_a_refused_batch_is_shown_in_pairs_on_both_sides(prompts, settings, ranks):
    try:
        settings.check()
    except UsageError:
        assume(False)
    together = settings.prompts_per_micro_batch
    rule = MicroBatchRule(
        size=together or UNLIMITED,
        varies=together is None,
        updates=settings.updates,
        unit=settings.unit,
    )
    try:
        rule.divide(prompts, ranks)
    except UsageError as error:
        found = re.fullmatch(
            rf"{PROMPTS_KEY}=(\d+) x {GENERATIONS_KEY}=(\d+) = (\d+) pairs do not divide into"
            r" (.*) = (\d+)",
            error.message,
        )
        assert int(found[1]) * int(found[2]) == int(found[3]) == prompts * settings.generations
        assert product_of(found[4]) == int(found[5])
        assert int(found[3]) % int(found[5]) != 0
        assert (UPDATES_KEY in found[4]) == (settings.updates > 1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_updates_also_divide_on_a_world_that_lost_nodes(ranks):
    config = config_of(
        model__global_batch_size=24,
        rl__generations_per_prompt=4,
        rl__updates_per_rollout=4,
        trainer__devices=6,
    )
    resolved = run_plan(config)
    stage = resolved.plan.stages[0]
    assert resolved.plan.batch_on(stage, ranks).accumulate_grad_batches % 4 == 0
    with pytest.raises(UsageError, match=r"= 96 pairs do not divide into .* = 64"):
        resolved.plan.batch_on(stage, 4)
