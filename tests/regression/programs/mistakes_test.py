"""Mistakes on command lines and in decks, a row each: the command ends with one message that names the option or
key and the way out, with the right exit code, and leaves no file and no input changed."""

import json
import os
import shutil
import subprocess
import unittest

from runs import DATA, DECK, FAILED, FINISHED, HERE, IO, PATIENCE, SCRATCH, USAGE, RunTest, dataset, run

ROOT = HERE.parents[1]
FOLDER = SCRATCH / "mistakes"
TINY = [HERE / "tiny.yaml", "run.device=host", "data.train=data"]
BYTES = "preprocess --tokenizer bytes "
LONG = "x" * 300  # bytes; a name has at most 255

# The words of the command, the exit code, and a part of the message.
COMMANDS = [
    # outputs that would replace an input, are folders, or have no place
    ("preprocess clean --input docs.jsonl --output ./docs.jsonl", USAGE, "--output ./docs.jsonl: this is an input; name another file"),
    ("preprocess dedup --input docs.jsonl --output docs.jsonl", USAGE, "this is an input"),
    ("preprocess shuffle --input docs.jsonl --output docs.jsonl", USAGE, "this is an input"),
    ("preprocess presplit --input text.txt --output text.txt", USAGE, "this is an input"),
    ("preprocess decontaminate --evaluation docs.jsonl --input lines.jsonl --output docs.jsonl", USAGE, "this is an input"),
    ("preprocess clean --input docs.jsonl --output o --dropped o", USAGE, "--dropped o: this is another output; name another file"),
    ("preprocess clean --input docs.jsonl --output o --dropped d --report d", USAGE, "--report d: this is another output; name another file"),
    ("preprocess clean --input docs.jsonl --output o --report folder", USAGE, "--report folder: this is a folder; name a file in it"),
    ("preprocess clean --input docs.jsonl --output folder", USAGE, "--output folder: this is a folder"),
    ("tokenizer train --input text.txt --output text.txt --size 400", USAGE, "--output text.txt: this is an input"),
    ("tokenizer train --input text.txt --output folder --size 400", USAGE, "--output folder: this is a folder"),
    ("tokenizer train --input text.txt --output text.txt/x --size 400", IO, "cannot create folder 'text.txt': Not a directory"),
    # ... nor can the second file of a tokenizer be written
    ("tokenizer train --input pieces.vocab --output pieces.model --size 400", USAGE,
     "pieces.vocab, where the pieces of pieces.model are written: this is an input; name another model"),
    ("tokenizer train --input text.txt --output folder.model --size 400", USAGE, "folder.vocab, where the pieces of folder.model are written: this is a folder"),
    ("tokenizer train --input text.txt --output taken.model --size 400", IO, "cannot create 'taken.vocab.part': Is a directory"),
    (BYTES.replace("bytes", "sentencepiece") + "--model folder.model --train-tokenizer 400 --input text.txt --output o", USAGE, "folder.vocab, where the pieces"),
    ("generate --checkpoint run --input text.txt --output text.txt", USAGE, "--output text.txt: this is an input"),
    ("generate --checkpoint cut.h5 --prompt a --output cut.h5", USAGE, "--output cut.h5: this is an input"),
    *((f"generate --device host --checkpoint {checkpoint} --prompt a --output {output}", USAGE, f"--output {output}: this is an input")
      for checkpoint in ("run", "run/checkpoints/step-00000002.h5")
      for output in ("run/checkpoints/step-00000002.h5", "run/metrics.jsonl", "run/deck.yaml")),
    ("generate --checkpoint run --interactive --output o", USAGE, "--output and --interactive: give one of them"),
    ("convert flags --output text.txt text.txt", USAGE, "--output text.txt: this is an input"),
    ("convert hf hf o.h5 --write-deck hf/config.json", USAGE, "--write-deck hf/config.json: this is an input"),
    ("convert hf text.txt o.h5 --write-deck text.txt", USAGE, "--write-deck text.txt: this is an input"),
    ("convert hf hf/model.safetensors o.h5 --write-deck hf/config.json", USAGE, "--write-deck hf/config.json: this is an input"),
    ("convert megatron megatron o.h5 --write-deck megatron/iter_1/model_optim_rng.pt", USAGE, "--write-deck megatron/iter_1/model_optim_rng.pt: this is an input"),
    ("convert hf hf o.h5 --write-deck ./o.h5", USAGE, "--write-deck ./o.h5: this is another output; name another file"),
    ("convert megatron folder o.h5 --write-deck o.h5", USAGE, "--write-deck o.h5: this is another output"),
    ("convert flags --output o --hosts o text.txt", USAGE, "--hosts o: this is another output"),
    ("convert hf run hf", IO, "'hf' has files of a model already (config.json): remove them, or name another folder"),
    ("preprocess clean --tokenizer wordpiece --vocab text.txt --input docs.jsonl --output text.txt", USAGE, "--output text.txt: this is an input"),
    ("evaluate {tiny} --checkpoint run --checkpoint run --plot cut.h5", USAGE, "--plot cut.h5: expected a name that ends in .svg"),
    ("evaluate {tiny} --checkpoint run --plot curve.svg", USAGE, "--plot draws a curve over several checkpoints"),
    (BYTES + "--input text.txt --output /no-such-folder/x", IO, "there is no folder '/no-such-folder'; make it first"),
    (BYTES + "--input num.jsonl --output new/deep/x", DATA, "num.jsonl:1: 'text' is a number, not a string"),
    (BYTES + "--input text.txt --output folder/", USAGE, "--output folder/: must be the beginning of file names, such as folder/corpus"),
    (BYTES + "--input lines.jsonl --output o --key a/b", USAGE, "--key a/b: it is part of the names of the files"),
    ("report plot run -o lost/x.svg", IO, "cannot create 'lost/x.svg.part': there is no folder 'lost'"),
    ("report html run -o folder.html", IO, "cannot write 'folder.html': it is a folder; name a file in it"),
    ("report html run -o page.txt", USAGE, "-o page.txt: a page is HTML; name one such as page.html"),
    # paths that the system cannot look at
    (f"inspect {LONG}", IO, f"cannot access '{LONG}': File name too long"),
    (f"convert hf {LONG} o.h5", IO, f"cannot access '{LONG}': File name too long"),
    (f"convert megatron {LONG} o.h5", IO, "File name too long"),
    (f"report goodput {LONG}", IO, "File name too long"),
    (f"sweep {LONG}", IO, f"cannot access '{LONG}': File name too long"),
    ("inspect loop", IO, "cannot access 'loop': Too many levels of symbolic links"),
    # options and their values
    (BYTES + "--input text.txt --output", USAGE, "--output needs a value: PREFIX"),
    (BYTES + "--input text.txt --output o --append-eod true", USAGE, "'true' belongs to no option: --append-eod takes no value"),
    (BYTES + "--input text.txt --output-prefix o", USAGE, "unrecognised option '--output-prefix'; did you mean '--output'?"),
    ("preprocess --input text.txt --output o --tokenizer wordpiece --vocab v --lowercase maybe", USAGE, "--lowercase maybe: expected true or false"),
    ("preprocess --input text.txt --output o --tokenizer gpt2", USAGE, "the gpt2 tokenizer needs --vocab FILE"),
    ("preprocess --input text.txt --output o --tokenizer GPT2BPETokenizer", USAGE, "unknown tokenizer 'GPT2BPETokenizer'; did you mean 'gpt2'?"),
    ("preprocess --input text.txt --output o --tokenizer sentencepiece --model empty.txt", DATA, "empty.txt: not a SentencePiece model: it is empty"),
    (BYTES + "--input text.txt --output o --bert-tokens", USAGE, "--bert-tokens is for --train-tokenizer"),
    (BYTES + "--input text.txt --output o --pattern gpt2", USAGE, "--pattern is for --train-tokenizer"),
    ("preprocess npz --input a.npy", USAGE, "merge, npy, split, or options; did you mean 'npy'?"),
    ("preprocess split --input docs.jsonl --output o --fractions 90%,x,5%", USAGE, "--fractions 90%,x,5%: expected numbers"),
    ("tokenizer encode --tokenizer bytes text", USAGE, "'text': encode reads standard input: trireme-tokenizer encode ... < FILE"),
    ("tokenizer decode --tokenizer bytes --input text.txt", USAGE, "'text.txt': decode reads standard input"),
    ("generate --checkpoint run --prompt a --max-new-tokens 5", USAGE, "unrecognised option '--max-new-tokens'; did you mean '--tokens'?"),
    ("generate --checkpoint run a", USAGE, "'a' belongs to no option; did you mean --input a?"),
    ("generate --checkpoint run --prompt a --seed -1", USAGE, "--seed -1: expected 0 to 4294967295"),
    ("generate --checkpoint run --prompt a --tokens 2e9", USAGE, "--tokens 2000000000: expected 1 to 1000000000"),
    *((f"generate --checkpoint run --prompt a --batch 2 {other}", USAGE, f"--batch has no effect with {other.split()[0]}")
      for other in ("--beams 2", "--recompute")),
    ("generate --checkpoint run --batch 2 --interactive", USAGE, "--batch has no effect with --interactive"),
    *((f"preprocess dedup --exact --input docs.jsonl --output o {option}", USAGE, f"{option.split()[0]} has no effect with --exact")
      for option in ("--bands 5", "--seed 1", "--jaccard min")),
    *((f"preprocess clean --no-urls --input docs.jsonl --output o {option}", USAGE, f"{option.split()[0]} has no effect with --no-urls")
      for option in ("--url-key link", "--block-domains text.txt")),
    ("report follow run --tail many --once", USAGE, "--tail many: expected a whole number, such as 2000 or 2k"),
    ("report follow run --tail -1 --once", USAGE, "--tail -1: expected 0 or more lines"),
    ("report follow text.txt --once", USAGE, "'text.txt' is no run folder: name the folder of a run"),
    ("report export text.txt", DATA, "text.txt: no training line in it"),
    ("report diff run text.txt", DATA, "text.txt: no training line in it"),
    ("report export run -o run/metrics.jsonl", USAGE, "--output run/metrics.jsonl: this is an input"),
    ("report export run/console.log -o run/deck.yaml", USAGE, "--output run/deck.yaml: this is an input"),
    ("inspect 0.5 data 0.5 --index train --sequence 16 --output o", USAGE, "no prefix follows '0.5'"),
    ("inspect data --index train --sequence 16 --split 1,x --output o", USAGE, "--split 1,x: expected weights, such as 969,30,1"),
    ("inspect cut.h5", DATA, "'cut.h5' is not a readable checkpoint: it has lost its end; use another one"),
    ("preprocess merge --output o data.bin data.idx", USAGE, "'data.bin' and 'data.idx' are one dataset: name it once"),
    ("preprocess npy --input data --output o", USAGE, "'data' is a dataset: the array that it becomes needs --output FILE.npy"),
    (BYTES + "--input data.bin --output o", DATA, "the .bin file of a dataset has token ids, not text"),
    ("convert hf run o --shard-size large", USAGE, "--shard-size large: expected a size, such as 5, 5GB or 500MB"),
    ("convert megatron hf o.h5", DATA, "'hf' is a model of Hugging Face's: trireme-convert hf hf o.h5"),
    ("convert megatron run o.h5", DATA, "'run' is a run folder of Trireme: checkpoint.load=run starts from it"),
    ("convert megatron megatron o.h5", DATA,
     "'megatron/latest_checkpointed_iteration.txt': expected the number of an iteration, or release"),
    ("convert flags -- ls -l", DATA, "the command line has no training command"),
    ("sweep sweep.yaml --sbatch x", USAGE, "--sbatch goes with --submit"),
    ("sweep sweep.yaml --submit --max-ranks 2", USAGE, "--max-ranks limits this machine"),
    ("sweep status sweep.yaml --memory 1MiB", USAGE, "--memory goes with 'run'"),
    ("sweep table sweep.yaml --print", USAGE, "--print goes with 'run'"),
    ("sweep sweep.yaml --max-ranks 0", USAGE, "--max-ranks 0: expected 1 or more"),
    ("pretrain {tiny} --supervise=", USAGE, "--supervise needs a value"),
    (["pretrain", *TINY, "--supervise=lost -n 2"], USAGE, "--supervise: cannot start 'lost': No such file or directory"),
    ("pretrain {tiny} run.output=text.txt --check", IO, "text.txt' is a file; choose another run.output"),
    ("pretrain {tiny} run.output=text.txt/x/y --check", IO, "text.txt' is a file; choose another run.output"),
    ("pretrain {tiny} run.output=dangling --check", IO, "dangling' is a link to nothing; choose another run.output"),
    ("pretrain {tiny} --print-job slurm --option=--nodes=7", USAGE, "the job has this line; give --nodes instead"),
    # keys and values
    (["pretrain", *TINY, "model.layers = 5", "--check"], DECK, "unknown key 'model.layers ' — take away the blank after it"),
    ("pretrain {tiny} model\u200b.layers=5 --check", DECK, "it has the character U+200B; keys are ASCII"),
    (["pretrain", *TINY, "train.iterations=5 epochs", "--check"], DECK, "expected a whole number alone, without 'epochs'"),
    ("pretrain {tiny} train.skip=[a-b] --check", DECK, "train.skip: 'a-b' is no range of iterations"),
    (["pretrain", *TINY, "data.train=0.5 a 0.5 b", "--check"], DECK, "a blend is a list: [0.5, a, 0.5, b]"),
    ("pretrain {tiny} precision.loss_scale=dynamic --check", DECK, "found dynamic; write {value: dynamic}"),
    ("pretrain {tiny} schedule.type=inverse_sqrt --check", DECK, "did you mean 'inverse-square-root'?"),
    ("pretrain {tiny} schedule.type=WarmupDecayLR --check", DECK, "did you mean 'linear'?"),
    ("pretrain {tiny} checkpoint.every=0 --check", DECK, "leave the key out for none"),
    ("pretrain {tiny} checkpoint.keep=0 --check", DECK, "the key's default is 'all'"),
    ("pretrain {tiny} run.name=.. --check", DECK, "run.name = ..: the run's folder is named after it"),
    ("pretrain {tiny} run.output=~/runs --check", DECK, "run.output = ~/runs: shells alone know '~': write /"),
    ("pretrain {tiny} data.train=" + "x" * 5000 + " --check", DECK, "a path has at most 4095 bytes, not 5000"),
    ("serve --checkpoint run --port 80", USAGE, "unrecognised option '--port'; did you mean '--bind'?"),
    ("serve --checkpoint run --bind 127.0.0.1:0 --drain soon", USAGE, "--drain soon: expected a time"),
]

