import math
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.drawn import draw_decoder
from models.families import FAMILIES
from rampcli.errors import DamagedFileError
from rampcli.files.guarded_folder import write_json
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface_config import read_config, to_huggingface
from rampcli.models.huggingface_tensors import StoredWeights, places
from rampcli.models.initialize import WeightFolder
from rampcli.settings.model import ModelConfig
from rampcli.train.build import fill_weights

SEQUENCE = 32
TOKENS = torch.randint(128, (3, SEQUENCE), generator=torch.Generator().manual_seed(0))


SHAPES = FAMILIES | {
    "width that is not a multiple of the heads": replace(
        FAMILIES["llama3"], hidden_size=50, num_query_groups=1, num_attention_heads=3, head_size=4
    ),
    "mistral without a window": replace(FAMILIES["llama3"], huggingface_type="mistral"),
}


@pytest.fixture(params=SHAPES)
def family(request):
    return SHAPES[request.param]


@pytest.fixture
def theirs(family, tmp_path):
    """Returns transformers' model of the family with random weights, saved in tmp_path/theirs."""
    from transformers import AutoConfig, AutoModelForCausalLM, set_seed  # imports take a second

    write_json(
        tmp_path / "config.json", to_huggingface(family, sequence_length=SEQUENCE, dtype="float32")
    )
    set_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).float()
    # Biases and norms too: zeros and ones would not show where they are applied.
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "theirs")
    return model.eval()


def ours_from(folder: Path, family) -> Decoder:
    model = Decoder(family, sequence_length=SEQUENCE)
    fill_weights(model, WeightFolder(folder, family, sequence_length=SEQUENCE).rows_of)
    return model


@torch.no_grad()
def test_the_logits_equal_those_of_the_transformers_class(family, theirs, tmp_path):
    expected = theirs(TOKENS).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(
        ours_from(tmp_path / "theirs", family)(TOKENS), expected, atol=1e-5, rtol=1e-5
    )


@pytest.mark.usefixtures("theirs")
def test_settings_are_read_from_a_config_of_transformers(family, tmp_path):
    read = read_config(tmp_path / "theirs")
    expected = to_huggingface(family, sequence_length=SEQUENCE, dtype="float32")
    assert to_huggingface(read, sequence_length=SEQUENCE, dtype="float32") == expected


@torch.no_grad()
def test_weights_in_several_files_and_in_bf16_are_read_exactly(family, theirs, tmp_path):
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "parts", max_shard_size="40KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    expected = type(theirs).from_pretrained(tmp_path / "parts", dtype=torch.float32)(TOKENS).logits
    torch.testing.assert_close(
        ours_from(tmp_path / "parts", family)(TOKENS), expected, atol=1e-5, rtol=1e-5
    )


def test_the_places_are_those_of_the_parameters_of_the_module(family):
    built = Decoder(family, sequence_length=SEQUENCE)
    assert [
        (name, place.shape) for name, place in places(family, sequence_length=SEQUENCE).items()
    ] == [(name, tuple(parameter.shape)) for name, parameter in built.named_parameters()]


LAYER_WEIGHT = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def saved(tmp_path):
    """Saves the tensors of a Llama, changed by a function; returns the folder and the shape."""

    def save(
        change: Callable[[dict[str, torch.Tensor]], object] = lambda _: None,
    ) -> tuple[Path, ModelConfig]:
        shape = FAMILIES["llama3"]
        parameters = Decoder(shape, sequence_length=SEQUENCE).state_dict()
        tensors = {
            place.tensor: parameters[name]
            for name, place in places(shape, sequence_length=SEQUENCE).items()
        }
        change(tensors)
        save_file(tensors, tmp_path / "model.safetensors")
        return tmp_path, shape

    return save


