"""Builds a corpus, and shows the progress and the result."""

import gc
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from rampcli import llm
from rampcli.batch.quantities import counted
from rampcli.cli.console import build_console, say
from rampcli.cli.progress import PLAIN_EVERY_S
from rampcli.config.reading import as_word
from rampcli.data.building.build import Built, build
from rampcli.data.building.options import BuildOptions
from rampcli.data.building.partial import Watcher, WrittenCounts
from rampcli.data.indexed import bin_of, idx_of, manifest_of, tokenizer_of
from rampcli.data.sources import fitting_words
from rampcli.errors import EXIT_CTRL_C, EXIT_INTERRUPTED, printable, typeable, visible
from rampcli.settings.checks import check_name
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig

OFFERED_RECIPE = "llama3_tiny"
"""A recipe that trains on any machine."""


class Stopped(BaseException):
    """Raised with the number of a signal that asks the build to stop."""


class BuildProgress(Watcher):
    """Shows progress as a bar on a terminal, elsewhere as a line from time to time.

    Between two chunks it raises `Stopped` if a signal has arrived.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Progress | None = None
        if console.is_terminal:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TaskProgressColumn(),
                TextColumn("{task.fields[facts]}"),
            )
            self.bar = Progress(*columns, console=console, transient=True)
        self._phase = ""
        self._total_bytes = 0
        self._first: int | None = None
        self._signal: int | None = None
        self._began = self._plain_at = time.monotonic()

    def on_phase(self, name: str, total_bytes: int) -> None:
        """Starts the bar of a pass over the inputs."""
        self._phase, self._total_bytes, self._first = name, max(1, total_bytes), None
        self._began = time.monotonic()
        self._plain_at = self._began + PLAIN_EVERY_S
        if self.bar is not None:
            for task in self.bar.task_ids:
                self.bar.remove_task(task)
            self.bar.add_task(name, total=self._total_bytes, facts="")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the bar, and defers SIGINT and SIGTERM to the end of a chunk.

        An exception raised by a signal handler could interrupt a library at any point. A second
        signal stops at once nevertheless.
        """
        before = {
            number: signal.signal(number, self._on_signal)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            with self.bar or nullcontext():
                yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: object) -> None:
        if self._signal is not None:
            raise Stopped(number)
        self._signal = number

    def on_progress(self, consumed_bytes: int, written: WrittenCounts | None) -> None:
        """Updates the bar after a chunk, or prints a line if one is due."""
        if self._signal is not None:
            raise Stopped(self._signal)
        if self._first is None:
            self._first = consumed_bytes  # a resumed build has not read the bytes before
        facts = self._facts(consumed_bytes, written)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=consumed_bytes, facts=facts)
        elif time.monotonic() >= self._plain_at:
            self._plain_at = time.monotonic() + PLAIN_EVERY_S
            say(self.console, f"{self._phase}: {consumed_bytes / self._total_bytes:.0%} · {facts}")

    def on_note(self, line: str) -> None:
        """Prints a line above the bar."""
        say(self.console, printable(line))

    def _facts(self, consumed_bytes: int, written: WrittenCounts | None) -> str:
        speed = (consumed_bytes - (self._first or 0)) / max(1e-3, time.monotonic() - self._began)
        parts = [] if written is None else [f"{written.documents:,} documents"]
        if speed:
            left = timedelta(seconds=round((self._total_bytes - consumed_bytes) / speed))
            parts += [f"{speed / 1e6:.1f} MB/s", f"{left} left"]
        return " · ".join(parts)


def run_build(options: BuildOptions, *, as_json: bool) -> int:
    """Builds a corpus, showing its progress, and returns the exit code.

    Raises:
        RampcliError: as in `build`.
    """
    gc.enable()
    options = options.located()  # while Ctrl-C still ends a download at once
    console = (
        Console(stderr=True, highlight=False, quiet=not sys.stderr.isatty())
        if as_json
        else build_console()
    )
    try:
        progress = BuildProgress(console)
        with progress.shown():
            began = time.monotonic()
            built = build(options, progress)
            seconds = time.monotonic() - began
    except Stopped as stopped:
        say(
            console,
            f"stopped; progress is saved in {options.partial}"
            if options.partial.is_dir()
            else "stopped; there was no progress to save",
        )
        say(console, f"resume with:\n  {shlex.join(['rampcli', *sys.argv[1:]])}")
        return EXIT_INTERRUPTED if stopped.args == (signal.SIGTERM,) else EXIT_CTRL_C
    if as_json:
        typer.echo(json.dumps({**built.manifest, "seconds": round(seconds, 3)}))
    else:
        _show_result(options, built, seconds, console)
    return 0


def _show_result(options: BuildOptions, built: Built, seconds: float, console: Console) -> None:
    manifest = built.manifest
    tokens, text_bytes = manifest["tokens"], manifest["text_bytes"]
    if built.was_complete:
        say(console, f"{idx_of(options.output)} already exists, from the same inputs and options")
    counts = [
        counted(manifest["documents"], "document"),
        counted(tokens, "token"),
        f"{text_bytes / max(1, tokens):.2f} bytes per token",
    ]
    if empty := manifest["empty"]:
        counts.append(f"{counted(empty, 'empty text')} left out")
    say(console, ", ".join(counts))
    if not built.was_complete:
        megabytes = built.encoded_bytes / 1e6
        speed = megabytes / max(1e-3, seconds)
        say(console, f"{megabytes:,.1f} MB of text in {seconds:.1f} s: {speed:.1f} MB/s")
    written = [path_of(options.output) for path_of in (bin_of, idx_of, tokenizer_of, manifest_of)]
    if manifest["skipped"]:
        say(console, f"skipped {counted(manifest['skipped'], 'bad record')}: {options.skipped}")
        written.append(options.skipped)
    if not built.was_complete:
        say(console, f"wrote {', '.join(map(str, written))}")
    say(console, f"train on it:\n  {visible(_training_command(options.output))}")


def _training_command(prefix: Path) -> str:
    """Returns a command that trains a small model on a corpus, in a run named after the corpus."""
    config = llm.from_factory(OFFERED_RECIPE)
    words = ["data=indexed", as_word(DataConfig.path, str(prefix))]
    if not any(check_name(Config(name=prefix.name))):
        words.append(as_word("name", prefix.name))
    words += map(typeable, fitting_words(prefix, config))
    return " ".join(("rampcli pretrain --factory", OFFERED_RECIPE, *words))
