"""A timetable of faults against runs on host ranks: each fault must be detected, end the run with the
right exit code or none, and leave a run that continues with the losses and weights of an unharmed one.

Without arguments one fault of each kind (the test `faults`); `--count 1000 --seed 7` any number of them
at random moments and on random layouts; `--only kill,stop` these kinds. Prints a table. The environment is that of
tests/regression/runs.py, and TRIREME_IO_FAULTS names the library that makes storage fail.
"""

import argparse
import collections
import random
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "regression"))

from corruption_faults import CorruptionFaults  # noqa: E402
from driver import LAYOUTS, Case  # noqa: E402
from process_faults import ProcessFaults  # noqa: E402
from storage_faults import LocalFaults, StorageFaults  # noqa: E402

ARGUMENTS = argparse.Namespace(count=None, seed=7, only=None)


class Faults(ProcessFaults, StorageFaults, LocalFaults, CorruptionFaults):
    KINDS = ["kill", "kill_all", "kill_in_save", "kill_in_start", "kill_new_layout", "kill_launcher", "second_run",
             "two_starts", "stop", "stop_resumed", "stop_slow_disk", "pause", "signal_once", "signal_storm",
             "signal_in_save", "signal_in_start", "memory_pressure", "clock_jumps", "network_cut", "slow_link", "slow_disk", "read_only",
             "no_descriptors", "write_error", "write_error_once", "short_writes", "log_full", "truncated", "flipped",
             "latest_lost", "strays", "moved", "metrics_cut", "local_kill", "local_kill_in_save", "local_lost",
             "local_flipped", "local_write_error", "flip_gradient", "flip_activation", "flip_message", "flip_always",
             "flip_weight", "flip_spike", "supervised", "supervised_wrong_host"]

    def test_timetable(self):
        chance = random.Random(ARGUMENTS.seed)
        kinds = self.KINDS
        if ARGUMENTS.only:
            kinds = ARGUMENTS.only.split(",")
        if ARGUMENTS.count is not None:
            kinds = [chance.choice(kinds) for _ in range(ARGUMENTS.count)]
        print(f"\n{'fault':<24} {'layout':<8} {'save':<10} {'detected':>10} {'lost steps':>10} "
              f"{'exit code':>9} continuation", flush=True)
        failures, counts = [], collections.Counter()
        for number, kind in enumerate(kinds):
            case = Case(kind, number, random.Random(chance.random()))
            if ARGUMENTS.count is None:
                case.layout = LAYOUTS[0]
                case.background, case.compressed = number % 2 == 1, False
            counts[kind] += 1
            try:
                getattr(self, kind)(case)
            except (AssertionError, subprocess.TimeoutExpired, OSError) as failure:
                failures.append(f"{case.name}: {failure}")
                print(f"{kind.replace('_', ' '):<24} {case.layout_name():<8} FAILED\n{failures[-1]}", flush=True)
                continue
            detected = "-" if case.detected is None else f"{case.detected:.1f} s"
            print(f"{kind.replace('_', ' '):<24} {case.layout_name():<8} "
                  f"{case.save_name():<10} {detected:>10} {case.lost:>10} "
                  f"{case.code:>9} equal", flush=True)
            for path in self.folder.glob(f"{case.name}*"):  # a thousand of them would fill a disk
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        print(f"{sum(counts.values())} faults of {len(counts)} kinds, {len(failures)} of which failed: "
              + ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items())), flush=True)
        self.assertFalse(failures, "\n\n".join(failures))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, help="faults; default: one of each kind")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--only", help="kinds, separated by commas")
    ARGUMENTS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest], verbosity=1)
