#!/usr/bin/env python3
"""Compares Trireme's BERT with transformers' BertForPreTraining and MegatronBertForPreTraining, on the host in fp32.

For each model with random weights: transformers saves it; trireme-convert hf imports it and writes a deck; with that deck
one step of SGD on every layout, on TFRecords with padding and two types of tokens, must have transformers' two losses
and gradients of all weights (the momentum is the gradient); so must trireme-evaluate's losses be; the weights go back
to transformers, and from there again, bit for bit. Needs torch, transformers, h5py and numpy; not part of the test suite.

    python3 tests/convert/compare_bert.py --bin build/release/bin [--layouts 1,1 2,1 1,2] [base megatron ...]
"""
import argparse
import json
import pathlib
import sys
import tempfile

import check_transformers
import compare_transformers as common
import h5py
import numpy
import torch
import transformers as tf
from bert_against_pytorch import write_records

VOCABULARY = 1201  # above the special ids of write_records; no number of ranks divides it
SAMPLES = 4
SAME_LOSS, SAME_GRADIENT = 1e-6, 1e-4  # relative; of gradients, of the norm
PRE, POST = tf.MegatronBertForPreTraining, tf.BertForPreTraining

SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
         "max_position_embeddings": 64, "initializer_range": 0.1, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0}
# Class, what differs from SHAPE, tokens of a sample, labels of a sample, shortest sample (None: no padding).
MODELS = {
    "base": (POST, {}, 64, 9, 20),
    "full": (POST, {}, 64, 10, None),
    "wide": (POST, {"intermediate_size": 104, "num_attention_heads": 2, "layer_norm_eps": 1e-5}, 64, 9, 16),
    "positions": (POST, {"max_position_embeddings": 128}, 49, 7, 12),
    "many-heads": (POST, {"hidden_size": 48, "num_attention_heads": 8, "num_hidden_layers": 2}, 64, 5, 10),
    "megatron": (PRE, {}, 64, 9, 20),
    "megatron-positions": (PRE, {"max_position_embeddings": 128, "num_attention_heads": 8}, 49, 7, 12),
}


def make_model(name):
    kind, keys, *_ = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    config = (tf.BertConfig if kind is POST else tf.MegatronBertConfig)(**{**SHAPE, **keys})
    model = kind._from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():  # biases and norms, too, so that every mistake shows
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn_like(weight))
    return model


def losses(model, examples):
    """Of a micro-batch: the mean of all labels, and of all sentence pairs."""
    def tensor(name):
        return torch.tensor([example[name] for example in examples])
    out = model(tensor("input_ids"), tensor("input_mask"), tensor("segment_ids"))
    places = tensor("masked_lm_positions")
    logits = out.prediction_logits.gather(1, places[..., None].expand(-1, -1, VOCABULARY)).double()
    cross_entropy = torch.nn.functional.cross_entropy
    return (cross_entropy(logits.flatten(0, 1), tensor("masked_lm_ids").flatten()),
            cross_entropy(out.seq_relationship_logits.double(), tensor("next_sentence_labels").flatten()))


def gradients_of(model):
    """transformers' gradients under Trireme's names."""
    theirs = {name: weight.grad.numpy() for name, weight in model.named_parameters()}
    ours = {}

    def take(name, *parts):
        if all(part in theirs for part in parts):
            ours[name] = numpy.concatenate([theirs.pop(part) for part in parts])

    def take_both(name, *parts):
        for kind in ("weight", "bias"):
            take(f"{name}/{kind}", *(f"{part}.{kind}" for part in parts))

    for ours_name, name in [("word", "word"), ("position", "position"), ("token_type", "token_type")]:
        take("embedding/" + ours_name, f"bert.embeddings.{name}_embeddings.weight")
    take("head/weight", "cls.predictions.decoder.weight")
    take("head/bias", "cls.predictions.bias" if "cls.predictions.bias" in theirs else "cls.predictions.decoder.bias")
    for ours_name, name in [("embedding/norm", "bert.embeddings.LayerNorm"), ("final_norm", "bert.encoder.ln"),
                            ("masked_lm/dense", "cls.predictions.transform.dense"), ("pooler", "bert.pooler.dense"),
                            ("masked_lm/norm", "cls.predictions.transform.LayerNorm"), ("sentence", "cls.seq_relationship")]:
        take_both(ours_name, name)
    for i in range(model.config.num_hidden_layers):
        layer, bert = f"layers/{i}/", f"bert.encoder.layer.{i}."
        take_both(layer + "attention/qkv", *(f"{bert}attention.self.{part}" for part in ("query", "key", "value")))
        for ours_name, name in [("attention/projection", "attention.output.dense"), ("mlp/up", "intermediate.dense"),
                                ("mlp/down", "output.dense"), ("norm1", "attention.output.LayerNorm"),
                                ("norm2", "output.LayerNorm"), ("norm1", "attention.ln"), ("norm2", "ln")]:
            take_both(layer + ours_name, bert + name)
    assert not theirs, f"no name for {list(theirs)}"
    return ours


