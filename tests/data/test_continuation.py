import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, normalizers
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip
from tokenizers.models import BPE

from chat_folders import make_tokenizer
from rampcli.data.continuation import continuation, pieces_of
from rampcli.data.tokenizer import byte_tokenizer


def llama_2():
    """Returns a tokenizer that writes bytes for unknown characters and drops the first space."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581a", "\u2581", "a", "bc"]
    tokenizer = Tokenizer(
        BPE({word: number for number, word in enumerate(words)}, [], byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = Sequence(
        [Replace("\u2581", " "), ByteFallback(), Fuse(), Strip(content=" ", left=1)]
    )
    return tokenizer


TOKENIZERS = {"Llama 2": llama_2(), "byte-level BPE": make_tokenizer(), "bytes": byte_tokenizer()}


@pytest.mark.parametrize("name", TOKENIZERS)
@given(texts=st.tuples(*2 * [st.text("abc \u00e9\u20ac\U0001f600", max_size=9)]))
def test_the_pieces_of_a_text_are_the_text(name, texts):
    tokenizer = TOKENIZERS[name]
    before, tokens = (tokenizer.encode(text, add_special_tokens=False).ids for text in texts)
    for after in ([], before):
        whole = tokenizer.decode([*after, *tokens])
        assert continuation(tokens, tokenizer, after=after) == whole[len(tokenizer.decode(after)) :]
        pieces = "".join(pieces_of(tokens, tokenizer, after=after))
        assert pieces == continuation(tokens, tokenizer, after=after)


def test_a_character_is_shown_once_all_of_its_bytes_are_known():
    tokenizer = TOKENIZERS["Llama 2"]
    euro = [1 + byte for byte in "\u20ac".encode()]
    assert [*pieces_of([*euro, 257], tokenizer, after=[])] == ["\u20ac", " a"]
    assert continuation([257], tokenizer, after=[257]) == " a"
    assert continuation([257], tokenizer, after=[]) == "a"
