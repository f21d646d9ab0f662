"""Where each run comes from: what all share is said once, what sets them apart for each."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Any

from oelm.analysis.compare import Comparison
from oelm.analysis.results import Result
from oelm.reporting.blocks import Block, Record, Records
from oelm.wording import Said


def provenance(comparison: Comparison) -> tuple[Block, ...]:
    """One record of what is the same in all the runs, and one for each of the runs."""
    facts = {
        Said("{title}, seed {seed}", title=row.title, seed=result.config.seed): _facts(result)
        for row in comparison.rows
        for result in row.results
    }
    names = list(dict.fromkeys(name for each in facts.values() for name in each))
    shared = {}
    if len(facts) > 1:
        first = next(iter(facts.values()))
        shared = {n: first.get(n, "") for n in names if len({each.get(n, "") for each in facts.values()}) == 1}
    apart = [
        Record(title, tuple((name, value) for name, value in each.items() if name not in shared))
        for title, each in facts.items()
    ]
    together = [Record(Said("all {runs} runs", runs=len(facts)), tuple(shared.items()))] if shared else []
    return (Records((*together, *apart)),)


def _facts(result: Result) -> dict[str, str]:
    manifest, sessions = result.manifest, result.manifest["sessions"]
    versions = [_mapping(session.get("versions")) for session in sessions]
    found = {
        "run": manifest["run_id"],
        "folder": str(result.folder.path),
        "variant": str(result.config.variant),
        "learning rate": _learning_rate(result),
        "started": _once(session.get("started") for session in sessions),
        "command": _once(_command(session.get("command")) for session in sessions),
        "code": _once(_git(session.get("git")) for session in sessions),
        "versions": _once(", ".join(f"{name} {number}" for name, number in v.items() if number) for v in versions),
        "device": _once(session["device"] for session in sessions),
        "engine": _once(_engine(session) for session in sessions),
        "recipe": result.config.recipe,
        "tokenizer": manifest["data"]["tokenizer"],
        **{f"sha256 {split}": str(digest) for split, digest in manifest["data"]["sha256"].items()},
    }
    return {name: value for name, value in found.items() if value}


def _learning_rate(result: Result) -> str:
    tuning, rate = result.tuning, result.config.max_lr
    if not tuning["grid"]:
        given = Said("taken as given, not searched")
        return Said("{rate:g}: {how}", rate=rate, how=given if tuning["how"] == given else tuning["how"])
    return Said(
        "{rate:g}: the best of {count} rates by validation loss ({tried}; {steps:,} steps in all; {runs})",
        rate=rate,
        count=len(tuning["grid"]),
        tried=", ".join(f"{each} → {loss}" for each, loss in zip(tuning["grid"], tuning["losses"], strict=False)),
        steps=tuning["budget_steps"],
        runs=_once(tuning["run_ids"]),
    )


def _engine(session: dict[str, Any]) -> str:
    said = f"{session['engine']}, {session['precision']}, {session['cpu_threads']} CPU threads"
    if session["processes"] > 1:
        said += f", {session['processes']} processes"
    return f"{said}, deterministic" if session["deterministic"] else said


def _git(state: Any) -> str:
    state = _mapping(state)
    if not state.get("commit"):
        return ""
    return f"{state['commit']}{' + changes' if state.get('changed') else ''}"


def _command(command: Any) -> str:
    return shlex.join(map(str, command)) if isinstance(command, list) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _once(values: Iterable[Any]) -> str:
    """Values of the sessions of a run, each of them once."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value))
