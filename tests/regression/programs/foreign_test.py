"""trireme-convert between a run's checkpoint and those of Megatron-LM and DeepSpeed."""

import argparse
import random
import shutil
import subprocess
import sys
import unittest

from runs import BIN, DATA, DECK, FINISHED, HERE, IO, USAGE, PATIENCE, RunTest, dataset, run

sys.path.append(str(HERE.parents[1] / "apps" / "bench"))
from bert_against_pytorch import write_records  # noqa: E402

try:
    import h5py
    import numpy
    import foreign_checkpoints
except ImportError:
    numpy = None


def convert(*words):
    return run("trireme-convert", *words)


@unittest.skipUnless(numpy, "python3-numpy or python3-h5py is not installed")
class ForeignBert(RunTest):
    """BERT of Megatron-LM, and BertForPreTraining."""

    def deck_words(self, name, *words):
        records = self.folder / "bert.tfrecord"
        if not records.exists():
            write_records(records, sequence=64, predictions=9, count=16, least=20, vocabulary=1990)
        return [HERE / "tiny_bert.yaml", f"data.train={records}", "run.device=host", "model.heads=2",
                f"run.output={self.folder / name}", "model.vocab=1990", "train.iterations=2",
                "checkpoint.at_end=true", *words]

    def tensors(self, checkpoint, part):
        return {tensor["name"]: tensor["checksum"] for tensor in self.inspect(checkpoint)["tensors"]
                if tensor["name"].startswith(part)}

    def test_every_tensor_comes_back(self):
        self.pretrain("run", "model.bert.post_norm=false")
        source = self.latest("run")
        args = argparse.Namespace(num_layers=2, num_attention_heads=2, hidden_size=64, seq_length=64)
        for how in [{}, {"tensor": 2, "half": True}, {"pipeline": 2, "core": True}]:
            with self.subTest(**how):
                folder, target = self.folder / "theirs", self.folder / "ours.h5"
                shutil.rmtree(folder, ignore_errors=True)
                target.unlink(missing_ok=True)
                with h5py.File(source, "r") as file:
                    foreign_checkpoints.megatron(folder, file, args, **how)
                result = convert("megatron", "--deck", self.folder / "run" / "deck.yaml", folder, target)
                self.assertEqual(result.code, FINISHED, result)
                self.assertIn("resumes after iteration 2, at sample 16", result.out)
                self.assertNotIn("not read", result.out)
                self.assertEqual(self.tensors(target, ""), self.tensors(source, ""))

    def test_a_run_continues_after_hugging_face(self):
        self.pretrain("run")
        source, folder, target = self.latest("run"), self.folder / "hf", self.folder / "back.h5"
        self.assertEqual(convert("hf", source, folder).code, FINISHED)
        deck = self.folder / "imported.yaml"
        result = convert("hf", folder, target, "--write-deck", deck)
        self.assertEqual(result.code, FINISHED, result)
        self.assertEqual(self.tensors(target, "model/"), self.tensors(source, "model/"))
        result = run("trireme-pretrain", deck, f"data.train={self.folder / 'bert.tfrecord'}", "run.device=host",
                     f"run.output={self.folder / 'tuned'}")
        self.assertEqual(result.code, FINISHED, result)
        self.assertLess(self.losses("tuned")[0], 1.1 * self.losses("run")[0])


