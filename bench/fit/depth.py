"""Traces of few decoder layers → the trace of all of them.

Decoder layers repeat: what layer 40 allocates and frees, layer 41 does too.  So two shallow models
that differ by one layer are traced, the shallower trace is lengthened by one layer and must equal
the deeper one event for event (sizes of things outside the layers may differ: buckets, the list of
gradient norms); then it is lengthened to the full depth.  Where layers differ, where lengthening
doesn't reproduce the deeper trace, or where little would be gained, the full model is traced.

How a trace is lengthened: every pass over the layers (forward, backward, each of the optimizer's
loops) is a sweep of runs, one a layer.  A layer from the middle is repeated in every sweep.  A
free in a repeated run that points at the same or a neighbouring layer points there relatively.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from bench.fit.allocator import ALLOC, FREE, MOVE, Event
from bench.fit.build import decoder_layers
from bench.fit.quantize import quant_state_tensors
from bench.fit.trace import OUTSIDE, Tracer

Name = tuple[int, int, int]  # sweep, layer, position in its run


class CannotLengthen(Exception):
    """The trace isn't a repetition of layers."""


def follow_layers(model: nn.Module, tracer: Tracer) -> None:
    """Tell the tracer which layer runs, in the forward and in the backward."""
    tracer.locate(_tensors(model), OUTSIDE)
    for number, layer in enumerate(decoder_layers(model)):
        tracer.locate(_tensors(layer), number)
        layer.register_forward_pre_hook(_enter(tracer, number))
        layer.register_forward_hook(_enter_in_backward(tracer, number))


def _tensors(module: nn.Module) -> list[Any]:
    return [*module.parameters(), *module.buffers(), *quant_state_tensors(module)]


def _enter(tracer: Tracer, number: int) -> Any:
    return lambda *_: tracer.enter_layer(number)


def _enter_in_backward(tracer: Tracer, number: int) -> Any:
    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output
        if hidden.requires_grad:
            hidden.register_hook(lambda _gradient: tracer.enter_layer(number))

    return hook


# ---------------------------------------------------------------- which models


