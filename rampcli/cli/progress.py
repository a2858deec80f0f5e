"""Progress of a run: a line that updates in place on a terminal, and plain lines elsewhere."""

import time
from contextlib import suppress
from enum import StrEnum
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.text import Text

from rampcli.batch.ramp import StageExtent
from rampcli.batch.training_plan import StagePlan
from rampcli.cli.console import is_notebook
from rampcli.cli.progress_line import Line, Picture, line_for
from rampcli.errors import RampcliError, printable, visible
from rampcli.launch.elastic import World
from rampcli.launch.observer import Observer
from rampcli.planning.run_plan import Resolved
from rampcli.report.phases import data_lines
from rampcli.report.standstill_text import ranks_text, standstill_text
from rampcli.report.tables import (
    duration,
    evaluation_line,
    figure,
    share,
    validation_line,
)
from rampcli.runs.directory import RunDirectory
from rampcli.runs.event_kinds import CHANGE, NEWEST, WARNINGS
from rampcli.runs.facts import RunFacts
from rampcli.runs.rows import last_events, loss_of
from rampcli.runs.standstill import Standstill, find_standstill
from rampcli.settings.data import DataConfig, validation_names

PLAIN_EVERY_S = 10.0
"""Seconds between plain lines."""
RANKS_EVERY_S = 2.0
"""Seconds between two looks at what the ranks do."""


class Wait(StrEnum):
    """What a run does while it takes no steps."""

    PREPARING = "preparing"
    STARTING = "starting processes"
    LOADING = "loading model and data"
    COMPILING = "compiling"
    VALIDATING = "validating"
    FIRST_STEP = "first step"
    ENDING = "ending processes"
    RESTARTING = "restarting"


