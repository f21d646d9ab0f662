"""The network: orthogonal matrices, attention over them, and the GPT around it."""
