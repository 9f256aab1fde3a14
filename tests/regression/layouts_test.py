"""The layout never changes the mathematics: twenty steps with dropout give the serial loss curve."""

import unittest

from runs import RunTest

TOLERANCE = 2e-6


def layout_words(tensor, pipeline, data):
    return [f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", f"parallel.data={data}"]


class Layouts(RunTest):
    def check(self, reference, tensor, pipeline, data, *words):
        label = " ".join([f"tensor {tensor} pipeline {pipeline} data {data}", *words])
        with self.subTest(label):
            name = label.replace(" ", "-")
            self.pretrain(name, *layout_words(tensor, pipeline, data), "checkpoint.at_end=false",
                          *words, ranks=tensor * pipeline * data)
            started = self.events(name, "start")[0]["layout"]
            self.assertEqual([started[axis] for axis in ("tensor", "pipeline", "data")],
                             [tensor, pipeline, data])
            self.assert_close(self.losses(name), reference, TOLERANCE, label)

    def serial(self, *words):
        self.pretrain("serial", "checkpoint.at_end=false", *words)
        losses = self.losses("serial")
        self.assertLess(losses[-1], 0.9 * losses[0], "the model learns nothing")
        return losses

    def test_every_axis(self):
        reference = self.serial()
        self.assertEqual(len(reference), 20)
        for layout in [(2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 4, 1), (1, 1, 2), (1, 1, 4), (2, 2, 1),
                       (2, 1, 2), (1, 2, 2), (2, 2, 2)]:
            self.check(reference, *layout)
        self.check(reference, 1, 4, 1, "parallel.partition=0-2-2-0")
        self.check(reference, 1, 1, 1, "batch.micro=4")

    def test_zero(self):
        reference = self.serial("parallel.zero=0")
        self.check(reference, 1, 1, 4, "parallel.zero=0")
        self.check(reference, 2, 1, 2, "parallel.zero=0", "parallel.bucket=1000")
        self.check(reference, 2, 1, 2, "parallel.zero=1", "parallel.bucket=1000")

    def test_embedding_layernorm(self):
        words = ["model.embedding_layernorm=true", "optimizer.clip=0.1"]
        reference = self.serial(*words)
        self.check(reference, 2, 2, 1, *words)
        self.check(reference, 1, 2, 2, "parallel.partition=1-3", *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
