"""Where weights, gradients and states live when several devices share the work."""

from __future__ import annotations

from torch import nn

from bench.fit.request import Request
from bench.fit.step import Placement
from bench.fit.trace import Tracer


def placement_for(model: nn.Module, request: Request, tracer: Tracer) -> Placement:
    return Placement(model, request, tracer)
