"""What the compiler says of the hot kernels: registers, spills, and no wgmma of Hopper
that runs by itself because the compiler could not let it overlap.

ptxas says such things in notes that fail no build. The build keeps them next to the objects
(cmake/keep_ptxas_report.sh). TRIREME_COMPILE_COMMANDS names the build's compile_commands.json.
Needs no GPU.
"""

import fnmatch
import json
import os
import re
import shlex
import struct
import subprocess
import textwrap
import unittest
from pathlib import Path
from typing import NamedTuple

ARCHITECTURES = ("sm_80", "sm_90")
KERNELS = "src/kernels/cuda/"

# The bytes that may be spilled are this compiler's; another one spills others, and is held only to
# spilling none where none are allowed.
MEASURED_WITH = "13.0"

NONE, ANY = (0, 0), (1 << 20, 1 << 20)


class Bound(NamedTuple):
    """What the kernels whose names start with a pattern may take on each architecture."""

    kernel: str  # a regular expression
    registers: int  # the most a thread may use: with more, fewer threads are resident
    sm_80: tuple = NONE  # bytes of spill stores and loads
    sm_90: tuple = NONE


# The first bound that a kernel matches holds; what matches none may not spill. Each bound must
# match on both architectures: a kernel that got another name would go unwatched.
BOUNDS = {
    "optimizer/optimizer.cu": [Bound(r"update_parameters<", 40), Bound(r"sum_squares<", 48)],
    "cross_entropy/cross_entropy.cu": [
        Bound(r"(staged|row)_statistics_and_gradient<", 64),
        Bound(r"row_statistics<", 40),
        Bound(r"logit_gradients<", 40),
        Bound(r"place_labels", 48, (16, 0), (16, 0)),  # not spilled: the arguments of printf
    ],
    "decoding/attention.cu": [
        Bound(r"attend_rows<", 255),
    ],
    "decoding/linear.cu": [
        Bound(r"linear_tiles<", 128, (104, 104), (44, 44)),
        # fp32, and rows that are not a whole number of 16 bytes: it is enough that they work.
        Bound(r"linear_rows<", 80, ANY, ANY),
    ],
    # <type, lanes of a key, query heads of a block>; empty but on Hopper.
    "decoding/pass.cu": [
        Bound(r"decode_pass<", 168),  # the ring leaves no cache: what is spilled comes from memory
    ],
    "dropout.cu": [
        Bound(r"normalize_rows<float, 4, [34], ResidualSum", 64),
        Bound(r"normalize_rows<float, 4, 5, ResidualSum", 66),
        Bound(r"normalize_rows<float, 4, 8, ResidualSum", 112),
        Bound(r"normalize_rows<\w+, 8, 3, ResidualSum", 72),
        Bound(r"normalize_rows<\w+, 8, 4, ResidualSum", 72, sm_80=(4, 4)),
        Bound(r"normalize_rows<\w+, 8, 5, ResidualSum", 88),
        Bound(r"normalize_rows<\w+, 8, [345], TermsResidualSum", 104),
        # Rows that are not a whole number of 16 bytes: it is enough that they work.
        Bound(r"normalize_rows<\w+, 1, \d+, ResidualSum", 128, sm_80=(120, 228)),
        Bound(r"compute_elements<ByRow<(ResidualSum|ScaleGradient)", 48),
    ],
    "activations.cu": [
        Bound(r"compute_elements<ActivationElements<ExactGelu<\w+>, (__half|__nv_bfloat16), 8", 40),
        Bound(r"compute_elements<ActivationElements", 32),
        Bound(r"sum_columns<4, ActivationGradient<ExactGelu<float>", 64, (8, 8)),
        Bound(r"sum_columns<\d, ActivationGradient", 64),
        Bound(r"sum_columns<", 64),
    ],
    # Empty but on Hopper, where the warps share registers out among themselves.
    "gemm/hopper/*.cu": [Bound(r"gemm_kernel<", 168, NONE, (4, 4))],
    "layernorm.cu": [
        Bound(r"normalize_rows<\w+, [48], 3, PlainRows", 40),
        Bound(r"normalize_rows<\w+, [48], [458], PlainRows", 64),
        Bound(r"normalize_rows<\w+, 1, \d+, PlainRows", 72),
        Bound(r"norm_gradients<NormPlan<\w+, [48], 4, 384, ", 168),
        Bound(r"norm_gradients<NormPlan<\w+, [48], 4, 256, ", 255),
        # Wide rows, and rows that are not a whole number of 16 bytes: it is enough that they work.
        Bound(r"norm_gradients<NormPlan<\w+, \d, \d+, 512, ", 128, ANY, ANY),
    ],
    # <type, head, dropout, documents>, compact for backward. Their accumulators leave little of the 255 registers
    # that a thread can have; spilled are addresses that do not change, read again once a tile.
    "attention/heads/up_to_64.cu": [
        Bound(r"attend_tiles<\w+, 64, \w+, false>", 255),
        Bound(r"attend_tiles<\w+, 64, false, true>", 255, (64, 124), (52, 104)),
        Bound(r"attend_tiles<\w+, 64, true, true>", 255, (40, 52), (52, 64)),
        Bound(r"attend_tiles_backward<\w+, 64, false, false, false>", 255, (44, 80), (72, 128)),
        Bound(r"attend_tiles_backward<\w+, 64, true, false, false>", 255, (64, 144), (44, 88)),
        Bound(r"attend_tiles_backward<\w+, 64, false, true, false>", 255, (96, 200), (76, 196)),
        Bound(r"attend_tiles_backward<\w+, 64, true, true, false>", 255, (124, 320), (48, 80)),
    ],
    "attention/heads/up_to_128.cu": [
        Bound(r"attend_tiles<\w+, 112, ", 255, (368, 320), (344, 244)),
        Bound(r"attend_tiles_backward<\w+, 112, ", 255, (56, 136), (60, 140)),
        # On Hopper only for tensors that its own kernels do not take.
        Bound(r"attend_tiles<\w+, 128, false, false>", 255, (156, 212), (348, 248)),
        Bound(r"attend_tiles<\w+, 128, true, false>", 255, (64, 88), (208, 200)),
        Bound(r"attend_tiles<\w+, 128, false, true>", 255, (176, 296), (384, 316)),
        Bound(r"attend_tiles<\w+, 128, true, true>", 255, (216, 276), (344, 328)),
        Bound(r"attend_tiles_backward<\w+, 128, false, false, false>", 255, (32, 72), (88, 196)),
        Bound(r"attend_tiles_backward<\w+, 128, true, false, \w+>", 255, (8, 24), (20, 32)),
        Bound(r"attend_tiles_backward<\w+, 128, false, false, true>", 255, (8, 32), (28, 52)),
        Bound(r"attend_tiles_backward<\w+, 128, false, true, false>", 255, (88, 192), (92, 232)),
        Bound(r"attend_tiles_backward<\w+, 128, true, true, false>", 255, (32, 104), (60, 108)),
        Bound(r"attend_tiles_backward<\w+, 128, false, true, true>", 255, (68, 140), (60, 108)),
        Bound(r"attend_tiles_backward<\w+, 128, true, true, true>", 255, (64, 116), (48, 96)),
    ],
    # Empty but on Hopper, where the warps share registers out among themselves.
    "attention/hopper/forward.cu": [Bound(r"attend_boxes<\w+, (96|112), true", 168, NONE, (12, 16)),
                                    Bound(r"attend_boxes<", 168)],
    "attention/hopper/backward.cu": [
        Bound(r"attend_boxes_backward<\w+, 64, true", 168, NONE, (48, 48)),
        Bound(r"attend_boxes_backward<\w+, 64, false", 168),
        Bound(r"attend_boxes_backward<\w+, 128, true", 168, NONE, (24, 32)),
        Bound(r"attend_boxes_backward<", 168, NONE, (12, 12)),
    ],
}


