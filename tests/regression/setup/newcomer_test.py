"""What a newcomer does in the first week, forty tasks from the pages, each of which ends in a result; and the mistakes
that people make on the way, each of which ends in one message that names the key, the place and the way out."""

import fcntl
import json
import os
import pty
import shutil
import signal
import struct
import subprocess
import termios
import unittest
import unittest.mock

from runs import BIN, DATA, DECK, FAILED, FINISHED, HERE, IO, PATIENCE, SCRATCH, STOPPED_EARLY, USAGE, RunTest, Started, command_line, run

ROOT = HERE.parents[1]
INPUTS = ROOT / "inputs"
GPT2 = ROOT / "tests/data/gpt2"
FOLDER = SCRATCH / "newcomer"
TINY = [HERE / "tiny.yaml", "run.device=host", "data.train=text_text_document"]
SMALL = ["model.hidden=16", "model.layers=2", "model.heads=2"]
# With a SentencePiece tokenizer of the reader's own text.
OWN = [*TINY, "data.train=own_text_document", "data.tokenizer.type=sentencepiece", "data.tokenizer.model=own.model"]

# The first line of what a task must print, or a part of any line; the words are those of the pages.
TASKS = [
    ("a tokenizer of my text", "tokenizer train --input text.txt --output own.model --size 400", "own.model: 400 pieces"),
    ("units in options", "tokenizer train --input text.txt --output k.model --size 0.4k", "k.model: 400 pieces"),
    ("a WordPiece vocabulary", "tokenizer train --type wordpiece --lowercase true --input text.txt --output vocab.txt --size 400",
     "vocab.txt: 400 pieces"),
    ("a tokenizer.json", "tokenizer train --type bpe --input text.txt --output tokenizer.json --size 400", "400 pieces (bpe)"),
    ("a dataset of bytes", "preprocess --input text.txt --output text --tokenizer bytes --append-eod",
     "text_text_document.{bin,idx}: 169 documents"),
    ("a dataset of my tokenizer",
     "preprocess --input text.txt --output own --tokenizer sentencepiece --model own.model --append-eod", "vocabulary of 400 ids"),
    ("a dataset of GPT-2's tokenizer", "preprocess --input text.txt --output gpt2 --tokenizer gpt2 --vocab {gpt2}/vocab.json "
     "--merges {gpt2}/merges.txt --append-eod --quiet", "vocabulary of 50257 ids"),
    ("a dataset of JSON lines", "preprocess --input lines.jsonl --output lines --tokenizer bytes --key body", "2 documents"),
    ("sentences for BERT", "preprocess --input text.txt --output bert --tokenizer wordpiece --vocab vocab.txt "
     "--lowercase true --split-sentences", "bert_text_sentence.{bin,idx}"),
    ("what is in a dataset", "inspect text_text_document", "169"),
    ("join datasets", "preprocess merge --output joined text_text_document lines_body_document", "joined"),
    ("check a deck", "pretrain {tiny} --check", "no errors; ranks: 1, iterations: 20, vocabulary: 257"),
    ("a deck with doubts", "pretrain {tiny} --check schedule.peak=5 train.iterations=100k batch.global=16 --ranks 16",
     "schedule.peak = 5 diverges with optimizer.type = adamw"),
    ("a timeline after the end", "pretrain {tiny} --check log.trace.iterations=[100-102]",
     "log.trace.iterations begins at iteration 100, but the run ends at 20"),
    ("spikes of a short run", "pretrain {tiny} --check train.spike.above=6", "train.spike begins at iteration 129, but the run ends at 20"),
    ("its memory on 8 ranks", "pretrain {tiny} --plan --ranks 8 --memory 1gib", "verdict    fits"),
    ("all keys", "pretrain {tiny} --print-deck", "# default"),
    ("one value", "pretrain {tiny} --print-value schedule.peak", "0.003"),
    ("the key of a word", "pretrain --help lr", "lr is 'schedule.peak' here"),
    ("another trainer's word", ["pretrain", "--help", "activation checkpointing"], "is 'recompute.granularity' here"),
    ("a word that is not there", "pretrain --help wandb", "not supported: metrics.jsonl"),
    ("the key of a value", "pretrain --help cosine", "schedule.type=cosine"),
    ("another trainer's value", "pretrain --help bfloat16", "precision.compute=bf16"),
    ("another trainer's key that is not needed", "pretrain --help num_workers", "num_workers: not needed: a thread prepares"),
    ("a model's part", "pretrain --help rope_theta", "is 'model.position.theta' here"),
    ("units in a deck", "pretrain {tiny} --check schedule.warmup=5% train.iterations=0.02k train.exit_duration=1:30:00",
     "iterations: 20,"),
    ("train", "pretrain {tiny} --output first", "stopped after iteration 20: finished (exit code 0)"),
    ("train on my tokenizer", "pretrain {own} --output own-run", "finished (exit code 0)"),
    ("go on with it", "pretrain {tiny} --output first train.iterations=24", "restart    from first/checkpoints/step-00000020.h5"),
    ("how to make it longer", "pretrain {tiny} --output first train.iterations=25",
     "data.train=text_text_document --output first train.iterations=50"),
    ("quietly", "pretrain {tiny} --output first train.iterations=26 --quiet", ""),
    ("on two ranks", "2 pretrain {tiny} --output two parallel.tensor=2", "ranks      2 = tensor 2 x pipeline 1 x data 1"),
    ("on another layout", "2 pretrain {tiny} --output two parallel.pipeline=2 train.iterations=22",
     "restart    changed: parallel.tensor: 2 in the checkpoint, 1 now"),
    ("within a time", "2 pretrain {tiny} --output late train.iterations=10k --time-limit 3s", "continue   mpirun", STOPPED_EARLY),
    ("evaluate", "evaluate {tiny} --output first --split valid", "perplexity"),
    ("its n-gram baselines", "evaluate {tiny} --task ngram", "unigram"),
    ("generate", "generate --checkpoint first --prompt The --tokens 8 --greedy", "The"),
    ("from my tokenizer", "generate --checkpoint own-run --prompt The --tokens 8 --greedy", "The"),
    ("its tensors", "inspect first/checkpoints/step-00000020.h5", "every checksum is right"),
    ("a run folder's newest checkpoint", "inspect first", "every checksum is right"),
    ("where its time went", "report goodput first", "goodput "),
    ("how it goes", "report follow first", "iteration 26 of 26 (100.0 %)"),
    ("whether it had an error", "report follow first --once", "no error      yes  1 file read"),
    ("compare runs", "report summary first two", "two"),
    ("what differs", "report diff first two", "parallel.pipeline", 1),
    ("a picture", "report plot first two -o loss.svg", "loss.svg: "),
    ("a page", "report html first two -o page.html", "page.html"),
    ("a table of values", "report export first --csv", "first,train,26,"),
    ("to Hugging Face", "convert hf first hf", "hf: "),
    ("and back", "convert hf hf back.h5 --write-deck back.yaml", "back.h5: "),
    ("a script of Megatron-LM", "convert flags script.sh --define NNODES=2", "layers: 4"),
    ("a job", "pretrain {inputs}/gpt2-1.5b.yaml --print-job slurm --nodes 2 --account physics --qos long --option=--exclusive",
     "#SBATCH --qos=long"),
    ("a sweep's runs", "sweep status {inputs}/sweeps/learning-rate.yaml run.output=sweep data.train=text_text_document", "8 runs"),
    ("the best layout", "plan {inputs}/gpt2-xl-a10x32.yaml --cluster {inputs}/clusters/a10x32.yaml data.tokenizer.vocab={gpt2}/vocab.json "
     "data.tokenizer.merges={gpt2}/merges.txt --top 3", "0-11-8-8-8-8-5-0"),
    ("the simulated step", "plan {inputs}/gpt2-345m-pipeline.yaml run.device=cuda --cluster {inputs}/clusters/h200x4.yaml --top 1 "
     "--timeline first/trace.json", "interleaved 3"),
    ("its table", "report trace first", "forward-compute"),
    ("what took how long", "inspect text_text_document --verbose", "exit code 0 after"),
]

