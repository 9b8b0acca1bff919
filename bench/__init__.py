"""adaptbench: which way of adapting a large language model to choose, and what it will cost."""

__version__ = "0.1.0"
