"""Silent data corruption: bits that flip in gradients, activations, messages and weights."""

import time

from driver import CORRUPTED, DATA_PARALLEL, Driver
from runs import FINISHED


class CorruptionFaults(Driver):
    def flip_once(self, case, target=None):
        """A bit flips in one of the two runs of a step: a third one decides."""
        case.layout, case.zero = case.layout if target != "messages" else DATA_PARALLEL, 1
        rank, at = case.chance.randrange(2), case.chance.randrange(20, 50)
        target = target or case.chance.choice(["gradients", "activations", "messages"])
        with self.begin(case, f"train.verify.step_every={at}",
                        f"train.verify.inject={target} rank={rank} iteration={at}") as started:
            result = self.ended(case, started, [FINISHED], time.monotonic())
        warnings = [event for event in self.events(case.name, "warning")
                    if event["message"].startswith("silent data corruption: ")]
        self.assertEqual([event["iteration"] for event in warnings], [at], result)
        self.assertIn(f"rank {rank} (", warnings[0]["message"])
        self.assertIn("a third run agrees", warnings[0]["message"])
        case.detected, case.lost = 0.0, 0
        self.compare(case)

    def flip_gradient(self, case):
        self.flip_once(case, "gradients")

    def flip_activation(self, case):
        self.flip_once(case, "activations")

    def flip_message(self, case):
        self.flip_once(case, "messages")

    def flip_always(self, case):
        """A rank computes wrong results each time: the run stops before it uses one, and names the rank."""
        rank, at = case.chance.randrange(2), case.chance.randrange(20, 50)
        target = case.chance.choice(["gradients", "activations"])
        with self.begin(case, f"train.verify.step_every={at}",
                        f"train.verify.inject={target} rank={rank} iteration={at} times=9") as started:
            result = self.ended(case, started, [CORRUPTED], time.monotonic())
        self.assertRegex(result.err, rf"silent data corruption: .* on rank {rank} \(.*so does a third run")
        self.assertEqual(self.stop_event(case.name)["exit_code"], CORRUPTED)
        self.assertTrue((self.folder / case.name / "suspect-hosts").read_text().strip())
        self.continues(case)

    def flip_weight(self, case):
        """A replica of a weight changes: the run stops before its gradients are used."""
        case.layout, case.zero = DATA_PARALLEL, 1
        at = case.chance.randrange(20, 50)
        # Half of the weights, which a rank updates, and its copy of the other half.
        element = case.chance.choice([0, 10**9])
        with self.begin(case, "train.verify.weights_every=1",
                        f"train.verify.inject=weights rank=1 iteration={at} element={element}") as started:
            result = self.ended(case, started, [CORRUPTED], time.monotonic())
        self.assertRegex(result.err, "silent data corruption: in iteration .* replicas of weights differ: "
                                     "the weights embedding/word on rank 0 .*, and the weights embedding/word on rank 1")
        self.continues(case)

    def flip_spike(self, case):
        """A high bit of an activation flips in a step that does not run twice: its gradient is a spike or
        not finite, so that the step runs again."""
        case.layout, case.zero = DATA_PARALLEL, 1
        with self.begin(case, "train.verify.step_every=1000",
                        "train.verify.inject=gradients rank=1 iteration=30 bit=30") as started:
            self.ended(case, started, [FINISHED], time.monotonic())
        warnings = [event["message"] for event in self.events(case.name, "warning")]
        self.assertRegex(" ".join(warnings), "silent data corruption: the gradient .* but not in a second run")
        case.detected, case.lost = 0.0, 0
        self.compare(case)
