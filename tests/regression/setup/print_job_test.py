"""Jobs that --print-job writes: they pass shellcheck, run, refuse with one line what is missing, and requeue on exit code
75 alone."""

import re
import shlex
import unittest

from job_testing import TREE, JobTest
from runs import BIN, DECK, FINISHED, HERE, STOPPED_EARLY, USAGE


class PrintJob(JobTest):
    def job(self, *words, code=FINISHED, folder=None):
        result = self.script(BIN / "trireme-pretrain", *words, folder=folder)
        self.assertEqual(result.code, code, result)
        return result

    def written(self, *words):
        """The job of the tests' deck on two ranks of the host."""
        result = self.job(*self.deck_words("run"), "--gpus-per-node=0", "--ranks=2", *words)
        return self.put(self.folder / "job.sh", result.out)

    def test_jobs_of_decks_pass_shellcheck(self):
        paths = []
        for deck in ("gpt2-124m", "gpt2-1.5b", "gpt2-1.5b-zero", "gpt2-345m-2gpu", "gpt2-345m-tp4"):
            for launcher in ("slurm", "mpirun"):
                job = self.job(f"inputs/{deck}.yaml", "batch.micro=1", "batch.global=1024",
                               "--print-job", launcher, "--gpus-per-node=4", "--nodes=2",
                               folder=TREE)  # from where decks name their tokenizers
                paths.append(self.put(self.folder / f"{deck}-{launcher}.sh", job.out))
        odd = self.job(*self.deck_words("a b"), "run.name=it's $HOME", "run.device=cuda",
                       "--print-job=slurm", "--image=an image.sqsh", "--partition=p")
        paths.append(self.put(self.folder / "odd.sh", odd.out))
        kinds = self.job("inputs/gpt2-xl-a10x32.yaml", "--print-job=slurm",
                         "--gpus-per-node=2*a100:8,4*a10:4", "cluster.modules=cuda openmpi", folder=TREE)
        paths.append(self.put(self.folder / "kinds.sh", kinds.out))
        self.shellcheck(*paths)

    def test_kinds_of_nodes_and_the_cluster_section(self):
        words = [TREE / "inputs/gpt2-xl-a10x32.yaml", "--print-job=slurm", "model.vocab=50257"]
        job = self.job(*words, "--gpus-per-node=a10:4", "--account=physics").out
        for line in ["#SBATCH --nodes=8", "#SBATCH --gpus-per-node=a10:4", "#SBATCH --account=physics"]:
            self.assertIn(line + "\n", job)
        cluster = "cluster={kinds: [2*a100:8, 4*a10:4], partition: gpu, modules: cuda, time: 90 minutes}"
        job = self.job(*words, cluster).out
        for line in ["#SBATCH --gpus-per-node=a100:8", "#SBATCH hetjob", "#SBATCH --gpus-per-node=a10:4",
                     "#SBATCH --time=01:30:00", "module load cuda || refuse 'not all modules can be loaded'",
                     "  --het-group=0-1 \\", "  run.mixed_gpus=true"]:
            self.assertIn(line + "\n", job)
        self.assertEqual(job.count("#SBATCH --partition=gpu\n"), 2)
        job = self.job(*words, cluster, "--gpus-per-node=8", "--partition=other", "--time=1:00:00").out
        self.assertNotIn("hetjob", job)  # options win over the deck
        self.assertIn("#SBATCH --partition=other\n", job)
        self.assertIn("#SBATCH --time=01:00:00\n", job)
        refused = self.job(*words, "--gpus-per-node=1*a100:8,4*a10:4", code=USAGE)
        self.assertIn("the 2 kinds of nodes have 24 GPUs, but the layout has 32 ranks", refused.err)
        refused = self.job(*words, "--gpus-per-node=a10:x", code=USAGE)
        self.assertIn("--gpus-per-node a10:x: 'a10:x' is no kind of nodes", refused.err)
        refused = self.job(*words, "cluster.kinds=[a100:8, a10:4]", code=DECK)
        self.assertIn("several kinds of nodes each need their number of nodes", refused.err)

    def test_layout_says_it_once(self):
        job = self.job(TREE / "inputs/gpt2-1.5b.yaml", "--print-job=slurm", "--nodes=4").out
        for line in ["#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=8", "#SBATCH --gpus-per-node=8",
                     "# gpt2-1.5b: 32 ranks = tensor 1 x pipeline 4 x data 8"]:
            self.assertIn(line, job)

    def test_device_is_the_one_that_was_planned_for(self):
        """A deck that leaves it open says so in its job: hosts may have GPUs outside of the request."""
        deck = HERE / "tiny.yaml"
        for launcher in ("slurm", "mpirun"):
            for gpus, device in [("0", "host"), ("1", "cuda")]:
                job = self.job(deck, f"--print-job={launcher}", f"--gpus-per-node={gpus}").out
                self.assertRegex(job, rf"{re.escape(str(deck))} \\\n +run\.device={device}\n")
        job = self.job(deck, "run.device=host", "--print-job=slurm").out
        self.assertEqual(job.count("run.device"), 1, job)
        job = self.job(deck, "run.device=auto", "--print-job=slurm", "--gpus-per-node=0").out
        self.assertRegex(job, r"run\.device=auto \\\n +run\.device=host\n")
        refused = self.job(deck, "run.device=cuda", "--print-job=slurm", "--gpus-per-node=0", code=USAGE)
        self.assertIn("the deck says run.device = cuda", refused.err)

    def test_killed_ranks_requeue_after_a_checkpoint(self):
        job = self.written("--print-job=slurm")
        self.check_killed_ranks(job, SLURM_JOB_ID="7")
        self.check_older_restart(job)
        again = self.written("--print-job=slurm", f"run.output={self.folder / 'again'}")
        self.check_crashes_before_the_start(again, SLURM_JOB_ID="7")
        # What awk takes for an assignment where it expects a file.
        self.check_killed_ranks(self.written("--print-job=slurm", "run.output=a=b"), SLURM_JOB_ID="7")

    def test_a_folder_with_a_line_break_is_refused(self):
        folder = self.folder / "a\necho run"
        folder.mkdir()
        for launcher in ("slurm", "mpirun"):
            refused = self.job(*self.deck_words("run"), f"--print-job={launcher}", code=USAGE, folder=folder)
            self.assertEqual(refused.out, "")
            self.assertIn("the name of this folder has a line break", refused.err)

    def test_mpirun_job_trains(self):
        job = self.written("--print-job=mpirun", "--time=00:10:00")
        # Root is let in without a word in the environment.
        result = self.script(job, OMPI_ALLOW_RUN_AS_ROOT="", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="")
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(self.losses("run")), 20)
        self.assertIn("--time-limit 00:10:00", result.out)

    def test_slurm_job_trains_and_requeues_on_75_alone(self):
        job = self.written("--print-job=slurm")
        result = self.script(job, SLURM_JOB_ID="7")
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(len(self.losses("run")), 20)
        self.assertNotIn("scontrol", result.out)
        for code in (1, STOPPED_EARLY, DECK, 137):
            result = self.script(job, SLURM_JOB_ID="7", FAIL_WITH=str(code))
            self.assertEqual(result.code, code, result)
            self.assertEqual("scontrol requeue 7" in result.out, code == STOPPED_EARLY, result)

    def test_run_in_an_image_names_it_where_it_continues(self):
        image = self.folder / "an image.sqsh"
        image.touch()
        job = self.written("--print-job=slurm", f"--image={image}")
        result = self.script(job, SRUN_HELP="--container-image", PATH=self.path_in_image())
        self.assertEqual(result.code, FINISHED, result)
        line = re.search(r"^continue   (.*)$", result.out, re.MULTILINE).group(1)
        self.assertEqual(shlex.split(line)[:9],
                         ["srun", "--mpi=pmix", "-n", "2", f"--container-image={image}",
                          f"--container-mounts={self.folder}:{self.folder}",
                          f"--container-workdir={self.folder}", "--no-container-remap-root",
                          "trireme-pretrain"])

    def test_what_is_missing_is_refused(self):
        job = self.written("--print-job=slurm")
        self.refuses("srun has no --mpi=pmix", job, PLUGINS="none pmi2")
        deck = self.folder / "deck.yaml"
        deck.write_text((HERE / "tiny.yaml").read_text())
        job = self.put(self.folder / "job.sh",
                       self.job(deck, "--print-job=slurm", "run.device=host").out)
        deck.unlink()
        self.refuses(f"there is no deck {deck} in {self.folder}", job)
        image = self.folder / "trireme.sqsh"
        job = self.written("--print-job=slurm", f"--image={image}")
        self.refuses(f"there is no image {image}", job)
        image.touch()
        self.refuses("pyxis is not installed", job)
        job = self.written("--print-job=slurm")
        job.write_text(job.read_text().replace(str(BIN), "/nowhere"))
        self.refuses("there is no program /nowhere/trireme-pretrain", job)

    def test_options_that_make_no_sense(self):
        words = self.deck_words("run")
        for text, options in [
                ("must be slurm or mpirun", ["--print-job=lsf"]),
                ("--nodes 0: must be from 1", ["--print-job=slurm", "--nodes=0"]),
                ("--nodes belongs to --print-job", ["--nodes=2"]),
                ("mpirun starts no containers", ["--print-job=mpirun", "--image=x"]),
                ("checkpoint.load", ["--print-job=slurm", "--restart=never"]),
                ("a job's limit is its --time", ["--print-job=slurm", "--time-limit=1:00"]),
                ("must be a minute", ["--print-job=slurm", "--time=00:00:01"]),
                ("cannot be shared out", ["--print-job=slurm", "--nodes=3", "--ranks=4"])]:
            self.assertIn(text, self.job(*words, *options, code=USAGE).err)
        spaced = self.folder / "a b"
        spaced.mkdir()
        refused = self.job(*words, "--print-job=slurm", "--image=x", code=USAGE, folder=spaced)
        self.assertIn(f"pyxis cannot mount '{spaced}'", refused.err)
        bad = self.job(*words, "--print-job=slurm", "parallel.tensor=3", code=DECK)
        self.assertIn("parallel.tensor = 3 does not divide", bad.err)
        bad = self.job(*words, "--print-job=slurm", "run.device=cuda", "batch.micro=1", "batch.global=4", code=DECK)
        self.assertIn(" = 1 * 8 = 8 (try 8); the job has 8 ranks (--gpus-per-node, --nodes, --ranks)\n", bad.err)


if __name__ == "__main__":
    unittest.main(verbosity=2)
