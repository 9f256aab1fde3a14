#!/usr/bin/env python3
"""Compares models that trireme-convert hf has written with what transformers computes of them.

Trains a tiny model of each family for a few iterations on the host, exports it, loads the folder with transformers, and
compares: BERT's losses of masked words and of sentence pairs on TFRecords with those of trireme-evaluate; of decoders
the greedy tokens with those of trireme-generate. Then the folder that transformers saves again goes back, and must
give the same weights. Needs torch, transformers and numpy; not part of the test suite.

    python3 tests/convert/check_transformers.py --bin build/release/bin [bert gpt llama qwen3 qwen2 olmo2 ...]

With --tokens N it compares N greedy tokens in fp32 of models of transformers' own shapes with random weights (GPT-2 124M
and a Llama of sixteen layers) instead, computed on --device by both:

    python3 tests/convert/check_transformers.py --bin build/release/bin --tokens 512 --device cuda
"""
import argparse
import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import torch
import transformers

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "apps" / "bench"))
from bert_against_pytorch import write_records  # noqa: E402

TINY = ("batch: {micro: 2, global: 4}\nschedule: {peak: 3e-3}\ntrain: {iterations: 12}\ncheckpoint: {at_end: true}\n"
        "evaluate: {at_end: false}\nlog: {tensorboard: {enable: false}}\nrun: {device: host}\n")
LLAMA = ("family: llama, layers: 3, hidden: 48, heads: 6, kv_heads: 2, ffn: 80, sequence: 64, init_std: 0.2, "
         "dropout: {attention: 0, hidden: 0}")
MODELS = {
    "bert": "family: bert, layers: 2, hidden: 64, heads: 2, sequence: 64, vocab: 2000, bert: {post_norm: true}",
    "megatron-bert": "family: bert, layers: 2, hidden: 64, heads: 2, sequence: 64, vocab: 2000, bert: {post_norm: false}",
    "gpt": "layers: 3, hidden: 48, heads: 6, sequence: 64, init_std: 0.2",
    "llama": LLAMA + ", tie_embeddings: false, position: {theta: 5e5, scaling: llama3, factor: 8, original: 16}",
    "llama-yarn": LLAMA + ", tie_embeddings: true, position: {theta: 1e4, scaling: yarn, factor: 4, original: 16}",
    "qwen2": LLAMA + ", tie_embeddings: true, bias: qkv, layernorm_eps: 1e-6",
    "qwen3": LLAMA + ", tie_embeddings: true, qk_norm: head, head_dim: 16",
    "olmo2": LLAMA + ", tie_embeddings: false, qk_norm: width, norm_placement: output",
}


