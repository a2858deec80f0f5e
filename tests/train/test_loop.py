import os
import signal

from rampcli.runs.directory import PREEMPTED
from rampcli.train.observers.text_samples import TextSamples

SETTINGS = {
    "trainer.max_samples": "4",
    "model.global_batch_size": "4",
    "data": "text",
    "data.path": __file__,
    "model.vocab_size": "256",
    "generate.prompts": "[a]",
    "generate.max_tokens": "4",
}


def test_a_run_that_is_stopped_while_it_writes_its_last_texts_is_not_complete(
    build_trainer, monkeypatch
):
    """Else, no start would make up for the texts."""
    trainer, _ = build_trainer(SETTINGS)
    monkeypatch.setattr(TextSamples, "_continue", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert trainer.run() == PREEMPTED
