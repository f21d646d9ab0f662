"""What makes a comparison unfair: refused where runs had other tasks, said in a line where they differ otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

from oelm import variants
from oelm.analysis.results import Result
from oelm.errors import UserError
from oelm.wording import Said

Arm = Mapping[int, Result]  # the runs of one row, by seed

# What the time of a step depends on besides the model: a run's sessions say it, its config the last one.
COST = ("engine", "device", "precision", "cpu_threads", "processes", "deterministic", "accumulation")


def refuse_other_tasks(results: Sequence[Result]) -> None:
    """Runs are comparable only if they learnt from the same bytes, saw as many tokens and were scored on the same."""
    first = results[0]
    for other in results[1:]:
        for what, value in first.task().items():
            if other.task()[what] != value:
                raise UserError(
                    f"cannot compare {first.folder.path} with {other.folder.path}: "
                    f"{what} differ ({value} against {other.task()[what]})"
                )


def warnings(results: Sequence[Result], arms: Mapping[str, Arm], references: Mapping[str, str | None]) -> list[str]:
    """Everything that a reader has to know about a comparison; arms by their titles, with what each is held against."""
    said = [
        "" if any(references.values()) else Said("no baseline among the runs: no gap can be given"),
        *_learning_rates(arms),
        _other_settings(results),
        Said("one seed per variant: no interval can be given, and small gaps mean nothing")
        if all(len(arm) == 1 for arm in arms.values())
        else "",
        *(
            _unpaired(title, arms[title], arms[other])
            for title, other in references.items()
            if other not in (None, title)
        ),
        _other_code(arms),
    ]
    return [line for line in said if line]


def unequal_extras(arms: Mapping[str, Arm]) -> list[str]:
    """What variants have besides freezing, and whether the baselines that they are held against were given it, too."""
    fair: dict[tuple[str, ...], list[str]] = {}
    said: list[str] = []
    for title, arm in arms.items():
        config = next(iter(arm.values())).config
        equal, more = variants.fair_baseline(config.variant), variants.extras(config.variant)
        if not more or equal == config.variant:
            continue
        name, spec = variants.name_of(equal), config.spec_of(equal)
        if any(result.spec == spec for other in arms.values() for result in other.values()):
            fair.setdefault(tuple(more), []).append(title)
        else:
            flattered = "{title} has {extras}, which its baseline lacks, so its gap may flatter it; train {name}, too"
            said.append(Said(flattered, title=title, extras=more, name=name))
    better = "held against the better of the baselines with and without {extras}: {titles}"
    return said + [Said(better, extras=list(more), titles=titles) for more, titles in fair.items()]


def _enumerated(titles: list[str], arms: Mapping[str, Arm]) -> list[str]:
    """Arms to be named in a sentence: one by one, unless they are all there are."""
    return titles if len(titles) < max(2, len(arms)) else [Said("all variants")]


def paired_gaps(arm: Arm, reference: Arm) -> list[float]:
    """Differences of final losses, seed by seed."""
    return [arm[seed].loss - reference[seed].loss for seed in sorted(arm.keys() & reference.keys())]


def _learning_rates(arms: Mapping[str, Arm]) -> list[str]:
    rates = {title: sorted({result.config.max_lr for result in arm.values()}) for title, arm in arms.items()}
    untuned = [title for title, arm in arms.items() if any(not r.tuning["grid"] for r in arm.values())]
    said: list[str] = []
    if len(set(map(tuple, rates.values()))) > 1:
        each = [
            title if "max_lr" in title else f"{title} {'/'.join(f'{r:g}' for r in rate)}"
            for title, rate in rates.items()
        ]
        different = Said("the variants ran at different learning rates: {rates}", rates=each)
        said.append(different if untuned else Said("learning rates, each the best of its grid: {rates}", rates=each))
    if untuned:
        said.append(Said("learning rate not tuned for: {arms}", arms=_enumerated(untuned, arms)))
        said += [line for title in untuned if (line := _better_elsewhere(title, arms))]
    at_edge = [title for title, arm in arms.items() if any(r.tuning.get("at_edge") for r in arm.values())]
    if at_edge:
        edge = "best learning rate at the edge of its grid, so a better one may lie beyond: {arms}"
        said.append(Said(edge, arms=at_edge))
    if elsewhere := [title for title, arm in arms.items() if any(map(_tuned_at_another_length, arm.values()))]:
        length = "learning rate found in runs of another length than those that count: {arms}"
        said.append(Said(length, arms=elsewhere))
    budgets = {r.tuning["budget_steps"] for arm in arms.values() for r in arm.values()}
    if len(budgets) > 1:
        said.append(Said("the variants had unequal tuning budgets: {budgets} steps", budgets=sorted(budgets)))
    return said


def _tuned_at_another_length(result: Result) -> bool:
    trials = len(result.tuning["run_ids"])
    return trials > 0 and result.tuning["budget_steps"] != trials * result.config.max_steps


def _better_elsewhere(title: str, arms: Mapping[str, Arm]) -> str:
    """The proof that an arm's learning rate is not its best, if a run of its variant at another rate shows it."""
    arm = arms[title]
    one = next(iter(arm.values()))
    gaps = {}
    for other in arms.values():
        theirs = next(iter(other.values()))
        if theirs.spec == one.spec and theirs.settings() == one.settings() and (pairs := paired_gaps(other, arm)):
            gaps[theirs.config.max_lr] = math.fsum(pairs) / len(pairs)
    rate = min(gaps, key=lambda rate: gaps[rate])
    if gaps[rate] >= 0:
        return ""
    better = -100 * math.expm1(gaps[rate])
    return Said(
        "{variant} at {rate:g} is not tuned: a run at {other:g} is {better:.1f} % better",
        **{"variant": one.variant, "rate": one.config.max_lr, "other": rate, "better": better},
    )


