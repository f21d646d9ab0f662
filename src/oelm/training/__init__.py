"""Training: schedule, step, clock, checkpoints, and the loop that joins them."""
