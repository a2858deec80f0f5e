"""A rank that measures for `rampcli doctor --gpu`. Takes the arguments of `rampcli.worker`.

It passes over stop signals: the doctor gets them, too, and ends its ranks.
"""

from collections.abc import Callable

from rampcli.launch.doctor.gpu_runs import MEASURE
from rampcli.worker.__main__ import main


def import_measuring() -> Callable[..., int]:
    """Imports torch and what measuring needs, and returns the function that measures."""
    from rampcli.worker.speed import measure_speed

    return lambda run, *_, **__: measure_speed(run)


if __name__ == "__main__":
    main(import_measuring, program=MEASURE)