class ForeignTest(RunTest):
    def convert_damaged(self, folder, draw, times):
        """Converts the folder with bytes changed anywhere: the exit codes, never a crash or gigabytes."""
        codes, target = set(), self.folder / "ours.h5"
        files = sorted(path for path in folder.rglob("*") if path.is_file())
        for _ in range(times):
            file = draw.choice(files)
            whole = file.read_bytes()
            damaged = bytearray(whole)
            for _ in range(draw.randint(1, 3)):
                # Zip files have their pickle in front and their directory at the end.
                at = draw.choice([draw.randrange(len(whole)), draw.randrange(min(len(whole), 2000)), -1])
                damaged[at] = draw.randrange(256)
            if draw.random() < 0.2:
                del damaged[draw.randrange(len(damaged)):]
            file.write_bytes(bytes(damaged))
            done = subprocess.run(
                ["bash", "-c", f"ulimit -v 4000000; exec '{BIN}/trireme-convert' megatron '{folder}' '{target}'"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, timeout=PATIENCE)
            self.assertIn(done.returncode, (FINISHED, DATA, IO, DECK), (file, done.stderr))
            self.assertEqual(done.returncode == FINISHED, done.stderr == "", (file, done.stderr))
            codes.add(done.returncode)
            file.write_bytes(whole)
            target.unlink(missing_ok=True)
        return codes


@unittest.skipUnless(numpy, "python3-numpy or python3-h5py is not installed")
class Foreign(ForeignTest):
    """Checkpoints of Megatron-LM and DeepSpeed, written from one of Trireme's, come back unchanged."""

    def setUp(self):
        super().setUp()
        self.pretrain_once("run", "train.exit_interval=10 iterations")
        self.source = self.latest("run")
        self.args = argparse.Namespace(
            num_layers=4, hidden_size=32, ffn_hidden_size=128, num_attention_heads=4, kv_channels=8,
            seq_length=32, max_position_embeddings=32, padded_vocab_size=264, vocab_size=256,
            tokenizer_type="NullTokenizer", micro_batch_size=1, global_batch_size=8, lr=3e-3, min_lr=0.0,
            lr_decay_style="cosine", lr_warmup_iters=5, lr_warmup_samples=0, lr_decay_iters=60,
            lr_warmup_fraction=None, train_iters=20, train_samples=None, data_path=[str(dataset())],
            split="90,10,0", seed=1234, attention_dropout=0.1, hidden_dropout=0.1, weight_decay=0.01,
            start_weight_decay=0.01, clip_grad=1.0, world_size=8, eval_iters=2, eval_interval=1000,
            log_interval=1, fp16=False, bf16=False, consumed_train_samples=80, swiglu=False,
            bias_gelu_fusion=True, save="runs/theirs", load="runs/theirs", num_query_groups=1,
            tensor_model_parallel_size=1, pipeline_model_parallel_size=1, rotary_percent=1.0)

    def convert_back(self, write, *words, **how):
        folder, target = self.folder / "theirs", self.folder / "ours.h5"
        shutil.rmtree(folder, ignore_errors=True)
        target.unlink(missing_ok=True)
        with h5py.File(self.source, "r") as source:
            write(folder, source, self.args, **how)
        result = convert("megatron", folder, target, *words, "--write-deck", self.folder / "theirs.yaml")
        self.assertEqual(result.code, FINISHED, result)
        return target, result

    def test_every_tensor_comes_back_from_every_layout_and_age(self):
        wanted = {tensor["name"]: tensor["checksum"] for tensor in self.inspect(self.source)["tensors"]}
        megatron, deepspeed = foreign_checkpoints.megatron, foreign_checkpoints.deepspeed
        distributed, universal = foreign_checkpoints.distributed, foreign_checkpoints.universal
        for write, how in [(megatron, {}),
                           (megatron, {"version": 0, "tensor": 2, "legacy": True}),
                           (megatron, {"version": 1.0, "tensor": 4, "half": True}),
                           (megatron, {"version": 2.0, "tensor": 2, "pipeline": 2, "half": True}),
                           (megatron, {"pipeline": 2, "chunks": 2}),
                           (megatron, {"core": True, "tensor": 2, "pipeline": 4, "half": True}),
                           (distributed, {}),
                           (distributed, {"tensor": 1, "half": False, "stacked": False}),
                           (deepspeed, {}),
                           (deepspeed, {"pipeline": True, "data": 3}),
                           (universal, {}),
                           (universal, {"pipeline": True})]:
            with self.subTest(write=write.__name__, **how):
                target, result = self.convert_back(write, **how)
                self.assertIn("with the optimizer's state\nA run that starts here resumes after iteration 10, at "
                              "sample 80\n", result.out)
                self.assertNotIn("not read", result.out)
                found = {tensor["name"]: tensor["checksum"] for tensor in self.inspect(target)["tensors"]}
                self.assertEqual(found, wanted)

    def test_the_run_resumes_as_if_it_had_never_left(self):
        self.pretrain("run", "train.exit_interval=1000 iterations")
        target, _ = self.convert_back(foreign_checkpoints.megatron, "run.device=host", "model.vocab=257", tensor=2)
        self.assertIn("  device: host", (self.folder / "theirs.yaml").read_text())
        result = run("trireme-pretrain", self.folder / "theirs.yaml", f"checkpoint.load={target}",
                     f"run.output={self.folder / 'resumed'}")
        self.assertEqual(result.code, FINISHED, result)
        resumed = {event["iteration"]: event["loss"] for event in self.events("resumed", "train")}
        self.assertEqual(resumed, dict(enumerate(self.losses("run")[10:], start=11)))

    def test_checkpoint_load_names_a_folder_of_theirs(self):
        """The run converts it, and takes the same samples as the run that wrote it."""
        self.pretrain("run", "train.exit_interval=1000 iterations")
        for write, how in [(foreign_checkpoints.megatron, {"tensor": 2}), (foreign_checkpoints.universal, {})]:
            folder = self.folder / write.__name__
            with h5py.File(self.source, "r") as source:
                write(folder, source, self.args, **how)
            name = f"from-{write.__name__}"
            self.pretrain(name, f"checkpoint.load={folder}", "train.exit_interval=15 iterations")
            found = {event["iteration"]: event["loss"] for event in self.events(name, "train")}
            self.assertEqual(found, dict(enumerate(self.losses("run")[10:15], start=11)))
            self.assertIn("A run that starts here resumes after iteration 10, at sample 80",
                          (self.folder / name / "console.log").read_text())
            # The same command continues with the run's own checkpoint.
            self.pretrain(name, f"checkpoint.load={folder}", "train.exit_interval=1000 iterations")
            found = {event["iteration"]: event["loss"] for event in self.events(name, "train")}
            self.assertEqual(found, dict(enumerate(self.losses("run")[10:], start=11)))
        # And without them it starts over, in a new folder.
        result = self.pretrain(name, f"checkpoint.load={folder}", "train.exit_interval=15 iterations", "--restart", "never")
        self.assertIn(f"moved the old run folder to '{self.folder / name}.1'", result.out)
        self.assertEqual([event["iteration"] for event in self.events(name, "train")], list(range(11, 16)))
        damaged = next(folder.glob("*/zero/*/fp32.pt"))
        damaged.write_bytes(b"nothing")
        self.pretrain("fails", f"checkpoint.load={folder}", code=DATA)

    def test_damaged_folders_are_errors_or_checkpoints(self):
        """Bytes changed anywhere: a message and one of the exit codes of bad data, never a crash or gigabytes."""
        draw = random.Random(1)
        codes = set()
        for write in (foreign_checkpoints.megatron, foreign_checkpoints.deepspeed, foreign_checkpoints.universal,
                      foreign_checkpoints.distributed):
            folder = self.folder / write.__name__
            with h5py.File(self.source, "r") as source:
                write(folder, source, self.args)
            codes |= self.convert_damaged(folder, draw, 12)
        self.assertIn(DATA, codes)

    def test_what_cannot_be_read_is_named(self):
        ranks = self.folder / "theirs" / "iter_0000010"
        target = self.folder / "ours.h5"

        def fails(text, code=DATA):
            result = convert("megatron", self.folder / "theirs", target)
            self.assertEqual(result.code, code, result)
            self.assertIn(text, result.err)
            self.assertFalse(target.exists())

        def fails_with(text, code=DATA, **arguments):
            with h5py.File(self.source, "r") as source:
                wrong = argparse.Namespace(**dict(vars(self.args), **arguments))
                foreign_checkpoints.megatron(self.folder / "theirs", source, wrong, tensor=2)
            fails(text, code)

        fails_with("counts 10 iterations and -8 samples, -8 of them in its schedule", consumed_train_samples=-8)
        fails_with("--softmax-scale 0.5", code=DECK, softmax_scale=0.5)
        fails_with(f"the arguments in '{ranks}': --lr -1: schedule.peak = -1: must be above 0", code=DECK, lr=-1.0)
        with h5py.File(self.source, "r") as source:
            foreign_checkpoints.megatron(self.folder / "theirs", source, self.args, tensor=2)
        file = ranks / "mp_rank_01" / "model_optim_rng.pt"
        whole = file.read_bytes()
        file.write_bytes(whole[:-30])
        fails("is truncated: its directory is missing")
        file.write_bytes(b"#!/bin/sh\n")
        fails("is no file of torch.save()")
        with h5py.File(self.source, "r") as source:
            foreign_checkpoints.megatron(self.folder / "older", source, self.args, tensor=2, version=1.0)
        shutil.copy(self.folder / "older" / "iter_0000010" / "mp_rank_01" / "model_optim_rng.pt", file)
        fails("has checkpoint_version 1, but")
        file.unlink()
        fails("'embedding/word': 1 shard of tensor ranks makes [136, 32], but the deck's model needs [257, 32]: is the "
              "file of a rank missing?")
        (ranks / "mp_rank_00" / "model_optim_rng.pt").unlink()
        fails("has no mp_rank_* folder with a model_optim_rng.pt")
        self.assertEqual(convert("megatron", self.folder / "absent", target).code, IO)
        self.assertEqual(convert("megatron", self.folder / "theirs").code, USAGE)


@unittest.skipUnless(numpy, "python3-numpy or python3-h5py is not installed")
class ForeignLlama(ForeignTest):
    """Networks of Llama's kind, as Megatron-LM and Megatron-Core save them."""

    LLAMA = ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.ffn=96", "model.tie_embeddings=false",
             "model.position.theta=500000", "model.position.scaling=llama3", "model.position.factor=32",
             "model.position.original=8192", "model.window=9"]
    QWEN = ["model.family=llama", "model.heads=4", "model.kv_heads=2", "model.head_dim=16", "model.ffn=64",
            "model.qk_norm=head", "model.bias=qkv", "model.position.theta=1e6"]

    def arguments(self, **more):
        """The `args` of Megatron-Core, such as its defaults are."""
        base = dict(
            num_layers=4, hidden_size=32, num_attention_heads=4, group_query_attention=True, num_query_groups=2,
            seq_length=32, max_position_embeddings=32, padded_vocab_size=264, vocab_size=256,
            tokenizer_type="NullTokenizer", micro_batch_size=1, global_batch_size=8, lr=3e-3, min_lr=0.0,
            lr_decay_style="cosine", lr_warmup_iters=5, lr_warmup_samples=0, lr_decay_iters=60,
            lr_warmup_fraction=None, train_iters=20, train_samples=None, data_path=[str(dataset())],
            split="90,10,0", seed=1234, attention_dropout=0.0, hidden_dropout=0.0, weight_decay=0.01,
            start_weight_decay=0.01, clip_grad=1.0, world_size=8, eval_iters=2, eval_interval=1000,
            log_interval=1, fp16=False, bf16=False, consumed_train_samples=80, normalization="RMSNorm",
            norm_epsilon=1e-5, position_embedding_type="rope", rotary_percent=1.0, rotary_interleaved=False,
            rotary_seq_len_interpolation_factor=None, rope_scaling_factor=8.0,
            swiglu=True, add_bias_linear=False,
            window_attn_skip_freq=None, softmax_type="vanilla", glu_linear_offset=0.0, muon_momentum=0.9,
            lr_wsd_decay_style="exponential", data_parallel_sharding_strategy="no_shard", save="runs/theirs",
            num_distributed_optimizer_instances=1, tensor_model_parallel_size=1,
            pipeline_model_parallel_size=1)
        return argparse.Namespace(**{**base, **more})

    def models(self):
        return [("llama", self.LLAMA, self.arguments(
                    ffn_hidden_size=96, kv_channels=8, rotary_base=500000, use_rope_scaling=True,
                    rope_scaling_factor=32.0, window_size=(8, 0), apply_layernorm_1p=True, untie_embeddings_and_output_weights=True,
                    qk_layernorm=False, add_qkv_bias=False)),
                ("qwen", self.QWEN, self.arguments(
                    ffn_hidden_size=64, kv_channels=16, rotary_base=1000000, use_rope_scaling=False, window_size=None,
                    apply_layernorm_1p=False, untie_embeddings_and_output_weights=False, qk_layernorm=True, add_qkv_bias=True))]

    def checksums(self, checkpoint):
        return {tensor["name"]: tensor["checksum"] for tensor in self.inspect(checkpoint)["tensors"]}

    def test_every_tensor_comes_back_and_the_run_resumes(self):
        megatron, distributed = foreign_checkpoints.megatron, foreign_checkpoints.distributed
        for name, model, args in self.models():
            self.pretrain(name, *model, "train.exit_interval=10 iterations")
            source, wanted = self.latest(name), self.checksums(self.latest(name))
            self.pretrain(name, *model, "train.exit_interval=15 iterations")
            losses = self.losses(name)
            folder, target, deck = self.folder / "theirs", self.folder / "ours.h5", self.folder / "theirs.yaml"
            for write, how in [(megatron, {}), (megatron, {"tensor": 2, "half": True}),
                               (megatron, {"tensor": 2, "pipeline": 2}),
                               (megatron, {"core": True, "pipeline": 2, "half": True}),
                               (megatron, {"core": True, "tensor": 2}), (megatron, {"core": True, "tensor": 4}),
                               (distributed, {}),
                               (distributed, {"tensor": 1, "half": False, "stacked": False})]:
                with self.subTest(name=name, write=write.__name__, **how):
                    shutil.rmtree(folder, ignore_errors=True)
                    target.unlink(missing_ok=True)
                    with h5py.File(source, "r") as file:
                        write(folder, file, args, **how)
                    result = convert("megatron", folder, target, "--write-deck", deck)
                    self.assertEqual(result.code, FINISHED, result)
                    self.assertIn("resumes after iteration 10, at sample 80", result.out)
                    self.assertNotIn("not read", result.out)
                    self.assertEqual(self.checksums(target), wanted)
            # By the deck of their arguments: positions, window, norms and biases are the same.
            output = self.folder / f"{name}-resumed"
            result = run("trireme-pretrain", deck, f"checkpoint.load={target}", f"run.output={output}",
                         "run.device=host", "model.vocab=257", "train.exit_interval=15 iterations")
            self.assertEqual(result.code, FINISHED, result)
            resumed = {event["iteration"]: event["loss"] for event in self.events(output.name, "train")}
            self.assertEqual(resumed, dict(enumerate(losses[10:15], start=11)))

    def test_a_deck_of_another_network_is_refused(self):
        name, model, args = self.models()[1]
        self.pretrain(name, *model, "train.exit_interval=1 iterations")
        folder, target = self.folder / "theirs", self.folder / "ours.h5"
        with h5py.File(self.latest(name), "r") as file:
            foreign_checkpoints.megatron(folder, file, args, tensor=2)

        def fails(text, *words):
            result = convert("megatron", "--deck", self.folder / name / "deck.yaml", folder, target, *words)
            self.assertEqual(result.code, DATA, result)
            self.assertIn(text, result.err)
            self.assertFalse(target.exists())

        fails("has 'layers/0/attention/qkv/bias', which the deck's model does not have", "model.bias=none")
        fails("has 'layers/0/attention/k_norm/weight', which the deck's model does not have", "model.qk_norm=none")
        fails("has no tensor for 'head/weight'", "model.tie_embeddings=false")
        fails("'layers/0/attention/qkv/weight': 2 shards of tensor ranks make [128, 32], but the deck's model needs "
              "[96, 32]", "model.kv_heads=1")
        fails("'layers/0/mlp/gate_up/weight': 2 shards of tensor ranks make [128, 32], but the deck's model needs "
              "[192, 32]", "model.ffn=96")
        damaged = self.convert_damaged(folder, random.Random(2), 12)
        self.assertIn(DATA, damaged)
        (folder / "iter_0000001" / "mp_rank_01" / "model_optim_rng.pt").unlink()
        fails("is the file of a rank missing?")


if __name__ == "__main__":
    unittest.main(verbosity=2)
