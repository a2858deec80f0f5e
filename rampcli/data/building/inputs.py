"""The inputs of a build, and what they mean for its user."""

from collections.abc import Sequence
from dataclasses import dataclass

from rampcli.data.building.options import BuildOptions
from rampcli.data.building.parsing import BadRecord
from rampcli.data.building.partial import Watcher
from rampcli.data.building.records import Reader
from rampcli.errors import UsageError
from rampcli.machine.processors import processors

WORTH_A_PROCESS_BYTES = 4 << 20
"""Bytes of inputs for each further process, if the number of processes is not given."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs of a build, read as text."""

    options: BuildOptions
    reader: Reader
    watcher: Watcher

    @property
    def workers(self) -> int:
        """Number of processes that encode, or collect characters."""
        worthwhile = 1 + self.reader.bytes // WORTH_A_PROCESS_BYTES
        return self.options.workers or min(processors(), worthwhile)

    @property
    def are_packed(self) -> bool:
        """True if some inputs have another size after decompression."""
        inputs = self.reader.inputs
        return any(one.compression is not None or one.kind == "parquet" for one in inputs)

    def check(self, bad: Sequence[BadRecord]) -> None:
        """Raises a UsageError for the first bad record, if bad records stop the build."""
        if bad and self.options.on_bad_record == "stop":
            skip = "--on-bad-record skip, to leave such records out"
            remedies = [bad[0].remedy, skip] if bad[0].remedy else [skip]
            raise UsageError(self.describe(bad[0]), remedy=remedies)

    def describe(self, bad: BadRecord) -> str:
        """Returns the place of a bad record and what is wrong with it."""
        source = self.reader.inputs[bad.input]
        place = "row" if source.kind == "parquet" else "line"
        return f"{source.name}, {place} {bad.line:,}: {bad.reason}"
