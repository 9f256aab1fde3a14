"""Runs on GPUs: the host's loss curve in fp32, bf16 and fp16, one curve on every layout, restarts that
change nothing, errors that are said before anything is started.

Tests that need more GPUs than there are, or a dataset that is not there, are skipped; without any
GPU the script says so and ends with 77.
"""

import json
import os
import subprocess
import sys
import unittest
from unittest import mock

from runs import DEVICE, DIVERGED, FAILED, FINISHED, HERE, SCRATCH, RunTest, layout_words, run

ROOT = HERE.parents[1]
sys.path.append(str(ROOT / "apps" / "bench"))
from bert_against_pytorch import write_records  # noqa: E402

QUICKSTART = ROOT / "data" / "quickstart"

CUDA = "run.device=cuda"
FP32 = [CUDA, "precision.compute=fp32"]
BF16 = [CUDA, "precision.compute=bf16"]
# From a scale at which nothing overflows.
FP16 = [CUDA, "precision.compute=fp16", "precision.loss_scale.initial=1024"]
# Precisions, each with how far two layouts of the GPUs, and the GPU and the host, may be apart.
PRECISIONS = [("fp32", FP32, 2e-6, 1e-4), ("bf16", BF16, 2e-2, 2e-2),
              ("fp16", FP16, 2e-2, 2e-2)]

DOCUMENTS = ["data.reset_positions=true", "data.reset_attention=true"]
INTERLEAVED = ["parallel.schedule=interleaved", "parallel.interleave=2"]
ZERO_BUBBLE = ["parallel.schedule=zero-bubble"]
LLAMA = ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.ffn=264"]

# The GEMMs' timed choices: the tests neither use nor change the user's.
os.environ["XDG_CACHE_HOME"] = str(SCRATCH / "cache")


def count_gpus():
    """The number of visible GPUs, and why there is none."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    except OSError as error:
        return 0, f"nvidia-smi cannot be started: {error.strerror}"
    count = sum(line.startswith("GPU ") for line in listed.stdout.splitlines())
    if count == 0:
        return 0, f"nvidia-smi -L says: {(listed.stdout + listed.stderr).strip() or 'nothing'}"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return count, ""
    return min(count, sum(map(bool, visible.split(",")))), f"CUDA_VISIBLE_DEVICES is '{visible}'"


GPUS, WHY_NO_GPU = count_gpus()


def needs(count):
    return unittest.skipUnless(GPUS >= count, f"needs {count} GPUs, and {GPUS} can be seen")


class GpuTest(RunTest):
    def pretrain(self, name, *words, **options):
        """RunTest's; also checks that the run computed where its last run.device says."""
        result = super().pretrain(name, *words, **options)
        if result.code == FINISHED:
            self.assertIn("cuda backend on" if CUDA in words else "host backend", result.out)
        return result

    def check_host_curve(self, *words):
        """Twenty iterations give the losses that the host computes."""
        self.pretrain("host", *words)
        host = self.losses("host")
        self.assertEqual(len(host), 20)
        self.assert_learns(host)
        for precision, gpu, _, tolerance in PRECISIONS:
            with self.subTest(precision):
                self.pretrain(precision, *words, *gpu)
                self.assert_close(self.losses(precision), host, tolerance, precision)