def replaced(weight: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.update({LAYER_WEIGHT: weight})


WRONG = {
    "missing": (lambda tensors: tensors.pop(LAYER_WEIGHT), "does not hold"),
    "one row less": (replaced(torch.zeros(95, 64)), "does not fit"),
    "one row more": (replaced(torch.zeros(97, 64)), "does not fit"),
    "one column less": (replaced(torch.zeros(96, 63)), "does not fit"),
    "a number": (replaced(torch.tensor(1.0)), "does not fit"),
    **{
        str(dtype): (replaced(torch.zeros(96, 64, dtype=dtype)), "has the unsupported type")
        for dtype in (torch.int64, torch.bool, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2)
    },
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_tensor_that_does_not_fit_the_model_is_refused_by_name_before_any_is_read(
    saved, change, message
):
    folder, shape = saved(change)
    with pytest.raises(DamagedFileError, match=message) as refused:
        WeightFolder(folder, shape, sequence_length=SEQUENCE)
    assert LAYER_WEIGHT in refused.value.message


def test_every_tensor_of_a_folder_is_used_derived_or_named(saved):
    inv_freq = "model.layers.0.self_attn.rotary_emb.inv_freq"
    others = ("base_model.model.lora_A.weight", "model.layers.0.self_attn.q_proj.bias")
    extra = {name: torch.zeros(4) for name in (inv_freq, *others)}
    folder, shape = saved(lambda tensors: tensors.update(extra))
    opened = WeightFolder(folder, shape, sequence_length=SEQUENCE)
    assert opened.unused == [*others]
    assert " and ".join(others) in opened.describe_unused()


def test_a_tied_model_with_another_output_projection_is_refused(saved):
    def tie(tensors, *, changed):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + changed

    shape = replace(FAMILIES["llama3"], tie_embeddings=True)
    folder, _ = saved(partial(tie, changed=0.0))
    stored = StoredWeights(folder, shape, sequence_length=SEQUENCE)
    assert stored.unused == []
    stored.check_tied()
    saved(partial(tie, changed=1.0))
    with pytest.raises(DamagedFileError, match="to which tie_word_embeddings=true in"):
        StoredWeights(folder, shape, sequence_length=SEQUENCE).check_tied()


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_nonfinite_weights_are_refused(saved, number):
    folder, shape = saved(lambda tensors: tensors[LAYER_WEIGHT][5, 7].fill_(number))
    with pytest.raises(
        DamagedFileError, match=rf"{LAYER_WEIGHT} in .* holds values that are not finite"
    ):
        ours_from(folder, shape)


def test_a_tensor_in_two_files_is_refused(saved):
    folder, shape = saved()
    shutil.copy(folder / "model.safetensors", folder / "model-00001-of-00002.safetensors")
    with pytest.raises(DamagedFileError, match="in several files"):
        WeightFolder(folder, shape, sequence_length=SEQUENCE)


@pytest.mark.parametrize("harm", ["cut", "fifo", "garbage", "link to itself"])
def test_a_damaged_file_is_refused_without_waiting(saved, harm):
    folder, shape = saved()
    file = folder / "model.safetensors"
    content = file.read_bytes()
    file.unlink()
    if harm == "fifo":
        os.mkfifo(file)
    elif harm == "link to itself":
        file.symlink_to(file.name)
    else:
        file.write_bytes(content[:-1] if harm == "cut" else os.urandom(1000))
    with pytest.raises(DamagedFileError):
        WeightFolder(folder, shape, sequence_length=SEQUENCE)


def test_a_file_that_is_truncated_while_it_is_read_is_refused(saved):
    opened = WeightFolder(*saved(), sequence_length=SEQUENCE)
    os.truncate(opened.path / "model.safetensors", 5000)
    with pytest.raises(DamagedFileError, match="ends too soon"):
        fill_weights(Decoder(FAMILIES["llama3"], sequence_length=SEQUENCE), opened.rows_of)


def test_links_as_in_the_cache_of_the_hub_are_read_and_subfolders_are_not(saved):
    folder, shape = saved()
    expected = ours_from(folder, shape)
    (folder / "blobs").mkdir()
    (folder / "model.safetensors").rename(folder / "blobs" / "0123abcd")
    (folder / "blobs" / "other.safetensors").write_bytes(b"garbage")
    (folder / "model.safetensors").symlink_to("blobs/0123abcd")
    assert all(map(torch.equal, ours_from(folder, shape).parameters(), expected.parameters()))


def test_position_embeddings_of_a_longer_gpt_2_are_read_up_to_the_sequence_length(tmp_path):
    shape, positions = FAMILIES["gpt3"], torch.randn(2 * SEQUENCE, 64)
    tensors = {}
    for name, parameter in Decoder(shape, sequence_length=2 * SEQUENCE).named_parameters():
        place = places(shape, sequence_length=2 * SEQUENCE)[name]
        values = (
            positions if name == "position_embedding.weight" else parameter.detach()
        ).contiguous()
        tensors.setdefault(place.tensor, []).append((values, place.transposed))
    theirs = {name: torch.cat([values for values, _ in parts]) for name, parts in tensors.items()}
    stored = {
        name: (whole.T if tensors[name][0][1] else whole).contiguous()
        for name, whole in theirs.items()
    }
    save_file(stored, tmp_path / "x.safetensors")
    assert torch.equal(
        ours_from(tmp_path, shape).get_parameter("position_embedding.weight"), positions[:SEQUENCE]
    )


def test_initial_weights_differ_from_imported_ones(family, tmp_path, theirs):  # noqa: ARG001
    model = draw_decoder(family, SEQUENCE)
    imported = ours_from(tmp_path / "theirs", family)
    assert not any(
        torch.equal(one, other)
        for one, other in zip(model.parameters(), imported.parameters(), strict=True)
    )