def _other_settings(results: Sequence[Result]) -> str:
    settings = [result.settings() for result in results]
    differing = [name for name in settings[0] if len({repr(each[name]) for each in settings}) > 1]
    configs = {(result.config.max_lr, result.config.min_lr): result.config for result in results}.values()
    if not all(one.decays_like(other) for one, other in combinations(configs, 2)):
        differing.append("min_lr")
    return Said("the runs differ in more than the variant: {fields}", fields=differing) if differing else ""


def _unpaired(title: str, arm: Arm, reference: Arm) -> str:
    """The seeds that a variant and the baseline do not share: their losses are means over other runs than the gap."""
    paired = arm.keys() & reference.keys()
    if not paired:
        return Said("{title} shares no seed with the baseline: no gap can be given", title=title)
    without = {title: arm.keys() - paired, "baseline": reference.keys() - paired}
    named = [Said("{seeds} ({whose})", seeds=listed(seeds), whose=who) for who, seeds in without.items() if seeds]
    over = "the gap of {title} is over seeds {paired}; seeds without a partner: {alone}"
    return Said(over, title=title, paired=sorted(paired), alone=named) if named else ""


def _other_code(arms: Mapping[str, Arm]) -> str:
    """Whether some arms were trained by other code than others: it may compute the same in another order, and what
    differs in the last bit in the beginning differs by as much as seeds do in the end."""
    versions = {title: sorted(set[str]().union(*map(_code, arm.values()))) for title, arm in arms.items()}
    if len({tuple(each) for each in versions.values()}) < 2:
        return ""
    named = [Said("{title} {versions}", title=title, versions="/".join(each)) for title, each in versions.items()]
    return Said("the variants were trained by different versions of the code: {versions}", versions=named)


def _code(result: Result) -> set[str]:
    """The versions of the code that a run's sessions were of, as far as they know them."""
    states = [session.get("git") for session in result.manifest["sessions"]]
    return {
        Said("{commit} with changes", commit=commit) if state.get("changed") else commit
        for state in states
        if isinstance(state, dict) and (commit := str(state.get("commit"))[:7])
    }


def unequal_cost(arms: Mapping[str, Arm]) -> str:
    """What makes step times differ for another reason than the variant."""
    values = {title: {what: _values(what, arm) for what in COST} for title, arm in arms.items()}
    differing = [what for what in COST if len(set[str]().union(*(arm[what] for arm in values.values()))) > 1]
    if not differing:
        return ""

    def described(title: str) -> str:
        return ", ".join(f"{what} {'/'.join(sorted(values[title][what]))}" for what in differing)

    ran = [Said("{title} ran with {what}", title=title, what=described(title)) for title in arms]
    return Said("step times are not comparable: {ran}", ran=ran)


def shared_device(results: Sequence[Result], beside: Iterable[Result]) -> str:
    """Whether others, trials among them, were on the device of one of these results at the same time, and slowed it
    down: as far as their last sessions tell, the only ones whose ends are known."""
    sessions: dict[tuple[str, str], list[tuple[Result, float, float]]] = {}
    for other in beside:
        sessions.setdefault(other.device, []).append((other, *other.last_session))
    for result in results:
        begun, ended = result.last_session
        for other, theirs_begun, theirs_ended in sessions.get(result.device, ()):
            # The beginning of a session is noted in whole seconds.
            if other is not result and max(begun, theirs_begun) + 1 < min(ended, theirs_ended):
                return Said("step times are not comparable: some of the runs shared a device while they ran")
    return ""


def _values(what: str, arm: Arm) -> set[str]:
    """The values that one of COST had in the sessions of a variant's runs."""
    if what == "accumulation":
        return {str(result.config.accumulation) for result in arm.values()}
    return {str(session[what]) for result in arm.values() for session in result.manifest["sessions"]}


def listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(seeds)))