class Tiny(GpuTest):
    def test_host_curve_with_dropout(self):
        self.check_host_curve("checkpoint.at_end=false")

    def test_host_curve_of_every_optimizer(self):
        for words in [["optimizer.type=adam"], ["optimizer.type=lamb", "schedule.peak=2e-2"],
                      ["optimizer.type=sgd", "optimizer.momentum=0.9", "schedule.peak=0.3"]]:
            with self.subTest(words[0]):
                self.check_host_curve("checkpoint.at_end=false", *words, "--restart", "never")

    def test_host_curve_of_documents_kept_apart(self):
        self.check_host_curve("checkpoint.at_end=false", *DOCUMENTS)

    def test_host_curve_of_documents_in_large_tiles(self):
        self.check_host_curve("checkpoint.at_end=false", *DOCUMENTS, "model.hidden=128",
                              "model.heads=2", "model.sequence=320", "model.dropout.attention=0",
                              "schedule.peak=5e-4")  # steeper, and rounding errors grow

    def test_host_curve_without_dropout(self):
        self.check_host_curve("checkpoint.at_end=false", "model.dropout.attention=0",
                              "model.dropout.hidden=0")

    def test_host_curve_of_llama(self):
        """Its SwiGLU is computed in the epilogue of a GEMM, or by a kernel: of 264 columns, which no
        tile divides."""
        self.check_host_curve("checkpoint.at_end=false", *LLAMA)

    def test_a_run_that_diverges_names_a_parameter(self):
        result = self.pretrain("run", CUDA, "schedule.peak=1e30", "schedule.warmup=0",
                               "optimizer.clip=0", "train.diverged_after=5", code=DIVERGED)
        self.assertRegex(result.err, r"training diverged: .*; the (weight|gradient) [a-z0-9/]+\[\d+"
                                     r"(, \d+)?\] is (nan|infinite); ")
        self.assertEqual(self.checkpoints("run"), [])

    def test_overflows_are_skipped_and_halve_the_scale(self):
        self.pretrain("run", CUDA, "precision.compute=fp16")
        train = self.events("run", "train")
        skipped = sum(event["skipped"] for event in train)
        self.assertGreater(skipped, 8)
        self.assertEqual(sum(event["nan"] for event in train), 0)
        # The first overflow takes from the hysteresis alone.
        self.assertEqual(train[-1]["loss_scale"], 2.0 ** (32 - (skipped - 1)))


class Fp8(GpuTest):
    def test_host_curve_of_each_recipe(self):
        self.check_recipes("model.heads=4")

    def test_host_curve_of_each_recipe_of_heads_of_128(self):
        self.check_recipes("model.heads=2", "recompute.granularity=full")

    def test_host_curve_of_each_recipe_without_dropout(self):
        self.check_recipes("model.heads=4", "model.dropout.attention=0", "model.dropout.hidden=0")

    def test_host_curve_of_each_recipe_of_llama(self):
        self.check_recipes(*LLAMA, "model.ffn=512")

    def check_recipes(self, *model):
        """The host rounds operands of GEMMs as the GPU does."""
        words = ["precision.compute=bf16", "precision.gemm=fp8", *model, "model.hidden=256",
                 "schedule.peak=5e-4", "checkpoint.at_end=false"]
        losses = {}
        for recipe in ("tensor", "block"):
            with self.subTest(recipe):
                for device in ("host", CUDA):
                    name = f"{recipe}-{device[-4:]}"
                    self.pretrain(name, *words, f"precision.fp8.recipe={recipe}",
                                  *([] if device == "host" else [CUDA]))
                    losses[name] = self.losses(name)
                self.assert_learns(losses[f"{recipe}-host"])
                self.assert_close(losses[f"{recipe}-cuda"], losses[f"{recipe}-host"], 2e-2, recipe)
        self.assertNotEqual(losses["tensor-cuda"], losses["block-cuda"])


class Bert(GpuTest):
    """Full attention that skips padding, exact GELU, norms after the sublayers, few labels."""

    def deck_words(self, name, *words):
        records = SCRATCH / "bert.tfrecord"
        if not records.exists():
            SCRATCH.mkdir(parents=True, exist_ok=True)
            write_records(records, sequence=64, predictions=9, count=16, least=20, vocabulary=2000)
        return [HERE / "tiny_bert.yaml", f"data.train={records}",
                f"run.output={self.folder / name}", f"run.device={DEVICE}", *words]

    def test_host_curve_with_dropout(self):
        self.check_host_curve()

    def test_host_curve_without_dropout(self):
        self.check_host_curve("model.dropout.attention=0", "model.dropout.hidden=0")

    def test_host_curve_of_norms_before_the_sublayers(self):
        self.check_host_curve("model.bert.post_norm=false")

    def test_host_curve_of_embeddings_of_master_weights(self):
        self.check_host_curve("parallel.zero=0", "precision.embedding=fp32")
        self.pretrain("same", "parallel.zero=0", *BF16)
        self.assertNotEqual(self.losses("same"), self.losses("bf16"))


@unittest.skipUnless(QUICKSTART.exists(),
                     f"needs {QUICKSTART}, made by jobs/local/quickstart.sh")
