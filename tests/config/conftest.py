import copy

import pytest

from rampcli import llm


@pytest.fixture(scope="session")
def composed():
    """A recipe's configuration that no test may write into."""
    return llm.gpt3_5b.pretrain_recipe()


@pytest.fixture
def recipe(composed):
    """A recipe's configuration of the test's own."""
    return copy.deepcopy(composed)