def run(program, *words):
    done = subprocess.run([BIN / program, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{program} {' '.join(map(str, words))}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def fields(data):
    """The fields of a protobuf message: (number, value)."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        size = varint()
        yield key >> 3, data[at:at + size]
        at += size


def read_records(path):
    """tf.train.Example records as dicts of lists of integers."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        example = {}
        for _, entry in fields(dict(fields(data[at + 12:at + 12 + size]))[1]):
            parts = dict(fields(entry))
            kind, content = next(iter(fields(parts[2])))
            values, value, shift = [], 0, 0
            for byte in dict(fields(content))[1] if kind == 3 else b"":
                value |= (byte & 127) << shift
                shift += 7
                if byte < 128:
                    values.append(value)
                    value = shift = 0
            example[parts[1].decode()] = values
        yield example
        at += 16 + size


def bert_losses(kind, folder, records):
    model = kind.from_pretrained(folder).eval()
    lm, sentence, count = 0.0, 0.0, 0
    for example in read_records(records):
        def tensor(name, example=example):
            return torch.tensor([example[name]])
        with torch.no_grad():
            out = model(tensor("input_ids"), tensor("input_mask"), tensor("segment_ids"))
        logits = out.prediction_logits[0, example["masked_lm_positions"]].double()
        lm += torch.nn.functional.cross_entropy(logits, tensor("masked_lm_ids")[0]).item()
        sentence += torch.nn.functional.cross_entropy(out.seq_relationship_logits.double(),
                                                      tensor("next_sentence_labels")[0]).item()
        count += 1
    return lm / count, sentence / count


def check(name, model, folder):
    deck, text = folder / "deck.yaml", folder / "text.txt"
    text.write_bytes((ROOT / "LICENSE").read_bytes())
    if "bert" in name:
        records = folder / "a.tfrecord"
        write_records(records, sequence=64, predictions=9, count=32, least=20, vocabulary=2000)
        data = f"data: {{train: {records}, valid: {records}, bert: {{dialect: tfrecord, max_predictions: 9}}}}\n"
    else:
        run("trireme-preprocess", "--input", text, "--output", folder / "d", "--tokenizer", "bytes", "--quiet")
        data = f"data: {{train: {folder / 'd_text_document'}, split: [1, 0, 0], tokenizer: {{type: bytes}}}}\n"
    deck.write_text(f"model: {{{model}}}\n{data}" + TINY.replace("device: host", f"device: host, output: {folder / 'run'}"))
    run("trireme-pretrain", deck)
    print(run("trireme-convert", "hf", folder / "run", folder / "hf").splitlines()[0])
    if "bert" in name:
        kind = transformers.BertForPreTraining if name == "bert" else transformers.MegatronBertForPreTraining
        ours = json.loads(run("trireme-evaluate", deck, "--split", "valid", "--json"))
        theirs = bert_losses(kind, folder / "hf", records)
        error = max(abs(ours["loss"] - theirs[0]), abs(ours["sentence_loss"] - theirs[1]))
        print(f"  losses {ours['loss']:.6f} {ours['sentence_loss']:.6f}, transformers {theirs[0]:.6f} {theirs[1]:.6f}")
        good = error < 1e-4
    else:
        kind = transformers.AutoModelForCausalLM
        theirs, good = kind.from_pretrained(folder / "hf").eval(), True
        for prompt in ["Licensed under", "(c) You must", "the Work"]:
            ours = json.loads(run("trireme-generate", "--checkpoint", folder / "run", "--prompt", prompt, "--greedy",
                                  "--tokens", 24, "--json"))["tokens"]
            ids = torch.tensor([list(prompt.encode())])
            with torch.no_grad():
                found = theirs.generate(ids, max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
            found = found[0, ids.shape[1]:].tolist()
            good = good and ours == found[:len(ours)]
            print(f"  {'equal' if ours == found[:len(ours)] else f'DIFFERENT {ours} {found}'}: {len(ours)} tokens")
    kind.from_pretrained(folder / "hf").save_pretrained(folder / "again")
    run("trireme-convert", "hf", folder / "again", folder / "back.h5")
    weights = [{tensor["name"]: tensor["checksum"] for tensor in json.loads(run("trireme-inspect", path, "--json"))["tensors"]
                if tensor["name"].startswith("model/")}
               for path in (next((folder / "run" / "checkpoints").glob("step-*.h5")), folder / "back.h5")]
    print(f"{name}: {'equal' if good else 'DIFFERENT'}; there and back: {'equal' if weights[0] == weights[1] else 'DIFFERENT'}")
    return good and weights[0] == weights[1]


def large_models():
    """Models whose weights are wide enough for texts without loops, by name."""
    torch.manual_seed(7)
    gpt2 = transformers.GPT2Config(vocab_size=257, initializer_range=0.08, bos_token_id=0, eos_token_id=0)
    yield "gpt2-124m", transformers.GPT2LMHeadModel(gpt2)
    llama = transformers.LlamaConfig(vocab_size=257, hidden_size=512, intermediate_size=1408, num_hidden_layers=16,
                                     num_attention_heads=8, num_key_value_heads=2, max_position_embeddings=1024,
                                     initializer_range=0.08, bos_token_id=0, eos_token_id=0)
    yield "llama", transformers.LlamaForCausalLM(llama)


END = 256  # of a text, with the tokenizer of bytes
TIE = 1e-4  # of logits of about 10: what fp32 sums of other orders differ by


def shortfall(model, prompt, tokens):
    """How far the logit of a token is below the largest of its position, at most, in fp64."""
    ids = torch.cat([prompt, torch.tensor([tokens], device=prompt.device)], dim=1)
    with torch.no_grad():
        logits = model.double()(ids[:, :-1]).logits[0, prompt.shape[1] - 1:]
    model.float()
    return (logits.max(dim=1).values - logits.gather(1, ids[0, prompt.shape[1]:, None])[:, 0]).max().item()


def check_long(name, theirs, folder, tokens, device):
    """Whether each greedy token of two texts is the most likely one to transformers as well, ties apart."""
    theirs.eval().save_pretrained(folder / "hf")
    run("trireme-convert", "hf", folder / "hf", folder / "model.h5")
    theirs.to(device)
    good = True
    for prompt in ["Licensed under", "(c) You must retain the above notice"]:
        ours = json.loads(run("trireme-generate", "--checkpoint", folder / "model.h5", "--prompt", prompt, "--greedy",
                              "--tokens", tokens, "--precision", "fp32", "--device", "host" if device == "cpu" else device,
                              "--tokenizer", "bytes", "--json"))["tokens"]
        ids = torch.tensor([list(prompt.encode())], device=device)
        with torch.no_grad():
            found = theirs.generate(ids, max_new_tokens=tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
        found = found[0, ids.shape[1]:].tolist()
        if len(ours) < tokens:  # trireme-generate ends a text there
            ours.append(END)
        same = next((i for i, pair in enumerate(zip(ours, found)) if pair[0] != pair[1]), min(len(ours), len(found)))
        short = shortfall(theirs, ids, ours)
        good = good and short < TIE
        print(f"{name}: {same} of {len(ours)} tokens are equal, {len(set(found))} of them different; in fp64 no token is more "
              f"than {short:.1e} below the largest logit")
    return good


def main():
    global BIN
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--tokens", type=int, help="compare this many greedy tokens of larger models")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="with --tokens")
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; default: all")
    words = parser.parse_args()
    BIN = words.bin.resolve()
    bad = []
    for name, model in large_models() if words.tokens else []:
        with tempfile.TemporaryDirectory() as folder:
            if not check_long(name, model, pathlib.Path(folder), words.tokens, words.device):
                bad.append(name)
    for name in [] if words.tokens else words.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            if not check(name, MODELS[name], pathlib.Path(folder)):
                bad.append(name)
    sys.exit(f"different: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
