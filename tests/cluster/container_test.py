"""Jobs in an enroot image on two hosts, as srun and pyxis start them for a user other than root. Needs
enroot, pyxis, enroot's hook for PMIx and, in TRIREME_IMAGE, an image that jobs/container/build-image.sh
has made of this build."""

import os
import shutil
import sys
import unittest

from cluster import (BIN, BOTH_NODES, CLUSTER, ITERATIONS, JOBS, NODES, PER_NODE, ClusterTest, Job,
                     call, deck, keys)
from runs import FAILED, FINISHED, STOPPED_EARLY, dataset

IMAGE = os.environ.get("TRIREME_IMAGE", "")
HOOK = "50-slurm-pmi.sh"
RANKS = str(len(NODES) * PER_NODE)
ENDLESS = "train.iterations=20000"
AS_GUEST = ["setpriv", "--reuid=guest", "--regid=guest", "--clear-groups", "env",
            f"HOME={CLUSTER / 'guest'}"]


def missing():
    """What keeps this test from running; empty when nothing does."""
    if not shutil.which("enroot"):
        return "there is no enroot here"
    if "--container-image" not in call("srun", "--help"):
        return "srun has no --container-image: there is no pyxis here"
    if not (CLUSTER / "enroot" / "hooks.d" / HOOK).exists():
        return f"enroot was installed without its hook {HOOK}"
    if not os.path.exists(IMAGE):
        return "TRIREME_IMAGE names no image of jobs/container/build-image.sh"
    return ""


class Container(ClusterTest):
    def setUp(self):
        """A folder of the guest's: there are the job scripts, the deck, the data and the image."""
        super().setUp()
        self.folder = CLUSTER / "guest" / self._testMethodName
        shutil.copytree(JOBS, self.folder / "jobs")
        shutil.copy(deck(), self.folder / "deck.yaml")
        for file in dataset().parent.glob(f"{dataset().name}.*"):
            shutil.copy(file, self.folder)
        image = CLUSTER / "trireme.sqsh"
        if not image.exists():
            shutil.copy(IMAGE, image)
        os.link(image, self.folder / "trireme.sqsh")
        call("chown", "--recursive", "guest:guest", self.folder)
        os.chdir(self.folder)

    def tearDown(self):
        super().tearDown()
        shutil.rmtree(self.folder)

    def keys(self, *words):
        return keys(f"data.train={dataset().name}", *words)

    def submit_as_guest(self, *words, **values):
        return Job(self.folder / "run.out", *AS_GUEST, "sbatch", "--parsable", "--output=run.out",
                   *words, **values)

    def submit_script(self, *words, **values):
        """A job script as people edit it: the image by its name, the program as it stands there."""
        values = {"TRIREME": str(self.folder), "DECK": "deck.yaml", "RUN": "run",
                  "KEYS": " ".join(self.keys(*words)), "IMAGE": "trireme.sqsh", **values}
        return self.submit_as_guest(*BOTH_NODES, "jobs/slurm/many-nodes.sbatch", **values)

    def check_trained(self, job):
        self.assertRegex(job.text(), r"continue   srun --mpi=pmix -n \d+ '--container-image=")
        self.assertEqual(self.hosts("run"), NODES)
        self.check_losses("run", tolerance=1e-3)

    def test_job_script(self):
        with self.submit_script() as job:
            self.assertEqual(job.finish(), FINISHED, job.text())
        self.check_trained(job)

    def test_printed_job(self):
        """The folder in which a job is printed is what its ranks see of the host."""
        script = self.folder / "job.sbatch"
        script.write_text(call(
            BIN / "trireme-pretrain", "deck.yaml", *self.keys("run.output=run"), "--print-job",
            "slurm", "--image", "trireme.sqsh", "--gpus-per-node", "0", "--nodes", str(len(NODES)),
            "--ranks", RANKS, "--time", "10:00"))
        with self.submit_as_guest(script) as job:
            self.assertEqual(job.finish(), FINISHED, job.text())
        self.check_trained(job)

    def test_signal(self):
        """Slurm's signal reaches the ranks, and the job resumes from their checkpoint."""
        with self.submit_script(ENDLESS) as job:
            job.wait_until(lambda: len(self.events("run", "train")) > 2)
            call("scancel", "--signal=USR1", job.id)  # as --signal=USR1@... does
            job.wait_until(lambda: self.events("run", "stop"))
            stop = self.stop_event("run")
            self.assertEqual(stop["exit_code"], STOPPED_EARLY)
            job.wait_until(lambda: len(self.losses("run")) > stop["iteration"])
            self.assertIn(f"{stop['iteration']:08}.h5, iteration {stop['iteration']}", job.text())

    def test_image_that_is_not_there(self):
        with self.submit_script(IMAGE="none.sqsh") as job:
            self.assertEqual(job.finish(), FAILED, job.text())
        self.assertIn("there is no image 'none.sqsh'", job.text())

    def test_enroot_alone(self):
        """A host's ranks need neither Slurm nor pyxis."""
        own = CLUSTER / "tmp" / "alone"
        folders = [f"ENROOT_{name}_PATH={own}/{name}" for name in ("DATA", "RUNTIME", "CACHE")]
        enroot = [*AS_GUEST, *folders, "enroot"]
        call(*enroot, "create", "--name", "trireme", "trireme.sqsh")
        call(*enroot, "start", "--mount", f"{self.folder}:{self.folder}", "trireme",
             "mpirun", "--oversubscribe", "-n", RANKS, "--wdir", self.folder,
             "trireme-pretrain", "deck.yaml", *self.keys("run.output=run"))
        self.assertEqual(len(self.losses("run")), ITERATIONS)
        call(*enroot, "remove", "--force", "trireme")


if __name__ == "__main__":
    if missing():
        print(f"SKIPPED: {missing()}")
        sys.exit(77)
    unittest.main(verbosity=2)
