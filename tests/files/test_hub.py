import socket

import huggingface_hub.constants as constants
import pytest

from hub_files import FIRST, SECOND, as_json, fill_cache, serve_hub
from rampcli.errors import DamagedFileError, RampcliError, UsageError
from rampcli.files.hub import (
    Snapshot,
    download_weights,
    find_weights,
    is_hub_name,
    is_pinned,
    open_pinned,
    open_snapshot,
)

MODEL = "org/tiny"
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "pytorch_model.bin": b"pickle"}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache. Returns HF_HOME."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "home" / "hub"))
    return tmp_path / "home"


@pytest.fixture
def hub(cache, monkeypatch):  # noqa: ARG001
    with serve_hub() as served:
        template = f"{served.endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", served.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        served.models[MODEL] = {FIRST: FILES}
        yield served


def opened(text=MODEL, file="config.json"):
    return open_snapshot(text, file, remedy="another model")


def refusal(*words):
    with pytest.raises(UsageError) as refused:
        opened(*words)
    return str(refused.value)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("name", ["gpt2", "org/name", "org/name@main", f"gpt2@{FIRST}", "a/b@v1.0"])
def test_a_word_that_is_no_path_may_be_a_name_on_the_hub(name):
    assert is_hub_name(name)
    assert is_pinned(name) == name.endswith(FIRST)


PATHS = (
    "./gpt2",
    "/gpt2",
    "../gpt2",
    "~/gpt2",
    "a/b/c",
    "tokenizer.json",
    "a/config.json",
    "",
    ".",
)
NEITHER = ("a..b", "a--b", "é", "a b", "gpt2@", "gpt2@a b", "gpt2@../x", "https://hf.co/x", "a\0b")


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("path", [*PATHS, *NEITHER])
def test_a_path_is_no_name_on_the_hub(path):
    assert not is_hub_name(path)


@pytest.mark.usefixtures("cache")
def test_a_path_goes_before_a_name_on_the_hub(tmp_path):
    (tmp_path / "org" / "name").mkdir(parents=True)
    for path in ("org", "org/name", "org/other"):
        assert not is_hub_name(path)
    assert is_hub_name("org/other@main")
    assert is_hub_name("orgs/other")


def test_a_cached_model_is_read_offline_and_known_by_its_commit(cache):
    fill_cache(cache, MODEL, FIRST, FILES)
    fill_cache(cache, MODEL, SECOND, {"config.json": b"[]"})
    assert opened().name == f"{MODEL}@{SECOND}"
    snapshot = opened(f"{MODEL}@{FIRST}")
    assert snapshot.name == f"{MODEL}@{FIRST}"
    assert (snapshot.folder / "config.json").read_bytes() == b"{}"
    assert open_pinned(snapshot.name, "config.json", key="key", remedy="") == snapshot


def test_a_setting_must_name_a_commit_and_is_told_the_present_one(cache):
    fill_cache(cache, MODEL, FIRST, FILES)
    for text in (MODEL, f"{MODEL}@main"):
        with pytest.raises(UsageError) as refused:
            open_pinned(text, "config.json", key="data.tokenizer", remedy="")
        assert refused.value.remedy == f"data.tokenizer={MODEL}@{FIRST}"


@pytest.mark.usefixtures("cache")
def test_a_model_that_is_not_cached_is_refused_offline_as_a_path_and_as_a_name():
    said = refusal()
    assert f"{MODEL} is not a path here" in said
    assert "HF_HUB_OFFLINE is set" in said
    assert "the path of a folder" in said
    assert "is not a path" not in refusal(f"{MODEL}@{FIRST}")


def test_a_file_that_a_model_does_not_have_is_told_from_one_that_is_not_cached(cache):
    fill_cache(cache, MODEL, FIRST, FILES, missing=("chat_template.jinja",))
    assert opened().find("chat_template.jinja") is None
    with pytest.raises(UsageError, match="not in the cache"):
        opened().find("tokenizer.json")


def test_only_files_that_are_asked_for_are_downloaded_and_once(hub, cache):
    snapshot = opened()
    assert snapshot.find("chat_template.jinja") is None
    assert [path.name for path in snapshot.folder.iterdir()] == ["config.json"]
    assert find_weights(snapshot) == "model.safetensors"
    assert [path for method, path in hub.asked if method == "GET"] == [
        f"/{MODEL}/resolve/main/config.json"
    ]
    download_weights(snapshot, remedy="")
    assert sorted(path.name for path in snapshot.folder.iterdir()) == [
        "config.json",
        "model.safetensors",
    ]
    hub.asked.clear()
    download_weights(opened(snapshot.name), remedy="")
    assert snapshot.find("chat_template.jinja") is None
    assert hub.asked == []
    assert cache.is_dir()


