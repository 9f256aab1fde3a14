"""trireme-convert between a run's checkpoint and a folder of Hugging Face's transformers, and its decks."""

import json
import shutil
import struct
import unittest

from runs import DATA, DECK, FINISHED, HERE, IO, USAGE, RunTest, dataset, run

try:
    import h5py
    import numpy
except ImportError:
    numpy = None

FLAGS = HERE.parent / "data" / "flags"


def convert(*words):
    return run("trireme-convert", *words)


def tensors_of(path):
    """The tensors of a safetensors file as numpy arrays, read by the format's description."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    body = data[8 + length:]
    return {name: numpy.frombuffer(body[slice(*entry["data_offsets"])], "<f4").reshape(
        entry["shape"]) for name, entry in header.items()}


def write_tensors(path, tensors):
    """Writes fp32 arrays as a safetensors file, by the format's description."""
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text +
                     b"".join(array.tobytes() for array in tensors.values()))


def logits(tensors, config, ids):
    """GPT-2's forward pass as transformers computes it, in fp64, for the last position."""
    def weights(name):
        return tensors["transformer." + name].astype(numpy.float64)

    def conv1d(name, x):
        return x @ weights(name + ".weight") + weights(name + ".bias")

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        x = x / numpy.sqrt((x * x).mean(-1, keepdims=True) + config["layer_norm_epsilon"])
        return x * weights(name + ".weight") + weights(name + ".bias")

    def gelu(x):
        return 0.5 * x * (1 + numpy.tanh(numpy.sqrt(2 / numpy.pi) * (x + 0.044715 * x**3)))

    def attention(name, x):
        heads = config["n_head"]
        q, k, v = (part.reshape(len(ids), heads, -1).transpose(1, 0, 2)
                   for part in numpy.split(conv1d(name + ".c_attn", x), 3, axis=-1))
        scores = q @ k.transpose(0, 2, 1) / numpy.sqrt(q.shape[-1])
        scores += numpy.triu(numpy.full(scores.shape[1:], -numpy.inf), 1)
        scores = numpy.exp(scores - scores.max(-1, keepdims=True))
        values = scores / scores.sum(-1, keepdims=True) @ v
        return conv1d(name + ".c_proj", values.transpose(1, 0, 2).reshape(len(ids), -1))

    x = weights("wte.weight")[ids] + weights("wpe.weight")[:len(ids)]
    for layer in range(config["n_layer"]):
        x = x + attention(f"h.{layer}.attn", norm(f"h.{layer}.ln_1", x))
        x = x + conv1d(f"h.{layer}.mlp.c_proj",
                       gelu(conv1d(f"h.{layer}.mlp.c_fc", norm(f"h.{layer}.ln_2", x))))
    return norm("ln_f", x)[-1] @ weights("wte.weight").T


