"""Settings that say one thing in different ways. One nearer to the user replaces the others."""

from rampcli.batch.plan import GLOBAL_KEY
from rampcli.batch.ramp import RAMP_KEY
from rampcli.batch.run_settings import LENGTH_KEYS
from rampcli.batch.step_schedule import SCHEDULE_KEY
from rampcli.config.layers import Stack

WARMUP_KEYS = ("optim.warmup_samples", "optim.warmup_steps")
ALTERNATIVES = (LENGTH_KEYS, WARMUP_KEYS, (RAMP_KEY, SCHEDULE_KEY))


def without_alternatives(stack: Stack) -> Stack:
    """Returns the layers with null for each setting that is replaced by one nearer to the user.

    Alternatives that are equally near stay, and the checks refuse them.
    """
    for keys in ALTERNATIVES:
        chosen = [key for key in keys if stack.entry(key).value is not None]
        nearest = max(chosen, key=stack.precedence, default="")
        for key in chosen:
            if stack.precedence(key) < stack.precedence(nearest):
                stack = stack.decided(key, nearest, None)
    has_schedule = stack.entry(SCHEDULE_KEY).value is not None
    if has_schedule and stack.precedence(GLOBAL_KEY) < stack.precedence(SCHEDULE_KEY):
        # The last size of the schedule is the batch.
        stack = stack.decided(GLOBAL_KEY, SCHEDULE_KEY, None)
    return stack
