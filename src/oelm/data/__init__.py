"""From text to batches: corpora, tokenizers, preparation, and batch(step)."""
