#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Runs the test lanes in order and prints their runners' own totals at the end.

A lane is a build of the C tests with some labels of ctest, or a set of pytest files. The run fails
when a lane fails, when a test was skipped that tests/skips.txt does not allow, and when a lane ran
nothing. docs/internals/testing.md has the minute budget of each lane.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
import xml.etree.ElementTree
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from environment import environment  # noqa: E402

SKIPS = ROOT / "tests" / "skips.txt"


# Tests at once for each job: ranks wait for one another, and leave the CPU idle meanwhile. Of those in
# Python each has half a gigabyte of memory. A third kind waits most of the time.
TESTS_PER_JOB = 3
WAITING_PROGRAMS_PER_JOB = 4
PYTHON_TESTS_PER_JOB = 2
WAITING_TESTS_PER_JOB = 2.5


@dataclasses.dataclass
class Build:
    """A CMake build directory under build/."""

    name: str
    options: tuple[str, ...]
    environment: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> pathlib.Path:
        return ROOT / "build" / self.name


# Tests make vectors of megabytes by the thousand. By default each of them is new memory from the
# system: half of their processor time went into that. What is freed is kept for the next one.
KEPT_MEMORY = {
    "GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=1073741824"
}

# A sanitizer's own memory for a vector of 16 KiB or more would be new from the system each time, and
# half of the lane's processor time would go into that. From here on only for a megabyte or more.
CLEARED = "clear_shadow_mmap_threshold=1048576"