def check_step(model, name, deck, folder, examples, tensor, pipeline, micro):
    model.zero_grad()
    wanted = [0.0, 0.0]
    for first in range(0, SAMPLES, micro):
        both = losses(model, examples[first:first + micro])
        (sum(both) * micro / SAMPLES).backward()
        wanted = [total + loss.item() * micro / SAMPLES for total, loss in zip(wanted, both)]
    gradients = gradients_of(model)
    output = folder / f"run-{tensor}-{pipeline}-{micro}"
    common.run("trireme-pretrain", deck, *data_words(name, folder), f"run.output={output}", "run.device=host",
               f"parallel.tensor={tensor}", f"parallel.pipeline={pipeline}", f"batch.micro={micro}", f"batch.global={SAMPLES}",
               "optimizer={type: sgd, momentum: 0.9, weight_decay: 0, clip: 0}", "schedule={type: constant, peak: 1e-6}",
               "train.iterations=1", "evaluate.at_end=false", "log={every: 1, tensorboard: {enable: false}}",
               ranks=tensor * pipeline)
    events = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    event = next(event for event in events if event["kind"] == "train")
    loss = max(abs(event[key] - value) / value for key, value in zip(("loss", "sentence_loss"), wanted))
    worst, where = 0.0, ""
    with h5py.File(output / "checkpoints/step-00000001.h5") as file:
        held = []
        file["optimizer/m"].visititems(lambda path, item: held.append(path) if isinstance(item, h5py.Dataset) else None)
        if set(held) != set(gradients):
            raise SystemExit(f"{name}: other parameters: {set(held) ^ set(gradients)}")
        for path, gradient in gradients.items():
            found, expected = (common.without_key(path, value) for value in (file["optimizer/m/" + path][()], gradient))
            error = numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected)
            if error > worst:
                worst, where = error, path
    same = loss < SAME_LOSS and worst < SAME_GRADIENT
    print(f"  tensor {tensor}, pipeline {pipeline}, micro-batches of {micro}: losses {loss:.1e}, gradients {worst:.1e} "
          f"({where}){'' if same else ' DIFFERENT'}", flush=True)
    return same


def data_words(name, folder):
    _, _, sequence, labels, _ = MODELS[name]
    return [f"model.sequence={sequence}", f"data.train={folder}/a.tfrecord", f"data.valid={folder}/a.tfrecord",
            f"data.bert={{dialect: tfrecord, max_predictions: {labels}}}"]


def check_evaluation(model, name, deck, checkpoint, folder, examples):
    ours = json.loads(common.run("trireme-evaluate", deck, "--checkpoint", checkpoint, *data_words(name, folder), "run.device=host",
                                 "batch.micro=1", "--split", "valid", "--json"))
    with torch.no_grad():
        each = [[loss.item() for loss in losses(model, [example])] for example in examples]
    error = max(abs(ours[key] - value) / value for key, value in zip(("loss", "sentence_loss"), numpy.mean(each, axis=0)))
    print(f"  evaluation: losses {error:.1e}{'' if error < SAME_LOSS else ' DIFFERENT'}")
    return error < SAME_LOSS


def check_there_and_back(model, name, checkpoint, folder, examples):
    common.run("trireme-convert", "hf", checkpoint, folder / "back", "--shard-size", 0.0002)
    again = MODELS[name][0].from_pretrained(folder / "back", dtype=torch.float32, attn_implementation="eager").eval()
    same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    with torch.no_grad():
        same = same and losses(model, examples) == losses(again, examples)
    common.run("trireme-convert", "hf", folder / "back", folder / "again.h5")
    same = same and common.checksums(checkpoint) == common.checksums(folder / "again.h5")
    print(f"  there and back: {'equal' if same else 'DIFFERENT'}")
    return same


def check(name, folder, layouts):
    print(name, flush=True)
    _, _, sequence, labels, least = MODELS[name]
    model = make_model(name)
    write_records(folder / "a.tfrecord", sequence, labels, SAMPLES, least, VOCABULARY)
    examples = list(check_transformers.read_records(folder / "a.tfrecord"))
    model.save_pretrained(folder / "hf", max_shard_size="200KB")
    checkpoint, deck = folder / "model.h5", folder / "deck.yaml"
    common.run("trireme-convert", "hf", folder / "hf", checkpoint, "--write-deck", deck)
    good = True
    for tensor, pipeline in layouts:
        for micro in (1, SAMPLES):
            good = check_step(model, name, deck, folder, examples, tensor, pipeline, micro) and good
    good = check_evaluation(model, name, deck, checkpoint, folder, examples) and good
    return check_there_and_back(model, name, checkpoint, folder, examples) and good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--layouts", nargs="+", default=["1,1", "2,1", "1,2"], metavar="TENSOR,PIPELINE")
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; default: all")
    words = parser.parse_args()
    common.BIN = words.bin.resolve()
    layouts = [tuple(map(int, layout.split(","))) for layout in words.layouts]
    bad = []
    for name in words.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            if not check(name, pathlib.Path(folder), layouts):
                bad.append(name)
    sys.exit(f"different: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
