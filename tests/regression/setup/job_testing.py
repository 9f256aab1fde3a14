"""What the tests of job scripts share. Slurm's commands are stand-ins: srun starts two ranks by mpirun, scontrol says what
it was asked."""

import os
import shutil
import subprocess

from runs import BIN, FAILED, FINISHED, HERE, MPIEXEC, Result, RunTest, STOPPED_EARLY

TREE = HERE.parents[1]

SRUN = f"""#!/bin/bash
case $1 in
  --mpi=list) echo "${{PLUGINS-none pmix pmix_v4}}"; exit ;;
  --help) echo "${{SRUN_HELP-}}"; exit ;;
esac
if [ "${{SLURM_PMIX_FENCE-}}" != ring ]; then echo "srun: ranks may crash in MPI_Init" >&2; exit 1; fi
if [ -n "${{SAY-}}" ]; then echo "srun $*"; fi
while [[ $1 == -* ]]; do shift; done
if [ -n "${{CRASHES-}}" ]; then
  echo >>launches
  if [ "$(wc -l <launches)" -le "$CRASHES" ]; then exit 139; fi
fi
if [ -n "${{FAIL_WITH-}}" ]; then exit "$FAIL_WITH"; fi
if [ -z "${{FAIL_AFTER-}}" ]; then exec {MPIEXEC} --oversubscribe --bind-to none -n 2 "$@"; fi
{MPIEXEC} --oversubscribe --bind-to none -n 2 "$@"
exit "$FAIL_AFTER"
"""


class JobTest(RunTest):
    """Runs scripts in the test's folder, with the stand-ins first on PATH."""

    def setUp(self):
        super().setUp()
        tools = self.folder / "tools"
        tools.mkdir()
        self.put(tools / "srun", SRUN)
        self.put(tools / "scontrol", '#!/bin/bash\necho "scontrol $*"\n')
        self.put(tools / "sinfo", "#!/bin/bash\necho main\n")
        self.put(tools / "sbatch", '#!/bin/bash\necho "sbatch $*"\n')
        self.environment = dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}")
        for name in [name for name in self.environment if name.startswith("SLURM_")]:
            del self.environment[name]

    def put(self, path, text):
        path.write_text(text)
        path.chmod(0o755)
        return path

    def script(self, *command, folder=None, **variables):
        environment = dict(self.environment, **variables)
        done = subprocess.run(list(map(str, command)), cwd=folder or self.folder, env=environment,
                              text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              check=False)
        return Result(command, done.returncode, done.stdout, done.stderr)

    def path_in_image(self):
        """PATH where the program is installed, as it is in an image."""
        return f"{self.environment['PATH']}:{BIN}"

    def refuses(self, text, *command, **variables):
        """One line on standard error, and nothing done."""
        result = self.script(*command, **variables)
        self.assertEqual(result.code, FAILED, result)
        self.assertEqual(result.err.count("\n"), 1, result)
        self.assertIn(text, result.err)

    def check_killed_ranks(self, *command, **variables):
        """Exit codes of a rank that a signal ended queue the job again once this start has written a
        checkpoint: the second start, which has nothing left to do, writes none."""
        result = self.script(*command, **variables, FAIL_AFTER="137")
        self.assertEqual(result.code, STOPPED_EARLY, result)
        self.assertIn("scontrol requeue 7\n", result.out)
        for code in ("134", "135", "137", "139", "143"):
            result = self.script(*command, **variables, FAIL_AFTER=code)
            self.assertEqual(result.code, int(code), result)
            self.assertNotIn("scontrol requeue", result.out)

    def check_crashes_before_the_start(self, *command, **variables):
        """Ranks that crash before the run has started are launched again, three times at most."""
        launches = self.folder / "launches"
        for crashes, code, count in [(2, FINISHED, 3), (9, 139, 3)]:
            result = self.script(*command, **variables, CRASHES=str(crashes))
            self.assertEqual((result.code, launches.read_text().count("\n")), (code, count), result)
            self.assertNotIn("scontrol requeue", result.out)
            launches.unlink()

    def check_older_restart(self, script):
        """A start that has written no checkpoint itself has none for `script`, whatever `latest` names."""
        lines = script.read_text().splitlines()
        begin = lines.index("newest_checkpoint() {")
        function = "\n".join(lines[begin:lines.index("}", begin) + 1])
        self.assertNotIn("/^{", function)  # which BusyBox's awk refuses
        folder = self.folder / "run"
        (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (folder / "checkpoints" / "latest").write_text("step-00000005.h5\n")
        events = ['{"kind":"start","time":1}', '{"kind":"checkpoint","time":2,"iteration":5}',
                  '{"kind":"start","time":3}', '{"kind":"checkpoint","time":4,"iteration":10}']
        for count, newest in [(2, events[1]), (3, ""), (4, events[3])]:
            (folder / "metrics.jsonl").write_text("".join(f"{event}\n" for event in events[:count]))
            result = self.script("bash", "-euc", f"run_folder='{folder}'\n{function}\nnewest_checkpoint")
            self.assertEqual((result.code, result.out.strip()), (FINISHED, newest), result)

    def shellcheck(self, *paths):
        if not shutil.which("shellcheck"):
            self.skipTest("there is no shellcheck")
        checked = subprocess.run(["shellcheck", *map(str, paths)], stdout=subprocess.PIPE, text=True,
                                 check=False)
        self.assertEqual(checked.returncode, 0, checked.stdout)
