# SPDX-License-Identifier: BSD-3-Clause
"""layers.py can fail."""

import unittest

import layers
from planting import LintTest


class Layers(LintTest):
    def includes(self, path, faulty, mended, *words):
        text = "/* x */\n#include {}\n"
        files = {path: text.format(faulty + "@@")}, {path: text.format(mended)}
        self.expect(layers.check, *files, *words)

    def test_a_lower_layer_never_sees_a_higher_one(self):
        for folder, higher in (("base", "os"), ("os", "proto"), ("coll", "comm"), ("exec", "coll")):
            lower = f'"shm/{folder}/y.h"'
            self.includes(f"src/shm/{folder}/x.c", f'"shm/{higher}/y.h"', lower, higher)

    def test_higher_layers_see_lower_ones(self):
        seen = ('"shm/shmcoll.h"', '"shm/base/a.h"', '"shm/os/b.h"', '"shm/kernel/c.h"')
        text = "".join(f"#include {name}\n" for name in (*seen, '"shm/exec/d.h"', "<numa.h>"))
        self.expect_clean(layers.check, {"src/shm/comm/x.c": text, "src/shm/coll/y.h": text})

    def test_proto_and_kernel_never_meet(self):
        self.includes("src/shm/proto/x.c", '"shm/kernel/y.h"', '"shm/os/y.h"', "siblings")
        self.includes("src/shm/kernel/x.c", '"shm/proto/y.h"', '"shm/base/y.h"', "siblings")

    def test_the_core_never_sees_the_parts_beside_it(self):
        for part in ("cuda_ipc", "backend"):
            self.includes("src/shm/comm/x.c", f'"{part}/y.h"', '"shm/coll/y.h"', part)

    def test_the_core_sees_no_foreign_header(self):
        for name in ("vector", "cuda.h", "cuda_runtime.h", "torch/torch.h", "Python.h", "c10/a.h"):
            self.includes("src/shm/os/x.c", f"<{name}>", "<stdio.h>", name)

    def test_the_public_header_includes_nothing_of_ours(self):
        self.includes("src/shm/shmcoll.h", '"shm/base/attrs.h"', "<stdint.h>", "public")

    def test_backend_sees_the_public_headers_alone(self):
        self.includes("src/backend/x.cpp", '"shm/base/attrs.h"', '"shm/shmcoll.h"', "backend")
        self.includes("src/backend/x.cpp", '"cuda_ipc/slab.h"', '"cuda_ipc/cuda_ipc.h"')
        self.expect_clean(layers.check, {"src/backend/x.hpp": '#include "backend/y.hpp"\n'})

    def test_cuda_ipc_sees_header_only_base(self):
        self.includes("src/cuda_ipc/x.c", '"shm/base/status.h"', '"shm/base/atomic.h"', "cuda_ipc")
        self.includes("src/cuda_ipc/x.cu", '"backend/y.hpp"', '"cuda_ipc/y.h"')
        self.includes("src/cuda_ipc/x.cu", "<torch/torch.h>", "<cuda.h>", "backend alone")

    def test_hosts_sees_the_public_header_and_header_only_base(self):
        self.includes("src/hosts/x.c", '"shm/base/status.h"', '"shm/base/clock.h"', "hosts may")
        self.includes("src/hosts/x.c", '"shm/proto/seat.h"', '"shm/shmcoll.h"', "hosts may")
        self.includes("src/hosts/x.c", "<torch/torch.h>", "<pthread.h>", "backend alone")
        self.includes("src/shm/comm/x.c", '"hosts/hosts.h"', '"shm/coll/y.h"', "hosts")

    def test_gpu_kernels_share_the_arithmetic_of_the_core(self):
        inside = '"shm/kernel/ops.h"'
        self.includes("src/cuda_ipc/x.cu", inside, '"cuda_ipc/y.h"', "cuda_ipc may include only")
        self.includes("src/cuda_ipc/kernel/x.cu", '"shm/kernel/kernel.h"', inside)

    def test_includes_are_written_from_src(self):
        for name in ("y.h", "proto/y.h", "../os/y.h"):
            self.includes("src/shm/proto/x.c", f'"{name}"', '"shm/proto/y.h"', "src/")
        self.includes("src/shm/proto/x.c", "<shm/proto/y.h>", '"shm/proto/y.h"', "ours")

    def test_an_include_is_no_macro(self):
        self.includes("src/shm/os/x.c", "HIDDEN", "<stdio.h>", "HIDDEN")
        self.expect_clean(layers.check, {"src/shm/base/atomic.h": "#include MODEL\n"})

    def test_a_folder_has_a_layer(self):
        self.includes("src/shm/misc/x.c", '"shm/base/y.h"', "<stdio.h>", "no layer")

    def test_a_base_name_has_one_folder(self):
        one = {"src/shm/base/ring.h": "\n"}
        self.expect(
            layers.check,
            {**one, "src/shm/proto/ring.c": "@@\n"},
            {**one, "src/shm/base/ring.c": "\n", "src/shm/proto/slot.h": "\n"},
            "rename",
        )

    def test_commented_includes_and_tests_are_left_alone(self):
        text = '/* #include "shm/comm/y.h" */\n// #include "y.h"\n'
        other = {"tests/unit/x_test.cc": '#include "shm/comm/y.h"\n#include "y.h"\n'}
        self.expect_clean(layers.check, {"src/shm/base/x.c": text, **other})

    def test_command(self):
        self.expect_command("layers", {"src/shm/os/x.c": '#include "y.h"@@\n'})


if __name__ == "__main__":
    unittest.main()
