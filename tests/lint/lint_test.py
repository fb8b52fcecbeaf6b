#!/usr/bin/env python3
"""Each lint check is seen to fail on the fault that it is for, and to pass on a tree without it.

lint_test.py CMAKE CLANG_FORMAT CLANG_TIDY: the last two may be empty, their cases are then skipped.
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import clang_format
import clang_tidy
import layering
import text
import tree

REPOSITORY = Path(__file__).resolve().parents[2]
CMAKE, CLANG_FORMAT, CLANG_TIDY = sys.argv[1:]


class TreeTest(unittest.TestCase):
    """A temporary tree; write(path, content) adds a file."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name).resolve()

    def write(self, path, content):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(content)

    def assert_one_finding(self, findings, *parts):
        self.assertEqual(len(findings), 1, findings)
        for part in parts:
            self.assertIn(part, findings[0])


class Layering(TreeTest):
    def find(self):
        return layering.find(self.root)[0]

    def test_allowed_includes_pass(self):
        self.write("src/spec/a.cc", '#include "base/result.h"\n#include <fmt/format.h>\n#include <vector>\n')
        self.write("src/comm/b.h", '#include "spec/enums.h"\n#include "comm/c.h"\n')
        self.write("src/engine/d.h", '#include <ATen/ATen.h>\n#include "runtime/program.h"\n')
        self.assertEqual(self.find(), [])

    def test_upward_include_fails(self):
        self.write("src/base/a.h", '#pragma once\n#include "spec/model.h"\n')
        self.assert_one_finding(self.find(), "src/base/a.h:2", "spec/model.h")

    def test_engine_may_not_include_planner(self):
        self.write("src/engine/a.cc", '#include "planner/ledger.h"\n')
        self.assert_one_finding(self.find(), "planner/ledger.h")

    def test_comm_gets_only_the_enums_of_spec(self):
        self.write("src/comm/a.cc", '#include "spec/model.h"\n')
        self.assert_one_finding(self.find(), "spec/enums.h")

    def test_torch_outside_engine_fails(self):
        self.write("src/kernels/a.cc", "#include <c10/util/BFloat16.h>\n")
        self.assert_one_finding(self.find(), "only src/engine")

    def test_the_whole_torch_header_fails_even_in_engine(self):
        self.write("src/engine/a.cc", "#include <torch/torch.h>\n")
        self.assert_one_finding(self.find(), "17 s")

    def test_torch_through_an_engine_header_fails(self):
        self.write("src/engine/a.h", "#include <ATen/ATen.h>\n")
        self.write("src/engine/b.h", '#include "engine/a.h"\n')
        self.write("src/cli/c.cc", '#include "engine/b.h"\n')
        self.assert_one_finding(self.find(), "src/cli/c.cc", "src/engine/a.h")

    def test_fmt_in_a_header_fails(self):
        self.write("src/base/a.h", "#include <fmt/core.h>\n")
        self.assert_one_finding(self.find(), "fmt")

    def test_unknown_folder_fails(self):
        self.write("src/misc/a.h", "#pragma once\n")
        self.assert_one_finding(self.find(), "src/misc/a.h")

    def test_empty_tree_fails(self):
        findings, checked = layering.find(self.root)
        self.assertEqual(tree.report("layering", findings, checked), 1)


class Text(TreeTest):
    def assert_rejected(self, path, content, problem):
        self.write(path, content)
        self.assert_one_finding(text.find(self.root)[0], path, problem)

    def test_plain_text_passes(self):
        self.write("a.md", "A path such as src/work/a.h or ~/work/b, and 1/root/x.\n")
        self.write("src/a.cc", "// Returns the sum; for each rank one.\nint a();  // then b\n")
        self.assertEqual(text.find(self.root)[0], [])

    def test_machine_path(self):
        self.assert_rejected("a.md", "See /" + "root/a.\n", "a path of one machine")

    def test_registry_host(self):
        self.assert_rejected("a.sh", "curl pypi" + ".org\n", "registry")

    def test_who_wrote_it(self):
        self.assert_rejected("a.h", "// @" + "author A\n", "who wrote")

    def test_open_work_needs_an_issue(self):
        self.assert_rejected("a.h", "// TO" + "DO: later\n", "without an issue")

    def test_open_work_with_an_issue_passes(self):
        self.write("a.h", "// TO" + "DO(#7): later\n")
        self.assertEqual(text.find(self.root)[0], [])

    def test_commented_out_code(self):
        self.assert_rejected("a.cc", "int a;\n  // return a + b;\n", "commented-out")

    def test_long_file(self):
        self.assert_rejected("a.cc", "int a;\n" * 401, "401 lines")

    def test_missing_last_newline(self):
        self.assert_rejected("a.md", "a", "newline")


