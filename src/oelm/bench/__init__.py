"""Training steps measured side by side: ours, nanoGPT and Hugging Face Trainer, and the floor below them all."""