class Quickstart(GpuTest):
    def deck_words(self, name, *words):
        return [ROOT / "inputs" / "quickstart.yaml", f"run.output={self.folder / name}",
                f"data.train={QUICKSTART / 'corpus_text_document'}",
                f"data.tokenizer.model={QUICKSTART / 'tokenizer.model'}",
                f"data.index_cache={SCRATCH / 'quickstart'}", "parallel.tensor=1",
                "parallel.pipeline=1", "log.every=1", "run.device=host", *words]

    def test_host_curve_of_the_first_iterations(self):
        self.check_host_curve("train.exit_interval=20")

    def test_whole_run_in_every_precision(self):
        found = {}
        for precision, gpu, *_ in PRECISIONS:
            self.pretrain(precision, *gpu)
            self.assert_learns(self.losses(precision))
            last = self.events(precision, "eval")[-1]
            self.assertEqual((last["iteration"], last["split"]), (800, "valid"))
            found[precision] = last["loss"]
        for half in ("bf16", "fp16"):
            self.assert_close([found[half]], [found["fp32"]], 1e-2, f"validation loss, {half}")


class Layouts(GpuTest):
    """Every layout gives the losses of one GPU."""

    def check(self, *layouts, common=()):
        """Checks every (tensor, pipeline, data, further words ...) in every precision; the words in
        `common` are those of the single GPU, too."""
        for precision, gpu, tolerance, _ in PRECISIONS:
            gpu = [*gpu, *common]
            self.pretrain(precision, *gpu, "checkpoint.at_end=false")
            reference = self.losses(precision)
            self.assertEqual(len(reference), 20)
            self.assert_learns(reference)
            for tensor, pipeline, data, *words in layouts:
                self.check_layout(reference, tolerance, (tensor, pipeline, data), *words, *gpu)

    @needs(2)
    def test_two_gpus(self):
        self.check((2, 1, 1), (2, 1, 1, "parallel.sequence=true"), (1, 2, 1),
                   *[(1, 1, 2, f"parallel.zero={stage}") for stage in range(4)])

    @needs(2)
    def test_two_stages_under_every_schedule(self):
        self.check((1, 2, 1, *INTERLEAVED), (1, 2, 1, *ZERO_BUBBLE),
                   (1, 2, 1, *ZERO_BUBBLE, "parallel.overlap.pipeline=false"),
                   (1, 2, 1, "parallel.overlap.pipeline=false"))

    @needs(2)
    def test_two_stages_of_one_micro_batch(self):
        """Timing GEMMs of new shapes waits for all that is enqueued: a gradient must not
        be, before the activation that it answers is sent."""
        words = [*BF16, "batch.micro=8", "checkpoint.at_end=false"]
        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache")):
            self.pretrain("two", *words, *layout_words(1, 2, 1), ranks=2)
        self.pretrain("one", *words)
        self.assert_close(self.losses("two"), self.losses("one"), 2e-2, "two stages")

    @needs(2)
    def test_documents_on_two_gpus(self):
        self.check((2, 1, 1), (1, 2, 1), (1, 2, 1, *INTERLEAVED), common=DOCUMENTS)

    @needs(4)
    def test_documents_on_four_stages(self):
        self.check((1, 4, 1), common=DOCUMENTS)

    @needs(4)
    def test_four_gpus_under_every_schedule(self):
        self.check((2, 2, 1, *INTERLEAVED), (1, 2, 2, *INTERLEAVED), (1, 4, 1, *ZERO_BUBBLE),
                   (2, 2, 1, *ZERO_BUBBLE), (1, 2, 2, *ZERO_BUBBLE, "parallel.bucket=1000"))

    @needs(4)
    def test_four_gpus_along_one_axis(self):
        self.check((4, 1, 1), (4, 1, 1, "parallel.sequence=true"), (1, 4, 1),
                   (1, 4, 1, "parallel.partition=0-2-2-0"),
                   *[(1, 1, 4, f"parallel.zero={stage}") for stage in range(4)])

    @needs(4)
    def test_four_gpus_along_two_axes(self):
        self.check((2, 2, 1), (1, 2, 2), (2, 2, 1, "parallel.sequence=true"),
                   (2, 1, 2, "parallel.sequence=true", "parallel.bucket=1000"),
                   *[(2, 1, 2, f"parallel.zero={stage}", "parallel.bucket=1000")
                     for stage in range(4)])

    @needs(4)
    def test_four_gpus_with_weights_in_parts(self):
        cut = "parallel.zero=3"
        self.check((1, 2, 2, cut), (1, 2, 2, cut, *INTERLEAVED), (1, 2, 2, cut, *ZERO_BUBBLE),
                   (2, 1, 2, cut, "parallel.sequence=true"),
                   (1, 1, 4, cut, "parallel.overlap.gradients=false",
                    "parallel.overlap.parameters=false"),
                   (1, 1, 4, cut, "recompute.granularity=full"))


