"""Where runs of reinforcement learning in tests take their prompts from."""

PROMPTS = {"data.source": "mock"}
PROMPT_WORDS = tuple(f"{key}={value}" for key, value in PROMPTS.items())