DEV = Build("dev", ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSHMCOLL_WERROR=ON"))
ASAN_WHOLE = Build(
    "asan-whole",
    ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSHMCOLL_SANITIZE=address,undefined"),
    {"ASAN_OPTIONS": f"detect_leaks=1:{CLEARED}", "UBSAN_OPTIONS": "print_stacktrace=1"},
)
# The kernels are one source. Compiled once instead of three times, they save a fifth of the build.
ASAN = dataclasses.replace(
    ASAN_WHOLE, name="asan", options=(*ASAN_WHOLE.options, "-DSHMCOLL_ISAS=OFF")
)
# Without what is optional: the lane shows that it is, and no thread has to do with it.
WITHOUT = ("-DSHMCOLL_NUMA=OFF", "-DSHMCOLL_URING=OFF", "-DSHMCOLL_USDT=OFF", "-DSHMCOLL_ISAS=OFF")
TSAN = Build(
    "tsan",
    ("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSHMCOLL_SANITIZE=thread", *WITHOUT),
    # The keeper lives as long as the process, on purpose: nobody waits a second for its end.
    {"TSAN_OPTIONS": f"halt_on_error=1:report_thread_leaks=0:atexit_sleep_ms=20:{CLEARED}"},
)
# The one build without optimisation.
BARE = Build("bare", ("-DCMAKE_BUILD_TYPE=Debug", "-DSHMCOLL_TEST_SLICE=bare", *WITHOUT))
AARCH64 = Build(
    "aarch64",
    (
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
        "-DSHMCOLL_WERROR=ON",
        f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/tests/aarch64/toolchain.cmake",
        "-DSHMCOLL_GTEST_SOURCE=/usr/src/googletest",
        "-DSHMCOLL_NUMA=OFF",  # Debian has them for AArch64 only as a second architecture
        "-DSHMCOLL_URING=OFF",
    ),
    {"SHMCOLL_TEST_FULL": "1"},
)


@dataclasses.dataclass
class Lane:
    name: str  # of two that run as one, with a + between: one for each of the files
    build: Build | None = None
    labels: str = ""  # a regular expression over ctest labels
    targets: tuple[str, ...] = ()  # what to build; all when it is empty
    files: tuple[str, ...] = ()  # for pytest
    options: tuple[str, ...] = ()  # its options, or ctest's
    alone: bool = False  # its tests have the machine for themselves, and its memory as users do
    calm: bool = False  # one of its tests for each job; others' tests have short time-outs
    waits: bool = False  # its tests leave the CPU idle most of the time: more of them run at once
    computes: bool = False  # in builds of earlier lanes: it may run while others leave the CPU idle
    background: bool = False  # it does so in this run
    folder: str = ""  # of the build, for ctest: two of them at once write to folders of their own
    exclusions: pathlib.Path | None = None  # lists tests of ctest that must fail
    at_least: int = 0  # tests, with these
    without: str = ""  # tests that a longer lane runs: a regular expression over names


# What a sanitizer sees nothing new in: two tests repeat others with settings of all kinds, and one waits
# twice for what does not end. In the default lanes they run without a sanitizer, and in `--long sanitizers`
# with it.
ALIKE = "|".join(
    (
        r"/(SmallArenas|Tunings)\.ChangeNoResult$|/Endless\.[^/]+/Loads",
        # Which hosts exchange messages is arithmetic: this map has all that the others have.
        r"/EveryMap\.[^/]+/(TwoOf|Cyclic)",
        # More hosts than two take the same code; `--long sanitizers` has eight, `--long long` 64.
        r"/Hosts\w*\.[^/]+/EightOfTwo",
    )
)
# With one mapping for all ranks the same code runs as with one for each. Numbers of all values are no
# matter of memory.
# Which path a setting or the number of CPUs chooses is a decision over numbers: every path is in other tests.
CHOICES = r"|/Tunings\.(SumsBySlices|ReducesThatAreSpread)|/Room\.|/Unpipelined\.ChangesNoResult$"
# A map of hosts is arithmetic, too: the one that stays has hosts of one, two and three ranks. Messages of 2
# ranks are pairs of 3.
ALIKE_IN_ASAN = ALIKE + CHOICES + r"|/OneMapping|^kernels/KernelNumbers\."
ALIKE_IN_ASAN += (
    r"|/Hosts\w*\.[^/]+/(TwoOfTwo|TwoOfTwoCyclic|ThreeAndTwo)( |$)|/Messages\.[^/]+/Processes2( |$)"
)
# What the thread sanitizer sees nothing new in, or nothing at all.
ALIKE_IN_TSAN = "|".join(
    (
        ALIKE + CHOICES + r"|/Tunings\.",
        # One thread makes both ranks' passes; and one of the tests counts on copies that are faster than
        # the sanitizer's on some processors.
        r"/Unasked\.Are",
        # Worlds that take no other code than those of 3 ranks; messages of 2 are pairs of 3.
        r"/OneMapping[45]|/Messages\.[^/]+/OneMapping2( |$)|/Unpipelined\.ChangesNoResult$",
        # Layouts and pools of copies; OneMapping3Arena has the threads of all of them.
        r"/Pools\.[^/]+/OneMapping(2|3Small)|/PoolsOfTwoSizes|/AutomaticPools",
        # A rank of CUDA is a process. What races in it does not depend on how long a sum is.
        r"^cuda/.*\.OfLargeSums",
        # A slab is a peer's memory whichever way it was mapped. Fd and RelayHost together have both routes,
        # with kernels and without.
        r"/Legacy( |$)|^cuda/(Ways|Relays)/.*/(Host|Relay)( |$)",
        # Every field that differs takes the same way to all ranks.
        r"^cuda/Of/Mismatch\.[^/]+/[^k]",
        # When a driver wakes a stream, and that contexts take turns, is the stand-in's.
        r"^cuda/.*/Results\.AreTheSameWhere",
        # What waits for seconds, a death and a leaving end streams as an abort does. Which rooms, which GPUs
        # and when the relay goes off are decisions over numbers.
        r"^cuda/(Timeout|Stopped|Death|Close)\.",
        r"^cuda/Relay\.(HasRoom|SumsInTwo|BacksOff|IsOff|IsTakenUpTo)",
        r"^cuda/CudaComm\.(RanksOfOneGpu|CrossesGpus)",
        # Which hosts have which ranks is arithmetic. Ranks race on one host, as in TwoOfTwoCyclic.
        r"/Hosts\.[^/]+/TwoAndOne",
        # Which rate makes which chunks is arithmetic; HostsRate.IsMeasured has the threads that measure.
        r"/HostsAnyRate\.|/HostsRate\.TheSlowestHost",
        # Short sums have all threads of a group over hosts.
        r"/Hosts\.LongSums",
        r"/EveryMap\.EachPair|/HostsDiffer\.AnEngines",
        # The other long hand-offs have the same lines and buffers.
        r"/LongHandOff\.(LeaveTensors|NeedThe|ComeBack)|/EarlyRoots\.BeginAmongThree|/HandOff\.OfEachPair",
        # Two ranks of this one stay.
        r"/Stress\.[^/]+/OneMapping8",
        # Lines alone carry the messages of two ranks, too.
        r"/Messages\.(ArePutAside|OfEverySize)[^/]+/OneMapping3LinesOnly",
    )
)

# Without a sanitizer. What one mapping for all ranks can show is in the thread sanitizer's lane; of seven
# ranks those that are processes stay.
ALIKE_IN_UNIT = r"^conformance/.*/OneMapping|^conformance/.*/OwnMapping7"

GLOOS_OWN = "monitored or logging_data_cpu or no_sync-4 or test_all_reduce_sum-4 or get_backend"

DEFAULT_LANES = (
    Lane("lint", DEV, "^lint$", ("tests_lint",)),
    Lane("unit", DEV, "^unit$|^kernels$|^conformance$|^clients$", without=ALIKE_IN_UNIT),
    # tests/CMakeLists.txt lists the programs of both slices.
    Lane("asan", ASAN, "-slice$", ("tests_slice",), without=ALIKE_IN_ASAN),
    Lane("tsan", TSAN, "-slice$", ("tests_slice",), without=ALIKE_IN_TSAN),
    # As one: each worker imports torch and looks for the tests once instead of three times.
    Lane(
        "python+clients-python+fuzz",
        files=("tests/python", "tests/clients", "tests/fuzz"),
        options=("-m=not long",),
    ),
    # In the background of the next ones, whose tests leave the CPU idle.
    Lane("models", DEV, "^models$", computes=True, folder="tests/models"),
    Lane("torch", files=("tests/torch_suite",), calm=True),
    # Tests that ask for gloo's name, words or type, or that only gloo passes; `--long torch` has all.
    Lane(
        "torch-gloo",
        files=("tests/torch_suite",),
        options=("--backend=for-gloo", f"-k={GLOOS_OWN}"),
        calm=True,
    ),
    Lane("cuda", DEV, "^cuda$", ("tests_cuda",), waits=True),
    Lane(
        "hosts+proc-python",
        files=("tests/hosts", "tests/proc"),
        options=("-m=not long and not alone",),
        waits=True,
    ),
    Lane("proc", DEV, "^proc$", waits=True),
    Lane("deaths", DEV, "^deaths$", alone=True),
    Lane("proc-timed", files=("tests/proc",), options=("-m=alone and not long",), alone=True),
)


def whole(name: str, build: Build, *folders: str) -> Lane:
    """All tests of these folders, with all modes and rounds of each."""
    more = {**build.environment, "SHMCOLL_TEST_FULL": "1"}
    return Lane(
        name,
        dataclasses.replace(build, environment=more),
        "|".join(f"^{folder}(-slice|-sanitized)?$" for folder in folders),
        tuple(f"tests_{folder}" for folder in folders),
    )


LONG_LANES = {
    "sanitizers": (
        whole("asan", ASAN_WHOLE, "unit", "kernels", "conformance", "cuda"),
        whole("tsan", TSAN, "unit", "conformance", "cuda"),
    ),
    "fuzz": (Lane("fuzz", files=("tests/fuzz/test_fuzz.py",)),),
    "fuzz-peer": (
        Lane("fuzz-peer", ASAN, "^fuzz-peer$", ("peer_lies_test",), options=("-V",), alone=True),
    ),
    "fuzz-store": (
        Lane("fuzz-store", ASAN, "^fuzz-store$", ("store_damage_test",), options=("-V",)),
    ),
    "soak": (Lane("soak", files=("tests/proc/soak",), alone=True),),
    "torch": (
        Lane("torch", files=("tests/torch_suite",), options=("--worlds=3,4,8",), calm=True),
        Lane(
            "torch-gloo", files=("tests/torch_suite",), options=("--backend=for-gloo",), calm=True
        ),
        Lane(
            "torch-hosts",
            files=("tests/torch_suite",),
            options=("--backend=over-hosts", "--worlds=3,4"),
            calm=True,
        ),
    ),
    "hosts": (Lane("hosts", files=("tests/hosts",), waits=True),),
    "long": (
        whole("unit", DEV, "unit", "kernels", "conformance"),
        Lane("bare", BARE, "^unit-slice$", ("tests_slice",)),
        Lane("python-long", files=("tests/python",), options=("-m=long",)),
        # As most who install the wheel: their Python, or their torch, is another one.
        Lane(
            "python-without-module",
            files=("tests/python",),
            options=("-m=not long", "--without-module"),
        ),
        Lane("fuzz-long", files=("tests/fuzz",), options=("-m=long",)),
        Lane(
            "proc-python-long",
            files=("tests/proc",),
            options=("-m=long and not alone",),
            waits=True,
        ),
        Lane("proc-timed-long", files=("tests/proc",), options=("-m=long and alone",), alone=True),
    ),
    "hosts-kills": (
        Lane("hosts-kills", files=("tests/hosts/test_kills.py",), options=("-s",), alone=True),
    ),
    "clients": (Lane("clients-long", files=("tests/clients/long",)),),
    "cuda-kills": (
        Lane("cuda-kills", DEV, "^cuda-kills$", ("tests_cuda",), options=("-V",), alone=True),
    ),
    "models": (Lane("models", DEV, "^models-whole$", ("tests_unit",)),),
    "stress": (Lane("stress", DEV, "^stress$", ("tests_conformance",), alone=True),),
    "browser": (Lane("browser", files=("tests/browser",)),),
    "wheel": (Lane("wheel", files=("tests/wheel",), alone=True),),
    "frameworks": (Lane("frameworks", files=("tests/frameworks",), options=("-s",), alone=True),),
    "huge": (Lane("huge", files=("tests/huge",), alone=True),),
    "aarch64": (
        Lane(
            "aarch64",
            AARCH64,
            "^unit$|^kernels$|^conformance(-sanitized)?$",
            ("tests_unit", "tests_kernels", "tests_conformance"),
            alone=True,
            at_least=1022,
            exclusions=ROOT / "tests/aarch64/excluded.txt",
        ),
    ),
}


@dataclasses.dataclass
class Result:
    lane: str
    ok: bool
    seconds: float
    totals: str
    skipped: list[str]
    failed: list[str] = dataclasses.field(default_factory=list)  # each with what it said, in short
    cpus: float = 0.0  # used, on average


@dataclasses.dataclass
class Spent(threading.local):
    """CPU seconds of the commands that this thread has run, with all processes they have waited for."""

    seconds: float = 0.0


spent = Spent()


def run(
    command: list[str], more: dict[str, str] | None = None, background: bool = False
) -> tuple[int, str]:
    """Runs and shows a command, in the tests' environment and `more`; its status and what it printed.
    The output of one in the background is shown at its end, in one piece."""
    said = f"+ {' '.join(command)}\n"
    if not background:
        print(said, end="", flush=True)
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**environment(os.environ), **(more or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        if not background:
            sys.stdout.write(line)
            sys.stdout.flush()
        lines.append(line)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    spent.seconds += used.ru_utime + used.ru_stime
    output = "".join(lines)
    if background:
        print(said + output, end="", flush=True)
    return process.returncode, output


# What a failed test prints that tells why; of all other output only the end is repeated after the lanes.
TELLING = re.compile(
    r": Failure$|: runtime error: |^SUMMARY: |^==\d+==ERROR|^WARNING: ThreadSanitizer|^E  |Assertion"
)
LINES_OF_A_FAILURE = 10

# What gtest has compared, and where a sanitizer's error was, are in the lines after it.
EXPLAINED = (": Failure", ": runtime error: ")


def in_short(text: str) -> str:
    """The telling lines, with what explains them, or the last ones where none tells anything."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    kept = []
    for at, line in enumerate(lines):
        if TELLING.search(line):
            kept += lines[at : at + (4 if any(mark in line for mark in EXPLAINED) else 1)]
    return "\n".join((kept or lines[-LINES_OF_A_FAILURE:])[:LINES_OF_A_FAILURE])


def failures_of_ctest(output: str) -> list[str]:
    blocks = re.findall(
        r"^ *\d+/\d+ Test +#\d+: (\S+) \.*[^*\n]*\*\*\*(\w+).*\n"
        r"((?:(?! +Start +\d+:| *\d+/\d+ Test +#|\d+% tests passed).*\n)*)",
        output,
        re.M,
    )
    return [
        f"{name} ({how})\n{in_short(text)}"
        for name, how, text in blocks
        if how not in ("Skipped", "Disabled", "Not")
    ]


def failures_of_pytest(output: str) -> list[str]:
    blocks = re.findall(r"^_{3,} (.*?) _{3,}\n((?:(?!_{3,} .* _{3,}$|={3,} ).*\n)*)", output, re.M)
    return [f"{name}\n{in_short(text)}" for name, text in blocks]


built: set[str] = set()  # whole builds of this run, in which a later lane has nothing to build


def shipped_kernels() -> str:
    """setup.py's build, if there is one with kernels for AVX, which take as long to compile as the rest of the
    library: tests use those that users get. It is brought up to date first."""
    core = ROOT / "build" / "core"
    found = core.glob("src/shm/CMakeFiles/shmcoll_kernels_avx*.dir/kernel/kernel_isa.c.o")
    names = sorted(file.parents[1].stem for file in found)
    if not names or run(["cmake", "--build", str(core), "--target", *names])[0] != 0:
        return ""
    return str(core)


def build(target: Build, jobs: int, targets: tuple[str, ...]) -> bool:
    if target.name in built:
        return True
    configure = ["cmake", "-S", ".", "-B", str(target.path), "-DSHMCOLL_TESTS=ON"]
    if shutil.which("ninja") and not (target.path / "CMakeCache.txt").exists():
        configure += ["-G", "Ninja"]  # make takes a fifth longer, in which it only starts itself
    configure += [*target.options, f"-DPython3_EXECUTABLE={sys.executable}"]
    if target.name == DEV.name:
        configure.append(f"-DSHMCOLL_KERNELS={shipped_kernels()}")
    status, _ = run([*configure, "--log-level=WARNING"])
    if status == 0:
        command = ["cmake", "--build", str(target.path), "-j", str(jobs)]
        command += ["--target", *targets] if targets else []
        status, _ = run([*command, "--", "--quiet"])
    if status == 0 and not targets:
        built.add(target.name)
    return status == 0


def those_without(command: list[str], pattern: str) -> str:
    """The tests of this command of ctest whose names do not match, for its -I, which counts those that its -L and -R
    leave. Its own -E takes no expression with more than nine groups: it then leaves out nothing, and does not say so.
    """
    listing = [*command, "--show-only=json-v1"]
    listed = subprocess.run(listing, capture_output=True, check=True, text=True).stdout
    names = [test["name"] for test in json.loads(listed)["tests"]]
    numbers = [at for at, name in enumerate(names, 1) if not re.search(pattern, name)]
    first, *others = numbers or [len(names) + 1]
    return ",".join(map(str, [first, first, 1, *others]))


def run_ctest(lane: Lane, jobs: int, only: str) -> Result:
    assert lane.build is not None
    begun = time.monotonic()
    if not lane.background and not build(lane.build, jobs, lane.targets):
        return Result(lane.name, False, time.monotonic() - begun, "does not build", [])
    command = ["ctest", "--test-dir", str(lane.build.path / lane.folder), "-L", lane.labels]
    if only:
        command += ["-R", only]
    if lane.without:
        command += ["-I", those_without(command, lane.without)]
    command += ["--output-on-failure", "--no-tests=error" if not only else "--no-tests=ignore"]
    each = WAITING_PROGRAMS_PER_JOB if lane.waits else TESTS_PER_JOB
    each = 1 if lane.background else each  # more would delay the other lane's tests
    command += ["-j", "1" if lane.alone else str(each * jobs), *lane.options]
    command = ["nice", "-n", "19", *command] if lane.background else command
    report = lane.build.path / f"{lane.name}.xml"
    if lane.exclusions:
        report.unlink(missing_ok=True)
        command += ["--output-junit", str(report)]
    more = lane.build.environment
    if lane.build.name == DEV.name and not lane.alone:
        more = {**more, **KEPT_MEMORY}
    status, output = run(command, more, lane.background)
    totals = re.findall(r"^\d+% tests passed.*$", output, re.M)
    skipped = re.findall(r"^\s+\d+ - (\S+) \((?:Skipped|Disabled|Not Run)\)$", output, re.M)
    total = totals[-1] if totals else "no tests"
    ok = status == 0
    failed = failures_of_ctest(output)
    if lane.exclusions:
        complaints, excluded = judge(lane, report, bool(only))
        failed = complaints
        print("\n".join(complaints))
        total += f"; {excluded} excluded, {len(complaints)} complaints"
        ok = not complaints
    return Result(lane.name, ok, time.monotonic() - begun, total, skipped, failed)


def judge(lane: Lane, report: pathlib.Path, partly: bool) -> tuple[list[str], int]:
    """Returns the errors of a lane in which some tests must fail, and how many of these failed."""
    assert lane.exclusions is not None
    patterns = patterns_of(lane.exclusions)
    cases = xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ()
    states = {case.get("name", ""): case.get("status") for case in cases}
    listed = [name for name in states if any(re.search(one, name) for one in patterns)]
    failed = [name for name in states if states[name] == "fail"]
    complaints = [f"fails: {name}" for name in failed if name not in listed]
    complaints += [f"excluded, but does not fail: {name}" for name in listed if name not in failed]
    if partly:
        return complaints, len(listed)
    for pattern in patterns:
        if not any(re.search(pattern, name) for name in states):
            complaints.append(f"excluded, but there is no such test: {pattern}")
    if len(states) < lane.at_least:
        complaints.append(f"{len(states)} tests, where there were {lane.at_least}")
    return complaints, len(listed)


def run_pytest(lane: Lane, jobs: int, only: str) -> Result:
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--durations=5"]
    command += [*lane.options, *lane.files]
    if not lane.alone:
        each = 1 if lane.calm else WAITING_TESTS_PER_JOB if lane.waits else PYTHON_TESTS_PER_JOB
        command += ["-n", str(round(each * jobs))]
    if only:
        command += ["-k", only]
    status, output = run(command)
    totals = re.findall(
        r"^(?:=+ )?(\d+ (?:passed|failed|error|skipped|deselected).*?)(?: =+)?$", output, re.M
    )
    skipped = re.findall(r"^SKIPPED \[\d+\] (.*)$", output, re.M)
    nothing = only and status == 5
    total = totals[-1] if totals else "no tests"
    total += "".join(f"; {own}" for own in re.findall(r"^totals: (.*)$", output, re.M))
    ok = status == 0 or bool(nothing)
    failed = failures_of_pytest(output)
    return Result(lane.name, ok, time.monotonic() - begun, total, skipped, failed)


def run_lane(lane: Lane, jobs: int, only: str) -> Result:
    print(f"\n==== {lane.name}{', while others wait' if lane.background else ''} ====", flush=True)
    before = spent.seconds
    result = run_ctest(lane, jobs, only) if lane.build else run_pytest(lane, jobs, only)
    result.cpus = (spent.seconds - before) / result.seconds
    return result


def run_lanes(lanes: Sequence[Lane], jobs: int, only: str) -> list[Result]:
    """Runs lanes in their order. Where there are lanes that leave the CPU idle, those that compute run in
    the background: they begin with the first of these, and end before one that is alone."""
    idle = [lane for lane in lanes if lane.waits or lane.calm]
    computing = [lane for lane in lanes if lane.computes and idle]
    begun: list[concurrent.futures.Future[Result]] = []
    results: list[Result] = []
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        for lane in lanes:
            if lane in computing:
                continue
            if lane in idle and not begun:
                background = [dataclasses.replace(one, background=True) for one in computing]
                begun = [pool.submit(run_lane, one, jobs, only) for one in background]
            if lane.alone:
                concurrent.futures.wait(begun)
            results.append(run_lane(lane, jobs, only))
    return results + [one.result() for one in begun]


def patterns_of(file: pathlib.Path) -> list[str]:
    """Regular expressions over names of tests, one a line; each has its reason after a #."""
    lines = file.read_text().splitlines()
    return [line.split("#")[0].strip() for line in lines if line.split("#")[0].strip()]


def lanes_named(lanes: tuple[Lane, ...], name: str) -> list[Lane]:
    """The lane of that name, or that part of one."""
    found = []
    for lane in lanes:
        parts = lane.name.split("+")
        if lane.name == name:
            found.append(lane)
        elif name in parts:
            file = lane.files[parts.index(name)]
            found.append(dataclasses.replace(lane, name=name, files=(file,)))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="lanes and tests whose name contains this")
    parser.add_argument("--long", choices=LONG_LANES, help="these lanes instead")
    parser.add_argument(
        "--prepare", action="store_true", help="build what needs no Python; no test"
    )
    options = parser.parse_args()
    if options.prepare:
        slices = [lane for lane in DEFAULT_LANES if lane.build in (ASAN, TSAN)]
        return 0 if all(build(lane.build, options.jobs, lane.targets) for lane in slices) else 1
    # Processes that tests kill leave no file in the tree.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    lanes = LONG_LANES[options.long] if options.long else DEFAULT_LANES
    named = lanes_named(lanes, options.only)
    only = "" if named else options.only
    results = run_lanes(named or lanes, options.jobs, only)
    allowed = patterns_of(SKIPS)
    surprises = [
        f"{result.lane}: {skip}"
        for result in results
        for skip in result.skipped
        if not any(re.search(pattern, skip) for pattern in allowed)
    ]
    print("\n==== skipped ====")
    for result in results:
        for skip in result.skipped:
            print(f"{result.lane}: {skip}")
    for surprise in surprises:
        print(f"not on tests/skips.txt: {surprise}")
    if any(result.failed for result in results):
        print("\n==== failed ====")
    for result in results:
        for failure in result.failed:
            print(f"{result.lane}: {failure}")
    print("\n==== totals ====")
    for result in results:
        mark = "ok  " if result.ok else "FAIL"
        cost = f"{result.seconds:6.0f} s, {result.cpus:.1f} CPUs"
        print(f"{mark} {result.lane:26} {cost}  {result.totals}")
    return 0 if all(result.ok for result in results) and not surprises else 1


if __name__ == "__main__":
    sys.exit(main())
