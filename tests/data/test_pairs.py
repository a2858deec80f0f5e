import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tokenizers import normalizers

from chat_folders import CHATML, make_tokenizer, write_folder
from rampcli.data.corpus import IGNORED
from rampcli.data.examples import Split
from rampcli.data.pairs import PackedPairs
from rampcli.data.prompts import open_prompts
from rampcli.data.sources import open_corpora, read_file_facts
from rampcli.data.tokenizer import byte_tokenizer
from rampcli.errors import UsageError
from rampcli.models.decoder import Decoder
from rampcli.settings.config import Config
from rampcli.settings.model import ModelConfig
from small_corpora import BYTES, PAIRS, ListedExamples, data_config, refusal

LENGTH = 13


def packed(pairs, length=LENGTH):
    return PackedPairs(ListedExamples(tuple(pairs)), BYTES, length=length)


def read_all(corpus):
    return corpus.read(np.arange(corpus.windows))


def segments(samples):
    """Returns the tokens, labels and positions of each run of positions, in order."""
    found = []
    for planes in zip(samples.tokens, samples.labels, samples.positions, strict=True):
        starts = [*np.flatnonzero(planes[2] == 0), len(planes[2])]
        found += [
            tuple(plane[first:end].tolist() for plane in planes) for first, end in pairwise(starts)
        ]
    return found


def config(path=None, **data):
    usual = {"sequence_length": 32, "document_mask": True, "split": [1, 0, 0]}
    return data_config("pairs", path=path and str(path), **usual | data)


def write(path, pairs):
    lines = (json.dumps({"prompt": prompt, "response": response}) for prompt, response in pairs)
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@settings(max_examples=60)
@given(pairs=PAIRS)
def test_every_response_token_is_a_label_once_and_nothing_else_is(pairs):
    found = segments(read_all(packed(pairs)))
    wanted = []
    for prompt, response in pairs:
        tokens = [*prompt.encode(), *response.encode(), BYTES.end]
        labels = [IGNORED] * (len(prompt) - 1) + tokens[len(prompt) :] + [IGNORED]
        wanted.append((tokens, labels, list(range(len(tokens)))))
    paddings = [one for one in found if one not in wanted]
    assert [one for one in found if one in wanted] == wanted
    assert all(set(tokens) == {0} and set(labels) == {IGNORED} for tokens, labels, _ in paddings)


@settings(max_examples=60)
@given(pairs=PAIRS)
def test_a_window_has_as_many_whole_pairs_in_order_as_fit(pairs):
    corpus = packed(pairs)
    lengths = [len(prompt) + len(response) + 1 for prompt, response in pairs]
    for first, end in pairwise(corpus.firsts):
        assert 0 < sum(lengths[first:end]) <= LENGTH
        assert end == len(pairs) or sum(lengths[first : end + 1]) > LENGTH
    assert (corpus.firsts[0], corpus.firsts[-1]) == (0, len(pairs))
    samples = read_all(corpus)
    assert samples.valid_tokens == sum(len(response) + 1 for _, response in pairs)


def test_the_loss_of_packed_windows_is_the_sum_of_the_losses_of_the_pairs_alone():
    pairs = [("ab", "cdef"), ("g", "h"), ("abcdef", "a"), ("cab", ""), ("h", "abcdefg")]
    model = Decoder(
        ModelConfig(num_layers=2, hidden_size=32, ffn_hidden_size=48), sequence_length=40
    )
    model.fill_buffers()
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)

    def loss(corpus):
        read = read_all(corpus)
        planes = (torch.from_numpy(one) for one in (read.tokens, read.positions, read.labels))
        tokens, positions, labels = planes
        return model(tokens, positions, labels=labels).item()

    together = loss(packed(pairs, length=20))
    assert packed(pairs, length=20).windows == 2
    assert together == pytest.approx(sum(loss(packed([pair])) for pair in pairs), rel=1e-5)
    assert loss(packed(pairs, length=40)) == pytest.approx(together, rel=1e-5)


def test_the_fingerprint_changes_with_the_pairs_their_borders_and_the_length():
    same = packed([("ab", "c"), ("d", "e")])
    others = [
        packed([("a", "bc"), ("d", "e")]),
        packed([("d", "e"), ("ab", "c")]),
        packed([("ab", "c"), ("d", "f")]),
        packed([("ab", "c"), ("d", "e")], length=14),
    ]
    assert same.fingerprint == packed([("ab", "c"), ("d", "e")]).fingerprint
    assert len({same.fingerprint, *(one.fingerprint for one in others)}) == 5


def test_a_file_is_read_with_the_tokenizer_and_the_chat_template_beside_it(tmp_path):
    tokenizer = write_folder(tmp_path, CHATML)
    path = write(tmp_path / "a.jsonl", [("sort <|im_end|>", "the numbers")])
    made = config(path, tokenizer=str(tokenizer), response_end="<|im_end|>", sequence_length=64)
    made.model.vocab_size = 400
    names = make_tokenizer()
    [tokens] = open_corpora(made).training.read(np.arange(1)).tokens
    ends = np.count_nonzero(tokens == names.token_to_id("<|im_end|>"))
    assert ends == 2  # of the user's message, and of the response
    assert names.decode(tokens.tolist(), skip_special_tokens=False).startswith(
        "<|im_start|>user\nsort <|im_end|><|im_end|>\n<|im_start|>assistant\nthe numbers<|im_end|>"
    )
    made.data.chat_template = "none"
    [plain] = open_corpora(made).training.read(np.arange(1)).tokens
    assert np.count_nonzero(plain == names.token_to_id("<|im_end|>")) == 1


