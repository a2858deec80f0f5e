"""Downloads files of models from the Hugging Face hub: NAME, ORG/NAME or either @REVISION.

Each file is asked for by its name, so nothing else is downloaded, and never a pickle. The package
huggingface_hub keeps files in its cache, and those of a known commit are read without a connection.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from rampcli.errors import DamagedFileError, RampcliError, UsageError, reason_of
from rampcli.files.records import read_json
from rampcli.plugins.extras import requiring

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
WEIGHTS_FILE, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
"""Weights in one file, or the list of the files of weights."""
_NAME = re.compile(
    r"(?P<name>(?:[A-Za-z0-9][\w.-]{0,95}/)?[A-Za-z0-9][\w.-]{0,95})"
    r"(?:@(?P<revision>[A-Za-z0-9][\w./-]{0,254}))?",
    re.ASCII,
)
LONGEST_WAIT_S = 60
"""If the hub asks to wait for longer, the command ends. huggingface_hub would wait in silence."""
_WAITS = {
    "retry-after": re.compile(r"\s*([0-9]+)\s*"),
    "ratelimit": re.compile(r".*;\s*t=([0-9]+).*"),
}
"""Headers that say how many seconds to wait."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_FILES = (".json", ".yaml", ".safetensors", ".bin", ".txt", ".model")
"""Ends of a word that is the path of a file, and not a name on the hub."""
_SHARD = re.compile(r"\w[\w.-]{0,200}\.safetensors", re.ASCII)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model of the hub at one commit.

    Attributes:
        name: NAME@COMMIT, which finds the same files on any day.
        folder: the files of this commit that were downloaded.
    """

    name: str
    folder: Path

    def find(self, file: str) -> Path | None:
        """Returns a file, downloading it if necessary, or None if the model has no such file.

        Raises:
            RampcliError: it can be neither found in the cache nor downloaded.
        """
        path = self.folder / file
        return path if path.is_file() else _download(self.name, file)


def is_hub_name(text: str) -> bool:
    """Returns whether a word is a name on the hub, and not a path.

    Paths that exist are paths, as are files in a folder that exists: `runs/mine`. With a revision,
    such a word is a name on the hub.
    """
    matched = _NAME.fullmatch(text)
    if matched is None or ".." in text or "--" in matched["name"] or text.endswith(_FILES):
        return False
    path = Path(text)
    in_folder = "/" in text and matched["revision"] is None and path.parent.is_dir()
    return not (in_folder or path.exists())


def is_pinned(text: str) -> bool:
    """Returns whether a word is a name on the hub with a commit: NAME@COMMIT."""
    return is_hub_name(text) and _COMMIT.fullmatch(text.partition("@")[2]) is not None


def open_snapshot(text: str, file: str, *, remedy: str) -> Snapshot:
    """Returns a model at its newest commit, or that of its revision, with one of its files.

    Args:
        text: a word for which `is_hub_name` is true.
        remedy: what to try for a model without the file.

    Raises:
        RampcliError: the model cannot be downloaded and is not in the cache, or has no such file.
    """
    path = _needed(_download(text, file), text, file, remedy=remedy)
    # The cache is laid out as snapshots/COMMIT/FILE.
    return Snapshot(f"{text.partition('@')[0]}@{path.parent.name}", path.parent)


def open_pinned(text: str, file: str, *, key: str, remedy: str) -> Snapshot:
    """Returns the commit that a setting names.

    Raises:
        UsageError: the setting names none, so that a resume could read another one. The remedy has
            the present commit.
        RampcliError: as `open_snapshot`.
    """
    snapshot = open_snapshot(text, file, remedy=remedy)
    if not is_pinned(text):
        raise UsageError(
            f"{key}={text} names a model of the Hugging Face hub without its commit, so the same"
            " command could read another model later",
            keys=(key,),
            remedy=f"{key}={snapshot.name}",
        )
    return snapshot


def find_weights(snapshot: Snapshot) -> str | None:
    """Returns `WEIGHTS_FILE` or `WEIGHTS_INDEX`, whichever the model has, else None.

    Weights are not downloaded.

    Raises:
        RampcliError: the hub cannot be asked.
    """
    for file in (WEIGHTS_FILE, WEIGHTS_INDEX):
        if (snapshot.folder / file).is_file():
            return file
    if _exists(snapshot.name, WEIGHTS_FILE):
        return WEIGHTS_FILE
    return None if snapshot.find(WEIGHTS_INDEX) is None else WEIGHTS_INDEX


def download_weights(snapshot: Snapshot, *, remedy: str) -> None:
    """Downloads all weights of a model into the folder of its snapshot.

    Raises:
        RampcliError: there are no weights in safetensors, or they cannot be downloaded.
    """
    found = find_weights(snapshot)
    if found is None:
        raise UsageError(f"{snapshot.name} has no weights in safetensors", remedy=remedy)
    path = _needed(snapshot.find(found), snapshot.name, found, remedy=remedy)
    if found == WEIGHTS_FILE:
        return
    for file in sorted(set(read_json(path, {"weight_map": {...: str}})["weight_map"].values())):
        if not _SHARD.fullmatch(file):
            raise DamagedFileError(f"{path} names {file!r}, which is not a file of weights")
        _needed(snapshot.find(file), snapshot.name, file, remedy=remedy)


def _needed(path: Path | None, text: str, file: str, *, remedy: str) -> Path:
    if path is None:
        raise UsageError(f"{text} on the Hugging Face hub has no {file}", remedy=remedy)
    return path


def _download(text: str, file: str) -> Path | None:
    """Returns the path of a file in the cache, or None if the model has no such file."""
    name, _, revision = text.partition("@")
    with _explained(text, file):
        from huggingface_hub import hf_hub_download, try_to_load_from_cache
        from huggingface_hub.errors import (
            EntryNotFoundError,
            HfHubHTTPError,
            LocalEntryNotFoundError,
        )

        if _COMMIT.fullmatch(revision):
            cached = try_to_load_from_cache(name, file, revision=revision)
            if cached is not None:  # a path, or a mark for a file that the model lacks
                return Path(cached) if isinstance(cached, str) else None
        silence = _metadata_error(name, file, revision)
        if isinstance(silence, HfHubHTTPError):
            silence = None  # hf_hub_download gets the same refusal, and notes it in its cache
        only_cache = silence is not None  # without it, hf_hub_download would try for half a minute
        try:
            return Path(
                hf_hub_download(name, file, revision=revision or None, local_files_only=only_cache)
            )
        except LocalEntryNotFoundError as error:
            if silence is None:
                raise
            raise error from silence
        except EntryNotFoundError:
            return None


def _metadata_error(name: str, file: str, revision: str) -> Exception | None:
    """Returns the error of asking the hub for a file, or None if the model has it."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, file, revision=revision or None))
    except Exception as error:  # a refusal; or of httpx or requests by version, or offline mode
        return error
    return None