def test_a_commit_stays_the_same_when_the_hub_moves_on(hub):
    first = opened()
    hub.models[MODEL][SECOND] = FILES | {"config.json": b"[]"}
    assert opened().name == f"{MODEL}@{SECOND}"
    assert opened(first.name) == first
    assert (opened(first.name).folder / "config.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["org/tny"], "org/tny is neither a path here nor a model of the Hugging Face hub"),
        ([MODEL, "tokenizer.json"], f"{MODEL} on the Hugging Face hub has no tokenizer.json"),
        ([f"{MODEL}@v9"], f"{MODEL} on the Hugging Face hub has no revision v9"),
        (["gated/llama"], "accept them on https://huggingface.co/gated/llama"),
    ],
)
def test_what_the_hub_refuses_is_one_message(hub, words, said):
    assert said in refusal(*words)
    assert hub.asked


def test_a_hub_that_cannot_be_reached_is_one_message_at_once(hub, cache, monkeypatch, capfd):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{closed.getsockname()[1]}"
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    assert "cannot be downloaded" in refusal()
    fill_cache(cache, MODEL, FIRST, {"config.json": b"{}"})
    with pytest.raises(UsageError, match="cannot be downloaded"):
        find_weights(opened())
    assert capfd.readouterr().err == ""
    assert hub.asked == []


def test_a_download_that_fails_is_an_error_and_no_bug(hub, cache):
    (cache / "hub").parent.mkdir()
    (cache / "hub").write_text("a file in place of the cache")
    with pytest.raises(RampcliError, match="cannot download config") as failed:
        opened()
    assert failed.value.exit_code == 1
    assert hub.asked


def index(*files):
    return as_json({"weight_map": {str(number): file for number, file in enumerate(files)}})


def test_weights_in_several_files_are_those_that_their_index_names(hub):
    shards = {"model-1.safetensors": b"1", "model-2.safetensors": b"2"}
    files = {"config.json": b"{}", "consolidated.safetensors": b"the same again", **shards}
    hub.models[MODEL][SECOND] = files | {
        "model.safetensors.index.json": index(*shards, "model-1.safetensors")
    }
    download_weights(opened(), remedy="")
    assert sorted(path.name for path in opened().folder.glob("*.safetensors")) == [*shards]


@pytest.mark.parametrize(
    "file", ["../x.safetensors", "/x.safetensors", "x.bin", "", "a/b.safetensors"]
)
def test_an_index_that_names_anything_else_than_weights_is_refused(hub, file):
    hub.models[MODEL][SECOND] = {
        "config.json": b"{}",
        "model.safetensors.index.json": index(file),
        "x.bin": b"pickle",
    }
    with pytest.raises(DamagedFileError, match="which is not a file of weights"):
        download_weights(opened(), remedy="")
    assert not any("x.bin" in path for _, path in hub.asked)


def test_a_model_without_safetensors_is_refused(hub):
    hub.models[MODEL][SECOND] = {"config.json": b"{}", "pytorch_model.bin": b"pickle"}
    snapshot = opened()
    assert isinstance(snapshot, Snapshot)
    assert find_weights(snapshot) is None
    with pytest.raises(UsageError, match="has no weights in safetensors"):
        download_weights(snapshot, remedy="")


@pytest.mark.parametrize(
    "headers",
    [{"Retry-After": "31536000"}, {"ratelimit": '"api";r=0;t=31536000'}, {"Retry-After": "9" * 99}],
)
@pytest.mark.parametrize("status", [429, 503])
def test_a_hub_that_asks_to_wait_for_long_ends_the_command_at_once(
    hub, monkeypatch, status, headers
):
    monkeypatch.setattr(hub, "find", lambda _: (status, headers, b""))
    assert f"it answers {status} and asks to wait for " in refusal(MODEL)


def test_a_download_that_the_hub_delays_for_long_ends_at_once(hub, monkeypatch):
    find = hub.find

    def delayed(path):
        is_download = hub.asked[-1][0] == "GET"
        return (429, {"Retry-After": "31536000"}, b"") if is_download else find(path)

    monkeypatch.setattr(hub, "find", delayed)
    with pytest.raises(RampcliError, match="it answers 429 and asks to wait for 31,536,000 s"):
        opened(MODEL)
