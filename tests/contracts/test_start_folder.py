"""Tests do not see the folder that pytest is started in, which may hold runs of a user."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def folder_of_the_module():
    return Path.cwd()


def test_fixtures_of_a_module_run_outside_the_folder_that_pytest_is_started_in(
    folder_of_the_module, request
):
    assert not folder_of_the_module.samefile(request.config.invocation_params.dir)


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_starts_in_an_empty_folder_of_its_own(turn, tmp_path, folder_of_the_module):
    here = Path.cwd()
    assert here == tmp_path != folder_of_the_module
    assert list(here.iterdir()) == []
    (here / f"left by test {turn}").touch()
