"""What the tests on a cluster share: jobs of its Slurm, its hosts, a deck, an undisturbed run.

They run on the login node (cluster.sh in), next to whose folder, $CLUSTER, the nodes' files lie. All
take the job scripts of jobs/ as they are, with other values for what people edit.
"""

import contextlib
import functools
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "regression"))

from runs import BIN, SCRATCH, RunTest, dataset, run  # noqa: E402

SOURCE = HERE.parents[1]
CLUSTER = Path(os.environ["CLUSTER"])
NODES = ["node0", "node1"]
JOBS = SOURCE / "jobs"

ITERATIONS = 60
# Seconds: what ends a job that has lost a host, and what nothing here comes near to.
TIMEOUT = 8
PATIENCE = 200

# The environment of jobs whose iterations take 50 ms and more: no machine is so quick that such a run ends before the
# fault that it is given.
PACED = {"LD_PRELOAD": os.environ["TRIREME_IO_FAULTS"], "TRIREME_FAULT": "slow", "TRIREME_FAULT_FILES": "metrics.jsonl"}

# Two ranks on each node; tensor ranks are neighbours, gradients cross the cable.
LAYOUT = ["parallel.tensor=2", "parallel.data=2"]
PER_NODE = 2


@functools.lru_cache(maxsize=None)
def deck(timeout=TIMEOUT):
    """The deck of the run-level tests with checkpoints, and little patience with silent ranks."""
    dataset()  # makes SCRATCH
    path = SCRATCH / f"deck-{timeout}s.yaml"
    path.write_text((HERE.parent / "regression" / "tiny.yaml").read_text()
                    + f"checkpoint: {{every: 15}}\ncomm: {{timeout: {timeout} seconds}}\n")
    return path


def keys(*words):
    """The words that a test's deck needs."""
    return [f"data.train={dataset()}", "run.device=host", f"train.iterations={ITERATIONS}",
            "evaluate.at_end=false", *LAYOUT, *words]


@functools.lru_cache(maxsize=None)
def undisturbed():
    """The losses of the run that all others must come to, on ranks of one host."""
    folder = SCRATCH / "undisturbed"
    result = run("trireme-pretrain", deck(), *keys(f"run.output={folder}"), "--restart", "never",
                 ranks=len(NODES) * PER_NODE)
    if result.code != 0:
        raise RuntimeError(str(result))
    events = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [event["loss"] for event in events if event["kind"] == "train"]


def call(*words, check=True, **more):
    """Runs a command that ends soon, and returns its standard output."""
    result = subprocess.run([*map(str, words)], text=True, capture_output=True, timeout=PATIENCE,
                            **more)
    if check and result.returncode != 0:
        raise AssertionError(f"{shlex.join(map(str, words))}\nended with {result.returncode}\n"
                             f"{result.stdout}{result.stderr}")
    return result.stdout


def on_node(node, *words, check=True):
    """Runs a command among the processes of a node."""
    init = (CLUSTER / f"{node}.pid").read_text().strip()
    return call("nsenter", "--target", init, "--mount", "--net", "--uts", "--ipc", "--pid", "--",
                *words, check=check)


def pull_cable(node):
    call("ip", "link", "set", f"cable{NODES.index(node)}", "down")


def plug_in_cable(node):
    """Returns when the node reaches Slurm's controller."""
    call("ip", "link", "set", f"cable{NODES.index(node)}", "up")
    on_node(node, "bash", "-c", "until echo >/dev/tcp/login/6817; do sleep 0.1; done")


def freeze(node):
    """Stops all processes of a node but its first."""
    on_node(node, "bash", "-c", "kill -STOP -1")


def thaw(node):
    on_node(node, "bash", "-c", "kill -CONT -1")


def switch_off_and_on(node):
    on_node(node, "bash", "-c", "kill -KILL -1")


