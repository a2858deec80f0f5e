"""Runs each hostile case and checks it against the laws of `hostile.laws`."""

import fcntl
import os
from contextlib import nullcontext

import pytest

from hostile.calling import call
from hostile.case import Case
from hostile.cases import CASES
from hostile.laws import broken_laws, changes
from hostile.world import World, snapshot
from rampcli.data import chat_template
from rampcli.launch.slurm import template


@pytest.fixture(autouse=True)
def _short_limits(monkeypatch):
    """Ends templates that never end after one second of processor time instead of five."""
    for module in (chat_template, template):
        monkeypatch.setattr(module, "CPU_S", 1)


@pytest.mark.parametrize("row", CASES, ids=lambda row: row.id)
def test_a_hostile_file_gives_one_message_and_nothing_foreign_is_changed(
    row: Case, materials, tmp_path
):
    world = World.build(tmp_path, materials, row.uses)
    for plant in row.plants:
        plant(world)
    before = snapshot(tmp_path)
    with world.path("run/lock").open("a") if row.holds_lock else nullcontext() as lock:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        ended = call(*row.command, cwd=world.here)
        if row.holds_lock:  # this process holds the lock, so a signal to it is correct
            ended.signalled = [process for process in ended.signalled if process != os.getpid()]
    broken = broken_laws(ended, codes=row.codes)
    broken += changes(before, snapshot(tmp_path), writes=[f"here/{name}" for name in row.writes])
    broken += [] if row.says in ended.stdout + ended.stderr else [f"does not say {row.says!r}"]
    assert broken == [], f"\n{ended.stdout[-1500:]}\n{ended.stderr[-3000:]}"


def test_cases_are_at_least_two_hundred_and_distinct():
    assert len({row.id for row in CASES}) == len(CASES) >= 200
