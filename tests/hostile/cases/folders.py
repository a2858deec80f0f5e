"""Foreign folders and links where rampcli writes: it empties no folder and follows no link."""

from collections.abc import Sequence

from hostile.case import Case, case
from hostile.cases.run_files import EXPORT, GENERATE
from hostile.materials import NEWER, pretrain
from hostile.world import Plant, World, device, edit_text, fifo, folder, link, write

BUILD = "data build in.jsonl --output c --tokenizer bytes"
CHAIN = pretrain("launch=slurm", "trainer.max_samples=40")
"""Writes into the run directory, and ends with 1 because there is no sbatch."""
CHAIN_WRITES = ("run",)
LINKED: dict[str, str] = {
    "lock": "precious.txt",
    "state.json": "precious.txt",
    "config.yaml": "precious.txt",
    "plan.json": "precious.txt",
    "overrides.txt": "precious.txt",
    "logs": "folder",
    "checkpoints": "folder",
    "slurm": "folder",
    "slurm/jobs.json": "precious.txt",
    "slurm/stage_0.sbatch": "precious.txt",
    ".rampcli": "precious.txt",
}
READ: dict[str, str] = {
    "lock": "precious.txt",
    "workers.lock": "precious.txt",
    "state.json": "precious.txt",
    "metrics.jsonl": "precious.txt",
    "checkpoints": "folder",
    "slurm": "folder",
    "slurm/jobs.json": "precious.txt",
    "config.yaml": "precious.txt",
}
NOT_FILES = {"a FIFO": fifo, "an endless device": device, "a folder": folder}


def theirs(*names: str) -> Plant:
    """Plants files of another program."""

    def plant(world: World) -> None:
        for name in names:
            world.path(name).write_text("precious\n")

    return plant


def foreign_run(world: World) -> None:
    """A folder that looks like a run directory but is not one."""
    for name, text in {
        "config.yaml": "server: production\n",
        "plan.json": "{}\n",
        "logs/stage_0.log": "theirs\n",
        "lock": "",
    }.items():
        world.path(f"theirs/{name}").write_text(text)


def linked(names: Sequence[str], targets: dict[str, str]) -> tuple[Plant, ...]:
    return tuple(link(f"run/{name}", targets[name]) for name in names)


ON_THE_CORPUS = ("in.jsonl", "corpus")