def running_programs():
    """The command lines of programs of this build that run anywhere on the cluster."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            words = path.read_bytes().split(b"\0")
            if words[0].startswith(str(BIN).encode()):
                found.append(b" ".join(words).decode())
    return found


class Job:
    """A job of the cluster's Slurm, which its `with` block cancels."""

    def __init__(self, output, *words, **environment):
        """Submits by `words`; `environment` holds what a job script takes from there."""
        self.output = output
        self.id = call(*words, env={**os.environ, **environment}).strip().split(";")[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        call("scancel", self.id, check=False)

    def facts(self):
        """What Slurm says of the job."""
        words = shlex.split(call("scontrol", "show", "job", "--oneliner", self.id))
        return dict(word.split("=", 1) for word in words if "=" in word)

    @property
    def state(self):
        return self.facts()["JobState"]

    @property
    def restarts(self):
        return int(self.facts()["Restarts"])

    def text(self):
        return self.output.read_text() if self.output.exists() else ""

    def wait_until(self, condition, patience=PATIENCE):
        """Waits until `condition()` holds."""
        deadline = time.monotonic() + patience
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"waited in vain\n{self.facts()}\n{self.text()[-6000:]}")
            time.sleep(0.1)

    def ended(self):
        return self.state in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT")

    def finish(self):
        """Waits for the job's end, and returns its exit code."""
        self.wait_until(self.ended)
        return int(self.facts()["ExitCode"].split(":")[0])

    def srun_waits_in_vain(self):
        """Waits for the job's end; true when all tasks have exited but srun still waits: sometimes Slurm
        22.05 loses the end of a step of a heterogeneous job."""
        self.wait_until(lambda: self.ended() or "Terminating StepId" in self.text())
        return not self.ended()


class ClusterTest(RunTest):
    def setUp(self):
        super().setUp()
        os.chdir(SOURCE)

    def tearDown(self):
        for node in NODES:
            thaw(node)
            plug_in_cable(node)
        call("scancel", "--user=root")
        self.wait("the nodes", lambda: self.idle_nodes() == NODES)
        self.wait("the end of the ranks", lambda: not running_programs())

    def wait(self, what, condition):
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self.assertLess(time.monotonic(), deadline, f"waited in vain for {what}")
            time.sleep(0.1)

    def idle_nodes(self):
        lines = call("sinfo", "--noheader", "--Node", "--format=%n %T").splitlines()
        return [node for node, state in map(str.split, lines) if state == "idle"]

    def job_values(self, name, *words, timeout=TIMEOUT):
        """What people edit at the top of a job script."""
        return {"TRIREME": str(SOURCE), "PROGRAM": str(BIN / "trireme-pretrain"),
                "DECK": str(deck(timeout)), "RUN": str(self.folder / name),
                "KEYS": " ".join(keys(*words))}

    def over_ssh(self, name, **more):
        """The words that train without a scheduler, PER_NODE ranks on each node."""
        hosts = self.folder / "hosts"
        hosts.write_text("".join(f"{node} slots={PER_NODE}\n" for node in NODES))
        values = {**self.job_values(name, **more), "HOSTS": hosts, "SSH": HERE / "ssh.sh"}
        return ["env", *(f"{key}={value}" for key, value in values.items()),
                str(JOBS / "ssh" / "train.sh")]

    def submit(self, script, *options, name="run", words=(), **values):
        """A job of jobs/slurm on both nodes. Its ranks are on CPUs: the stand-in GPUs are for
        Slurm."""
        return Job(self.folder / f"{name}.out", "sbatch", "--parsable",
                   f"--output={self.folder / name}.out", *options, JOBS / "slurm" / script,
                   **{**self.job_values(name, *words), **values})

    def hosts(self, name):
        return self.events(name, "start")[-1]["hosts"]

    def check_losses(self, name, tolerance=0.0):
        """The run has the losses of one that nothing disturbed."""
        self.assert_close(self.losses(name), undisturbed(), tolerance, name)


BOTH_NODES = ["--nodes=2", f"--ntasks-per-node={PER_NODE}", f"--gpus-per-node={PER_NODE}",
              "--cpus-per-task=1"]