TYPED = "pretrain {tiny} --check "
# The command, the exit code, and what the message has to name.
MISTAKES = [
    # keys and values
    (TYPED + "modle.layers=5", DECK, "unknown key 'modle.layers' — did you mean 'model.layers'?"),
    (TYPED + "layers=5", DECK, "did you mean 'model.layers' or 'recompute.layers'?"),
    (TYPED + "optimizer.lr=1", DECK, "did you mean 'schedule.peak'?"),
    (TYPED + "lr=1", DECK, "did you mean 'schedule.peak'?"),
    (TYPED + "learning_rate=1", DECK, "did you mean 'schedule.peak'?"),
    (TYPED + "schedule.warmup_steps=10", DECK, "did you mean 'schedule.warmup'?"),
    (TYPED + "precision.compute=bfloat16", DECK, "precision.compute = bfloat16: allowed are fp32, bf16, fp16 — did you mean 'bf16'?"),
    (TYPED + "model.family=mixtral", DECK, "model.family = mixtral: allowed are gpt, bert, llama"),
    (TYPED + "data.tokenizer.type=huggingface", DECK, "did you mean 'bpe'?"),
    (TYPED + "parallel.tensor=3", DECK, "parallel.tensor = 3 does not divide model.heads = 4 (try 1, 2 or 4)"),
    (TYPED + "train.iterations=ten", DECK, "train.iterations = ten: expected a whole number"),
    (TYPED + "train.iterations=10 --set train.samples=5", DECK, "train.samples"),
    (TYPED + "schedule.warmup=2000", DECK, "is not shorter than schedule.decay"),
    (TYPED + "schedule.warmup=soon", DECK, "schedule.warmup = soon: expected a number and its unit (iterations, samples, or a fraction below 1)"),
    (TYPED + "batch.global=7 batch.micro=2", DECK, "batch.global = 7 is not a multiple of batch.micro"),
    (TYPED + "recompute.layers=2", DECK, "recompute.layers"),
    (TYPED + "parallel.zero=4", DECK, "parallel.zero = 4: must be from 0 to 3"),
    (TYPED + "precision.compute=fp8", DECK, "('fp8' is a value of precision.gemm)"),
    (TYPED + "schedule.type=wordpiece", DECK, "('wordpiece' is a value of data.tokenizer.type)"),
    (TYPED + "other.yaml", DECK, "'other.yaml' is a second deck: one is read"),
    (["pretrain", *TINY, "--check", "data={train: text_text_document, split: 969,30,1}"], DECK, 'needs quotes: split: "969,30,1"'),
    (TYPED + "optimizer.decay.matrix=0", DECK, "unknown key 'optimizer.decay.matrix' — did you mean 'matrices'?"),
    (TYPED + "checkpoint.compression=10", DECK, "checkpoint.compression = 10: must be from 1 to 9"),
    (TYPED + "train.spike.back=2", DECK, "'train.spike.back' needs 'train.spike.above'; leave it out"),
    (TYPED + "train.spike.above=6 train.spike.back=2", DECK, "'train.spike.back' needs 'checkpoint.every'"),
    (TYPED + "train.spike.above=6 train.spike.back=5 checkpoint.keep=3 checkpoint.every=5", DECK, "(try checkpoint.keep: 5)"),
    (TYPED + "checkpoint.local.every=5", DECK, "checkpoint.local.every without checkpoint.local.path; give both or none"),
    (TYPED + "train.verify.inject=bits", DECK, "train.verify.inject = bits: expected weights, gradients, activations or messages"),
    (["pretrain", *TINY, "--check", "evaluate.tasks={name: lambada, file: x, every: 0}"], DECK, "`every` = 0 of a task must be at least 1"),
    (TYPED + "model.window=8", DECK, "'model.window' needs model.family = llama, but it is gpt"),
    (TYPED + "model.mup.base_head=8", DECK, "'model.mup.base_head' needs 'model.mup.base'"),
    (TYPED + "optimizer.muon.scale=spectral", DECK, "optimizer.type = adamw has no use for 'optimizer.muon.scale'"),
    (TYPED + "schedule.wsd.decay=2", DECK, "'schedule.wsd.decay' needs schedule.type = wsd, but it is cosine"),
    (TYPED + "recompute.offload=true", DECK, "'recompute.offload' needs recompute.granularity = full, but it is none"),
    (TYPED + "parallel.partition=1-4 parallel.pipeline=2", DECK, "has 5 layers, but model.layers = 4 (try 2-2)"),
    (TYPED + "parallel.data=2 --ranks 1", DECK, "= 2, but 1 rank was started (try data: 1, or 2 ranks)"),
    (TYPED + "model.layers:4", DECK, "an override is written key=value: model.layers=4"),
    (TYPED + "schedule.peak=0,003", DECK, "expected a number, with a decimal point: 0.003"),
    (TYPED + "log.timers=Yes", DECK, "expected true or false — did you mean 'true'?"),
    (TYPED + "schedule=", DECK, "--set schedule=: missing key 'schedule.peak'"),
    (TYPED + "--memory 10MiB", DECK, "--check: does not fit: the rank needs"),
    # files
    ("pretrain {root}/README.md --check", DECK, "README.md: not a deck, which is a YAML file such as inputs/quickstart.yaml"),
    ("pretrain script.sh --check", DECK, "'trireme-convert flags script.sh' makes one of a launch script"),
    ("pretrain text.txt --check", DECK, "text.txt: not a deck, which is a YAML file"),
    ("pretrain first --check", IO, "'first' is a run folder: its deck is 'first/deck.yaml'"),
    ("plan {inputs}/gpt2-1.5b.yaml --cluster text.txt", DECK, "text.txt: not a cluster file, which is a YAML file"),
    ("pretrain nowhere.yaml", IO, "cannot open 'nowhere.yaml'"),
    ("pretrain {inputs}/quickstart.yml", IO, "did you mean '{inputs}/quickstart.yaml'?"),
    ("pretrain {inputs}", IO, "'{inputs}' is a folder: name a file in it"),
    ("plan {inputs}/gpt2-1.5b.yaml --cluster {inputs}/clusters", IO, "clusters' is a folder: name a file in it"),
    ("bench step {inputs}", IO, "is a folder: name a file in it"),
    (TYPED + "data.train=text.txt", DATA, "data.train: 'text.txt' is not an indexed dataset"),
    ("pretrain {own} --check data.tokenizer.model={here}", IO, "data.tokenizer.model: '{here}' is a folder"),
    ("pretrain model.layers=2", USAGE, "the deck comes first, then 'model.layers=2'"),
    (TYPED + "data.train=text", IO, "data.train, the prefix of a dataset that trireme-preprocess writes: cannot open 'text.idx'"),
    (TYPED + "data.train=text", IO, "did you mean 'text_text_document'?"),
    ("pretrain {own} --check data.tokenizer.model=lost.model", IO, "data.tokenizer.model: there is no file 'lost.model' in '{here}'"),
    ("pretrain {own} --check data.tokenizer.model={gpt2}/vocab.json", DATA, "not a SentencePiece model"),
    ("pretrain {own} --check data.train=gpt2_text_document", DECK, "was made with the tokenizer gpt2 of 50257 ids"),
    ("pretrain {gpt} --check data.train=text_text_document", DECK, "was made with the tokenizer bytes of 257 ids"),
    (TYPED + "model.vocab=100", DECK, "model.vocab = 100 is smaller than the 257 ids of data.tokenizer"),
    (TYPED + "checkpoint.load=lost", IO, "there is no checkpoint 'lost': name a run folder, or a file such as"),
    (TYPED + "checkpoint.load=text.txt.h5", DATA, "'text.txt.h5' is not a readable checkpoint: it is no HDF5 file"),
    (TYPED + "checkpoint.load=first model.layers=2", DECK, "model.layers"),
    ("preprocess --input {here} --output x --tokenizer bytes", IO, "is a folder; name the files in it"),
    ("preprocess --input a.parquet --output x --tokenizer bytes", DATA, "a Parquet file; write its column of texts as JSON lines"),
    ("preprocess --input a.pdf --output x --tokenizer bytes", DATA, "a PDF; extract its text first"),
    ("preprocess --input utf16.txt --output x --tokenizer bytes", DATA, "UTF-16; convert it: iconv"),
    ("preprocess text.txt --output x --tokenizer bytes", USAGE, "'text.txt' is a file: give it as --input text.txt"),
    ("preprocess --input text.txt --output x --tokenizer bytes --workers 0", USAGE, "--workers 0: must be at least 1"),
    ("preprocess --input lost.txt --output x --tokenizer bytes", IO, "cannot open 'lost.txt'"),
    ("preprocess --input lines.jsonl --output x --tokenizer bytes", DATA, "lines.jsonl:1: there is no key 'text'"),
    ("preprocess --input {root}/LICENSE --output x --tokenizer bytes", DATA,
     "LICENSE:1: not a JSON object; if each line is a document of plain text: --format text"),
    ("preprocess --input text.txt --output x --tokenizer gpt", USAGE, "unknown tokenizer 'gpt'"),
    ("preprocess --input text.txt --output x --tokenizer gpt", USAGE, "did you mean 'gpt2'?"),
    ("preprocess --input text.txt --output x --tokenizer gpt2 --vocab tokenizer.json --merges {gpt2}/merges.txt", DATA,
     "give it as model to the type bpe"),
    ("tokenizer train --input text.txt --output x.model --size 10", DATA, "10 pieces is too small"),
    ("inspect text.txt.h5", DATA, "'text.txt.h5' is not a readable checkpoint: it is no HDF5 file"),
    ("generate --checkpoint text.txt.h5 --prompt a", DATA, "it is no HDF5 file"),
    ("generate --checkpoint lost --prompt a", IO, "there is no checkpoint 'lost': name a run folder"),
    ("inspect text", IO, "did you mean 'text_text_document'?"),
    ("evaluate {tiny} --output first model.layers=2", DECK,
     "model.layers = 2, but the checkpoint was written with 4; it must stay that"),
    ("report summary lost", IO, "lost"),
    ("report goodput {inputs}", IO, "is no run folder: it has no metrics.jsonl"),
    ("pretrain {tiny} --output first --restart latset", USAGE, "neither latest, never nor a path; did you mean 'latest'?"),
    ("generate first --prompt a", USAGE, "'first' belongs to no option; did you mean --checkpoint first?"),
    ("convert hf lost x.h5", IO, "lost"),
    ("convert flags unset.sh", FINISHED, "--nnodes ${{NNODES}}; give --define NAME=VALUE, or --ranks N"),
    ("plan {inputs}/gpt2-1.5b.yaml --cluster h200", IO, "there is no cluster file 'h200': inputs/clusters has some"),
    ("plan {inputs}/gpt2-1.5b.yaml", USAGE, "--cluster FILE is missing, such as inputs/clusters/"),
    ("pretrain {here} --print-job slurm", IO, "is a folder: name a file in it"),
    (TYPED + "--restart lost.h5", IO, "there is no checkpoint 'lost.h5'"),
    ("tokenizer train --input text.txt --output x.model --size 100k", DATA, "this corpus gives at most"),
    # commands and options
    (TYPED + "--restart", USAGE, "--restart needs a value: latest|never|PATH"),
    (TYPED + "--max-restarts 3", USAGE, "--max-restarts belongs to --supervise"),
    ("pretrain {tiny} --print-value model", USAGE, "'model' is a section: name one of its keys"),
    ("pretrain --chek", USAGE, "unrecognised option '--chek'; did you mean '--check'?"),
    ("pretrain {tiny} --check --lr 1", USAGE, "unrecognised option '--lr'; did you mean schedule.peak=VALUE?"),
    ("pretrain {tiny} --check --tensor-model-parallel-size 2", USAGE, "did you mean parallel.tensor=VALUE?"),
    ("pretrain {tiny} --check --model.layers 2", USAGE, "did you mean model.layers=VALUE?"),
    ("pretrain {tiny} -n 4", USAGE, "a launcher starts ranks: mpirun -n N"),
    ("report sumary", USAGE, "did you mean 'summary'?"),
    ("bench stp", USAGE, "did you mean 'step'?"),
    ("bench", USAGE, "expected a command: burn-in, comm, gemm, generate, kernels, profile, step"),
    ("sweep tabel {inputs}/sweeps/learning-rate.yaml", USAGE, "'tabel' is neither a deck nor run, status or table; did you mean 'table'?"),
    ("tokenizer train --input text.txt --output x --size 1q", USAGE, "--size 1q: expected a whole number, such as 2000 or 2k"),
    ("generate --checkpoint first --prompt a --top-p much", USAGE, "--top-p much: expected a number, such as 0.9"),
    ("pretrain {tiny} --plan --memory 80", USAGE, "--memory 80: expected a size, such as 80GiB"),
    (TYPED + "--time-limit soon", USAGE, "--time-limit soon: expected a time, such as 90min"),
    ("pretrain {tiny} --ranks 2", USAGE, "a launcher starts ranks: mpirun -n 2"),
    ("pretrain {inputs}/gpt2-1.5b.yaml --print-job slurm --option exclusive", USAGE, "--option exclusive: expected one of sbatch's options"),
    ("pretrain {inputs}/gpt2-1.5b.yaml --print-job slurm --nodes 1 --memory 4GB", DECK, "does not fit: the rank with the highest peak memory, of stage 0, needs"),
    ("pretrain {tiny} --output big model.hidden=16384 model.layers=48", FAILED, "shard the model over more ranks"),
    ("2 pretrain {tiny} --output x modle.layers=5", DECK, "(mpirun's lines below only repeat exit code 78"),
]


