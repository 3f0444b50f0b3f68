# SPDX-License-Identifier: BSD-3-Clause
"""exports.py can fail."""

import shutil
import subprocess
import unittest

import exports
from planting import LintTest, run_lint


TLS = """static __thread char x[{}] __attribute__((tls_model("initial-exec")));
int shc_a(void) {{ return x[0]; }}"""


class Exports(LintTest):
    header = '#ifdef __cplusplus\nextern "C" {{\n#endif\nstruct s {{ int (*shc_x)(void); enum shc_y (*z)(void); }};\n'
    header += (
        "/* shc_not() is no declaration */\nint shc_a(void);\n{}static int shc_b(void) {{ }}\n"
    )
    map = "SHMCOLL_0 {{\nglobal:\n    shc_a; # shc_c;\n{}local:\n    *;\n}};\n"

    def files(self, header="", names=""):
        return {exports.HEADER: self.header.format(header), exports.MAP: self.map.format(names)}

    def test_header_and_map(self):
        whole = self.files("void shc_z(int a,\n int b);\n", "    shc_z;\n")
        self.expect(exports.check, self.files("void shc_z(int a);@@\n"), whole, "shc_z()")
        self.expect(exports.check, self.files("", "    shc_z;@@\n"), whole, "shc_z")
        self.expect(exports.check, self.files("", "    shc_*;@@\n"), whole, "shc_*")

    def test_the_rest_is_hidden(self):
        files = self.files()
        bare = files[exports.MAP].replace("    *;\n", "").replace("SHMCOLL_0 {", "SHMCOLL_0 {@@")
        self.expect(exports.check, {**files, exports.MAP: bare}, files, "local")

    def test_the_cuda_side(self):
        cuda = {exports.CUDA_HEADER: "int shc_c(void);@@\n", exports.CUDA_MAP: "local: *;\n"}
        whole = {**cuda, exports.CUDA_HEADER: "", exports.CUDA_MAP: "local: *;\n"}
        self.expect(exports.check, {**self.files(), **cuda}, {**self.files(), **whole}, "shc_c()")

    def test_library(self):
        compiler = shutil.which("cc")
        if compiler is None or shutil.which("nm") is None:
            self.skipTest("no compiler")
        root, _ = self.plant({**self.files(), "x.c": "int shc_a(void); int shc_q(void);\n"})
        for code, words in (
            ("int shc_a(void) { return 0; }", ""),
            ("int shc_a(void) { return 0; } int shc_q(void) { return 0; }", "exports shc_q"),
            ("int other(void) { return 0; }", "does not export shc_a()"),
            (TLS.format(64), ""),
            (TLS.format(65), "65 bytes of static thread-local"),
        ):
            script = root / "v.map"
            script.write_text("SHMCOLL_0 { global: *; };\n")
            (root / "x.c").write_text(code + "\n")
            command = [compiler, "-shared", "-fPIC", "-nostdlib", f"-Wl,--version-script={script}"]
            subprocess.run([*command, "-o", root / "x.so", root / "x.c"], check=True)
            done = run_lint("exports", root, "--library", str(root / "x.so"))
            self.assertEqual(done.returncode, 1 if words else 0, done.stdout)
            self.assertIn(words, done.stdout)

    def test_command(self):
        self.expect_command("exports", self.files("void shc_z(int a);@@\n"))


if __name__ == "__main__":
    unittest.main()
