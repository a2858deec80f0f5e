"""Hostile words on the command line: huge, not numbers, forbidden options, endless templates."""

from hostile.case import Case, case, each
from hostile.cases.configs import bomb
from hostile.cases.run_files import ESCAPES
from hostile.world import not_files, write

BUILD = "data build in.jsonl --output new"
GENERATE = "generate run --prompt text"
DRY = "pretrain -f llama3_tiny --dry-run launch=slurm"
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


HERE, BUILT = {"uses": ()}, {"uses": ("in.jsonl",)}
PLAN_OF_THEIRS = "plan -f llama3_tiny --config-dir theirs optim=mine"

CASES: list[Case] = [
    *(
        case(f"{name}: build", f"{BUILD} {words}", 2, **BUILT)
        for name, words in {
            "an endless number of workers": f"--tokenizer bytes --workers {10**30}",
            "2^70 tokens": f"--train-bpe {2**70}",
            "minus one token": "--train-bpe -1",
            "a text key with escape sequences": f"--tokenizer bytes --text-key '{ESCAPES}'",
        }.items()
    ),
    *(
        case(f"--{option} {value}: generate", f"{GENERATE} --max-tokens 2 --{option} {value}", code)
        for option, code, values in (
            ("temperature", 2, ("nan", "inf", "-1", "-inf", "1e400", "hot")),
            ("temperature", (0, 2), ("1e-320",)),
            ("max-tokens", 2, (0, -1, 10**18, 10**40, "many")),
            ("top-k", 2, (0, -1)),
            ("top-k", (0, 2), (10**18, 10**40)),
            ("step", (2, 5), (-1, 99, 10**18, 10**40)),
            ("seed", 2, (-1, 2**63, 10**40)),
        )
        for value in values
    ),
    case("an empty prompt", "generate run --prompt ''", 2),
    case("a prompt with half a surrogate pair", "generate run --prompt '\udcff'", (0, 2)),
    *each(
        "a template that {}",
        f"{DRY} launch.slurm.template=theirs.j2",
        2,
        {name: write("theirs.j2", text) for name, text in TEMPLATES.items()}
        | {
            f"is {kind}": plant
            for kind, plant in not_files("theirs.j2", "a FIFO", "an endless device").items()
        },
        **HERE,
    ),
    case(
        "a billion layers: plan", "plan -f llama3_tiny model.num_layers=1000000000", (0, 2), **HERE
    ),
    *each(
        "{} as an option file: plan",
        PLAN_OF_THEIRS,
        2,
        {
            "an alias bomb": write("theirs/optim/mine.yaml", bomb()),
            "deep lists": write("theirs/optim/mine.yaml", "[" * 20_000),
            "a key with escape sequences": write("theirs/optim/mine.yaml", '"\\e[2J\\u202e": 1\n'),
        }
        | not_files("theirs/optim/mine.yaml", "a FIFO", "an endless device"),
        **HERE,
    ),
    case(
        "throughput of a folder of another program: plan",
        "plan -f llama3_tiny --measured theirs",
        2,
        write("theirs/metrics.jsonl", "[" * 9999),
        **HERE,
    ),
    case(
        "throughput of a run with damaged metrics: plan",
        "plan -f llama3_tiny --measured run",
        (2, 5),
        write("run/metrics.jsonl", f"{ESCAPES}\n"),
    ),
    case(
        "doctor of a run with damaged records",
        "doctor -f llama3_tiny run_dir=run",
        (0, 1, 2, 4, 5),
        write("run/state.json", ESCAPES),
    ),
]
