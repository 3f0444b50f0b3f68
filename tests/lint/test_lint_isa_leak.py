# SPDX-License-Identifier: BSD-3-Clause
"""isa_leak.py sees what it is there to see."""

import unittest

import isa_leak


class Leaks(unittest.TestCase):
    def seen(self, isa, instruction):
        return isa_leak.leaks(isa, [("f", "\t" + instruction)])

    def test_avx_in_the_baseline_is_a_leak(self):
        for instruction in ("vaddps %xmm0,%xmm1,%xmm2", "vzeroupper", "kmovq  %rax,%k1"):
            self.assertTrue(self.seen("base", instruction), instruction)

    def test_avx512_in_the_avx2_set_is_a_leak(self):
        for instruction in ("vmovups (%rax),%zmm3", "vaddps %xmm16,%xmm1,%xmm2", "knotw %k1,%k2"):
            self.assertTrue(self.seen("avx2", instruction), instruction)

    def test_a_fused_multiply_add_is_never_right(self):
        for isa in ("base", "avx2", "avx512"):
            for instruction in ("vfmaddsub231pd %zmm0,%zmm1,%zmm2", "fmadd s0, s1, s2, s3"):
                self.assertTrue(self.seen(isa, instruction), instruction)
        self.assertTrue(self.seen("base", "fmla v0.4s, v1.4s, v2.4s"))

    def test_what_a_set_may_use_is_no_leak(self):
        self.assertFalse(self.seen("base", "addps  (%rdi),%xmm0"))
        self.assertFalse(self.seen("base", "verr   %ax"))
        self.assertFalse(self.seen("base", "fmul v0.4s, v1.4s, v2.4s"))
        self.assertFalse(self.seen("avx2", "vaddps %ymm15,%ymm1,%ymm2"))
        self.assertFalse(self.seen("avx512", "vaddps %zmm31,%zmm1,%zmm2{%k1}"))

    def test_a_function_is_named_once_per_kind(self):
        listing = [("f", "\tvaddps %ymm0,%ymm1,%ymm2")] * 3
        self.assertEqual(
            isa_leak.leaks("base", listing),
            ["AVX instruction in f: vaddps %ymm0,%ymm1,%ymm2"],
        )


if __name__ == "__main__":
    unittest.main()
