# SPDX-License-Identifier: BSD-3-Clause
"""once.py can fail."""

import unittest

import once
from planting import LintTest

PATH = "src/shm/proto/x.c"
LINE = "struct shc_line_shm *line"

# (parameters, a statement that loads shared memory as any other)
FAULTS = (
    (LINE, "return line->bytes;"),
    (LINE, "if (line->kind == 1) f();"),
    (LINE, "n = line->head.bytes;"),
    (LINE, "f(line->head.piece);"),
    (LINE, "f(&line->head);"),
    (LINE, "line->piece += 1;"),
    (LINE, "memcpy(to, &line->head, sizeof line->head);"),
    (LINE, "memcpy(to, line->data, 8);"),
    (LINE, "copy = *line;"),
    (LINE, "return *line;"),
    (LINE, "f(line->address[rank]);"),
    ("struct shc_seat *seat", "copy = *shc_seat_header(seat);"),
    ("struct shc_seat *seat", "n = shc_seat_header(seat)->arena_limit;"),
    ("struct shc_seat *seat", "f(&shc_seat_identity_shm(seat, g(rank))->said);"),
    (
        "struct shc_seat *seat",
        "const struct shc_os_process *p = &shc_seat_identity_shm(seat, 1)->said.process;",
    ),
    ("struct shc_task *task", "t = (const uint64_t *)(const void *)shc_task_payload(task, rank);"),
    ("struct shc_task *task", "memcpy(&x, shc_task_payload(task, rank), sizeof x);"),
    ("struct shc_task *task", "if (memcmp(shc_task_payload(task, 1), mine, 8) != 0) f();"),
    ("struct shc_task *task", "char *slot = shc_task_payload(task, 1); n = slot[0];"),
    (
        "struct shc_task *task",
        "const uint64_t *counts = shc_host_counts(host, 1, 2); f(counts[3]);",
    ),
    ("struct shc_host *host", "record = shc_host_part(host, r)->records[1];"),
)
FINE = (
    (LINE, "line->kind = 1;"),
    (LINE, "line->head.kind = SHC_READ_ONCE(line->head.kind);"),
    (LINE, "n = shc_a64_load_acquire(&line->number);"),
    (LINE, "shc_copy_once(&head, &line->head, sizeof head);"),
    (LINE, "memcpy(line->data, from, sizeof line->data);"),
    (LINE, "shc_a64 *word = &line->number;"),
    (LINE, "const uint8_t *data = line->data;"),
    ("struct shc_line_head *line", "return line->bytes;"),
    ("struct shc_seat *seat", "*shc_seat_header(seat) = header;"),
    ("struct shc_seat *seat", "shc_seat_identity_shm(seat, 0)->said = identity;"),
    ("struct shc_task *task", "shc_copy_once(&x, shc_task_payload(task, rank), sizeof x);"),
    ("struct shc_task *task", "memcpy(shc_task_payload(task, rank), &x, sizeof x);"),
    ("struct shc_task *task", "shc_buf_write(&task->out, 0, shc_task_payload(task, 1), 8);"),
    (
        "struct shc_task *task",
        "uint64_t *counts = shc_host_counts(host, 1, 2); memcpy(counts, x, 8);",
    ),
    (
        "struct shc_task *task",
        "const uint64_t *counts = shc_host_counts(h, 1, 2); f(SHC_READ_ONCE(counts[3]));",
    ),
    ("struct shc_host *host", "f(shc_host_device(host, &shc_host_part(host, r)->records[1]));"),
)


def source(parameters, statement, mark=""):
    return f"void x({parameters})\n{{\n    {statement}{mark}\n}}\n"


class OnceTest(LintTest):
    def test_a_plain_load_is_found(self):
        for parameters, statement in FAULTS:
            with self.subTest(statement):
                faulty = {PATH: source(parameters, statement, "@@")}
                mended = {PATH: source(parameters, "f();")}
                self.expect(once.check, faulty, mended, "plain load")

    def test_stores_and_copies_are_fine(self):
        for parameters, statement in FINE:
            with self.subTest(statement):
                self.expect_clean(once.check, {PATH: source(parameters, statement)})

    def test_a_name_is_looked_at_in_its_function_alone(self):
        clean = source("struct shc_line_head *line", "return line->bytes;")
        text = source(LINE, "line->kind = 1;") + clean
        self.expect_clean(once.check, {PATH: text})

    def test_as_a_command(self):
        self.expect_command("once", {PATH: source(LINE, "return line->bytes;", "@@")})


if __name__ == "__main__":
    unittest.main()
