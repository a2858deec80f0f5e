import pytest

from rampcli.errors import UsageError
from rampcli.settings.rewards import (
    BUILT_IN_REWARDS,
    UserFunction,
    parse_reward_name,
)


@pytest.mark.parametrize("name", BUILT_IN_REWARDS)
def test_a_built_in_function_is_named_by_a_word(name):
    assert parse_reward_name(name) == name


def test_a_function_of_a_file_is_named_by_its_path_relative_or_not(tmp_path, monkeypatch):
    (tmp_path / "a b:c.py").touch()
    monkeypatch.setenv("HOME", str(tmp_path))
    absolute = UserFunction(str(tmp_path / "a b:c.py"), "score")
    for source in ("a b:c.py", "./a b:c.py", "~/a b:c.py", absolute.source):
        assert parse_reward_name(f"{source}:score") == absolute
    assert parse_reward_name(str(absolute)) == absolute


def test_a_function_of_a_module_is_not_imported_to_check_its_name():
    assert parse_reward_name("no.such_module:score") == UserFunction("no.such_module", "score")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("exactmatch", "rl.reward=exact_match"),
        ("len", "rl.reward=length"),
        ("", "rl.reward=contains"),
        ("rewards.py", "rl.reward=rewards.py:FUNCTION"),
        ("rewards.py:", "rl.reward=rewards.py:score"),
        ("rewards.py:f()", "rl.reward=rewards.py:score"),
        ("folder/rewards:score", "rl.reward=rewards.py:score"),
        (":score", "rl.reward=rewards.py:score"),
        ("a..b:score", "rl.reward=rewards.py:score"),
        ("missing.py:score", "rl.reward=FILE.py:score"),
        ("nul\0.py:score", "rl.reward=FILE.py:score"),
        (f"{'x' * 5000}.py:score", "rl.reward=FILE.py:score"),
    ],
)
def test_other_names_are_refused_with_one_that_works(name, remedy):
    with pytest.raises(UsageError) as refused:
        parse_reward_name(name)
    assert refused.value.keys == ("rl.reward",)
    assert remedy in refused.value.remedy


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "rewards.py").mkdir()
    with pytest.raises(UsageError):
        parse_reward_name(f"{tmp_path}/rewards.py:score")
