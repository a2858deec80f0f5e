"""Progress of a run: a line that updates in place on a terminal, and plain lines elsewhere."""

import signal
import time
from collections.abc import Iterable
from textwrap import indent
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from rampcli.batch.training_plan import StageExtent, StagePlan, TrainingPlan
from rampcli.errors import visible
from rampcli.launch.elastic import World
from rampcli.launch.observer import Observer
from rampcli.report.tables import evaluation_line, figure, share, validation_line
from rampcli.run_rows import loss_of

PLAIN_EVERY_S = 10.0
"""Seconds between plain lines."""
RECENT_WEIGHT = 0.1
"""Weight of the newest step in the moving average of the throughput."""


class Progress(Observer):
    """Prints the progress of a run.

    Attributes:
        plan: plan of the run.
        console: where to print.
        rollout_ranks: processes that only generate, besides those of the plan.
        corpora: names of the validation corpora, or None for one without a name.
        samples_per_s: moving average of the throughput, or None before the first step.
        live: line that updates in place, or None if the output is not a terminal.
        output_is_closed: True once the reader of the output has gone.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        console: Console,
        *,
        rollout_ranks: int = 0,
        corpora: Iterable[str | None] = (None,),
    ) -> None:
        self.plan = plan
        self.console = console
        self.rollout_ranks = rollout_ranks
        self.corpora = frozenset(corpora)
        self._validated: dict[str | None, dict[str, Any]] = {}
        self.samples_per_s: float | None = None
        self.live: Live | None = (
            Live(console=console, refresh_per_second=4, transient=True)
            if console.is_terminal
            else None
        )
        self.output_is_closed = False
        self._next_plain_at = 0.0

    def __enter__(self) -> "Progress":
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def on_start(self, stage: StagePlan, world: World, *, gpus: int) -> None:
        """Prints that the processes of a world start to train a stage."""
        device, nodes = "GPU" if gpus else "CPU", len(world.nodes)
        processes = f"{world.ranks} process{'es' if world.ranks > 1 else ''} on {device}"
        if self.rollout_ranks:
            verb = "generates" if self.rollout_ranks == 1 else "generate"
            processes += f", {self.rollout_ranks} more {verb}"
        emulation = f", {nodes} nodes emulated on this host" if nodes > 1 else ""
        self.samples_per_s = None
        self._print(
            f"starting {self._name(stage)}: batch {stage.global_batch_size}, {processes}{emulation}"
        )

    def on_row(self, row: dict[str, Any]) -> None:
        """Shows a step."""
        recent = self.samples_per_s or row["samples_per_s"]
        self.samples_per_s = (1 - RECENT_WEIGHT) * recent + RECENT_WEIGHT * row["samples_per_s"]
        line = self._line(row, self.samples_per_s)
        if self.live is not None:
            self.live.update(Text(line))
        elif time.monotonic() >= self._next_plain_at:
            self._next_plain_at = time.monotonic() + PLAIN_EVERY_S
            self._print(line)

    def on_event(self, row: dict[str, Any]) -> None:
        """Prints validation losses and warnings."""
        if row["event"] == "validation":
            self._on_validation(row)
        elif row["event"] == "evaluation":
            self._print(f"{evaluation_line([row])} after {row['consumed_samples']:,} prompts")
        elif row["event"] == "samples":
            self._on_samples(row)
        elif row["event"] in ("fault", "slow_data", "spare_ranks", "tracker_off"):
            self._print(f"warning: {row['reason']}")

    def _on_samples(self, row: dict[str, Any]) -> None:
        """Prints texts that the model has continued."""
        for each in row["texts"]:
            text = indent(each["prompt"] + each["text"], "    ", lambda _: True)
            self._print(f"text after step {row['step']:,}:\n{text}", keeps="\n\t")

    def _on_validation(self, row: dict[str, Any]) -> None:
        """Prints the losses of all corpora at a step, once the last of them is there."""
        if any(other["step"] != row["step"] for other in self._validated.values()):
            self._validated.clear()  # a validation that was interrupted
        self._validated[row.get("corpus")] = row
        if self._validated.keys() >= self.corpora:
            losses = {name: [each] for name, each in self._validated.items()}
            line = validation_line(losses, digits=4)
            self._print(f"{line} after {row['consumed_samples']:,} samples")
            self._validated.clear()

    def _line(self, row: dict[str, Any], samples_per_s: float) -> str:
        stage = self.plan.stage(row["stage"])
        consumed = row["consumed_samples"]
        total = "" if self.plan.end_sample is None else f"/{self.plan.end_sample:,}"
        if "reward" in row:
            parts = [
                self._name(stage),
                f"batch {row['global_batch_size']} prompts, {row['pairs']} pairs",
                f"{consumed:,}{total} prompts",
                f"reward {figure(row['reward'])}",
                f"solved {share(row['solved'])}",
                f"{row['tokens_per_s']:,.0f} tokens/s",
            ]
        else:
            parts = [
                self._name(stage),
                f"batch {row['global_batch_size']}",
                f"{consumed:,}{total} samples",
                f"loss {loss_of(row):.3f}",
                f"{samples_per_s * self.plan.sequence_length:,.0f} tokens/s",
            ]
        for name, end in (("stage", stage.end_sample), ("run", self.plan.end_sample)):
            if end is not None:
                parts.append(f"{name} {_duration(max(0, end - consumed) / samples_per_s)} left")
        return " · ".join(parts)

    def _name(self, stage: StageExtent) -> str:
        return f"stage {stage.stage + 1}/{self.plan.number_of_stages}"

    def _print(self, line: str, *, keeps: str = "") -> None:
        """Prints a line. A closed output stops the run as a closed terminal does: it saves."""
        try:
            self.console.print(Text(visible(line, keeps=keeps)))
        except BrokenPipeError:
            if not self.output_is_closed:
                self.output_is_closed = True
                signal.raise_signal(signal.SIGTERM)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
