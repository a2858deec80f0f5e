import pytest

from rampcli.checkpoint.manifest import Checkpoint
from rampcli.checkpoint.state import TOKENIZER
from rampcli.config.schema import Config, ModelConfig
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import DamagedFileError
from rampcli.weights.tokenizer import read_tokenizer

HOSTILE_TOKENIZERS = {
    "not JSON": b"{",
    "endless nesting": b"[" * 100_000,
    "no tokens": b'{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}',
    "merges of missing tokens": b'{"version": "1.0", "model": {"type": "BPE", '
    b'"vocab": {"a": 0}, "merges": ["x y"]}}',
    "escape sequences": b'{"version": "\\u001b[31m"}',
}


@pytest.mark.parametrize("content", HOSTILE_TOKENIZERS.values(), ids=HOSTILE_TOKENIZERS)
def test_a_hostile_tokenizer_gives_one_error(tmp_path, content):
    (tmp_path / TOKENIZER).write_bytes(content)
    with pytest.raises(DamagedFileError) as refused:
        read_tokenizer(Config(), Checkpoint(tmp_path, {"files": {TOKENIZER: {}}}))
    assert str(refused.value).isascii()
    assert "\x1b" not in str(refused.value)


def test_a_tokenizer_is_read_if_the_manifest_lists_it_and_the_model_has_its_tokens(tmp_path):
    (tmp_path / TOKENIZER).write_text(byte_tokenizer().to_str())
    listed = Checkpoint(tmp_path, {"files": {TOKENIZER: {}}})
    found = read_tokenizer(Config(), listed)
    assert found is not None
    assert found.to_str() == byte_tokenizer().to_str()
    assert read_tokenizer(Config(), Checkpoint(tmp_path, {"files": {}})) is None
    with pytest.raises(DamagedFileError, match="has tokens that the model does not have"):
        read_tokenizer(Config(model=ModelConfig(vocab_size=255)), listed)
