from dataclasses import replace

import numpy as np
import pytest
import torch

from models.drawn import draw_decoder
from models.families import FAMILIES
from rampcli.batch.scrambling import hash_of
from rampcli.errors import DamagedFileError
from rampcli.models import sampler
from rampcli.models.decoder import Decoder
from rampcli.models.sampler import (
    Responses,
    Sampling,
    draw,
    sample_responses,
    sample_tokens,
)
from rampcli.train.build import compile_layers

PROMPTS = [[5, 17, 99, 3], [1], [64, 2, 2, 8, 40, 127, 9, 11, 30], [7, 8]]
GENERATIONS = 3
STOP = 2
SAMPLING = Sampling(temperature=1.3, max_tokens=14, stops=(STOP,), vocab_size=20)
GREEDY = replace(SAMPLING, temperature=0)


def build(family: str) -> Decoder:
    return draw_decoder(FAMILIES[family], 24).requires_grad_(requires_grad=False)


@pytest.fixture(params=FAMILIES, scope="module")
def model(request):
    return build(request.param)


@pytest.fixture(scope="module")
def llama():
    return build("llama3")


def streams_of(prompts: int = len(PROMPTS), generations: int = GENERATIONS) -> np.ndarray:
    return hash_of(7, 0, np.arange(prompts)[:, None], np.arange(generations)).ravel()


def respond(model, prompts=PROMPTS, *, generations=GENERATIONS, streams=None, **options):
    streams = streams_of(len(prompts), generations) if streams is None else streams
    options = {"sampling": SAMPLING, **options}
    return sample_responses(model, prompts, generations=generations, streams=streams, **options)


def draw_tokens(model, *, generations=1, sampling=SAMPLING):
    streams = streams_of(generations=generations)
    return sample_tokens(
        model, PROMPTS, generations=generations, sampling=sampling, streams=streams
    )


def listed(responses: Responses) -> list[list[int]]:
    """Responses without the padding behind their ends."""
    return [
        row[:length].tolist()
        for row, length in zip(responses.tokens, responses.lengths, strict=True)
    ]


def logits_of(model, prompt, response, vocab_size=SAMPLING.vocab_size):
    """Logits of a response's tokens by a full forward pass, [tokens, vocab_size]."""
    return model(torch.tensor([prompt + response]))[0, len(prompt) - 1 : -1, :vocab_size]


