"""Foreign folders and links where rampcli writes: it empties no folder and follows no link."""

from hostile.case import Case, case, each
from hostile.cases.run_files import EXPORT, GENERATE
from hostile.materials import NEWER, pretrain
from hostile.world import Plant, World, edit_text, fifo, link, not_files, write

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
NOT_FILES = ("a FIFO", "an endless device", "a folder")


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


def linked(targets: dict[str, str]) -> dict[str, Plant]:
    """Plants links to something outside in the run directory."""
    return {name: link(f"run/{name}", target) for name, target in targets.items()}


ON_THE_CORPUS = ("in.jsonl", "corpus")
MARKER_OF_A_CORPUS = '{"kind": "corpus", "format": 1}'

CASES: list[Case] = [
    *each(
        "a link at {}: pretrain follows it nowhere",
        CHAIN,
        (0, 1, 2, 5),
        linked(LINKED),
        writes=CHAIN_WRITES,
    ),
    *(
        row
        for command in ("status", "cancel")
        for row in each(
            f"a link at {{}}: {command} follows it nowhere",
            f"{command} run",
            (0, 2, 5),
            linked(READ),
        )
    ),
    *(
        row
        for name in ("lock", "state.json")
        for row in each(
            f"{{}} at {name}: pretrain",
            CHAIN,
            (1, 2, 5),
            not_files(f"run/{name}", *NOT_FILES),
            writes=CHAIN_WRITES,
        )
    ),
    *(
        row
        for command in ("status", "cancel")
        for row in each(
            f"{{}} at lock: {command}", f"{command} run", (0, 2), not_files("run/lock", *NOT_FILES)
        )
    ),
    case("a checkpoint that is a link: generate", GENERATE, (0, 5), link(NEWER, "folder")),
    *(
        case(f"{name}: pretrain", pretrain(f"run_dir={path}"), 2, *plants, uses=ON_THE_CORPUS)
        for name, path, *plants in (
            ("a folder with a config.yaml of another program", "theirs", foreign_run),
            ("a folder with files of another program", "theirs", theirs("theirs/thesis.tex")),
            ("the working directory as the run directory", "."),
            ("a file as the run directory", "in.jsonl"),
            ("a FIFO as the run directory", "pipe", fifo("pipe")),
            ("a link to a folder of another program", "linked", link("linked", "folder")),
            ("a marker of another kind", "theirs", write("theirs/.rampcli", MARKER_OF_A_CORPUS)),
        )
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
    *each(
        "{} with the output's name: export",
        EXPORT,
        2,
        {
            "a folder": theirs("out/thesis.tex"),
            "a file": theirs("out"),
            "a FIFO": fifo("out"),
            "a link": link("out", "folder"),
        },
    ),
    *each(
        "{} out.tmp: export",
        EXPORT,
        (0, 2),
        {
            "a folder": theirs("out.tmp/thesis.tex"),
            "a file": theirs("out.tmp"),
            "a link": link("out.tmp", "folder"),
        },
        writes=("out",),
    ),
    case(
        "an export that fails leaves nothing",
        EXPORT,
        (2, 4),
        edit_text("run/config.yaml", "normalization: rmsnorm", "normalization: layernorm"),
    ),
    case("the run directory as the output: export", "export run run", 2),
    *each(
        "{}: build",
        BUILD,
        2,
        {
            "a folder c.building": theirs("c.building/thesis.tex"),
            "a folder c.building with a lock": theirs("c.building/thesis.tex", "c.building/lock"),
            "a file c.building": theirs("c.building"),
            "a link c.building": link("c.building", "folder"),
        }
        | {
            f"a file c.{suffix} of another program": theirs(f"c.{suffix}")
            for suffix in ("bin", "idx", "json", "tokenizer.json")
        }
        | {f"a link c.{suffix}": link(f"c.{suffix}") for suffix in ("bin", "idx", "json")},
        uses=("in.jsonl",),
    ),
    case(
        "a folder c.building with progress: build",
        BUILD,
        (2, 5),
        theirs("c.building/thesis.tex", "c.building/progress.json"),
        uses=("in.jsonl",),
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
]