class Recompute(GpuTest):
    """Recomputation, and where its inputs are kept, changes no bit."""

    FULL = ["recompute.granularity=full"]
    OFFLOAD = [*FULL, "recompute.offload=true"]
    PARTITION = [*FULL, "recompute.partition=true"]
    # Copies that overlap with GEMMs of about their time.
    WIDE = ["model.hidden=1024", "model.heads=16", "model.sequence=512", "model.layers=6",
            "batch.micro=4", "batch.global=16", "train.iterations=4"]

    def check(self, ranks, words, *kinds):
        """Runs on `ranks` GPUs with each of `kinds` have the losses of one that keeps everything."""
        words = [*words, "checkpoint.at_end=false", "--restart", "never"]
        self.pretrain("kept", *words, ranks=ranks)
        for number, kind in enumerate(kinds):
            self.pretrain(f"kind-{number}", *words, *kind, ranks=ranks)
            self.assertEqual(self.losses(f"kind-{number}"), self.losses("kept"), [*words, *kind])

    def test_one_gpu(self):
        for words in FP32, BF16, [*BF16, *self.WIDE]:
            self.check(1, words, ["recompute.granularity=selective"], self.FULL, self.OFFLOAD,
                       [*self.OFFLOAD, "recompute.layers=3"],
                       [*self.OFFLOAD, "recompute.method=block", "recompute.layers=2"])

    @needs(2)
    def test_two_tensor_ranks(self):
        for words in FP32, BF16, [*BF16, *self.WIDE]:
            words = [*words, *layout_words(2, 1, 1)]
            self.check(2, words, ["recompute.granularity=selective"], self.PARTITION,
                       self.OFFLOAD, [*self.PARTITION, *self.OFFLOAD],
                       [*self.PARTITION, *self.OFFLOAD, "recompute.layers=3"])
            self.check(2, [*words, "parallel.sequence=true"],
                       ["recompute.granularity=selective"], self.OFFLOAD)

    @needs(2)
    def test_two_stages(self):
        for words in FP32, [*BF16, *self.WIDE, "model.layers=8"]:
            for schedule in [], INTERLEAVED:
                self.check(2, [*words, *layout_words(1, 2, 1), *schedule], self.FULL, self.OFFLOAD,
                           [*self.OFFLOAD, "recompute.method=block"])

    @needs(4)
    def test_two_stages_of_two_tensor_ranks(self):
        for words in FP32, [*BF16, *self.WIDE, "model.layers=8"]:
            self.check(4, [*words, *layout_words(2, 2, 1), *INTERLEAVED], self.PARTITION,
                       [*self.PARTITION, *self.OFFLOAD])


