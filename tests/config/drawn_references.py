"""Files of drawn trees, and the ways in which an entry of a defaults list may name one."""

import posixpath
from dataclasses import dataclass

ANYWHERE = "intervals"
"""Home of files whose settings may stand in any of these packages."""
PACKAGES = {ANYWHERE: ("checkpoint", "generate", "noise_scale")}
HOMES = {
    "exp/a": "",
    "exp/b": "",
    "exp/deep/x": "",
    "exp/deep/deeper/y": "",
    "shared": "",
    "special/stdlib_too": "",
    "special/mock_too": "",
    "batch/mine": "",
    "model/mine": "model",
    "data/mine": "data",
    "optim/mine": "optim",
    "optim/other": "optim",
    "exp/deep/rates": "optim",
    "schedule/long": "schedule",
    "checkpoint/often": "checkpoint",
    "exp/deep/deeper/saving": "checkpoint",
    "launch/slurm/part": "launch.slurm",
    "intervals/often": ANYWHERE,
    "intervals/rare": ANYWHERE,
}
"""Files of a tree, each with the package of its settings. A file includes later ones only."""
BUNDLED = {
    "model": ("llama3_tiny", "gpt3_126m", "qwen3_0p6b"),
    "data": ("stdlib", "mock"),
    "hardware": ("any", "h100_bf16"),
    "batch": ("llama3_tiny", "nemo_gpt3"),
    "optim": ("llama3_tiny", "nemo_adam", "nemo_gpt3"),
    "launch": ("local", "slurm"),
    "rl": ("none", "grpo"),
}
"""Groups of conf/config.yaml and some of their options, the default first."""


@dataclass(frozen=True)
class Reference:
    """A file as an entry of a defaults list, or a word, names it.

    Attributes:
        group: as it is written, with a slash in front if it is absolute.
        at: the package as it is written, or None.
        parent: package of the file with the entry.
        base: group of the file with the entry.
    """

    group: str
    at: str | None
    parent: str
    base: str

    @property
    def path(self) -> str:
        """The group from the folder on."""
        if self.group.startswith("/"):
            return self.group[1:]
        return "/".join(filter(None, (self.base, self.group)))

    def package(self, header: str | None) -> str:
        """Returns the package of the file that has this header."""
        if self.at is None and header is not None:
            return "" if header == "_global_" else header.removeprefix("_global_.")
        at = self.group.strip("/").replace("/", ".") if self.at is None else self.at
        at = {"_here_": "", "_group_": f"_global_.{self.path.replace('/', '.')}"}.get(at, at)
        whole = ".".join(filter(None, (self.parent, at)))
        return whole.rpartition("_global_")[2].removeprefix(".")

    @property
    def key(self) -> str:
        """What a word or an override calls the entry."""
        package = self.package(None)
        is_default = package == self.path.replace("/", ".")
        return self.path if is_default else f"{self.path}@{package or '_global_'}"

    def __str__(self) -> str:
        return self.group if self.at is None else f"{self.group}@{self.at}"


def references(
    name: str, header: str | None, *, parent: str, base: str, is_group: bool
) -> list[Reference]:
    """Returns the references that put the settings of a file into its package.

    Args:
        name: of the file, in `HOMES`.
        header: the package in its header, or None.
        parent: package of the file with the reference.
        base: its group.
        is_group: whether the group is named, and not a config.
    """
    group = posixpath.dirname(name)
    packages = packages_of(name)
    written = [f"/{group}"] if base else []
    if f"{group}/".startswith(f"{base}/") or not base:
        written.append(group.removeprefix(base).removeprefix("/"))
    ats = [None, None, "_here_", "_global_", *packages]
    ats += [f"_global_.{package}" for package in packages if package]
    ats += [package.removeprefix(f"{parent}.") for package in packages if parent]
    ats += ["_group_"] if group else []
    found = [Reference(one, at, parent, base) for one in written for at in ats if at != ""]
    return [
        one
        for one in found
        if one.package(header) in packages and (one.group.strip("/") or not is_group)
    ]


def packages_of(name: str) -> tuple[str, ...]:
    """Returns the packages that the settings of a file may stand in."""
    return PACKAGES.get(HOMES[name], (HOMES[name],))
