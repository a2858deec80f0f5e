import os
import signal

import torch

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.runs.directory import PREEMPTED, RunDirectory
from rampcli.train.stopping import STOP_SIGNALS, StopRequest
from tiny_runs import TINY

SETTINGS = TINY | {
    "model.rampup_batch_size": "null",
    "trainer.num_nodes": "1",
    "trainer.devices": "1",
    "trainer.val_samples": "0",
    "trainer.max_samples": "4",
    "model.global_batch_size": "4",
    "data": "text",
    "data.path": __file__,
    "model.vocab_size": "256",
    "generate.prompts": "[a]",
    "generate.max_tokens": "4",
}


def test_a_run_that_is_stopped_while_it_writes_its_last_texts_is_not_complete(
    alone,  # noqa: ARG001
    tmp_path,
    monkeypatch,
):
    """Else, no start would make up for the texts."""
    # Imported here, so that other tests do not wait for it.
    from rampcli.launch.run import describe
    from rampcli.train.observers.boundary import BoundaryCosts
    from rampcli.train.observers.text_samples import TextSamples
    from rampcli.worker.assemble import build_trainer

    settings = SETTINGS | {"run_dir": str(tmp_path / "run")}
    words = [f"{key}={value}" for key, value in settings.items()]
    resolved = resolve(apply_overrides(llm.from_factory("llama3_tiny"), words))
    run = RunDirectory(resolved.run_dir)
    describe(run, resolved, [])
    stop = StopRequest()
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    stop.listen()
    try:
        costs = BoundaryCosts(run=run, started=0.0, imported=0.0)
        trainer = build_trainer(resolved, resolved.phases[0], run, torch.device("cpu"), stop, costs)
        monkeypatch.setattr(
            TextSamples, "_continue", lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        )
        assert trainer.run() == PREEMPTED
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
