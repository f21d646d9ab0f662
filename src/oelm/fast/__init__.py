"""What the CUDA graph computes with: a working layout of the model, and kernels that fit it."""
