"""A standstill names the ranks that are behind, however many there are."""

import pytest

from rampcli.report.standstill_text import ranks_text, standstill_text
from rampcli.runs.heartbeats import STUCK_S, Rank, Ranks
from rampcli.runs.standstill import Standstill


def rank(number, *, doing="computing a step", waits=False, answers=True, host="a"):
    known = {"rank": number, "host": host, "pid": 100 + number, "doing": doing, "waits": waits}
    return Rank(**known, answers=answers, doing_s=STUCK_S)


WAITING = tuple(rank(number, waits=True) for number in (0, 2, 3))
SILENT = rank(1, answers=False, host="b")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        (Ranks(), ""),
        (
            Ranks(known=(*WAITING, SILENT)),
            "rank 1 (process 101 on b) does not answer; ranks 0, 2, 3 wait for it",
        ),
        (
            Ranks(known=(*WAITING, rank(1, doing="reading samples"))),
            "rank 1 (process 101 on a) is reading samples; ranks 0, 2, 3 wait for it",
        ),
        (
            Ranks(known=(rank(2), *(rank(n, answers=False, host="b") for n in (4, 5, 6, 7)))),
            "ranks 4 to 7 on b do not answer; rank 2 waits for them",
        ),
        (Ranks(known=WAITING, missing=(1,)), "rank 1 has not started; ranks 0, 2, 3 wait for it"),
        (Ranks(known=(), missing=(1, 2)), "ranks 1, 2 have not started"),
        (Ranks(known=(rank(0), rank(1))), "ranks 0, 1 are computing a step"),
        (
            Ranks(known=tuple(rank(number) for number in range(0, 2000, 2))),
            "ranks 0, 2, 4, 6, 8, 10, 12, 14, ... 1998 are computing a step",
        ),
        (Ranks(known=WAITING), "ranks 0, 2, 3 are waiting for each other"),
        (
            Ranks(known=(SILENT, rank(2, doing="reading samples"))),
            "rank 1 (process 101 on b) does not answer;"
            " rank 2 (process 102 on a) is reading samples",
        ),
        (
            Ranks(known=tuple(rank(n, answers=False, host=f"h{n}") for n in range(5))),
            "; ".join(f"rank {n} (process {100 + n} on h{n}) does not answer" for n in range(3))
            + "; 2 more ranks are behind",
        ),
    ],
)
def test_the_ranks_that_are_behind_are_named_and_those_that_wait(ranks, text):
    assert ranks_text(ranks) == text


def test_text_from_a_file_is_shown_in_one_short_line_without_control_characters():
    strange = rank(1, doing="\x1b[2J\n" * 999, host="\x1b[2J\n" * 999)
    text = ranks_text(Ranks(known=(rank(0, waits=True), strange)))
    assert text.isprintable()
    assert len(text) < 1000


def test_a_standstill_says_for_how_long_and_how_long_a_step_takes():
    ranks = Ranks(known=(rank(0), SILENT))
    found = Standstill(quiet_s=95.0, step_s=2.0, ranks=ranks)
    assert standstill_text(found) == f"no step for 1:35 (steps take 2 s): {ranks_text(ranks)}"
    found = Standstill(quiet_s=95.0, step_s=None, ranks=Ranks())
    assert standstill_text(found) == "no step for 1:35"