# What people write and programs take.
GOOD = [
    ("pretrain {tiny} train.exit_duration=1h30m --check", "no errors"),
    ("pretrain {tiny} --time-limit 1d2h --check", "no errors"),
    (["pretrain", *TINY, "train.exit_duration=2 days", "--print-deck"], "exit_duration: 172800 seconds"),
    ("preprocess split --input docs.jsonl --output parts --fractions 80%,10%,10%", "parts/train.jsonl: 24 lines"),
    (BYTES + "--input text.txt --output new/deep/x", "new/deep/x_text_document.{bin,idx}: 169 documents"),
    ("convert hf run model --shard-size 5GB", "model: "),
]


def play(command):
    words = command if isinstance(command, list) else [
        part for word in command.split() for part in (TINY if word == "{tiny}" else [word.replace("{{", "{").replace("}}", "}")])]
    return run(f"trireme-{words[0]}", *words[1:])


def contents():
    """The folder's files with their sizes and times; caches of indices are no result of a command."""
    return {path: (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else None
            for path in FOLDER.rglob("*") if "cache" not in path.parts}


def setUpModule():
    shutil.rmtree(FOLDER, ignore_errors=True)
    (FOLDER / "folder").mkdir(parents=True)
    for name in ("folder.html", "folder.vocab", "taken.vocab.part"):
        (FOLDER / name).mkdir()
    for name in ("hf", "megatron/iter_1"):
        (FOLDER / name).mkdir(parents=True)
    (FOLDER / "loop").symlink_to("loop")
    (FOLDER / "dangling").symlink_to("nowhere")
    os.chdir(FOLDER)
    for ending in (".bin", ".idx", ".json"):
        shutil.copy(f"{dataset()}{ending}", f"data{ending}")
    for name in ("text.txt", "pieces.vocab"):
        shutil.copy(ROOT / "LICENSE", name)
    texts = {"empty.txt": "", "hf/config.json": "{}", "megatron/latest_checkpointed_iteration.txt": "abc\n",
             "megatron/iter_1/model_optim_rng.pt": "",
             "num.jsonl": '{"text": 5}\n', "lines.jsonl": '{"text": "one two"}\n',
             "docs.jsonl": "".join(json.dumps({"text": f"words of document {i} " * 30}) + "\n" for i in range(30)),
             "sweep.yaml": (HERE / "tiny.yaml").read_text(encoding="utf-8") + "run: {device: host}\nsweep: {model.layers: [1, 2]}\n"}
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")
    trained = run("trireme-pretrain", *TINY, "--output", "run", "train.iterations=2", "model.hidden=16", "model.layers=1")
    if trained.code != FINISHED:
        raise RuntimeError(str(trained))
    checkpoint, = (FOLDER / "run/checkpoints").glob("*.h5")
    (FOLDER / "cut.h5").write_bytes(checkpoint.read_bytes()[:3000])


class Mistakes(RunTest):
    def test_each_ends_in_a_message_and_changes_nothing(self):
        before = contents()
        for command, code, text in COMMANDS:
            with self.subTest(command):
                result = play(command)
                self.assertEqual(result.code, code, f"{command}: {result}")
                self.assertIn(text, result.err, f"{command}: {result}")
                self.assertLess(max(map(len, result.err.splitlines())), 1000, f"{command}: {result}")
                for name in ("H5F", "boost", "std::", "argument for option"):
                    self.assertNotIn(name, result.err, "a library's own words")
                self.assertEqual(contents(), before, f"{command}: {result}")

    @unittest.skipIf(os.path.exists("/dev/nvidia0"), "this machine has a GPU")
    def test_scripts_for_one_machine(self):
        shutil.copytree(ROOT / "jobs/local", self.folder / "jobs/local")
        for words, code, text in [
                ("gpu-check.sh --foo", USAGE, "gpu-check.sh: unknown option '--foo': only --burn-in MINUTES"),
                ("gpu-check.sh --burn-in", USAGE, "gpu-check.sh: --burn-in '': expected a number of minutes"),
                ("gpu-check.sh", FAILED, "gpu-check.sh: no GPU is visible here"),
                ("test.sh --foo", USAGE, "test.sh: '--foo': it takes no arguments"),
                ("quickstart.sh --foo", USAGE, "quickstart.sh: unknown option '--foo': only --cuda"),
                ("quickstart-bert.sh", FAILED, "quickstart-bert.sh: run jobs/local/quickstart.sh first")]:
            result = subprocess.run([self.folder / "jobs/local" / words.split()[0], *words.split()[1:]], capture_output=True,
                                    text=True, check=False, timeout=PATIENCE, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
            self.assertEqual((result.returncode, result.stdout), (code, ""), f"{words}: {result.stderr}")
            self.assertTrue(result.stderr.startswith(text), f"{words}: {result.stderr}")

    def test_what_people_write_is_taken(self):
        for command, text in GOOD:
            with self.subTest(command):
                result = play(command)
                self.assertEqual(result.code, FINISHED, f"{command}: {result}")
                self.assertIn(text, result.out, f"{command}: {result}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
