"""Pure numbers: from what runs left on disk to scores, times and costs.

Nothing here reads a file, needs a GPU or imports torch, so that a report, and any new metric, can
be recomputed from `results/` anywhere.  Import the modules one by one; heavy packages load on use.

    python -m pytest tests/score
"""
