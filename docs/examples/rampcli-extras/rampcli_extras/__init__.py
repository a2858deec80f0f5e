"""Extensions of rampcli: an optimiser, a decay, a model, a data source, a tracker, a reward."""
