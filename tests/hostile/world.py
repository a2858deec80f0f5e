"""The files of a hostile case: a working directory, canaries, and ways to plant files."""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planted import plant_modules

DEEP = 100_000


@dataclass(frozen=True, slots=True)
class World:
    """Two folders: `here`, where commands run, and `outside`, which no command may touch."""

    here: Path
    outside: Path

    @classmethod
    def build(cls, folder: Path, materials: Path, names: tuple[str, ...]) -> "World":
        """Copies materials, whose names may be prefixes, and puts canaries beside them."""
        world = cls(folder / "here", folder / "outside")
        world.here.mkdir()
        for name in names:
            for path in materials.glob(f"{name}*"):
                if path.name in (
                    name,
                    *(f"{name}{suffix}" for suffix in (".bin", ".idx", ".json", ".tokenizer.json")),
                ):
                    copy = shutil.copytree if path.is_dir() else shutil.copy2
                    copy(path, world.here / path.name)
        for path in (
            "precious.txt",
            "folder/precious.txt",
            "folder/step_00000001/precious.txt",
            "folder/stage_0.log",
        ):
            (world.outside / path).parent.mkdir(parents=True, exist_ok=True)
            (world.outside / path).write_text("precious\n")
        plant_modules(world.here, marks=world.outside)
        return world

    def path(self, name: str) -> Path:
        """Returns a path below `here` and creates its folder."""
        path = self.here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def clear(self, name: str) -> Path:
        """Like `path`, but deletes any file or folder at the path first."""
        path = self.path(name)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return path


Plant = Callable[[World], Any]


def write(name: str, content: str | bytes) -> Plant:
    """Plants a file."""
    return lambda world: world.clear(name).write_bytes(
        content if isinstance(content, bytes) else content.encode()
    )


def write_json(name: str, content: Any) -> Plant:
    """Plants a JSON file, which may contain NaN."""
    return write(name, json.dumps(content))


Change = Callable[[Any], Any] | Mapping[str, Any]
"""A change of JSON: edits the value in place, returns another, or is laid over a mapping."""


def edit_json(name: str, change: Change) -> Plant:
    """Plants an altered JSON file."""

    def plant(world: World) -> None:
        content = json.loads((world.here / name).read_text())
        (world.here / name).write_text(json.dumps(changed(content, change)))

    return plant


def changed(content: Any, change: Change) -> Any:
    """Returns JSON with a change."""
    return change(content) or content if callable(change) else content | change


def edits(name: str, changes: Mapping[str, Change]) -> dict[str, Plant]:
    """Plants altered JSON files."""
    return {kind: edit_json(name, change) for kind, change in changes.items()}


def edit_bytes(name: str, change: Callable[[bytes], bytes]) -> Plant:
    """Plants a file computed from the previous content."""
    return lambda world: (world.here / name).write_bytes(change((world.here / name).read_bytes()))


def edit_text(name: str, old: str, new: str) -> Plant:
    """Replaces a piece of text, which must be present."""

    def plant(world: World) -> None:
        text = (world.here / name).read_text()
        assert old in text, (old, text)
        (world.here / name).write_text(text.replace(old, new))

    return plant


def cut(name: str, share: float = 0.5) -> Plant:
    """Truncates a file."""
    return edit_bytes(name, lambda content: content[: int(len(content) * share)])


def remove(name: str) -> Plant:
    """Removes a file or folder."""
    return lambda world: world.clear(name)


def link(name: str, target: str = "precious.txt") -> Plant:
    """Plants a symbolic link to something outside."""
    return lambda world: world.clear(name).symlink_to(world.outside / target)


def fifo(name: str) -> Plant:
    """Plants a FIFO, which blocks a careless reader."""
    return lambda world: os.mkfifo(world.clear(name))


def device(name: str) -> Plant:
    """Plants a link to an endless device."""
    return lambda world: world.clear(name).symlink_to("/dev/zero")


def folder(name: str) -> Plant:
    """Plants a folder with a file in it where a file is expected."""

    def plant(world: World) -> None:
        world.clear(name).mkdir()
        (world.here / name / "theirs.txt").write_text("precious\n")

    return plant


def hostile_json() -> dict[str, str | bytes]:
    """Returns texts that must not crash a reader of JSON."""
    return {
        "empty": "",
        "truncated": '{"step": 1, "sta',
        "deep list": "[" * DEEP,
        "deep mapping": '{"a":' * DEEP,
        "closed deep list": "[" * DEEP + "]" * DEEP,
        "null": "null",
        "a string": '"text"',
        "a list": "[1, 2]",
        "not UTF-8": b'{"status": "\xff\xfe"}',
        "NUL bytes": b"\0" * 100,
        "NaN": '{"step": NaN, "status": -Infinity}',
        "an endless integer": '{"step": ' + "9" * 10_000 + "}",
        "an escape sequence": '{"\x1b[2J\x1b]0;owned\x07": "\\u001b[31m\\u202e"}',
    }


def not_json(name: str) -> dict[str, Plant]:
    """Plants each text of `hostile_json`."""
    return {kind: write(name, text) for kind, text in hostile_json().items()}


def not_files(name: str, *kinds: str) -> dict[str, Plant]:
    """Plants what is no file, or only some kinds of it."""
    found = {
        "a FIFO": fifo,
        "a folder": folder,
        "an endless device": device,
        "a link": link,
        "gone": remove,
    }
    return {kind: found[kind](name) for kind in kinds}


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """Returns everything below a folder: links, folders, and files with times and contents."""
    found: dict[str, tuple[Any, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(place, name)
            facts = path.lstat()
            key = path.relative_to(folder).as_posix()
            if stat.S_ISLNK(facts.st_mode):
                found[key] = ("link", os.readlink(path))
            elif stat.S_ISREG(facts.st_mode):
                found[key] = (
                    "file",
                    facts.st_mode,
                    facts.st_mtime_ns,
                    facts.st_size,
                    hashlib.sha256(path.read_bytes()).hexdigest(),
                )
            else:
                found[key] = ("other", facts.st_mode)
    return found