class Kernel:
    """An entry function of one architecture; spills of functions that it calls count as its own."""

    def __init__(self, name, architecture):
        self.name, self.architecture = name, architecture
        self.registers = self.stack = self.stores = self.loads = 0

    def __str__(self):
        spills = f"{self.stores} + {self.loads}"
        return f"{self.architecture:7}{self.registers:4}{self.stack:7}{spills:>12}  {self.name}"


ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\S+)'")
MEMORY = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")
# C7508 says that setmaxnreg is ignored, C7510 and those after it that wgmma is serialized or made
# to wait; older compilers give the text without a number.
WARNING = re.compile(r"\(C75\d\d\)|Potential Performance Loss")


def parse(report):
    """The kernels in a report of `ptxas -v`, their names mangled, and the lines that complain."""
    kernels, problems = [], []
    for line in report.splitlines():
        if WARNING.search(line):
            problems.append(line)
        elif entry := ENTRY.search(line):
            kernels.append(Kernel(entry[1], entry[2].removesuffix("a")))  # sm_90 and sm_90a are of one GPU
        elif kernels and (memory := MEMORY.search(line)):
            stack, stores, loads = map(int, memory.groups())
            kernels[-1].stack = max(kernels[-1].stack, stack)
            kernels[-1].stores += stores
            kernels[-1].loads += loads
        elif kernels and (registers := REGISTERS.search(line)):
            kernels[-1].registers = int(registers[1])
    return kernels, problems


