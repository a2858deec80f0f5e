import io

from rich.console import Console

from rampcli import llm
from rampcli.cli.progress import Progress
from rampcli.config.resolve import resolve


def row(consumed: int, stage: int = 0, **more) -> dict:
    return {
        "stage": stage,
        "global_batch_size": 4,
        "consumed_samples": consumed,
        "loss": 2.5,
        "samples_per_s": 100.0,
        **more,
    }


def shown(act, *, terminal: bool) -> str:
    config = llm.llama3_tiny.pretrain_recipe()
    config.model.rampup_batch_size, config.trainer.max_samples = [4, 4, 2700], 3600
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160, highlight=False)
    with Progress(resolve(config).plan, console) as progress:
        act(progress)
    return console.file.getvalue()


def test_a_line_shows_stage_batch_samples_loss_throughput_and_the_remaining_time():
    line = shown(lambda progress: progress.on_row(row(400)), terminal=False)
    assert line == (
        "stage 1/4 · batch 4 · 400/3,600 samples · loss 2.500 · 12,800 tokens/s"
        " · stage 0:05 left · run 0:32 left\n"
    )


def test_plain_progress_lines_are_few_and_have_no_control_characters():
    output = shown(
        lambda progress: [progress.on_row(row(4 * step)) for step in range(1, 200)], terminal=False
    )
    assert len(output.splitlines()) == 1
    assert "\x1b" not in output


def test_on_a_terminal_the_line_updates_in_place():
    output = shown(
        lambda progress: [
            progress.on_row(row(400)),
            progress.live.refresh(),
            progress.on_row(row(404)),
        ],
        terminal=True,
    )
    assert "\x1b[" in output
    assert "400/3,600 samples" in output
    assert "404/3,600 samples" in output


def test_faults_and_validations_are_printed():
    def act(progress):
        progress.on_event({"event": "fault", "reason": "step_00000002 is damaged: x"})
        progress.on_event(
            {"event": "validation", "step": 250, "loss": 2.25, "consumed_samples": 1000}
        )

    assert shown(act, terminal=False).splitlines() == [
        "warning: step_00000002 is damaged: x",
        "validation loss 2.2500 after 1,000 samples",
    ]


def test_the_losses_of_several_corpora_are_one_line_once_all_are_there():
    def act(progress):
        progress.corpora = frozenset({"wiki", "code"})
        for step, corpus in ((2, "wiki"), (4, "wiki"), (4, "code")):
            facts = {"loss": step / 2, "consumed_samples": 10 * step}
            progress.on_event({"event": "validation", "step": step, "corpus": corpus, **facts})

    assert shown(act, terminal=False).splitlines() == [
        "validation loss wiki 2.0000, code 2.0000 after 40 samples"
    ]


def test_texts_keep_their_lines_and_cannot_control_the_terminal():
    texts = [{"prompt": "def ", "text": "f():\n\treturn\x1b[2J \u202e"}]
    output = shown(
        lambda progress: progress.on_event({"event": "samples", "step": 1000, "texts": texts}),
        terminal=False,
    )
    assert output.splitlines()[:2] == ["text after step 1,000:", "    def f():"]
    assert "return\\x1b[2J \\u202e" in output
    assert not {"\x1b", "\u202e"} & set(output)
