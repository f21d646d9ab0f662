"""What the runs say: statistics, comparison, plots."""
