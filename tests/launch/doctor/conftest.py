from collections.abc import Callable

import pytest

from processes import PATIENCE_S
from rampcli.launch.doctor.check import Check
from rampcli.launch.doctor.machine import check_machine
from rampcli.planning.run_plan import Resolved


@pytest.fixture
def run_of(planned) -> Callable[..., Resolved]:
    """Resolves a recipe with overrides."""
    return lambda *words, recipe="llama3_tiny": planned(recipe, *words)


@pytest.fixture
def checked(run_of) -> Callable[..., dict[str, Check]]:
    """Checks the machine for a run, and returns the checks by name."""

    def check(
        *words: str, recipe: str = "llama3_tiny", torch_timeout_s: float = PATIENCE_S
    ) -> dict[str, Check]:
        checks = check_machine(run_of(*words, recipe=recipe), torch_timeout_s=torch_timeout_s)
        return {check.name: check for check in checks}

    return check
