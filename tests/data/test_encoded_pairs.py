import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rampcli.data.encoded_pairs import ENCODED_AT_ONCE, blocks_of, encode_pairs
from rampcli.errors import UsageError
from small_corpora import BYTES, PAIRS, ListedExamples

LENGTH = 13


def test_examples_are_encoded_in_blocks_as_they_are_alone():
    pairs = [(f"{number}=", "x" * (number % 7)) for number in range(ENCODED_AT_ONCE + 3)]
    encoded = encode_pairs(ListedExamples(tuple(pairs)), BYTES, range(len(pairs)), length=32)
    assert encoded.tokens.dtype == np.uint8
    text = "".join(f"{prompt}{response}\n" for prompt, response in pairs)
    assert encoded.tokens.tobytes().decode() == text


@given(pairs=PAIRS, most=st.integers(1, 20), count=st.integers(1, 4))
def test_blocks_hold_all_examples_in_order_and_few_characters_or_one_example(pairs, most, count):
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rampcli.data.encoded_pairs.CHARACTERS_AT_ONCE", most)
        patched.setattr("rampcli.data.encoded_pairs.ENCODED_AT_ONCE", count)
        blocks = list(blocks_of(ListedExamples(pairs), range(len(pairs)), length=LENGTH))
    assert [text for block in blocks for text in block] == [
        (index, *pair) for index, pair in enumerate(pairs)
    ]
    assert all(len(block) <= count for block in blocks)
    assert all(
        len(block) == 1 or sum(len(a) + len(b) for _, a, b in block) <= most for block in blocks
    )


def test_a_long_text_is_refused_before_it_is_encoded_and_before_later_ones_are_read():
    class Unread(ListedExamples):
        def __getitem__(self, index):
            assert index < 2
            return super().__getitem__(index)

    # Encoding the second pair would complain about the token that ends responses.
    examples = Unread((("a", "b"), ("a", 2**20 * "\n"), ("c", "d")))
    with pytest.raises(UsageError, match="listed 1: the pair has 1,048,577 characters"):
        encode_pairs(examples, BYTES, range(3), length=LENGTH)
