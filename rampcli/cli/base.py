"""What a command composes: the options that all commands which compose a configuration share.

A command that has a parameter `base: Base` gets these options, without naming them.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rampcli.errors import UsageError

if TYPE_CHECKING:
    from rampcli.config.groups import Primary

SOURCES_VIEW, JOB_VIEW, HYDRA_VIEW, ALL_VIEWS = "sources", "job", "hydra", "all"
VIEWS = (SOURCES_VIEW, JOB_VIEW, HYDRA_VIEW, ALL_VIEWS)
"""What `--cfg` can show."""
INFO = ("all", "config", "defaults", "defaults-tree", "searchpath")
"""What `--info` can show."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Base:
    """A recipe or a primary file, the folders that are searched, and what to show of them.

    Each field is the option of its name, as it was given.

    Attributes:
        factory: Recipe: a name such as llama3_8b, your FILE.py, FILE.py:NAME or MODULE:NAME, or a
            FILE.yaml. Arguments may follow: 'llama3_8b(num_nodes=2)'.
        config_name: Primary file in place of a recipe: NAME.yaml in one of the folders.
        config_dir: Folder with further config groups.
        config_path: Folder of the primary file. Its groups come before the bundled ones.
        cfg: Print the configuration and exit: alone, with the source of each value; job, as it was
            composed; hydra, what Hydra says of itself; all, both.
        resolve: With --cfg job: print values for references.
        package: With --cfg: print this section only.
        multirun: Train with every combination of values, as rampcli sweep.
    """

    factory: Annotated[str | None, typer.Option("--factory", "-f", metavar="NAME")] = None
    config_name: Annotated[str | None, typer.Option("--config-name", "-cn", metavar="NAME")] = None
    config_dir: Annotated[
        Path | None,
        typer.Option("--config-dir", "-cd", metavar="DIR", exists=True, file_okay=False),
    ] = None
    config_path: Annotated[
        Path | None,
        typer.Option("--config-path", "-cp", metavar="DIR", exists=True, file_okay=False),
    ] = None
    cfg: Annotated[str | None, typer.Option("--cfg", "-c", metavar="[job|hydra|all]")] = None
    resolve: Annotated[bool, typer.Option("--resolve")] = False
    package: Annotated[str | None, typer.Option("--package", "-p", metavar="KEY")] = None
    info: Annotated[
        str | None,
        typer.Option(
            "--info",
            metavar="WHAT",
            help=f"Print how the configuration is composed, and exit: {', '.join(INFO)}.",
        ),
    ] = None
    multirun: Annotated[bool, typer.Option("--multirun", "-m")] = False

    def __str__(self) -> str:
        """The recipe or primary file and the folders, as they are typed."""
        given = {
            "--factory": self.factory,
            "--config-path": self.config_path,
            "--config-name": self.config_name,
            "--config-dir": self.config_dir,
        }
        words = [(name, str(value)) for name, value in given.items() if value is not None]
        return shlex.join(word for pair in words for word in pair)

    def primary(self) -> "Primary":
        """Returns the primary file and the folders that are searched.

        A recipe chooses among the options of the bundled primary file. A YAML file that needs Hydra
        is one itself. Without any of them, the primary is empty.
        """
        from rampcli.config.compose import primary_of
        from rampcli.config.groups import ROOT, Primary

        if self.factory is not None:
            of_file = primary_of(self.factory) or Primary()
            return replace(of_file, config_dir=self.config_dir)
        name = self.config_name or (ROOT if self.config_path else None)
        own = None if self.config_dir is None else self.config_dir / f"{ROOT}.yaml"
        if name == ROOT and self.config_path is None and own is not None and own.is_file():
            raise UsageError(
                f"{own} has the name of the bundled primary file, which comes first",
                remedy=f"--config-path {shlex.quote(str(self.config_dir))}",
                set_by=("--config-dir",),
            )
        return Primary(
            name=None if name is None else name.removesuffix(".yaml"),
            config_path=self.config_path,
            config_dir=self.config_dir,
        )

    def folders(self, words: Sequence[str] = ()) -> tuple[Path, ...]:
        """Returns the folders that are searched for groups, with those that words add."""
        from rampcli.config.compose import searched
        from rampcli.config.composition import further_folders

        primary = self.primary()
        return (*primary.folders, *further_folders(primary), *searched(words))

    def is_given(self) -> bool:
        """Returns whether a recipe, a primary file or a folder is named."""
        return any((self.factory, self.config_name, self.config_dir, self.config_path))

    def has_start(self, words: Sequence[str]) -> bool:
        """Returns whether words have something to be laid over."""
        has_file = self.factory or self.config_name or self.config_path
        return bool(has_file) or any(map(self.is_start, words))

    @staticmethod
    def is_start(word: str) -> bool:
        """Returns whether a word chooses what others are laid over, a run of another launcher."""
        from rampcli.words import WRAPPER

        return word.lstrip("+").partition("=")[0] == WRAPPER
