"""Other people's applications of Hydra: their groups, their schema and their settings."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir, version
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import ConfigCompositionException
from omegaconf import OmegaConf

import rampcli
from rampcli.config.compose import apply_overrides
from rampcli.config.groups import group_names, option_names
from rampcli.config.hydra_apps import schema
from rampcli.errors import RampcliError
from rampcli.settings.by_key import flatten, settings

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "hydra-app"


def started(*words, app=EXAMPLE / "app.py"):
    return subprocess.run(
        [sys.executable, app, *words], capture_output=True, text=True, timeout=300, check=False
    )


def of_example(*words):
    with initialize_config_dir(str(EXAMPLE / "conf"), version_base="1.3"):
        return compose("config", overrides=[*words])


@pytest.fixture
def written(tmp_path):
    """Composes a primary file of its own, as an application does."""

    def build(primary, *words):
        (tmp_path / "app.yaml").write_text(yaml.safe_dump(primary), encoding="utf-8")
        with initialize_config_dir(str(tmp_path), version_base="1.3"):
            return compose("app", overrides=[*words])

    return build


def refused(cfg):
    with pytest.raises(RampcliError) as caught:
        rampcli.from_hydra(cfg)
    return caught.value


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model=gpt3_5b", "trainer.num_nodes=2"],
        ["hydra.searchpath=[pkg://rampcli.conf]", "optim=nemo_gpt3"],
        ["trainer.max_steps=10"],
        ["trainer.max_samples=null", "+phases.long.until=1M", "+phases.long.optim.lr=1e-4"],
    ],
)
def test_an_application_prints_the_plan_that_rampcli_plan_has(words):
    app = started(*words)
    assert app.returncode == 0, app.stderr
    ours = [word.lstrip("+") for word in words if "searchpath" not in word]
    shown = subprocess.run(
        [sys.executable, "-m", "rampcli", "plan", "--config-path", EXAMPLE / "conf", *ours],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert app.stdout == shown.stdout


def test_a_mistyped_key_is_refused_by_hydra():
    app = started("model.num_layer=4")
    assert app.returncode == 1
    assert "Key 'num_layer' not in" in app.stderr


def test_a_key_that_is_added_although_it_is_no_setting_is_refused_with_its_remedy(written):
    cfg = written({"defaults": [{"model": "llama3_8b"}, "_self_"]}, "+trainer.num_nods=2")
    error = refused(cfg)
    assert error.keys[0] == "trainer.num_nods"
    assert "trainer.num_nodes" in error.remedy
    assert error.set_by == ("trainer.num_nods=2 (Hydra)",)


def test_every_option_of_every_group_composes_with_the_schema():
    options = {group: option_names(group) for group in group_names()}
    for number in range(max(map(len, options.values()))):
        words = [f"{group}={some[number % len(some)]}" for group, some in options.items()]
        assert OmegaConf.is_config(of_example(*words))


def test_the_schema_has_the_default_of_every_setting():
    values = flatten(OmegaConf.to_container(schema()))
    assert {key: one.default for key, one in settings().items()} == {
        key: value for key, value in values.items() if key in settings()
    }
    assert "checkpoint.async" in values  # a keyword of Python


@pytest.mark.parametrize(
    ("word", "passes"),
    [
        ("optim.lr=fast", False),
        ("optim.lr=1e-4", True),
        ("trainer.numa_binding=perhaps", False),
        ("seed=null", True),  # a count, which rampcli checks
        ("model.bias=null", False),
        ("trainer.max_samples=50M", True),
        ("data.path=null", True),
        ("+phases.long.until=7B", True),
    ],
)
def test_hydra_checks_the_types_that_it_knows(word, passes):
    if passes:
        of_example(word)
    else:
        with pytest.raises(ConfigCompositionException):
            of_example(word)


def test_the_section_of_an_extension_is_open_and_others_are_not(monkeypatch):
    monkeypatch.setattr("rampcli.config.hydra_apps.names", lambda key: ["lion"] * ("optim" in key))
    assert of_example("+optim.lion.beta1=0.8").optim.lion.beta1 == 0.8
    with pytest.raises(ConfigCompositionException):
        of_example("optim.lyon=1")


def test_values_are_typed_and_references_resolved(written):
    primary = {
        "defaults": [{"model": "llama3_tiny"}, "_self_"],
        "trainer": {"max_samples": "50M", "num_nodes": "${seed}"},
        "seed": 2,
        "phases": [{"name": "all", "optim": {"lr": 0.1}}],
    }
    config = rampcli.from_hydra(written(primary))
    assert (config.trainer.max_samples, config.trainer.num_nodes) == (50_000_000, 2)
    assert config.phases == {"all": {"optim.lr": 0.1}}


def test_a_mapping_is_taken_as_the_settings_that_hydra_composed():
    assert rampcli.from_hydra({"trainer": {"max_samples": "2K"}}).trainer.max_samples == 2000


def test_settings_may_be_below_a_key_of_the_application(written):
    primary = {
        "defaults": [
            "rampcli/schema@run",
            {"model@run.model": "llama3_8b"},
            {"data@run.data": "mock"},
            {"hardware@run": "h100_bf16"},
            {"batch@run": "nemo_llama"},
            {"optim@run.optim": "nemo_adam"},
            "_self_",
        ],
        "nodes": 4,
        "run": {"trainer": {"max_steps": 100, "num_nodes": "${nodes}"}},
    }
    cfg = written(primary)
    assert rampcli.plan(rampcli.from_hydra(cfg.run)).plan.stages[0].global_batch_size == 512
    assert {one.keys[0]: one.remedy for one in refused(cfg).errors}["run"] == "from_hydra(cfg.run)"
    with pytest.raises(ConfigCompositionException):
        written(primary, "run.model.num_layer=4")


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"seed": "???"}, "seed"),
        ({"seed": "${nobody}"}, "seed"),
        ({"seed": "one"}, "seed"),
        ({"mine": {"a": 1}}, "mine"),
        ({"mine": 1}, "mine"),
    ],
)
def test_what_is_no_setting_is_refused_with_its_key(values, key):
    assert key in refused(values).keys


def test_something_else_than_a_mapping_is_refused():
    assert "cfg.KEY" in refused([1]).remedy


def test_the_place_of_a_value_is_the_file_of_conf_that_says_it(tmp_path):
    """`HydraConfig` has the options of an application that `@hydra.main` started."""
    shutil.copytree(EXAMPLE / "conf", tmp_path / "conf")
    text = (EXAMPLE / "app.py").read_text(encoding="utf-8")
    line = "    stack = rampcli.from_hydra(cfg).stack\n"
    line += "    print(*(stack.entry(key).place for key in ('optim.lr', 'optim.eps', 'seed')))\n"
    head, _, tail = text.partition("    rampcli.print_plan")
    app = tmp_path / "app.py"
    app.write_text(head + line + tail.partition("\n")[2], encoding="utf-8")
    done = started("optim.eps=1e-7", app=app)
    assert done.stdout.split() == ["optim/nemo_adam.yaml:2", "Hydra", "default"], done.stderr


def test_composing_in_an_application_leaves_its_hydra_as_it_was(tmp_path):
    """The application has a node and a resolver of its own, and another version base."""
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "mine.yaml").write_text("lr: 0.5\n", encoding="utf-8")
    store = ConfigStore.instance()
    store.store(name="config", group="optim", node={"lr": "theirs"})
    store.store(name="mine", group="optim", node={"beta1": 7})
    nodes = {group: {**one} if isinstance(one, dict) else one for group, one in store.repo.items()}
    with initialize_config_dir(str(EXAMPLE / "conf"), version_base="1.2"):
        OmegaConf.register_new_resolver("now", lambda _: "mine", replace=True)
        before = GlobalHydra.instance(), GlobalHydra.instance().hydra, version.getbase()
        config = rampcli.compose("model=llama3_8b")
        stack = apply_overrides(config, ["optim=mine"], config_dir=tmp_path)
        assert stack.config().optim.lr == 0.5
        assert stack.config().optim.beta1 == settings()["optim.beta1"].default
        after = GlobalHydra.instance(), GlobalHydra.instance().hydra, version.getbase()
        assert before == after
        assert compose("config", overrides=["model=gpt3_5b"]).model.num_layers == 24
    assert OmegaConf.create({"a": "${now:x}"}).a == "mine"
    assert store.repo == nodes
    OmegaConf.clear_resolver("now")


def test_composing_without_an_application_leaves_no_hydra_behind(tmp_path):
    program = (
        "import sys, rampcli\n"
        "from pathlib import Path\n"
        "from rampcli.config.compose import apply_overrides\n"
        "config = rampcli.compose('model=llama3_8b')\n"
        "apply_overrides(config, ['optim=mine'], config_dir=Path(sys.argv[1]))\n"
        "from hydra.core.global_hydra import GlobalHydra\n"
        "from omegaconf import OmegaConf\n"
        "assert not GlobalHydra.instance().is_initialized()\n"
        "assert not OmegaConf.has_resolver('hydra')\n"
    )
    (tmp_path / "optim").mkdir()
    (tmp_path / "optim" / "mine.yaml").write_text("lr: 0.5\n", encoding="utf-8")
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True, timeout=300)


def test_hydra_starts_without_importing_rampcli():
    """An application that does not use rampcli does not wait for it."""
    program = (
        "import sys\n"
        "from hydra.core.config_store import ConfigStore\n"
        "from hydra.core.plugins import Plugins\n"
        "Plugins.instance()\n"
        "assert 'schema.yaml' in ConfigStore.instance().list('rampcli')\n"
        "assert not [name for name in sys.modules if name.partition('.')[0] == 'rampcli']\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
