"""Runs what it claims: the phases of one cell, each in a process of its own.

One of the two places that import torch and transformers (the other is bench/fit).
"""
