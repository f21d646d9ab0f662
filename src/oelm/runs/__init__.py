"""Many runs: which there are to do, on which device, and how they stand."""
