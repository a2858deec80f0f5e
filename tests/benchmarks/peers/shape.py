"""Model and settings that all contenders of tests/benchmarks/bench_step.py train with."""

DIM = 256
LAYERS = 6
HEADS = 8
GROUPS = 4
FFN = 768
VOCAB_SIZE = 8192
SEQUENCE_LENGTH = 256
MICRO_BATCH_SIZE = 4
LR = 3e-4
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1
CLIP = 1.0
SAVE_STEPS = 500
"""Steps between checkpoints, for contenders that save; transformers' default."""
