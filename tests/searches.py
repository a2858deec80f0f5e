"""Searches for the micro batch, with outcomes of trials that were not run."""

from pathlib import Path
from typing import Any

from rampcli import llm
from rampcli.config.compose import apply_overrides
from rampcli.planning.resolve import resolve
from rampcli.planning.run_plan import Resolved
from rampcli.tune.median import median_of
from rampcli.tune.sizes import Candidate
from rampcli.tune.trial import FITS, Trial

SEARCH = {
    "trainer.accelerator": "cpu",
    "trainer.num_nodes": "1",
    "model.rampup_batch_size": "null",
    "model.global_batch_size": "4",
    "data.micro_batch_size": "1",
}
TIMES = [0.5] * 8


def resolved_search(run_dir: Path, *words: str) -> Resolved:
    """Returns a run that admits the sizes 1, 2 and 4; later words change its settings."""
    settings = SEARCH | {"run_dir": str(run_dir)} | dict(word.split("=", 1) for word in words)
    overrides = [f"{key}={value}" for key, value in settings.items()]
    return resolve(apply_overrides(llm.from_factory("llama3_tiny"), overrides))


def trial_of(candidate: Candidate, *, times: list[float] = TIMES, **facts: Any) -> Trial:
    """Returns a trial that fits, and whose steps take these times."""
    outcome = {
        "micro_batch_size": candidate.micro_batch_size,
        "verdict": FITS,
        "reason": None,
        "world_size": candidate.stage.world_size,
        "data_parallel_size": candidate.stage.data_parallel_size,
        "accumulate_grad_batches": candidate.stage.accumulate_grad_batches,
        "medians": {candidate.timed[-1]: median_of(times)},
        "peak_memory_bytes": 1,
        "device": "cpu",
        "device_name": "a processor",
    }
    return Trial(**outcome | facts)
