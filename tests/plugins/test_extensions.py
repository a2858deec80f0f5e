import os
import sys
from dataclasses import dataclass

import pytest

from rampcli.errors import UsageError
from rampcli.extend import decay_style, optimizer, setting
from rampcli.plugins import extensions
from rampcli.plugins.extensions import (
    DECAY_STYLE_KEY,
    EXTENSIONS_VARIABLE,
    OPTIMIZER_KEY,
    find,
    import_source,
    names,
)
from rampcli.settings.by_key import find_setting


def without_use(*_, **__):
    """Stands for a function that no test calls."""


@pytest.fixture(autouse=True)
def own_registry(monkeypatch):
    """Each test begins without extensions."""
    monkeypatch.setattr(extensions, "REGISTERED", {})
    monkeypatch.setenv(EXTENSIONS_VARIABLE, "")


def test_an_extension_is_found_by_the_setting_and_the_name_it_was_registered_under():
    optimizer("mine")(without_use)
    found = find(OPTIMIZER_KEY, "mine")
    assert found is not None
    assert found.function is without_use
    assert find(DECAY_STYLE_KEY, "mine") is None
    assert names(OPTIMIZER_KEY) == ["mine"]


def test_a_module_that_registers_an_extension_is_known_to_child_processes(tmp_path):
    file = tmp_path / "own.py"
    file.write_text(
        "from rampcli.extend import optimizer\n"
        "@optimizer('mine')\ndef mine(parameters, optim): ...\n"
    )
    import_source(str(file))
    assert os.environ[EXTENSIONS_VARIABLE] == str(file)
    extensions.REGISTERED.clear()
    for module in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[module]
    assert find(OPTIMIZER_KEY, "mine") is not None


def test_a_file_is_executed_once(tmp_path):
    file = tmp_path / "counts.py"
    file.write_text(f"open({str(tmp_path / 'log')!r}, 'a').write('x')\n")
    assert import_source(str(file)) is import_source(str(file))
    assert (tmp_path / "log").read_text() == "x"


def test_a_file_that_fails_is_executed_again_once_it_is_mended(tmp_path):
    file = tmp_path / "wrong.py"
    file.write_text("1 / 0\n")
    with pytest.raises(UsageError, match="line 1: ZeroDivisionError"):
        import_source(str(file))
    file.write_text("value = 3\n")
    assert import_source(str(file)).value == 3


def test_importing_a_file_writes_nothing_beside_it_and_hides_no_package(tmp_path):
    (tmp_path / "json.py").write_text("raise SystemExit\n")
    (tmp_path / "beside.py").write_text("value = 3\n")
    (tmp_path / "recipe.py").write_text("import json, beside\nvalue = beside.value\n")
    try:
        assert import_source(str(tmp_path / "recipe.py")).value == 3
        assert sorted(path.name for path in tmp_path.iterdir()) == [
            "beside.py",
            "json.py",
            "recipe.py",
        ]
    finally:
        sys.path.remove(str(tmp_path))


def test_two_modules_cannot_register_one_name(tmp_path):
    optimizer("mine")(without_use)
    file = tmp_path / "other.py"
    file.write_text(
        "from rampcli.extend import optimizer\n"
        "@optimizer('mine')\ndef mine(parameters, optim): ...\n"
    )
    with pytest.raises(UsageError, match=r"other\.py registers optim\.optimizer=mine, and so does"):
        import_source(str(file))


@pytest.mark.parametrize("name", ["adamw", "not a name", "", "1st"])
def test_a_name_is_an_identifier_that_no_part_of_rampcli_has(name):
    with pytest.raises(UsageError, match="cannot be the name of an extension"):
        optimizer(name)(without_use)


def test_settings_are_a_dataclass_of_typed_fields_with_defaults():
    @dataclass
    class WithoutDefault:
        power: float

    @dataclass
    class OfAnotherType:
        power: complex = 1j

    class Plain:
        power: float = 1.0

    for wrong, message in {
        WithoutDefault: "schedule.mine.power cannot be a setting",
        OfAnotherType: "schedule.mine.power cannot be a setting",
        Plain: "Plain is not a dataclass",
    }.items():
        with pytest.raises(UsageError, match=message):
            decay_style("mine", settings=wrong)(without_use)


def test_settings_of_an_extension_are_found_by_their_keys():
    @dataclass
    class Power:
        power: float = setting(0.5, "How fast the rate falls.", above=0)
        steps: int | None = None

    decay_style("mine", settings=Power)(without_use)
    power = find_setting("schedule.mine.power")
    assert power is not None
    assert (power.type, power.default, power.doc) == (float, 0.5, "How fast the rate falls.")
    steps = find_setting("schedule.mine.steps")
    assert steps is not None
    assert (steps.type, steps.optional) == (int, True)
    assert find_setting("schedule.mine.other") is None
    assert find_setting("schedule.other.power") is None
