"""`rampcli recipes --new`: writes a recipe file to begin with."""

from pathlib import Path

import typer

from rampcli.errors import UsageError

TEMPLATE = '''"""The recipe {name}: rampcli pretrain --factory {name}.py"""

from rampcli import Config, compose


def {name}(num_nodes: int = 1, num_gpus_per_node: int = 1) -> Config:
    """Trains a Llama of a million parameters on Python's own source code, on any machine.

    Change what you like. `rampcli explain KEY` says what a setting means, and
    `rampcli pretrain --factory {name}.py --cfg` lists all of them.
    """
    return compose(
        "name={name}",  # the run directory is runs/{name}
        # Each of these is a file of settings. The settings below override them.
        # `rampcli recipes NAME` shows which files the recipe NAME is made of.
        "model=llama3_tiny",
        "data=stdlib",  # data=text data.path=FILE trains on a text file of yours
        "optim=llama3_tiny",
        # The batch: 16 samples per step, in micro batches of 4 on each process. The ramp starts
        # with steps of 4 samples and adds 4 three times until sample 2,400.
        "model.global_batch_size=16",
        "model.rampup_batch_size=[4,4,2_400]",
        "data.micro_batch_size=4",
        "data.sequence_length=128",
        # The length of the run, and the learning rate.
        "trainer.max_samples=3_204",
        "trainer.max_val_samples=256",
        "optim.lr=3e-3",
        "optim.min_lr=3e-4",
        "optim.warmup_samples=200",
        f"trainer.num_nodes={{num_nodes}}",
        f"trainer.devices={{num_gpus_per_node}}",
    )


# A file may have several recipes: --factory {name}.py:NAME chooses one, and arguments are given as
# --factory '{name}.py:{name}(num_nodes=2)'. It may also register an optimiser, a model or a data
# source of your own; see the guide to extensions.
'''


def write_recipe(name: str) -> None:
    """Writes `NAME.py` in the working directory, and prints the commands that use it.

    Raises:
        UsageError: the name is not a function's, or the file exists.
    """
    stem = name.removesuffix(".py")
    if not stem.isidentifier() or not stem.isascii():
        raise UsageError(
            f"--new {name}: a recipe's name is the name of a Python function",
            remedy="--new my_recipe",
        )
    file = Path(f"{stem}.py")
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(TEMPLATE.format(name=stem))
    except FileExistsError as error:
        raise UsageError(f"{file} exists already", remedy="--new with another name") from error
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}") from error
    typer.echo(f"wrote {file}; see its plan, then train it:")
    typer.echo(f"  rampcli plan --factory {file}")
    typer.echo(f"  rampcli pretrain --factory {file}")
