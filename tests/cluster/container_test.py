"""Ranks in an enroot image on two hosts. Needs enroot, pyxis and, in TRIREME_IMAGE, an image that
jobs/container/build-image.sh has made of this build."""

import os
import shutil
import sys
import unittest

from cluster import BOTH_NODES, SCRATCH, SOURCE, ClusterTest, call
from runs import FINISHED

IMAGE = os.environ.get("TRIREME_IMAGE", "")


def missing():
    """What keeps this test from running; empty when nothing does."""
    if not shutil.which("enroot"):
        return "there is no enroot here"
    if "--container-image" not in call("srun", "--help"):
        return "srun has no --container-image: there is no pyxis here"
    if not os.path.exists(IMAGE):
        return "TRIREME_IMAGE names no image of jobs/container/build-image.sh"
    return ""


class Container(ClusterTest):
    def test_srun(self):
        mounts = f"{SOURCE}:{SOURCE},{SCRATCH}:{SCRATCH}"
        with self.submit("many-nodes.sbatch", *BOTH_NODES, IMAGE=IMAGE, MOUNTS=mounts,
                         PROGRAM="trireme-pretrain") as job:
            self.assertEqual(job.finish(), FINISHED, job.text())
        self.check_losses("run", tolerance=1e-3)


if __name__ == "__main__":
    if missing():
        print(f"SKIPPED: {missing()}")
        sys.exit(77)
    unittest.main(verbosity=2)
