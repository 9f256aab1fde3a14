"""The losses and gradient norms of tiny runs on the host, bit for bit those of the committed table.

Bits depend on OpenBLAS's kernels, the compiler and the C library as well as on Trireme. The kernels
are pinned to Haswell's; the table names the rest, and where that differs the test is skipped. A
change that is meant to alter results writes the table again: the test's command with --write.
"""

import ctypes
import json
import math
import os
import platform
import sys
import unittest
from pathlib import Path

import runs
from runs import FINISHED, RunTest, layout_words

TABLE = Path(__file__).with_name("bits.json")
SKIPPED = 77

# Every feature that a layer or a stage treats in its own way, with dropout on.
CASES = {
    "serial": ((1, 1, 1), []),
    "tensor": ((2, 1, 1), []),
    "sequence": ((2, 1, 1), ["parallel.sequence=true"]),
    "pipeline": ((1, 2, 1), []),
    "zero-bubble": ((1, 2, 1), ["parallel.schedule=zero-bubble"]),
    "interleaved": ((1, 2, 1), ["parallel.schedule=interleaved", "parallel.interleave=2"]),
    "data": ((1, 1, 2), ["parallel.zero=3", "parallel.bucket=1000"]),
    "selective": ((1, 1, 1), ["recompute.granularity=selective"]),
    "full": ((2, 1, 1), ["recompute.granularity=full"]),
    "no-dropout": ((1, 1, 1), ["model.dropout={attention: 0, hidden: 0}"]),
    "embedding": ((2, 1, 1), ["model.embedding_layernorm=true", "data.reset_positions=true",
                              "data.reset_attention=true"]),
}
PRECISIONS = {
    "fp32": [],
    "bf16": ["precision.compute=bf16"],
    "fp16": ["precision.compute=fp16", "precision.loss_scale.initial=1024"],
}


def made_with():
    """What the bits depend on besides Trireme's source."""
    blas = ctypes.CDLL("libopenblas.so.0")
    blas.openblas_get_config.restype = ctypes.c_char_p
    return {"openblas": blas.openblas_get_config().decode().split()[1],
            "libc": " ".join(platform.libc_ver()),
            "compiler": os.environ["TRIREME_COMPILER"]}


def unpinned():
    """Why this machine cannot run the table's kernels; "" when it can."""
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[-1].split("\n")[0].split()
    missing = {"avx2", "fma"} - set(flags)
    return f"the CPU has no {' and no '.join(sorted(missing))}" if missing else ""


def text():
    """Lines of words whose letters a linear congruential generator chooses."""
    state, words = 1, []
    for _ in range(4000):
        word = ""
        for _ in range(1 + state % 7):
            state = (state * 1103515245 + 12345) % 2**31
            word += "etaoinshrdlu"[state // 65536 % 12]
        words.append(word)
    return "\n".join(" ".join(words[i:i + 8]) for i in range(0, len(words), 8)) + "\n"


class Bits(RunTest):
    def table(self):
        """Loss and gradient norm of each iteration of each case, as hexadecimal numbers."""
        os.environ["OPENBLAS_CORETYPE"] = "Haswell"
        source = self.folder / "text.txt"
        source.write_text(text())
        made = runs.run("trireme-preprocess", "--input", source, "--output", self.folder / "text",
                        "--tokenizer", "bytes", "--append-eod")
        self.assertEqual(made.code, FINISHED, made)
        table = {}
        for precision, precision_words in PRECISIONS.items():
            for case, (layout, words) in CASES.items():
                name = f"{precision} {case}"
                self.pretrain(name, f"data.train={self.folder / 'text'}_text_document",
                              "train.iterations=4", "checkpoint.at_end=false",
                              *layout_words(*layout), *precision_words, *words,
                              ranks=math.prod(layout))
                table[name] = [[float(event[key]).hex() for key in ("loss", "grad_norm")]
                               for event in self.events(name, "train")]
        return table

    def test_every_bit_is_that_of_the_table(self):
        expected = json.loads(TABLE.read_text())["runs"]
        found = self.table()
        self.assertEqual(set(found), set(expected))
        for name, iterations in found.items():
            for i, values in enumerate(iterations):
                with self.subTest(name, iteration=i + 1):
                    self.assertEqual(values, expected[name][i], "[loss, gradient norm]")

    def test_the_table_has_a_run_of_each_kind(self):
        expected = json.loads(TABLE.read_text())["runs"]
        self.assertEqual(len(expected), len(CASES) * len(PRECISIONS))
        # Recomputation and the schedule change no bit; the layout and the precision do.
        for precision in PRECISIONS:
            kinds = {case: expected[f"{precision} {case}"] for case in CASES}
            self.assertEqual(kinds["selective"], kinds["serial"])
            self.assertEqual(kinds["full"], kinds["tensor"])
            self.assertEqual(kinds["zero-bubble"], kinds["pipeline"])
            self.assertNotEqual(kinds["no-dropout"], kinds["serial"])
        self.assertNotEqual(expected["bf16 serial"], expected["fp32 serial"])


def write():
    test = Bits()
    test._testMethodName = "write"
    test.setUp()
    table = test.table()
    rows = ",\n".join(f"    {json.dumps(name)}: {json.dumps(values)}" for name, values in table.items())
    TABLE.write_text(f'{{\n  "made_with": {json.dumps(made_with())},\n  "runs": {{\n{rows}\n  }}\n}}\n')


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
        sys.exit()
    expected = json.loads(TABLE.read_text())["made_with"]
    reason = unpinned() or ("" if made_with() == expected else
                            f"the table is of {expected}, this build of {made_with()}")
    if reason:
        print(f"skipped: {reason}")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
