"""A restart changes nothing: the same bits on one layout, the same curve on another; what it may not
change is refused."""

import os
import shutil
import unittest

from runs import DATA, DECK, FINISHED, GROUPED, IO, STOPPED_EARLY, USAGE, RunTest, dataset, run


INTERLEAVED = ["parallel.schedule=interleaved", "parallel.interleave=2"]


class SameLayout(RunTest):
    def check(self, ranks, *words):
        self.pretrain("whole", "train.iterations=12", *words, ranks=ranks)
        halves = ["train.iterations=12", "train.exit_interval=6", "log.tensorboard.enable=true",
                  *words]
        first = self.pretrain("halves", *halves, ranks=ranks)
        self.assertIn("no checkpoint: a fresh model", first.out)
        self.assertEqual(len(self.losses("halves")), 6)
        second = self.pretrain("halves", *halves, ranks=ranks)
        self.assertIn("step-00000006.h5, iteration 6", second.out)

        self.assertEqual(self.losses("halves"), self.losses("whole"))
        tensors = [self.inspect(self.latest(name))["tensors"] for name in ("whole", "halves")]
        self.assertEqual(tensors[0], tensors[1])

        log = (self.folder / "halves" / "console.log").read_text()
        for iteration in range(1, 13):
            self.assertEqual(log.count(f" iteration {iteration:8d}/"), 1, f"iteration {iteration}")
        self.assertEqual(len(list((self.folder / "halves" / "tensorboard").iterdir())), 2)

    def test_one_rank(self):
        self.check(1)

    def test_four_ranks_with_sharded_optimizer(self):
        self.check(4, "parallel.tensor=2", "parallel.data=2", "parallel.zero=1")

    def test_interleaved_stages_with_sharded_optimizer(self):
        self.check(4, "parallel.pipeline=2", "parallel.data=2", *INTERLEAVED)

    def test_four_ranks_with_the_sequence_cut(self):
        self.check(4, "parallel.tensor=2", "parallel.data=2", "parallel.sequence=true")

    def test_samples_are_counted_through_a_change_of_batch(self):
        words = ["train.iterations=", "train.samples=160", "schedule.decay=480 samples",
                 "schedule.warmup=40 samples"]
        self.pretrain("run", *words, "train.exit_interval=10 iterations")
        result = self.pretrain("run", *words, "batch.global=16")
        self.assertIn(" iteration       11/      15 |", result.out)
        train = self.events("run", "train")
        self.assertEqual([event["consumed_samples"] for event in train],
                         [8 * step for step in range(1, 11)] + [96, 112, 128, 144, 160])
        self.assertEqual(self.stop_event("run")["reason"], "finished")

    def test_log_is_cut_back_to_the_checkpoint(self):
        self.pretrain("whole", "train.iterations=7")
        self.pretrain("cut", "train.iterations=7", "checkpoint.every=4")
        (self.folder / "cut" / "checkpoints" / "step-00000007.h5").unlink()
        result = self.pretrain("cut", "train.iterations=7", "checkpoint.every=4")
        self.assertIn("step-00000004.h5', the newest complete checkpoint", result.out)
        self.assertEqual(self.losses("cut"), self.losses("whole"))


