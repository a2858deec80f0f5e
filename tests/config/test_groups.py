import pytest

from rampcli.config.compose import apply_overrides, compose
from rampcli.config.groups import (
    MOST_OFFERED,
    check_option,
    check_options_folder,
    file_of,
    folders,
    group_names,
    option_names,
    some_of,
)
from rampcli.config.reading import quoted
from rampcli.config.yaml_files import read_file
from rampcli.errors import UsageError
from rampcli.files import bundled

BUNDLED = {"batch", "data", "hardware", "launch", "model", "optim", "rl"}


def names_in(group):
    return sorted(path.stem for path in (bundled("conf") / group).glob("*.yaml"))


def read_option(group, option, config_dir):
    check_option(group, option, folders(config_dir))
    read_file(config_dir / group / f"{option}.yaml", f"{group}/{option}.yaml")


def refusal(group, option, config_dir):
    with pytest.raises(UsageError) as refused:
        read_option(group, option, config_dir)
    return refused.value


def test_groups_are_the_folders_in_conf_and_in_config_dir(option):
    mine = option("schedule/fast", "decay_style: linear\n")
    (mine / ".hidden").mkdir()
    (mine / "not a group").mkdir()
    (mine / "exp" / "deep").mkdir(parents=True)
    assert {*group_names()} == BUNDLED
    names = group_names(folders(mine))
    assert {*names} == {*BUNDLED, "exp", "schedule"}
    assert "exp/deep" in names
    assert {"exp/none", "../exp", ".hidden", "not a group", "/"}.isdisjoint(
        name for name in ("exp/none", "../exp", ".hidden", "not a group", "/") if name in names
    )


def test_options_are_the_sorted_files_of_both_folders(option):
    mine = option("optim/abc", "lr: 1\n")
    (mine / "optim" / "notes.txt").write_text("no option")
    assert option_names("optim") == names_in("optim")
    assert option_names("optim", folders(mine)) == ["abc", *names_in("optim")]
    assert option_names("nothing", folders(mine)) == []


def test_an_option_is_found_in_the_first_folder_that_has_it(option):
    mine = option("optim/abc", "lr: 1\n")
    assert file_of("optim/abc", folders(mine)) == mine / "optim" / "abc.yaml"
    assert file_of("optim/nemo_adam", folders(mine)) == bundled("conf") / "optim" / "nemo_adam.yaml"
    assert file_of("optim/abc", folders()) is None


@pytest.mark.parametrize("group", sorted(BUNDLED))
def test_every_option_in_conf_contains_only_plain_settings(group):
    for name in option_names(group):
        check_option(group, name)
        path = bundled("conf") / group / f"{name}.yaml"
        assert read_file(path, f"{group}/{name}.yaml").defaults is None


def test_few_options_are_all_suggested_and_many_are_counted():
    names = [f"n{number}" for number in range(MOST_OFFERED + 1)]
    assert some_of(names[:1]) == "n0"
    assert some_of(names[:-1]) == " or ".join(names[:-1])
    assert (
        some_of(names)
        == f"{' or '.join(names[: MOST_OFFERED - 1])} or ... ({MOST_OFFERED + 1} in all)"
    )


def test_a_folder_without_options_is_answered_with_the_file_that_would_be_one(tmp_path):
    (tmp_path / "mine").mkdir()
    refused = refusal("mine", "fast", tmp_path)
    assert refused.message == "mine=fast: there is no conf/mine/fast.yaml"
    assert refused.remedy == f"a file {tmp_path}/mine/OPTION.yaml"


@pytest.mark.parametrize("name", ["ümläut", "with space", "a=b,c", 'q"uo', "it's", "-dash", "1e3"])
def test_an_option_may_have_any_name_that_is_quoted_where_needed(option, name):
    among = option(f"optim/{name}", "lr: 0.25\n")
    option("optim/plain", "min_lr: 0.125\n")
    word = f"optim={quoted(name)}"
    values = apply_overrides(compose(), [word], config_dir=among).values()
    assert values["optim.lr"] == 0.25
    if "," not in name:
        several = [f"optim=[plain,{quoted(name)}]"]
        values = apply_overrides(compose(), several, config_dir=among).values()
        assert (values["optim.min_lr"], values["optim.lr"]) == (0.125, 0.25)


def test_an_option_named_like_a_bundled_one_is_refused_unless_it_is_a_copy(option):
    mine = option("optim/nemo_gpt3", (bundled("conf") / "optim" / "nemo_gpt3.yaml").read_bytes())
    check_options_folder(mine)
    option("optim/nemo_adam", "lr: 1\n")
    with pytest.raises(UsageError) as refused:
        check_options_folder(mine)
    assert (
        refused.value.message
        == f"{mine}/optim/nemo_adam.yaml: optim=nemo_adam is the name of a bundled option"
    )
    assert refused.value.remedy == "another name: optim/my_nemo_adam.yaml"


def test_no_option_name_leads_out_of_the_folder_of_its_group(option):
    mine = option("secret", "lr: 1\n")
    (mine / "optim").mkdir()
    for path in ("../secret", str(mine / "secret")):
        assert "there is no conf/optim/" in refusal("optim", path, mine).message


@pytest.mark.parametrize(
    "text",
    [
        "lr: 1\n",
        "# lr\nlr: 1\n",
        "---\nlr: 1\n",
        "lr: 1 # 2\nbetas: {beta1: 0.5}\n",
        "\ufefflr: 1\n",
        "{lr: 1}\n",
    ],
)
def test_an_option_file_of_plain_settings_is_read(option, text):
    read_option("optim", "mine", option("optim/mine", text))


@pytest.mark.parametrize(
    "header", ["# @package _global_", "#@package _global_", "\n\n# @package _global_"]
)
def test_an_option_file_may_set_several_sections(option, header):
    read_option("batch", "mine", option("batch/mine", f"{header}\ntrainer:\n  max_steps: 5\n"))


def test_an_option_file_may_have_the_size_limit_and_not_exceed_it(option, monkeypatch):
    monkeypatch.setattr("rampcli.config.yaml_files.LARGEST_FILE_BYTES", 100)
    read_option("optim", "mine", option("optim/mine", "lr: 1\n".ljust(100, "#")))
    assert (
        "larger than 100 bytes"
        in refusal("optim", "mine", option("optim/mine", "lr: 1\n".ljust(101, "#"))).message
    )


def test_a_deeply_nested_option_file_is_refused_without_a_crash(option):
    read_option("optim", "mine", option("optim/mine", f"lr: {'[' * 10}{']' * 10}\n"))
    refused = refusal("optim", "mine", option("optim/mine", f"lr: {'[' * 600}{']' * 600}\n"))
    assert "more than 20 levels" in refused.message
    assert len(refused.message) < 300
