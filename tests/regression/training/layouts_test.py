"""The layout never changes the mathematics: twenty steps with dropout give the serial loss curve."""

import math
import unittest

from runs import FINISHED, GROUPED, RunTest, layout_words, run

TOLERANCE = 2e-6
INTERLEAVED = ["parallel.schedule=interleaved", "parallel.interleave=2"]
ZERO_BUBBLE = ["parallel.schedule=zero-bubble"]


class Curves(RunTest):
    def serial(self, *words):
        self.pretrain("serial", "checkpoint.at_end=false", *words)
        losses = self.losses("serial")
        self.assert_learns(losses)
        return losses

    def check(self, reference, layout, *words):
        self.check_layout(reference, TOLERANCE, layout, *words)


class Layouts(Curves):
    def test_every_axis(self):
        reference = self.serial()
        for layout in [(2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 3, 1), (1, 4, 1), (1, 1, 2), (1, 1, 4),
                       (2, 2, 1), (2, 1, 2), (1, 2, 2), (2, 2, 2)]:
            self.check(reference, layout)
        self.check(reference, (1, 4, 1), "parallel.partition=0-2-2-0")
        self.check(reference, (1, 1, 1), "batch.micro=4")

    def test_zero(self):
        reference = self.serial("parallel.zero=0")
        self.check(reference, (1, 1, 4), "parallel.zero=0")
        self.check(reference, (2, 1, 2), "parallel.zero=0", "parallel.bucket=1000")
        self.check(reference, (2, 1, 2), "parallel.zero=1", "parallel.bucket=1000")

    def test_pipeline_schedules(self):
        words = ["model.layers=8"]
        reference = self.serial(*words)
        small_buckets = ["parallel.bucket=1000"]
        for layout, *more in [[(1, 2, 1)], [(1, 4, 1)], [(2, 2, 1)], [(1, 2, 2), *small_buckets],
                              [(1, 2, 2), "parallel.zero=0"]]:
            for schedule in [INTERLEAVED, ZERO_BUBBLE]:
                self.check(reference, layout, *words, *schedule, *more)
        self.check(reference, (1, 4, 1), *words, *ZERO_BUBBLE, "parallel.partition=0-5-3-0")
        for schedule in [[], ZERO_BUBBLE]:
            self.check(reference, (1, 4, 1), *words, *schedule, "parallel.overlap.pipeline=false")

    def test_zero_bubble_changes_no_bit(self):
        for dropout in [0, 0.1]:
            words = ["parallel.pipeline=2", "checkpoint.at_end=false",
                     f"model.dropout.attention={dropout}", f"model.dropout.hidden={dropout}"]
            self.pretrain(f"plain-{dropout}", *words, ranks=2)
            self.pretrain(f"zero-{dropout}", *words, *ZERO_BUBBLE, ranks=2)
            self.assertEqual(self.losses(f"zero-{dropout}"), self.losses(f"plain-{dropout}"))

    def test_sequence_cut(self):
        cut = "parallel.sequence=true"
        reference = self.serial()
        for layout in [(1, 1, 1), (2, 1, 1), (4, 1, 1), (2, 2, 1), (2, 2, 2)]:
            self.check(reference, layout, cut)
        for words in [["parallel.partition=0-4"], INTERLEAVED, ZERO_BUBBLE]:
            self.check(reference, (2, 2, 1), cut, *words)
        self.check(reference, (2, 1, 2), cut, "parallel.zero=1", "parallel.bucket=1000")
        self.check(reference, (2, 1, 2), cut, "parallel.zero=0", "parallel.bucket=1000",
                   "parallel.overlap.gradients=false")

    def test_recomputation_changes_no_bit(self):
        """Of any iteration; recomputation overlaps with the communication of gradients and weights, too."""
        full = ["recompute.granularity=full"]
        for name, layout, *words in [("sequence", (2, 1, 1), "parallel.sequence=true"),
                                     ("tensor", (2, 2, 1), *INTERLEAVED),
                                     ("chunks", (1, 2, 2), *INTERLEAVED),
                                     ("bf16", (1, 2, 1), "precision.compute=bf16")]:
            words = [*layout_words(*layout), *words, "checkpoint.at_end=false"]
            run = lambda kind, *more: self.pretrain(f"{name}-{kind}", *words, *more,
                                                    ranks=math.prod(layout))
            run("kept")
            run("uniform", *full)
            run("block", *full, "recompute.method=block", "recompute.layers=1")
            run("selective", "recompute.granularity=selective")
            run("offload", *full, "recompute.offload=true")
            kinds = ["uniform", "block", "selective", "offload"]
            if name == "tensor":
                shared = [*full, "recompute.partition=true", "recompute.contiguous=true"]
                run("partition", *shared)
                run("both", *shared, "recompute.offload=true")
                kinds += ["partition", "both"]
            for kind in kinds:
                self.assertEqual(self.losses(f"{name}-{kind}"), self.losses(f"{name}-kept"), kind)


