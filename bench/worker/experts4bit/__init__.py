"""Fused mixture-of-experts weights truly held in 4 bit.

Transformers 5 stores a layer's experts as two 3-D parameters, which bitsandbytes' conversion skips
without a word: "4-bit" Qwen3-235B holds 428 GiB.  After `install()`, an ordinary
`BitsAndBytesConfig(load_in_4bit=True)` quantises them too, while the checkpoint loads.

    packing    NF4/FP4 codes and scales of a stack of experts, and back
    linear     the frozen grouped linear layer: dequantises in forward and again in backward
    module     the experts' own class with 4-bit storage; which layouts it serves
    lora       low-rank adapters beside it, in peft's format, without ever building W + BA
    quantizer  the hook in transformers' loading

How it works, what it costs and what it does not do: docs/experts4bit.md.
"""

from bench.worker.experts4bit.linear import Layout
from bench.worker.experts4bit.lora import register
from bench.worker.experts4bit.module import (
    Experts4bit,
    convert,
    quantized_elements,
    refusals,
    set_at_once,
)
from bench.worker.experts4bit.quantizer import install

__all__ = [
    "Experts4bit",
    "Layout",
    "convert",
    "install",
    "quantized_elements",
    "refusals",
    "register",
    "set_at_once",
]
