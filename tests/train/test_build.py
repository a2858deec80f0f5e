import torch

from rampcli.models.decoder import Decoder
from rampcli.train.build import fill_weights


def test_a_model_is_built_on_the_meta_device_first(small_llama):
    with torch.device("meta"):
        model = Decoder(small_llama.model, sequence_length=16)
    assert all(parameter.is_meta for parameter in model.parameters())


def test_a_rank_requests_only_its_own_rows(small_llama):
    model = Decoder(small_llama.model, sequence_length=16)
    asked = {}

    def rows_of(_, name, first, rows):
        asked[name] = (first, rows)
        return torch.full((rows, *model.get_parameter(name).shape[1:]), 2.0)

    fill_weights(model, rows_of)
    assert asked == {name: (0, len(parameter)) for name, parameter in model.named_parameters()}
    assert all(parameter.eq(2).all() for parameter in model.parameters())
    assert model.positions.tolist() == list(range(16))
