"""One phase as a group of processes: start, watch, end; then its record.

The workers append events; this process, which outlives them, writes the record exactly once.
A worker that dies without a last word is classified from the outside (bench/run/watch.py).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import environment, store
from bench.record import GenerateRecord, Memory, PhaseRecord, ServeRecord, Status, TrainRecord
from bench.run import gpus, oom, process
from bench.run.watch import Death, OnEvent, Watch
from bench.spec import Cell

KINDS: dict[str, type[PhaseRecord]] = {
    "train": TrainRecord,
    "generate": GenerateRecord,
    "serve": ServeRecord,
}
Event = dict[str, Any]


def run_phase(cell: Cell, attempt: Path, phase: str, on_event: OnEvent) -> PhaseRecord:
    """Run a phase to its end, whatever that is, and write its record.

    An interrupt (Ctrl-C) ends the workers, writes no record and goes on up: the phase can resume.
    """
    events = attempt / "events.jsonl"
    process.warm(cell.target.device)
    machine = environment.snapshot()
    begun = {"event": "phase_start", "phase": phase, "t": time.time()}
    store.append_line(events, {**begun, "ranks": process.ranks(cell, phase)})
    sensors = gpus.sampler(cell, attempt, phase)
    watch = Watch(process.start(cell, attempt, phase), cell.budget, events, on_event)
    if sensors:
        watch.look = sensors.look
    killed_before = oom.kills()
    try:
        watch.until_end()
    finally:
        process.kill(watch.workers)
        used = sensors.close() if sensors else []
    record = compose(attempt, phase, watch.death(oom.kills() > killed_before, attempt))
    record.environment = machine
    record.gpus = used
    record.memory["process"] = Memory(host_bytes=watch.peak_bytes or None)
    store.write_json(attempt / f"{phase}.json", record)
    return record


def compose(attempt: Path, phase: str, death: Death | None) -> PhaseRecord:
    """The record of a phase from its events; `death` speaks where the workers couldn't."""
    runs = _processes(attempt, phase)
    last = runs[-1]
    world = last[0].get("ranks", 1)
    ends = [event for event in last if event["event"] == "phase_end"]
    wall_s = sum(run[-1]["t"] - run[0]["t"] for run in runs[:-1])
    wall_s += (time.time() if death is not None else last[-1]["t"]) - last[0]["t"]
    wall_s += _probe_s(attempt, phase)
    common: dict[str, Any] = {
        "phase": phase,
        "started_at": datetime.fromtimestamp(runs[0][0]["t"], UTC).isoformat(timespec="seconds"),
        "wall_s": wall_s,
        "interruptions": len(runs) - 1,
        "ranks": world,
        "rank_memory": [event["memory"] for event in _by_rank(ends)] if world > 1 else [],
    }
    if phase == "train":
        common |= _resumed(attempt)
    told = _cause(ends, death, world)
    if told is None:  # every rank ended well
        told = next(event for event in ends if not event.get("rank"))
    if isinstance(told, dict):
        reason = told["reason"]
        if world > 1 and told["status"] not in (Status.OK, Status.SKIPPED, Status.INVALID):
            reason = f"rank {told['rank']}: {reason}"
        known = {name: told[name] for name in ("status", "stage", "stage_s")}
        facts = told["facts"] or _counted(attempt, phase)
        memory = _over_ranks([event["memory"] for event in ends])
        return KINDS[phase](**common, **known, reason=reason, memory=memory, **facts)
    status, reason, rank = told
    stages = [e["stage"] for e in last if e["event"] == "stage" and e.get("rank", 0) == rank]
    stage = stages[-1] if stages else "start"
    counted = _counted(attempt, phase)
    return KINDS[phase](**common, status=status, reason=reason, stage=stage, **counted)


def _probe_s(attempt: Path, phase: str) -> float:
    """A probe of the longest batches went before: its time was spent on this phase."""
    record = store.read_record(TrainRecord, attempt / "probe" / "train.json")
    return record.wall_s if record is not None and phase == "train" else 0.0


def _cause(ends: list[Event], death: Death | None, world: int) -> Event | Death | None:
    """What ended a phase badly: the first rank that failed by itself, then a death seen from
    outside, and only then one that says no more than that another rank was gone.  None: all well.
    """
    failed = [e for e in ends if e["status"] not in (Status.OK, Status.INVALID)]
    own = [event for event in failed if not event.get("lost_peer")]
    if len(ends) == world and not failed:
        return None
    if own or (failed and not death):
        return min(own or failed, key=lambda event: event["t"])
    return death or (Status.KILLED, "no end was recorded", 0)


def _by_rank(ends: list[Event]) -> list[Event]:
    return sorted(ends, key=lambda event: event.get("rank", 0))


def _over_ranks(memories: list[dict[str, dict[str, Any]]]) -> dict[str, Memory]:
    """By stage: the fullest GPU, and the host's sum of each rank's own peak."""
    merged = {}
    for stage in {name: None for memory in memories for name in memory}:
        held = [memory[stage] for memory in memories if stage in memory]
        values: dict[str, Any] = {}
        for name in Memory.model_fields:
            known = [one[name] for one in held if one.get(name) is not None]
            whole = sum if name.startswith("host") else max
            values[name] = whole(known) if known else None
        merged[stage] = Memory(**values)
    return merged


def left_last_word(attempt: Path, phase: str) -> bool:
    """Whether the workers ended the phase properly, even if nobody wrote its record."""
    runs = _processes(attempt, phase)
    if not runs:
        return False
    ends = [event for event in runs[-1] if event["event"] == "phase_end"]
    return len(ends) == int(runs[-1][0].get("ranks", 1))


def _processes(attempt: Path, phase: str) -> list[list[Event]]:
    """The phase's events, one list for each time that it was started."""
    runs: list[list[Event]] = []
    current = None
    for event in store.read_lines(attempt / "events.jsonl"):
        if event["event"] == "phase_start":
            current = event["phase"]
            if current == phase:
                runs.append([])
        if current == phase:
            runs[-1].append(event)
    return runs


def _resumed(attempt: Path) -> dict[str, Any]:
    """What going on from a checkpoint cost: steps since then were done twice."""
    found = store.Attempt(attempt)
    if found.resumed_from_step is None:
        return {}
    return {
        "resumed_from_step": found.resumed_from_step,
        "repeated_steps": len(found.repeated_steps),
        "repeated_s": sum(step.seconds for step in found.repeated_steps),
        "repeated_tokens": sum(step.tokens for step in found.repeated_steps),
    }


def _counted(attempt: Path, phase: str) -> dict[str, Any]:
    """What was done when it ended badly: the steps and rows on disk stay results."""
    found = store.Attempt(attempt)
    if phase == "generate":
        return {"rows": len(found.predictions)}
    if phase == "serve":
        plan = next((e for e in found.served if e["event"] == "plan"), {})
        done = [e["record"] for e in found.served if e["event"] == "variant"]
        return {"settings": plan.get("settings", {}), "variants": done}
    steps = found.steps
    return {
        "steps": len(steps),
        "tokens": sum(step.tokens for step in steps),
        "padded_tokens": sum(step.padded_tokens for step in steps),
        "supervised_tokens": sum(step.supervised_tokens for step in steps),
        "first_loss": steps[0].loss if steps else None,
        "final_loss": steps[-1].loss if steps else None,
    }