class OtherLayout(RunTest):
    def test_chain_of_layouts(self):
        self.pretrain("serial", "checkpoint.at_end=false")
        chain = [
            (4, ["parallel.tensor=2", "parallel.pipeline=2", "parallel.sequence=true"]),
            (2, ["parallel.data=2"]),
            (4, ["parallel.pipeline=4", "parallel.partition=2-0-2-0", "parallel.zero=0"]),
            (1, ["batch.micro=2"]),
            (4, ["parallel.tensor=4", "parallel.sequence=true", "parallel.zero=1"]),
        ]
        for ranks, words in chain:
            self.pretrain("chain", "train.exit_interval=4", *words, ranks=ranks)
        losses = self.losses("chain")
        self.assertEqual(len(losses), 20)
        self.assert_close(losses, self.losses("serial"), 2e-6, "five layouts in turn")

    def test_chain_of_schedules(self):
        self.pretrain("serial", "checkpoint.at_end=false")
        chain = [
            (2, ["parallel.pipeline=2", *INTERLEAVED]),
            (4, ["parallel.pipeline=4", "parallel.schedule=zero-bubble"]),
            (4, ["parallel.pipeline=2", "parallel.data=2", *INTERLEAVED]),
            (2, ["parallel.pipeline=2"]),
            (2, ["parallel.pipeline=2", "parallel.schedule=zero-bubble"]),
        ]
        for ranks, words in chain:
            result = self.pretrain("chain", "train.exit_interval=4", *words, ranks=ranks)
        self.assertIn("changed: parallel.schedule: 1f1b in the checkpoint, zero-bubble now",
                      result.out)
        losses = self.losses("chain")
        self.assertEqual(len(losses), 20)
        self.assert_close(losses, self.losses("serial"), 2e-6, "five schedules in turn")
        # Its own layout, and one of the run's stages where there are as many ranks.
        scores = [self.evaluate("chain", *INTERLEAVED, "parallel.pipeline=2", ranks=ranks)["loss"]
                  for ranks in (1, 2)]
        self.assert_close(scores[1:], scores[:1], 2e-6, "evaluated by interleaved stages")


class GroupedOtherLayout(OtherLayout):
    MODEL = [*GROUPED, "train.iterations=20"]


