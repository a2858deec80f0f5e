"""The size of a model, beside the tokens that it is trained on."""

from rampcli.batch.quantities import shorten
from rampcli.config.schema import Config
from rampcli.estimate.model_size import count_embeddings, count_parameters


def model_line(config: Config, *, samples: int | None) -> str:
    """Returns the parameters of a model and the tokens per parameter.

    Args:
        samples: samples of the run, or None if it has no end or counts prompts.
    """
    length = config.data.sequence_length
    parameters = count_parameters(config.model, sequence_length=length)
    embeddings = count_embeddings(config.model, sequence_length=length)
    line = f"model: {shorten(parameters)} parameters, {shorten(embeddings)} of them embeddings"
    if samples is None:
        return line
    return f"{line}; {shorten(samples * length / parameters)} tokens per parameter"
