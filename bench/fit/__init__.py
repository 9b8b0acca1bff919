"""Predicts memory, time and cost of a cell without a GPU, by running the real step on meta tensors.

    python -m bench.fit predict --help

Only `__main__` and `accuracy` are entry points; everything else is imported by them.
"""
