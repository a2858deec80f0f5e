"""Hostile words on the command line: huge, not numbers, forbidden options, endless templates."""

from hostile.case import Case, case
from hostile.cases.configs import bomb
from hostile.cases.run_files import ESCAPES
from hostile.world import Plant, device, fifo, write

BUILD = "data build in.jsonl --output new"
GENERATE = "generate run --prompt text"
DRY = "pretrain -f llama3_tiny --dry-run launch=slurm"
OF_THE_CHAIN = (
    *(
        "-d afterok:1",
        "-dafterok:1",
        "--dependency=afterok:1",
        "--dep=afterok:1",
        "--depend=afterok:1",
    ),
    *(
        "-J x",
        "-Jx",
        "--job-name=x",
        "--job=x",
        "-a 1-4",
        "-a1-4",
        "--array=1-4",
        "--arr=1-4",
        "-D /tmp",
        "-D/tmp",
        "--chdir=/tmp",
        "--chd=/tmp",
    ),
    *(
        "-H",
        "--hold",
        "--ho",
        "-W",
        "--wait",
        "--wrap=id",
        "--wra=id",
        "-M c1",
        "-Mc1",
        "--clusters=c1",
        "--parsable",
        "--pars",
    ),
)
ENDLESS = "{{% for a in range(99999) %}}{{% for b in range(99999) %}}{}{{% endfor %}}{{% endfor %}}"
TEMPLATES = {
    "prints endlessly": ENDLESS.format("{{ 'x' * 1000 }}"),
    "prints ten gigabytes": "{{ 'x' * 10000000000 }}",
    "loops endlessly": ENDLESS.format("{% set c = b %}"),
    "calls itself": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "computes a huge power": "{% set x = 9 ** (9 ** 9) %}",
    "fills memory": "{% set x = [0] * 10 ** 11 %}{{ x | length }}",
    "formats a gigabyte": "{{ '%9999999999d' % 1 }}",
    "looks into Python": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "includes a file": "{% include '/etc/passwd' %}",
    "fails with escape sequences": "{{ '\x1b[2J\u202e' | int | undefined_filter }}",
    "is malformed": "{% if",
}


def template(text: str) -> Plant:
    return write("theirs.j2", text)


