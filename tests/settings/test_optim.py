"""Settings that the chosen optimiser does not use are refused, also if it is the user's own."""

from dataclasses import dataclass

import pytest

from rampcli import llm
from rampcli.config import snapshot
from rampcli.config.compose import apply_overrides
from rampcli.errors import UsageError, UsageErrors
from rampcli.extend import optimizer, setting
from rampcli.planning.resolve import resolve
from rampcli.plugins import extensions
from rampcli.settings.optim import OptimConfig
from rampcli.settings.optimizers import OPTIMIZERS


@dataclass(kw_only=True)
class Settings:
    beta1: float = setting(0.9, "Share of the momentum in the direction of a step.", below=1)


def own(parameters, optim, settings):
    return [parameters, optim.lr, optim.eps, settings.beta1]


@pytest.mark.parametrize(
    ("optimizer", "refused"),
    [("adamw", False), ("muon", False), ("own", True), ("any", False)],
)
@pytest.mark.parametrize(
    "coupling", ["schedule.beta2_coupling=half_life", "schedule.weight_decay_coupling=timescale"]
)
def test_a_coupling_is_refused_if_the_optimiser_is_known_not_to_use_its_value(
    optimizer, refused, coupling
):
    words = [f"optim.optimizer={optimizer}", coupling]
    overridden = apply_overrides(llm.from_factory("llama3_tiny"), words)
    if not refused:
        resolve(overridden)
        return
    with pytest.raises(UsageError, match=f"^error: {coupling} does not apply to .*=own"):
        resolve(overridden)


@pytest.fixture(autouse=True)
def own_optimizers(monkeypatch):
    monkeypatch.setattr(extensions, "REGISTERED", {})
    optimizer("own", settings=Settings, reads=["eps"])(own)
    optimizer("any")(own)


def refused(*words, recipe="llama3_tiny"):
    """Returns the keys and the remedy of each error."""
    try:
        resolve(apply_overrides(llm.from_factory(recipe), words))
    except UsageError as error:
        errors = error.errors if isinstance(error, UsageErrors) else [error]
        return {one.keys[0]: one.remedy for one in errors}
    return {}


def test_settings_that_an_own_optimiser_does_not_read_are_refused_with_those_that_it_has():
    assert refused("optim.optimizer=own", "optim.eps=1e-4") == {}
    words = ("optim.optimizer=own", "optim.beta1=0.8", "optim.beta2=0.9", "optim.weight_decay=0")
    assert refused(*words) == {
        "optim.beta1": "optim.own.beta1=0.8",
        "optim.beta2": "optim.optimizer=adamw or muon",
        "optim.weight_decay": "optim.optimizer=adamw or muon",
    }


def test_settings_of_the_recipe_and_defaults_do_not_need_to_be_read():
    """This recipe sets another epsilon than the default for AdamW."""
    optimizer("bare", reads=[])(lambda parameters, optim: (parameters, optim.lr))
    assert refused("optim.optimizer=bare", "optim.beta2=0.95", recipe="llama3_8b") == {}


def test_an_optimiser_that_does_not_say_what_it_reads_may_read_every_setting():
    assert refused("optim.optimizer=any", "optim.beta2=0.9") == {}


def test_an_optimiser_reads_only_settings_that_there_are():
    with pytest.raises(UsageError, match="momentum") as error:
        optimizer("typo", reads=["momentum"])(own)
    assert "muon_momentum" in str(error.value.remedy)


def test_adamw_does_not_use_the_momentum_of_muon():
    assert refused("optim.muon_momentum=0.9", "optim.optimizer=adamw") == {
        "optim.muon_momentum": "optim.optimizer=muon"
    }
    assert refused("optim.muon_momentum=0.9", "optim.optimizer=muon") == {}


def test_a_snapshot_with_an_unused_setting_can_be_read(tmp_path):
    """Earlier versions wrote it."""
    resolved = resolve(llm.llama3_tiny.pretrain_recipe())
    resolved.config.optim.optimizer, resolved.config.optim.muon_momentum = "adamw", 0.9
    path = tmp_path / "config.yaml"
    path.write_text(snapshot.to_yaml(resolved.config))
    assert snapshot.read(path).optim.muon_momentum == 0.9


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_setting_of_a_built_in_optimiser_applies_to_it(name):
    words = [
        f"optim.{field}={getattr(OptimConfig(), field)}" for field in OPTIMIZERS[name].settings
    ]
    assert refused(f"optim.optimizer={name}", *words) == {}
