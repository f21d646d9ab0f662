"""The study: which experiments were run, and what they left behind. Not part of the package."""
