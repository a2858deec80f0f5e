"""Wrong inputs and what their messages must contain: the key, where it was set, what would work."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.prompts import PROMPT_WORDS

LONG_INTEGER = "9" * 5000
TOKENIZER = (
    '{"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "unk_token": "0",'
    ' "vocab": {"0": 0, "\\n": 1}}}'
)
"""A tokenizer.json."""


@dataclass(frozen=True, slots=True)
class BadInput:
    """One wrong input.

    Attributes:
        title: what is wrong, in a few words.
        words: the words after `rampcli`.
        fragments: fragments that the message must contain.
        files: content of the files in the working directory, by path.
    """

    title: str
    words: tuple[str, ...]
    fragments: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)


def plan(*words: str, factory: str = "llama3_8b") -> tuple[str, ...]:
    return ("plan", "--factory", factory, *words)


def sweep(*words: str) -> tuple[str, ...]:
    return ("sweep", "--factory", "llama3_tiny", *words)


def gpt3(*words: str) -> tuple[str, ...]:
    return plan(*words, factory="gpt3_5b")


def rl(*words: str) -> tuple[str, ...]:
    typed = {word.partition("=")[0] for word in words}
    prompts = (word for word in PROMPT_WORDS if word.partition("=")[0] not in typed)
    return ("rl", "--factory", "llama3_tiny", *prompts, *words, "--dry-run")


def starting_from(path: str) -> tuple[str, ...]:
    return ("rl", "--factory", "sort_digits", f"model.init_from={path}")


def schedule(text: str, *words: str) -> tuple[str, ...]:
    return plan(f"model.step_batch_size_schedule='{text}'", *words)


def maxtext_ramp(**changed: str | None) -> tuple[str, ...]:
    """Returns the five MaxText words of a ramp; `changed` replaces words, or drops them if None."""
    words = {
        "per_device_batch_size": "16",
        "enable_rampup_batch_size": "true",
        "per_device_batch_size_start": "4",
        "per_device_batch_size_increment": "2",
        "global_rampup_samples": "500",
    }
    return gpt3(
        *(f"{word}={value}" for word, value in (words | changed).items() if value is not None)
    )


def in_file(
    title: str, text: str | bytes, *fragments: str, group: str = "optim", line: int | None = 1
) -> BadInput:
    """Returns a row for a wrong option file; the message must name its line."""
    place = f"{group}/mine.yaml" + ("" if line is None else f":{line}")
    return BadInput(
        title,
        plan("--config-dir", ".", f"{group}=mine"),
        (*fragments, f"set by: {place}"),
        {f"{group}/mine.yaml": text},
    )


def in_global_file(title: str, text: str, *fragments: str, line: int) -> BadInput:
    return in_file(title, f"# @package _global_\n{text}", *fragments, group="batch", line=line)


TYPED = "set by: command line"
NAMED = "data.validation={wiki:data/wiki,code:data/code}"
TYPES = (
    BadInput(
        "a path where names with paths are needed",
        plan("data.validation=data/wiki"),
        ("data.validation=data/wiki is not a mapping of names to paths", NAMED, TYPED),
    ),
    BadInput(
        "a word where an integer is needed",
        plan("trainer.devices=eight"),
        ("trainer.devices=eight is not an integer", TYPED),
    ),
    BadInput(
        "a value with a conversion function",
        plan("trainer.num_nodes=int(1.9)"),
        ("trainer.num_nodes=int(1.9): conversions such as int() are not supported", TYPED),
    ),
    BadInput(
        "a fraction where an integer is needed",
        plan("trainer.max_steps=1.5"),
        ("trainer.max_steps=1.5 is not an integer", TYPED),
    ),
    BadInput(
        "an integer in scientific notation",
        plan("seed=1e3"),
        ("seed=1000.0 is not an integer", "seed=1000"),
    ),
    BadInput(
        "true where an integer is needed",
        plan("trainer.num_nodes=true"),
        ("trainer.num_nodes=true is not an integer", TYPED),
    ),
    BadInput(
        "null for a required setting",
        plan("data.sequence_length=null"),
        ("data.sequence_length=null is not an integer", TYPED),
    ),
    BadInput(
        "an empty value",
        plan("trainer.num_nodes="),
        ("trainer.num_nodes= is not an integer", TYPED),
    ),
    BadInput(
        "a word where a number is needed",
        plan("optim.lr=fast"),
        ("optim.lr=fast is not a number", TYPED),
    ),
    BadInput(
        "a word where true or false is needed",
        plan("model.bias=maybe"),
        ("model.bias=maybe is not true or false", "model.bias=false"),
    ),
    BadInput(
        "a list where an integer is needed",
        plan("model.global_batch_size=[512]"),
        ("model.global_batch_size=[512] is not an integer", TYPED),
    ),
    BadInput(
        "a mapping where a number is needed",
        plan("optim.lr={a: 1}"),
        ("optim.lr={a:1} is not a number", TYPED),
    ),
    BadInput(
        "a list where a string is needed",
        plan("name=[1]"),
        ("name=[1] is not a string", "name=run"),
    ),
    BadInput(
        "a ramp that is a single number",
        plan("model.rampup_batch_size=256"),
        (
            "model.rampup_batch_size=256 is not a list of integers",
            "model.rampup_batch_size=[256,128,50000000]",
        ),
    ),
    BadInput(
        "a ramp that contains a word",
        plan("model.rampup_batch_size=[256,many,50M]"),
        ("[256,many,50M] is not a list of integers", TYPED),
    ),
    BadInput(
        "a ramp that contains a list",
        plan("model.rampup_batch_size=[256,[128],50M]"),
        ("[256,[128],50M] is not a list of integers", TYPED),
    ),
    BadInput(
        "an unknown choice",
        plan("rampup.node_policy=nemesis"),
        ("nemesis is not one of nemo, best, fixed", TYPED),
    ),
    BadInput(
        "a choice in capital letters",
        plan("trainer.precision=BF16"),
        ("trainer.precision=BF16 is not one of fp32, bf16", TYPED),
    ),
    BadInput(
        "an unknown optimiser",
        plan("optim.optimizer=adam"),
        ("optim.optimizer=adam is not one of adamw, muon", "optim.optimizer=adam (command line)"),
    ),
    BadInput(
        "an unknown mode of activation checkpointing",
        plan("trainer.activation_checkpointing=all"),
        ("trainer.activation_checkpointing=all is not one of none, selective, full", TYPED),
    ),
    BadInput(
        "an unknown action for a non-finite loss",
        plan("trainer.on_nonfinite=ignore"),
        ("trainer.on_nonfinite=ignore is not one of stop, skip", TYPED),
    ),
    BadInput(
        "a list where a folder of weights is needed",
        plan("model.init_from=[1]"),
        ("model.init_from=[1] is not a string", TYPED),
    ),
    BadInput(
        "an unknown unit",
        plan("trainer.max_tokens=5G"),
        ("trainer.max_tokens=5G is not an integer", TYPED),
    ),
    BadInput(
        "a unit in lower case",
        plan("trainer.max_tokens=5m"),
        ("trainer.max_tokens=5m is not an integer", TYPED),
    ),
)
LENGTHS = (
    BadInput(
        "a ramp of two values",
        plan("model.rampup_batch_size=[256,128]"),
        ("has 2 values; it takes three", "(command line)"),
    ),
    BadInput(
        "a ramp of four values",
        plan("model.rampup_batch_size=[256,128,50M,1]"),
        ("has 4 values; it takes three", "(command line)"),
    ),
    BadInput(
        "an empty ramp",
        plan("model.rampup_batch_size=[]"),
        ("model.rampup_batch_size=[] has 0 values", "(command line)"),
    ),
    BadInput(
        "two batch sizes for one run",
        plan("model.global_batch_size=512,1024"),
        ("512,1024: a setting takes one value", TYPED),
    ),
    BadInput(
        "a range of seeds for one run",
        plan("seed=range(1,3)"),
        ("seed=range(1,3): a setting takes one value", TYPED),
    ),
    BadInput(
        "several seeds for one run",
        plan("seed=choice(1,2)"),
        ("seed=choice(1,2): a setting takes one value", TYPED),
    ),
    BadInput(
        "two models for one run",
        plan("model=llama3_8b,gpt3_5b"),
        ("a setting takes one value", "model=llama3_8b"),
    ),
)
NEGATIVE = (
    BadInput(
        "a negative number of nodes",
        plan("trainer.num_nodes=-1"),
        ("trainer.num_nodes=-1 is below 1", "(command line)"),
    ),
    BadInput(
        "a negative seed",
        plan("seed=-1"),
        ("seed=-1 is below 0", "seed=0 or more", "(command line)"),
    ),
    BadInput(
        "a negative learning rate",
        plan("optim.lr=-0.1"),
        ("optim.lr=-0.1 is below 0", "(command line)"),
    ),
    BadInput(
        "a negative warm-up",
        plan("optim.warmup_steps=-10"),
        ("optim.warmup_steps=-10 is below 0", "(command line)"),
    ),
    BadInput(
        "a ramp with a negative increment",
        plan("model.rampup_batch_size=[256,-128,50M]"),
        ("increment -128 is below 1", "(command line)"),
    ),
    BadInput(
        "a ramp over a negative number of samples",
        plan("model.rampup_batch_size=[256,128,-1]"),
        ("samples -1 is below 0",),
    ),
    BadInput(
        "a negative number of nodes as an argument of the recipe",
        plan(factory="llama3_8b(num_nodes=-1)"),
        ("is below 1", "recipes/llama.py:"),
    ),
)
ZERO = (
    BadInput(
        "zero nodes",
        plan("trainer.num_nodes=0"),
        ("trainer.num_nodes=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a micro batch of zero samples",
        plan("data.micro_batch_size=0"),
        ("data.micro_batch_size=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a global batch of zero samples",
        plan("model.global_batch_size=0"),
        ("model.global_batch_size=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a run of zero steps",
        plan("trainer.max_steps=0"),
        ("trainer.max_steps=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a gradient clipped to zero",
        plan("trainer.gradient_clip_val=0"),
        ("trainer.gradient_clip_val=0.0 is not above 0",),
    ),
    BadInput(
        "a sliding window of zero tokens",
        plan("model.sliding_window=0"),
        ("model.sliding_window=0 is below 1", "(command line)"),
    ),
    BadInput(
        "an outlier limit of zero standard deviations",
        plan("optim.skip_step_sigma=0"),
        ("optim.skip_step_sigma=0.0 is not above 0", "(command line)"),
    ),
    BadInput(
        "zero tensor-parallel ranks",
        plan("parallel.tensor_parallel_size=0"),
        ("parallel.tensor_parallel_size=0 is below 1",),
    ),
    BadInput(
        "weights sharded over zero ranks",
        plan("parallel.data_parallel_shard_size=0"),
        ("parallel.data_parallel_shard_size=0 is below 1",),
    ),
    BadInput(
        "a ramp that starts at zero",
        plan("model.rampup_batch_size=[0,128,50M]"),
        ("start 0 is below 1", "(command line)"),
    ),
    BadInput(
        "zero checkpoints to keep",
        plan("checkpoint.keep_last=0"),
        ("checkpoint.keep_last=0 is below 1", "(command line)"),
    ),
)
HUGE = (
    BadInput(
        "a batch of 10^30",
        plan(f"model.global_batch_size={10**30}"),
        ("model.global_batch_size=1000", "is beyond 1e+18", TYPED),
    ),
    BadInput(
        "a seed of 10^30",
        plan(f"seed={10**30}"),
        ("is above 4611686018427387904", "(command line)"),
    ),
    BadInput(
        "10^30 samples in the ramp",
        plan(f"model.rampup_batch_size=[256,128,{10**30}]"),
        ("is beyond 1e+18", TYPED),
    ),
    BadInput(
        "10^9 nodes",
        plan("trainer.num_nodes=1000000000"),
        ("trainer.num_nodes=1000000000 is above 100000",),
    ),
    BadInput(
        "an integer of 5000 digits",
        plan(f"trainer.num_nodes={LONG_INTEGER}"),
        ("trainer.num_nodes=9999", "...", TYPED),
    ),
    BadInput(
        "a number of 5000 digits", plan(f"optim.lr={LONG_INTEGER}"), ("optim.lr=9999", "...", TYPED)
    ),
    BadInput(
        "a ramp of 10^9 increments",
        plan("model.rampup_batch_size=[1,1,50M]", "model.global_batch_size=1000000001"),
        ("has 1000000001 batch sizes", "the limit is 10000", "an increment of at least 100011"),
    ),
    BadInput(
        "a fraction above one",
        plan("throughput.mfu=1.5"),
        ("throughput.mfu=1.5 is above 1", "(command line)"),
    ),
    BadInput(
        "a recipe with 10^30 nodes",
        plan(factory=f"llama3_8b(num_nodes={10**30})"),
        ("is above 100000", "recipes/llama.py:"),
    ),
)
NOT_FINITE = (
    BadInput(
        "NaN where a number is needed",
        plan("optim.lr=nan"),
        ("optim.lr=nan is not a finite number", TYPED),
    ),
    BadInput(
        "infinity where a number is needed",
        plan("optim.lr=inf"),
        ("optim.lr=inf is not a finite number", TYPED),
    ),
    BadInput(
        "minus infinity where a number is needed",
        plan("optim.weight_decay=-inf"),
        ("optim.weight_decay=-inf is not a finite number", TYPED),
    ),
    BadInput(
        "a number that overflows",
        plan("optim.lr=1e400"),
        ("optim.lr=inf is not a finite number", TYPED),
    ),
    BadInput(
        "NaN where an integer is needed", plan("seed=nan"), ("seed=nan is not an integer", TYPED)
    ),
)
CHARACTERS = (
    BadInput(
        "full-width digits",
        plan("trainer.num_nodes=１６"),
        ("cannot read the value in trainer.num_nodes=１６", TYPED),
    ),
    BadInput(
        "a Unicode minus sign",
        plan("optim.lr=−1"),
        ("cannot read the value in optim.lr=−1", TYPED),
    ),
    BadInput(
        "an emoji where an integer is needed",
        plan("seed='🚀'"),
        ("seed=🚀 is not an integer", TYPED),
    ),
    BadInput("an emoji in a key", plan("trainer.🚀=1"), ("there is no setting trainer.🚀", TYPED)),
    BadInput(
        "a control character in the name",
        plan("name='a\x07b'"),
        (r"name='a\x07b' cannot name a folder", "(command line)"),
    ),
    BadInput(
        "a change of text direction in the name",
        plan("name='a\u202eb'"),
        (r"name='a\u202eb' cannot name a folder", "(command line)"),
    ),
    BadInput(
        "a change of text direction in a key",
        plan("\u202eseed=1"),
        (r"there is no setting \u202eseed", "try:    seed", TYPED),
    ),
    BadInput(
        "a zero-width space in a key",
        plan("se\u200bed=1"),
        (r"there is no setting se\u200bed", "try:    seed", TYPED),
    ),
    BadInput(
        "full-width digits in quotes",
        plan("seed='１２'"),
        ("seed=１２ is not an integer", "seed=12", TYPED),
    ),
    BadInput(
        "a colour code in a key", plan("\x1b31mseed=1"), (r"there is no setting \x1b31mseed", TYPED)
    ),
    BadInput(
        "a colour code in the name of a recipe",
        plan(factory="\x1b[31mllama3_8b"),
        (r"--factory \x1b[31mllama3_8b is not a recipe's name",),
    ),
    BadInput(
        "a name of a recipe with 5000 characters",
        plan(factory="l" * 5000),
        ("--factory lll", "lll ... lll", "--factory fine_tune or", "in all)"),
    ),
    BadInput(
        "an emoji as the name of a recipe",
        plan(factory="🦙"),
        ("--factory 🦙 is not a recipe's name",),
    ),
)
TWICE = (
    BadInput(
        "a name given twice",
        plan("data.validation={wiki:a,wiki:b}"),
        ("data.validation names wiki twice", TYPED),
    ),
    BadInput(
        "a key given twice", plan("seed=1", "seed=2"), ("seed is given twice: 1 and 2", TYPED)
    ),
    BadInput(
        "a group given twice",
        plan("optim=nemo_adam", "optim=nemo_gpt3"),
        ("optim is given twice: nemo_adam and nemo_gpt3", TYPED),
    ),
    BadInput(
        "different batch sizes in the words of NeMo 1 and NeMo 2",
        plan("data.global_batch_size=1024", "model.global_batch_size=512"),
        (
            "two spellings of one setting and differ",
            "data.global_batch_size=1024 (command line)",
            "model.global_batch_size=512 (command line)",
        ),
    ),
    BadInput(
        "different sizes in two of NeMo's words for tensor parallelism",
        plan("model.tensor_model_parallel_size=2", "trainer.strategy.tensor_model_parallel_size=4"),
        (
            "two spellings of one setting and differ",
            "model.tensor_model_parallel_size=2 (command line)",
        ),
    ),
    BadInput(
        "different sizes in two words, one of them negative",
        plan("model.tensor_model_parallel_size=4", "parallel.tensor_parallel_size=-5"),
        ("two spellings of one setting and differ", "parallel.tensor_parallel_size=-5"),
    ),
    BadInput(
        "different values in MaxText's and NeMo's words for accumulation",
        plan("gradient_accumulation_steps=2", "trainer.accumulate_grad_batches=4"),
        (
            "gradient_accumulation_steps=2 and trainer.accumulate_grad_batches=4"
            " are two spellings of one setting",
            "(command line)",
        ),
    ),
    BadInput(
        "different ramps in MaxText's and NeMo's words",
        (*maxtext_ramp(), "model.rampup_batch_size=[256,256,10M]"),
        (
            "enable_rampup_batch_size=true sets model.rampup_batch_size=[512,256,500]",
            "but [256,256,10000000] is given",
            "(command line)",
        ),
    ),
    BadInput(
        "two ends of the run",
        plan("trainer.max_steps=10", "trainer.max_samples=100"),
        ("the length of the run is set more than once", "trainer.max_steps=10 (command line)"),
    ),
    BadInput(
        "two warm-ups",
        plan("optim.warmup_steps=10", "optim.warmup_samples=100"),
        ("the warm-up is given twice", "optim.warmup_samples=100 (command line)"),
    ),
)
UNKNOWN = (
    BadInput(
        "a mistyped key",
        plan("model.global_batchsize=1"),
        ("there is no setting model.global_batchsize", "model.global_batch_size"),
    ),
    BadInput(
        "a mistyped key in the section of NeMo's launcher",
        plan("training.model.global_batchsize=1"),
        ("there is no setting model.global_batchsize", "model.global_batch_size", TYPED),
    ),
    BadInput(
        "a key that resembles no setting",
        plan("zzzzzz=1"),
        ("there is no setting zzzzzz", "--cfg, which lists all settings", TYPED),
    ),
    BadInput(
        "a section instead of a setting",
        plan("trainer=1"),
        ("trainer is a section, not a setting", "trainer.num_nodes", TYPED),
    ),
    BadInput(
        "an unknown group",
        plan("scheduler=cosine"),
        ("there is no setting scheduler", TYPED),
    ),
    BadInput(
        "an unknown option of a group",
        plan("model=llama4"),
        ("there is no conf/model/llama4.yaml", "model=llama3_8b", TYPED),
    ),
    BadInput(
        "an unknown recipe",
        plan(factory="llama3_9b"),
        ("there is no recipe llama3_9b", "--factory llama3_8b"),
    ),
    BadInput("a missing recipe", ("plan",), ("needs a recipe: --factory NAME", "rampcli recipes")),
    BadInput(
        "a recipe given twice",
        ("plan", "-f", "gpt3_5b", "--factory", "llama3_8b"),
        ("--factory is given twice: gpt3_5b and llama3_8b", "--factory llama3_8b"),
    ),
    BadInput(
        "a picture given twice",
        plan("--plot=a.svg", "--plot", "b.svg"),
        ("--plot is given twice: a.svg and b.svg", "--plot b.svg"),
    ),
    BadInput(
        "values of a setting that the plan does not depend on",
        plan("--what-if", "optim.lr=1e-3,2e-3"),
        ("the plan is the same for each value", "rampcli sweep --factory llama3_8b optim.lr="),
    ),
    BadInput(
        "a setting compared twice",
        plan("--what-if", "trainer.num_nodes=1,2", "--what-if", "trainer.num_nodes=4"),
        ("trainer.num_nodes is given twice", "trainer.num_nodes=A,B,C"),
    ),
    BadInput(
        "an unknown command",
        ("train",),
        ("there is no command train", "rampcli pretrain"),
    ),
    BadInput(
        "an unknown option of a command",
        plan("--nodes=2"),
        ("rampcli plan has no option --nodes", "rampcli plan --help"),
    ),
    BadInput(
        "a setting as an option",
        plan("--lr", "0.1"),
        ("rampcli plan has no option --lr", "optim.lr=VALUE or --plot or rampcli plan --help"),
    ),
    BadInput(
        "a setting typed as an option",
        plan("--", "--seed=5"),
        ("there is no setting --seed", TYPED),
    ),
    BadInput(
        "a missing folder of options",
        plan("--config-dir", "nowhere"),
        ("dir 'nowhere' does not exist",),
    ),
    BadInput(
        "a file where a folder is needed",
        plan("--config-dir", "f"),
        ("dir 'f' is a file",),
        {"f": ""},
    ),
    BadInput(
        "an explanation of an unknown key",
        ("explain", "optim.learning_rate"),
        ("there is no setting optim.learning_rate",),
    ),
    BadInput(
        "an explanation of a section",
        ("explain", "optim"),
        ("optim is a section, not a setting", "optim.lr"),
    ),
    BadInput(
        "an explanation of KEY=VALUE",
        ("explain", "seed=1"),
        ("explain needs the key of a setting", "rampcli explain"),
    ),
    BadInput(
        "completion for an unknown shell",
        ("completion", "powershell"),
        ("no completion for powershell", "rampcli completion bash"),
    ),
)
GRAMMAR = (
    BadInput(
        "a word without a value",
        plan("global_batch_size"),
        ("'global_batch_size' is not KEY=VALUE", TYPED),
    ),
    BadInput("a value without a key", plan("=5"), ("'=5' is not KEY=VALUE", TYPED)),
    BadInput("an empty word", plan(""), ("'' is not KEY=VALUE", TYPED)),
    BadInput(
        "an option of a group added with +",
        plan("+model=llama3_8b"),
        ("settings cannot be added or deleted", "try:    model=llama3_8b"),
    ),
    BadInput(
        "a group deleted with ~",
        plan("~model"),
        ("~model: settings cannot be added or deleted", "try:    model=OPTION"),
    ),
    BadInput(
        "a setting added with +",
        plan("+seed=5"),
        ("+seed=5: settings cannot be added or deleted", "try:    seed=5", TYPED),
    ),
    BadInput(
        "a setting deleted with ~",
        plan("~seed"),
        ("~seed: settings cannot be added or deleted", "try:    seed=null", TYPED),
    ),
    BadInput(
        "an unclosed bracket",
        plan("model.rampup_batch_size=[256,128"),
        (
            "the bracket in model.rampup_batch_size=[256,128 is never closed",
            "'model.rampup_batch_size=[256,128]'",
            TYPED,
        ),
    ),
    BadInput(
        "an unclosed bracket over several words",
        plan("model.rampup_batch_size=[256,", "128,", "seed=1"),
        ("the bracket in model.rampup_batch_size=[256, 128, is never closed", TYPED),
    ),
    BadInput(
        "an unopened bracket",
        plan("model.rampup_batch_size=256]"),
        ("cannot read the value", "256]", TYPED),
    ),
    BadInput("an unclosed quote", plan("name='a"), ("cannot read the value in name='a", TYPED)),
    BadInput(
        "an unclosed brace",
        plan("optim={lr: 1"),
        ("cannot read the value in optim={lr: 1", "optim={lr: 1}", TYPED),
    ),
    BadInput(
        "two hundred nested brackets",
        plan(f"model.rampup_batch_size={'[' * 200}{']' * 200}"),
        ("is not a list of integers", TYPED),
    ),
)
INJECTIONS = (
    BadInput(
        "an environment variable",
        plan("name=${oc.env:SECRET}"),
        ("name=${oc.env:SECRET}", "are not resolved here", TYPED),
    ),
    BadInput(
        "an environment variable as a seed",
        plan("seed=${oc.env:SECRET}"),
        ("are not resolved here", TYPED),
    ),
    BadInput(
        "an environment variable in a list",
        plan("model.rampup_batch_size=['${oc.env:SECRET}',1,2]"),
        ("not resolved here", TYPED),
    ),
    BadInput(
        "an environment variable as an option of a group",
        plan("model=${oc.env:SECRET}"),
        ("there is no conf/model/", TYPED),
    ),
    BadInput(
        "a reference to another setting",
        plan("seed=${trainer.num_nodes}"),
        ("seed=${trainer.num_nodes}: references", TYPED),
    ),
    BadInput(
        "a value marked as missing", plan("seed=???"), ("seed=???", "are not resolved here", TYPED)
    ),
    BadInput(
        "an object to construct",
        plan("model._target_=os.system"),
        ("there is no setting model._target_", TYPED),
    ),
    BadInput(
        "a setting of Hydra itself",
        plan("hydra.run.dir=elsewhere"),
        ("there is no setting hydra.run.dir", TYPED),
    ),
    BadInput(
        "an option in the folder of another group",
        plan("model=../optim/llama3_8b"),
        ("there is no conf/model/../optim/llama3_8b.yaml", TYPED),
    ),
    BadInput(
        "an option by an absolute path",
        plan("model=/etc/passwd"),
        ("model=/etc/passwd: there is no conf/model/", TYPED),
    ),
    BadInput(
        "an option outside the given folder",
        plan("--config-dir", "mine", "optim=../../secret"),
        ("optim=../../secret: there is no conf/optim/", TYPED),
        {"secret.yaml": "lr: 1\n", "mine/optim/other.yaml": "lr: 1\n"},
    ),
    BadInput(
        "a recipe that imports a module",
        plan(factory="llama3_8b(__import__('os'))"),
        ("--factory", "is not a recipe's name"),
    ),
    BadInput(
        "a recipe with an arithmetic argument",
        plan(factory="llama3_8b(num_nodes=1 + 1)"),
        ("--factory", "is not a recipe's name"),
    ),
    BadInput(
        "a recipe given by its path",
        plan(factory="../recipes/llama3_8b"),
        ("--factory ../recipes/llama3_8b is not a recipe's name",),
    ),
)
FILES = (
    in_file(
        "an unknown key in a file",
        "lr: 0.5\nlearning_rate: 1\n",
        "there is no setting optim.learning_rate",
        line=2,
    ),
    in_file(
        "a word where a number is needed, in a file",
        "\n\nlr: fast\n",
        "optim.lr=fast is not a number",
        line=3,
    ),
    in_file("a negative number in a file", "lr: -1\n", "optim.lr=-1.0 is below 0"),
    in_file("infinity in a file", "lr: .inf\n", "optim.lr=inf is not a finite number"),
    in_file(
        "a key given twice in a file", "lr: 0.5\nmin_lr: 0\nlr: 0.25\n", "lr is set twice", line=3
    ),
    in_global_file(
        "a key given twice in a section of a file",
        "optim:\n  lr: 0.5\n  lr: 0.25\n",
        "lr is set twice",
        line=4,
    ),
    in_file("a null key in a file", "lr: 0.5\n~: 2\n", "a key is not a string", line=2),
    in_file("a number as a key in a file", "2: 0.5\n", "a key is not a string"),
    in_file(
        "a number of 5000 digits in a file", f"lr: {LONG_INTEGER}\n", "a number of 5000 characters"
    ),
    in_file("NaN in a file", "lr: .nan\n", "optim.lr=nan is not a finite number"),
    BadInput(
        "an unknown key in a new group",
        plan("--config-dir", ".", "mygroup=a"),
        ("there is no setting mygroup.x", "set by: mygroup/a.yaml:1"),
        {"mygroup/a.yaml": "x: 1\n"},
    ),
    BadInput(
        "an option with the name of a bundled one",
        plan("--config-dir", "."),
        (
            "optim/nemo_adam.yaml: optim=nemo_adam is the name of a bundled option",
            "set by: --config-dir",
            "optim/my_nemo_adam.yaml",
        ),
        {"optim/nemo_adam.yaml": "lr: 1\n"},
    ),
    in_file(
        "a section of another group in a file",
        "hidden_size: 1\n",
        "there is no setting optim.hidden_size",
        "model.hidden_size",
    ),
    in_global_file(
        "an empty section in a file",
        "trainer:\ndata:\n  micro_batch_size: 1\n",
        "trainer is a section, not a setting",
        line=2,
    ),
    in_file("a file that is not YAML", "lr: 0.5\nmin_lr: [\n", "not YAML", line=3),
    in_file("a tab in a file", "lr: 0.5\n\tmin_lr: 0\n", "not YAML", line=2),
    in_file("an empty file", "", "no settings", line=None),
    in_file("a file of comments only", "# nothing\n# here\n", "no settings", line=None),
    in_file("a file that contains a list", "- lr: 0.5\n", "no settings", line=None),
    in_file("two documents in a file", "lr: 0.5\n---\nlr: 0.25\n", "not YAML", line=2),
    in_file("a file that is not text", b"lr: \xff\xfe\n", "not YAML", line=None),
    in_file(
        "a file that is too large",
        f"# {'x' * 25_000}\nlr: 0.5\n",
        "larger than 20,000 bytes",
        line=None,
    ),
    in_file(
        "YAML aliases that expand exponentially",
        "a: &a [x, x]\nb: &b [*a, *a]\nlr: [*b, *b]\n",
        "anchors, aliases and tags are not supported",
    ),
    in_file(
        "a YAML merge key",
        "lr: 1\nbase: &b {eps: 1}\n<<: *b\n",
        "anchors, aliases and tags are not supported",
        line=2,
    ),
    in_file(
        "a YAML tag that constructs an object",
        "lr: !!python/object/apply:os.mkdir [made]\n",
        "anchors, aliases and tags are not supported",
    ),
    in_file(
        "a YAML tag that names a Python object",
        "lr: 1\neps: !!python/name:os.system\n",
        "tags are not supported",
        line=2,
    ),
    in_file(
        "a _target_ in a file",
        "_target_: os.system\nlr: 0.5\n",
        "there is no setting optim._target_",
    ),
    in_global_file(
        "a _target_ in a section of a file",
        "model:\n  _target_: os.system\n",
        "there is no setting model._target_",
        line=3,
    ),
    in_file(
        "an environment variable in a file",
        "lr: ${oc.env:SECRET}\n",
        "${oc.env:SECRET}: references",
        "are not resolved here",
    ),
    in_file("a reference in a file", "lr: 0.5\nmin_lr: ${.lr}\n", "${.lr}: references", line=2),
    in_file(
        "an unclosed reference in a file",
        "lr: '${x'\n",
        "${x: references (${...}) are not resolved here",
    ),
    in_file(
        "a package header without a name",
        "# @package\nlr: 0.5\n",
        "the only package header",
    ),
    in_file("a file that contains an empty mapping", "{}\n", "no settings", line=None),
    in_file(
        "a number that YAML reads in octal",
        "warmup_steps: 010\n",
        "010 is ambiguous: YAML reads it as another number",
    ),
    in_file(
        "a number that YAML reads in base 60",
        "lr: 1:30\n",
        "1:30 is ambiguous: YAML reads it as another number",
    ),
    BadInput(
        "a folder where an option file is needed",
        plan("--config-dir", ".", "optim=mine"),
        (
            "optim=mine: there is no conf/optim/mine.yaml",
            "try:    optim=llama3_tiny or",
        ),
        {"optim/mine.yaml/x": ""},
    ),
    in_file(
        "a file with a list of defaults",
        "defaults:\n  - llama3_8b\nlr: 0.5\n",
        "defaults is not a setting",
    ),
    in_file(
        "settings of Hydra itself in a file",
        "lr: 1\nhydra:\n  run: {dir: elsewhere}\n",
        "hydra is not a setting",
        line=2,
    ),
    in_file(
        "a file in Hydra's own package",
        "# @package hydra\nrun:\n  dir: elsewhere\n",
        "the only package header",
    ),
    in_file(
        "a file in another group's package",
        "# @package model\nhidden_size: 64\n",
        "the only package header",
    ),
    in_file(
        "a hundred nested brackets in a file",
        f"lr: {'[' * 100}{']' * 100}\n",
        "more than 20 levels",
    ),
    in_file("three hundred nested lists in a file", f"lr: {'- ' * 300}1\n", "not YAML"),
)
SCHEDULES = (
    BadInput(
        "a schedule with a malformed entry",
        schedule("0:512 1B-1024"),
        ("'1B-1024' is not THRESHOLD:BATCH_SIZE", "(command line)"),
    ),
    BadInput(
        "a schedule with a fractional batch",
        schedule("0:1.2345K"),
        ("'0:1.2345K' is not THRESHOLD:BATCH_SIZE", "(command line)"),
    ),
    BadInput(
        "a schedule without a batch for the first step",
        schedule("1B:512 2B:1024"),
        ("begins at 1000000000", "an entry 0:512", "(command line)"),
    ),
    BadInput(
        "an empty schedule",
        schedule(""),
        ("model.step_batch_size_schedule='' has no entries", "(command line)"),
    ),
    BadInput(
        "a schedule with a batch of zero samples",
        schedule("0:0"),
        ("batch size 0 is below 1", "(command line)"),
    ),
    BadInput(
        "a schedule with two thresholds at one sample",
        schedule("0:512 1000:1024"),
        (
            "0 and 1000 tokens are the same threshold"
            " (data.sequence_length=8192 tokens make one sample)",
            "batch/nemo_llama.yaml:",
        ),
    ),
    BadInput(
        "a schedule and a ramp",
        schedule("0:512 1B:1024", "model.rampup_batch_size=[256,128,50M]"),
        (
            "the batch is scheduled twice",
            "model.rampup_batch_size=[256,128,50000000] (command line)",
        ),
    ),
    BadInput(
        "a schedule that does not end at the global batch size",
        schedule("0:512 1B:1024", "model.global_batch_size=2048"),
        (
            "model.step_batch_size_schedule ends at 1024, but model.global_batch_size=2048",
            "model.global_batch_size=1024, or null",
        ),
    ),
    BadInput(
        "a schedule with a batch that does not divide",
        schedule("0:511 1B:1024"),
        ("stage 0 (batch size 511)", "multiples of 8"),
    ),
    BadInput(
        "a schedule with permission to decrease batches",
        schedule("0:512 1B:1024", "rampup.decrease_batch_size_if_needed=true"),
        (
            "cannot be combined with model.step_batch_size_schedule",
            "rampup.decrease_batch_size_if_needed=false",
        ),
    ),
)
MAXTEXT = (
    BadInput(
        "a fraction of a sample per device",
        plan("per_device_batch_size=0.3"),
        ("x 8 devices is 2.4 samples", "per_device_batch_size=0.5 or 1"),
    ),
    BadInput(
        "a fraction of a sample per rank",
        plan("per_device_batch_size=0.25"),
        (
            "per_device_batch_size=0.25 x 2 model-parallel devices is 0.5 samples",
            "per_device_batch_size=0.5 or 1",
            "(command line)",
        ),
    ),
    BadInput(
        "zero samples per device",
        plan("per_device_batch_size=0"),
        ("per_device_batch_size=0 is not above zero", "(command line)"),
    ),
    BadInput(
        "MaxText's ramp without any of its values",
        gpt3("enable_rampup_batch_size=true"),
        (
            "enable_rampup_batch_size=true, but per_device_batch_size_start",
            "are not given",
            "global_rampup_samples=500 (MaxText's defaults)",
        ),
    ),
    BadInput(
        "MaxText's ramp without its number of samples",
        maxtext_ramp(global_rampup_samples=None),
        ("global_rampup_samples is not given", "=500"),
    ),
    BadInput(
        "MaxText's ramp without the word that enables it",
        maxtext_ramp(enable_rampup_batch_size=None),
        (
            "per_device_batch_size_start=4.0 without enable_rampup_batch_size",
            "enable_rampup_batch_size=true",
            "(command line)",
        ),
    ),
    BadInput(
        "MaxText's ramp over a negative number of samples",
        maxtext_ramp(global_rampup_samples="-500"),
        (
            "global_rampup_samples=-500 is below 0",
            "set by: global_rampup_samples=-500 (command line)",
        ),
    ),
    BadInput(
        "MaxText's ramp and a different batch in NeMo's words",
        (*maxtext_ramp(), "model.global_batch_size=4096"),
        (
            "per_device_batch_size=16.0 sets model.global_batch_size=2048, but 4096 is given",
            "(command line)",
        ),
    ),
    BadInput(
        "a batch per device with a unit",
        gpt3("per_device_batch_size=4K"),
        ("per_device_batch_size=4K is not a number", "try:    per_device_batch_size=4", TYPED),
    ),
    BadInput(
        "MaxText's ramp that starts at a fraction of a sample",
        maxtext_ramp(per_device_batch_size_start="4.001"),
        ("512.128 samples, which is not whole",),
    ),
    BadInput(
        "MaxText's ramp that starts at its target",
        maxtext_ramp(per_device_batch_size="4"),
        (
            "starts at model.global_batch_size=512",
            "per_device_batch_size=4.0 (command line)",
        ),
    ),
    BadInput(
        "MaxText's ramp with accumulation",
        (*maxtext_ramp(), "gradient_accumulation_steps=2"),
        (
            "cannot be combined with trainer.accumulate_grad_batches=2",
            "gradient_accumulation_steps=2 (command line)",
        ),
    ),
    BadInput(
        "different sizes in MaxText's words and in rampcli's",
        plan("ici_tensor_parallelism=2", "parallel.tensor_parallel_size=4"),
        (
            "ici_tensor_parallelism=2 sets parallel.tensor_parallel_size=2, but 4 is given",
            "ici_tensor_parallelism=2 (command line) · parallel.tensor_parallel_size=4",
        ),
    ),
    BadInput(
        "different products of MaxText's words and sizes in NeMo's",
        gpt3(
            "ici_pipeline_parallelism=2",
            "dcn_pipeline_parallelism=2",
            "model.pipeline_model_parallel_size=2",
        ),
        (
            "ici_pipeline_parallelism=2 x dcn_pipeline_parallelism=2 sets"
            " parallel.pipeline_parallel_size=4, but 2 is given",
            "model.pipeline_model_parallel_size=2 (command line)",
        ),
    ),
    BadInput(
        "a size of MaxText's mesh that is neither a size nor -1",
        plan("dcn_data_parallelism=0"),
        ("dcn_data_parallelism=0 must be 1 or more, or -1", "dcn_data_parallelism=1"),
    ),
    BadInput(
        "a mesh of MaxText's with fewer devices than the run",
        gpt3("ici_fsdp_parallelism=8", "dcn_data_parallelism=8"),
        (
            "ici_fsdp_parallelism=8 x dcn_data_parallelism=8 = 64, but there are 128"
            " data-parallel ranks",
            "try:    dcn_data_parallelism=16",
        ),
    ),
    BadInput(
        "a size of MaxText's mesh that does not divide the ranks",
        plan("ici_data_parallelism=3"),
        ("ici_data_parallelism=3 does not divide 4 data-parallel ranks", "=2"),
    ),
    BadInput(
        "two sizes of MaxText's mesh that take the remaining devices",
        gpt3("ici_data_parallelism=-1"),
        (
            "ici_data_parallelism=-1 and ici_fsdp_parallelism=-1 (MaxText's default) cannot both"
            " take the remaining devices",
            "(command line)",
        ),
    ),
    BadInput(
        "a batch that MaxText derives",
        plan("global_batch_to_load=64"),
        (
            "global_batch_to_load is derived and cannot be set",
            "try:    model.global_batch_size or data.expansion_factor_real_data",
            TYPED,
        ),
    ),
    BadInput(
        "an expansion factor that does not divide the hosts",
        gpt3("expansion_factor_real_data=3"),
        (
            "lets one host in 3 read",
            "expansion_factor_real_data=3.0 (command line)",
            "try:    expansion_factor_real_data=2",
        ),
    ),
    BadInput(
        "pipeline microbatches that are not a multiple of the stages",
        gpt3("parallel.pipeline_parallel_size=2", "num_pipeline_microbatches=3"),
        (
            "parallel.num_pipeline_microbatches=3 is not a multiple of"
            " parallel.pipeline_parallel_size=2",
            "=2 or 4",
        ),
    ),
    BadInput(
        "pipeline microbatches without a pipeline",
        gpt3("num_pipeline_microbatches=2"),
        ("there is no pipeline", "num_pipeline_microbatches=2 (command line)"),
    ),
    BadInput(
        "layers that do not divide over the pipeline",
        gpt3("parallel.pipeline_parallel_size=16"),
        (
            "model.num_layers=24 does not divide into parallel.pipeline_parallel_size=16",
            "model/gpt3_5b.yaml:",
        ),
    ),
)
SPLITS = (
    BadInput(
        "heads that do not divide over the tensor ranks",
        plan("parallel.tensor_parallel_size=8", factory="gpt3_126m"),
        (
            "model.num_attention_heads=12 does not divide into parallel.tensor_parallel_size=8",
            "model/gpt3_126m.yaml:",
            "_size=4",
        ),
    ),
    BadInput(
        "query groups that do not divide over the tensor ranks",
        plan("parallel.tensor_parallel_size=16", "trainer.num_nodes=4"),
        (
            "model.num_query_groups=8 does not divide into parallel.tensor_parallel_size=16",
            "try:    parallel.tensor_parallel_size=8",
        ),
    ),
    BadInput(
        "a model that does not divide over three tensor ranks",
        plan("parallel.tensor_parallel_size=3", "trainer.devices=6"),
        (
            "model.num_query_groups=8, model.ffn_hidden_size=14336 and"
            " model.hidden_size=4096 do not divide",
            "=3 (command line)",
            "=2",
        ),
    ),
    BadInput(
        "a vocabulary that does not divide over the tensor ranks",
        plan("parallel.tensor_parallel_size=2", "model.vocab_size=128255"),
        (
            "model.vocab_size=128255 does not divide into parallel.tensor_parallel_size=2",
            "model.vocab_size=128255 (command line)",
        ),
    ),
    BadInput(
        "a sequence that does not divide over the context ranks",
        plan("data.sequence_length=8190"),
        (
            "=8190 does not divide into 2 pieces x parallel.context_parallel_size=2",
            "recipes/llama.py:",
            "=8188 or 8192",
        ),
    ),
    BadInput(
        "a sequence that does not divide over the context and tensor ranks",
        plan("data.sequence_length=8190", "parallel.tensor_parallel_size=4"),
        (
            "2 pieces x parallel.context_parallel_size=2 x parallel.tensor_parallel_size=4",
            "data.sequence_length=8176 or 8192",
        ),
    ),
    BadInput(
        "virtual pipeline stages without a pipeline",
        plan("parallel.virtual_pipeline_parallel_size=2"),
        (
            "parallel.virtual_pipeline_parallel_size=2 needs a pipeline",
            "(default)",
        ),
    ),
    BadInput(
        "layers that do not divide over the virtual pipeline stages",
        plan("parallel.pipeline_parallel_size=2", "parallel.virtual_pipeline_parallel_size=3"),
        (
            "model.num_layers=32 does not divide into",
            "=2 x parallel.virtual_pipeline_parallel_size=3",
            "model/llama3_8b.yaml:",
            "size=2",
        ),
    ),
    BadInput(
        "a pipeline that reduces gradients after each micro batch",
        plan("parallel.pipeline_parallel_size=2", "trainer.accumulate_reduce=each"),
        (
            "a pipeline reduces after its last micro batch",
            "trainer.accumulate_reduce=each (command line)",
            "trainer.accumulate_reduce=last",
        ),
    ),
    BadInput(
        "micro batches that do not divide into rounds of an interleaved pipeline",
        plan("model.global_batch_size=510", factory="llama3_70b"),
        (
            "stage 0: the interleaved schedule takes micro batches 4 at a time, and a step has 510",
            "model.global_batch_size=510 (command line)",
            "virtual_pipeline_parallel_size=1",
        ),
    ),
    BadInput(
        "a micro batch that does not divide into pipeline microbatches",
        gpt3("parallel.pipeline_parallel_size=2", "num_pipeline_microbatches=8"),
        (
            "data.micro_batch_size=4 does not divide into parallel.num_pipeline_microbatches=8",
            "num_pipeline_microbatches=4",
        ),
    ),
    BadInput(
        "a shard size that does not divide the data-parallel ranks",
        plan("parallel.data_parallel_shard_size=3"),
        (
            "stage 0: 4 data-parallel ranks do not divide into",
            "=3 (command line)",
            "parallel.data_parallel_shard_size=2, or null",
        ),
    ),
    BadInput(
        "a shard size that does not divide the ranks of a later stage",
        gpt3("parallel.data_parallel_shard_size=64"),
        (
            "stage 4: 80 data-parallel ranks do not divide into"
            " parallel.data_parallel_shard_size=64",
            "=16, or null",
        ),
    ),
)
ARITHMETIC = (
    BadInput(
        "a global batch that does not divide over the ranks",
        plan("model.global_batch_size=510"),
        ("does not divide", "508 or 512", "(command line)"),
    ),
    BadInput(
        "a global batch of NeMo's command line that does not divide",
        ("llm", "pretrain", "--factory", "llama3_8b", "data.micro_batch_size=3"),
        (
            "x 4 data-parallel ranks = 12",
            "model.global_batch_size=504 or 516, or data.micro_batch_size=2",
            "batch/nemo_llama.yaml:",
        ),
    ),
    BadInput(
        "an accumulation that does not match the global batch",
        plan("trainer.accumulate_grad_batches=100"),
        (
            "= 400, but model.global_batch_size=512",
            "trainer.accumulate_grad_batches=100 (command line)",
        ),
    ),
    BadInput(
        "a missing micro batch",
        plan("data.micro_batch_size=null"),
        ("data.micro_batch_size is not set", "data.micro_batch_size=1"),
    ),
    BadInput(
        "stages that do not divide over all nodes",
        gpt3("rampup.node_policy=fixed"),
        (
            "stages 0 (batch size 256), 2 (batch size 768)",
            "= 512 on 16 nodes",
            "rampup.node_policy=fixed (command line)",
        ),
    ),
    BadInput(
        "an increment that does not divide the ramp",
        plan("model.rampup_batch_size=[256,100,50M]"),
        (
            "not a multiple of the increment 100",
            "an increment of 64 or 128",
            "batch/nemo_llama.yaml:",
        ),
    ),
    BadInput(
        "a ramp that starts above its target",
        plan("model.rampup_batch_size=[1024,128,50M]"),
        ("starts at 1024, above", "at most 512"),
    ),
    BadInput(
        "a batch that would be decreased to zero",
        gpt3("model.rampup_batch_size=[2,2,10M]", "rampup.decrease_batch_size_if_needed=true"),
        ("batch size 2 would be decreased to nothing", "batch sizes of at least 32"),
    ),
    BadInput(
        "processes that are not a multiple of the model's ranks",
        plan("trainer.devices=3"),
        ("3 processes do not divide", "multiple of 2"),
    ),
    BadInput(
        "a malformed efficiency",
        plan("rampup.efficiency='1-9000'"),
        ("is not MICRO_BATCHES:TOKENS_PER_SECOND", "(command line)"),
    ),
    BadInput(
        "a batch that no micro batch divides",
        gpt3(
            "model.rampup_batch_size=null",
            "model.global_batch_size=510",
            "rampup.micro_batch=largest",
            "trainer.num_nodes=1",
        ),
        (
            "model.global_batch_size=510 does not divide into micro batches of at least 1 x 8",
            "model.global_batch_size=504 or 512",
        ),
    ),
    BadInput(
        "stages that no micro batch divides",
        gpt3("model.rampup_batch_size=[260,149,10M]", "rampup.micro_batch=largest"),
        ("of the ramp do not divide on any number of nodes", "micro batches of at least 1"),
    ),
    BadInput(
        "a micro batch that varies and is too small for a pipeline",
        gpt3(
            "rampup.micro_batch=largest",
            "parallel.pipeline_parallel_size=2",
            "num_pipeline_microbatches=8",
        ),
        (
            "data.micro_batch_size=4 is smaller than parallel.num_pipeline_microbatches=8",
            "data.micro_batch_size=8 or more",
        ),
    ),
    BadInput(
        "an efficiency in two forms",
        plan("rampup.efficiency='1x1:9000 4:11500'"),
        ("'4:11500' is not MICRO_BATCH_SIZExMICRO_BATCHES:TOKENS_PER_SECOND", "(command line)"),
    ),
    BadInput(
        "an efficiency of too many points",
        plan(f"rampup.efficiency='{' '.join(f'1x{count}:9000' for count in range(1, 258))}'"),
        ("rampup.efficiency has 257 points; the limit is 256", "(command line)"),
    ),
    BadInput(
        "an efficiency of one micro batch for several",
        plan("rampup.efficiency='1:9000 4:11500'", "--what-if", "data.micro_batch_size=1,16"),
        (
            "holds for one micro batch size, and there are 1 and 16",
            "rampup.efficiency='1x1:9000 1x4:11500 8x1:14000'",
            "(command line)",
        ),
    ),
)
SHAPES = (
    BadInput(
        "a name with a slash",
        plan("name=a/b"),
        ("name='a/b' cannot name a folder", "name=a/b (command line)"),
    ),
    BadInput(
        "a name that is the parent folder",
        plan("name=.."),
        ("name='..' cannot name a folder", "name=.. (command line)"),
    ),
    BadInput("an empty name", plan("name="), ("name='' cannot name a folder", "(command line)")),
    BadInput(
        "a name of 201 letters",
        plan(f"name={'x' * 201}"),
        ("cannot name a folder", "(command line)"),
    ),
    BadInput(
        "an empty run directory",
        plan("run_dir=''"),
        ("run_dir='' is not a path", "run_dir=runs/NAME"),
    ),
    BadInput(
        "heads that do not divide the hidden size",
        plan("model.num_attention_heads=33"),
        ("does not divide", "model.num_attention_heads=32"),
    ),
    BadInput(
        "query groups that do not divide the heads",
        plan("model.num_query_groups=5"),
        ("does not divide", "model.num_query_groups=4"),
    ),
    BadInput(
        "heads too narrow for rotary positions",
        plan("model.num_attention_heads=4096", "model.num_query_groups=null"),
        ("rotary positions need an even size", "model.position_embedding=learned"),
    ),
    BadInput(
        "heads of an odd size with rotary positions",
        plan("model.head_size=65"),
        (
            "model.head_size=65: rotary positions need an even size",
            "model.head_size=65 (command line)",
            "an even head size",
        ),
    ),
    BadInput(
        "a class to export that does not compute the model",
        plan("model.huggingface_type=llama", "model.sliding_window=64"),
        (
            "model.huggingface_type=llama does not compute this model",
            "model.huggingface_type=null, which exports MistralForCausalLM",
        ),
    ),
    BadInput(
        "a rotary scale factor without rotary positions",
        gpt3("model.rotary_scale_factor=8"),
        (
            "model.rotary_scale_factor=8 does not apply to model.position_embedding=learned",
            "model/gpt3_5b.yaml:",
            "model.rotary_scale_factor=null",
        ),
    ),
    BadInput(
        "a rotary scale factor below one",
        plan("model.rotary_scale_factor=0.5"),
        ("model.rotary_scale_factor=0.5 is below 1", "(command line)"),
    ),
    BadInput(
        "a rotary low-frequency factor that is not below the high one",
        plan("model.rotary_scale_factor=8", "model.rotary_low_freq_factor=4"),
        (
            "model.rotary_low_freq_factor=4 is not below model.rotary_high_freq_factor=4",
            "(command line)",
            "(default)",
        ),
    ),
    BadInput(
        "a momentum of one",
        plan("optim.muon_momentum=1"),
        ("optim.muon_momentum=1.0 is not below 1", "=0.95"),
    ),
    BadInput(
        "a minimum learning rate above the peak",
        plan("optim.min_lr=0.1"),
        ("is above optim.lr=0.0003", "optim/nemo_adam.yaml:"),
    ),
    BadInput(
        "an inverse square root decay without a warm-up",
        plan("schedule.decay_style=inverse_sqrt", "optim.warmup_steps=null"),
        (
            "needs a warm-up to decay from",
            "schedule.decay_style=inverse_sqrt (command line)",
        ),
    ),
    BadInput(
        "a WSD decay length with another decay style",
        plan("schedule.wsd_decay_samples=100"),
        ("does not apply to schedule.decay_style=cosine", "schedule.decay_style=cosine (default)"),
    ),
)
COMMANDS = (
    BadInput(
        "a word where a recipe takes an integer argument",
        plan(factory="llama3_8b(num_nodes='x')"),
        ("num_nodes='x' is not an integer", "num_nodes=1"),
    ),
    BadInput(
        "an unknown argument of a recipe",
        plan(factory="llama3_8b(nodes=2)"),
        ("takes no argument nodes", "num_nodes"),
    ),
    BadInput(
        "a plot without a file name",
        plan("--plot", ""),
        ("--plot .: the name ends in neither .svg nor .png", "--plot plan.svg"),
    ),
    BadInput(
        "a folder where the file of a plot is needed",
        plan("--plot", "d.svg"),
        ("--plot d.svg is a folder", "--plot d.svg/plan.svg"),
        {"d.svg/x": ""},
    ),
    BadInput(
        "Seesaw on a constant learning rate",
        plan("--seesaw", "schedule.decay_style=constant"),
        ("falls too little for one stair",),
    ),
    BadInput(
        "a plot of an unknown format", plan("--plot", "x.pdf"), ("--plot x.pdf", "--plot x.svg")
    ),
    BadInput(
        "Seesaw beside a ramp",
        gpt3("--seesaw"),
        ("this run has a schedule of its own", "model.rampup_batch_size=null"),
    ),
    BadInput(
        "Seesaw with a factor of one",
        plan("--seesaw", "--seesaw-factor", "1"),
        ("--seesaw-factor 1", "--seesaw-factor 2"),
    ),
    BadInput(
        "Seesaw with a word as its factor",
        plan("--seesaw", "--seesaw-factor", "two"),
        ("invalid value for '--seesaw-factor'",),
    ),
    BadInput(
        "Seesaw on a run without end",
        plan("--seesaw", "trainer.max_steps=null"),
        ("--seesaw needs the end of the run", "trainer.max_samples"),
    ),
    BadInput(
        "a comparison without values",
        plan("--what-if", "trainer.num_nodes"),
        ("'trainer.num_nodes' is not KEY=VALUE", "--what-if"),
    ),
    BadInput(
        "a comparison of an unknown key",
        plan("--what-if", "foo=1,2"),
        ("there is no setting foo", "set by: --what-if"),
    ),
    BadInput(
        "a plot of a comparison",
        plan("--what-if", "seed=1,2", "--plot", "x.svg"),
        ("--what-if compares several plans", "--plot without"),
    ),
    BadInput(
        "a diagnosis of a search",
        ("tune", "--factory", "llama3_tiny", "--diagnose", "--fresh"),
        ("--diagnose measures a single size, but --fresh is about several", "--diagnose without"),
    ),
    BadInput(
        "throughput of a run that does not exist",
        plan("--measured", "nowhere"),
        ("path 'nowhere' does not exist",),
    ),
    BadInput(
        "the status of a run that does not exist",
        ("status", "nowhere"),
        ("nowhere is not a run directory", "runs/NAME"),
    ),
    BadInput(
        "the status of several runs, one of which does not exist",
        ("status", "--json", ".", "nowhere"),
        (". is not a run directory", "runs/NAME"),
    ),
    BadInput(
        "watching a status as JSON",
        ("status", "--watch", "--json"),
        ("--watch prints no JSON", "--watch or --json"),
    ),
    BadInput(
        "watching a status without a terminal",
        ("status", "--watch"),
        ("--watch needs a terminal", "rampcli status, or --json"),
    ),
    BadInput(
        "a report of a run that does not exist",
        ("report", "nowhere"),
        ("nowhere is not a run directory", "runs/NAME"),
    ),
    BadInput(
        "a comparison with a folder that is not a run",
        ("compare", ".", "nowhere"),
        (". is not a run directory", "runs/NAME"),
    ),
    BadInput(
        "a report in a folder that does not exist",
        ("report", "mine", "--html", "nowhere/x.html"),
        ("--html nowhere/x.html: No such file or directory", "--html report.html"),
        files={"runs/mine/config.yaml": "name: mine\n"},
    ),
    BadInput(
        "a plot of a run in a format that there is not",
        ("report", "nowhere", "--plot", "x.pdf"),
        ("the name ends in neither .svg nor .png", "--plot x.svg"),
    ),
    BadInput(
        "a live page of a file",
        ("serve", "notes.txt"),
        ("notes.txt is not a folder", "rampcli serve runs"),
        files={"notes.txt": ""},
    ),
    BadInput(
        "a live page on a host that there is not",
        ("serve", "--host", "no such host"),
        ("--host no such host: no address of this name", "--host 127.0.0.1"),
    ),
    BadInput(
        "a live page on the address of another machine",
        ("serve", "--host", "192.0.2.1"),
        ("--host 192.0.2.1: not an address of this machine", "--host 127.0.0.1"),
    ),
    BadInput(
        "a live page on a port that there is not",
        ("serve", "--port", "70000"),
        ("--port", "65535"),
    ),
    BadInput(
        "throughput of a folder without a run",
        plan("--measured", "."),
        (". is not a run directory",),
    ),
    BadInput(
        "a run on more GPUs than the machine has",
        ("pretrain", "-f", "llama3_8b"),
        ("needs 8 GPUs", "--dry-run", "hardware/h100_bf16.yaml:"),
    ),
)


def tiny(*words: str) -> tuple[str, ...]:
    return ("pretrain", "-f", "llama3_tiny", *words)


def corpus(*words: str) -> tuple[str, ...]:
    return ("data", "build", "in.txt", "--output", "c", "--tokenizer", "bytes", *words)


def index(version: int = 1, code: int = 8, tokens: int = 12) -> bytes:
    """Returns the index of one document."""
    return struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", version, code, 1, 2, tokens, 0, 0, 1)


def indexed(
    title: str, *fragments: str, idx: bytes | None = None, tokens: int | None = 12
) -> BadInput:
    """Returns a row for a run on wrong indexed files."""
    files = {"d/wiki.idx": index() if idx is None else idx}
    if tokens is not None:
        files["d/wiki.bin"] = bytes(2 * tokens)
    return BadInput(title, tiny("data=indexed", "data.path=d/wiki"), fragments, files)


def pairs(title: str, line: str | bytes, *fragments: str, words: tuple[str, ...] = ()) -> BadInput:
    """Returns a row for a run on a file whose second line is wrong."""
    good = b'{"prompt": "2+2=", "response": "4"}\n'
    content = good + (line if isinstance(line, bytes) else line.encode())
    return BadInput(
        title,
        tiny("data=pairs", "data.path=a.jsonl", *words),
        ("a.jsonl, line 2: ", *fragments),
        {"a.jsonl": content},
    )


PAIRS = (
    BadInput(
        "pairs without a file or a task",
        plan("data=pairs"),
        ("data.source=pairs needs data.path", "try:    data.path=FILE.jsonl, or data.task=sort"),
    ),
    BadInput(
        "pairs of a file and a task",
        plan("data=pairs", "data.path=a.jsonl", "data.task=sort"),
        ("data.path and data.task are both given", "one of them"),
    ),
    BadInput(
        "a task for another source",
        plan("data.task=sort"),
        ("data.task does not apply to data.source=mock", "data=pairs"),
    ),
    BadInput(
        "the end of a response for another source",
        plan("data=text", "data.path=a.txt", "data.response_end=."),
        ("data.response_end does not apply to data.source=text", "data=pairs"),
    ),
    BadInput(
        "a blend of pairs",
        plan("data=pairs", "data.blend=[1,a.jsonl,2,b.jsonl]"),
        ("data.blend does not apply to data.source=pairs",),
    ),
    BadInput(
        "an unknown task",
        plan("data=pairs", "data.task=multiply"),
        ("data.task=multiply is not one of sort, reverse, add", "data.task=sort"),
    ),
    BadInput(
        "a task with numbers of 65 digits",
        plan("data=pairs", "data.task=sort", "data.task_digits=65"),
        ("data.task_digits=65 is above 64",),
    ),
    BadInput(
        "named files for validation of a task",
        plan("data=pairs", "data.task=sort", "data.validation={easy:a.jsonl}"),
        ("data.validation does not apply to data.task=sort", "data.split applies"),
    ),
    BadInput(
        "a file for validation of a task",
        plan("data=pairs", "data.task=sort", "data.validation_path=a.jsonl"),
        ("data.validation_path does not apply to data.task=sort", "data.split applies"),
    ),
    BadInput(
        "pairs that attend to each other",
        plan("data=pairs", "data.task=sort", "data.document_mask=false"),
        ("data.document_mask=false does not apply to data.source=pairs", "(command line)"),
    ),
    BadInput(
        "pairs in a missing file",
        tiny("data=pairs", "data.path=a.jsonl"),
        ("cannot read a.jsonl: No such file or directory", "a file of JSON lines"),
    ),
    BadInput(
        "a file without pairs",
        tiny("data=pairs", "data.path=a.jsonl"),
        ("a.jsonl has no pair for training", "more lines"),
        {"a.jsonl": "\n"},
    ),
    pairs("a line that is not JSON", '{"prompt": "x", ', "not JSON: ", '{"prompt": "2+2="'),
    pairs("a line without a prompt", '{"response": "x"}', "there is no prompt"),
    pairs("a line without a response", '{"prompt": "x"}', "there is no response"),
    pairs("a prompt that is a number", '{"prompt": 5}', "prompt is not a text"),
    pairs("a line with a repeated field", '{"prompt": "a", "prompt": "b"}', "prompt appears twice"),
    pairs("a line that is not UTF-8", b'{"prompt": "\xff"}', "can't decode byte 0xff"),
    pairs("a line that is nested too deeply", '{"a": ' + 20_000 * "[", "nested too deeply"),
    pairs("a prompt without tokens", '{"prompt": "", "response": ""}', "the prompt has no tokens"),
    pairs(
        "a pair longer than a sample",
        '{"prompt": "12345678", "response": "87654321"}',
        "the pair has 17 tokens, and there is room for 16",
        "try:    data.sequence_length=17",
        words=("data.sequence_length=16",),
    ),
    pairs(
        "a pair of very many characters",
        f'{{"prompt": "1", "response": "{2**20 * "2"}"}}',
        "the pair has 1,048,577 characters, and there is room for 16 tokens",
        "try:    a text of up to 1,048,576 characters",
        words=("data.sequence_length=16",),
    ),
    pairs(
        "a response that holds the token that ends it",
        '{"prompt": "a", "response": "b\\nc"}',
        "which ends responses",
        "data.response_end=TOKEN",
    ),
    BadInput(
        "a response that ends with two tokens",
        tiny("data=pairs", "data.task=sort", "data.response_end=END"),
        ("data.response_end='END' is not one token of the tokenizer but 3", "(command line)"),
    ),
    BadInput(
        "a task whose pairs are longer than a sample",
        tiny("data=pairs", "data.task=add", "data.sequence_length=16"),
        ("the pair has 28 tokens, and there is room for 16", "data.sequence_length=28"),
    ),
    BadInput(
        "a task with too few prompts for validation",
        tiny("data=pairs", "data.task=sort", "data.task_digits=1", "data.split=[1,1e-9,0]"),
        ("has hardly any prompt for validation", "more data.task_digits"),
    ),
    BadInput(
        "a chat template that runs code",
        tiny("data=pairs", "data.task=sort", "data.tokenizer=model/tokenizer.json"),
        ("the chat template in model/chat_template.jinja cannot be used", "is unsafe"),
        {
            "model/tokenizer.json": TOKENIZER,
            "model/chat_template.jinja": "{{ cycler.__init__.__globals__.os.environ }}",
        },
    ),
    BadInput(
        "a chat template that changes prompts",
        tiny("data=pairs", "data.task=sort", "data.tokenizer=model/tokenizer.json"),
        ("does not write the prompt exactly once and unchanged", "data.chat_template=none"),
        {
            "model/tokenizer.json": TOKENIZER,
            "model/chat_template.jinja": "{{ messages[0].content | upper }}",
        },
    ),
)
DATA = (
    BadInput(
        "named corpora for validation of data that has none",
        plan("data=mock", "data.validation={wiki:a.txt}"),
        ("data.validation does not apply to data.source=mock", "data=indexed"),
    ),
    BadInput(
        "one corpus of several for validation",
        plan("data=text", "data.path=a.txt", "data.validation.wiki=b.txt"),
        ("data.validation takes all of its names at once", NAMED),
    ),
    BadInput(
        "a name of a corpus with a slash",
        plan("data=text", "data.path=a.txt", "data.validation={../wiki:b.txt}"),
        ("data.validation: '../wiki' cannot name a corpus", "letters, digits, - and _"),
    ),
    BadInput(
        "named corpora for validation and one without a name",
        plan(
            "data=text",
            "data.path=a.txt",
            "data.validation={wiki:b.txt}",
            "data.validation_path=c.txt",
        ),
        ("data.validation_path and data.validation are both given", "data.validation_path=null"),
    ),
    BadInput(
        "a named corpus for validation that is also trained on",
        plan("data=text", "data.path=a.txt", "data.validation={wiki:a.txt}"),
        ("data.validation: a.txt is also a training corpus", "data.validation=null"),
    ),
    BadInput(
        "indexed files without a path",
        plan("data=indexed"),
        ("data.path, which is not given", "data/indexed.yaml:", "data.path=PREFIX"),
    ),
    BadInput(
        "text without a path",
        plan("data=text"),
        ("data.source=text needs data.path, which is not given",),
    ),
    BadInput(
        "a path for a source that needs none",
        plan("data.path=d/wiki"),
        ("data.path does not apply to data.source", "data=indexed"),
    ),
    BadInput(
        "a URL as the path of a corpus",
        plan("data=indexed", "data.path=gs://bucket/wiki"),
        (
            "data.path: gs://bucket/wiki is a URL, but only files and folders can be used",
            "try:    a mounted folder, or a copy: data.path=/mnt/bucket/wiki",
            "set by: data.path=gs://bucket/wiki (command line)",
        ),
    ),
    BadInput(
        "a URL as the run directory",
        plan("run_dir=s3://bucket/runs"),
        ("run_dir: s3://bucket/runs is a URL", "run_dir=/mnt/bucket/runs"),
    ),
    BadInput(
        "a path and a blend",
        plan("data=indexed", "data.path=a", "data.blend=[1,a,2,b]"),
        ("both given", "one of them"),
    ),
    BadInput(
        "a blend without weights",
        plan("data=indexed", "data.blend=[d/wiki]"),
        ("is not a list of weights and paths in turn",),
    ),
    BadInput(
        "a blend with a word as a weight",
        plan("data=indexed", "data.blend=[much,a]"),
        ("has much in place of a weight",),
    ),
    BadInput(
        "a blend with a weight of zero",
        plan("data=indexed", "data.blend=[0,a,1,b]"),
        ("the weight 0, which is not above 0",),
    ),
    BadInput(
        "a blend with weights of too many digits",
        plan("data=indexed", "data.blend=[0.12345678901,a,0.98765432109,b]"),
        ("the weights of data.blend have too many digits", "weights of up to nine digits"),
    ),
    BadInput(
        "a split of two shares",
        plan("data=indexed", "data.path=a", "data.split=[9,1]"),
        ("is not three shares", "data.split=[98,1,1]"),
    ),
    BadInput(
        "a split with no share for training",
        plan("data=indexed", "data.path=a", "data.split=[0,1,1]"),
        ("is not three shares",),
    ),
    BadInput(
        "missing indexed files",
        tiny("data=indexed", "data.path=d/wiki"),
        ("cannot read d/wiki.idx: No such file or directory", "rampcli data build"),
    ),
    BadInput("missing text", tiny("data=text", "data.path=d/wiki"), ("d/wiki does not exist",)),
    indexed(
        "an index without its token file",
        "cannot read d/wiki.bin: No such file or directory",
        tokens=None,
    ),
    indexed(
        "a truncated token file",
        "d/wiki.bin has 20 bytes, but wiki.idx describes 24",
        tokens=10,
    ),
    indexed(
        "an index of an unsupported version",
        "d/wiki.idx has version 2 of the format; supported: 1",
        idx=index(version=2),
    ),
    indexed(
        "an index of floating-point tokens",
        "has tokens of type 7, which is not an integer type",
        idx=index(code=7),
    ),
    indexed("a truncated index", "d/wiki.idx has 40 bytes instead of 62", idx=index()[:40]),
    indexed(
        "an index in another format",
        "d/wiki.idx is not an index in Megatron's format",
        idx=b"once upon a time there was a file of text",
    ),
    indexed(
        "a corpus shorter than one sample",
        "the training corpus of d/wiki has 0 samples of data.sequence_length=128; needed: 1",
        "data.pad_last_window=true",
    ),
    indexed(
        "an empty corpus",
        "the training corpus of d/wiki has 0 tokens",
        idx=index(tokens=0),
        tokens=0,
    ),
    indexed(
        "a sequence of negative length",
        "d/wiki.idx is damaged: sequence 0 has length -12",
        idx=index(tokens=-12),
    ),
    BadInput(
        "a corpus built by 100000 workers",
        corpus("--workers", "100000"),
        ("--workers 100000: at most 64 processes", "--workers "),
    ),
    BadInput(
        "a vocabulary of 10^18",
        ("data", "build", "in.txt", "-o", "c", "--train-bpe", f"{10**18}"),
        ("at most 2,000,000 tokens", "32000"),
    ),
    BadInput(
        "a text key of a thousand characters",
        corpus("--text-key", "k" * 1001),
        ("--text-key has 1,001 characters; at most 1,000",),
    ),
    BadInput(
        "a corpus built into a folder with other files",
        corpus(),
        ("c.building is not empty, and rampcli did not make it: it holds thesis.txt",),
        {"in.txt": "text", "c.building/thesis.txt": "mine"},
    ),
)
SWEEPS = (
    BadInput(
        "a sweep in which nothing varies",
        sweep("optim.lr=0.001"),
        ("no setting lists several values", "optim.lr=0.001,0.003, or rampcli pretrain"),
    ),
    BadInput(
        "an interval of values",
        sweep("optim.lr=interval(0.001,0.01)"),
        ("an interval does not list its values", "optim.lr=0.001,0.01"),
    ),
    BadInput(
        "values in a random order",
        sweep("optim.lr=shuffle(0.001,0.01)"),
        ("runs are trained in the order of their values", "optim.lr=0.001,0.01"),
    ),
    BadInput(
        "a pattern that matches no option",
        sweep("launch=local", "data=glob(wiki*)"),
        ("no option of data matches", "data=indexed,mock,pairs,stdlib,text"),
    ),
    BadInput(
        "a list of more values than a sweep takes",
        sweep("seed=range(0,1000000000)"),
        ("takes 1 to 100 values", "seed=A,B,C"),
    ),
    BadInput(
        "more combinations than a sweep takes",
        sweep("seed=range(0,100)", "optim.lr=range(1,100)"),
        ("9,900 combinations, and a sweep has at most 1,000 runs", "fewer values"),
    ),
    BadInput(
        "a value that is listed twice",
        sweep("optim.lr=1e-3,0.001,0.003"),
        ("optim.lr lists 0.001 twice", "optim.lr=0.001,0.003"),
    ),
    BadInput(
        "a setting that varies and is also given",
        sweep("optim.lr=0.1,0.2", "optim.lr=0.1"),
        ("optim.lr is given twice", "one list of values"),
    ),
    BadInput(
        "several names of a sweep's runs",
        sweep("name=a,b"),
        ("name cannot vary in a sweep: each run is named after its values", "a single value"),
    ),
    BadInput(
        "a batch that divides in some runs of a sweep only",
        sweep(
            "optim.lr=0.001,0.003", "model.global_batch_size=8,9", "model.rampup_batch_size=null"
        ),
        ("with model.global_batch_size=9: ", "model.global_batch_size=8 or 16"),
    ),
    BadInput(
        "a sweep of reinforcement learning",
        ("sweep", "--factory", "sort_digits", "rl=sort_digits", "optim.lr=0.001,0.003"),
        ("a sweep trains runs of pretraining", "rl/sort_digits.yaml:", "rl=none"),
    ),
    BadInput(
        "a sweep of runs without end",
        sweep("trainer.max_samples=null", "optim.lr=0.001,0.003"),
        ("a run without end keeps the next one from starting", "trainer.max_steps=1000"),
    ),
    BadInput(
        "a sweep in the directory of a run",
        sweep("run_dir=mine", "optim.lr=0.001,0.003"),
        ("mine is not empty, and rampcli did not make it", "another path"),
        files={"mine/config.yaml": "name: mine\n"},
    ),
)
LAUNCHES = (
    BadInput(
        "an elastic run on Slurm",
        tiny("launch=slurm", "launch.elastic=true"),
        ("launch.elastic=true needs launch=local", "launch/slurm.yaml:3", "launch.elastic=false"),
    ),
    BadInput(
        "fewer nodes than launch.min_nodes",
        plan("launch.elastic=true", "launch.min_nodes=2"),
        ("launch.min_nodes=2 is above trainer.num_nodes=1",),
    ),
    BadInput(
        "a partition followed by another option",
        plan("launch.slurm.partition='gpu --uid=0'"),
        ("launch.slurm.partition='gpu --uid=0' is not a value that sbatch accepts",),
    ),
    BadInput(
        "an account with a line break",
        plan('launch.slurm.account="a\n#SBATCH --uid=0"'),
        ("launch.slurm.account=",),
    ),
    BadInput(
        "a time limit in words",
        plan("launch.slurm.time='four hours'"),
        (
            "launch.slurm.time='four hours' is not a value that sbatch accepts",
            "launch.slurm.time=4:00:00",
        ),
    ),
    BadInput(
        "an sbatch option without dashes",
        plan("launch.slurm.sbatch_args=[exclusive]"),
        ("'exclusive', which is not an option", "[--exclusive]"),
    ),
    BadInput(
        "a job array",
        plan('launch.slurm.sbatch_args=["--array=1-4"]'),
        ("has --array=1-4, which would break",),
    ),
    BadInput(
        "an sbatch option with a line break",
        plan('launch.slurm.sbatch_args=["--x\ny"]'),
        ("which is not an option",),
    ),
    BadInput(
        "an environment variable without a value",
        plan("launch.slurm.environment=[NCCL_DEBUG]"),
        ("'NCCL_DEBUG', which is not NAME=VALUE",),
    ),
    BadInput(
        "an environment variable that contains code",
        plan('launch.slurm.environment=["x;touch y=1"]'),
        ("which is not NAME=VALUE",),
    ),
)
REINFORCEMENT = (
    BadInput(
        "named corpora for validation",
        rl("data.task=null", "data.path=a.jsonl", "data.validation={easy:b.jsonl}"),
        ("data.validation does not apply to reinforcement learning", "data.validation_path"),
    ),
    BadInput(
        "pairs that do not divide into micro batches and ranks",
        rl("batch_size=6", "num_generations=4", "micro_batch_size=8"),
        (
            "rl.prompts_per_step=6 x rl.generations_per_prompt=4 = 24 pairs do not divide into"
            " rl.micro_batch_size=8 x 2 data-parallel ranks = 16",
            "rl.prompts_per_step=6 (command line)",
            "rl.prompts_per_step=4 or 8, or rl.micro_batch_size=4",
        ),
    ),
    BadInput(
        "pairs that do not divide into updates",
        rl("batch_size=6", "num_generations=4", "rl.updates_per_rollout=2"),
        (
            "do not divide into rl.updates_per_rollout=2 x groups of 4 x 2 data-parallel ranks"
            " = 16",
            "rl.prompts_per_step=4 or 8",
        ),
    ),
    BadInput(
        "a ramp of prompts that does not divide",
        rl(
            "batch_size=24",
            "num_generations=4",
            "micro_batch_size=8",
            "rl.updates_per_rollout=2",
            "model.rampup_batch_size=[4,4,1000]",
            "rampup.node_policy=fixed",
        ),
        (
            "stages 0 (batch size 4), 2 (batch size 12) of the ramp do not"
            " divide into 2 prompts per micro batch x 2 updates x 2 data-parallel ranks = 8",
            "rl.micro_batch_size=4",
        ),
    ),
    BadInput(
        "a micro batch that is not whole groups",
        rl("num_generations=4", "micro_batch_size=6"),
        (
            "rl.micro_batch_size=6 is not a multiple of rl.generations_per_prompt=4",
            "rl.micro_batch_size=4 or 8",
        ),
    ),
    BadInput(
        "a micro batch that is a part of a group",
        rl("num_generations=4", "micro_batch_size=2"),
        ("is not a multiple of", "rl.micro_batch_size=4, or rl.split_groups=true"),
    ),
    BadInput(
        "a micro batch that is an unequal part of a group",
        rl("num_generations=4", "micro_batch_size=3", "rl.split_groups=true"),
        ("is neither a multiple nor a divisor of", "rl.micro_batch_size=2 or 4"),
    ),
    BadInput(
        "a single response to each prompt",
        rl("num_generations=1"),
        ("rl.generations_per_prompt=1 is below 2", "rl.generations_per_prompt=2 or more"),
    ),
    BadInput(
        "no responses under rampcli rl",
        rl("num_generations=null"),
        (
            "rampcli rl generates responses, and rl.generations_per_prompt is null",
            "or rampcli pretrain",
        ),
    ),
    BadInput(
        "batch_size outside rampcli rl",
        plan("batch_size=8"),
        (
            "batch_size is a word of `rampcli rl`",
            "model.global_batch_size, or rl.prompts_per_step under rampcli rl",
        ),
    ),
    BadInput(
        "micro_batch_size outside rampcli rl",
        plan("micro_batch_size=4"),
        (
            "micro_batch_size is a word of `rampcli rl`",
            "data.micro_batch_size, or rl.micro_batch_size under rampcli rl",
        ),
    ),
    BadInput(
        "num_generations outside rampcli rl",
        plan("num_generations=4"),
        (
            "num_generations is a word of `rampcli rl`",
            "try:    rl.generations_per_prompt under rampcli rl",
        ),
    ),
    BadInput(
        "a setting of reinforcement learning without it",
        plan("rl.temperature=0.5"),
        ("rl.temperature does not apply", "rampcli rl, or rl=grpo"),
    ),
    BadInput(
        "prompts per step without reinforcement learning",
        plan("rl.prompts_per_step=8"),
        ("rl.prompts_per_step=8 does not apply", "model.global_batch_size, or rampcli rl"),
    ),
    BadInput(
        "a run of reinforcement learning under pretrain",
        ("pretrain", "--factory", "llama3_tiny", "rl=grpo", *PROMPT_WORDS, "--dry-run"),
        ("this is a run of reinforcement learning", "rampcli rl, or rl=none"),
    ),
    BadInput(
        "a run of reinforcement learning under tune",
        ("tune", "--factory", "llama3_tiny", "rl=grpo", *PROMPT_WORDS),
        ("tune measures steps of pretraining", "rl=none"),
    ),
    BadInput(
        "a micro batch of samples",
        rl("data.micro_batch_size=4"),
        (
            "data.micro_batch_size=4 does not apply to reinforcement learning",
            "data.micro_batch_size=null, and rl.micro_batch_size instead",
        ),
    ),
    BadInput(
        "a number of micro batches",
        rl("trainer.accumulate_grad_batches=4"),
        ("trainer.accumulate_grad_batches=4 does not apply to reinforcement learning",),
    ),
    BadInput(
        "MaxText's batch of pretraining",
        rl("per_device_batch_size=4"),
        ("is a word of pretraining", "rl.prompts_per_step, rl.micro_batch_size or"),
    ),
    BadInput(
        "MaxText's micro batch of prompts",
        rl("train_micro_batch_size=4"),
        ("train_micro_batch_size counts prompts of all devices", "try:    rl.micro_batch_size"),
    ),
    BadInput(
        "a mistyped setting of reinforcement learning",
        rl("rl.generations=4"),
        ("there is no setting rl.generations", "rl.generations_per_prompt"),
    ),
    BadInput(
        "a length in tokens",
        rl("trainer.max_steps=null", "trainer.max_tokens=1M"),
        ("trainer.max_tokens=1000000 does not apply", "trainer.max_samples instead"),
    ),
    BadInput(
        "a step schedule in tokens",
        rl("model.step_batch_size_schedule='0:8 10K:16'"),
        ("counts tokens", "model.step_batch_size_schedule='samples: 0:32 10K:64'"),
    ),
    BadInput(
        "a throughput of pretraining",
        rl("rampup.efficiency='1:9000'"),
        ("rampup.efficiency is a throughput of pretraining", "rampup.efficiency=null"),
    ),
    BadInput(
        "a corpus without prompts",
        rl("data.source=stdlib", "data.task=null", "data.document_mask=false"),
        ("data.source=stdlib has no prompts", "data=pairs"),
    ),
    BadInput(
        "no room for a prompt",
        rl("rl.max_response_tokens=128"),
        (
            "rl.max_response_tokens=128 leaves no room for prompts in data.sequence_length=128",
            "rl.max_response_tokens=64, or data.sequence_length=256",
        ),
    ),
    BadInput(
        "no room for a response",
        rl("data.sequence_length=1"),
        ("leaves no room for a prompt and a response", "data.sequence_length=2"),
    ),
    BadInput(
        "layers over pipeline ranks",
        rl("parallel.pipeline_parallel_size=2"),
        (
            "parallel.pipeline_parallel_size=2 does not apply to reinforcement learning",
            "parallel.pipeline_parallel_size=1",
        ),
    ),
    BadInput(
        "sequences over context-parallel ranks",
        rl("parallel.context_parallel_size=2"),
        ("parallel.context_parallel_size=2 does not apply to reinforcement learning",),
    ),
    BadInput(
        "a KL divergence from weights that are not given",
        rl("rl.kl_weight=0.1"),
        ("rl.kl_weight=0.1 needs the starting weights", "model.init_from=RUN_DIR"),
    ),
    BadInput(
        "weights of a folder that does not exist",
        starting_from("runs/missing"),
        ("model.init_from=runs/missing does not exist", "model.init_from=RUN_DIR"),
    ),
    BadInput(
        "weights of a file",
        starting_from("weights.bin"),
        ("model.init_from=weights.bin is a file", "model.init_from=RUN_DIR"),
        {"weights.bin": "x"},
    ),
    BadInput(
        "weights of a folder without a model",
        starting_from("mine"),
        ("model.init_from=mine holds neither a run (config.yaml) nor a model", "config.json and"),
        {"mine/notes.txt": "x"},
    ),
    BadInput(
        "a model of a folder that is not given",
        ("plan", "--factory", "fine_tune", "data.path=pairs.jsonl"),
        ("model=from_folder takes the model from model.init_from", "model.init_from=FOLDER"),
    ),
    BadInput(
        "a model of a run directory",
        ("plan", "--factory", "fine_tune", "data.path=pairs.jsonl", "model.init_from=runs/new"),
        ("model.init_from=runs/new is a run", "rampcli export runs/new out"),
        {"runs/new/config.yaml": "name: new\n"},
    ),
    BadInput(
        "weights of a run without a checkpoint",
        starting_from("runs/new"),
        ("model.init_from=runs/new is a run that has not saved", "model.init_from=null"),
        {"runs/new/config.yaml": "name: new\n"},
    ),
    BadInput(
        "weights of a file inside a run",
        ("pretrain", *starting_from("runs/new/config.yaml")[1:]),
        ("is a file", "model.init_from=runs/new, the run directory"),
        {"runs/new/config.yaml": "name: new\n"},
    ),
    BadInput(
        "--json without a plan",
        ("rl", "--factory", "llama3_tiny", "--json"),
        ("--json prints a plan", "--dry-run --json"),
    ),
    BadInput(
        "--seesaw for reinforcement learning",
        ("plan", "--factory", "llama3_tiny", "rl=grpo", *PROMPT_WORDS, "--seesaw"),
        ("--seesaw is derived for pretraining", "a ramp of prompts"),
    ),
)
WATCHING = (
    BadInput(
        "an unknown tracker",
        plan("logging.trackers=[tensorbord]"),
        (
            "logging.trackers: there is no tracker 'tensorbord'",
            "logging.trackers=[tensorboard,wandb]",
            "(command line)",
        ),
    ),
    BadInput(
        "a tracker that is named twice",
        plan("logging.trackers=[wandb,wandb]"),
        (
            "logging.trackers=[wandb,wandb] names a tracker twice",
            "logging.trackers=[wandb]",
            "(command line)",
        ),
    ),
    BadInput(
        "a tracker that is not in a list",
        plan("logging.trackers=wandb"),
        ("logging.trackers=wandb is not a list", TYPED),
    ),
    BadInput(
        "an interval of text samples without a prompt",
        plan("generate.every_steps=100"),
        ("generate.every_steps=100 has no text to continue", "generate.prompts=[ROMEO,JULIET]"),
    ),
    BadInput(
        "a prompt without quotes or brackets",
        plan("generate.prompts=ROMEO"),
        ("generate.prompts=ROMEO is not a list", "generate.prompts=[ROMEO,JULIET]"),
    ),
    BadInput(
        "an empty prompt",
        tiny("generate.prompts=['']"),
        ("generate.prompts=[] has a text that is empty", "generate.prompts=[] (command line)"),
    ),
    BadInput(
        "more prompts than a row has room for",
        tiny("generate.prompts=[a,b,c,d,e,f,g,h,i,j,k]"),
        ("generate.prompts has 11 texts", "up to 10 texts"),
    ),
    BadInput(
        "text samples of random tokens",
        tiny("data=mock", "generate.prompts=[a]"),
        ("generate.prompts does not apply to data.source=mock", "data=stdlib"),
    ),
    BadInput(
        "text samples that fill the context",
        tiny("generate.prompts=[a]", "generate.max_tokens=128"),
        ("generate.max_tokens=128 leaves no room for a prompt", "generate.max_tokens=64"),
    ),
    BadInput(
        "a prompt that leaves no room for text samples",
        tiny("generate.prompts=[abcdefghij]", "generate.max_tokens=120"),
        ("'abcdefghij' has 10 tokens", "leave room for 1 to 8", "generate.max_tokens=118 or less"),
    ),
    BadInput(
        "one step to profile",
        plan("profile.steps=10"),
        ("profile.steps=10 is not a list of integers", "profile.steps=[10,12]"),
    ),
    BadInput(
        "steps to profile that end before they begin",
        plan("profile.steps=[12,10]"),
        ("profile.steps=[12,10] is not a first and a last step", "profile.steps=[10,12]"),
    ),
    BadInput(
        "more steps to profile than fit into memory",
        plan("profile.steps=[1,5000]"),
        ("profile.steps=[1,5000] has 5,000 steps", "profile.steps=[1,3]"),
    ),
    BadInput(
        "a rank to profile that does not exist",
        tiny("profile.steps=[1,2]", "profile.ranks=[0,8]"),
        ("profile.ranks=[0,8] are not different ranks from 0 to 1", "profile.ranks=[0]"),
    ),
    BadInput(
        "a temperature that no logits can be divided by",
        tiny("generate.prompts=[a]", "generate.temperature=1e-6"),
        ("generate.temperature=1e-06 is neither 0 nor from 0.0001", "generate.temperature=0"),
    ),
)
SECTIONS: dict[str, tuple[BadInput, ...]] = {
    "Wrong type": TYPES,
    "Wrong number of values": LENGTHS,
    "Negative numbers": NEGATIVE,
    "Zero": ZERO,
    "Numbers that are too large": HUGE,
    "Numbers that are not finite": NOT_FINITE,
    "Unusual characters": CHARACTERS,
    "Settings given twice": TWICE,
    "Unknown names": UNKNOWN,
    "Malformed words": GRAMMAR,
    "Attempts to run code or read other files": INJECTIONS,
    "Your own option files": FILES,
    "Step schedules": SCHEDULES,
    "MaxText's settings": MAXTEXT,
    "Parallel splits": SPLITS,
    "Batch arithmetic": ARITHMETIC,
    "Reinforcement learning": REINFORCEMENT,
    "Names, shapes and learning rates": SHAPES,
    "Commands": COMMANDS,
    "Data": DATA,
    "Prompts and responses": PAIRS,
    "Sweeps": SWEEPS,
    "Launching": LAUNCHES,
    "Watching a run": WATCHING,
}
BAD_INPUTS = tuple(row for rows in SECTIONS.values() for row in rows)
