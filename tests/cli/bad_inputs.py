"""Wrong inputs and what their messages must contain: the key, where it was set, what would work."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

LONG_INTEGER = "9" * 5000


@dataclass(frozen=True, slots=True)
class BadInput:
    """One wrong input.

    Attributes:
        title: what is wrong, in a few words.
        words: the words after `rampcli`.
        said: fragments that the message must contain.
        files: content of the files in the working directory, by path.
        from_typer: True if the option parser refuses the input, in a form of its own.
    """

    title: str
    words: tuple[str, ...]
    said: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    from_typer: bool = False


def plan(*words: str, factory: str = "llama3_8b") -> tuple[str, ...]:
    return ("plan", "--factory", factory, *words)


def gpt3(*words: str) -> tuple[str, ...]:
    return plan(*words, factory="gpt3_5b")


def schedule(text: str, *words: str) -> tuple[str, ...]:
    return plan(f"model.step_batch_size_schedule='{text}'", *words)


def maxtext_ramp(**changed: str | None) -> tuple[str, ...]:
    """Returns MaxText's five words for a ramp, with some changed or, if None, left out."""
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
    title: str, text: str | bytes, *said: str, group: str = "optim", line: int | None = 1
) -> BadInput:
    """Returns a wrong option file of the user's; the message names the line in it."""
    place = f"{group}/mine.yaml" + ("" if line is None else f":{line}")
    return BadInput(
        title,
        plan("--config-dir", ".", f"{group}=mine"),
        (*said, f"set by: {place}"),
        {f"{group}/mine.yaml": text},
    )


def over_everything(title: str, text: str, *said: str, line: int) -> BadInput:
    return in_file(title, f"# @package _global_\n{text}", *said, group="batch", line=line)


