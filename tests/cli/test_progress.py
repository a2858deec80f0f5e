import io
from pathlib import Path

import pytest
from rich.console import Console

from rampcli import llm
from rampcli.cli.progress import Progress
from rampcli.launch.elastic import World
from rampcli.machine.activity import READING
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import RunDirectory
from rampcli.runs.heartbeats import Rank, Ranks
from rampcli.runs.standstill import Standstill


def row(consumed: int, stage: int = 0, **more) -> dict:
    return {
        "step": consumed // 4,
        "stage": stage,
        "global_batch_size": 4,
        "consumed_samples": consumed,
        "world_size": 1,
        "loss": 2.5,
        "samples_per_s": 100.0,
        "tokens_per_s": 12_800.0,
        **more,
    }


def event(kind: str, **facts) -> dict:
    return {"event": kind, "time": 100.0, "step": 0, "consumed_samples": 0, **facts}


def shown(act, *, terminal: bool = False, width: int = 160) -> str:
    config = llm.llama3_tiny.pretrain_recipe()
    config.model.rampup_batch_size, config.trainer.max_samples = [4, 4, 2700], 3600
    console = Console(
        file=io.StringIO(),
        force_terminal=terminal,
        width=width,
        highlight=False,
        _environ={"TERM": "xterm"},
    )
    with Progress(resolve(config), RunDirectory(Path("none")), console) as progress:
        act(progress)
    return console.file.getvalue()


def line_of(act, *, width: int = 160) -> str:
    """Returns the line of a terminal after what `act` does."""
    lines: list[str] = []

    def draw(progress):
        act(progress)
        console = Console(file=io.StringIO(), width=width, _environ={"TERM": "xterm"})
        console.print(progress.picture())
        lines.append(console.file.getvalue())

    shown(draw)
    return lines[0].rstrip("\n")


def steps(progress, *consumed: int, **facts) -> None:
    for samples in consumed:
        progress.on_row(row(samples, **facts))


def start(progress, stage: int = 0) -> None:
    planned = progress.plan.stage(stage)
    progress.on_start(planned, World.planned(planned), gpus=0)


def test_a_line_shows_stage_batch_samples_loss_throughput_and_the_remaining_time(monkeypatch):
    monkeypatch.setattr("rampcli.cli.progress.PLAIN_EVERY_S", 0.0)
    printed = shown(lambda progress: steps(progress, 388, 392, 396, 400))
    assert printed.splitlines()[-1] == (
        "stage 1/4 · batch 4 · 400/3,600 samples · loss 2.500 · 12,800 tokens/s"
        " · stage 0:05 left · run 0:32 left"
    )


@pytest.fixture
def standing(monkeypatch):
    """Lets all runs stand still for 95 s because rank 1 hangs."""
    ranks = [
        Rank(rank=0, host="a", pid=5, doing=READING, waits=True, doing_s=90.0, answers=True),
        Rank(rank=1, host="a", pid=6, doing=READING, waits=False, doing_s=95.0, answers=True),
    ]
    found = Standstill(quiet_s=95.0, step_s=2.0, ranks=Ranks(known=tuple(ranks)))
    monkeypatch.setattr("rampcli.cli.progress.find_standstill", lambda *_, **__: found)


@pytest.mark.usefixtures("standing")
def test_the_line_of_a_run_that_stands_still_names_the_rank_that_is_behind():
    line = line_of(lambda progress: steps(progress, 400))
    behind = "rank 1 (process 6 on a) is reading samples; rank 0 waits for it"
    assert line == f"stage 1/4 no step for 1:35: {behind}"
    assert "rank 1 (process 6 on a)" in line_of(lambda progress: steps(progress, 400), width=60)
    assert line_of(start).endswith(f"starting processes 0:00: {behind}")


@pytest.mark.usefixtures("standing")
def test_plain_lines_say_once_that_a_run_stands_still(monkeypatch):
    monkeypatch.setattr("rampcli.cli.progress.PLAIN_EVERY_S", 0.0)
    printed = shown(lambda progress: [progress.on_poll() for _ in range(9)])
    assert printed == (
        "stage 1/4 · no step for 1:35 (steps take 2 s):"
        " rank 1 (process 6 on a) is reading samples; rank 0 waits for it\n"
    )


def test_the_time_left_ignores_the_first_steps_of_a_stage():
    slow = {"samples_per_s": 0.01}
    assert "left" not in line_of(lambda progress: steps(progress, 4, 8, **slow))

    def act(progress):
        steps(progress, 4, 8, **slow)
        steps(progress, 12, 16)

    assert "run 0:36 left" in line_of(act)


def test_the_time_left_counts_the_boundaries_to_come_as_the_last_one_took():
    def act(progress):
        start(progress)
        steps(progress, 388, 392, 396)
        progress.on_event(event("boundary", lost_s=20.0))
        steps(progress, 400)

    assert "run 1:32 left" in line_of(act)


