# SPDX-License-Identifier: BSD-3-Clause
"""``python -m shmcoll.bench tune``: which settings are better than the defaults on this machine?

All settings are tried in one run of the same ranks, and take turns, as backends do in a plain run.
A round visits every key and every size that shows a difference. There it measures the default, the
values, and the default again. Each turn has a group and buffers of its own: the place of their memory is
luck, and makes a difference of a fifth that stays with a group.

The default compared with itself shows what chance does. A value is better if the rank test of
``compare`` rules out chance, if the median of its rounds' ratios is more than EFFECT, and if it loses
that much at no size. The chosen values are then measured once more, all together: the best of many was
also lucky.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import exp, log
from pathlib import Path
from statistics import fmean, median
from time import monotonic

from shmcoll.bench import machine, options
from shmcoll.bench.judge import tunables
from shmcoll.bench.run import latency
from shmcoll.bench.arguments import Parser
from shmcoll.bench.judge.compare import LEVEL
from shmcoll.bench.run.torch_team import Refused, Team, TeamError
from shmcoll.bench.ops import OPS
from shmcoll.bench.plan import MAX_ITERATIONS, Point
from shmcoll.bench.judge.ranktest import holm, p_value
from shmcoll.bench.judge.tunables import Tunable

VARIABLE = "SHMCOLL_TUNING"
DEFAULT, AGAIN = "", " "  # two names of the same
MIN_ROUNDS = 10  # fewer have no say in a rank test
WANTED_ROUNDS = 24
EFFECT = 0.05  # a smaller gain is none
_SHARE_OF_CHECK = 0.2  # of the time, for what was chosen together
_MIN_TURN_S, _MAX_TURN_S = 0.001, 0.02
_AROUND_S = 0.007  # a turn without its timing: group, buffers, messages

EXIT_OK, EXIT_FAILED, EXIT_UNUSABLE, EXIT_INTERRUPTED = 0, 1, 2, 130


class Wrong(Exception):
    """A setting gave wrong values."""


@dataclass
class Trial:
    """A setting compared with the default: in each round the times of both, at each of its points."""

    tuning: str
    points: list[Point]
    value: str = ""  # of the key, in a trial of one key
    default: list[list[float]] = field(default_factory=list)  # [round][point], in ns
    again: list[list[float]] = field(default_factory=list)
    tried: list[list[float]] = field(default_factory=list)

    def ratios(self) -> list[float]:
        """Time of the default over time of the setting, in each round."""
        return [_mean_ratio(old, new) for old, new in zip(self.default, self.tried)]

    def chance(self) -> list[float]:
        """Time of the default over its time in a second turn, in each round."""
        return [_mean_ratio(old, new) for old, new in zip(self.default, self.again)]

    @property
    def gain(self) -> float:
        return median(self.ratios()) if self.tried else 1.0

    @property
    def all_gains(self) -> float:
        """Over its points, as a logarithm: values of a key make a difference at more or fewer."""
        return len(self.points) * log(self.gain)

    @property
    def worst(self) -> float:
        """The gain at the point where it is least."""
        gains = (
            median(old[k] / new[k] for old, new in zip(self.default, self.tried))
            for k in range(len(self.points) if self.tried else 0)
        )
        return min(gains, default=1.0)


@dataclass
class Study:
    """A key with its trials."""

    tunable: Tunable
    default: float
    trials: list[Trial]
    chosen: Trial | None = None


def _mean_ratio(old: Sequence[float], new: Sequence[float]) -> float:
    return exp(fmean(log(a / b) for a, b in zip(old, new)))


class Tuner:
    """Measures with one team, until its time is over."""

    def __init__(self, team: Team, world_size: int) -> None:
        self._team = team
        self._world_size = world_size
        self._checked: set[tuple[str, Point]] = set()
        self.rounds = 0

    def studies(self, names: Sequence[str]) -> list[Study]:
        """Returns what will be tried for these keys."""
        defaults = self._team.tune(DEFAULT)
        out = []
        for tunable in tunables.of_world(self._world_size):
            default = defaults[tunable.name]
            trials = [
                Trial(f"{tunable.name}={value}", points, value)
                for value in tunable.values(default)
                if (points := tunable.points(self._world_size, default, tunables.number(value)))
            ]
            if tunable.name in names and trials:
                out.append(Study(tunable, default, trials))
        return out

    def measure(self, trials: Sequence[Sequence[Trial]], seconds: float) -> None:
        """Rounds over all lists; trials of one list share the turns of the default."""
        deadline = monotonic() + seconds
        turns = sum(2 + sum(p in t.points for t in ts) for ts in trials for p in _points(ts))
        turn_s = seconds / (WANTED_ROUNDS * max(1, turns)) - _AROUND_S
        budget_ns = int(1e9 * min(_MAX_TURN_S, max(_MIN_TURN_S, turn_s)))
        rounds, begun = 0, monotonic()
        # A round that has begun is ended, so the last one must fit.
        while monotonic() + (monotonic() - begun) / max(1, rounds) <= deadline or rounds == 0:
            for together in trials:
                self._round(together, rounds, budget_ns)
            rounds += 1
        self.rounds = rounds

    def _round(self, trials: Sequence[Trial], number: int, budget_ns: int) -> None:
        for trial in trials:
            for times in (trial.default, trial.again, trial.tried):
                times.append([])
        for point in _points(trials):
            here = [trial for trial in trials if point in trial.points]
            tunings = [DEFAULT, *(trial.tuning for trial in here), AGAIN]
            if number % 2:  # no setting always comes after the same one
                tunings.reverse()
            ns = {tuning: self._turn(point, tuning, budget_ns) for tuning in tunings}
            for trial in here:
                trial.default[-1].append(ns[DEFAULT])
                trial.again[-1].append(ns[AGAIN])
                trial.tried[-1].append(ns[trial.tuning])

    def _turn(self, point: Point, tuning: str, budget_ns: int) -> float:
        self._team.tune(tuning)
        self._team.prepare(point, copies=1, sweep_bytes=0)
        if (tuning, point) not in self._checked:
            self._checked.add((tuning, point))
            if wrong := self._team.check(len(self._checked)):
                where = f"{point.op}, {point.size_bytes} bytes"
                raise Wrong(f"{tuning.strip() or 'the default'}: {wrong} wrong elements ({where})")
        replies = self._team.time(MAX_ITERATIONS, budget_ns)
        readings = zip(*(reply["phases"][0] for reply in replies))
        return max(1.0, median(latency.evaluation("latency", OPS[point.op])(*readings)))


def _points(trials: Sequence[Trial]) -> list[Point]:
    return list(dict.fromkeys(point for trial in trials for point in trial.points))


# ---- the choice ----


def choose(studies: Sequence[Study]) -> None:
    """Chooses for each key the best value that is certainly better than the default, if there is one."""
    trials = [(study, trial) for study in studies for trial in study.trials]
    strong = holm([p_value(trial.chance(), trial.ratios()) for _, trial in trials], LEVEL)
    for (study, trial), sure in zip(trials, strong):
        enough = len(trial.tried) >= MIN_ROUNDS
        if not (sure and enough and trial.gain > 1 + EFFECT and trial.worst > 1 / (1 + EFFECT)):
            continue
        if study.chosen is None or trial.all_gains > study.chosen.all_gains:
            study.chosen = trial


def confirm(tuner: Tuner, studies: Sequence[Study], seconds: float) -> Trial | None:
    """Measures the chosen values once more, all together. If they do not gain again, nothing stays chosen."""
    chosen = [study.chosen for study in studies if study.chosen]
    if not chosen:
        return None
    together = Trial(",".join(trial.tuning for trial in chosen), _points(chosen))
    tuner.measure([[together]], seconds)
    if together.gain <= 1 or together.worst < 1 / (1 + EFFECT):
        for study in studies:
            study.chosen = None
    return together


# ---- what is said and written ----


def table(studies: Sequence[Study], rounds: int) -> Iterator[str]:
    chance = [ratio for study in studies for ratio in _medians_of_chance(study)]
    yield f"# {rounds} rounds; median of the time of the default over the time of the value"
    yield f"# the default compared with itself: {min(chance):.2f} to {max(chance):.2f}"
    yield f"# {'key':26} {'default':>7}  {'chosen':>7}  tried"
    for study in studies:
        default = tunables.text(study.default)
        tried = "  ".join(f"{trial.value} {trial.gain:.2f}" for trial in study.trials)
        chosen = study.chosen.value if study.chosen else default
        yield f"  {study.tunable.name:26} {default:>7}  {chosen:>7}  {tried}"


def _medians_of_chance(study: Study) -> list[float]:
    return [median(trial.chance()) for trial in study.trials]


def file_text(studies: Sequence[Study], facts: machine.Machine, nproc: int, path: Path) -> str:
    """Returns the text of a file for SHMCOLL_TUNING."""
    now = datetime.datetime.now(datetime.timezone.utc)
    versions = ", ".join(f"{name} {version or '-'}" for name, version in facts.versions.items())
    lines = [
        f"# written by shmcoll bench tune, {now:%Y-%m-%d %H:%M} UTC, {nproc} ranks",
        f"# {facts.cpu}, {facts.cpus_usable} usable CPUs; linux {facts.kernel}; {versions}",
        f"# All ranks of a job need it:  export {VARIABLE}={path.resolve()}",
    ]
    for study in studies:
        default = tunables.text(study.default)
        if study.chosen:
            what = f"faster by {study.chosen.gain:.2f}x than {default}, where it matters"
            lines.append(f"{study.tunable.name} = {study.chosen.value}  # {what}")
        else:
            lines.append(f"# {study.tunable.name} = {default}  (the default: nothing was better)")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    if problem := _problem(args):
        print(f"shmcoll.bench tune: {problem}", file=sys.stderr)
        return EXIT_UNUSABLE
    facts = machine.gather()
    if os.environ.pop(VARIABLE, None):
        print(f"# {VARIABLE} is set; what is compared here are the default values")
    if args.nproc > facts.cpus_usable:
        print(f"# WARNING: {args.nproc} ranks share {facts.cpus_usable} CPUs: tune is deaf there")
    print(f"# shmcoll.bench tune: {args.nproc} ranks, {args.time:g} s, {facts.cpu}", flush=True)
    try:
        studies = _run(args)
    except KeyboardInterrupt:
        print("shmcoll.bench tune: interrupted, nothing is written", file=sys.stderr)
        return EXIT_INTERRUPTED
    except (Refused, TeamError) as error:
        print(f"shmcoll.bench tune: {error}", file=sys.stderr)
        return EXIT_UNUSABLE
    except Wrong as error:
        print(f"shmcoll.bench tune: {error}", file=sys.stderr)
        return EXIT_FAILED
    args.output.write_text(file_text(studies, facts, args.nproc, args.output))
    print(f"# written: {args.output}; all ranks of a job need it:")
    print(f"export {VARIABLE}={args.output.resolve()}")
    return EXIT_OK


def _run(args: argparse.Namespace) -> list[Study]:
    settings, _ = options.parse(["-g", str(args.nproc), "--backends", "shmcoll"])
    with tempfile.TemporaryDirectory(prefix="shmcoll-bench-") as scratch:
        team = Team("shmcoll", "shmcoll", settings, Path(scratch))
        try:
            team.start()
            team.join()
            tuner = Tuner(team, args.nproc)
            studies = tuner.studies(args.keys)
            tuner.measure([study.trials for study in studies], args.time * (1 - _SHARE_OF_CHECK))
            rounds = tuner.rounds
            choose(studies)
            together = confirm(tuner, studies, args.time * _SHARE_OF_CHECK)
        finally:
            team.stop(at_once=sys.exc_info()[0] is not None)
    for line in table(studies, rounds):
        print(line)
    if rounds < MIN_ROUNDS:
        print(f"# {rounds} rounds say nothing, {MIN_ROUNDS} are needed: a longer --time")
    if together is not None:
        kept = "" if any(study.chosen for study in studies) else ": no gain, so the defaults stay"
        print(f"# chosen together, once more: {together.gain:.2f}{kept}")
    return studies


def _problem(args: argparse.Namespace) -> str | None:
    known = [tunable.name for tunable in tunables.of_world(args.nproc)]
    unknown = [name for name in args.keys or () if name not in known]
    if unknown:
        return f"--keys {','.join(unknown)}: with {args.nproc} ranks there is {', '.join(known)}"
    args.keys = args.keys or known
    if args.output.is_dir():
        return f"-o {args.output}: is a directory; name a file in it"
    if args.output.exists() and not args.force:
        return f"-o {args.output}: exists; --force writes over it"
    if not args.output.parent.is_dir():
        return f"-o {args.output}: there is no {args.output.parent}"
    if not os.access(args.output if args.output.exists() else args.output.parent, os.W_OK):
        return f"-o {args.output}: may not be written"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="python -m shmcoll.bench tune",
        description="Tries other settings than the default ones on this machine, and writes those "
        f"that are better into a file for {VARIABLE}.",
        epilog=f"A value is chosen if a rank test says that chance does not do this ({LEVEL:.0%} "
        f"risk for all values together), if it is more than {EFFECT:.0%} faster, and loses at no "
        "size by as much; of several the one that gains most over all sizes. What is chosen must "
        "gain once more, all together, and again lose at no size by as much. Times include the "
        "Python call, so for the smallest messages nothing else will be seen. exit code: 0 written; "
        "1 wrong values; 2 bad usage, or the backend cannot be used; 130 interrupted",
    )
    parser.add_argument("-g", "--nproc", type=_ranks, default=2, help="ranks (default: 2)")
    parser.add_argument("-o", "--output", type=Path, default=Path("shmcoll.tuning"), metavar="FILE")
    parser.add_argument("--force", action="store_true", help="write over FILE if it exists")
    parser.add_argument(
        "--time",
        type=options.duration("seconds", 86400),
        default=60.0,
        help="seconds (default: 60)",
    )
    parser.add_argument(
        "--keys", type=lambda text: text.split(","), metavar="KEY,...", help="(default: all)"
    )
    return parser


def _ranks(text: str) -> int:
    if not text.isdecimal() or not 2 <= int(text) <= 256:
        raise argparse.ArgumentTypeError(f"not a number of ranks from 2 to 256: {text!r}")
    return int(text)
