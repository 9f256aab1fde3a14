"""trireme-plan's options: its reports, the decks that it writes, what it refuses; and profiles of trireme-bench."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import unittest

from runs import BIN, DECK, FINISHED, HERE, IO, USAGE, RunTest, dataset, run

ROOT = HERE.parents[1]
INPUTS = ROOT / "inputs"
GPT2 = ROOT / "tests/data/gpt2"
XL = [INPUTS / "gpt2-xl-a10x32.yaml", f"data.tokenizer.vocab={GPT2}/vocab.json",
      f"data.tokenizer.merges={GPT2}/merges.txt", "--cluster", INPUTS / "clusters/a10x32.yaml"]
SMALL = [INPUTS / "gpt2-124m.yaml", "run.device=cuda", "batch.global=16"]
CLUSTER = """
name: four
nodes:
  - {gpu: gpu.yaml, gpus: 4, link: 40 GB/s, price: 3}
"""
GPU = """
name: G
memory: 16GB
peak: {bf16: 100, fp32: 20}
bandwidth: 600 GB/s
"""


class Plan(RunTest):
    def plan(self, *words, code=FINISHED):
        result = run("trireme-plan", *words)
        self.assertEqual(result.code, code, str(result))
        return result

    def cluster(self, text=CLUSTER, gpu=GPU):
        (self.folder / "gpu.yaml").write_text(gpu)
        path = self.folder / "cluster.yaml"
        path.write_text(text.replace("gpu.yaml", "./gpu.yaml"))
        return path

    def test_names_the_published_run_and_its_better_partition(self):
        plan = json.loads(self.plan(*XL, "--json").out)
        self.assertAlmostEqual(plan["given"]["seconds"], 1.3875, places=3)
        self.assertAlmostEqual(plan["best"]["seconds"], 1.0395, places=3)
        self.assertEqual(plan["best"], plan["ranked"][0])
        self.assertEqual(plan["given"]["partition"], "0-11-8-8-8-8-5-0")
        self.assertGreater(plan["given"]["memory_bytes"], 1 << 30)
        seconds = [layout["seconds"] for layout in plan["ranked"]]
        self.assertEqual(seconds, sorted(seconds))
        text = self.plan(*XL).out
        self.assertIn("0-11-8-8-8-8-5-0", text)

    def accuracy(self, table, *words):
        """Errors of the predicted steps and memory in percent: mean and worst of each."""
        words = [sys.executable, "-B", ROOT / "apps/bench/plan_accuracy.py", "--bin", BIN, *words,
                 ROOT / "tests/data/plan_validation" / table]
        done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=ROOT, check=False)
        self.assertEqual(done.returncode, FINISHED, done.stderr)
        return [float(value) for value in re.search(
            r"time: mean error ([\d.]+) %, worst ([\d.]+) %; memory: ([\d.]+) %, ([\d.]+) %", done.stdout).groups()]

    def assert_below(self, errors, bounds):
        self.assertTrue(all(error < bound for error, bound in zip(errors, bounds)), f"{errors}, bounds {bounds}")

    def test_predicts_measured_steps_of_h200s(self):
        """26 layouts that were fixed before they were measured; no number is fitted to them."""
        self.assert_below(self.accuracy("h200.tsv"), [3, 7, 0.5, 1.5])

    def test_predicts_measured_steps_with_dropout(self):
        """Ten layouts on one H200 that were fixed before they were measured; the profile has passes of two of their models."""
        layouts = ROOT / "tests/data/plan_validation/h200_dropout_layouts.tsv"
        self.assert_below(self.accuracy("h200_dropout.tsv", "--layouts", layouts), [2.5, 4.5, 0.2, 0.3])

    def test_predicts_measured_steps_of_h100s(self):
        """29 layouts on two and four, each of which was fixed before it was measured. The planner has learned from all but the last
        six."""
        for name, bounds in (("", [5, 10, 1, 1.5]), ("_more", [3.5, 8, 1, 1.5]), ("_sequence", [3, 6, 1, 1.5]),
                             ("_parts", [4.5, 8, 1, 1.5]), ("_last", [3.5, 7, 1, 1.5])):
            errors = self.accuracy(f"four_h100{name}.tsv", "--layouts",
                                   ROOT / f"tests/data/plan_validation/four_gpus{name}_layouts.tsv", "--cluster",
                                   INPUTS / "clusters/h100x4.yaml")
            self.assert_below(errors, bounds)

    def test_plans_layouts_of_four_gpus(self):
        """They are decks that load, and fit into the H100s and H200s that they are for."""
        for kind in ("h100x4", "h200x4"):
            words = [sys.executable, "-B", ROOT / "apps/bench/plan_accuracy.py", "--bin", BIN, "--predict", "--layouts",
                     ROOT / "tests/data/plan_validation/four_gpus_layouts.tsv", "--cluster", INPUTS / f"clusters/{kind}.yaml"]
            done = subprocess.run([*map(str, words)], capture_output=True, text=True, cwd=ROOT, check=False)
            self.assertEqual(done.returncode, FINISHED, done.stderr)
            memory = [float(value) for value in re.findall(r"([\d.]+) GiB", done.stdout)]
            self.assertEqual(len(memory), 10, done.stdout)
            self.assertLess(max(memory), 78, done.stdout)

    def test_prints_fasops_columns(self):
        rows = list(csv.DictReader(io.StringIO(self.plan(*SMALL, "--cluster", self.cluster(), "--csv",
                                                         "--top", 4).out)))
        self.assertEqual(len(rows), 4)
        for column in ("mbs", "tp", "dp", "pp", "partition", "estimated time (s/step)", "price_per_step"):
            self.assertIn(column, rows[0])
        times = [float(row["estimated time (s/step)"]) for row in rows]
        self.assertEqual(times, sorted(times))

    def test_writes_decks_that_train(self):
        cluster = self.cluster()
        interleaved = ["parallel.pipeline=2", "parallel.schedule=interleaved", "parallel.interleave=2"]
        for words in ([], ["--given-layout", "parallel.pipeline=4", "parallel.data=1"],
                      ["--given-layout", *interleaved], ["--keep", "parallel.tensor", "parallel.tensor=2"]):
            deck = self.folder / "best.yaml"
            self.plan(*SMALL, "--cluster", cluster, "--write-deck", deck, *words)
            checked = run("trireme-pretrain", deck, "--check", f"data.train={dataset()}", "evaluate.every=",
                          "evaluate.at_end=false", "train.iterations=2", "schedule.warmup=0")
            self.assertEqual(checked.code, FINISHED, str(checked))
            planned = run("trireme-pretrain", deck, "--plan", "--ranks", 4)
            self.assertEqual(planned.code, FINISHED, str(planned))
            self.assertRegex(planned.out, "ranks +4 = ")
            if words and words[0] == "--keep":
                self.assertIn("tensor: 2", deck.read_text())
        job = self.folder / "job.sbatch"
        self.plan(*SMALL, "--cluster", cluster, "--write-deck", deck, "--write-job", job)
        script = job.read_text()
        self.assertIn("#SBATCH --gpus-per-node=4", script)
        self.assertIn(str(deck), script)
        self.assertEqual(subprocess.run(["bash", "-n", job], check=False).returncode, 0)
        self.assertIn("--write-job needs --write-deck", self.plan(*SMALL, "--cluster", cluster, "--write-job", job,
                                                                  code=USAGE).err)

    def test_writes_the_simulated_step_as_a_timeline(self):
        words = [*SMALL, "parallel.pipeline=4", "parallel.data=1", "batch.micro=2", "--cluster", self.cluster()]
        given = json.loads(self.plan(*words, "--timeline", self.folder / "trace.json", "--json").out)["given"]
        spans = [event for event in json.loads((self.folder / "trace.json").read_text())["traceEvents"] if event.get("ph") == "X"]
        self.assertEqual(len(spans), 4 * 8 * 2)  # stages, micro-batches, passes
        self.assertAlmostEqual(max(span["ts"] + span["dur"] for span in spans) / 1e6, given["pipeline_seconds"], places=6)
        table = run("trireme-report", "trace", self.folder).out
        self.assertIn("forward-compute", table)

    def test_refuses_what_is_wrong(self):
        cluster = self.cluster()
        for words, code, message in [
                ([], USAGE, "no deck is given"),
                (SMALL, USAGE, "--cluster FILE is missing"),
                ([*SMALL, "--cluster", cluster, "--json", "--csv"], USAGE, "--json and --csv: choose one of them"),
                ([*SMALL, "--cluster", cluster, "--given-layout"], USAGE, "--given-layout needs --write-deck"),
                ([*SMALL, "--cluster", cluster, "--keep", "parallel.tensr"], USAGE,
                 "--keep parallel.tensr: not a key that is searched; did you mean 'parallel.tensor'?"),
                ([*SMALL, "--cluster", cluster, "--top", 0], USAGE, "--top 0: must be from 1 to 1000"),
                ([SMALL[0], "run.device=host", "--cluster", cluster], DECK, "clusters have GPUs"),
                ([*SMALL, "--cluster", self.folder / "none.yaml"], IO, "none.yaml")]:
            self.assertIn(message, self.plan(*words, code=code).err)
        cluster = self.cluster("name: x\nnodes:\n  - {gpu: gpu.yaml, cuont: 2, link: fast}\n")
        lines = self.plan(*SMALL, "--cluster", cluster, code=DECK).err.splitlines()
        self.assertEqual([line.split("cluster.yaml:")[-1] for line in lines], [
            "3:5: missing key 'nodes[0].gpus': GPUs of a node",
            "3:23: unknown key 'nodes[0].cuont' — did you mean 'count'?",
            "3:39: nodes[0].link = fast: expected a rate above 0 and up to 1000 TB/s, such as 25 GB/s or 200 Gbit/s",
            "3 errors; nothing was planned. 'trireme-plan --help cluster' lists every key."])
        cluster = self.cluster(gpu=GPU + "gem: 0.8\n")
        self.assertIn("gpu.yaml:6:1: unknown key 'gem' — did you mean 'gemm'?",
                      self.plan(*SMALL, "--cluster", cluster, code=DECK).err)

    def test_replaces_none_of_its_files(self):
        cluster, deck = self.cluster(), self.folder / "deck.yaml"
        shutil.copy(SMALL[0], deck)
        words = [deck, *SMALL[1:], "--cluster", cluster]
        before = {path: path.read_bytes() for path in self.folder.iterdir()}
        for option, name in (("--write-deck", deck), ("--timeline", cluster)):
            self.assertIn(f"{option} {name}: this is an input; name another file",
                          self.plan(*words, option, name, code=USAGE).err)
        for option in ("--write-job", "--timeline"):
            same = f"{self.folder}/./new.yaml"
            self.assertIn(f"{option} {same}: this is another output; name another file",
                          self.plan(*words, "--write-deck", self.folder / "new.yaml", option, same, code=USAGE).err)
        self.assertEqual({path: path.read_bytes() for path in self.folder.iterdir()}, before)

    def test_says_why_there_is_no_layout(self):
        for text, gpu, message in [
                ("name: odd\nnodes:\n  - {gpu: gpu.yaml, count: 7, gpus: 7, link: 40 GB/s, network: 10 GB/s, price: 3}\n", GPU,
                 "no layout has 49 ranks (parallel.tensor * pipeline * data): tensor ranks divide model.heads and model.ffn, data "
                 "ranks batch.global, and stages are at most model.layers + 2; 48 is the largest number below with a layout"),
                (CLUSTER, GPU.replace("16GB", "16MB"), "no layout fits into the GPUs' memory (and the budget)")]:
            words = [*SMALL, "--cluster", self.cluster(text, gpu)]
            self.assertIn(f"\n{message.capitalize()[0]}{message[1:]}.\n", self.plan(*words, code=DECK).out)
            self.assertEqual(json.loads(self.plan(*words, "--json", code=DECK).out)["problem"], message)
            self.assertIn(f"{message}: no deck was written",
                          self.plan(*words, "--write-deck", self.folder / "none.yaml", code=DECK).err)
        words = [*SMALL, "--cluster", self.cluster(), "--given-layout", "parallel.tensor=4", "parallel.data=2"]
        self.assertRegex(self.plan(*words, "--write-deck", self.folder / "none.yaml", code=DECK).err,
                         "the layout has 8 ranks .*, but cluster '.*' has 4 GPUs: no deck was written")

    def test_says_why_the_given_layout_is_impossible(self):
        words = [*SMALL, "--cluster", self.cluster(), "batch.micro=3", "batch.global=6"]
        problem = r"batch.global = 6 is not a multiple of batch.micro \* parallel.data = 3 \* 4 = 12 \(try .*\)"
        self.assertRegex(self.plan(*words).out, rf"\ngiven +{problem}\n\nlayout ")
        self.assertRegex(self.plan(*words, "--given-layout", "--write-deck", self.folder / "none.yaml", code=DECK).err,
                         rf"^{problem}: no deck was written\n")

    def test_scales_to_a_profile_of_this_machine(self):
        profile = self.folder / "profile.yaml"
        deck = [HERE / "tiny.yaml", "model.vocab=257", "run.device=host"]
        for ranks in (1, 2):
            made = run("trireme-bench", "profile", *deck, "-o", profile, "--micro", "1,2", "--repeats", 2,
                       "--tensor-sizes", "1,2", ranks=ranks)
            self.assertEqual(made.code, FINISHED, str(made))
            self.assertIn(f"wrote {profile}", made.out)
        text = profile.read_text()
        self.assertEqual(text.count("- family: gpt"), 6)  # tensor 1, 2 and 2 with sequence parallelism
        self.assertEqual(text.count("tensor_forward_ms"), 4)
        self.assertIn("operation: reduce-scatter, ranks: 2", text)
        cluster = self.cluster(gpu=GPU + "measured: profile.yaml\n")
        words = [deck[0], "model.vocab=257", "run.device=cuda", "precision.compute=fp32", "parallel.tensor=1",
                 "parallel.data=1", "batch.micro=2", "batch.global=2", "--cluster", cluster, "--json"]
        given = json.loads(self.plan(*words).out)["given"]
        # At least the four blocks' forward passes as they were measured.
        block = [float(line.split("block: ")[1].split(",")[0]) for line in text.splitlines()
                 if "    forward_ms" in line][1]
        self.assertGreater(1e3 * given["seconds"], 4 * block)
        training = ["train.iterations=6", "log.every=2", "log.timers=true", "schedule.warmup=0", "--cluster", cluster]
        told = self.pretrain("expected", *training).out
        self.assertRegex(told, r"expected +[\d.]+ ms a step, by the profile of G: passes ")
        self.assertRegex(told, r"expected +[\d.]+ ms a step, measured [\d.]+: ")
        told = self.pretrain("unknown", *training[:-1], self.cluster()).out
        self.assertIn("by data sheets and formulas: not calibrated", told)
        self.assertNotIn("a step, measured", told)
        refused = run("trireme-bench", "profile", *deck, "-o", profile, "--micro", "0")
        self.assertEqual(refused.code, USAGE)
        self.assertIn("--micro 0: expected whole numbers, such as 1,2,4", refused.err)


if __name__ == "__main__":
    unittest.main()
