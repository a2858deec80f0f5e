"""A standstill as text: which ranks do not answer, which ones are behind, and which ones wait."""

from collections.abc import Iterable, Sequence
from itertools import groupby

from rampcli.errors import printable
from rampcli.report.tables import duration
from rampcli.runs.heartbeats import Rank, Ranks
from rampcli.runs.standstill import Standstill

MOST_RANK_GROUPS = 3
"""Groups of ranks that a text names."""
MOST_RANK_RANGES = 8
"""Ranks and ranges of ranks that a group is shown with, besides its last one."""
LEAST_RANGE = 3
"""Ranks in a row that are shown as a range, such as `4 to 6`."""


def standstill_text(standstill: Standstill) -> str:
    """Returns for how long a run has taken no step, and which ranks the others wait for."""
    return ": ".join(filter(None, (quiet_text(standstill), ranks_text(standstill.ranks))))


def quiet_text(standstill: Standstill) -> str:
    """Returns for how long a run has taken no step, and how long a step takes if that is known."""
    usual = "" if standstill.step_s is None else f" (steps take {standstill.step_s:.3g} s)"
    return f"no step for {duration(standstill.quiet_s)}{usual}"


def ranks_text(ranks: Ranks) -> str:
    """Returns which ranks the others wait for, or else what all of them do; "" if unknown."""
    behind, waiting = ranks.behind, [rank.rank for rank in ranks.waiting]
    groups = [list(ranks.missing)] if ranks.missing else []
    texts = [f"{_are(ranks.missing, 'has', 'have')} not started"] if ranks.missing else []
    for deed, group in _groups(behind if behind or ranks.missing else ranks.known):
        groups.append([rank.rank for rank in group])
        texts.append(_did(deed, group))
    if hidden := sum(map(len, groups[MOST_RANK_GROUPS:])):
        texts[MOST_RANK_GROUPS:] = [f"{hidden} more ranks are behind"]
    if waiting:
        them = "it" if sum(map(len, groups)) == 1 else "them"
        texts.append(f"{_are(waiting, 'waits', 'wait')} for {them}")
    return "; ".join(texts)


def _groups(ranks: Iterable[Rank]) -> list[tuple[str, list[Rank]]]:
    """Returns the ranks that do the same on one host, with what they do. Silent ones come first."""

    def deed(rank: Rank) -> tuple[bool, str, str]:
        doing = "waiting for each other" if rank.waits else rank.doing
        # Hosts matter where processes do not run.
        return rank.answers, doing if rank.answers else "", "" if rank.answers else rank.host

    ordered = sorted(ranks, key=lambda rank: (deed(rank), rank.rank))
    return [(key[1], list(group)) for key, group in groupby(ordered, deed)]


def _did(doing: str, group: Sequence[Rank]) -> str:
    """Returns what the ranks of a group do, with the process if there is one."""
    first, numbers = group[0], [rank.rank for rank in group]
    host = printable(first.host)
    where = f" (process {first.pid} on {host})" if len(group) == 1 else f" on {host}"
    if not first.answers:
        return _are(numbers, "does", "do", where=where) + " not answer"
    where = where if len(group) == 1 else ""
    return f"{_are(numbers, 'is', 'are', where=where)} {printable(doing)}"


def _are(numbers: Sequence[int], one: str, several: str, *, where: str = "") -> str:
    """Returns some ranks with a verb, such as `ranks 0, 2 to 5 on node7 are`."""
    if len(numbers) == 1:
        return f"rank {numbers[0]}{where} {one}"
    parts = list[str]()
    # Numbers in a row have the same distance from their places.
    for _, row in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        found = [number for _, number in row]
        is_range = len(found) >= LEAST_RANGE
        parts += [f"{found[0]} to {found[-1]}"] if is_range else map(str, found)
    if len(parts) > MOST_RANK_RANGES:
        parts[MOST_RANK_RANGES:] = [f"... {parts[-1]}"]
    return f"ranks {', '.join(parts)}{where} {several}"