class Restart(GpuTest):
    def check_same_bits(self, *words, ranks=1):
        """A run of twelve iterations gives the bits of one that starts again after six."""
        words = ["train.iterations=12", *words]
        self.pretrain("whole", *words, ranks=ranks)
        self.pretrain("halves", *words, "train.exit_interval=6", ranks=ranks)
        second = self.pretrain("halves", *words, "train.exit_interval=6", ranks=ranks)
        self.assertIn("step-00000006.h5, iteration 6", second.out)
        self.assertEqual(len(self.losses("whole")), 12)
        self.assertEqual(self.losses("halves"), self.losses("whole"))
        tensors = [self.inspect(self.latest(name))["tensors"] for name in ("halves", "whole")]
        self.assertEqual(*tensors)

    def test_same_bits_in_fp32(self):
        self.check_same_bits(*FP32)

    def test_same_bits_in_bf16(self):
        self.check_same_bits(*BF16)

    def test_same_bits_in_the_midst_of_overflows(self):
        self.check_same_bits(CUDA, "precision.compute=fp16", "precision.loss_scale.window=3")

    @needs(2)
    def test_same_bits_on_two_stages(self):
        self.check_same_bits(*BF16, "parallel.pipeline=2", ranks=2)

    @needs(4)
    def test_same_bits_on_four_gpus_with_sharded_optimizer(self):
        self.check_same_bits(*BF16, *layout_words(2, 1, 2), "parallel.zero=1", ranks=4)

    @needs(2)
    def test_same_bits_on_two_gpus_with_weights_in_parts(self):
        self.check_same_bits(*BF16, *layout_words(1, 1, 2), "parallel.zero=3", ranks=2)

    @needs(2)
    def test_same_bits_with_gradients_in_half_precision(self):
        self.check_same_bits(*BF16, *layout_words(1, 1, 2), "parallel.zero=2",
                             "precision.gradients=same", ranks=2)

    def check_chain(self, name, reference, tolerance, legs):
        """Trains the run `name` for twenty iterations, an equal part of them on each of `legs`,
        (ranks, words): the losses are those of the run `reference`."""
        for ranks, words in legs:
            self.pretrain(name, f"train.exit_interval={20 // len(legs)}", *words, ranks=ranks)
        losses = self.losses(name)
        self.assertEqual(len(losses), 20)
        self.assert_close(losses, self.losses(reference), tolerance, name)

    def test_from_host_to_gpu_and_back(self):
        self.pretrain("serial", "checkpoint.at_end=false")
        several = min(GPUS, 2)
        for precision, gpu, _, tolerance in PRECISIONS:
            with self.subTest(precision):
                name = f"host-{precision}-host"
                self.check_chain(name, "serial", tolerance, [
                    (4, layout_words(2, 1, 2)), (1, gpu),
                    (several, [*gpu, *layout_words(1, 1, several)]), (2, layout_words(1, 2, 1))])
                log = (self.folder / name / "console.log").read_text()
                for before, after in [("host", "cuda"), ("cuda", "host")]:
                    note = f"changed: run.device: {before} in the checkpoint, {after} now"
                    self.assertEqual(log.count(note), 1, note)

    def check_layouts_in_turn(self, *legs):
        for precision, gpu, tolerance, _ in PRECISIONS:
            with self.subTest(precision):
                reference = f"serial-{precision}"
                self.pretrain(reference, *gpu, "checkpoint.at_end=false")
                self.check_chain(f"{len(legs)}-layouts-{precision}", reference, tolerance,
                                 [(ranks, [*gpu, *words]) for ranks, words in legs])

    @needs(2)
    def test_layouts_of_two_gpus_in_turn(self):
        self.check_layouts_in_turn((2, layout_words(2, 1, 1)), (1, layout_words(1, 1, 1)),
                                   (2, layout_words(1, 2, 1)), (2, layout_words(1, 1, 2)),
                                   (1, ["batch.micro=2"]))

    @needs(4)
    def test_layouts_of_four_gpus_in_turn(self):
        self.check_layouts_in_turn(
            (4, layout_words(2, 2, 1)), (4, [*layout_words(1, 1, 4), "parallel.zero=1"]),
            (4, [*layout_words(1, 4, 1), "parallel.partition=0-2-2-0"]),
            (4, [*layout_words(2, 1, 2), "parallel.zero=0"]), (1, ["batch.micro=2"]))


class Errors(GpuTest):
    def test_more_ranks_than_gpus(self):
        ranks = GPUS + 1
        result = self.fails(FAILED, f"{ranks} ranks were started on", CUDA, f"batch.global={ranks}",
                            ranks=ranks)
        self.assertRegex(result.err, rf"sees {GPUS} GPUs?\b.*; start at most {GPUS} there")

    def test_a_plan_that_cannot_fit_names_the_largest_purpose(self):
        result = self.fails(FAILED, "the plan needs ", *BF16, "model.layers=48",
                            "model.hidden=4096", "model.heads=32", "model.sequence=2048",
                            "model.vocab=50257", "batch.micro=512", "batch.global=512")
        self.assertRegex(result.err, r"are free; the activations take [0-9.]+ [TP]i?B; ")

    def test_a_plan_that_would_fit_with_a_smaller_batch(self):
        result = self.fails(FAILED, "the plan needs ", *BF16, "model.layers=12",
                            "model.hidden=768", "model.heads=12", "model.sequence=1024",
                            "model.vocab=50257", "batch.micro=65536", "batch.global=65536")
        self.assertRegex(result.err, r"activations take .*; batch\.micro=\d+ \([0-9.]+ GiB\) would fit")


