import sys

import pytest

from rampcli.errors import UsageError
from rampcli.launch.trackers import check_packages


def test_the_folder_that_wandb_makes_is_not_taken_for_its_package(tmp_path, monkeypatch):
    (tmp_path / "wandb" / "offline-run").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(UsageError, match="needs the package wandb"):
        check_packages(["wandb"])
    (tmp_path / "wandb" / "__init__.py").touch()
    check_packages(["wandb"])