class HuggingFace(RunTest):
    def setUp(self):
        super().setUp()
        self.pretrain_once("run")
        self.exported = self.folder / "gpt2"
        result = convert("hf", self.folder / "run", self.exported)
        self.assertEqual(result.code, FINISHED, result)
        self.assertIn("52 tensors, 60128 elements, from iteration 20 of", result.out)
        self.config = json.loads((self.exported / "config.json").read_text())

    @unittest.skipUnless(numpy, "python3-numpy or python3-h5py is not installed")
    def test_every_tensor_is_the_checkpoints(self):
        tensors = tensors_of(self.exported / "model.safetensors")
        self.assertEqual(len(tensors), 52)
        with h5py.File(self.latest("run"), "r") as file:
            for ours, theirs in [("embedding/word", "wte.weight"),
                                 ("embedding/position", "wpe.weight"),
                                 ("final_norm/weight", "ln_f.weight"),
                                 ("layers/3/attention/qkv/bias", "h.3.attn.c_attn.bias"),
                                 ("layers/2/norm2/bias", "h.2.ln_2.bias")]:
                numpy.testing.assert_array_equal(file["model"][ours][()],
                                                 tensors["transformer." + theirs])
            for ours, theirs in [("attention/qkv", "attn.c_attn"),
                                 ("attention/projection", "attn.c_proj"),
                                 ("mlp/up", "mlp.c_fc"), ("mlp/down", "mlp.c_proj")]:
                for layer in range(4):
                    numpy.testing.assert_array_equal(
                        file[f"model/layers/{layer}/{ours}/weight"][()].T,
                        tensors[f"transformer.h.{layer}.{theirs}.weight"])

    @unittest.skipUnless(numpy, "python3-numpy or python3-h5py is not installed")
    @unittest.skipUnless(numpy, "python3-numpy or python3-h5py is not installed")
    def test_an_independent_forward_pass_generates_the_same_tokens(self):
        # Random weights everywhere, biases and norms too: every mistake in the mapping shows.
        random = numpy.random.default_rng(1)
        tensors = {}
        for name, array in tensors_of(self.exported / "model.safetensors").items():
            # Matrices mix strongly, so that each token changes the next ones.
            scale = 0.4 if array.ndim == 2 else 0.1
            offset = 1 if ".ln_" in name and name.endswith("weight") else 0
            tensors[name] = random.normal(offset, scale, array.shape).astype("<f4")
        folder = self.folder / "random"
        shutil.copytree(self.exported, folder)
        write_tensors(folder / "model.safetensors", tensors)
        imported = self.folder / "random.h5"
        result = convert("hf", folder, imported)
        self.assertEqual(result.code, FINISHED, result)
        seen = set()
        for prompt in ["Licensed under", "(c) You must", "APPENDIX:", "the Work"]:
            result = run("trireme-generate", "--checkpoint", imported, "--tokenizer", "bytes",
                         "--prompt", prompt, "--greedy", "--tokens", 8, "--json")
            self.assertEqual(result.code, FINISHED, result)
            ids = list(prompt.encode())
            for token in json.loads(result.out)["tokens"]:
                self.assertEqual(int(numpy.argmax(logits(tensors, self.config, ids))), token)
                ids.append(token)
                seen.add(token)
        self.assertGreater(len(seen), 8, "the tokens are too few to tell mappings apart")

    def test_import_gives_a_checkpoint_that_runs_start_from(self):
        imported = self.folder / "imported.h5"
        result = convert("hf", "--deck", HERE / "tiny.yaml", self.exported, imported,
                         f"data.train={dataset()}")
        self.assertEqual(result.code, FINISHED, result)
        self.assertIn("no optimizer state", result.out)
        found = {tensor["name"]: tensor for tensor in self.inspect(imported)["tensors"]}
        for tensor in self.inspect(self.latest("run"))["tensors"]:
            name = tensor["name"]
            if name.startswith("model/"):
                self.assertEqual(found[name]["checksum"], tensor["checksum"], name)
            else:
                self.assertNotIn(name, found)
        self.assertEqual(self.evaluate("run")["loss"],
                         self.evaluate("run", "--checkpoint", imported)["loss"])
        self.pretrain("tuned", f"checkpoint.load={imported}", "train.iterations=2",
                      "parallel.pipeline=2", ranks=2)
        # Dropout makes the first loss of training differ from the last.
        self.assertLess(self.losses("tuned")[0], 1.1 * self.losses("run")[-1])
        self.assertEqual(self.stop_event("tuned")["iteration"], 2)
        words = ["--prompt", "the Work", "--greedy", "--tokens", 8]
        self.assertEqual(
            run("trireme-generate", "--checkpoint", imported, *words).out,
            run("trireme-generate", "--checkpoint", self.folder / "run", *words).out)

    def test_bad_files_are_refused_and_leave_nothing(self):
        weights = self.exported / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-4])
        target = self.folder / "bad.h5"
        result = convert("hf", self.exported, target)
        self.assertEqual(result.code, DATA, result)
        self.assertIn("is truncated: its tensors take 240512 bytes, of which 240508 are there",
                      result.err)
        self.assertEqual(list(self.folder.glob("bad*")), [])
        self.assertEqual(convert("hf", self.folder / "absent", target).code, IO)
        self.assertEqual(convert("hf", self.folder / "run", self.exported).code, IO)
        self.assertEqual(convert("hf", self.exported).code, USAGE)
        self.assertEqual(convert("hf", self.exported, target, "third").code, USAGE)

    def test_an_imported_model_starts_a_run_of_its_own(self):
        imported, deck = self.folder / "imported.h5", self.folder / "theirs.yaml"
        # The deck of an imported model has neither data nor a tokenizer, if there is none in the folder.
        for words in ((self.exported, deck), *[(self.exported / "model.safetensors", self.exported / "run.yaml")] * 2):
            imported.unlink(missing_ok=True)
            result = convert("hf", words[0], imported, "--write-deck", words[1])
            self.assertEqual(result.code, FINISHED, result)
        scored = run("trireme-evaluate", deck, f"run.output={self.folder / 'none'}", "run.device=host", f"data.train={dataset()}",
                     "data.tokenizer={type: bytes}", "--split", "train", "--json")
        self.assertEqual(scored.code, FINISHED, scored)
        self.assertEqual(json.loads(scored.out)["checkpoint"], str(imported))
        for optimizer in "sgd", "lamb":
            result = run("trireme-pretrain", deck, f"run.output={self.folder / optimizer}", "run.device=host", "run.seed=5",
                         f"data.train={dataset()}", "data.split=1,0,0", "data.tokenizer={type: bytes}", "model.sequence=16",
                         f"optimizer.type={optimizer}", "evaluate.at_end=false", "train.iterations=2")
            self.assertEqual(result.code, FINISHED, result)
            self.assertIn("changed: model.sequence: 32 in the checkpoint, 16 now", result.out)
            self.assertIn("changed: data.tokenizer.type: not set in the checkpoint, bytes now", result.out)
            self.assertNotIn("changed: data.split", result.out)
        # From here on it is a restart.
        again = run("trireme-pretrain", deck, f"run.output={self.folder / 'sgd'}", "run.device=host", "run.seed=6",
                    f"data.train={dataset()}", "data.split=1,0,0", "data.tokenizer={type: bytes}", "model.sequence=16",
                    "optimizer.type=sgd", "evaluate.at_end=false", "train.iterations=3")
        self.assertEqual(again.code, DECK, again)
        self.assertIn("run.seed = 6, but the checkpoint was written with 5; it must stay that", again.err)
        other = run("trireme-pretrain", deck, f"run.output={self.folder / 'other'}", f"data.train={dataset()}",
                    "model.heads=2", "--check")
        self.assertEqual(other.code, DECK, other)
        self.assertIn("model.heads = 2, but the checkpoint was written with 4; it must stay that", other.err)


