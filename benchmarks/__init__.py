"""Measurements that anyone can repeat; each writes a result file to benchmarks/results."""