def test_characters_are_those_of_prompts_responses_and_the_end(tmp_path):
    path = write(tmp_path / "a.jsonl", [("ba", "dc"), ("a", "e")])
    corpora = open_corpora(config(path, tokenizer="chars"))
    assert corpora.training.read(np.arange(1)).tokens[0, :9].tolist() == [2, 1, 4, 3, 0, 1, 5, 0, 0]
    task = open_corpora(config(task="add", tokenizer="chars", response_end="."))
    assert task.training.read(np.arange(1)).tokens.max() < 13


def test_sides_of_a_file_are_separate_corpora_and_prompts_are_the_same_ones(tmp_path):
    pairs = [(f"{number}", "x") for number in range(200)]
    made = config(write(tmp_path / "a.jsonl", pairs), split=[60, 20, 20], sequence_length=6)
    made.trainer.val_samples = 20
    read_file_facts(made)
    corpora, split = open_corpora(made), Split.of([60, 20, 20])
    prompts = open_prompts(made)
    for number, (blend, examples) in enumerate(
        [(corpora.training, prompts.training), (corpora.validation[None], prompts.validation)]
    ):
        wanted = [prompt for prompt, _ in pairs if split.side_of(prompt) == number]
        assert [examples[index].prompt for index in range(len(examples))] == wanted
        tokens = [segment[0] for segment in segments(read_all(blend.corpora[0]))]
        read = [bytes(one).decode() for one in tokens if any(one)]
        assert read == [f"{prompt}x\n" for prompt in wanted]
    assert prompts.format.tokenizer == corpora.tokenizer == byte_tokenizer().to_str()


@pytest.mark.parametrize(("length", "each"), [(18, 1), (35, 1), (36, 2), (100, 5)])
def test_windows_of_a_task_have_the_same_number_of_pairs_of_consecutive_examples(length, each):
    made = config(task="sort", sequence_length=length, split=[9, 1, 0])
    corpora, prompts = open_corpora(made), open_prompts(made)
    windows = np.array([0, 5, 2**30])
    for blend, examples in (
        (corpora.training, prompts.training),
        (corpora.validation[None], prompts.validation),
    ):
        [corpus] = blend.corpora
        read = [bytes(one[0]).decode() for one in segments(corpus.read(windows)) if any(one[0])]
        shown = [examples[window * each + k] for window in windows.tolist() for k in range(each)]
        assert read == [f"{example.prompt}{example.response}\n" for example in shown]
    assert corpora.training.fingerprints != corpora.validation[None].fingerprints


def test_a_task_without_a_share_for_validation_has_no_windows_for_it():
    made = config(task="sort")
    assert open_corpora(made).validation[None].corpora[0].windows == 0
    made.trainer.val_samples = 1
    assert refusal(made).keys == ("trainer.val_samples", "data.sequence_length")


@pytest.mark.parametrize(
    ("line", "wrong", "key"),
    [
        ('{"prompt": "12345678", "response": "12345678"}', "has 17 tokens", "data.sequence_length"),
        ('{"prompt": "", "response": "1"}', "the prompt has no tokens", "data.path"),
        ('{"prompt": "1", "response": "1\\n2"}', "which ends responses", "data.response_end"),
    ],
)
def test_a_pair_that_cannot_be_packed_is_refused_with_its_line(tmp_path, line, wrong, key):
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "1", "response": "1"}\n' * 3 + line)
    refused = refusal(config(path, sequence_length=16))
    assert refused.message.startswith(f"{path}, line 4: ")
    assert wrong in refused.message
    assert refused.keys == (key,)
    assert refused.remedy


def test_the_remedy_for_a_long_pair_works():
    refused = refusal(config(task="add", sequence_length=10))
    assert refused.keys == ("data.sequence_length",)
    length = int(refused.remedy.partition("=")[2])
    assert open_corpora(config(task="add", sequence_length=length)).training.corpora[0].windows


def test_a_file_without_pairs_for_training_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text("\n")
    assert refusal(config(tmp_path / "a.jsonl")).keys == ("data.path", "data.split")


def test_a_vocabulary_smaller_than_the_tokenizers_is_refused():
    made = config(task="sort")
    made.model.vocab_size = 255
    assert refusal(made).remedy == "model.vocab_size=256 or null"


def test_a_tokenizer_that_makes_more_tokens_than_characters_is_refused_when_it_is_read(tmp_path):
    tokenizer = byte_tokenizer()
    tokenizer.normalizer = normalizers.Replace("1", "1" * 9)
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_str())
    made = config(task="sort", tokenizer=str(tmp_path / "tokenizer.json"))
    assert "tokens, and there is room for" in refusal_of_reading(made)


def refusal_of_reading(made):
    with pytest.raises(UsageError) as refused:
        open_corpora(made).training.read(np.arange(50))
    return refused.value.message


def test_named_files_for_validation_leave_the_training_share_as_it_is(tmp_path):
    for name, prompts in {"a": "pqrstuvw", "b": "x", "c": "yz"}.items():
        lines = [json.dumps({"prompt": prompt, "response": "."}) for prompt in prompts]
        (tmp_path / name).write_text("\n".join(lines))
    made = Config()
    made.data.source, made.data.document_mask, made.data.split = "pairs", True, [1, 1, 0]
    made.data.path, made.data.sequence_length = str(tmp_path / "a"), 8
    split = open_corpora(made)
    made.data.validation = {name: str(tmp_path / name) for name in "bc"}
    named = open_corpora(made)
    assert named.training.fingerprints == split.training.fingerprints
    assert [blend.corpora[0].windows for blend in named.validation.values()] == [1, 1]
    assert list(named.validation) == ["b", "c"]
