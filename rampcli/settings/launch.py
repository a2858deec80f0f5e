"""Settings for starting, stopping and resuming workers."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from rampcli.errors import UsageError, set_to
from rampcli.plugins.launchers import LAUNCHERS, declarations
from rampcli.settings.attributes import Section
from rampcli.settings.facts import MACHINES, NOTHING, whole_run
from rampcli.settings.fields import Keyed, keyed, section, setting, settings_class, with_meanings
from rampcli.settings.trainer import TrainerConfig

if TYPE_CHECKING:
    from rampcli.settings.config import Config


T = TypeVar("T")


def with_launchers(schema: type[T]) -> type[T]:
    """Adds the section of each launcher to a class that becomes a dataclass."""
    for name, declaration in declarations().items():
        if declaration.section is not None:
            schema.__annotations__[name] = declaration.section
            setattr(schema, name, section(declaration.section))
    return schema


@keyed("launch.")
@settings_class(kw_only=True)
@with_launchers
class LaunchConfig(Section):
    """How workers start, stop and resume."""

    launcher: Keyed[str] = setting(
        "local",
        with_meanings("Where workers run.", declarations()),
        whole_run(MACHINES),
        choices=LAUNCHERS,
    )
    max_restarts: Keyed[int] = setting(
        3,
        "Restarts of crashed workers in a stage, each from the last checkpoint.",
        whole_run(NOTHING),
        at_least=0,
    )
    backoff_s: Keyed[float] = setting(
        1.0,
        "Wait before the first restart. It doubles with each further one, up to a minute.",
        whole_run(NOTHING),
        unit="seconds",
        at_least=0,
    )
    grace_s: Keyed[float] = setting(
        30.0,
        "Time that workers have to save when they are asked to stop. Then they are killed.",
        whole_run(NOTHING),
        unit="seconds",
        above=0,
    )
    start_timeout_s: Keyed[float] = setting(
        1800.0,
        "Longest time that a rank waits for others until the first step of a stage has ended, and"
        " after its last one. Then the workers fail and are restarted. Reinforcement learning has"
        " this limit only while ranks join.",
        whole_run(NOTHING),
        unit="seconds",
        above=0,
    )
    step_timeout_s: Keyed[float] = setting(
        600.0,
        "Longest time that a rank waits for others within a stage, after its first step. Then the"
        " workers fail and are restarted. Reinforcement learning waits without a limit.",
        whole_run(NOTHING),
        unit="seconds",
        above=0,
    )
    elastic: Keyed[bool] = setting(
        False,
        "With `local`: continue a stage on fewer nodes when one is lost, and on more when it"
        " returns.",
        whole_run(NOTHING),
    )
    min_nodes: Keyed[int] = setting(
        1,
        "With `elastic`: the run waits while fewer nodes are left.",
        whole_run(NOTHING),
        unit="nodes",
        at_least=1,
    )

    if TYPE_CHECKING:

        def __getattr__(self, launcher: str) -> Any:
            """Returns the section of a launcher."""


def check_elastic(config: "Config") -> Iterator[UsageError]:
    """Checks that the launcher trains on when nodes are lost, and that there are enough nodes."""
    launch, num_nodes = config.launch, config.trainer.num_nodes
    if launch.elastic and not declarations()[launch.launcher].supports_elastic:
        able = [name for name, one in declarations().items() if one.supports_elastic]
        yield UsageError(
            f"launch.elastic=true needs launch={' or '.join(able)}: with launch={launch.launcher},"
            " the nodes of a stage are fixed",
            keys=(LaunchConfig.elastic, LaunchConfig.launcher),
            remedy=set_to(LaunchConfig.elastic, False),
        )
    if launch.elastic and launch.min_nodes > num_nodes:
        yield UsageError(
            f"launch.min_nodes={launch.min_nodes} is above trainer.num_nodes={num_nodes}",
            keys=(LaunchConfig.min_nodes, TrainerConfig.num_nodes),
            remedy=set_to(LaunchConfig.min_nodes, num_nodes, note=" or less"),
        )