def shallow_config(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """The same architecture with fewer layers; lists that name each layer are cut."""
    depth = config["num_hidden_layers"]
    cut = {
        name: value[:layers]
        for name, value in config.items()
        if isinstance(value, list) and len(value) == depth
    }
    return {**config, **cut, "num_hidden_layers": layers}


def uniform(model: nn.Module) -> bool:
    """Whether all decoder layers are alike: same modules, same shapes, same kind of attention."""
    config: dict[str, Any] = model.config.to_dict()  # type: ignore[union-attr, operator]
    layers = decoder_layers(model)
    depth = len(layers)
    if config.get("num_hidden_layers") != depth:
        return False
    named = [v for v in config.values() if isinstance(v, list) and len(v) == depth]
    kinds = {_kind(layer) for layer in layers}
    return len(kinds) == 1 and all(len(set(map(str, values))) == 1 for values in named)


def _kind(layer: nn.Module) -> tuple[Any, ...]:
    modules = tuple(type(module).__name__ for module in layer.modules())
    shapes = tuple((name, tuple(p.shape)) for name, p in layer.named_parameters())
    return modules, shapes


# ---------------------------------------------------------------- lengthening


@dataclass
class Run:
    """Successive events of one layer."""

    layer: int
    sweep: int
    start: int
    end: int


@dataclass
class Lengthened:
    """Events of the deeper model; `sources` are the positions that they repeat."""

    events: list[Event]
    sources: list[int]
    idents: dict[int, int]  # new ident of an allocation → the one it repeats


def lengthen(
    events: Sequence[Event], layers: Sequence[int], template: int, more: int
) -> Lengthened:
    """Repeat layer `template` `more` times in every sweep."""
    runs = _runs(layers)
    births = {events[i][1]: (run, i) for run in runs for i in range(run.start, run.end)
              if events[i][0] == ALLOC}  # fmt: skip
    found = Lengthened([], [], {})
    known: dict[Name, int] = {}
    for index, run in enumerate(runs):
        for layer in _copies(runs, index, template, more):
            for position in range(run.start, run.end):
                kind, ident, size, stream = events[position]
                if kind == ALLOC:
                    new = len(found.idents) + 1
                    known[run.sweep, layer, position - run.start] = new
                    found.idents[new] = ident
                elif kind in (FREE, MOVE):
                    target = _target(births[ident], run, layer, template, more)
                    if target not in known:
                        raise CannotLengthen(f"layer {run.layer} frees nothing that layer has")
                    new = known[target]
                else:
                    new = ident
                found.events.append((kind, new, size, stream))
                found.sources.append(position)
    return found


def _runs(layers: Sequence[int]) -> list[Run]:
    """A sweep ends where layers stop following each other in one direction."""
    runs: list[Run] = []
    sweep = direction = 0
    start = 0
    for position in range(1, len(layers) + 1):
        if position < len(layers) and layers[position] == layers[start]:
            continue
        layer = layers[start]
        turn = layer - runs[-1].layer if runs else 0
        inside = layer >= 0 and runs and runs[-1].layer >= 0
        if not inside or abs(turn) != 1 or direction not in (0, turn):
            sweep, direction = sweep + 1, 0
        else:
            direction = turn
        runs.append(Run(layer, sweep, start, position))
        start = position
    return runs


def _copies(runs: list[Run], index: int, template: int, more: int) -> Sequence[int]:
    """The layers of the deeper model that run number `index` stands for, in their order."""
    layer = runs[index].layer
    if layer != template:
        return (layer + more if layer > template else layer,)
    around = [runs[i].layer for i in (index - 1, index + 1) if 0 <= i < len(runs)]
    if around == [template - 1, template + 1]:
        return range(template, template + more + 1)
    if around == [template + 1, template - 1]:
        return range(template + more, template - 1, -1)
    raise CannotLengthen(f"layer {template} stands between {around}")


def _target(birth: tuple[Run, int], run: Run, layer: int, template: int, more: int) -> Name:
    """The allocation that a free or a move in `run`, repeated as `layer`, points at."""
    born, position = birth
    offset = position - born.start
    distance = born.layer - run.layer
    if born.layer < 0:
        return born.sweep, born.layer, offset
    if run.layer >= 0 and abs(distance) <= 1:
        return born.sweep, layer + distance, offset
    if template in (born.layer, run.layer):
        raise CannotLengthen(f"layer {run.layer} frees what layer {born.layer} made")
    return born.sweep, born.layer + more if born.layer > template else born.layer, offset


def growth(
    events: Sequence[Event], lengthened: Lengthened, deeper: Sequence[Event]
) -> dict[int, int]:
    """By position: bytes that an allocation gains with each layer.

    Raises CannotLengthen unless `lengthened` (by one layer) is `deeper` but for those sizes.
    """
    if len(lengthened.events) != len(deeper):
        raise CannotLengthen(f"{len(lengthened.events)} events instead of {len(deeper)}")
    numbers: dict[int, int] = {}
    gains: dict[int, int] = {}
    for ours, theirs, source in zip(lengthened.events, deeper, lengthened.sources, strict=True):
        kind, ident, size, stream = theirs
        if kind == ALLOC:
            numbers[ident] = len(numbers) + 1
        number = numbers[ident] if kind in (ALLOC, FREE, MOVE) else ident
        if (ours[0], ours[1], ours[3]) != (kind, number, stream):
            raise CannotLengthen(f"{ours} instead of {(kind, number, size, stream)}")
        gain = size - events[source][2]
        if gains.setdefault(source, gain) != gain or (gain and kind != ALLOC):
            raise CannotLengthen(f"sizes of {ours} and {theirs}")
    return {position: gain for position, gain in gains.items() if gain}


def grown(lengthened: Lengthened, gains: dict[int, int], more: int) -> list[Event]:
    """The events with what depends on the depth at its full size."""
    if not gains:
        return lengthened.events
    return [
        (kind, ident, size + more * gains.get(source, 0) if kind == ALLOC else size, stream)
        for (kind, ident, size, stream), source in zip(
            lengthened.events, lengthened.sources, strict=True
        )
    ]


def counts_at(shallow: Counter[Any], deeper: Counter[Any], more: int) -> Counter[Any]:
    """Operator calls at full depth: each kind's count is linear in the layers."""
    found: Counter[Any] = Counter()
    for cost in shallow.keys() | deeper.keys():
        count = shallow[cost] + more * (deeper[cost] - shallow[cost])
        if count:
            found[cost] = count
    return found