class Progress(Observer):
    """Prints the progress of a run.

    Attributes:
        opening: what the run trains on, shown before its first stage.
        line: line that updates in place, or None if only plain lines are printed.
        waits_for: what the run does while it takes no steps, or None while it does.
        waits_since: monotonic time since when it has taken no steps.
        facts: what the run has done, with the rows of these processes alone.
        output_is_closed: True once the reader of the output has gone.
    """

    def __init__(self, resolved: Resolved, run: RunDirectory, console: Console) -> None:
        self.resolved, self.config, self.plan = resolved, resolved.config, resolved.plan
        self.opening = "".join(f"{printable(line)}\n" for line in data_lines(resolved))
        self.run = run
        self.console = console
        self.line: Line | None = None
        self.stage: StageExtent = self.plan.stages[0]
        self.waits_for: Wait | None = Wait.PREPARING
        self.waits_since = time.monotonic()
        self.facts = RunFacts(plan=self.plan.to_json())
        self.output_is_closed = False
        self._has_started = False
        self._validated: dict[str | None, dict[str, Any]] = {}
        self._compiles = False
        self._next_plain_at = 0.0
        self._standstill: Standstill | None = None
        self._looks_at = 0.0
        self._printed_ranks: str | None = None

    def __enter__(self) -> "Progress":
        self.line = line_for(self.console, self.picture, in_notebook=is_notebook())
        if self.line is not None:
            self.line.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.facts.rows:
            self.waits_for = None
        if self.line is not None:
            self.line.stop()

    def on_start(self, stage: StagePlan, world: World, *, gpus: int) -> None:
        """Prints the stage and the processes that start to train it."""
        device, nodes = "GPU" if gpus else "CPU", len(world.nodes)
        processes = f"{world.ranks} process{'es' if world.ranks > 1 else ''} on {device}"
        if rollout_ranks := self.config.rl.rollout_ranks:
            verb = "generates" if rollout_ranks == 1 else "generate"
            processes += f", {rollout_ranks} more {verb}"
        emulation = f", {nodes} nodes emulated on this host" if nodes > 1 else ""
        self.stage = stage
        self.facts = RunFacts(plan=self.facts.plan)
        with suppress(RampcliError, OSError):  # the workers report a file that cannot be read
            self.facts.state = self.run.read_state()
            self.facts.events.add(last_events(self.run.events, NEWEST))
        self._wait_for(Wait.STARTING, since=time.monotonic())
        opening = "" if self._has_started else self.opening
        self._has_started = True
        batch = f"batch {stage.global_batch_size}"
        self._print(
            f"{opening}starting {self._name(stage)}: {batch}, {processes}{emulation}", keeps="\n"
        )

    def on_row(self, row: dict[str, Any]) -> None:
        """Shows a step."""
        self.stage = self.plan.stage(row["stage"])
        self.facts.add_row(row)
        if self.waits_for != Wait.ENDING:  # events are passed on before the rows
            self.waits_for = None
        if self.line is None and time.monotonic() >= self._next_plain_at:
            self._next_plain_at = time.monotonic() + PLAIN_EVERY_S
            self._print(" · ".join(self._plain_facts()))

    def on_poll(self) -> None:
        """Prints a plain line if no steps are taken, and again if other ranks are the reason."""
        if self.line is not None or time.monotonic() < self._next_plain_at:
            return
        standstill = self._find_standstill()
        ranks = None if standstill is None else ranks_text(standstill.ranks)
        if standstill is not None and ranks != self._printed_ranks:
            self._next_plain_at = time.monotonic() + PLAIN_EVERY_S
            self._print(f"{self._name(self.stage)} · {standstill_text(standstill)}")
        self._printed_ranks = ranks

    def on_event(self, row: dict[str, Any]) -> None:
        """Prints validation losses, texts and warnings, and notes what the run waits for."""
        self.facts.events.add([row])
        if row["event"] == "validation":
            self._on_validation(row)
        elif row["event"] == "evaluation":
            self._print(f"{evaluation_line([row])} after {row['consumed_samples']:,} prompts")
        elif row["event"] == "samples":
            self._on_samples(row)
        elif row["event"] == "change":
            note = f"note: {CHANGE.format_map(row)} after step {row['step']:,}"
            if row["setting"] == DataConfig.blend:
                first = row["consumed_samples"]
                note += f"; sample {first:,} and later ones are those of the new blend"
            self._print(note)
        elif row["event"] in WARNINGS:
            self._print(f"warning: {row['reason']}")
        self._follow(row)

    def _on_samples(self, row: dict[str, Any]) -> None:
        """Prints the texts that the model wrote."""
        for each in row["texts"]:
            text = indent(each["prompt"] + each["text"], "    ", lambda _: True)
            self._print(f"text after step {row['step']:,}:\n{text}", keeps="\n\t")

    def _on_validation(self, row: dict[str, Any]) -> None:
        """Prints the losses of all corpora at a step, once the last one is known."""
        if any(other["step"] != row["step"] for other in self._validated.values()):
            self._validated.clear()  # an earlier validation was interrupted
        self._validated[row.get("corpus")] = row
        config = self.resolved.of(self.stage).config
        if self._validated.keys() >= {*validation_names(config)}:
            losses = {name: [each] for name, each in self._validated.items()}
            line = validation_line(losses, digits=4)
            self._print(f"{line} after {row['consumed_samples']:,} samples")
            self._validated.clear()

    def _follow(self, row: dict[str, Any]) -> None:
        """Updates the facts and `waits_for` after an event."""
        match row["event"]:
            case "load":
                self._compiles = row.get("compiles") is True
                self._wait_for(Wait.LOADING)
            case "start":
                position = {name: row[name] for name in ("step", "consumed_samples")}
                self.facts.state = self.facts.recorded | position
                self._wait_for(Wait.COMPILING if self._compiles else Wait.VALIDATING)
            case "compile" if not self.facts.rows:
                self._wait_for(Wait.VALIDATING)
            case "stage" if not self.facts.rows:
                self._wait_for(Wait.FIRST_STEP)
            case "stop" | "exit" if self.waits_for != Wait.ENDING:
                self._wait_for(Wait.ENDING, since=time.monotonic())
            case "fault" if self.waits_for == Wait.ENDING:  # processes that train report faults too
                self._wait_for(Wait.RESTARTING, since=time.monotonic())

    def _wait_for(self, what: Wait, *, since: float | None = None) -> None:
        self.waits_for = what
        self.waits_since = self.waits_since if since is None else since

    def picture(self) -> Picture:
        """Returns what the line shows now. Called by other threads."""
        facts, waits_for = self.facts, self.waits_for
        standstill, end = self._find_standstill(), facts.end_sample
        ranks = "" if standstill is None else ranks_text(standstill.ranks)
        if waits_for is not None or not facts.rows:
            waited_s = time.monotonic() - self.waits_since
            shown = [waits_for or Wait.FIRST_STEP, duration(waited_s)]
        elif standstill is not None:
            shown = [f"no step for {duration(standstill.quiet_s)}"]
        else:
            texts = self._texts(facts)
            names = ("run", "reward", "loss", "tokens/s", "solved", "batch", "samples")
            in_stages = ("stage",) if self.plan.number_of_stages > 1 else ()
            shown = [texts[name] for name in (*names, *in_stages) if name in texts]
        if ranks:  # they need the room of the bar
            shown, end = [f"{' '.join(shown)}: {ranks}"], None
        return Picture(
            name=self._name(self.stage),
            share=None if not end else min(1.0, self._share(facts.consumed_samples, end)),
            facts=shown,
        )

    def _share(self, consumed_samples: int, end_sample: int) -> float:
        """Returns the share of the tokens of the run that its first samples have."""
        return self.plan.tokens_at(consumed_samples) / self.plan.tokens_at(end_sample)

    def _find_standstill(self) -> Standstill | None:
        """Returns the standstill of the run as it was at most `RANKS_EVERY_S` ago."""
        now = time.monotonic()
        if now >= self._looks_at:
            self._looks_at = now + RANKS_EVERY_S
            self._standstill = find_standstill(self.run, self.facts, now=time.time())
        return self._standstill

    def _plain_facts(self) -> list[str]:
        """Returns the parts of a plain line."""
        texts = self._texts(self.facts)
        names = ("batch", "samples", "loss", "reward", "solved", "tokens/s", "stage", "run")
        return [self._name(self.stage), *(texts[name] for name in names if name in texts)]

    def _texts(self, facts: RunFacts) -> dict[str, str]:
        """Returns texts about the last step, and about the time left if it is known, by name."""
        row = facts.last
        total = "" if facts.end_sample is None else f"/{facts.end_sample:,}"
        texts = {
            "batch": f"batch {row['global_batch_size']}",
            "samples": f"{facts.consumed_samples:,}{total} samples",
            "tokens/s": f"{facts.tokens_per_s or 0:,.0f} tokens/s",
        }
        if "reward" in row:
            texts |= {
                "batch": f"batch {row['global_batch_size']} prompts, {row['pairs']} pairs",
                "samples": f"{facts.consumed_samples:,}{total} prompts",
                "reward": f"reward {figure(row['reward'])}",
                "solved": f"solved {share(row['solved'])}",
            }
        else:
            texts["loss"] = f"loss {loss_of(row):.3f}"
        for name, seconds in zip(("stage", "run"), facts.time_left(), strict=True):
            if seconds:
                texts[name] = f"{name} {duration(seconds)} left"
        return texts

    def _name(self, stage: StageExtent) -> str:
        name = f"stage {stage.stage + 1}/{self.plan.number_of_stages}"
        phase = self.plan.of(stage).name
        return name if phase is None else f"phase {phase} · {name}"

    def _print(self, line: str, *, keeps: str = "") -> None:
        """Prints a line. If the output is closed, the error stops the run, which saves."""
        try:
            self.console.print(Text(visible(line, keeps=keeps)), soft_wrap=True)
        except BrokenPipeError:
            self.output_is_closed = True
            raise
