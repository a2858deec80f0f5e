"""Results of branches with larger batches: what each has reached, and the critical batch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from rampcli.batch.quantities import listed
from rampcli.report.plan_tables import as_hours
from rampcli.report.run_report import report_run
from rampcli.report.tables import build_table, figure
from rampcli.runs.directory import COMPLETE
from rampcli.runs.record import RunRecord
from rampcli.settings.optim import OptimConfig

Groups = Sequence[tuple[float, float]]
"""Groups of samples: the sum of the losses in nats, and the number of tokens, of each."""
TOLERANCE = 0.01
"""Difference in nats per token that counts as none (arXiv 2505.23971, section 3)."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Mean difference of two losses in nats per token, and its standard error.

    The standard error is None if there are fewer than two groups.
    """

    mean: float
    standard_error: float | None

    @property
    def is_worse(self) -> bool:
        """Whether it is above the tolerance, which is two standard errors at least."""
        return self.mean > max(TOLERANCE, 2 * (self.standard_error or 0.0))


def mean_loss(groups: Groups) -> float:
    """Returns the mean loss in nats per token."""
    return sum(loss for loss, _ in groups) / sum(tokens for _, tokens in groups)


def difference(groups: Groups, others: Groups) -> Difference:
    """Returns the loss of `groups` minus that of `others`, which have the same samples.

    The standard error is that of a ratio of two means over groups.

    Raises:
        ValueError: the samples are not the same.
    """
    if [tokens for _, tokens in groups] != [tokens for _, tokens in others]:
        raise ValueError("the losses are not of the same samples")
    return _mean([(a - b, tokens) for (a, tokens), (b, _) in zip(groups, others, strict=True)])


def _mean(groups: Groups) -> Difference:
    """Returns the mean of groups, and its standard error."""
    mean, number = mean_loss(groups), len(groups)
    if number < 2:
        return Difference(mean, None)
    squares = sum((loss - mean * tokens) ** 2 for loss, tokens in groups)
    tokens = sum(tokens for _, tokens in groups)
    return Difference(mean, math.sqrt(number / (number - 1) * squares) / tokens)


def unpaired_standard_error(groups: Groups, others: Groups) -> float | None:
    """Returns the standard error of the difference if the samples were not the same."""
    errors = [_mean(each).standard_error for each in (groups, others)]
    known = [error for error in errors if error is not None]
    return math.hypot(*known) if len(known) == len(errors) else None


def critical_multiple(groups: Mapping[int, Groups]) -> int:
    """Returns the largest multiple whose loss is not worse than that of any smaller one.

    Args:
        groups: losses by multiple of the batch.
    """
    return max(
        multiple
        for multiple, of_multiple in groups.items()
        if not any(
            difference(of_multiple, groups[smaller]).is_worse
            for smaller in groups
            if smaller < multiple
        )
    )


Branch = dict[str, Any]
"""A branch as in `rampcli.cbs.folder.BRANCH`."""
FEW_GROUPS, FEW_STEPS = 8, 20
"""With fewer groups or steps than these, a note says so."""


def groups_at_the_end(record: RunRecord, *, end_sample: int) -> Groups | None:
    """Returns the groups of the validation at the end of a branch, of all its corpora in order.

    Returns None if the branch was not validated in groups at its end, and an empty list if a loss
    is not finite.
    """
    rows = {
        row.get("corpus"): row["groups"]
        for row in record.events
        if row["event"] == "validation"
        and row["consumed_samples"] == end_sample
        and row.get("groups")
    }
    groups = [tuple(group) for of_corpus in rows.values() for group in of_corpus]
    if not all(len(group) == 2 for group in groups) or not any(group[1] for group in groups):
        return None
    return [] if any(None in group for group in groups) else groups


def add_results(
    branches: Mapping[int, Branch],
    records: Mapping[int, RunRecord],
    *,
    end_sample: int,
    sequence_length: int,
    world_size: int,
    decays: bool,
) -> dict[str, Any]:
    """Adds what the branches have reached to their facts, and returns the critical batch.

    Args:
        branches: facts by multiple, in order.
        records: of the branches that have started.
        end_sample: consumed samples at the end of a branch.
        sequence_length: tokens of a sample.
        world_size: processes of a branch.
        decays: whether the learning rate of a branch falls.
    """
    ended: dict[int, Groups] = {}
    for multiple, record in records.items():
        branch = branches[multiple]
        branch["hours"] = report_run(record).time.running_s / 3600
        branch["gpu_hours"] = branch["hours"] * world_size
        groups = groups_at_the_end(record, end_sample=end_sample)
        if branch["state"] == COMPLETE and groups is not None:
            ended[multiple] = groups
            branch["loss"] = mean_loss(groups) if groups else None
    known = {multiple: groups for multiple, groups in ended.items() if groups}
    for multiple, groups in known.items():
        if 1 in known:
            found = difference(groups, known[1])
            branches[multiple] |= {
                "difference": found.mean,
                "standard_error": found.standard_error,
            }
        branches[multiple]["worse_than"] = next(
            (j for j in known if j < multiple and difference(groups, known[j]).is_worse), None
        )
    critical = None
    if 1 in known and len(ended) == len(branches):
        critical = critical_multiple(known)  # a loss that is not finite is worse than any
    return {
        "critical_batch_size": critical and branches[critical]["global_batch_size"],
        "is_lower_bound": critical is not None and critical == max(branches),
        "notes": [
            *_notes_on_length(branches, sequence_length),
            *_notes(branches, ended, known, records, decays=decays),
        ],
    }


def _notes_on_length(branches: Mapping[int, Branch], sequence_length: int) -> list[str]:
    """Returns a note if branches take too few steps."""
    few = [str(multiple) for multiple, branch in branches.items() if branch["steps"] < FEW_STEPS]
    if not few:
        return []
    last = list(branches.values())[-1]
    enough = FEW_STEPS * last["global_batch_size"] * sequence_length
    return [
        f"multiple {listed(few)}: fewer than {FEW_STEPS} steps are too few to judge a batch;"
        f" --tokens {enough} is enough, for a checkpoint that has no branches yet"
    ]


def _notes(
    branches: Mapping[int, Branch],
    ended: Mapping[int, Groups],
    known: Mapping[int, Groups],
    records: Mapping[int, RunRecord],
    *,
    decays: bool,
) -> list[str]:
    """Returns what is uncertain about the results.

    Args:
        ended: groups of each branch that was validated at its end. The list is empty if a loss of
            the branch is not finite.
        known: the branches of `ended` whose list is not empty.
    """
    notes = []
    for multiple, branch in branches.items():
        if multiple in ended and multiple not in known:
            notes.append(f"the loss of multiple {multiple} is not finite, which counts as worse")
        elif branch["state"] == COMPLETE and multiple not in ended:
            notes.append(
                f"multiple {multiple} was not validated in groups of samples at its end, so it is"
                " not compared"
            )
    notes += _notes_on_order(branches, known)
    for multiple, record in records.items():
        if skipped := record.facts.events.counts.get("skip", 0):
            notes.append(f"multiple {multiple} skipped {skipped} of its steps")
    if known and (few := min(map(len, known.values()))) < FEW_GROUPS:
        notes.append(
            f"the held-out samples are only {few} groups, so the standard errors are rough"
        )
    better = [
        multiple
        for multiple in known
        if 1 in known and difference(known[1], known[multiple]).is_worse
    ]
    if better:
        notes.append(
            f"multiple 1 is worse than {', '.join(map(str, better))}: the learning rate of the run"
            " may be too low for its batch, and the critical batch is then not a limit of the data"
        )
    if known and not decays:
        notes.append(
            "at a constant learning rate, branches favour large batches: their weights are less"
            " noisy, as after a decay"
        )
    if records and (optimizer := _optimizer(records)) not in ("adamw", None):
        notes.append(f"the exponent 0.5 is a rule for Adam, and this run uses {optimizer}")
    return notes


def _notes_on_order(branches: Mapping[int, Branch], known: Mapping[int, Groups]) -> list[str]:
    """Returns a note if a multiple is worse and a larger one is not."""
    fine = max((one for one in known if branches[one]["worse_than"] is None), default=0)
    worse = [str(one) for one in known if one < fine and branches[one]["worse_than"] is not None]
    if not worse:
        return []
    return [
        f"multiple {listed(worse)} did worse, and the larger {fine} did not, so the critical batch"
        " is uncertain; longer branches (--tokens) from another checkpoint tell more"
    ]


def _optimizer(records: Mapping[int, RunRecord]) -> Any:
    return next(iter(records.values())).settings.get(OptimConfig.optimizer)


def branch_lines(result: Mapping[str, Any]) -> list[str]:
    """Returns the critical batch in words, and the notes."""
    lines, batch = [], result["critical_batch_size"]
    if batch is None:
        lines.append("critical batch: not known before all branches have a loss")
    elif result["is_lower_bound"]:
        lines.append(f"critical batch: {batch:,} samples or more; no larger one was tried")
    else:
        larger = min(
            branch["global_batch_size"]
            for branch in result["branches"]
            if branch["global_batch_size"] > batch
        )
        lines.append(f"critical batch: {batch:,} samples; the next larger one tried is {larger:,}")
    lines.append(
        f"a loss is worse if it is more than {TOLERANCE:g} and two standard errors above that of a"
        " smaller multiple, on the same held-out samples"
    )
    samples, left, phase = result["samples"], result["samples_left"], result.get("phase")
    if left is None or samples < left:
        whole = "the run" if phase is None else f"phase {phase}"
        of_rest = "" if left is None else f", {100 * samples / left:.3g}% of the rest of {whole}"
        lines.append(
            f"length of a branch: {samples:,} samples{of_rest}; it cannot show what accumulates"
            " over longer training (--tokens N sets the length)"
        )
    elif phase is not None and samples > left:
        lines.append(
            f"phase {phase} ends after {left:,} more samples; the branches train on with its"
            f" settings for {samples - left:,} (fewer --tokens end in the phase)"
        )
    return [*lines, *(f"note: {note}" for note in result["notes"])]


def branch_table(result: Mapping[str, Any]) -> Table:
    """Returns the branches of a result, one per row. `difference` is to the multiple 1."""
    table = build_table(
        *("multiple", "batch", "lr", "steps", "loss", "difference", "standard error"),
        *("hours", "GPU-hours", "verdict"),
        left=("verdict",),
    )
    for branch in result["branches"]:
        table.add_row(
            str(branch["multiple"]),
            f"{branch['global_batch_size']:,}",
            f"{branch['lr']:.2e}",
            f"{branch['steps']:,}",
            figure(branch["loss"]),
            _signed(branch["difference"]),
            "-" if branch["standard_error"] is None else f"{branch['standard_error']:.4f}",
            *(as_hours(branch[name] and branch[name] * 3600) for name in ("hours", "gpu_hours")),
            _verdict(branch),
        )
    return table


def _signed(number: float | None) -> str:
    return "-" if number is None else f"{number:+.4f}"


def _verdict(branch: Branch) -> str:
    """Returns whether the loss is worse than that of a smaller multiple, or the state."""
    if branch["loss"] is None:
        return "no loss" if branch["state"] == COMPLETE else str(branch["state"])
    worse = branch["worse_than"]
    return "not worse" if worse is None else f"worse than {worse}"
