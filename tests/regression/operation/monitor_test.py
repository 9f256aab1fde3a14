"""What a run says about itself: Megatron-LM's lines on the console, norms, timers, TensorBoard's tags."""

import json
import math
import re
import shutil
import subprocess
import unittest

from runs import PATIENCE, RunTest, layout_words, run

NUMBER = r"\d+\.\d+"
# With more positions than tokens in a sample the last rows of the position embedding get no gradient.
UNUSED_POSITIONS, HIDDEN = 8, 32
POSITIONS = f"model.positions={32 + UNUSED_POSITIONS}"

# The timers of an iteration, in Megatron-LM's order.
TIMERS = ["forward-backward", "forward-compute", "backward-compute", "batch-generator",
          "all-grads-sync", "optimizer-clip-main-grad", "optimizer-inner-step", "optimizer"]


def timer_lines(*names):
    """What the list of timers looks like."""
    lines = [r"\(min, max\) time across ranks \(ms\):"]
    for name in names:
        lines.append("    " + re.escape((name + " ").ljust(48, ".")) + rf": \({NUMBER}, {NUMBER}\)")
    return "\n".join(lines)


class Monitor(RunTest):
    def console(self, name):
        return (self.folder / name / "console.log").read_text()

    def test_timeline_hooks_and_prometheus(self):
        """One run of two stages records two ranges of iterations, runs its hooks and exports its values."""
        path = self.folder / "export" / "trireme.prom"
        self.pretrain("run", *layout_words(1, 2, 1), "log.trace.iterations=[3-4, 7-7]", f"log.prometheus={path}",
                      "checkpoint.every=10", "hooks.checkpoint=echo $TRIREME_EVENT $TRIREME_ITERATION",
                      "hooks.stop=echo $TRIREME_REASON $TRIREME_EXIT_CODE; false", "hooks.fault=echo fault", ranks=2)
        self.assertEqual((self.folder / "run" / "hooks.log").read_text(),
                         "checkpoint 10\ncheckpoint 20\nfinished 0\n")
        self.assertRegex(path.read_text(), r'trireme_iteration{run="\w+"} 20\n')

        trace = json.loads((self.folder / "run" / "trace.json").read_text())
        spans = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
        self.assertEqual({span["args"]["iteration"] for span in spans}, {3, 4, 7})
        passes = {}
        for span in spans:
            if span["name"] in ("forward-compute", "backward-compute"):
                key = span["pid"], span["args"]["iteration"], span["name"], span["args"]["micro_batch"]
                self.assertNotIn(key, passes)
                passes[key] = span["ts"], span["ts"] + span["dur"]
        self.assertEqual(len(passes), 2 * 3 * 2 * 8)
        error = 2e3 * trace["otherData"]["clock_error_ms"]  # microseconds, of both ranks
        self.assertTrue(0 < error < 1e5, error)
        for iteration in 3, 4, 7:
            for micro_batch in range(8):
                sent = passes[0, iteration, "forward-compute", micro_batch][1]
                received = passes[1, iteration, "forward-compute", micro_batch][0]
                self.assertGreater(received, sent - error - 1, "the clocks of the ranks are not aligned")
        for name in "send", "receive", "optimizer", "all-grads-sync":
            self.assertTrue(any(span["name"] == name for span in spans), name)
        recorded = self.events("run", "trace")
        self.assertEqual([(event["first"], event["iteration"]) for event in recorded], [(3, 4), (7, 7)])
        for event in recorded:
            self.assertTrue(0 < event["bubble"] < 1 and 0 < event["simulated_bubble"] < 1, event)
        result = run("trireme-report", "trace", self.folder / "run")
        self.assertRegex(result.out, r"\nbubble: [\d.]+% measured, [\d.]+% simulated")
        rows = run("trireme-report", "trace", self.folder / "run", "--csv").out.splitlines()
        self.assertEqual(len(rows), 1 + len(spans))
        self.check_page("run")

    def test_a_timeline_ends_where_the_run_stops(self):
        self.pretrain("run", "log.trace.iterations=3-9", "train.exit_interval=5")
        (event,) = self.events("run", "trace")
        self.assertEqual((event["first"], event["iteration"]), (3, 5))
        self.assertTrue((self.folder / "run" / "trace.json").exists())

    def check_page(self, name):
        """The HTML page of the run in a browser, where there is one: every chart is drawn, no text of the run runs."""
        page = self.folder / "report.html"
        metrics = self.folder / name / "metrics.jsonl"
        evil = {"kind": "warning", "time": 1, "iteration": 5,
                "message": "</script><script>document.title='no'</script><img src=x onerror=\"document.title='no'\">"}
        metrics.write_text(metrics.read_text() + json.dumps(evil) + "\n")
        result = run("trireme-report", "html", self.folder / name, "-o", page)
        self.assertEqual(result.code, 0, result)
        browser = shutil.which("chromium") or shutil.which("google-chrome")
        if not browser:
            self.skipTest("there is no chromium to show the page in")
        shown = subprocess.run([browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000",
                                "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=PATIENCE).stdout
        self.assertRegex(shown, r'<html[^>]* data-ready="[5-9]"')
        self.assertIn("<title>run – Trireme</title>", shown)
        self.assertIn("&lt;/script&gt;&lt;script&gt;", shown)
        self.assertNotIn("<img", shown)

    def test_console_reads_like_megatrons(self):
        self.pretrain("run", *layout_words(2, 2, 1), "log.timers=true", "log.norms=true",
                      "log.every=10", "evaluate.every=10", "evaluate.at_end=true",
                      "data.split=80,10,10", "checkpoint.every=15", ranks=4)
        text = self.console("run")
        training = (r" iteration {:8d}/      20 \| consumed samples: {:12d} \| elapsed time per "
                    rf"iteration \(ms\): {NUMBER} \| learning rate: \d\.\d{{{{3}}}}E-03 \| global "
                    rf"batch size:     8 \| lm loss: \d\.\d{{{{6}}}}E\+00 \| loss scale: 1\.0 \| "
                    rf"grad norm: {NUMBER} \| num zeros: \d+\.0 \| params norm: {NUMBER} \| number "
                    r"of skipped iterations:   0 \| number of nan iterations:   0 \| tokens per "
                    r"second: .*")
        memory = "".join(
            rf"\[Rank {rank}\] \(after 10 iterations\) memory \(MB\) \| allocated: {NUMBER} \| max "
            rf"allocated: {NUMBER} \| reserved: {NUMBER} \| max reserved: {NUMBER}\n"
            for rank in range(4))
        evaluated = (r"-{{40,}}\n validation loss at iteration {} \| lm loss value: \d\.\d{{6}}E\+00 "
                     r"\| lm loss PPL: \d\.\d{{6}}E\+0\d \| \n-{{40,}}\n")
        saved = r"  successfully saved checkpoint at iteration {:7d} to .*\n"
        self.assertRegex(text, "".join([
            r"\nmodel FLOPs \d\.\d{4}E\+05 a token = 72 l h\^2 .*\n",
            r"\[before the start of training step\] datetime: \d{4}-\d\d-\d\d \d\d:\d\d:\d\d \n",
            training.format(10, 80), "\n", memory, r" memory of the rank with the highest peak .*\n",
            timer_lines(*TIMERS), "\n", timer_lines("evaluate"), "\n", evaluated.format(10),
            saved.format(15), timer_lines("save-checkpoint"), "\n", training.format(20, 160), "\n",
            timer_lines(*TIMERS), "\n", timer_lines("evaluate"), "\n", evaluated.format(20),
            saved.format(20), timer_lines("save-checkpoint"), "\n", timer_lines("evaluate"), "\n",
            evaluated.format("20 on test set")]))
        evaluations = self.events("run", "eval")
        self.assertEqual([(event["split"], event["at_end"]) for event in evaluations],
                         [("valid", False), ("valid", False), ("test", True)])

    def test_validation_at_the_end_names_the_split(self):
        self.pretrain("run", "evaluate.every=15", "evaluate.at_end=true")
        self.assertIn("\n validation loss at iteration 15 | ", self.console("run"))
        self.assertIn("\n validation loss at iteration 20 on validation set | ", self.console("run"))

    def test_timers_add_up(self):
        self.pretrain("run", "log.timers=true", "log.every=5", "model.hidden=64")
        events = [event for event in self.events("run", "timers")
                  if "forward-backward" in event["timers"]]
        self.assertEqual([event["iteration"] for event in events], [5, 10, 15, 20])
        timed = []  # the share of an interval that the timers know
        for event, train in zip(events, self.events("run", "train")):
            times = event["timers"]
            self.assertEqual(list(times), TIMERS)
            for name, time in times.items():
                self.assertEqual(time["min_ms"], time["max_ms"], f"{name} on one rank")
                self.assertGreaterEqual(time["min_ms"], 0, name)
            ms = {name: time["max_ms"] for name, time in times.items()}
            self.assertGreater(ms["backward-compute"], 0)
            self.assertLessEqual(ms["batch-generator"], ms["forward-compute"])
            self.assertLessEqual(ms["forward-compute"] + ms["backward-compute"],
                                 ms["forward-backward"])
            self.assertLessEqual(ms["optimizer-clip-main-grad"] + ms["optimizer-inner-step"],
                                 ms["optimizer"])
            whole = ms["forward-backward"] + ms["all-grads-sync"] + ms["optimizer"]
            self.assertLessEqual(whole, train["ms"])
            timed.append(whole / train["ms"])
        # A busy machine may hold up the run between two timers, but not in every interval.
        self.assertGreater(max(timed), 0.5, "where is the rest of the time?")

    def test_what_is_not_asked_for_is_not_logged(self):
        self.pretrain("run", "log.memory=false")
        self.assertEqual(self.events("run", "timers") + self.events("run", "memory"), [])
        for word in ("time across ranks", "params norm", "num zeros", "memory (MB)"):
            self.assertNotIn(word, self.console("run"))
        self.assertNotIn("parameter_norm", self.events("run", "train")[0])

    def test_norms_are_those_of_the_logical_model_on_every_layout(self):
        found = {}
        for layout in [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 1, 2), (2, 2, 1), (1, 2, 2)]:
            for zero in (0, 1, 2, 3) if layout[2] > 1 else (1,):
                name = "{}-{}-{}-zero{}".format(*layout, zero)
                self.pretrain(name, *layout_words(*layout), f"parallel.zero={zero}",
                              "log.norms=true", POSITIONS, "train.iterations=6",
                              ranks=math.prod(layout))
                found[name] = self.events(name, "train")
                tensors = self.inspect(self.latest(name))["tensors"]
                squares = sum(tensor["sum_of_squares"] for tensor in tensors
                              if tensor["name"].startswith("model/"))
                self.assertAlmostEqual(found[name][-1]["parameter_norm"], math.sqrt(squares),
                                       delta=1e-6 * math.sqrt(squares), msg=name)
        reference = found["1-1-1-zero1"]
        for name, events in found.items():
            for event, expected in zip(events, reference):
                self.assertAlmostEqual(event["parameter_norm"], expected["parameter_norm"],
                                       delta=1e-5 * expected["parameter_norm"], msg=name)
                # Rounding may make another one zero, but no layout counts any twice.
                zeros = event["gradient_zeros"] - UNUSED_POSITIONS * HIDDEN
                self.assertIn(zeros, range(64), name)

    def test_tensorboard_has_the_tags_of_the_dialect(self):
        tags = {
            "trireme": ["train/loss", "train/parameter_norm", "timers/optimizer_ms", "valid/loss",
                        "memory/peak_bytes"],
            "megatron": ["lm loss", "lm loss vs samples", "params-norm vs samples", "world-size",
                         "optimizer-time", "lm loss validation ppl vs samples"],
            "bigscience": ["lm-loss-training/lm loss vs gigaflos (without embeddings)",
                           "steps-vs-tokens/y=tokens,x=steps", "time/optimizer-time",
                           "iteration-time/TFLOPs per gpu (estimated)",
                           "lm-loss-validation/lm loss validation vs tokens"],
        }
        for dialect in tags:
            self.pretrain(dialect, f"log.tensorboard.dialect={dialect}", "log.timers=true",
                          "log.norms=true", "log.tensorboard.enable=true", "train.iterations=4",
                          "evaluate.every=2")
            [path] = (self.folder / dialect / "tensorboard").iterdir()
            content = path.read_bytes()
            for name, words in tags.items():
                for tag in words:
                    # A tag stands between its length and the key of its value.
                    found = bytes([len(tag)]) + tag.encode() + b"\x15" in content
                    self.assertEqual(found, name == dialect, f"{dialect}: {tag}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
