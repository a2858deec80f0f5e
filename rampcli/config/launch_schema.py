"""The settings of how workers start, stop and go on."""

from dataclasses import dataclass, field

from rampcli.config.choices import Launcher
from rampcli.config.fields import setting


@dataclass(kw_only=True, slots=True)
class SlurmConfig:
    """What Slurm is asked for, and what a job sets up; a job's script quotes all of it."""

    partition: str | None = setting(
        None, "where the jobs run. `null`: the cluster's default, as for the next four"
    )
    account: str | None = setting(None, "who pays. `null`: the default")
    qos: str | None = setting(None, "quality of service. `null`: the default")
    time: str | None = setting(
        None,
        "time limit of one job, as sbatch has it; a job that reaches it saves, and goes on in the queue. `null`: the default",
    )
    mem: str | None = setting(None, "memory per node, as sbatch has it. `null`: the default")
    gpus_per_node: int | None = setting(
        None,
        "`null`: one for each process; none where `trainer.accelerator` is `cpu`",
        unit="GPUs",
        at_least=0,
    )
    cpus_per_task: int | None = setting(
        None, "per process. `null`: the cluster's default", unit="processors", at_least=1
    )
    sbatch_args: list[str] = setting(
        [], """further options of sbatch, `'[--exclusive,"--constraint=h100"]'`"""
    )
    srun_args: list[str] = setting(
        [], "further options of srun, such as those of a container plugin"
    )
    modules: list[str] = setting([], "what `module load` loads")
    environment: list[str] = setting([], """`'["NAME=VALUE"]'`, set for a job""")
    container: list[str] = setting(
        [], "words in front of the workers' command, `[apptainer,exec,--nv,image.sif]`"
    )
    python: str | None = setting(None, "the workers' interpreter. `null`: that which submits")
    template: str | None = setting(
        None, "a Jinja template of your own for the scripts. `null`: the bundled one"
    )


@dataclass(kw_only=True, slots=True)
class LaunchConfig:
    """How workers start, stop and go on."""

    launcher: Launcher = setting(
        Launcher.local,
        "`local`: on this machine, a stage after another. `slurm`: a chain of jobs, one for each stage's processes",
    )
    max_restarts: int = setting(
        3,
        "how often workers that crash in a stage are started again, from the last checkpoint",
        at_least=0,
    )
    backoff_s: float = setting(
        1.0,
        "before the first restart; each further one waits twice as long, up to a minute",
        unit="seconds",
        at_least=0,
    )
    grace_s: float = setting(
        30.0,
        "in which workers that are asked to stop have to save; after it they are killed",
        unit="seconds",
        above=0,
    )
    elastic: bool = setting(
        False,
        "of `local`: a lost node shrinks the world, and one that comes back grows it, within a stage",
    )
    min_nodes: int = setting(1, "of `elastic`: with fewer the run waits", unit="nodes", at_least=1)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
