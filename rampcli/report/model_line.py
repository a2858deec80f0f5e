"""The size of a model, beside the tokens that it is trained on."""

from rampcli.batch.quantities import shorten
from rampcli.estimate.model_size import ModelSize


def size_text(size: ModelSize, *, tokens: int | None) -> str:
    """Returns the parameters of a model and the tokens per parameter.

    Args:
        tokens: tokens of the run, or None if it has no end or counts prompts.
    """
    parameters, embeddings = shorten(size.parameters), shorten(size.embeddings)
    text = f"{parameters} parameters, {embeddings} of them embeddings"
    if tokens is None:
        return text
    return f"{text}; {shorten(tokens / size.parameters)} tokens per parameter"
