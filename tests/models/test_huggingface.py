import sys
from pathlib import Path

import pytest
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parent))

from families import FAMILIES

from rampcli.config.huggingface import read_config, to_huggingface
from rampcli.engine.build import fill_weights, initial_weights
from rampcli.errors import RampcliError
from rampcli.models.decoder import Decoder
from rampcli.models.huggingface import Folder
from rampcli.own_folder import write_json

SEQUENCE = 32
TOKENS = torch.randint(128, (3, SEQUENCE), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.fixture
def theirs(family, tmp_path):
    """The same family by transformers' own class, with weights that transformers has drawn, in a folder that it has written."""
    write_json(tmp_path / "config.json", to_huggingface(family, sequence_length=SEQUENCE, dtype="float32"))
    transformers.set_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path)).float()
    for parameter in model.parameters():  # biases and norms too: zeros and ones would hide where they are added
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(tmp_path / "theirs")
    return model.eval()


def ours_from(folder: Path, family) -> Decoder:
    model = Decoder(family, sequence_length=SEQUENCE)
    fill_weights(model, Folder(folder, family, sequence_length=SEQUENCE).rows_of)
    return model


@torch.no_grad()
def test_the_logits_are_those_of_transformers_own_class(family, theirs, tmp_path):
    expected = theirs(TOKENS).logits
    assert expected.std() > 0.1
    torch.testing.assert_close(ours_from(tmp_path / "theirs", family)(TOKENS), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.usefixtures("theirs")
def test_the_settings_are_read_from_what_transformers_writes(family, tmp_path):
    read = read_config(tmp_path / "theirs")
    expected = to_huggingface(family, sequence_length=SEQUENCE, dtype="float32")
    assert to_huggingface(read, sequence_length=SEQUENCE, dtype="float32") == expected


@torch.no_grad()
def test_several_files_and_bf16_are_read_as_they_are(family, theirs, tmp_path):
    theirs.to(torch.bfloat16).save_pretrained(tmp_path / "parts", max_shard_size="40KB")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    expected = AutoModelForCausalLM.from_pretrained(tmp_path / "parts", dtype=torch.float32)(TOKENS).logits
    torch.testing.assert_close(ours_from(tmp_path / "parts", family)(TOKENS), expected, atol=1e-5, rtol=1e-5)


def test_a_folder_of_another_shape_is_refused_by_the_name_of_the_tensor(theirs, family, tmp_path):
    theirs.save_pretrained(tmp_path / "theirs")
    larger = Decoder(family, sequence_length=SEQUENCE)
    larger.norm.weight = torch.nn.Parameter(torch.zeros(65))
    with pytest.raises(RampcliError, match=r"which is not that of norm\.weight"):
        fill_weights(larger, Folder(tmp_path / "theirs", family, sequence_length=SEQUENCE).rows_of)


def test_initial_weights_are_not_what_a_folder_holds(family, tmp_path, theirs):  # noqa: ARG001
    model = Decoder(family, sequence_length=SEQUENCE)
    fill_weights(model, initial_weights(1))
    imported = ours_from(tmp_path / "theirs", family)
    assert not any(torch.equal(one, other) for one, other in zip(model.parameters(), imported.parameters(), strict=True))