class Rules(RunTest):
    def setUp(self):
        super().setUp()
        self.pretrain_once("run", "train.iterations=2")

    def test_allowed_changes_are_noted(self):
        result = self.pretrain("run", "train.iterations=3", "schedule.peak=1e-3")
        self.assertIn("changed: schedule.peak: 0.003 in the checkpoint, 0.001 now", result.out)
        self.assertEqual(len(self.losses("run")), 3)

    def test_fixed_keys_are_refused_with_both_values(self):
        metrics = (self.folder / "run" / "metrics.jsonl").read_bytes()
        deck = (self.folder / "run" / "deck.yaml").read_bytes()
        for word, before, after in [("model.layers", 4, 2), ("run.seed", 1234, 77),
                                    ("model.vocab", 257, 300), ("data.split", "90,10,0", "80,20,0")]:
            with self.subTest(word):
                result = self.pretrain("run", f"{word}={after}", code=DECK)
                self.assertIn(f"{word} = {after}, but the checkpoint was written with {before}",
                              result.err)
        self.assertEqual((self.folder / "run" / "metrics.jsonl").read_bytes(), metrics)
        self.assertEqual((self.folder / "run" / "deck.yaml").read_bytes(), deck)

    def replace(self, name, prefix):
        """Puts the dataset `prefix` in the place of `name`."""
        for ending in (".bin", ".idx"):
            shutil.copy(f"{prefix}{ending}", f"{name}{ending}")

    def test_other_documents_under_the_same_name_are_refused(self):
        made = run("trireme-preprocess", "--input", __file__, "--format", "text", "--output",
                   self.folder / "other", "--tokenizer", "bytes", "--append-eod")
        self.assertEqual(made.code, FINISHED, made)
        other = self.folder / "other_text_document"
        corpus = self.folder / "corpus"
        words = [f"data.train={corpus}", "train.iterations=3"]

        self.replace(corpus, dataset())
        self.pretrain("replaced", f"data.train={corpus}", "train.iterations=2", ranks=2)
        files = [self.folder / "replaced" / name for name in ("metrics.jsonl", "deck.yaml")]
        before = [path.read_bytes() for path in files]
        self.replace(corpus, other)
        result = self.pretrain("replaced", *words, ranks=2, code=DATA)
        self.assertEqual(result.err.count("data.train has other documents than those that"), 1,
                         result)
        self.assertEqual([path.read_bytes() for path in files], before)
        self.evaluate("replaced", f"data.train={corpus}", "data.split=50,50,0")

        self.replace(corpus, dataset())
        self.pretrain("replaced", *words)
        self.assertEqual(len(self.losses("replaced")), 3)
        result = self.pretrain("replaced", f"data.train={other}", "train.iterations=4")
        self.assertIn("changed: the documents of data.train\n", result.out)
        # From now on these are the documents of the run.
        result = self.pretrain("replaced", f"data.train={other}", "train.iterations=5")
        self.assertNotIn("changed: the documents", result.out)

    def test_never_moves_the_old_run_aside(self):
        before = self.losses("run")
        result = self.pretrain("run", "train.iterations=2", "--restart", "never")
        self.assertIn("moved the old run folder to", result.out)
        self.assertEqual(self.losses("run"), before)
        self.assertEqual(self.losses("run.1"), before)
        self.assertEqual(self.checkpoints("run.1"), ["step-00000002.h5"])
        self.pretrain("run", "train.iterations=1", "--restart", "never")
        self.assertEqual(self.losses("run.2"), before)

    def test_a_named_checkpoint_starts_a_run(self):
        self.pretrain("run", "train.iterations=4")
        whole = self.losses("run")
        file = self.folder / "run" / "checkpoints" / "step-00000002.h5"
        for name, path in [("from-file", file), ("from-run", self.folder / "run"),
                           ("from-folder", file.parent)]:
            result = self.pretrain(name, "train.iterations=6", "--restart", path)
            self.assertIn(f"iteration {2 if path == file else 4}\n", result.out)
            train = self.events(name, "train")
            first = 3 if path == file else 5
            self.assertEqual([event["iteration"] for event in train], list(range(first, 7)))
            for event in train[:5 - first]:
                self.assertEqual(event["loss"], whole[event["iteration"] - 1])
        absent = self.pretrain("other", "--restart", self.folder / "absent", code=IO)
        self.assertIn(f"there is no checkpoint '{self.folder / 'absent'}'", absent.err)
        self.assertFalse((self.folder / "other").exists())

    def test_a_deck_names_the_first_checkpoint(self):
        words = ["train.iterations=3", f"checkpoint.load={self.folder / 'run'}"]
        self.pretrain("tuned", *words)
        self.assertEqual([event["iteration"] for event in self.events("tuned", "train")], [3])
        again = self.pretrain("tuned", *words, "train.iterations=4")
        self.assertIn("tuned/checkpoints/step-00000003.h5, iteration 3", again.out)

    def test_damaged_newest_checkpoint(self):
        self.pretrain("run", "train.iterations=4")
        newest = self.latest("run")
        os.truncate(newest, newest.stat().st_size // 2)
        result = self.pretrain("run", "train.iterations=5")
        self.assertIn(f"{newest}", result.out)
        self.assertIn("using 'step-00000002.h5', the newest complete checkpoint", result.out)
        self.assertEqual(len(self.losses("run")), 5)

        for path in (self.folder / "run" / "checkpoints").glob("*.h5"):
            os.truncate(path, 1000)
        result = self.pretrain("run", "train.iterations=6", code=DATA)
        self.assertIn("can be opened", result.err)
        (self.folder / "run" / "checkpoints" / "latest").unlink()
        result = self.pretrain("run", "train.iterations=6", code=DATA)
        self.assertIn("step-0000000", result.err)  # the file, not the missing 'latest'

    def test_superseded_checkpoints_are_never_resumed_from(self):
        words = ["train.iterations=6", "checkpoint.every=1"]
        self.pretrain("run", *words)
        fourth = self.folder / "run" / "checkpoints" / "step-00000004.h5"
        third = fourth.with_name("step-00000003.h5")
        self.pretrain("run", *words, "--restart", third, "train.exit_interval=4")
        os.truncate(fourth, 1000)
        result = self.pretrain("run", *words)
        self.assertIn("using 'step-00000003.h5', the newest complete checkpoint", result.out)
        self.assertEqual(len(self.losses("run")), 6)

    def test_newer_checkpoints_are_superseded_before_the_first_save(self):
        words = ["train.iterations=6", "checkpoint.every=2"]
        self.pretrain("run", *words)
        second = self.folder / "run" / "checkpoints" / "step-00000002.h5"
        back = ["train.iterations=1000000", "checkpoint.at_end=false", "--restart", second]
        with self.start("run", *back) as started:
            self.wait_until(lambda: len(self.events("run", "train")) > 6, started)
            started.process.kill()
            started.finish()
        self.assertIn("resuming from iteration 2: 2 newer checkpoints are renamed to '*.superseded'",
                      (self.folder / "run" / "console.log").read_text())
        names = [f"step-0000000{step}.h5" for step in (2, 4, 6)]
        self.assertEqual(self.checkpoints("run"), names[:1])
        for name in names[1:]:
            self.assertTrue(second.with_name(f"{name}.superseded").exists(), name)

        result = self.pretrain("run", "train.iterations=7", "checkpoint.every=2",
                               "checkpoint.keep=3")
        self.assertIn("step-00000002.h5, iteration 2\n", result.out)
        self.assertEqual(len(self.losses("run")), 7)
        self.assertEqual(self.checkpoints("run"), [*names[1:], "step-00000007.h5"])

        # A run can resume from it all the same, also under the name that earlier versions gave it.
        superseded = second.with_name(f"{names[2]}.left")
        second.with_name(f"{names[2]}.superseded").rename(superseded)
        result = self.pretrain("run", "train.iterations=8", "--restart", superseded)
        self.assertIn(f"{superseded}, iteration 6\n", result.out)
        self.assertTrue(second.with_name("step-00000007.h5.superseded").exists())
        self.assertEqual(len(self.losses("run")), 8)

    def test_a_checkpoint_from_elsewhere_is_for_a_run_without(self):
        self.pretrain("other", "train.iterations=1")
        before = self.losses("run"), self.checkpoints("run")
        result = self.pretrain("run", "--restart", self.folder / "other", code=USAGE)
        self.assertIn("has its own checkpoints", result.err)
        self.assertEqual((self.losses("run"), self.checkpoints("run")), before)

    def test_damaged_tensor_is_named(self):
        path = self.latest("run")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
        result = self.pretrain("run", "train.iterations=3", code=DATA)
        self.assertRegex(result.err, r"tensor '[a-z/0-9]+' is damaged.*; move the file away")

    def test_retention(self):
        shutil.rmtree(self.folder / "run")
        self.pretrain("run", "train.iterations=10", "checkpoint.every=1", "checkpoint.keep=2",
                      "checkpoint.keep_every=4")
        self.assertEqual(self.checkpoints("run"), [
            f"step-0000000{step}.h5" if step < 10 else f"step-000000{step}.h5"
            for step in (4, 8, 9, 10)])

    def test_what_cannot_be_deleted_stays(self):
        stays = self.folder / "run" / "checkpoints" / "step-00000001.h5"
        (stays / "something").mkdir(parents=True)
        result = self.pretrain("run", "train.iterations=4", "checkpoint.every=1",
                               "checkpoint.keep=1")
        self.assertIn(f"warning: cannot delete '{stays}'", result.out)
        self.assertEqual(self.checkpoints("run"), [stays.name, "step-00000004.h5"])

    def test_a_run_continues_where_the_previous_one_ended(self):
        words = ["train.iterations=1000000", "checkpoint.every=10", "checkpoint.keep=1"]
        with self.start("shared", *words) as first:
            self.wait_until(lambda: self.checkpoints("shared"), first)
            with self.start("shared", *words, "train.exit_duration=1 seconds") as second:
                self.wait_until(lambda: second.has_opened(".lock"), second)  # it waits for the first one to end
                first.process.terminate()
                self.assertEqual(first.finish().code, STOPPED_EARLY)
                end = self.stop_event("shared")["iteration"]
                result = second.finish()
        self.assertEqual(result.code, STOPPED_EARLY, result)
        self.assertIn(f"step-{end:08}.h5, iteration {end}\n", result.out)

    def test_one_run_in_a_folder(self):
        with self.start("shared", "train.iterations=1000000") as first:
            self.wait_until(lambda: self.events("shared", "train"), first)
            second = self.pretrain("shared", code=IO)
            self.assertIn(f"another run is using the run folder '{self.folder / 'shared'}'",
                          second.err)
            moved = self.pretrain("shared", "--restart", "never", code=IO)
            self.assertIn("another run is using the run folder", moved.err)
            first.process.terminate()
            self.assertEqual(first.finish().code, STOPPED_EARLY)


if __name__ == "__main__":
    unittest.main(verbosity=2)