def demangle(kernels):
    """Replaces mangled names by those of the sources, with template arguments but no others."""
    names = subprocess.run(["c++filt"], input="\n".join(kernel.name for kernel in kernels),
                           capture_output=True, text=True, check=True).stdout.splitlines()
    for kernel, name in zip(kernels, names, strict=True):
        for noise in ("void ", "trireme::kernels::cuda::", "(anonymous namespace)::"):
            name = name.replace(noise, "")
        kernel.name = name.partition("(")[0]


def faults(kernels, problems, bounds, exact=True):
    """What is wrong, a sentence each. With exact, spills that are allowed are counted, too."""
    found = list(problems)
    unmatched = {(bound.kernel, architecture) for bound in bounds for architecture in ARCHITECTURES}
    for kernel in kernels:
        bound = next((bound for bound in bounds if re.match(bound.kernel, kernel.name)),
                     Bound("", 255))
        unmatched.discard((bound.kernel, kernel.architecture))
        where = f"{kernel.name} on {kernel.architecture}"
        if kernel.registers > bound.registers:
            found.append(f"{where} uses {kernel.registers} registers, not {bound.registers}")
        stores, loads = getattr(bound, kernel.architecture)
        if not exact and stores + loads > 0:
            continue
        if kernel.stores > stores or kernel.loads > loads:
            found.append(f"{where} spills {kernel.stores} and reloads {kernel.loads} bytes, "
                         f"not {stores} and {loads}")
        elif kernel.stack > (stores + 7) // 8 * 8:  # what is spilled lies there, in steps of 8
            found.append(f"{where} has a stack frame of {kernel.stack} bytes")
    found += [f"no kernel matches {name} on {architecture}"
              for name, architecture in sorted(unmatched)]
    return found


def command_of(entry):
    """The words of the command of an entry of compile_commands.json."""
    return entry.get("arguments") or shlex.split(entry["command"])


def report_of(entry):
    """What ptxas said when the build compiled an entry of compile_commands.json."""
    command = command_of(entry)
    return (Path(entry["directory"]) / f"{command[command.index('-o') + 1]}.ptxas").read_text()


def release(entry):
    """The compiler's release, as in 13.0."""
    compiler = next(word for word in command_of(entry) if Path(word).name == "nvcc")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    return re.search(r"release (\d+\.\d+)", version.stdout)[1]


def embedded_code(data):
    """The kinds of code in the fatbin containers of a file, each with its architecture."""
    kinds, at = set(), 0
    while (at := data.find(struct.pack("<I", 0xBA55ED50), at)) >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        begin, at = at + header, at + header + size
        while begin < at:
            kind, length, size = struct.unpack_from("<HxxIQ", data, begin)
            kinds.add(({1: "PTX", 2: "code"}.get(kind), *struct.unpack_from("<I", data, begin + 28)))
            begin += length + size
    return kinds


