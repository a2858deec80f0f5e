"""The error of a run that needs more memory than its devices have."""

from rampcli.batch.division import divisors
from rampcli.batch.plan import MICRO_KEY
from rampcli.config.layers import stack_of
from rampcli.config.run_plan import Resolved
from rampcli.config.stage_memory import stage_memory
from rampcli.errors import OutOfMemoryError

CHECKPOINTING_KEY = "trainer.activation_checkpointing"


def out_of_memory(resolved: Resolved, *, consumed_samples: int, reason: str) -> OutOfMemoryError:
    """Returns the error of a rank that ran out of memory.

    Args:
        resolved: configuration and plan of the run.
        consumed_samples: samples consumed before the step in which memory ran out.
        reason: which rank ran out, and how that was noticed.
    """
    stage = resolved.plan.stage_at(consumed_samples)
    micro = stage.micro_batch_size
    estimate = stage_memory(resolved, stage)
    checkpointing = resolved.config.trainer.activation_checkpointing
    changes = [f"{MICRO_KEY}={divisors(micro, most=micro - 1)[-1]}"] if micro > 1 else []
    if checkpointing != "full":
        changes.append(f"{CHECKPOINTING_KEY}=full")
    error = OutOfMemoryError(
        f"{reason}, with {MICRO_KEY}={micro} and {CHECKPOINTING_KEY}={checkpointing}:"
        f" a rank needs an estimated {estimate.peak_bytes / 2**30:.1f} GiB",
        keys=(MICRO_KEY, CHECKPOINTING_KEY),
        remedy=", or ".join([*changes, "more devices that share the weights"]),
    )
    stack_of(resolved.config).name_sources(error)
    return error
