"""The values that a setting accepts are the names in the table that implements it."""

import pytest

from rampcli.batch.node_policies import NODE_POLICIES
from rampcli.batch.ramp import SEMANTICS
from rampcli.config.choices import BatchCoupling, DecayStyle, NodePolicy, RampSemantics
from rampcli.schedule.learning_rate import BATCH_COUPLINGS, DECAY_STYLES


@pytest.mark.parametrize(
    ("choices", "table"),
    [
        (NodePolicy, NODE_POLICIES),
        (RampSemantics, SEMANTICS),
        (DecayStyle, DECAY_STYLES),
        (BatchCoupling, BATCH_COUPLINGS),
    ],
    ids=["node policies", "ramp semantics", "decay styles", "batch couplings"],
)
def test_a_setting_accepts_exactly_the_names_in_its_table(choices, table):
    assert {choice.value for choice in choices} == set(table)


def test_a_node_policy_is_in_the_table_under_its_own_name():
    assert {name: policy.name for name, policy in NODE_POLICIES.items()} == {
        name: name for name in NODE_POLICIES
    }
