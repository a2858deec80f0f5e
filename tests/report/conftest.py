import pytest

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.config.resolve import resolve
from rampcli.config.run_plan import Resolved
from rampcli.config.schema import Config


@pytest.fixture(scope="session")
def planned():
    """The plan of a recipe with words laid over it."""
    composed: dict[str, Config] = {}

    def plan(name: str, *words: str) -> Resolved:
        if name not in composed:
            composed[name] = llm.from_factory(name)
        return resolve(apply_overrides(composed[name], words))

    return plan