def words_of(command):
    """Program, words, ranks."""
    if isinstance(command, list):
        return command[0], [str(word) for word in command[1:]], 1
    gpt = [*TINY, "data.tokenizer.type=gpt2", f"data.tokenizer.vocab={GPT2}/vocab.json", f"data.tokenizer.merges={GPT2}/merges.txt"]
    words = []
    for word in command.split():
        if word in ("{tiny}", "{own}", "{gpt}"):
            words += map(str, {"{tiny}": TINY, "{own}": OWN, "{gpt}": gpt}[word])
        else:
            words.append(word.format(inputs=INPUTS, gpt2=GPT2, here=FOLDER, root=ROOT))
    ranks = int(words.pop(0)) if words[0].isdigit() else 1
    return words[0], words[1:], ranks


def play(command):
    program, words, ranks = words_of(command)
    return run(f"trireme-{program}", *words, ranks=ranks)


def setUpModule():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    os.chdir(FOLDER)
    shutil.copy(ROOT / "LICENSE", "text.txt")
    shutil.copy(ROOT / "LICENSE", "text.txt.h5")
    with open("lines.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"body": text}) + "\n" for text in ("one two", "three"))
    with open("a.parquet", "wb") as file:
        file.write(b"PAR1\x15\x04\x00")
    with open("a.pdf", "wb") as file:
        file.write(b"%PDF-1.7\n")
    with open("utf16.txt", "w", encoding="utf-16") as file:
        file.write("one two\n")
    flags = ("--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 1 "
             f"--global-batch-size 16 --lr 1e-3 --train-iters 10 --data-path x --vocab-file {GPT2}/vocab.json --merge-file {GPT2}/merges.txt")
    for name in ("script.sh", "unset.sh"):
        with open(name, "w", encoding="utf-8") as file:
            file.write(f"torchrun --nnodes ${{NNODES}} --nproc_per_node 8 pretrain_gpt.py {flags}\n")


class Newcomer(RunTest):
    def test_tasks_end_in_a_result(self):
        for what, command, text, *code in TASKS:
            with self.subTest(what):
                result = play(command)
                self.assertEqual(result.code, code[0] if code else FINISHED, f"{what}: {result}")
                if text:
                    self.assertIn(text, result.out + result.err, f"{what}: {result}")
                else:
                    self.assertEqual(result.out, "", f"{what}: {result}")
        # In this order, since the mistakes are made with the files of the tasks.
        for command, code, text in MISTAKES:
            with self.subTest(command):
                result = play(command)
                self.assertEqual(result.code, code, f"{command}: {result}")
                self.assertIn(text.format(here=FOLDER, inputs=INPUTS), result.err, f"{command}: {result}")
                for name in ("H5F", "boost", "ParseFromArray", "std::"):
                    self.assertNotIn(name, result.err, "a library's own words")

    @unittest.skipIf(os.path.exists("/dev/nvidia0"), "this machine has a GPU")
    def test_the_quickstart_compiles_cuda_only_for_gpus(self):
        tree, fakes = self.folder / "tree", self.folder / "bin"
        shutil.copytree(ROOT / "jobs/local", tree / "jobs/local")
        for path, script in [(tree / "cmake/dependencies.sh", ""), (fakes / "cmake", f'echo "$@" >>{self.folder}/log'),
                             (fakes / "nvcc", ""), (fakes / "nvidia-smi", 'exit "$NO_GPU"')]:
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"#!/bin/sh\n{script}\n")
            path.chmod(0o755)
        for words, no_gpu, choice in [([], "9", "OFF"), (["--cuda"], "9", "ON"), ([], "0", "AUTO")]:
            (self.folder / "log").unlink(missing_ok=True)
            environment = {**os.environ, "PATH": f"{fakes}:/usr/bin:/bin", "NO_GPU": no_gpu, "CORPUS": str(FOLDER / "text.txt")}
            subprocess.run([tree / "jobs/local/quickstart.sh", *words], env=environment, capture_output=True, check=False, timeout=PATIENCE)
            configured, built = (self.folder / "log").read_text().splitlines()[:2]
            self.assertIn(f"-DTRIREME_CUDA={choice} ", configured)
            self.assertIn("trireme-pretrain", built)

    def test_help_is_never_wider_than_the_terminal(self):
        pretrain = [["trireme-pretrain", "--help", *words] for words in ([], ["deck"], ["deck.recompute.granularity"], ["wandb"], ["lr"])]
        for words in [*pretrain, *([path.name, "--help"] for path in BIN.glob("trireme-*"))]:
            for columns in (50, 72):
                primary, secondary = pty.openpty()
                fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
                with subprocess.Popen([BIN / words[0], *words[1:]], stdout=secondary):
                    os.close(secondary)
                    text = b""
                    try:
                        while part := os.read(primary, 1 << 16):
                            text += part
                    except OSError:  # the program has closed its end
                        pass
                os.close(primary)
                lines = text.decode().splitlines()
                self.assertTrue(lines, words)
                self.assertLessEqual(max(map(len, lines)), columns, "\n".join(lines))
        for program in sorted(BIN.glob("trireme-*")):
            lines = run(program.name, "--help").out.splitlines()
            self.assertLessEqual(max(map(len, lines)), 100, program)

    def test_every_program_takes_quiet_and_verbose(self):
        for program in sorted(path.name for path in BIN.glob("trireme-*") if path.name != "trireme-bench"):
            listed = run(program, "--help").out
            self.assertIn("--quiet", listed, program)
            self.assertIn("--verbose", listed, program)
        for command in ("burn-in", "comm", "gemm", "generate", "kernels", "profile", "step"):
            self.assertIn("--quiet", run("trireme-bench", command, "--help").out, command)

    def test_profilers_start_the_program_again(self):
        """--profile runs each rank under Nsight, here a script that writes its words down."""
        tool = self.folder / "bin/nsys"
        tool.parent.mkdir()
        tool.write_text(f'#!/bin/bash\necho "$*" >{self.folder}/words\nwhile [[ $1 == profile || $1 == -* ]]; do shift; done\n'
                        '[[ $* == *run.device=cuda* ]] || exec "$@"\n')
        tool.chmod(0o755)
        shutil.copy(tool, tool.parent / "ncu")
        with unittest.mock.patch.dict(os.environ, PATH=f"{tool.parent}:{os.environ['PATH']}"):
            result = self.pretrain("run", "train.iterations=2", "--profile", "nsys", *SMALL)
            self.assertIn("stopped after iteration 2: finished", result.out)
            words = (self.folder / "words").read_text()
            self.assertTrue(words.startswith("profile --trace=cuda,nvtx,mpi --output=") and "/run/profile/nsys-%h-%p " in words, words)
            for name, expected in [("nsys", "--capture-range=nvtx --nvtx-capture=profile --capture-range-end=stop"),
                                   ("ncu", "--nvtx --nvtx-include profile/ --export=")]:
                self.pretrain("run", "run.device=cuda", "--profile", name, "--iterations", "3-4")
                self.assertIn(expected, (self.folder / "words").read_text())
        printed = run("trireme-pretrain", INPUTS / "gpt2-1.5b.yaml", "--print-job", "slurm", "--profile", "nsys", "--iterations", "10-12")
        self.assertRegex(printed.out, r"--profile=nsys[ \\\n]+--iterations=10-12")
        shutil.rmtree(self.folder / "run")
        for words, message in [(["--profile", "perf"], "--profile perf: expected nsys or ncu"),
                               (["--iterations", "1-2"], "--iterations belongs to --profile"),
                               (["--profile", "nsys", "--iterations", "x"], "--iterations x: expected the first and the last one"),
                               (["--profile", "nsys", "--iterations", "1-2"], "but run.device is host")]:
            self.fails(USAGE, message, *words)

    def test_a_run_is_stopped_and_resumed(self):
        words = [*self.deck_words("stopped", "train.iterations=10k", "log.every=1"), *SMALL]
        with Started(command_line("trireme-pretrain", *words)) as started:
            self.wait_until(lambda: len(self.events("stopped", "train")) > 2, started)
            started.process.send_signal(signal.SIGUSR1)
            result = started.finish()
        self.assertEqual(result.code, STOPPED_EARLY, result)
        self.assertIn("continue   ", result.out)
        done = len(self.losses("stopped"))
        again = self.pretrain("stopped", f"train.iterations={done + 1}", "log.every=1", *SMALL)
        self.assertIn("restart    from ", again.out)
        self.assertEqual(len(self.losses("stopped")), done + 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
