"""The values that a setting accepts are the names in the table that implements it."""

from pkgutil import resolve_name

import pytest

from rampcli.batch.node_policies import NODE_POLICIES
from rampcli.data.examples import TASKS
from rampcli.launch.protocol import launchers
from rampcli.parallel.fsdp import POLICIES
from rampcli.settings.by_key import settings
from rampcli.settings.data import SOURCES


@pytest.mark.parametrize(
    ("key", "table"),
    [
        ("data.task", TASKS),
        ("launch.launcher", launchers()),
        ("trainer.precision", POLICIES),
    ],
)
def test_a_setting_accepts_exactly_the_names_in_its_table(key, table):
    assert set(settings()[key].choices) == set(table)


def test_a_function_opens_each_data_source():
    assert all(callable(resolve_name(source.opens)) for source in SOURCES.values())


def test_a_node_policy_is_in_the_table_under_its_own_name():
    assert {name: policy.name for name, policy in NODE_POLICIES.items()} == {
        name: name for name in NODE_POLICIES
    }