CASES: list[Case] = [
    *(
        case(
            f"a link at {name}: pretrain follows it nowhere",
            CHAIN,
            (0, 1, 2, 5),
            *linked([name], LINKED),
            writes=CHAIN_WRITES,
        )
        for name in LINKED
    ),
    *(
        case(
            f"a link at {name}: {command.split()[0]} follows it nowhere",
            command,
            (0, 2, 5),
            *linked([name], READ),
        )
        for name in READ
        for command in ("status run", "cancel run")
    ),
    *(
        case(
            f"{kind} at {name}: pretrain",
            CHAIN,
            (1, 2, 5),
            plant(f"run/{name}"),
            writes=CHAIN_WRITES,
        )
        for kind, plant in NOT_FILES.items()
        for name in ("lock", "state.json")
    ),
    *(
        case(f"{kind} at lock: {command}", f"{command} run", (0, 2), plant("run/lock"))
        for kind, plant in NOT_FILES.items()
        for command in ("status", "cancel")
    ),
    case("a checkpoint that is a link: generate", GENERATE, (0, 5), link(NEWER, "folder")),
    case(
        "a folder with a config.yaml of another program: pretrain",
        pretrain("run_dir=theirs"),
        2,
        foreign_run,
        uses=ON_THE_CORPUS,
    ),
    case(
        "a folder with files of another program: pretrain",
        pretrain("run_dir=theirs"),
        2,
        theirs("theirs/thesis.tex"),
        uses=ON_THE_CORPUS,
    ),
    case(
        "the working directory as the run directory: pretrain",
        pretrain("run_dir=."),
        2,
        uses=ON_THE_CORPUS,
    ),
    case(
        "a file as the run directory: pretrain", pretrain("run_dir=in.jsonl"), 2, uses=ON_THE_CORPUS
    ),
    case(
        "a FIFO as the run directory: pretrain",
        pretrain("run_dir=pipe"),
        2,
        fifo("pipe"),
        uses=ON_THE_CORPUS,
    ),
    case(
        "a link to a folder of another program: pretrain",
        pretrain("run_dir=linked"),
        2,
        link("linked", "folder"),
        uses=ON_THE_CORPUS,
    ),
    case(
        "a folder with a config.yaml of another program: cancel",
        "cancel theirs",
        2,
        foreign_run,
        uses=(),
    ),
    case(
        "a folder with a config.yaml of another program: generate",
        "generate theirs -p x",
        (2, 5),
        foreign_run,
        uses=(),
    ),
    case("a folder with the output's name: export", EXPORT, 2, theirs("out/thesis.tex")),
    case("a file with the output's name: export", EXPORT, 2, theirs("out")),
    case("a FIFO with the output's name: export", EXPORT, 2, fifo("out")),
    case("a link with the output's name: export", EXPORT, 2, link("out", "folder")),
    case("a folder out.tmp: export", EXPORT, (0, 2), theirs("out.tmp/thesis.tex"), writes=("out",)),
    case("a file out.tmp: export", EXPORT, (0, 2), theirs("out.tmp"), writes=("out",)),
    case("a link out.tmp: export", EXPORT, (0, 2), link("out.tmp", "folder"), writes=("out",)),
    case(
        "an export that fails leaves nothing",
        EXPORT,
        (2, 4),
        edit_text("run/config.yaml", "normalization: rmsnorm", "normalization: layernorm"),
    ),
    case("the run directory as the output: export", "export run run", 2),
    case(
        "a folder c.building: build", BUILD, 2, theirs("c.building/thesis.tex"), uses=("in.jsonl",)
    ),
    case(
        "a folder c.building with a lock: build",
        BUILD,
        2,
        theirs("c.building/thesis.tex", "c.building/lock"),
        uses=("in.jsonl",),
    ),
    case(
        "a folder c.building with progress: build",
        BUILD,
        (2, 5),
        theirs("c.building/thesis.tex", "c.building/progress.json"),
        uses=("in.jsonl",),
    ),
    case("a file c.building: build", BUILD, 2, theirs("c.building"), uses=("in.jsonl",)),
    case("a link c.building: build", BUILD, 2, link("c.building", "folder"), uses=("in.jsonl",)),
    *(
        case(
            f"a file c.{suffix} of another program: build",
            BUILD,
            2,
            theirs(f"c.{suffix}"),
            uses=("in.jsonl",),
        )
        for suffix in ("bin", "idx", "json", "tokenizer.json")
    ),
    *(
        case(f"a link c.{suffix}: build", BUILD, 2, link(f"c.{suffix}"), uses=("in.jsonl",))
        for suffix in ("bin", "idx", "json")
    ),
    case(
        "a file with the output's name: import",
        "import hf mine/model/x.yaml",
        2,
        theirs("mine/model/x.yaml"),
        uses=("hf",),
    ),
    case(
        "a link with the output's name: import",
        "import hf mine/model/x.yaml",
        (0, 2),
        link("mine/model/x.yaml", "new.txt"),
        uses=("hf",),
        writes=("mine",),
    ),
    case(
        "a link with the plot's name",
        "plan -f llama3_tiny --plot x.svg",
        (0, 2),
        link("x.svg"),
        uses=(),
        writes=("x.svg",),
    ),
    case(
        "a run directory that is itself a link is followed",
        "status linked",
        0,
        lambda world: world.path("linked").symlink_to("run"),
    ),
    case(
        "a marker of another kind: pretrain",
        pretrain("run_dir=theirs"),
        2,
        write("theirs/.rampcli", '{"kind": "corpus", "format": 1}'),
        uses=ON_THE_CORPUS,
    ),
]
