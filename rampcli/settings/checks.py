"""Every check of settings, before anything is planned.

A check yields an error for each misfit that it finds. The checks of a section stand below it, in
its file; here are those of the run's name and paths, and of ranges.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rampcli.errors import Remedy, UsageError, example_of, set_to, shown
from rampcli.plugins.launchers import declarations
from rampcli.settings import architectures, average, data, launch, model, optim, parallel, rl, watch
from rampcli.settings.by_key import Setting, leaves, settings
from rampcli.settings.config import Config
from rampcli.settings.data import DataConfig
from rampcli.settings.model import ModelConfig

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def check_ranges(config: Config) -> Iterator[UsageError]:
    """Checks that every number is in its range."""
    for key, value in leaves(config):
        if key in settings():  # extensions check their own
            yield from check_range(settings()[key], value)


def check_range(setting: Setting, value: Any) -> Iterator[UsageError]:
    """Checks that a value, if it is a number, is in the range of its setting."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    key = setting.key
    # Beside words, the limit is nearer to a number that was typed than the setting's own word.
    offer = set_to if setting.takes_number else example_of
    remedy: Remedy = "a positive number"
    if setting.at_least is not None and value < setting.at_least:
        misfit = f"below {setting.at_least:g}"
        remedy = offer(key, f"{setting.at_least:g}", note=" or more")
    elif setting.above is not None and value <= setting.above:
        misfit = f"not above {setting.above:g}"
    elif setting.below is not None and value >= setting.below:
        misfit = f"not below {setting.below:g}"
        remedy = example_of(key, setting.default)
    elif setting.at_most is not None and value > setting.at_most:
        misfit = f"above {shown(setting.at_most)}"
        remedy = offer(key, shown(setting.at_most), note=" or less")
    else:
        return
    yield UsageError(f"{key}={shown(value)} is {misfit}", keys=(key,), remedy=remedy)


def check_name(config: Config) -> Iterator[UsageError]:
    """Checks that the name can name a folder and that the run directory is a path."""
    name = config.name
    if (
        not name
        or name in (".", "..")
        or "/" in name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > 200
    ):
        yield UsageError(
            f"name={name[:100]!r} cannot name a folder",
            keys=("name",),
            remedy="letters, digits, - and _",
        )
    if config.run_dir is not None and (not config.run_dir or "\0" in config.run_dir):
        yield UsageError(
            f"run_dir={config.run_dir!r} is not a path",
            keys=("run_dir",),
            remedy=set_to("run_dir", "runs/NAME"),
        )


def check_paths(config: Config) -> Iterator[UsageError]:
    """Checks that paths are not URLs such as `gs://bucket/wiki`."""
    data = config.data
    paths: dict[str, Sequence[str | None]] = {
        DataConfig.path: [data.path],
        DataConfig.blend: data.blend or [],
        DataConfig.validation_path: [data.validation_path],
        DataConfig.validation: list((data.validation or {}).values()),
        DataConfig.tokenizer: [data.tokenizer],
        ModelConfig.init_from: [config.model.init_from],
        "run_dir": [config.run_dir],
    }
    for key, path in ((key, path) for key, among in paths.items() for path in among if path):
        if scheme := _SCHEME.match(path):
            folder = f"/mnt/{path[scheme.end() :].lstrip('/')}"
            yield UsageError(
                f"{key}: {path} is a URL, but only files and folders can be used",
                keys=(key,),
                remedy="a mounted folder, or a copy: "
                + (
                    folder
                    if key in (DataConfig.blend, DataConfig.validation)
                    else f"{key}={folder}"
                ),
            )


CHECKS: tuple[Callable[[Config], Iterator[UsageError]], ...] = (
    check_name,
    check_paths,
    launch.check_elastic,
    *(check for declaration in declarations().values() for check in declaration.checks),
    model.check_heads,
    model.check_rotary,
    architectures.check_huggingface_type,
    optim.check_learning_rate,
    data.check_source_paths,
    data.check_document_mask,
    data.check_split,
    parallel.check_tensor,
    parallel.check_sequence,
    parallel.check_pipeline_parts,
    rl.check_unused,
    rl.check_prompt_settings,
    rl.check_rollout_ranks,
    rl.check_reference,
    watch.check_logging,
    watch.check_generate,
    watch.check_noise_scale,
    watch.check_profile,
    average.check_merge,
)
"""Every check of settings against each other. They rely on `check_ranges`.

To add a check of settings: a function below the settings that it looks at in `rampcli/settings`,
its name here, and a wrong input in `tests/cli/bad_inputs.yaml`; then `make docs`.
"""
CHECKS_OF_WORDS = (rl.check_reward, optim.check_used, optim.check_couplings)
"""Further checks of what a user sets now, which a snapshot may contradict. They also take a
function that returns whether the user has set a key."""
