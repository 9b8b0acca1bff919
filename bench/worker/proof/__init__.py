"""What a cell proves about itself, counted on the running model; bench/worker/audit.py asks.

weights    bytes by part and dtype, the quantised share, what moved
adapters   which modules carry one, which targets don't, the router
steps      recomputed layers, gradients, the attention kernel: seen in the first step
batches    padding, packing and masked labels: seen in the first step
states     the optimizer's tensors: dtypes and devices
loading    host memory while the weights were loaded
settings   what was asked for against what is in effect
"""
