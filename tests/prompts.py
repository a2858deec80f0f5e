"""Where runs of reinforcement learning in tests take their prompts from."""

PROMPTS = {"data.source": "pairs", "data.task": "sort", "data.document_mask": "true"}
PROMPT_WORDS = tuple(f"{key}={value}" for key, value in PROMPTS.items())
