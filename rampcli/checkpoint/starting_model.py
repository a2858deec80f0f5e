"""Takes a model's settings from the folder of its initial weights. Imports no torch."""

from pathlib import Path

from rampcli.checkpoint.starting_weights import is_run, model_folder
from rampcli.config.layers import Layer, Precedence, Stack
from rampcli.data.chat_template import read_tokenizer_config, tokens_of
from rampcli.data.tokenizer_path import tokenizer_path
from rampcli.errors import Report, UsageError
from rampcli.hub import TOKENIZER_FILE, is_pinned
from rampcli.models.huggingface_config import INIT_FROM_KEY, as_settings, read_config

FROM_FOLDER = "from_folder"
"""Option of the group `model`: the model in `model.init_from`."""
REMEDY = f"{INIT_FROM_KEY}=FOLDER, as rampcli export or save_pretrained wrote it"
SOURCE_KEY, TOKENIZER_KEY, END_KEY = "data.source", "data.tokenizer", "data.response_end"


def with_model_of_folder(stack: Stack, *, report: Report) -> Stack:
    """Returns the layers of a configuration with those of the folder in `model.init_from`.

    Only `model=from_folder` asks for it. The folder gives the settings of the model, the tokenizer
    and, for pairs, the token that ends a response. They apply over the files of conf/; settings of
    the command line and of Python apply over them.

    Args:
        report: receives the errors; the stack is then returned as it is.
    """
    if not takes_model_from_folder(stack):
        return stack
    before = len(report.errors)
    with report.noting():
        layer = _layer_of(stack, report)
    for error in report.errors[before:]:
        stack.name_sources(error)
    if len(report.errors) > before:
        return stack
    return Stack(stack.composed, (layer, *stack.overrides), stack.choices)


def takes_model_from_folder(stack: Stack) -> bool:
    """Returns whether `model=from_folder` is chosen."""
    return stack.choices.get("model") == FROM_FOLDER


def _layer_of(stack: Stack, report: Report) -> Layer:
    given = stack.entry(INIT_FROM_KEY).value
    if given is None:
        raise UsageError(
            f"model={FROM_FOLDER} takes the model from {INIT_FROM_KEY}, which is not given",
            keys=(INIT_FROM_KEY,),
            remedy=REMEDY,
        )
    if is_run(Path(given).expanduser()):
        raise UsageError(
            f"model={FROM_FOLDER} takes the model from a Hugging Face folder, and"
            f" {INIT_FROM_KEY}={given} is a run",
            keys=(INIT_FROM_KEY,),
            remedy=f"rampcli export {given} out, then {INIT_FROM_KEY}=out",
        )
    folder = model_folder(given, remedy=REMEDY)
    values = {f"model.{name}": value for name, value in as_settings(read_config(folder)).items()}
    if stack.entry(SOURCE_KEY).value in ("text", "pairs"):
        values |= _tokens_of(given, folder, stack)
    return Layer.of(f"{given}/config.json", Precedence.CHOSEN, values, report=report)


def _tokens_of(given: str, folder: Path, stack: Stack) -> dict[str, str]:
    """Returns the settings of the folder's tokenizer, unless another one is set."""
    if stack.precedence(TOKENIZER_KEY) > Precedence.SCHEMA:
        return {}
    if not (is_pinned(given) or (folder / TOKENIZER_FILE).is_file()):
        raise UsageError(
            f"{folder} has no {TOKENIZER_FILE}",
            keys=(INIT_FROM_KEY,),
            remedy=f"{TOKENIZER_KEY}=FILE, the {TOKENIZER_FILE} of the model",
        )
    values = {TOKENIZER_KEY: given}
    beside = tokenizer_path(given).parent
    end = tokens_of(read_tokenizer_config(beside)).get("eos_token")
    if end is not None and stack.entry(SOURCE_KEY).value == "pairs":
        values[END_KEY] = end
    return values