TYPED = "set by: command line"
TYPES = (
    BadInput(
        "a word for an integer",
        plan("trainer.devices=eight"),
        ("trainer.devices=eight is not an integer", TYPED),
    ),
    BadInput(
        "a conversion",
        plan("trainer.num_nodes=int(1.9)"),
        ("trainer.num_nodes=int(1.9): conversions such as int() are not supported", TYPED),
    ),
    BadInput(
        "a fraction for an integer",
        plan("trainer.max_steps=1.5"),
        ("trainer.max_steps=1.5 is not an integer", TYPED),
    ),
    BadInput(
        "a float for an integer", plan("seed=1e3"), ("seed=1000.0 is not an integer", "seed=1234")
    ),
    BadInput(
        "true for an integer",
        plan("trainer.num_nodes=true"),
        ("trainer.num_nodes=true is not an integer", TYPED),
    ),
    BadInput(
        "null where there must be a value",
        plan("data.sequence_length=null"),
        ("data.sequence_length=null is not an integer", TYPED),
    ),
    BadInput(
        "nothing after the equals sign",
        plan("trainer.num_nodes="),
        ("trainer.num_nodes= is not an integer", TYPED),
    ),
    BadInput(
        "a word for a number", plan("optim.lr=fast"), ("optim.lr=fast is not a number", TYPED)
    ),
    BadInput(
        "a word for true or false",
        plan("model.bias=maybe"),
        ("model.bias=maybe is not true or false", "model.bias=false"),
    ),
    BadInput(
        "a list for an integer",
        plan("model.global_batch_size=[512]"),
        ("model.global_batch_size=[512] is not an integer", TYPED),
    ),
    BadInput(
        "a mapping for a number",
        plan("optim.lr={a: 1}"),
        ("optim.lr={'a': 1} is not a number", TYPED),
    ),
    BadInput("a list for a text", plan("name=[1]"), ("name=[1] is not a string", "name=run")),
    BadInput(
        "a number for the ramp",
        plan("model.rampup_batch_size=256"),
        (
            "model.rampup_batch_size=256 is not a list of integers",
            "model.rampup_batch_size=[256,128,50000000]",
        ),
    ),
    BadInput(
        "a word in the ramp",
        plan("model.rampup_batch_size=[256,many,50M]"),
        ("[256,many,50M] is not a list of integers", TYPED),
    ),
    BadInput(
        "a list in the ramp",
        plan("model.rampup_batch_size=[256,[128],50M]"),
        ("[256,[128],50M] is not a list of integers", TYPED),
    ),
    BadInput(
        "a choice that there is not",
        plan("rampup.node_policy=nemesis"),
        ("nemesis is not one of nemo, best, fixed", TYPED),
    ),
    BadInput(
        "a choice in capitals",
        plan("trainer.precision=BF16"),
        ("trainer.precision=BF16 is not one of fp32, bf16", TYPED),
    ),
    BadInput(
        "an optimiser that there is not",
        plan("optim.optimizer=adam"),
        ("optim.optimizer=adam is not one of adamw, muon", TYPED),
    ),
    BadInput(
        "a part of the activations that there is not",
        plan("trainer.activation_checkpointing=all"),
        ("trainer.activation_checkpointing=all is not one of none, selective, full", TYPED),
    ),
    BadInput(
        "an answer to no number that there is not",
        plan("trainer.on_nonfinite=ignore"),
        ("trainer.on_nonfinite=ignore is not one of stop, skip", TYPED),
    ),
    BadInput(
        "a number for a folder of weights",
        plan("model.init_from=[1]"),
        ("model.init_from=[1] is not a string", TYPED),
    ),
    BadInput(
        "a unit that there is not",
        plan("trainer.max_tokens=5G"),
        ("trainer.max_tokens=5G is not an integer", TYPED),
    ),
    BadInput(
        "a unit in small letters",
        plan("trainer.max_tokens=5m"),
        ("trainer.max_tokens=5m is not an integer", TYPED),
    ),
)
ARITIES = (
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
        "one run with two batch sizes",
        plan("model.global_batch_size=512,1024"),
        ("512,1024: a setting takes one value", TYPED),
    ),
    BadInput(
        "one run with a range of seeds",
        plan("seed=range(1,3)"),
        ("seed=range(1,3): a setting takes one value", TYPED),
    ),
    BadInput(
        "one run with a choice of seeds",
        plan("seed=choice(1,2)"),
        ("seed=choice(1,2): a setting takes one value", TYPED),
    ),
    BadInput(
        "one run with two models",
        plan("model=llama3_8b,gpt3_5b"),
        ("a setting takes one value", "model=llama3_8b"),
    ),
)
NEGATIVE = (
    BadInput(
        "fewer than no nodes",
        plan("trainer.num_nodes=-1"),
        ("trainer.num_nodes=-1 is below 1", "(command line)"),
    ),
    BadInput(
        "a seed below zero",
        plan("seed=-1"),
        ("seed=-1 is below 0", "seed=0 or more", "(command line)"),
    ),
    BadInput(
        "a learning rate below zero",
        plan("optim.lr=-0.1"),
        ("optim.lr=-0.1 is below 0", "(command line)"),
    ),
    BadInput(
        "a warm-up below zero",
        plan("optim.warmup_steps=-10"),
        ("optim.warmup_steps=-10 is below 0", "(command line)"),
    ),
    BadInput(
        "a ramp that goes down",
        plan("model.rampup_batch_size=[256,-128,50M]"),
        ("increment -128 is below 1", "(command line)"),
    ),
    BadInput(
        "a ramp over fewer than no samples",
        plan("model.rampup_batch_size=[256,128,-1]"),
        ("samples -1 is below 0",),
    ),
    BadInput(
        "fewer than no nodes, by the recipe's argument",
        plan(factory="llama3_8b(num_nodes=-1)"),
        ("is below 1", "recipes/llama.py:"),
    ),
)
ZERO = (
    BadInput(
        "no nodes",
        plan("trainer.num_nodes=0"),
        ("trainer.num_nodes=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a micro batch of nothing",
        plan("data.micro_batch_size=0"),
        ("data.micro_batch_size=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a batch of nothing",
        plan("model.global_batch_size=0"),
        ("model.global_batch_size=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a run of no steps",
        plan("trainer.max_steps=0"),
        ("trainer.max_steps=0 is below 1", "(command line)"),
    ),
    BadInput(
        "a gradient clipped to nothing",
        plan("trainer.gradient_clip_val=0"),
        ("trainer.gradient_clip_val=0.0 is not above 0",),
    ),
    BadInput(
        "a window of nothing",
        plan("model.sliding_window=0"),
        ("model.sliding_window=0 is below 1", "(command line)"),
    ),
    BadInput(
        "no spread at all",
        plan("optim.skip_step_sigma=0"),
        ("optim.skip_step_sigma=0.0 is not above 0", "(command line)"),
    ),
    BadInput(
        "a model split no ways",
        plan("parallel.tensor_parallel_size=0"),
        ("parallel.tensor_parallel_size=0 is below 1",),
    ),
    BadInput(
        "weights shared by nobody",
        plan("parallel.data_parallel_shard_size=0"),
        ("parallel.data_parallel_shard_size=0 is below 1",),
    ),
    BadInput(
        "a ramp that starts at nothing",
        plan("model.rampup_batch_size=[0,128,50M]"),
        ("start 0 is below 1", "(command line)"),
    ),
    BadInput(
        "no checkpoint kept",
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
        "a thousand million nodes",
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
        "a share above one",
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
    BadInput("not a number", plan("optim.lr=nan"), ("optim.lr=nan is not a finite number", TYPED)),
    BadInput("infinity", plan("optim.lr=inf"), ("optim.lr=inf is not a finite number", TYPED)),
    BadInput(
        "minus infinity",
        plan("optim.weight_decay=-inf"),
        ("optim.weight_decay=-inf is not a finite number", TYPED),
    ),
    BadInput(
        "a number too large to be held",
        plan("optim.lr=1e400"),
        ("optim.lr=inf is not a finite number", TYPED),
    ),
    BadInput(
        "not a number, for an integer", plan("seed=nan"), ("seed=nan is not an integer", TYPED)
    ),
)
CHARACTERS = (
    BadInput(
        "full-width digits",
        plan("trainer.num_nodes=１６"),
        ("cannot read the value in trainer.num_nodes=１６", TYPED),
    ),
    BadInput(
        "a minus sign that is none",
        plan("optim.lr=−1"),
        ("cannot read the value in optim.lr=−1", TYPED),
    ),
    BadInput("an emoji for a number", plan("seed='🚀'"), ("seed=🚀 is not an integer", TYPED)),
    BadInput("an emoji in a key", plan("trainer.🚀=1"), ("there is no setting trainer.🚀", TYPED)),
    BadInput(
        "a control character in the name",
        plan("name='a\x07b'"),
        (r"name='a\x07b' cannot name a folder", "(command line)"),
    ),
    BadInput(
        "a change of direction in the name",
        plan("name='a\u202eb'"),
        (r"name='a\u202eb' cannot name a folder", "(command line)"),
    ),
    BadInput(
        "a change of direction in a key",
        plan("\u202eseed=1"),
        (r"there is no setting \u202eseed", "try:    seed", TYPED),
    ),
    BadInput(
        "a blank without width in a key",
        plan("se\u200bed=1"),
        (r"there is no setting se\u200bed", "try:    seed", TYPED),
    ),
    BadInput(
        "full-width digits in quotes",
        plan("seed='１２'"),
        ("seed=１２ is not an integer", "seed=1234", TYPED),
    ),
    BadInput(
        "a colour in a key", plan("\x1b31mseed=1"), (r"there is no setting \x1b31mseed", TYPED)
    ),
    BadInput(
        "a colour in a recipe",
        plan(factory="\x1b[31mllama3_8b"),
        (r"--factory \x1b[31mllama3_8b is not a recipe's name",),
    ),
    BadInput(
        "an endless recipe",
        plan(factory="l" * 5000),
        ("--factory lll", "lll ... lll", "--factory gpt3_126m or", "in all)"),
    ),
    BadInput("an emoji for a recipe", plan(factory="🦙"), ("--factory 🦙 is not a recipe's name",)),
)
TWICE = (
    BadInput("one key twice", plan("seed=1", "seed=2"), ("seed is given twice: 1 and 2", TYPED)),
    BadInput(
        "one group twice",
        plan("optim=nemo_adam", "optim=nemo_gpt3"),
        ("optim is given twice: nemo_adam and nemo_gpt3", TYPED),
    ),
    BadInput(
        "NeMo 1's word and NeMo 2's for one batch",
        plan("data.global_batch_size=1024", "model.global_batch_size=512"),
        (
            "two spellings of one number and differ",
            "data.global_batch_size=1024 (command line)",
            "model.global_batch_size=512 (command line)",
        ),
    ),
    BadInput(
        "two of NeMo's words for tensor parallelism",
        plan("model.tensor_model_parallel_size=2", "trainer.strategy.tensor_model_parallel_size=4"),
        (
            "two spellings of one number and differ",
            "model.tensor_model_parallel_size=2 (command line)",
        ),
    ),
    BadInput(
        "MaxText's word and NeMo's for accumulation",
        plan("gradient_accumulation_steps=2", "trainer.accumulate_grad_batches=4"),
        (
            "gradient_accumulation_steps=2 and trainer.accumulate_grad_batches=4"
            " are two spellings of one number",
            "(command line)",
        ),
    ),
    BadInput(
        "MaxText's ramp and NeMo's",
        (*maxtext_ramp(), "model.rampup_batch_size=[256,256,10M]"),
        (
            "enable_rampup_batch_size=true sets model.rampup_batch_size=[512,256,500]",
            "but [256,256,10000000] is given",
            "(command line)",
        ),
    ),
    BadInput(
        "two ends",
        plan("trainer.max_steps=10", "trainer.max_samples=100"),
        ("the run has two ends", "trainer.max_steps=10 (command line)"),
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
        "a key like no other",
        plan("zzzzzz=1"),
        ("there is no setting zzzzzz", "--cfg lists all", TYPED),
    ),
    BadInput(
        "a section for a key",
        plan("trainer=1"),
        ("trainer is a section, not a setting", "trainer.num_nodes", TYPED),
    ),
    BadInput(
        "a group that there is not",
        plan("scheduler=cosine"),
        ("there is no setting scheduler", TYPED),
    ),
    BadInput(
        "an option that there is not",
        plan("model=llama4"),
        ("there is no conf/model/llama4.yaml", "model=llama3_8b", TYPED),
    ),
    BadInput(
        "a recipe that there is not",
        plan(factory="llama3_9b"),
        ("there is no recipe llama3_9b", "--factory llama3_8b"),
    ),
    BadInput("no recipe", ("plan",), ("Missing option '--factory'",), from_typer=True),
    BadInput(
        "a command that there is not",
        ("train",),
        ("No such command 'train'", "pretrain"),
        from_typer=True,
    ),
    BadInput(
        "an option of the command that there is not",
        plan("--nodes=2"),
        ("No such option: --nodes",),
        from_typer=True,
    ),
    BadInput(
        "a setting typed as an option",
        plan("--", "--seed=5"),
        ("there is no setting --seed", TYPED),
    ),
    BadInput(
        "a folder that there is not",
        plan("--config-dir", "nowhere"),
        ("dir 'nowhere' does not exist",),
        from_typer=True,
    ),
    BadInput(
        "a file for a folder",
        plan("--config-dir", "f"),
        ("dir 'f' is a file",),
        {"f": ""},
        from_typer=True,
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
        "an explanation of nothing",
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
        "an option added with +",
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
        "a bracket that is never closed",
        plan("model.rampup_batch_size=[256,128"),
        (
            "the bracket in model.rampup_batch_size=[256,128 is never closed",
            "'model.rampup_batch_size=[256,128]'",
            TYPED,
        ),
    ),
    BadInput(
        "a bracket that is never closed, in several words",
        plan("model.rampup_batch_size=[256,", "128,", "seed=1"),
        ("the bracket in model.rampup_batch_size=[256, 128, is never closed", TYPED),
    ),
    BadInput(
        "a bracket that is never opened",
        plan("model.rampup_batch_size=256]"),
        ("cannot read the value", "256]", TYPED),
    ),
    BadInput(
        "a quote that is never closed", plan("name='a"), ("cannot read the value in name='a", TYPED)
    ),
    BadInput(
        "a brace that is never closed",
        plan("optim={lr: 1"),
        ("cannot read the value in optim={lr: 1", "optim={lr: 1}", TYPED),
    ),
    BadInput(
        "two hundred brackets",
        plan(f"model.rampup_batch_size={'[' * 200}{']' * 200}"),
        ("is not a list of integers", TYPED),
    ),
)
STRANGERS = (
    BadInput(
        "a variable of the environment",
        plan("name=${oc.env:SECRET}"),
        ("name=${oc.env:SECRET}", "are not resolved here", TYPED),
    ),
    BadInput(
        "a variable of the environment for a seed",
        plan("seed=${oc.env:SECRET}"),
        ("are not resolved here", TYPED),
    ),
    BadInput(
        "a variable of the environment in a list",
        plan("model.rampup_batch_size=['${oc.env:SECRET}',1,2]"),
        ("not resolved here", TYPED),
    ),
    BadInput(
        "a variable of the environment for an option",
        plan("model=${oc.env:SECRET}"),
        ("there is no conf/model/", TYPED),
    ),
    BadInput(
        "a reference to another setting",
        plan("seed=${trainer.num_nodes}"),
        ("seed=${trainer.num_nodes}: references", TYPED),
    ),
    BadInput(
        "a value that is left open", plan("seed=???"), ("seed=???", "are not resolved here", TYPED)
    ),
    BadInput(
        "an object to build",
        plan("model._target_=os.system"),
        ("there is no setting model._target_", TYPED),
    ),
    BadInput(
        "a setting of the machinery",
        plan("hydra.run.dir=elsewhere"),
        ("there is no setting hydra.run.dir", TYPED),
    ),
    BadInput(
        "an option in another folder",
        plan("model=../optim/llama3_8b"),
        ("there is no conf/model/../optim/llama3_8b.yaml", TYPED),
    ),
    BadInput(
        "an option anywhere",
        plan("model=/etc/passwd"),
        ("model=/etc/passwd: there is no conf/model/", TYPED),
    ),
    BadInput(
        "an option outside of the user's folder",
        plan("--config-dir", "mine", "optim=../../secret"),
        ("optim=../../secret: there is no conf/optim/", TYPED),
        {"secret.yaml": "lr: 1\n", "mine/optim/other.yaml": "lr: 1\n"},
    ),
    BadInput(
        "a factory that imports",
        plan(factory="llama3_8b(__import__('os'))"),
        ("--factory", "is not a recipe's name"),
    ),
    BadInput(
        "a factory that computes",
        plan(factory="llama3_8b(num_nodes=1 + 1)"),
        ("--factory", "is not a recipe's name"),
    ),
    BadInput(
        "a factory by its path",
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
        "a word for a number in a file", "\n\nlr: fast\n", "optim.lr=fast is not a number", line=3
    ),
    in_file("a negative number in a file", "lr: -1\n", "optim.lr=-1.0 is below 0"),
    in_file("infinity in a file", "lr: .inf\n", "optim.lr=inf is not a finite number"),
    in_file("one key twice in a file", "lr: 0.5\nmin_lr: 0\nlr: 0.25\n", "lr is set twice", line=3),
    over_everything(
        "one key twice in a section of a file",
        "optim:\n  lr: 0.5\n  lr: 0.25\n",
        "lr is set twice",
        line=4,
    ),
    in_file("no key at all in a file", "lr: 0.5\n~: 2\n", "a key is not a string", line=2),
    in_file("a number for a key in a file", "2: 0.5\n", "a key is not a string"),
    in_file(
        "five thousand digits in a file", f"lr: {LONG_INTEGER}\n", "a number of 5000 characters"
    ),
    in_file("no number in a file", "lr: .nan\n", "optim.lr=nan is not a finite number"),
    BadInput(
        "an unknown key in a group of one's own",
        plan("--config-dir", ".", "mygroup=a"),
        ("there is no setting mygroup.x", "set by: mygroup/a.yaml:1"),
        {"mygroup/a.yaml": "x: 1\n"},
    ),
    BadInput(
        "an option named as one of ours",
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
    over_everything(
        "an empty section in a file",
        "trainer:\ndata:\n  micro_batch_size: 1\n",
        "trainer is a section, not a setting",
        line=2,
    ),
    in_file("a file that is no YAML", "lr: 0.5\nmin_lr: [\n", "is not YAML", line=3),
    in_file("a tab in a file", "lr: 0.5\n\tmin_lr: 0\n", "is not YAML", line=2),
    in_file("an empty file", "", "holds no settings", line=None),
    in_file("a file of comments only", "# nothing\n# here\n", "holds no settings", line=None),
    in_file("a list for a file", "- lr: 0.5\n", "holds no settings", line=None),
    in_file("two documents in a file", "lr: 0.5\n---\nlr: 0.25\n", "is not YAML", line=2),
    in_file("a file that is no text", b"lr: \xff\xfe\n", "is not YAML", line=None),
    in_file(
        "a file that is too large for settings",
        f"# {'x' * 25_000}\nlr: 0.5\n",
        "larger than 20,000 bytes",
        line=None,
    ),
    in_file(
        "a bomb of aliases",
        "a: &a [x, x]\nb: &b [*a, *a]\nlr: [*b, *b]\n",
        "anchors, aliases and tags are not supported",
    ),
    in_file(
        "a merge key",
        "lr: 1\nbase: &b {eps: 1}\n<<: *b\n",
        "anchors, aliases and tags are not supported",
        line=2,
    ),
    in_file(
        "a file with an object to build",
        "lr: !!python/object/apply:os.mkdir [made]\n",
        "anchors, aliases and tags are not supported",
    ),
    in_file(
        "a file with a name of Python's",
        "lr: 1\neps: !!python/name:os.system\n",
        "tags are not supported",
        line=2,
    ),
    in_file(
        "a file with a target",
        "_target_: os.system\nlr: 0.5\n",
        "there is no setting optim._target_",
    ),
    over_everything(
        "a file with a target inside",
        "model:\n  _target_: os.system\n",
        "there is no setting model._target_",
        line=3,
    ),
    in_file(
        "a variable of the environment in a file",
        "lr: ${oc.env:SECRET}\n",
        "${oc.env:SECRET}: references",
        "are not resolved here",
    ),
    in_file("a reference in a file", "lr: 0.5\nmin_lr: ${.lr}\n", "${.lr}: references", line=2),
    in_file(
        "half a reference in a file",
        "lr: '${x'\n",
        "${x: references (${...}) are not resolved here",
    ),
    in_file(
        "a package without a name",
        "# @package\nlr: 0.5\n",
        "its package is neither its group nor _global_",
    ),
    in_file("an empty mapping for a file", "{}\n", "holds no settings", line=None),
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
        "a folder for an option",
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
        "a file with settings of the machinery",
        "lr: 1\nhydra:\n  run: {dir: elsewhere}\n",
        "hydra is not a setting",
        line=2,
    ),
    in_file(
        "a file in the machinery's package",
        "# @package hydra\nrun:\n  dir: elsewhere\n",
        "its package is neither its group nor _global_",
    ),
    in_file(
        "a file in another group's package",
        "# @package model\nhidden_size: 64\n",
        "its package is neither its group nor _global_",
    ),
    in_file("a hundred brackets in a file", f"lr: {'[' * 100}{']' * 100}\n", "more than 20 levels"),
    in_file("three hundred dashes in a file", f"lr: {'- ' * 300}1\n", "is not YAML"),
)
SCHEDULES = (
    BadInput(
        "a schedule's entry that is none",
        schedule("0:512 1B-1024"),
        ("'1B-1024' is not THRESHOLD:BATCH_SIZE", "(command line)"),
    ),
    BadInput(
        "a schedule's batch that is not whole",
        schedule("0:1.2345K"),
        ("'0:1.2345K' is not THRESHOLD:BATCH_SIZE", "(command line)"),
    ),
    BadInput(
        "a schedule that begins late",
        schedule("1B:512 2B:1024"),
        ("begins at 1000000000", "an entry 0:512", "(command line)"),
    ),
    BadInput(
        "a schedule of nothing",
        schedule(""),
        ("model.step_batch_size_schedule='' has no entries", "(command line)"),
    ),
    BadInput(
        "a schedule with a batch of nothing",
        schedule("0:0"),
        ("batch size 0 is below 1", "(command line)"),
    ),
    BadInput(
        "thresholds within one sample",
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
        "a schedule that ends at another batch",
        schedule("0:512 1B:1024", "model.global_batch_size=2048"),
        (
            "model.step_batch_size_schedule ends at 1024, but model.global_batch_size=2048",
            "model.global_batch_size=1024, or null",
        ),
    ),
    BadInput(
        "a schedule's batch that fits nowhere",
        schedule("0:511 1B:1024"),
        ("stage 0 (batch size 511)", "multiples of 8"),
    ),
    BadInput(
        "a schedule with batches that may be decreased",
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
        "nothing per device",
        plan("per_device_batch_size=0"),
        ("per_device_batch_size=0 is not above zero", "(command line)"),
    ),
    BadInput(
        "MaxText's ramp without its words",
        gpt3("enable_rampup_batch_size=true"),
        (
            "enable_rampup_batch_size=true, but per_device_batch_size_start",
            "are not given",
            "global_rampup_samples=500 (MaxText's defaults)",
        ),
    ),
    BadInput(
        "MaxText's ramp without its samples",
        maxtext_ramp(global_rampup_samples=None),
        ("global_rampup_samples is not given", "=500"),
    ),
    BadInput(
        "MaxText's ramp without the word for it",
        maxtext_ramp(enable_rampup_batch_size=None),
        (
            "per_device_batch_size_start=4.0 without enable_rampup_batch_size",
            "enable_rampup_batch_size=true",
            "(command line)",
        ),
    ),
    BadInput(
        "MaxText's ramp over fewer than no samples",
        maxtext_ramp(global_rampup_samples="-500"),
        (
            "global_rampup_samples=-500 is below 0",
            "set by: global_rampup_samples=-500 (command line)",
        ),
    ),
    BadInput(
        "MaxText's ramp and NeMo's batch",
        (*maxtext_ramp(), "model.global_batch_size=4096"),
        (
            "per_device_batch_size=16.0 sets model.global_batch_size=2048, but 4096 is given",
            "(command line)",
        ),
    ),
    BadInput(
        "a size per device that is no number",
        gpt3("per_device_batch_size=4K"),
        ("per_device_batch_size=4K is not a number", "try:    per_device_batch_size=4", TYPED),
    ),
    BadInput(
        "MaxText's ramp from a fraction",
        maxtext_ramp(per_device_batch_size_start="4.001"),
        ("512.128 samples, which is not whole",),
    ),
    BadInput(
        "MaxText's ramp from its end on",
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
        "hosts that do not divide by the expansion factor",
        gpt3("expansion_factor_real_data=3"),
        (
            "lets one host in 3 read",
            "expansion_factor_real_data=3.0 (command line)",
            "try:    expansion_factor_real_data=2",
        ),
    ),
    BadInput(
        "pipeline microbatches that the stages do not divide",
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
        "layers that the pipeline does not divide",
        gpt3("parallel.pipeline_parallel_size=16"),
        (
            "model.num_layers=24 does not divide into parallel.pipeline_parallel_size=16",
            "model/gpt3_5b.yaml:",
        ),
    ),
)
SPLITS = (
    BadInput(
        "heads that the tensor ranks do not divide",
        plan("parallel.tensor_parallel_size=8", factory="gpt3_126m"),
        (
            "model.num_attention_heads=12 does not divide into parallel.tensor_parallel_size=8",
            "model/gpt3_126m.yaml:",
            "_size=4",
        ),
    ),
    BadInput(
        "groups that the tensor ranks do not divide",
        plan("parallel.tensor_parallel_size=16", "trainer.num_nodes=4"),
        (
            "model.num_query_groups=8 does not divide into parallel.tensor_parallel_size=16",
            "try:    parallel.tensor_parallel_size=8",
        ),
    ),
    BadInput(
        "a model of which nothing divides by three",
        plan("parallel.tensor_parallel_size=3", "trainer.devices=6"),
        (
            "model.num_query_groups=8, model.ffn_hidden_size=14336 and"
            " model.hidden_size=4096 do not divide",
            "=3 (command line)",
            "=2",
        ),
    ),
    BadInput(
        "a vocabulary that the tensor ranks do not divide",
        plan("parallel.tensor_parallel_size=2", "model.vocab_size=128255"),
        (
            "model.vocab_size=128255 does not divide into parallel.tensor_parallel_size=2",
            "model.vocab_size=128255 (command line)",
        ),
    ),
    BadInput(
        "a sequence that the context ranks do not divide",
        plan("data.sequence_length=8190"),
        (
            "=8190 does not divide into 2 pieces x parallel.context_parallel_size=2",
            "recipes/llama.py:",
            "=8188 or 8192",
        ),
    ),
    BadInput(
        "a sequence that the context and tensor ranks do not divide",
        plan("data.sequence_length=8190", "parallel.tensor_parallel_size=4"),
        (
            "2 pieces x parallel.context_parallel_size=2 x parallel.tensor_parallel_size=4",
            "data.sequence_length=8176 or 8192",
        ),
    ),
    BadInput(
        "parts of a pipeline that there is not",
        plan("parallel.virtual_pipeline_parallel_size=2"),
        (
            "parallel.virtual_pipeline_parallel_size=2 needs a pipeline",
            "(default)",
        ),
    ),
    BadInput(
        "layers that the parts of a pipeline do not divide",
        plan("parallel.pipeline_parallel_size=2", "parallel.virtual_pipeline_parallel_size=3"),
        (
            "model.num_layers=32 does not divide into",
            "=2 x parallel.virtual_pipeline_parallel_size=3",
            "model/llama3_8b.yaml:",
            "size=2",
        ),
    ),
    BadInput(
        "a pipeline that is to reduce after each micro batch",
        plan("parallel.pipeline_parallel_size=2", "trainer.accumulate_reduce=each"),
        (
            "a pipeline reduces after its last micro batch",
            "trainer.accumulate_reduce=each (command line)",
            "trainer.accumulate_reduce=last",
        ),
    ),
    BadInput(
        "micro batches that do not go round an interleaved pipeline",
        plan("model.global_batch_size=510", factory="llama3_70b"),
        (
            "stage 0: the interleaved schedule takes micro batches 4 at a time, and a step has 510",
            "model.global_batch_size=510 (command line)",
            "virtual_pipeline_parallel_size=1",
        ),
    ),
    BadInput(
        "a micro batch that does not divide into the pipeline's",
        gpt3("parallel.pipeline_parallel_size=2", "num_pipeline_microbatches=8"),
        (
            "data.micro_batch_size=4 does not divide into parallel.num_pipeline_microbatches=8",
            "num_pipeline_microbatches=4",
        ),
    ),
    BadInput(
        "ranks that share weights and do not divide all ranks",
        plan("parallel.data_parallel_shard_size=3"),
        (
            "stage 0: 4 data-parallel ranks do not divide into",
            "=3 (command line)",
            "parallel.data_parallel_shard_size=2, or null",
        ),
    ),
    BadInput(
        "ranks that share weights and do not divide those of a later stage",
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
        "a batch that does not divide",
        plan("model.global_batch_size=510"),
        ("does not divide", "508 or 512", "(command line)"),
    ),
    BadInput(
        "a batch that NeMo's own command line does not divide",
        ("llm", "pretrain", "--factory", "llama3_8b", "data.micro_batch_size=3"),
        (
            "x 4 data-parallel ranks = 12",
            "model.global_batch_size=504 or 516, or data.micro_batch_size=2",
            "batch/nemo_llama.yaml:",
        ),
    ),
    BadInput(
        "an accumulation that does not fit",
        plan("trainer.accumulate_grad_batches=100"),
        (
            "= 400, but model.global_batch_size=512",
            "trainer.accumulate_grad_batches=100 (command line)",
        ),
    ),
    BadInput(
        "no micro batch",
        plan("data.micro_batch_size=null"),
        ("data.micro_batch_size is not set", "data.micro_batch_size=1"),
    ),
    BadInput(
        "stages that do not fit all the nodes",
        gpt3("rampup.node_policy=fixed"),
        (
            "stages 0 (batch size 256), 2 (batch size 768)",
            "= 512 on 16 nodes",
            "rampup.node_policy=fixed (command line)",
        ),
    ),
    BadInput(
        "an increment that does not divide",
        plan("model.rampup_batch_size=[256,100,50M]"),
        (
            "not a multiple of the increment 100",
            "an increment of 64 or 128",
            "batch/nemo_llama.yaml:",
        ),
    ),
    BadInput(
        "a ramp that starts above its end",
        plan("model.rampup_batch_size=[1024,128,50M]"),
        ("starts at 1024, above", "at most 512"),
    ),
    BadInput(
        "a batch that would be decreased to nothing",
        gpt3("model.rampup_batch_size=[2,2,10M]", "rampup.decrease_batch_size_if_needed=true"),
        ("batch size 2 would be decreased to nothing", "batch sizes of at least 32"),
    ),
    BadInput(
        "processes that the model does not divide",
        plan("trainer.devices=3"),
        ("3 processes do not divide", "multiple of 2"),
    ),
    BadInput(
        "an efficiency that is none",
        plan("rampup.efficiency='1-9000'"),
        ("is not MICRO_BATCHES:TOKENS_PER_SECOND", "(command line)"),
    ),
)
SHAPES = (
    BadInput(
        "a name with a slash",
        plan("name=a/b"),
        ("name='a/b' cannot name a folder", "name=a/b (command line)"),
    ),
    BadInput(
        "a name that goes up",
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
        "heads that do not divide the width",
        plan("model.num_attention_heads=33"),
        ("does not divide", "model.num_attention_heads=32"),
    ),
    BadInput(
        "groups that do not divide the heads",
        plan("model.num_query_groups=5"),
        ("does not divide", "model.num_query_groups=4"),
    ),
    BadInput(
        "heads too narrow to be turned",
        plan("model.num_attention_heads=4096", "model.num_query_groups=null"),
        ("rotary positions need an even size", "model.position_embedding=learned"),
    ),
    BadInput(
        "heads of an odd size that are to be turned",
        plan("model.head_size=65"),
        (
            "model.head_size=65: rotary positions need an even size",
            "model.head_size=65 (command line)",
            "an even head size",
        ),
    ),
    BadInput(
        "a scaling of positions that do not turn",
        gpt3("model.rotary_scale_factor=8"),
        (
            "model.rotary_scale_factor=8 does not apply to model.position_embedding=learned",
            "model/gpt3_5b.yaml:",
            "model.rotary_scale_factor=null",
        ),
    ),
    BadInput(
        "a scaling that speeds up",
        plan("model.rotary_scale_factor=0.5"),
        ("model.rotary_scale_factor=0.5 is below 1", "(command line)"),
    ),
    BadInput(
        "a scaling without a band to blend in",
        plan("model.rotary_scale_factor=8", "model.rotary_low_freq_factor=4"),
        (
            "model.rotary_low_freq_factor=4 is not below model.rotary_high_freq_factor=4",
            "(command line)",
            "(default)",
        ),
    ),
    BadInput(
        "a momentum that forgets nothing",
        plan("optim.muon_momentum=1"),
        ("optim.muon_momentum=1.0 is not below 1", "=0.95"),
    ),
    BadInput(
        "a lowest learning rate above the highest",
        plan("optim.min_lr=0.1"),
        ("is above optim.lr=0.0003", "optim/nemo_adam.yaml:"),
    ),
    BadInput(
        "a decay from a warm-up that there is not",
        plan("schedule.decay_style=inverse_sqrt", "optim.warmup_steps=null"),
        (
            "needs a warm-up to decay from",
            "schedule.decay_style=inverse_sqrt (command line)",
        ),
    ),
    BadInput(
        "a length of a decay that is another",
        plan("schedule.wsd_decay_samples=100"),
        ("does not apply to schedule.decay_style=cosine", "schedule.decay_style=cosine (default)"),
    ),
)
COMMANDS = (
    BadInput(
        "a word for a recipe's argument",
        plan(factory="llama3_8b(num_nodes='x')"),
        ("num_nodes='x' is not an integer", "num_nodes=1"),
    ),
    BadInput(
        "an argument that a recipe does not take",
        plan(factory="llama3_8b(nodes=2)"),
        ("takes no argument nodes", "num_nodes"),
    ),
    BadInput(
        "a picture without a name",
        plan("--plot", ""),
        ("--plot .: the name ends in neither .svg nor .png", "--plot plan.svg"),
    ),
    BadInput(
        "a folder for a picture",
        plan("--plot", "d.svg"),
        ("--plot d.svg is a folder", "--plot d.svg/plan.svg"),
        {"d.svg/x": ""},
    ),
    BadInput(
        "a seesaw of what does not fall",
        plan("--seesaw", "schedule.decay_style=constant"),
        ("falls too little for one stair",),
    ),
    BadInput(
        "a picture of another kind", plan("--plot", "x.pdf"), ("--plot x.pdf", "--plot x.svg")
    ),
    BadInput(
        "seesaw beside a ramp",
        gpt3("--seesaw"),
        ("this run has a schedule of its own", "model.rampup_batch_size=null"),
    ),
    BadInput(
        "seesaw that does not grow",
        plan("--seesaw", "--seesaw-factor", "1"),
        ("--seesaw-factor 1", "--seesaw-factor 2"),
    ),
    BadInput(
        "seesaw by a word",
        plan("--seesaw", "--seesaw-factor", "two"),
        ("Invalid value for '--seesaw-factor'",),
        from_typer=True,
    ),
    BadInput(
        "seesaw without an end",
        plan("--seesaw", "trainer.max_steps=null"),
        ("--seesaw needs the end of the run", "trainer.max_samples"),
    ),
    BadInput(
        "a comparison of nothing",
        plan("--what-if", "trainer.num_nodes"),
        ("'trainer.num_nodes' is not KEY=VALUE", "--what-if"),
    ),
    BadInput(
        "a comparison of an unknown key",
        plan("--what-if", "foo=1,2"),
        ("there is no setting foo", "set by: --what-if"),
    ),
    BadInput(
        "a picture of a comparison",
        plan("--what-if", "seed=1,2", "--plot", "x.svg"),
        ("--what-if compares plans", "--plot without"),
    ),
    BadInput(
        "figures of a run that there is not",
        plan("--measured", "nowhere"),
        ("path 'nowhere' does not exist",),
        from_typer=True,
    ),
    BadInput(
        "figures of a run without steps",
        plan("--measured", "."),
        ("--measured .: no stage has more than 3 steps",),
    ),
    BadInput(
        "a run on more GPUs than there are",
        ("pretrain", "-f", "llama3_8b"),
        ("needs 8 GPUs", "--dry-run", "hardware/h100_bf16.yaml:"),
    ),
)


def tiny(*words: str) -> tuple[str, ...]:
    return ("pretrain", "-f", "llama3_tiny", *words)


def corpus(*words: str) -> tuple[str, ...]:
    return ("data", "build", "in.txt", "--output", "c", "--tokenizer", "bytes", *words)


def index(version: int = 1, code: int = 8, tokens: int = 12) -> bytes:
    """The index of one document."""
    return struct.pack("<9sQBQQiqqq", b"MMIDIDX\0\0", version, code, 1, 2, tokens, 0, 0, 1)


def indexed(title: str, *said: str, idx: bytes | None = None, tokens: int | None = 12) -> BadInput:
    """A run on files that are not as they should be."""
    files = {"d/wiki.idx": index() if idx is None else idx}
    if tokens is not None:
        files["d/wiki.bin"] = bytes(2 * tokens)
    return BadInput(title, tiny("data=indexed", "data.path=d/wiki"), said, files)


DATA = (
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
        "a blend with a word for a weight",
        plan("data=indexed", "data.blend=[much,a]"),
        ("has much in place of a weight",),
    ),
    BadInput(
        "a blend with nothing of a corpus",
        plan("data=indexed", "data.blend=[0,a,1,b]"),
        ("the weight 0, which is not above 0",),
    ),
    BadInput(
        "weights to the last digit",
        plan("data=indexed", "data.blend=[0.12345678901,a,0.98765432109,b]"),
        ("the weights of data.blend have too many digits", "weights of up to nine digits"),
    ),
    BadInput(
        "a split in two",
        plan("data=indexed", "data.path=a", "data.split=[9,1]"),
        ("does not hold three shares", "data.split=[98,1,1]"),
    ),
    BadInput(
        "a split without training",
        plan("data=indexed", "data.path=a", "data.split=[0,1,1]"),
        ("does not hold three shares",),
    ),
    BadInput(
        "indexed files that are not there",
        tiny("data=indexed", "data.path=d/wiki"),
        ("cannot read d/wiki.idx: No such file or directory", "rampcli data build"),
    ),
    BadInput(
        "text that is not there", tiny("data=text", "data.path=d/wiki"), ("d/wiki does not exist",)
    ),
    indexed(
        "an index without its tokens",
        "cannot read d/wiki.bin: No such file or directory",
        tokens=None,
    ),
    indexed(
        "tokens that were cut off",
        "d/wiki.bin has 20 bytes, and by wiki.idx it should have 24",
        tokens=10,
    ),
    indexed(
        "an index of another version",
        "d/wiki.idx has version 2 of the format; supported: 1",
        idx=index(version=2),
    ),
    indexed(
        "an index of fractions",
        "has tokens of type 7, which is not an integer type",
        idx=index(code=7),
    ),
    indexed(
        "an index that was cut off", "d/wiki.idx has 40 bytes, and 1 sequences", idx=index()[:40]
    ),
    indexed(
        "an index that is none",
        "d/wiki.idx is not an index in Megatron's format",
        idx=b"once upon a time there was a file of text",
    ),
    indexed(
        "a corpus shorter than one sample",
        "the training corpus of d/wiki has 0 samples of data.sequence_length=128; needed: 1",
        "data.pad_last_window=true",
    ),
    indexed(
        "a corpus of nothing",
        "the training corpus of d/wiki has 0 samples",
        idx=index(tokens=0),
        tokens=0,
    ),
    indexed(
        "a sequence of less than nothing",
        "d/wiki.idx is damaged: sequence 0 has length -12",
        idx=index(tokens=-12),
    ),
    BadInput(
        "a hundred thousand processes",
        corpus("--workers", "100000"),
        ("--workers 100000: from 1 to ", "--workers "),
    ),
    BadInput(
        "a vocabulary of 10^18",
        ("data", "build", "in.txt", "-o", "c", "--train-bpe", f"{10**18}"),
        ("at most 2,000,000 tokens", "32000"),
    ),
    BadInput(
        "a key of a thousand characters",
        corpus("--text-key", "k" * 1001),
        ("--text-key has 1,001 characters; at most 1,000",),
    ),
    BadInput(
        "a folder of one's own where a corpus is built",
        corpus(),
        ("c.building is not empty, and rampcli did not make it: it holds thesis.txt",),
        {"in.txt": "text", "c.building/thesis.txt": "mine"},
    ),
)
LAUNCHES = (
    BadInput(
        "an elastic job",
        tiny("launch=slurm", "launch.elastic=true"),
        ("launch.elastic=true needs launch=local", "launch/slurm.yaml:3", "launch.elastic=false"),
    ),
    BadInput(
        "fewer nodes than the fewest",
        plan("launch.elastic=true", "launch.min_nodes=2"),
        ("launch.min_nodes=2 is above trainer.num_nodes=1",),
    ),
    BadInput(
        "a partition with more behind it",
        plan("launch.slurm.partition='gpu --uid=0'"),
        ("launch.slurm.partition='gpu --uid=0' is not a value that sbatch accepts",),
    ),
    BadInput(
        "an account over two lines",
        plan('launch.slurm.account="a\n#SBATCH --uid=0"'),
        ("launch.slurm.account=",),
    ),
    BadInput(
        "a time of words",
        plan("launch.slurm.time='four hours'"),
        (
            "launch.slurm.time='four hours' is not a value that sbatch accepts",
            "launch.slurm.time=4:00:00",
        ),
    ),
    BadInput(
        "an option that is none",
        plan("launch.slurm.sbatch_args=[exclusive]"),
        ("'exclusive', which is not an option", "[--exclusive]"),
    ),
    BadInput(
        "an array of jobs",
        plan('launch.slurm.sbatch_args=["--array=1-4"]'),
        ("has --array=1-4, which would break",),
    ),
    BadInput(
        "an option over two lines",
        plan('launch.slurm.sbatch_args=["--x\ny"]'),
        ("which is not an option",),
    ),
    BadInput(
        "a variable without a value",
        plan("launch.slurm.environment=[NCCL_DEBUG]"),
        ("'NCCL_DEBUG', which is not NAME=VALUE",),
    ),
    BadInput(
        "a variable that is code",
        plan('launch.slurm.environment=["x;touch y=1"]'),
        ("which is not NAME=VALUE",),
    ),
)
SECTIONS: dict[str, tuple[BadInput, ...]] = {
    "Wrong type": TYPES,
    "Wrong number of values": ARITIES,
    "Negative numbers": NEGATIVE,
    "Zero": ZERO,
    "Numbers that are too large": HUGE,
    "Numbers that are not finite": NOT_FINITE,
    "Unusual characters": CHARACTERS,
    "Settings given twice": TWICE,
    "Unknown names": UNKNOWN,
    "Malformed words": GRAMMAR,
    "Attempts to run code or read other files": STRANGERS,
    "Your own option files": FILES,
    "Step schedules": SCHEDULES,
    "MaxText's settings": MAXTEXT,
    "Parallel splits": SPLITS,
    "Batch arithmetic": ARITHMETIC,
    "Names, shapes and learning rates": SHAPES,
    "Commands": COMMANDS,
    "Data": DATA,
    "Launching": LAUNCHES,
}
BAD_INPUTS = tuple(row for rows in SECTIONS.values() for row in rows)
