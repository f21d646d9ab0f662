"""Synthetic tasks, each of which needs one thing of attention: which variants can learn it?"""
