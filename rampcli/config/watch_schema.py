"""Settings for watching a run."""

from dataclasses import dataclass

from rampcli.config.fields import setting


@dataclass(kw_only=True, slots=True)
class LoggingConfig:
    """Where metrics are shown besides the run directory."""

    trackers: list[str] = setting(
        [],
        "Trackers that show the metrics: `tensorboard`, `wandb`, or both, `[tensorboard,wandb]`."
        " They never delay training.",
    )
