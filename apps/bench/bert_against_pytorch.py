#!/usr/bin/env python3
"""Steps of BERT pretraining on one GPU: Trireme's, then PyTorch's compiled BertForPreTraining.

Both train the same model with the same micro-batches of random tokens without padding, in bf16 with
dropout 0.1 and AdamW on fp32 master weights, and read 15 % masked tokens' labels. FLOPs are the same
for both: 6 for each weight of a matrix and of the masked-LM head, attention in full.

    python3 apps/bench/bert_against_pytorch.py --bench build/release/bin/trireme-bench [--shapes 512x64,128x256]

Needs PyTorch and transformers for the second half; --only trireme does without. With --gpus N data-parallel
ranks train Trireme's model with the shape's micro-batch on each GPU; PyTorch stays on one.
"""
import argparse
import pathlib
import random
import struct
import tempfile

from pytorch_steps import add_options, measure, print_ratio, pytorch_step, trireme_step

VOCABULARY = 30522
SPECIAL, MASK = 1000, 103  # ids below SPECIAL are not drawn
MAX_RECORDS = 256  # of a data set; larger batches read records several times, in the same time


def crc32c_table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = crc32c_table()


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def feature(name, values):
    """An entry of a tf.train.Features map: int64_list, or float_list for weights."""
    if isinstance(values[0], float):
        kind = message(2, message(1, struct.pack(f"<{len(values)}f", *values)))
    else:
        kind = message(3, message(1, b"".join(map(varint, values))))
    return message(1, message(1, name.encode()) + message(2, kind))


def write_records(path, sequence, predictions, count, least=None, vocabulary=VOCABULARY):
    """`count` examples of create_pretraining_data, of random tokens: full, or of `least` tokens or more."""
    rng = random.Random(1234)
    with open(path, "wb") as file:
        for _ in range(count):
            length = rng.randint(least or sequence, sequence)
            ids = [rng.randrange(SPECIAL, vocabulary) for _ in range(length)] + [0] * (sequence - length)
            middle = length // 2
            ids[0], ids[middle], ids[length - 1] = 101, 102, 102
            places = sorted(rng.sample([i for i in range(1, length - 1) if i != middle], predictions))
            labels = [ids[i] for i in places]
            for i in places:
                ids[i] = MASK
            example = message(1, b"".join([
                feature("input_ids", ids),
                feature("input_mask", [int(i < length) for i in range(sequence)]),
                feature("segment_ids", [int(middle < i < length) for i in range(sequence)]),
                feature("masked_lm_positions", places),
                feature("masked_lm_ids", labels),
                feature("masked_lm_weights", [1.0] * predictions),
                feature("next_sentence_labels", [rng.randrange(2)])]))
            size = struct.pack("<Q", len(example))
            file.write(size + masked_crc(size) + example + masked_crc(example))


DECK = """
run: {{name: bert, device: {device}}}
model:
  family: bert
  layers: {layers}
  hidden: {hidden}
  heads: {heads}
  sequence: {sequence}
  positions: 512
  vocab: {vocabulary}
  dropout: {{attention: {dropout}, hidden: {dropout}}}
  bert: {{post_norm: {post_norm}}}
batch: {{micro: {batch}, global: {total}}}
precision: {{compute: bf16}}
optimizer: {{type: adamw}}
schedule: {{type: linear, peak: 1e-4}}
data:
  train: {records}
  split: [1, 0, 0]
  bert: {{dialect: tfrecord, max_predictions: {predictions}}}
train: {{iterations: 100}}
"""


def run_trireme(options, shape, folder):
    """Milliseconds of a step by trireme-bench step."""
    sequence, batch = shape
    predictions = round(0.15 * sequence)
    records = folder / f"random-{sequence}.tfrecord"
    total = options.gpus * options.micro_batches * batch
    write_records(records, sequence, predictions, min(4 * total, MAX_RECORDS))
    deck = folder / f"bert-{sequence}.yaml"
    deck.write_text(DECK.format(layers=options.layers, hidden=options.hidden, heads=options.heads,
                                sequence=sequence, batch=batch, device=options.device,
                                total=total, vocabulary=VOCABULARY,
                                dropout=options.dropout, records=records, predictions=predictions,
                                post_norm=str(not options.pre_norm).lower()))
    launcher = ["mpirun", "--bind-to", "none", "-n", str(options.gpus)] if options.gpus > 1 else []
    return trireme_step(options, deck, launcher=launcher)


def run_pytorch(options, shape):
    """Milliseconds of a step: forward, backward, AdamW."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    sequence, batch = shape
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=options.hidden,
                        num_hidden_layers=options.layers, num_attention_heads=options.heads,
                        intermediate_size=4 * options.hidden, max_position_embeddings=512,
                        hidden_dropout_prob=options.dropout,
                        attention_probs_dropout_prob=options.dropout)
    model = BertForPreTraining(config).cuda().train()
    ids = torch.randint(SPECIAL, VOCABULARY, (batch, sequence), device="cuda")
    labels = torch.where(torch.rand(batch, sequence, device="cuda") < 0.15, ids, -100)
    types = (torch.arange(sequence, device="cuda") > sequence // 2).long().expand(batch, -1)
    order = torch.randint(0, 2, (batch,), device="cuda")

    @torch.compile
    def loss_of():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(input_ids=ids, token_type_ids=types, labels=labels,
                         next_sentence_label=order).loss

    return pytorch_step(options, model, loss_of, learning_rate=1e-4)


def flops_per_token(options, sequence):
    h, layers = options.hidden, options.layers
    return 6 * (h * h + h * VOCABULARY) + layers * (72 * h * h + 12 * sequence * h)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add_options(parser)
    parser.add_argument("--shapes", default="512x64,128x256", help="sequence x micro-batch, ...")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--gpus", type=int, default=1, help="data-parallel ranks of Trireme")
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda", help="of Trireme's ranks")
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--pre-norm", action="store_true", help="Trireme's norms before the sublayers")
    options = parser.parse_args()
    print(f"{'sequence':>8} {'batch':>6}  {'program':8} {'ms':>8} {'tokens/s':>9} {'TFLOP/s':>8}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for text in options.shapes.split(","):
            shape = tuple(map(int, text.split("x")))
            sequence, batch = shape
            found = measure(options, lambda: run_trireme(options, shape, pathlib.Path(folder)),
                            lambda: run_pytorch(options, shape))
            for program, ms in found.items():
                gpus = options.gpus if program == "Trireme" else 1
                rate = 1e3 * sequence * batch * gpus * options.micro_batches / ms
                print(f"{sequence:8} {batch:6}  {program:8} {ms:8.1f} {rate:9.0f} "
                      f"{rate * flops_per_token(options, sequence) / 1e12:8.1f}", flush=True)
            print_ratio(found, 16)


if __name__ == "__main__":
    main()