class Format(TreeTest):
    def setUp(self):
        super().setUp()
        if not CLANG_FORMAT:
            self.skipTest("no clang-format")
        self.write(".clang-format", (REPOSITORY / ".clang-format").read_text())

    def test_formatted_file_passes(self):
        self.write("a.cc", "int f(int* a) { return *a; }\n")
        self.assertEqual(clang_format.find(self.root, CLANG_FORMAT), ([], 1))

    def test_unformatted_file_fails(self):
        self.write("a.cc", "int f( int *a ) { return *a ; }\n")
        self.assert_one_finding(clang_format.find(self.root, CLANG_FORMAT)[0], "a.cc")


class Tidy(TreeTest):
    def setUp(self):
        super().setUp()
        if not CLANG_TIDY:
            self.skipTest("no clang-tidy")
        self.write(".clang-tidy", (REPOSITORY / ".clang-tidy").read_text())

    def find(self, source):
        path = self.root / "src/base/a.cc"
        self.write(path, source)
        command = {"directory": str(self.root), "file": str(path), "command": f"c++ -std=c++20 -Isrc -c {path}"}
        self.write("build/compile_commands.json", json.dumps([command]))
        return clang_tidy.find(self.root, CLANG_TIDY, self.root / "build")

    def stamps(self):
        return len(list((self.root / "build/tidy").iterdir()))

    def test_clean_file_passes_and_is_remembered_until_its_header_changes(self):
        self.write("src/base/a.h", "#pragma once\n")
        source = '#include "base/a.h"\nint f() { return 1; }\n'
        self.assertEqual(self.find(source), ([], 1))
        self.assertEqual(self.find(source), ([], 1))
        self.assertEqual(self.stamps(), 1)
        self.write("src/base/a.h", "#pragma once\nint f();\n")
        self.assertEqual(self.find(source), ([], 1))
        self.assertEqual(self.stamps(), 2)

    def test_use_after_move_fails_every_time(self):
        source = ("#include <string>\n#include <utility>\nvoid g(std::string s);\n"
                  "size_t f(std::string s) {\n  g(std::move(s));\n  return s.size();\n}\n")
        for _ in range(2):
            self.assert_one_finding(self.find(source)[0], "use-after-move")


class BuildRules(TreeTest):
    """cmake/FivefoldBuild.cmake in a project of one folder."""

    def setUp(self):
        super().setUp()
        self.write("CMakeLists.txt", f"""
cmake_minimum_required(VERSION 3.25)
project(rules LANGUAGES CXX)
set(FIVEFOLD_TESTS ON)
include("{REPOSITORY}/cmake/FivefoldBuild.cmake")
enable_testing()
include(GoogleTest)
find_package(GTest REQUIRED)
find_package(fmt REQUIRED)
add_subdirectory(src/base)
fivefold_require_registered_tests()
""")
        self.write("src/base/a.cc", '#include "base/a.h"\nint f() { return 1; }\n')
        self.write("src/base/a.h", "#pragma once\nint f();\n")
        self.write("src/base/a_test.cc", "int main() {}\n")
        self.write("src/base/CMakeLists.txt", "fivefold_library(base SOURCES a.cc)\n"
                                              "fivefold_tests(base FILES a_test.cc DEPS fivefold_base)\n")

    def run_cmake(self, *arguments):
        result = subprocess.run([CMAKE, *arguments], cwd=self.root, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr

    def configure(self):
        return self.run_cmake("-G", "Ninja", "-S", ".", "-B", "build")

    def compile_headers(self):
        return self.run_cmake("--build", "build", "--target", "fivefold_headers")

    def test_complete_folder_passes(self):
        self.assertEqual(self.configure()[0], 0)
        self.assertEqual(self.compile_headers()[0], 0)

    def test_unregistered_test_fails_at_configure(self):
        self.write("src/base/stray_test.cc", "int main() {}\n")
        code, output = self.configure()
        self.assertNotEqual(code, 0)
        self.assertIn("stray_test.cc is not registered", " ".join(output.split()))

    def test_header_that_needs_another_include_fails(self):
        self.write("src/base/b.h", "#pragma once\nstd::string name();\n")
        self.assertEqual(self.configure()[0], 0)
        code, output = self.compile_headers()
        self.assertNotEqual(code, 0)
        self.assertIn("src/base/b.h", output)

    def test_header_without_guard_fails(self):
        self.write("src/base/b.h", "struct B {};\n")
        self.assertEqual(self.configure()[0], 0)
        self.assertNotEqual(self.compile_headers()[0], 0)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
