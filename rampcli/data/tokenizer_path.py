"""Finds the file of a tokenizer: a path, a folder that holds one, or a model of the hub."""

from pathlib import Path

from rampcli.data.chat_template import NAMES_FILE, TEMPLATE_FILE, TOKENIZER_CONFIG_FILE
from rampcli.data.special_tokens import GENERATION_FILE, MODEL_FILE
from rampcli.errors import UsageError, naming_setting, set_to
from rampcli.files import hub
from rampcli.settings.data import DataConfig

BESIDE = (TOKENIZER_CONFIG_FILE, NAMES_FILE, TEMPLATE_FILE, GENERATION_FILE, MODEL_FILE)
"""Files beside a tokenizer that tell its special tokens and its chat template."""
TOKENIZER_REMEDY = (
    "a model with tokenizer.json, which AutoTokenizer.from_pretrained(NAME).save_pretrained(\
FOLDER) writes"
)
MEANT_TOKENIZERS = {"byte": "bytes", "char": "chars", "character": "chars", "characters": "chars"}
TRAINED = "bpe"
"""Names a kind of tokenizer, which `rampcli data build` trains."""
TRAIN = "`rampcli data build FILE --train-bpe 8192 --output PREFIX`, and data=indexed"


def name_meant(text: str) -> str | None:
    """Returns the name that a word for a tokenizer stands for, or None if it is not such a word."""
    meant = ({TRAINED: TRAINED} | MEANT_TOKENIZERS).get(text.lower())
    return None if meant is None or Path(text).exists() else meant


def find_tokenizer(text: str) -> tuple[str, Path]:
    """Returns a tokenizer's name and its file, downloading it if necessary.

    The name is the word itself, or NAME@COMMIT for a model of the hub.

    Raises:
        RampcliError: a folder or a model has no `tokenizer.json`, or it cannot be downloaded.
    """
    if hub.is_hub_name(text):
        snapshot = hub.open_snapshot(text, hub.TOKENIZER_FILE, remedy=TOKENIZER_REMEDY)
        return snapshot.name, snapshot.folder / hub.TOKENIZER_FILE
    return text, _file_of(text)


def tokenizer_path(text: str) -> Path:
    """Returns the file that `data.tokenizer` names, downloading it if necessary.

    The files of a model that tell its special tokens and its chat template are downloaded, too.

    Args:
        text: value of the setting, and neither `bytes` nor `chars`.

    Raises:
        RampcliError: as `find_tokenizer`, or a model of the hub is named without its commit.
    """
    with naming_setting(DataConfig.tokenizer):
        if (meant := name_meant(text)) is not None:
            raise UsageError(
                f"{text} is not a tokenizer",
                remedy=f"{TRAIN} data.path=PREFIX"
                if meant == TRAINED
                else set_to(DataConfig.tokenizer, meant),
            )
        if not hub.is_hub_name(text):
            return _file_of(text)
        snapshot = hub.open_pinned(
            text, hub.TOKENIZER_FILE, key=DataConfig.tokenizer, remedy=TOKENIZER_REMEDY
        )
        for file in BESIDE:
            snapshot.find(file)
    return snapshot.folder / hub.TOKENIZER_FILE


def _file_of(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
        return path
    if not (path / hub.TOKENIZER_FILE).exists():
        raise UsageError(f"{path} has no {hub.TOKENIZER_FILE}", remedy=TOKENIZER_REMEDY)
    return path / hub.TOKENIZER_FILE