CASES: list[Case] = [
    case(
        "a hundred thousand workers",
        f"{BUILD} --tokenizer bytes --workers 100000",
        2,
        uses=("in.jsonl",),
    ),
    case(
        "an endless number of workers",
        f"{BUILD} --tokenizer bytes --workers {10**30}",
        2,
        uses=("in.jsonl",),
    ),
    case("10^18 tokens", f"{BUILD} --train-bpe {10**18}", 2, uses=("in.jsonl",)),
    case("2^70 tokens", f"{BUILD} --train-bpe {2**70}", 2, uses=("in.jsonl",)),
    case("minus one token", f"{BUILD} --train-bpe -1", 2, uses=("in.jsonl",)),
    case(
        "a text key with escape sequences",
        f"{BUILD} --tokenizer bytes --text-key '{ESCAPES}'",
        2,
        uses=("in.jsonl",),
    ),
    case(
        "an output with escape sequences",
        "data build nowhere --output '\x1b[2J\u202e' --tokenizer bytes",
        2,
        uses=(),
    ),
    *(
        case(f"a temperature of {value}", f"{GENERATE} --temperature {value}", 2)
        for value in ("nan", "inf", "-1", "-inf", "1e400", "hot")
    ),
    case(
        "a temperature near zero",
        f"{GENERATE} --temperature 1e-320 --max-tokens 2",
        (0, 2),
    ),
    *(
        case(f"--max-tokens {value}", f"{GENERATE} --max-tokens {value}", 2)
        for value in (0, -1, 10**18, 10**40, "many")
    ),
    *(
        case(f"--top-k {value}", f"{GENERATE} --top-k {value} --max-tokens 2", code)
        for value, code in ((0, 2), (-1, 2), (10**18, (0, 2)), (10**40, (0, 2)))
    ),
    *(
        case(f"--step {value}", f"{GENERATE} --step {value}", (2, 5))
        for value in (-1, 99, 10**18, 10**40)
    ),
    *(
        case(f"generate --seed {value}", f"{GENERATE} --seed {value}", 2)
        for value in (-1, 2**63, 10**40)
    ),
    case("an empty prompt", "generate run --prompt ''", 2),
    case("a prompt with half a surrogate pair", "generate run --prompt '\udcff'", (0, 2)),
    *(
        case(
            f"sbatch option {option}",
            f"{DRY} 'launch.slurm.sbatch_args=[\"{option}\"]'",
            2,
            uses=(),
        )
        for option in OF_THE_CHAIN
    ),
    *(
        case(
            f"a template that {name}",
            f"{DRY} launch.slurm.template=theirs.j2",
            2,
            template(text),
            uses=(),
        )
        for name, text in TEMPLATES.items()
    ),
    case(
        "a template that is a FIFO",
        f"{DRY} launch.slurm.template=theirs.j2",
        2,
        fifo("theirs.j2"),
        uses=(),
    ),
    case(
        "a template that is an endless device",
        f"{DRY} launch.slurm.template=theirs.j2",
        2,
        device("theirs.j2"),
        uses=(),
    ),
    case(
        "a billion nodes: plan",
        "plan -f llama3_tiny trainer.num_nodes=1000000000 trainer.devices=1000000000",
        2,
        uses=(),
    ),
    case(
        "a billion layers: plan", "plan -f llama3_tiny model.num_layers=1000000000", (0, 2), uses=()
    ),
    case(
        "a billion stages: plan",
        "plan -f llama3_tiny model.global_batch_size=1000000000"
        " 'model.rampup_batch_size=[1,1,1000000000]'",
        2,
        uses=(),
    ),
    case(
        "an alias bomb among the options: plan",
        "plan -f llama3_tiny --config-dir theirs optim=bomb",
        2,
        write("theirs/optim/bomb.yaml", bomb()),
        uses=(),
    ),
    case(
        "a FIFO among the options: plan",
        "plan -f llama3_tiny --config-dir theirs optim=pipe",
        2,
        fifo("theirs/optim/pipe.yaml"),
        uses=(),
    ),
    case(
        "an endless device among the options: plan",
        "plan -f llama3_tiny --config-dir theirs optim=zero",
        2,
        device("theirs/optim/zero.yaml"),
        uses=(),
    ),
    case(
        "deep options: plan",
        "plan -f llama3_tiny --config-dir theirs optim=deep",
        2,
        write("theirs/optim/deep.yaml", "[" * 20_000),
        uses=(),
    ),
    case(
        "options with escape sequences: plan",
        "plan -f llama3_tiny --config-dir theirs optim=esc",
        2,
        write("theirs/optim/esc.yaml", '"\\e[2J\\u202e": 1\n'),
        uses=(),
    ),
    case(
        "an object among the options: plan",
        "plan -f llama3_tiny --config-dir theirs optim=x",
        2,
        write("theirs/optim/x.yaml", "_target_: os.system\n"),
        uses=(),
    ),
    case("a setting with escape sequences: explain", "explain 'model.\x1b[2J\u202e'", 2, uses=()),
    case(
        "a value with escape sequences: plan",
        "plan -f llama3_tiny 'name=\x1b[2J\u202e'",
        2,
        uses=(),
    ),
    case("a recipe with escape sequences: plan", "plan -f '\x1b[2J\u202e'", 2, uses=()),
    case(
        "a recipe that calls a function: plan",
        'plan -f \'llama3_tiny(__import__("os").system("touch owned"))\'',
        2,
        uses=(),
    ),
    case(
        "throughput of a folder of another program: plan",
        "plan -f llama3_tiny --measured theirs",
        2,
        write("theirs/metrics.jsonl", "[" * 9999),
        uses=(),
    ),
    case(
        "throughput of a run with damaged metrics: plan",
        "plan -f llama3_tiny --measured run",
        (2, 5),
        write("run/metrics.jsonl", f"{ESCAPES}\n"),
    ),
    case("a plot of an unknown kind: plan", "plan -f llama3_tiny --plot '\x1b[2J.exe'", 2, uses=()),
    case("a shell with escape sequences: completion", "completion '\x1b[2J\u202e'", 2, uses=()),
    case("an unknown command with escape sequences", "'\x1b[2J\u202e'", 2, uses=()),
    case("an unknown option with escape sequences", "plan '--\x1b[2J\u202e'", 2, uses=()),
    case(
        "doctor of a run with damaged records",
        "doctor -f llama3_tiny run_dir=run",
        (0, 1, 2, 4, 5),
        write("run/state.json", ESCAPES),
    ),
]
