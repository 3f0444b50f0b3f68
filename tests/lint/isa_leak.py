#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Looks into object files for instructions that must not be there.

  isa_leak.py [--objdump PROG] [--nm PROG] SET OBJECT... [SET OBJECT...]

SET is base, avx2 or avx512 and holds for the objects after it. Checked:
  - base: nothing beyond SSE2. One AVX instruction in it kills the process on an older CPU.
  - avx2: nothing of AVX-512.
  - all: no fused multiply-add, whatever the compiler was told; results must not depend on it.
  - an object of a named set other than base defines one global symbol: an inline function shared
    between sets would let the linker keep the copy for the newest CPU.
"""

import argparse
import re
import subprocess
import sys

# The operands and mnemonics as `objdump -d --no-show-raw-insn` prints them (AT&T).
AVX = re.compile(r"\tv(?!err|erw)[a-z]|%[yz]mm|%k[0-7]")
AVX512 = re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2[0-9]|3[01])")
FUSED = re.compile(r"\tv?fn?m(add|sub)|\tfml[as]\b")
FORBIDDEN = {
    "base": [("AVX", AVX), ("fused", FUSED)],
    "avx2": [("AVX-512", AVX512), ("fused", FUSED)],
    "avx512": [("fused", FUSED)],
}


def instructions(objdump, path):
    """Yields (function, instruction) of an object file."""
    listing = subprocess.run(
        [objdump, "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True
    ).stdout
    function = "?"
    for line in listing.splitlines():
        if line.endswith(">:"):
            function = line[line.index("<") + 1 : -2]
        elif "\t" in line:
            yield function, line[line.index("\t") :].split("#")[0]


def globals_of(nm, path):
    listing = subprocess.run(
        [nm, "--defined-only", "--extern-only", path], check=True, capture_output=True, text=True
    ).stdout
    names = [line.split()[-1] for line in listing.splitlines() if line.strip()]
    return [name for name in names if not name.startswith("__odr_asan.")]


def leaks(isa, listing):
    """The first instruction per function and kind that a set must not have."""
    found = {}
    for function, instruction in listing:
        for what, pattern in FORBIDDEN[isa]:
            if pattern.search(instruction):
                found.setdefault((function, what), instruction.strip().replace("\t", " "))
    return [f"{what} instruction in {name}: {text}" for (name, what), text in found.items()]


def check_object(args, isa, path):
    listing = list(instructions(args.objdump, path))
    errors = leaks(isa, listing)
    if not listing:
        errors.append("no instructions found; is this an object file?")
    if isa != "base":
        symbols = globals_of(args.nm, path)
        if symbols != [f"shc_kernel_set_{isa}"]:
            errors.append(f"defines {', '.join(symbols)}, not shc_kernel_set_{isa} alone")
    return [f"{path}: {error}" for error in errors]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--nm", default="nm")
    parser.add_argument("words", nargs="+")
    args = parser.parse_args()
    errors = []
    isa = None
    for word in args.words:
        if word in FORBIDDEN:
            isa = word
        elif isa is None:
            parser.error("the first word must be a set")
        else:
            errors += check_object(args, isa, word)
    print("\n".join(errors) if errors else "no leak")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