class Kernels(unittest.TestCase):
    def entries(self):
        """The entries of compile_commands.json that compile kernels, by file."""
        commands = json.loads(Path(os.environ["TRIREME_COMPILE_COMMANDS"]).read_text())
        return {entry["file"].partition(KERNELS)[2]: entry for entry in commands
                if KERNELS in entry["file"] and entry["file"].endswith(".cu")}

    def test_every_gpu_since_8_0_has_code(self):
        """8.0 (also for 8.6 and 8.9), 9.0a, and PTX that the driver compiles for what is newer."""
        entry = self.entries()["activations.cu"]
        command = command_of(entry)
        built = Path(entry["directory"]) / command[command.index("-o") + 1]
        self.assertEqual(embedded_code(built.read_bytes()),
                         {("PTX", 80), ("code", 80), ("code", 90)})

    def test_bounds(self):
        entries = self.entries()
        for pattern, bounds in BOUNDS.items():
            matches = fnmatch.filter(entries, pattern)
            with self.subTest(pattern):
                self.assertTrue(matches, f"the build compiles no {KERNELS}{pattern}")
            for file in matches:
                with self.subTest(file):
                    self.check(file, report_of(entries[file]), bounds, release(entries[file]))

    def check(self, file, report, bounds, compiler):
        kernels, problems = parse(report)
        demangle(kernels)
        print(f"\n{file}, CUDA {compiler}: registers, stack, bytes spilled + reloaded")
        print("\n".join(map(str, kernels)), flush=True)
        found = faults(kernels, problems, bounds, exact=compiler == MEASURED_WITH)
        if found:
            self.fail("\n".join(["", *found]))


class Reports(unittest.TestCase):
    """A report is read as it is meant, and each fault is seen."""

    NAME = "_ZN7trireme7kernels4cuda12_GLOBAL__N_14normIfLi4EEEvPT_i"
    REPORT = textwrap.dedent(f"""\
        ptxas info    : 4 bytes gmem, 8 bytes cmem[4]
        ptxas info    : Compiling entry function '{NAME}' for 'sm_80'
        ptxas info    : Function properties for {NAME}
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
        ptxas info    : Used 48 registers, used 1 barriers, 1024 bytes smem, 408 bytes cmem[0]
        ptxas info    : Compile time = 27.847 ms
        ptxas info    : 0 bytes gmem
        ptxas info    : Compiling entry function '{NAME}' for 'sm_90a'
        ptxas info    : Function properties for {NAME}
            0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
        ptxas info    : Used 40 registers, used 1 barriers
        ptxas info    : Compile time = 12.209 ms
        """)
    CLEAN = "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"
    SERIALIZED = (
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are "
        "serialized due to insufficient register resources for the wgmma pipeline in the function")

    def faults(self, report, *bounds, exact=True):
        kernels, problems = parse(report)
        demangle(kernels)
        return faults(kernels, problems, bounds or [Bound("norm<float", 48)], exact)

    def spilling(self, memory):
        """The report where the kernel for sm_90, the last one, has other properties."""
        before, _, after = self.REPORT.rpartition(self.CLEAN)
        return before + memory + after

    def test_clean(self):
        self.assertEqual(self.faults(self.REPORT), [])
        kernels, _ = parse(self.REPORT)
        demangle(kernels)
        self.assertEqual([(k.name, k.architecture, k.registers) for k in kernels],
                         [("norm<float, 4>", "sm_80", 48), ("norm<float, 4>", "sm_90", 40)])

    def test_serialized(self):
        self.assertEqual(self.faults(f"{self.SERIALIZED}\n{self.REPORT}"), [self.SERIALIZED])

    def test_spill(self):
        report = self.spilling("8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads")
        fault = "norm<float, 4> on sm_90 spills 4 and reloads 12 bytes, not 0 and 0"
        self.assertEqual(self.faults(report), [fault])
        # Also of a kernel that has no bound, and where spills are not compared byte by byte.
        other = [f"no kernel matches other on {architecture}" for architecture in ARCHITECTURES]
        self.assertEqual(self.faults(report, Bound("other", 9)), [fault, *other])
        self.assertEqual(self.faults(report, exact=False), [fault])

    def test_allowed_spill(self):
        report = self.spilling("8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads")
        less = Bound("norm", 48, sm_90=(4, 8))
        self.assertEqual(self.faults(report, Bound("norm", 48, sm_90=(4, 12))), [])
        self.assertEqual(len(self.faults(report, less)), 1)
        self.assertEqual(self.faults(report, less, exact=False), [])

    def test_stack_frame(self):
        report = self.spilling("16 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads")
        self.assertEqual(self.faults(report),
                         ["norm<float, 4> on sm_90 has a stack frame of 16 bytes"])

    def test_registers(self):
        self.assertEqual(self.faults(self.REPORT, Bound("norm", 40)),
                         ["norm<float, 4> on sm_80 uses 48 registers, not 40"])

    def test_kernel_of_one_architecture(self):
        one = self.REPORT[:self.REPORT.index("ptxas info    : 0 bytes gmem")]
        self.assertEqual(self.faults(one), ["no kernel matches norm<float on sm_90"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
