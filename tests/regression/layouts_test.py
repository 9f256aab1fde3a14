"""The layout never changes the mathematics: twenty steps with dropout give the serial loss curve."""

import unittest

from runs import RunTest

TOLERANCE = 2e-6


class Layouts(RunTest):
    def serial(self, *words):
        self.pretrain("serial", "checkpoint.at_end=false", *words)
        losses = self.losses("serial")
        self.assert_learns(losses)
        return losses

    def check(self, reference, layout, *words):
        self.check_layout(reference, TOLERANCE, layout, *words)

    def test_every_axis(self):
        reference = self.serial()
        self.assertEqual(len(reference), 20)
        for layout in [(2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 1, 4), (2, 2, 1),
                       (2, 1, 2), (1, 2, 2), (2, 2, 2)]:
            self.check(reference, layout)
        self.check(reference, (1, 4, 1), "parallel.partition=0-2-2-0")
        self.check(reference, (1, 1, 1), "batch.micro=4")

    def test_zero(self):
        reference = self.serial("parallel.zero=0")
        self.check(reference, (1, 1, 4), "parallel.zero=0")
        self.check(reference, (2, 1, 2), "parallel.zero=0", "parallel.bucket=1000")
        self.check(reference, (2, 1, 2), "parallel.zero=1", "parallel.bucket=1000")

    def test_embedding_layernorm(self):
        words = ["model.embedding_layernorm=true", "optimizer.clip=0.1"]
        reference = self.serial(*words)
        self.check(reference, (2, 2, 1), *words)
        self.check(reference, (1, 2, 2), "parallel.partition=1-3", *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
