#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Memory that another process may change is read once, through base/once.h or base/atomic.h.

In src/shm and src/cuda_ipc, this holds for members of a struct shc_*_shm. A member may be stored to. Its
address may go to an atomic operation, to SHC_READ_ONCE() or to shc_copy_once(). Everything else is a plain
load, which the compiler may repeat. Bytes in slots, cells and buffers may be copied to and from; numbers
among them are read only through once.h. (TRUST-1)
"""

import re

from cfunctions import functions
from common import Finding, c_files, main
from csource import Source

# Give a struct of shared memory.
STRUCTS = (
    r"shc_seat_(?:header|abort|decision|member|identity_shm|progress|bell|call|call_record|reason|offer|cma"
    r"|mail_bell)|shc_pair_(?:ack|line|line_for|draft)"
    r"|shc_host_(?:header|part|lane|word|end)"
)
# Give bytes of it.
BYTES = (
    r"shc_seat_(?:small_slot|slot_in|relay)|shc_(?:task|call)_payload|shc_round_place"
    r"|shc_arena_(?:bcast_slots|cells)|shc_(?:task|exchange)_(?:write|read)_cell|shc_place_at|shc_hand_off_at"
    r"|shc_p2p_piece|shc_host_(?:halves|counts)|table_of|packed_at"
)
CALL = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"  # arguments, parentheses in them
# May be given the address of a word of it.
MAY_HAVE = re.compile(
    r"shc_a(?:32|64)_\w+|shc_(?:copy_(?:text_)?once|line_is|liveness_\w+|host_(?:device|pointer|index))"
    r"|shc_lane_(?:tell|await|done|published)"
    r"|shc_board_(?:store|add)\w*|begin_change|store32|write_kept|number(?:32|64)"
    r"|shc_wait_(?:has_)?reached|shc_os_futex_\w+|shc_bell_\w+|shc_cu_pointer|SHC_READ_ONCE|sizeof"
    r"|shc_timeline_init|shc_tuning_share"  # the last one stores there
)
STORES_TO_FIRST = {"memcpy", "memset", "snprintf", "shc_buf_read", "store_text"}
READS = {"memcpy", "memcmp", "strlen", "strnlen", "strcmp", "snprintf"}

# (a part of the path, the function): it stores to memory that it owns, or only looks at addresses.
ALLOWED = {
    ("cuda_ipc/mail.c", "init_lane"): "compares addresses of records, for the device",
    ("cuda_ipc/capture.c", "shc_capture_init"): "keeps addresses of words",
    ("cuda_ipc/lane.c", "shc_lane_init"): "keeps addresses of words",
    ("cuda_ipc/hostarena.h", "shc_host_lane"): "gives an address",
    ("proto/deadlock.c", "read_part"): "has read a copy of its own",
}

DECLARED = re.compile(r"struct shc_\w+_shm \*(?:const )?(\w+)(?=\s*[,;)=])")
RAW = re.compile(rf"\b\w+ \*(?:const )?(\w+)\s*=[^;]*?\b(?:{BYTES})\s*\(")
ARRAYS = {"data", "payload", "records"}  # an address, not a load


def enclosing(code, at):
    """The function whose argument is at that offset, and which one it is; ("", 0): none."""
    depth = index = 0
    while at > 0:
        at -= 1
        char = code[at]
        if char in ")]}":
            depth += 1
        elif char in "([{":
            if depth == 0:
                name = re.search(r"(\w+)\s*$", code[:at])
                if char == "(" and name and name.group(1) not in ("if", "while", "for", "return"):
                    return name.group(1), index
                if char != "(":
                    return "", 0
                index = 0
            else:
                depth -= 1
        elif char == "," and depth == 0:
            index += 1
        elif char == ";" and depth == 0:
            return "", 0
    return "", 0


def is_store(code, end):
    """Is what ends there assigned to, and not read?"""
    return re.match(r"\s*=(?!=)", code[end:]) is not None


def is_fine(code, begin, end, field):
    """Is the expression, which names a member or an element, no plain load?"""
    name, index = enclosing(code, begin)
    if MAY_HAVE.fullmatch(name) or is_store(code, end):
        return True
    if index == 0 and name in STORES_TO_FIRST:
        return True
    before = code[:begin].rstrip()
    if before.endswith("sizeof"):
        return True
    if before.endswith("&") and not before.endswith("&&"):
        line = code[code.rfind(";", 0, begin) + 1 : begin]
        words = r"\bshc_a(?:32|64) \*|struct shc_\w+_shm \*(?:const )?\w+\s*="
        return field in ARRAYS or re.search(words, line) is not None
    return field in ARRAYS and code[end - 1] != "]" and name not in READS


def members(code):
    """(begin, end, field, whole) of what is read of a struct of shared memory."""
    names = set(DECLARED.findall(code))
    of = rf"(?:\b(?:{STRUCTS})\s*{CALL}"
    of += rf"|(?<![\w.>])(?:{'|'.join(sorted(names))}))" if names else ")"
    path = r"\s*->\s*(\w+)((?:\s*\.\s*\w+|\s*\[[^\]]*\])*)"
    for match in re.finditer(of + path, code):
        last = re.findall(r"\.\s*(\w+)", match.group(2))
        yield match.start(), match.end(), last[-1] if last else match.group(1)
    for match in re.finditer(rf"\*\s*{of}(?![\w\s]*(?:->|\())", code):
        before = code[: match.start()].rstrip()
        if not re.search(r"[\w)\]]$", before) or re.search(r"\breturn$", before):
            yield match.start(), match.end(), ""


def raw(code):
    """(begin, end, field) of what is read of raw bytes: elements, casts, and functions that read."""
    for name in RAW.findall(code):
        for match in re.finditer(
            rf"(?<![\w.>])(?:{name}\s*\[[^\]]*\]|\*\s*{name}\b(?!\s*=[^=]))", code
        ):
            if not re.search(r"(?:\w\s|const )$", code[: match.start()]) or "[" in match.group():
                yield match.start(), match.end(), ""
        for match in re.finditer(rf"(?<![\w.>]){name}\b(?!\s*\[)", code):
            called, index = enclosing(code, match.start())
            if called in READS and (index > 0 or called == "memcmp"):
                yield match.start(), match.end(), ""
    cast = r"\(\s*(?:const )?(?!char\b|void\b|unsigned char\b)(?:struct )?\w+ \*\)\s*(?:\((?:const )?void \*\)\s*)?"
    for match in re.finditer(rf"{cast}(?:{BYTES})\s*\(", code):
        yield match.start(), match.end(), ""
    for match in re.finditer(rf"\b(?:{BYTES})\s*\(", code):
        called, index = enclosing(code, match.start())
        if called in READS and (index > 0 or called == "memcmp"):
            yield match.start(), match.end(), ""


HOMES = ("src/shm/proto/seat.h", "src/shm/proto/pair.h", "src/cuda_ipc/hostarena.h")


def check(root):
    for path in c_files(root, "src/shm", "src/cuda_ipc"):
        if path.startswith(("src/shm/kernel/", "src/cuda_ipc/kernel/", "src/shm/os/")):
            continue
        source = Source.load(root, path)
        for function in functions(source):
            if any(path.endswith(p) and function.name == n for p, n in ALLOWED):
                continue
            lines = source.bare.split("\n")
            code = "\n".join(lines[function.first - 1 : function.last])
            found = list(members(code))
            if path not in HOMES:
                found += raw(code)
            for begin, end, field in found:
                if not is_fine(code, begin, end, field):
                    text = " ".join(code[begin:end].split())
                    yield Finding(
                        path,
                        function.first
                        + code.count(
                            "\n", 0, begin + len(code[begin:end]) - len(code[begin:end].lstrip())
                        ),
                        f"{text}: a plain load of shared memory; copy it once (base/once.h)",
                    )


if __name__ == "__main__":
    main(check, __doc__)
