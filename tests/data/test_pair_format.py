import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models

from chat_folders import make_tokenizer
from rampcli.data.pair_format import PairFormat
from rampcli.data.tokenizer import byte_tokenizer, character_tokenizer
from rampcli.errors import UsageError

TEXT = st.text(st.characters(codec="utf-8"), max_size=30)
BYTES = PairFormat(byte_tokenizer().to_str(), end=None, template=None)
WORDS = PairFormat(make_tokenizer().to_str(), end=None, template=None)


def alone(encode, text):
    return encode([text])[0].tolist()


def refusal(function, *args, **options):
    with pytest.raises(UsageError) as refused:
        function(*args, **options)
    return refused.value


@settings(max_examples=50)
@given(text=TEXT.filter(lambda text: "\n" not in text), more=st.lists(st.integers(0, 255)))
def test_a_response_is_decoded_to_its_text_whatever_follows_the_end(text, more):
    for pair_format in (BYTES, WORDS):
        tokens = alone(pair_format.encode_responses, text)
        assert tokens[-1] == pair_format.end
        assert pair_format.end not in tokens[:-1]
        assert pair_format.decode_response(tokens[:-1]) == text
        assert pair_format.decode_response(tokens + more) == text


@settings(max_examples=50)
@given(texts=st.lists(TEXT, max_size=4))
def test_texts_have_the_same_tokens_together_and_alone(texts):
    for encode in (WORDS.encode_prompts, WORDS.encode_responses):
        assert [tokens.tolist() for tokens in encode(texts)] == [
            alone(encode, text) for text in texts
        ]


def test_tokens_that_are_not_text_are_decoded_nevertheless():
    assert BYTES.decode_response([0xFF, 65]) == "\N{REPLACEMENT CHARACTER}A"
    assert BYTES.decode_response([]) == ""


def test_the_usual_end_is_a_new_line_or_the_end_of_a_document():
    assert BYTES.end == ord("\n")
    letters = character_tokenizer("ab\n")
    assert PairFormat(letters.to_str(), end=None, template=None).end == letters.token_to_id("\n")
    assert WORDS.end == make_tokenizer().token_to_id("<|endoftext|>")


@pytest.mark.parametrize("end", ["<|im_end|>", "<|eot_id|>", "."])
def test_a_token_that_is_given_ends_responses(end):
    pair_format = PairFormat(make_tokenizer().to_str(), end=end, template=None)
    assert pair_format.end == make_tokenizer().token_to_id(end)


@pytest.mark.parametrize("end", ["", "..", "<|im_end|><|im_end|>"])
def test_an_end_that_is_not_one_token_is_refused(end):
    refused = refusal(PairFormat, make_tokenizer().to_str(), end=end, template=None)
    assert refused.keys == ("data.response_end",)
    [works] = refused.remedies[0].values["data.response_end"]
    PairFormat(make_tokenizer().to_str(), end=works, template=None)


def test_a_character_without_a_token_cannot_end_responses():
    letters = character_tokenizer("ab").to_str()
    for end in (None, "c"):
        assert refusal(PairFormat, letters, end=end, template=None).keys == ("data.response_end",)


def test_a_tokenizer_without_a_usual_end_needs_one():
    tokenizer = Tokenizer(models.WordLevel({"one": 0, "two": 1, "[UNK]": 2}, unk_token="[UNK]"))
    refused = refusal(PairFormat, tokenizer.to_str(), end=None, template=None)
    assert refused.keys == ("data.response_end",)
    assert "no usual end-of-document token" in refused.message


def test_a_response_that_holds_its_own_end_is_refused():
    refused = refusal(BYTES.encode_responses, ["fine", "two\nlines"])
    assert refused.keys == ("data.response_end",)
    with_end = PairFormat(make_tokenizer().to_str(), end=".", template=None)
    assert "'.'" in refusal(with_end.encode_responses, ["a.b"]).message


def test_the_names_of_special_tokens_stay_text_in_prompts_and_in_responses():
    special = {
        number
        for number, token in make_tokenizer().get_added_tokens_decoder().items()
        if token.special
    }
    text = "a<|endoftext|>b<|im_start|>"
    assert not special & set(alone(WORDS.encode_prompts, text))
    assert special & set(alone(WORDS.encode_responses, text)) == {WORDS.end}
    assert WORDS.decode_response(alone(WORDS.encode_responses, text)) == text


def test_a_name_that_a_tokenizer_reads_as_special_in_any_case_is_refused():
    words = models.WordLevel({"</s>": 0, "[UNK]": 1}, unk_token="[UNK]")
    tokenizer = Tokenizer(words)
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    pair_format = PairFormat(tokenizer.to_str(), end=None, template=None)
    assert "'</s>'" in refusal(pair_format.encode_prompts, ["</s>"]).message
