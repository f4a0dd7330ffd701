"""PaW: reinforcement learning of a policy that also learns to predict what it will observe."""