@pytest.mark.parametrize("sampling", [SAMPLING, GREEDY, replace(SAMPLING, top_k=4, top_p=0.8)])
def test_log_probabilities_equal_those_of_the_full_forward_pass(model, sampling):
    responses = respond(model, sampling=sampling)
    for pair, response in enumerate(listed(responses)):
        logits = logits_of(model, PROMPTS[pair // GENERATIONS], response, vocab_size=None)
        expected = (logits / (sampling.temperature or 1)).log_softmax(dim=-1)
        torch.testing.assert_close(
            responses.log_probs[pair, : len(response)],
            expected.gather(1, torch.tensor(response)[:, None])[:, 0],
            atol=1e-5,
            rtol=0,
        )


def test_a_response_is_the_same_alone_and_with_others(model):
    together = respond(model)
    assert len(set(together.lengths.tolist())) > 2
    for pair, (response, stream) in enumerate(zip(listed(together), streams_of(), strict=True)):
        prompt = PROMPTS[pair // GENERATIONS]
        alone = respond(model, [prompt], generations=1, streams=np.array([stream]))
        assert listed(alone) == [response]
        torch.testing.assert_close(
            alone.log_probs[0], together.log_probs[pair, : len(response)], atol=1e-5, rtol=0
        )


def test_a_response_is_the_same_in_any_order_and_group(llama):
    together = listed(respond(llama))
    # Each prompt once for each of its generations, in another order, without some of the pairs.
    order = np.random.default_rng(1).permutation(len(together))[:-3]
    prompts = [PROMPTS[pair // GENERATIONS] for pair in order]
    apart = respond(llama, prompts, generations=1, streams=streams_of()[order])
    assert listed(apart) == [together[pair] for pair in order]


def test_a_response_is_the_same_however_often_ended_ones_are_dropped(llama, monkeypatch):
    expected = respond(llama)
    monkeypatch.setitem(sampler.CHECK_EVERY, "cpu", 5)
    assert listed(respond(llama)) == listed(expected)
    for share in (0, 1):
        monkeypatch.setattr(sampler, "WORTH_DROPPING", share)
        assert listed(respond(llama)) == listed(expected)


@pytest.mark.parametrize("rows", [1, 3])
def test_a_response_is_the_same_however_many_prompts_are_read_at_once(model, monkeypatch, rows):
    expected = respond(model)
    monkeypatch.setattr(sampler, "PROMPT_TOKENS_AT_ONCE", rows * max(map(len, PROMPTS)))
    drawn = respond(model)
    assert listed(drawn) == listed(expected)
    torch.testing.assert_close(drawn.log_probs, expected.log_probs, atol=1e-5, rtol=0)


def test_the_same_call_gives_the_same_bits(model):
    first, second = respond(model), respond(model)
    assert torch.equal(first.tokens, second.tokens)
    assert torch.equal(first.log_probs, second.log_probs)


def test_draws_compile_nothing(llama):
    # Imported here, so that other tests do not wait for it.
    from torch._dynamo.utils import counters

    expected, compiled = respond(llama), build("llama3")
    compile_layers(compiled.layers.values())
    frames = counters["frames"]["total"]
    assert torch.equal(respond(compiled).log_probs, expected.log_probs)
    assert counters["frames"]["total"] == frames


def test_greedy_tokens_equal_those_of_the_full_forward_pass(model):
    responses = listed(respond(model, sampling=GREEDY))
    for pair, response in enumerate(responses):
        logits = logits_of(model, PROMPTS[pair // GENERATIONS], response)
        assert logits.argmax(dim=-1).tolist() == response
    assert responses[::GENERATIONS] == responses[1::GENERATIONS]


def test_a_response_ends_with_its_first_stop_token_or_at_the_maximum(llama):
    responses = respond(llama)
    ends = []
    for response in listed(responses):
        ends.append(response[-1])
        assert STOP not in response[:-1]
        assert response[-1] == STOP or len(response) == SAMPLING.max_tokens
    assert len(set(ends)) > 1
    behind = torch.arange(responses.tokens.shape[1]) >= responses.lengths[:, None]
    assert behind.any()
    assert not responses.tokens[behind].any()
    assert not responses.log_probs[behind].any()
    assert (responses.log_probs[~behind] < 0).all()


def test_without_a_stop_token_all_responses_have_the_maximal_length(llama):
    responses = respond(llama, sampling=replace(SAMPLING, stops=()))
    assert responses.lengths.tolist() == [SAMPLING.max_tokens] * 12
    assert STOP in responses.tokens


def test_the_longest_response_gives_the_width(llama):
    alone = respond(llama, PROMPTS[:1], generations=1, sampling=replace(SAMPLING, vocab_size=4))
    assert alone.tokens.shape == alone.log_probs.shape == (1, alone.lengths.item())
    assert alone.lengths.item() < SAMPLING.max_tokens


def test_tokens_come_from_the_nucleus_only(llama):
    for top_k, top_p in ((5, None), (None, 0.6), (5, 0.7)):
        sampling = replace(SAMPLING, top_k=top_k, top_p=top_p)
        sizes = set()
        for pair, response in enumerate(listed(respond(llama, sampling=sampling))):
            logits = logits_of(llama, PROMPTS[pair // GENERATIONS], response)
            for token, row in zip(response, logits / SAMPLING.temperature, strict=True):
                likeliest = row.argsort(descending=True)[:top_k]
                shares = row[likeliest].softmax(dim=-1).cumsum(dim=-1)
                size = 1 + int((shares < (top_p or 1) - 1e-6).sum())
                sizes.add(size)
                assert token in likeliest[:size]
        assert sizes == {5} if top_p is None else len(sizes) > 2


@pytest.mark.parametrize(("top_k", "top_p"), [(None, None), (6, None), (None, 0.8), (9, 0.9)])
def test_tokens_are_drawn_as_often_as_their_probabilities_say(llama, top_k, top_p):
    draws = 20_000
    sampling = replace(SAMPLING, max_tokens=1, top_k=top_k, top_p=top_p)
    drawn = respond(llama, PROMPTS[:1], generations=draws, sampling=sampling)
    counts = drawn.tokens.ravel().bincount(minlength=20).double()
    logits = logits_of(llama, PROMPTS[0], [0])[0] / sampling.temperature
    likely, tokens = logits.double().softmax(dim=-1).sort(descending=True)
    likely[top_k or 20 :] = 0
    likely /= likely.sum()
    likely[likely.cumsum(dim=0) - likely >= (top_p or 1)] = 0
    expected = draws * likely / likely.sum()
    counts = counts[tokens]
    assert not counts[expected == 0].any()
    counts, expected = counts[expected > 5], expected[expected > 5]
    freedom = len(expected) - 1
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_each_prompt_is_read_once_and_ended_responses_are_dropped(llama):
    shapes = []
    hook = llama.register_forward_pre_hook(lambda _, inputs: shapes.append(inputs[0].shape))
    lengths = respond(llama).lengths
    hook.remove()
    assert shapes[0] == (len(PROMPTS), max(map(len, PROMPTS)))
    for index, (rows, tokens) in enumerate(shapes[1:], 1):
        running = (lengths > index).sum()
        assert tokens == 1
        assert running <= rows <= running / sampler.WORTH_DROPPING + 1
    assert len(shapes) == lengths.max()


def test_tokens_are_yielded_as_they_are_drawn(llama):
    responses = [[] for _ in streams_of()]
    for following in draw_tokens(llama, generations=GENERATIONS):
        for pair, token, has_ended in zip(
            following.pairs, following.tokens, following.has_ended, strict=True
        ):
            if not has_ended:
                responses[pair].append(token.item())
    assert responses == listed(respond(llama))


def test_draws_need_no_gradient_and_leave_the_mode_of_the_caller(llama):
    llama.requires_grad_()
    try:
        for following in draw_tokens(llama):
            assert torch.is_grad_enabled()
            assert not following.log_probs.requires_grad
    finally:
        llama.requires_grad_(requires_grad=False)


def test_a_call_between_tokens_can_stop_the_draws(llama):
    calls = []

    def stop_after_four() -> None:
        calls.append(len(calls))
        if len(calls) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        respond(llama, generations=1, between=stop_after_four)
    assert len(calls) == 4


def put_into_logits(model: Decoder, number: float, *, passes: int) -> None:
    """Replaces one logit of each row after some forward passes."""
    left = [passes]

    def replace_one(_model, _inputs, logits: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        return logits if left[0] >= 0 else logits.index_fill(-1, torch.tensor(11), number)

    model.register_forward_hook(replace_one)


@pytest.mark.parametrize("number", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("temperature", [0, 1])
@pytest.mark.parametrize("every", [1, 5])
def test_logits_that_are_not_finite_are_an_error(number, temperature, every, monkeypatch):
    # Between two checks, tokens must stay in the vocabulary.
    monkeypatch.setitem(sampler.CHECK_EVERY, "cpu", every)
    sampling = Sampling(temperature=temperature, max_tokens=9)
    for passes in (0, 3):
        model, drawn = build("llama3"), []
        put_into_logits(model, number, passes=passes)
        with pytest.raises(DamagedFileError, match="logits are not finite"):
            drawn.extend(draw_tokens(model, sampling=sampling))
        assert len(drawn) == (passes if every == 1 else min(passes, 1) * every)


def test_the_smallest_and_the_largest_random_number_draw_from_the_nucleus():
    logits = torch.tensor([[0.0, 3, 2, 1, 2, 0]] * 2)
    uniforms = torch.tensor([0, 1 - 2**-53], dtype=torch.float64)
    for top_k, expected in ((3, [1, 4]), (None, [0, 5])):
        tokens, _ = draw(logits, replace(SAMPLING, top_k=top_k), uniforms)
        assert tokens.tolist() == expected


@pytest.mark.parametrize("above", [0.5, 100, 10_000])
def test_log_probabilities_count_tokens_that_are_never_drawn_however_likely_they_are(above):
    logits = torch.tensor([[0.0, 1, 2, 2 + above]])
    sampling = replace(SAMPLING, temperature=0.1, vocab_size=3)
    tokens, log_probs = draw(logits, sampling, torch.tensor([0.9], dtype=torch.float64))
    expected = (logits.double() / 0.1).log_softmax(dim=1)[0, tokens]
    torch.testing.assert_close(log_probs.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_wrong_number_of_streams_and_too_long_a_response_are_refused(llama):
    with pytest.raises(ValueError, match="11 streams"):
        respond(llama, streams=streams_of()[:-1])
    with pytest.raises(ValueError, match="exceed"):
        respond(llama, sampling=replace(SAMPLING, max_tokens=16))
    respond(llama, PROMPTS[2:3], sampling=replace(SAMPLING, max_tokens=15))