class Flags(RunTest):
    def test_a_deck_that_the_programs_take(self):
        script = self.folder / "train.sh"
        script.write_text(f"""
MODEL="--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16"
torchrun --nproc_per_node $GPUS pretrain_gpt.py $MODEL --max-position-embeddings 16 \\
  --micro-batch-size 2 --global-batch-size 4 --train-iters 3 --lr 1e-3 --lr-decay-style cosine \\
  --lr-warmup-iters 1 --tokenizer-type NullTokenizer --vocab-size 256 --data-path {dataset()} \\
  --split 90,10,0 --eval-iters 0 --log-interval 1 --save {self.folder}/run/checkpoints
""")
        deck = self.folder / "deck.yaml"
        result = convert("flags", "--define", "GPUS=2", "--output", deck, script)
        self.assertEqual((result.code, result.out, result.err), (FINISHED, "", ""), result)
        trained = run("trireme-pretrain", deck, "run.device=host", ranks=2)
        self.assertEqual(trained.code, FINISHED, trained)
        self.assertEqual(len(self.losses("run")), 3)
        self.assertEqual(self.checkpoints("run"), ["step-00000003.h5"])

    def test_contradictions_end_it(self):
        deck = self.folder / "deck.yaml"
        result = convert("flags", "--output", deck, FLAGS / "r0_deepspeed_3d.sh")
        self.assertEqual((result.code, result.out), (DECK, ""), result)
        self.assertIn("\"train_batch_size\": 2048: the command line gives 144", result.err)
        self.assertFalse(deck.exists())

    def test_datasets_have_the_bytes_of_the_recipe(self):
        """Preprocessing of Megatron-LM 1.1.5's example: GPT-2's tokens in 16 bits, <|endoftext|> after each document."""
        golden = json.loads((HERE.parent / "data/gpt2/golden.json").read_text())
        texts = [(bytes.fromhex(row["bytes"]), row["ids"]) for row in golden]
        documents = [(text.decode(), ids) for text, ids in texts
                     if text and "<|" not in text.decode(errors="ignore") and text.decode(errors="ignore").encode() == text]
        self.assertGreater(len(documents), 50)
        corpus = self.folder / "corpus.json"
        corpus.write_text("".join(json.dumps({"text": text}) + "\n" for text, _ in documents))
        script = self.folder / "preprocess.sh"
        script.write_text(f"""
python tools/preprocess_data.py --input {corpus} --output-prefix {self.folder}/my-gpt2 \
  --vocab {HERE.parent}/data/gpt2/vocab.json --dataset-impl mmap --tokenizer-type GPT2BPETokenizer \
  --merge-file {HERE.parent}/data/gpt2/merges.txt --append-eod --workers 2
""")
        result = convert("flags", script)
        self.assertEqual(result.code, FINISHED, result)
        made = run(*result.out.strip().split())
        self.assertEqual(made.code, FINISHED, made)
        tokens = [ids + [50256] for _, ids in documents]
        lengths = [len(ids) for ids in tokens]
        starts = [2 * sum(lengths[:i]) for i in range(len(lengths))]
        count = len(tokens)
        index = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + struct.pack(f"<{count}i", *lengths) +
                 struct.pack(f"<{count}q", *starts) + struct.pack(f"<{count + 1}q", *range(count + 1)))
        prefix = self.folder / "my-gpt2_text_document"
        flat = [token for ids in tokens for token in ids]
        self.assertEqual(prefix.with_suffix(".bin").read_bytes(), struct.pack(f"<{len(flat)}H", *flat))
        self.assertEqual(prefix.with_suffix(".idx").read_bytes(), index)

    def test_a_command_line_behind_dashes(self):
        line = (FLAGS / "r2_first_release.sh").read_text().split("python ")[1].split("\n\n")[0]
        words = line.replace("\\\n", " ").split()
        result = convert("flags", "--", "python", *words)
        self.assertEqual(result.code, FINISHED, result)
        self.assertIn("  layers: 24 ", result.out)
        self.assertEqual(convert("flags").code, USAGE)
        self.assertEqual(convert("flags", "--", "ls", "-l").code, DATA)


if __name__ == "__main__":
    unittest.main(verbosity=2)
