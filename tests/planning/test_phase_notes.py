"""Laws of the notes on runs in phases."""

import pytest

from drawn_phases import planned

WORDS = (
    *("model.global_batch_size=4", "model.rampup_batch_size=null", "optim.lr=1e-3"),
    *("optim.min_lr=1e-5", "optim.warmup_steps=10", "optim.warmup_samples=null"),
    *("phases.a.until=steps:20", "phases.b.until=steps:40"),
)
UNREACHED = "the learning rate does not reach optim.lr"
UNCHANGED = "the last step has a learning rate of 0 and changes nothing"


@pytest.mark.parametrize(
    ("words", "notes"),
    [
        ((), ()),
        (("optim.warmup_steps=20", "phases.b.optim.lr=1e-4"), ()),
        (("optim.warmup_steps=30",), ()),
        (
            ("optim.warmup_steps=30", "phases.b.optim.lr=1e-4"),
            (
                "phase a ends after 80 samples, within the run's warm-up of 120"
                f" (optim.warmup_steps): {UNREACHED}=0.001",
            ),
        ),
        (("phases.b.optim.warmup_steps=20",), ()),
        (
            ("phases.b.optim.warmup_steps=21",),
            (
                "phase b ends after 80 samples, within its warm-up of 84 (optim.warmup_steps):"
                f" {UNREACHED}=0.001",
            ),
        ),
        (("profile.steps=[30,31]",), ()),
        (
            ("profile.steps=[50,51]",),
            ("the run ends after 40 steps, before profile.steps=[50,51]",),
        ),
        (("phases.b.optim.lr=0", "phases.b.optim.min_lr=0"), (UNCHANGED,)),
        (
            ("phases.b.optim.min_lr=0",),
            (f"{UNCHANGED}; phases.b.optim.min_lr=1e-05 keeps it above 0",),
        ),
        (("optim.min_lr=0",), (f"{UNCHANGED}; optim.min_lr=1e-05 keeps it above 0",)),
        (("optim.lr=0", "optim.min_lr=0"), ("optim.lr=0: no step changes a weight",)),
        (("trainer.max_steps=20",), ("the run ends before phase b",)),
    ],
)
def test_a_note_says_what_a_phase_does_not_reach(words, notes):
    assert planned([*WORDS, *words]).notes == notes