class GroupedLayouts(Layouts):
    MODEL = GROUPED


class MoreHeadsThanRanks(Curves):
    MODEL = [*GROUPED, "model.kv_heads=4"]

    def test_layouts(self):
        reference = self.serial()
        for layout, *words in [((2, 1, 1),), ((4, 1, 1), "parallel.sequence=true"), ((2, 2, 1), *ZERO_BUBBLE),
                               ((2, 1, 2), "parallel.zero=3")]:
            self.check(reference, layout, *words)


class Families(Curves):
    def test_llama(self):
        """Grouped, rotated, normalized heads, fewer of keys than tensor ranks too; a restart in the middle and the text
        change with no layout either."""
        words = ["model.family=llama", "model.heads=8", "model.kv_heads=2", "model.ffn=88", "model.tie_embeddings=false",
                 "model.dropout={attention: 0.1, hidden: 0}", "data.reset_positions=true", "data.reset_attention=true",
                 "model.qk_norm=width", "model.norm_placement=output", "model.bias=qkv"]
        reference = self.serial(*words, "checkpoint.at_end=true")
        for name, layout, *more in [("tensor", (4, 1, 1)),
                                    ("sequence", (2, 2, 1), "parallel.sequence=true", *ZERO_BUBBLE),
                                    ("zero", (1, 2, 2), "parallel.zero=3", *INTERLEAVED)]:
            self.pretrain(name, *layout_words(*layout), *words, *more, ranks=math.prod(layout))
            self.assert_close(self.losses(name), reference, TOLERANCE, name)
        halves = [*words, "checkpoint.at_end=true", "train.exit_interval=10"]
        for _ in range(2):
            self.pretrain("halves", *halves)
        self.assertEqual(self.losses("halves"), reference)
        # From copies of the key and value heads to each on one tensor rank, and on one rank to all.
        for layout in [(4, 1, 1), (2, 1, 2), (1, 1, 1)]:
            self.pretrain("moved", *layout_words(*layout), *halves[:-1],
                          f"train.exit_interval={7 if layout[0] > 1 else 20}", ranks=math.prod(layout))
        self.assert_close(self.losses("moved"), reference, TOLERANCE, "moved")
        texts = [run("trireme-generate", "--checkpoint", self.folder / "serial", "--device", "host", "--prompt",
                     "You may", "--prompt", "the", "--tokens", 12, "--greedy", "--repetition-penalty", 1.5, *more,
                     ranks=ranks)
                 for more, ranks in ((["--recompute"], 1), ([], 1), (["--tensor", 2, "--pipeline", 2], 4),
                                   (["--tensor", 4], 4))]
        self.assertEqual({(text.code, text.out) for text in texts}, {(FINISHED, texts[0].out)}, texts[0])

    def test_embedding_layernorm(self):
        words = ["model.embedding_layernorm=true", "optimizer.clip=0.1"]
        reference = self.serial(*words)
        self.check(reference, (2, 2, 1), *words)
        self.check(reference, (2, 2, 1), "parallel.sequence=true", *words)
        self.check(reference, (1, 2, 2), "parallel.partition=1-3", *words)
        self.check(reference, (1, 2, 1), *INTERLEAVED, *words)
        self.check(reference, (1, 2, 1), *ZERO_BUBBLE, *words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