def _exists(text: str, file: str) -> bool:
    """Returns whether a model has a file, without downloading it."""
    name, _, revision = text.partition("@")
    with _explained(text, file):
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
        from huggingface_hub.errors import LocalEntryNotFoundError as Silent

        error = _metadata_error(name, file, revision)
        if error is not None and not isinstance(error, HfHubHTTPError):
            raise Silent(reason_of(error)) from error
        if error is not None and not isinstance(error, EntryNotFoundError):
            raise error
        return error is None


@contextmanager
def _explained(text: str, file: str) -> Iterator[None]:
    """Turns a failure of huggingface_hub into one message.

    A name on the hub may be a mistyped path, so the message speaks of both.
    """
    name, _, revision = text.partition("@")
    no_path = "" if revision else f"{text} is not a path here; "
    page = f"https://huggingface.co/{name}"
    with requiring("huggingface_hub", purpose=f"{no_path}reading {text} from the Hugging Face hub"):
        from huggingface_hub import errors
    _refuse_long_waits()
    try:
        yield
    except errors.GatedRepoError as error:
        raise UsageError(
            f"{name} is given only to users who have accepted its terms",
            remedy=f"accept them on {page}, then `hf auth login`",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise UsageError(
            f"{text} is neither a path here nor a model of the Hugging Face hub that you may read",
            remedy="the path of a folder, or the name of a model as on https://huggingface.co; for"
            " a private one, `hf auth login` first",
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UsageError(
            f"{name} on the Hugging Face hub has no revision {revision}",
            remedy=f"{name}, or a branch, tag or commit of {page}",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise UsageError(
            f"{no_path}{file} of {text} is not in the cache of the Hugging Face hub, and cannot be"
            f" downloaded: {_why_not(error)}",
            remedy="the path of a folder, or the same command once the hub can be reached",
        ) from error
    except RampcliError:
        raise
    except Exception as error:  # of httpx or requests by version, or OSError from a full disk
        raise RampcliError(
            f"cannot download {file} of {text} from the Hugging Face hub: {reason_of(error)}",
            remedy="the same command again",
        ) from error


def _refuse_long_waits() -> None:
    """Makes an answer that asks for a long wait an error.

    Versions of huggingface_hub whose session has no such hooks do not wait for as long as asked.
    """
    from huggingface_hub import get_session

    hooks = getattr(get_session(), "event_hooks", None)
    if hooks is not None and _check_wait not in hooks["response"]:
        hooks["response"].append(_check_wait)


def _check_wait(response: Any) -> None:
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return
    found = (pattern.fullmatch(response.headers.get(name, "")) for name, pattern in _WAITS.items())
    wait_s = max((int(one[1][:18]) for one in found if one is not None), default=0)
    if wait_s > LONGEST_WAIT_S:
        raise OSError(f"it answers {response.status_code} and asks to wait for {wait_s:,} s")


def _why_not(error: Exception) -> str:
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    cause = error.__cause__
    return reason_of(cause if isinstance(cause, Exception) else error)
