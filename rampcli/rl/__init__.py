"""Reinforcement learning: rollouts, rewards, and training on them."""