class AfterTraining(GpuTest):
    def setUp(self):
        super().setUp()
        self.pretrain("run", *BF16)

    def test_evaluate_agrees_with_the_host(self):
        host = self.evaluate("run", "run.device=host", "precision.compute=fp32")
        cases = [(1, FP32, 1e-5), (1, BF16, 1e-2)]
        if GPUS >= 2:
            cases += [(2, [*FP32, "parallel.tensor=2"], 1e-5), (2, FP32, 1e-5)]
        for ranks, words, tolerance in cases:
            found = self.evaluate("run", *words, ranks=ranks)
            self.assertEqual((found["iteration"], found["tokens"]), (20, host["tokens"]))
            self.assert_close([found["loss"]], [host["loss"]], tolerance,
                              " ".join(["evaluate on", str(ranks), *words]))

    def test_generate_gives_the_text_of_the_host(self):
        words = ["--checkpoint", self.folder / "run", "--prompt", "Licensed under the", "--greedy",
                 "--tokens", 12]
        host = run("trireme-generate", *words, "--device", "host")
        self.assertEqual(host.code, FINISHED, host)
        self.assertGreater(len(host.out), len("Licensed under the"))
        for more in [], ["--device", "cuda"], ["--device", "cuda", "--recompute"]:
            with self.subTest(more):
                result = run("trireme-generate", *words, *more)
                self.assertEqual((result.code, result.out), (FINISHED, host.out), result)


class Texts(GpuTest):
    """Greedy texts in fp32: those of the host, for any batch and layout, with the cache and without."""

    def check(self, *words, tokens, prompts):
        # Wide weights, hardly trained: texts without loops.
        self.pretrain("run", *FP32, "model.dropout.attention=0", "model.dropout.hidden=0",
                      "model.init_std=0.4", "schedule.peak=1e-4", "schedule.warmup=0",
                      "train.iterations=2", *words)
        path = self.folder / "prompts.txt"
        text = (ROOT / "LICENSE").read_text().split()
        # Of unequal lengths; among them some that attention without a cache computes.
        path.write_text("".join(" ".join(text[i:])[:3 + 5 * i % 17] + "\n" for i in range(prompts)))
        words = ["--checkpoint", self.folder / "run", "--input", path, "--json", "--greedy",
                 "--tokens", tokens, "--precision", "fp32"]

        def texts(*more, ranks=1):
            result = run("trireme-generate", *words, *more, ranks=ranks)
            self.assertEqual(result.code, FINISHED, result)
            return [json.loads(line)["tokens"] for line in result.out.splitlines()]

        host = texts("--device", "host")
        self.assertEqual(len(host), prompts)
        self.assertGreater(len(set(map(tuple, host))), prompts // 2, "the test shows little")
        cases = [(["--batch", batch], 1) for batch in (1, 7, 64)] + [(["--recompute"], 1)]
        if GPUS >= 2:
            cases += [([axis, 2, "--batch", batch], 2)
                      for axis in ("--tensor", "--pipeline") for batch in (1, 64)]
        for layout, ranks in cases:
            with self.subTest(layout):
                self.assertEqual(texts("--device", "cuda", *layout, ranks=ranks), host)

    def test_gpt(self):
        self.check(tokens=12, prompts=64)

    def test_gpt_on_many_blocks_of_the_cache(self):
        self.check("model.sequence=256", "model.hidden=128", tokens=200, prompts=8)

    def test_llama(self):
        self.check("model.family=llama", "model.kv_heads=2", tokens=12, prompts=64)

    def test_a_sliding_window(self):
        self.check("model.family=llama", "model.kv_heads=2", "model.window=6", tokens=12,
                   prompts=64)


if __name__ == "__main__":
    if GPUS == 0:
        print(f"SKIPPED: these tests need a GPU, and {WHY_NO_GPU}")
        sys.exit(77)
    unittest.main(verbosity=2)
