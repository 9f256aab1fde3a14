"""The scripts of jobs/: they run, refuse with one line what is missing, and requeue on exit code 75 alone."""

import os
import shutil
import signal
import subprocess
import unittest
import unittest.mock

from job_testing import TREE, JobTest
from runs import BIN, DECK, FAILED, FINISHED, MPIEXEC, PATIENCE, STOPPED_EARLY, Started


class Scripts(JobTest):
    """The scripts of jobs/, which take their block's values from the environment."""

    def setUp(self):
        super().setUp()
        words = self.deck_words("run")
        self.deck = self.folder / "tiny.yaml"
        shutil.copy(words[0], self.deck)
        self.environment.update(TRIREME=str(TREE), PROGRAM=str(BIN / "trireme-pretrain"),
                                DECK=str(self.deck), KEYS=" \n".join(words[1:]))
        self.jobs = sorted((TREE / "jobs/slurm").glob("*.sbatch")) + [TREE / "jobs/ssh/train.sh"]
        self.hosts = self.folder / "hosts"
        self.hosts.write_text("# two ranks here\nlocalhost slots=2\n\n")
        self.environment.update(HOSTS=str(self.hosts), LIST=str(TREE / "jobs/slurm/array.txt"))

    def test_what_is_missing_is_refused(self):
        for job in self.jobs:
            with self.subTest(job.name):
                self.refuses("there is no deck '/nowhere'", job, DECK="/nowhere")
                self.refuses("there is no '/nowhere' on ", job, PROGRAM="/nowhere")
                self.refuses("set SITE to one of: debian modules", job, SITE="nowhere")
        for job in self.jobs[:-1]:
            with self.subTest(job.name):
                self.refuses("there is no image '/nowhere'", job, IMAGE="/nowhere")
                self.refuses("there is no partition 'gpu': set --partition to one of: main", job,
                             "--partition=main,gpu")

        self.refuses("there is no 'module' command", self.jobs[0], SITE="modules")

    def test_profilers(self):
        """NSYS=1 and NCU=1 start each rank under Nsight, here a script that writes its words down."""
        tools = self.folder / "tools"
        for tool, option in ("nsys", "--output="), ("ncu", "--export="):
            self.put(tools / tool, '#!/bin/bash\nwords="$*"\nwhile [[ $1 == profile || $1 == -* ]]; do\n'
                     f'  case $1 in {option}*) file=${{1#{option}}} ;; esac\n  shift\ndone\n'
                     'echo "$words" >"${file%-%h-%p}-$$"\nexec "$@"\n')
        for variable, words in ("NSYS", "profile --trace=cuda,nvtx,mpi -y=1 "), ("NCU", "--nvtx --launch-skip="):
            result = self.script(TREE / "jobs/ssh/train.sh", **{variable: "1", "NSYS_OPTIONS": "-y=1"})
            self.assertEqual(result.code, FINISHED, result)
            reports = list((self.folder / "run" / "profile").glob(f"{variable.lower()}-*"))
            self.assertEqual(len(reports), 2)
            self.assertTrue(reports[0].read_text().startswith(words), reports[0].read_text())
        task = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_NUM_NODES": "1"}
        result = self.script(TREE / "jobs/slurm/array.sbatch", **task, RUN="runs", NSYS="1")
        self.assertEqual(result.code, FINISHED, result)
        self.assertTrue(list((self.folder / "runs/2/profile").glob("nsys-*")))
        self.refuses("NSYS=1 and NCU=1 exclude each other", TREE / "jobs/ssh/train.sh", NSYS="1", NCU="1")
        self.refuses("NSYS and NCU are 1 or 0, not 'yes' and '0'", TREE / "jobs/ssh/train.sh", NSYS="yes")

    def test_image(self):
        """The image by its whole path, its own program, and no user remapped to root."""
        image = self.folder / "trireme.sqsh"
        image.touch()
        words = [TREE / "jobs/slurm/one-node.sbatch"]
        job = {"IMAGE": image.name, "PROGRAM": f"{TREE}/build/release/bin/trireme-pretrain",
               "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1"}
        self.refuses("pyxis is not installed here", *words, **job)
        job["SRUN_HELP"] = "--container-image"
        self.refuses("a path with a space", *words, **job, MOUNTS="/a b:/c")
        result = self.script(*words, **job, SAY="1", FAIL_WITH="1")
        for text in (f" --container-image={image} ", f" --container-workdir={self.folder} ",
                     f" --container-mounts={self.folder}:{self.folder} ",
                     " --no-container-remap-root ", f" trireme-pretrain {self.deck} "):
            self.assertIn(text, result.out)
        result = self.script(*words, **job, PATH=self.path_in_image())
        self.assertEqual(result.code, FINISHED, result)
        self.assertIn(f"continue   srun --mpi=pmix -n 2 '--container-image={image}' ", result.out)

    def test_enroot_without_pyxis(self):
        """The container is created once, and again when it is asked for."""
        self.put(self.folder / "tools" / "enroot", f"""#!/bin/bash
echo "enroot $*" >> {self.folder}/enroot.log
command=$1 name={self.folder}/container-$3
case $command in
  list) cd {self.folder} && ls -d container-* 2>/dev/null | sed s/container-// ;;
  create) touch "$name" ;;
  remove) rm -f "$name" ;;
  start)
    while [[ $1 != trireme ]]; do shift; done
    shift
    exec "$@" ;;
esac
""")
        image = self.folder / "trireme.sqsh"
        image.touch()
        words = [TREE / "jobs/slurm/enroot.sbatch"]
        job = {"IMAGE": image.name, "PROGRAM": f"{TREE}/build/release/bin/trireme-pretrain",
               "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "PATH": self.path_in_image()}
        self.refuses("there is no image: set IMAGE", *words,
                     **dict(job, IMAGE="", PROGRAM=str(BIN / "trireme-pretrain")))
        self.refuses("RELOAD_CONTAINER is true or false, not 'yes'", *words, **job, RELOAD_CONTAINER="yes")
        log = self.folder / "enroot.log"
        result = self.script(*words, **job)
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(self.losses("run")), 20)
        self.assertIn(f"enroot create --name trireme {image}\n", log.read_text())
        self.assertIn(f" --mount {self.folder}:{self.folder} trireme sh -c ", log.read_text())
        self.assertRegex(result.out, r"continue   srun --mpi=pmix -n 2 '?enroot'? '?start'? ")
        log.unlink()
        self.assertEqual(self.script(*words, **job).code, FINISHED)
        self.assertNotIn("create", log.read_text())
        self.assertEqual(self.script(*words, **job, RELOAD_CONTAINER="true").code, FINISHED)
        self.assertIn("enroot remove --force trireme\n", log.read_text())
        self.assertIn("enroot create --name trireme", log.read_text())

    def test_docker_on_one_host_and_on_two(self):
        """Docker and ssh are stand-ins that run the commands here."""
        tools = self.folder / "tools"
        self.put(tools / "docker", f"""#!/bin/bash
echo "docker $*" >> {self.folder}/docker.log
command=$1
shift
case $command in
  kill | rm) exit ;;
  exec) shift ;;
  run)
    while [[ $1 != trireme ]]; do
      case $1 in
        --detach) exit ;;
        --env) export "${{2?}}"; shift ;;
      esac
      shift
    done
    shift ;;
esac
exec "$@"
""")
        self.put(tools / "ssh", f"""#!/bin/bash
while [[ $1 == -* ]]; do shift 2; done
echo "ssh $*" >> {self.folder}/docker.log
shift
exec bash -c "$*"
""")
        job = TREE / "jobs/docker/train.sh"
        variables = {"PROGRAM": "trireme-pretrain", "PATH": self.path_in_image()}
        self.hosts.write_text("localhost slots=2 gpus=4,5\n")
        result = self.script(job, **variables)
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(self.losses("run")), 20)
        log = (self.folder / "docker.log").read_text()
        for option in ("--network=host", "--shm-size=16g", "--ulimit memlock=-1", '--gpus "device=4,5"',
                       f"--volume {self.folder}:{self.folder}"):
            self.assertIn(f" {option} ", log)
        self.hosts.write_text("localhost slots=1\nfar slots=1")  # without a trailing newline
        keys = self.environment["KEYS"].replace(str(self.folder / "run"), str(self.folder / "two"))
        result = self.script(job, **variables, KEYS=keys, OMPI_MCA_orte_keep_fqdn_hostnames="1")
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(self.losses("two")), 20)
        log = (self.folder / "docker.log").read_text()
        self.assertRegex(log, r"ssh far docker run --detach .* sleep infinity")
        self.assertRegex(log, r"ssh far docker exec trireme-[0-9]+ sh -c ")
        self.assertRegex(log, r"ssh far docker rm --force trireme-[0-9]+\n")

    def test_container(self):
        """An image takes minutes to build: here only what goes into it."""
        packages = self.script(TREE / "jobs/container/runtime-packages.sh", BIN / "trireme-pretrain")
        self.assertEqual((packages.code, packages.err), (FINISHED, ""), packages)
        names = packages.out.split()
        for name in ("openmpi-bin", "libyaml-cpp", "libhdf5-openmpi", "libc6"):
            self.assertTrue(any(found.startswith(name) for found in names), f"{name}: {names}")
        self.refuses("build-image.sh: ", TREE / "jobs/container/build-image.sh", PROGRAMS="/nowhere")

    def test_outside_a_job_they_submit_themselves(self):
        for job in self.jobs[:-1]:
            with self.subTest(job.name):
                keys = self.environment["KEYS"]
                submitted = self.script(job, "--partition=main", "--nodes=1", KEYS=keys)
                self.assertEqual(submitted.code, FINISHED, submitted)
                self.assertIn("no errors; ", submitted.out)
                self.assertIn(f"sbatch --partition=main --nodes=1 {job}", submitted.out)
                wrong = self.script(job, KEYS=f"{keys} model.layrs=3")
                self.assertEqual(wrong.code, DECK, wrong)
                self.assertNotIn("sbatch", wrong.out)

    def test_in_a_job_they_train(self):
        job = TREE / "jobs/slurm/one-node.sbatch"
        inside = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "1", "SLURM_JOB_NAME": "tiny"}
        keys = self.environment["KEYS"].replace(f"run.output={self.folder / 'run'}", "")
        result = self.script(job, **inside, RUN="a \\ \"b\" #3", KEYS=keys)
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(self.losses("a \\ \"b\" #3")), 20)
        for code in (1, STOPPED_EARLY):
            result = self.script(job, FAIL_WITH=str(code), **inside)
            self.assertEqual(result.code, code, result)
            self.assertEqual("scontrol requeue 7\n" in result.out, code == STOPPED_EARLY, result)
        self.refuses("tiny: this Slurm's srun has no --mpi=pmix", job, PLUGINS="pmi2", **inside)

    def test_killed_ranks_requeue_after_a_checkpoint(self):
        self.check_killed_ranks(TREE / "jobs/slurm/one-node.sbatch", SLURM_JOB_ID="7",
                                SLURM_JOB_NUM_NODES="1")
        self.check_older_restart(TREE / "jobs/common/job.sh")

    def test_crashes_before_the_start_are_launched_again(self):
        self.check_crashes_before_the_start(TREE / "jobs/slurm/one-node.sbatch", SLURM_JOB_ID="7", SLURM_JOB_NUM_NODES="1")
        program = self.put(self.folder / "crashing", f"""#!/bin/bash
case "$*" in *--print-value*) exec {BIN / "trireme-pretrain"} "$@" ;; esac
echo >>launches
kill -SEGV $$
""")
        result = self.script(TREE / "jobs/ssh/train.sh", PROGRAM=str(program))
        self.assertEqual(result.code, 139, result)
        self.assertEqual((self.folder / "launches").read_text().count("\n"), 6)  # two ranks
        self.assertEqual(result.err.count("before the run had started: launching it again"), 2, result)

    def test_a_folder_with_a_line_break_is_refused(self):
        folder = self.folder / "a\necho run"
        folder.mkdir()
        for job in self.jobs:
            with self.subTest(job.name):
                result = self.script(job, folder=folder)
                self.assertEqual((result.code, result.out), (FAILED, ""), result)
                self.assertIn("a path has a line break", result.err)

    def test_a_task_of_an_array_has_its_line_folder_and_name(self):
        job = TREE / "jobs/slurm/array.sbatch"
        keys = self.environment["KEYS"].replace(str(self.folder / "run"), "elsewhere")
        inside = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "9", "SLURM_JOB_NUM_NODES": "1",
                  "RUN": "runs: odd", "KEYS": keys}
        result = self.script(job, SLURM_ARRAY_TASK_ID="2", **inside)
        self.assertEqual(result.code, FINISHED, result)
        self.assertIn("peak: 0.0006", (self.folder / "runs: odd/2/deck.yaml").read_text())
        result = self.script(job, SLURM_ARRAY_TASK_ID="3", FAIL_WITH="75", **inside)
        self.assertIn("scontrol requeue 9_3\n", result.out)
        wrong = self.folder / "list"
        wrong.write_text("schedule.peak=1e-3\nschedule.peek=1e-3")
        checked = self.script(job, LIST=str(wrong))
        self.assertEqual(checked.code, DECK, checked)
        self.assertIn("schedule.peek=1e-3: unknown key", checked.err)
        self.refuses("has no line 4: set --array to 1-3", job, SLURM_ARRAY_TASK_ID="4", **inside)
        self.refuses("has no line 3: set --array to 1-2", job, SLURM_ARRAY_TASK_ID="3", **inside, LIST=str(wrong))

    def test_ssh(self):
        job = TREE / "jobs/ssh/train.sh"
        result = self.script(job, OMPI_ALLOW_RUN_AS_ROOT="", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="")
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(self.losses("run")), 20)
        self.assertIn("(ranks: 2)", result.out)
        for text, line in [("is no number of ranks", "localhost slots=two"),
                           ("neither slots=N nor gpus=LIST", "localhost gpu=1"),
                           ("gpus=0,1 are 2", "localhost slots=3 gpus=0,1"),
                           ("names no host", "# localhost")]:
            self.hosts.write_text(line + "\n")
            self.refuses(text, job)
        self.hosts.write_text("localhost slots=1\nfar slots=1\n")
        for code, text in [(255, "cannot be reached"), (1, f"lacks the folder {self.folder}")]:
            agent = self.put(self.folder / "agent", f"#!/bin/bash\nexit {code}\n")
            self.refuses(f"host 'far' of {self.hosts} {text}", job, SSH=str(agent))

    def test_mpirun_gets_the_signals_of_its_script(self):
        keys = f"{self.environment['KEYS']} train.iterations=100000"
        with unittest.mock.patch.dict(os.environ, self.environment, KEYS=keys):
            with Started([str(TREE / "jobs/ssh/train.sh")]) as started:
                self.wait_until(lambda: self.events("run", "train"), started)
                os.kill(started.process.pid, signal.SIGUSR1)
                result = started.finish()
        self.assertEqual(result.code, STOPPED_EARLY, result)
        self.assertIn("a signal asked for it", result.out)

    def test_gpus_of_each_host(self):
        """The second host, which the agent makes of this one, has its own choice."""
        self.put(self.folder / "program", "#!/bin/bash\ncat >/dev/null\n"
                 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE: $CUDA_VISIBLE_DEVICES"\n')
        self.hosts.write_text("localhost slots=2 gpus=4,5\nlocalhost slots=1 gpus=7")  # without a trailing newline
        result = self.script(TREE / "jobs/ssh/train.sh", PROGRAM=str(self.folder / "program"))
        self.assertEqual(result.code, FINISHED, result)
        for line in ("rank 0 of 3: 4,5", "rank 1 of 3: 4,5", "rank 2 of 3: 7"):
            self.assertIn(line, result.out)

    def test_every_host_is_given_the_environment_that_ssh_drops(self):
        """Two hosts, which the agent makes of this one, leaving as little as ssh does. Each has its
        own folder for what mpirun's daemons keep."""
        agent = self.put(self.folder / "agent", '#!/bin/bash\nhost=$1\nshift\nmkdir -p "$host"\n'
                         'exec env -i HOME="$HOME" TMPDIR="$PWD/$host" PATH=/usr/bin:/bin sh -c "$*"\n')
        two_hosts = [MPIEXEC, "--mca", "plm_rsh_agent", str(agent), "-n", "1", "-host", "far:1", "cat",
                     ":", "-n", "2", "-host", "farther:2", "cat"]
        # Programs of two hosts read to the end of their input: Open MPI 4's daemon fails at times where a program has
        # ended before it.
        started = subprocess.run(two_hosts, cwd=self.folder, env=self.environment,
                                 stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE, check=False)
        if started.returncode != 0:
            self.skipTest(f"Open MPI makes no two hosts of this one here: {started.stderr}")
        self.put(self.folder / "program", "#!/bin/bash\ncat >/dev/null\n"
                 'echo "rank $OMPI_COMM_WORLD_RANK: $OMP_NUM_THREADS $NCCL_DEBUG $LD_LIBRARY_PATH $PATH"\n')
        self.hosts.write_text("far slots=1\nfarther slots=2\n")
        result = self.script(TREE / "jobs/ssh/train.sh", PROGRAM=str(self.folder / "program"),
                             SSH=str(agent), OMP_NUM_THREADS="3", NCCL_DEBUG="WARN",
                             LD_LIBRARY_PATH="/opt/lib")
        self.assertEqual(result.code, FINISHED, result)
        for rank in range(3):
            self.assertIn(f"rank {rank}: 3 WARN /opt/lib {self.environment['PATH']}\n", result.out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