def test_plain_progress_lines_are_few_and_have_no_control_characters():
    output = shown(lambda progress: [progress.on_row(row(4 * step)) for step in range(1, 200)])
    assert len(output.splitlines()) == 1
    assert "\x1b" not in output


def test_on_a_terminal_the_line_updates_in_place_and_events_are_printed_above():
    def act(progress):
        for samples in (400, 404):
            steps(progress, samples)
            progress.line.refresh()
        progress.on_event(event("validation", loss=2.25))

    output = shown(act, terminal=True)
    assert "\x1b[" in output
    for text in ("400/3,600 samples", "404/3,600 samples", "validation loss 2.2500"):
        assert text in output


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120])
def test_the_line_fits_any_terminal_and_the_most_important_figures_stay(width):
    line = line_of(lambda progress: steps(progress, 388, 392, 396, 400), width=width)
    assert "\n" not in line
    assert len(line) <= width
    facts = ["stage 1/4", "11%", "run 0:32 left", "loss 2.500", "12,800 tokens/s", "batch 4"]
    present = [fact in line for fact in facts]
    assert present == sorted(present, reverse=True)
    assert sum(present) == {20: 2, 40: 3, 60: 4, 80: 5, 120: 6}[width]


def test_the_bar_does_not_move_if_figures_become_longer():
    ends = {
        line_of(lambda progress, loss=loss: steps(progress, 4, loss=loss)).index("0%")
        for loss in (2.5, 25.0, 2500.0)
    }
    assert len(ends) == 1


def test_before_a_step_the_line_says_what_the_run_waits_for():
    seen = []

    def act(progress):
        def note():
            seen.append(progress.picture().facts[0])

        note()
        start(progress)
        for kind in ("load", "start", "compile", "stage"):
            note()
            progress.on_event(event(kind, compiles=True))
        note()
        steps(progress, 4)
        progress.on_event(event("fault", reason="a profile could not be written"))
        note()
        progress.on_event(event("exit"))
        progress.on_event(event("fault", reason="a crash"))
        note()
        start(progress)
        steps(progress, 4)
        progress.on_event(event("stop", status="preempted", save_s=0.0))
        steps(progress, 8)
        note()

    shown(act)
    assert seen == [
        "preparing",
        "starting processes",
        "loading model and data",
        "compiling",
        "validating",
        "first step",
        "loss 2.500",
        "restarting",
        "ending processes",
    ]


def test_the_line_of_reinforcement_learning_shows_the_reward():
    facts = {"reward": 0.25, "solved": 0.5, "pairs": 64, "tokens_per_s": 900.0}
    line = line_of(lambda progress: steps(progress, 4, 8, 12, **facts))
    assert "reward 0.250" in line
    assert "loss" not in line


def test_a_long_warning_is_one_line():
    reason = "x " * 200
    fault = event("fault", reason=reason)
    printed = shown(lambda progress: progress.on_event(fault))
    assert printed == f"warning: {reason}\n"


def test_faults_and_validations_are_printed():
    def act(progress):
        progress.on_event(event("fault", reason="step_00000002 is damaged: x"))
        progress.on_event(event("validation", step=250, loss=2.25, consumed_samples=1000))

    assert shown(act).splitlines() == [
        "warning: step_00000002 is damaged: x",
        "validation loss 2.2500 after 1,000 samples",
    ]


def test_the_losses_of_several_corpora_are_one_line_once_all_are_there():
    def act(progress):
        progress.config.data.validation = {"wiki": "data/wiki", "code": "data/code"}
        for step, corpus in ((2, "wiki"), (4, "wiki"), (4, "code")):
            facts = {"loss": step / 2, "consumed_samples": 10 * step}
            progress.on_event(event("validation", step=step, corpus=corpus, **facts))

    assert shown(act).splitlines() == ["validation loss wiki 2.0000, code 2.0000 after 40 samples"]


def test_a_second_run_of_the_same_terminal_prints_plain_lines():
    first, seen = [], []
    shown(lambda progress: seen.append(progress.line), terminal=True)

    def act(progress):
        first.append(progress.line)
        shown(lambda inner: seen.append(inner.line), terminal=True)

    shown(act, terminal=True)
    assert first[0] is not None
    assert [line is None for line in seen] == [False, True]


def test_texts_keep_their_lines_and_cannot_control_the_terminal():
    texts = [{"prompt": "def ", "text": "f():\n\treturn\x1b[2J \u202e"}]
    output = shown(lambda progress: progress.on_event(event("samples", step=1000, texts=texts)))
    assert output.splitlines()[:2] == ["text after step 1,000:", "    def f():"]
    assert "return\\x1b[2J \\u202e" in output
    assert not {"\x1b", "\u202e"} & set(output)


def test_a_file_that_cannot_be_read_is_left_to_the_workers_to_report(tmp_path):
    run = RunDirectory(tmp_path)
    run.events.write_text('{"event": "fault", "time": 1.0}\n')
    resolved = resolve(llm.llama3_tiny.pretrain_recipe())
    with Progress(resolved, run, Console(file=io.StringIO())) as progress:
        start(progress)
    assert not progress.facts.events.newest
