#!/usr/bin/env python3
"""Compares Trireme with models of transformers that have random weights, on the host in fp32.

For each model: transformers saves it in several files; trireme-convert hf imports it and writes a deck; with that deck
one step of SGD on every layout must have transformers' loss and gradients of all weights (the momentum is the gradient);
greedy texts of prompts of several lengths, generated together, must be those of transformers token by token, and the
log-probabilities of the whole vocabulary theirs; the weights go back to transformers, and from there again, bit for bit.
Needs torch, transformers, h5py and numpy; not part of the test suite.

    python3 tests/convert/compare_transformers.py --bin build/release/bin [--layouts 1,1 2,1 4,1 1,2] [--tokens 512] [llama3 qwen3 ...]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import h5py
import numpy
import torch
import transformers as tf

VOCABULARY = 257  # that of bytes and an end of text; no number of ranks divides it
END = VOCABULARY - 1  # trireme-generate ends a text there
SEQUENCE, SAMPLES = 96, 4
PROMPTS = ["The quick brown fox jumps over the lazy dog. " * 3, "(1 + 2) * [x, y]", "Z"]
SAME_LOSS, SAME_GRADIENT, SAME_LOGITS = 1e-6, 1e-4, 1e-5  # relative; of gradients and log-probabilities, of norms
TIE = 1e-4  # between logits of about 10: what sums in another order differ by in fp32

SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 8,
         "max_position_embeddings": 1024, "initializer_range": 0.12, "tie_word_embeddings": False, "bos_token_id": None,
         "eos_token_id": None, "pad_token_id": None}


def rope(kind="default", theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


LLAMA3 = rope("llama3", 5e5, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128)
MODELS = {
    "llama2": (tf.LlamaConfig, {"num_key_value_heads": 8}),
    "llama3": (tf.LlamaConfig, {"num_key_value_heads": 2, **LLAMA3}),
    "llama3.2": (tf.LlamaConfig, {"num_key_value_heads": 4, "tie_word_embeddings": True, **LLAMA3}),
    "one-head": (tf.LlamaConfig, {"num_key_value_heads": 1, **rope(theta=12345.678)}),
    "head-dim": (tf.LlamaConfig, {"num_key_value_heads": 2, "head_dim": 18, "intermediate_size": 104, "hidden_act": "gelu_pytorch_tanh"}),
    "linear": (tf.LlamaConfig, {"num_key_value_heads": 2, **rope("linear", factor=4.0)}),
    "yarn": (tf.LlamaConfig, {"num_key_value_heads": 2, **rope("yarn", factor=4.0, original_max_position_embeddings=160)}),
    "yarn-betas": (tf.Qwen2Config, {"num_key_value_heads": 4, **rope("yarn", 1e6, factor=6.0, beta_fast=20, beta_slow=2,
                                                                    original_max_position_embeddings=100)}),
    "smollm2": (tf.LlamaConfig, {"num_key_value_heads": 4, "tie_word_embeddings": True, **rope(theta=1e5)}),
    "qwen2.5": (tf.Qwen2Config, {"num_key_value_heads": 2, "tie_word_embeddings": True, **rope(theta=1e6)}),
    "qwen2-window": (tf.Qwen2Config, {"num_key_value_heads": 2, "use_sliding_window": True, "sliding_window": 40,
                                      "max_window_layers": 0}),
    "qwen3": (tf.Qwen3Config, {"num_key_value_heads": 4, "head_dim": 24, "tie_word_embeddings": True, **rope(theta=1e6)}),
    "qwen3-one-head": (tf.Qwen3Config, {"num_key_value_heads": 1, "head_dim": 8, **rope(theta=1e6)}),
    "mistral": (tf.MistralConfig, {"num_key_value_heads": 2, "sliding_window": 48}),
    "mistral-v3": (tf.MistralConfig, {"num_key_value_heads": 4, "sliding_window": None, "head_dim": 16, **rope(theta=1e6)}),
    "olmo2": (tf.Olmo2Config, {"num_key_value_heads": 8, **rope(theta=5e5)}),
    "olmo2-grouped": (tf.Olmo2Config, {"num_key_value_heads": 2, **rope(theta=5e5)}),
    "gpt2": (tf.GPT2Config, None),
}


def make_model(name):
    kind, keys = MODELS[name]
    torch.manual_seed(sum(map(ord, name)))
    if keys is None:
        config = kind(vocab_size=VOCABULARY, n_embd=64, n_layer=4, n_head=8, n_positions=1024, initializer_range=0.12,
                      attn_pdrop=0, embd_pdrop=0, resid_pdrop=0, bos_token_id=None, eos_token_id=None)
    else:
        config = kind(**{**SHAPE, **keys})
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():  # biases and norms, too, so that every mistake shows
        for weight in model.parameters():
            if weight.dim() == 1:
                weight.add_(0.1 * torch.randn_like(weight))
        model.get_output_embeddings().weight[END] *= 0.05  # few texts end early
    return model


def run(program, *words, ranks=1):
    command = [str(BIN / program), *map(str, words)]
    if ranks > 1:
        command = ["mpiexec", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


def gradients_of(model):
    """transformers' gradients under Trireme's names."""
    theirs = {name: weight.grad.numpy() for name, weight in model.named_parameters()}
    ours = {}

    def take(name, *parts, transpose=False):
        if all(part in theirs for part in parts):
            arrays = [theirs.pop(part) for part in parts]
            ours[name] = numpy.concatenate([array.T if transpose else array for array in arrays])

    def take_both(name, *parts, transpose=False):
        take(name + "/weight", *(part + ".weight" for part in parts), transpose=transpose)
        take(name + "/bias", *(part + ".bias" for part in parts))

    take("embedding/word", "model.embed_tokens.weight")
    take("embedding/word", "transformer.wte.weight")
    take("embedding/position", "transformer.wpe.weight")
    take_both("final_norm", "model.norm")
    take_both("final_norm", "transformer.ln_f")
    take("head/weight", "lm_head.weight")
    output_norms = model.config.model_type == "olmo2"
    for i in range(model.config.num_hidden_layers):
        layer, llama, gpt = f"layers/{i}/", f"model.layers.{i}.", f"transformer.h.{i}."
        take_both(layer + "attention/qkv", *(f"{llama}self_attn.{part}_proj" for part in "qkv"))
        for part in "qk":
            take_both(f"{layer}attention/{part}_norm", f"{llama}self_attn.{part}_norm")
        take_both(layer + "attention/projection", llama + "self_attn.o_proj")
        take_both(layer + "mlp/gate_up", llama + "mlp.gate_proj", llama + "mlp.up_proj")
        take_both(layer + "mlp/down", llama + "mlp.down_proj")
        take_both(layer + "norm1", llama + "input_layernorm")
        take_both(layer + ("output_norm1" if output_norms else "norm2"), llama + "post_attention_layernorm")
        take_both(layer + "output_norm2", llama + "post_feedforward_layernorm")
        for ours_name, name in [("attention/qkv", "attn.c_attn"), ("attention/projection", "attn.c_proj"),
                                ("mlp/up", "mlp.c_fc"), ("mlp/down", "mlp.c_proj")]:
            take_both(layer + ours_name, gpt + name, transpose=True)
        take_both(layer + "norm1", gpt + "ln_1")
        take_both(layer + "norm2", gpt + "ln_2")
    assert not theirs, f"no name for {list(theirs)}"
    return ours


def without_key(name, gradient):
    """A key bias's exact gradient is zero where positions are learned: the softmax does not see it."""
    if not name.endswith("qkv/bias") or gradient.size % 3:
        return gradient
    third = gradient.size // 3
    return numpy.concatenate([gradient[:third], gradient[2 * third:]])


def check_training(model, name, deck, folder, text, layouts):
    ids = torch.tensor([list(text.encode())])
    model.zero_grad()
    loss = 0.0
    for sample in range(SAMPLES):
        part = ids[:, sample * SEQUENCE:(sample + 1) * SEQUENCE + 1]
        logits = model(part[:, :-1]).logits[0].double()
        mean = torch.nn.functional.cross_entropy(logits, part[0, 1:]) / SAMPLES
        mean.backward()
        loss += mean.item()
    wanted = gradients_of(model)
    good = True
    for tensor, pipeline in layouts:
        output = folder / f"run-{tensor}-{pipeline}"
        run("trireme-pretrain", deck, "data.tokenizer={type: bytes}", f"data.train={folder}/t_text_document", "data.split=1,0,0",
            f"run.output={output}", "run.device=host", f"model.sequence={SEQUENCE}", f"parallel.tensor={tensor}",
            f"parallel.pipeline={pipeline}", "batch.micro=1", f"batch.global={SAMPLES}",
            "optimizer={type: sgd, momentum: 0.9, weight_decay: 0, clip: 0}", "schedule={type: constant, peak: 1e-6}",
            "train.iterations=1", "evaluate.at_end=false", "log={every: 1, tensorboard: {enable: false}}", ranks=tensor * pipeline)
        events = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        ours = next(event["loss"] for event in events if event["kind"] == "train")
        worst, where = 0.0, ""
        with h5py.File(output / "checkpoints/step-00000001.h5") as file:
            held = []
            file["optimizer/m"].visititems(lambda path, item: held.append(path) if isinstance(item, h5py.Dataset) else None)
            if set(held) != set(wanted):
                raise SystemExit(f"{name}: other parameters: {set(held) ^ set(wanted)}")
            for path, gradient in wanted.items():
                found, expected = without_key(path, file["optimizer/m/" + path][()]), without_key(path, gradient)
                error = numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected)
                if error > worst:
                    worst, where = error, path
        error = abs(ours - loss) / loss
        same = error < SAME_LOSS and worst < SAME_GRADIENT
        print(f"  tensor {tensor}, pipeline {pipeline}: loss {error:.1e}, gradients {worst:.1e} ({where}){'' if same else ' DIFFERENT'}")
        good = good and same
    return good


def check_texts(model, checkpoint, tokens):
    prompts = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    texts = run("trireme-generate", "--checkpoint", checkpoint, "--tokenizer", "bytes", "--device", "host", "--greedy", "--json",
                "--tokens", tokens, "--logprobs", 20, *prompts).splitlines()
    lengths, equal, error, short = [], [], 0.0, 0.0
    for prompt, line in zip(PROMPTS, texts, strict=True):
        answer = json.loads(line)
        ours, first = answer["tokens"], torch.tensor([list(prompt.encode())])
        if len(ours) < tokens:
            ours.append(END)
        with torch.no_grad():
            theirs = model.generate(first, max_new_tokens=tokens, do_sample=False, eos_token_id=END, pad_token_id=0)
            ids = torch.cat([first, torch.tensor([ours], dtype=torch.long)], dim=1)
            logits = model.double()(ids[:, :-1]).logits[0, first.shape[1] - 1:]
        model.float()
        chosen = logits.gather(1, ids[0, first.shape[1]:, None])[:, 0]
        short = max(short, (logits.max(dim=1).values - chosen).max().item())
        likely = torch.log_softmax(logits, -1)
        for position, entry in enumerate(answer.get("logprobs", [])):
            for choice in entry["top"]:
                error = max(error, abs(choice["logprob"] - likely[position, choice["id"]].item())
                            / likely[position].abs().max().item())
        found = theirs[0, first.shape[1]:].tolist()
        equal.append(next((i for i, pair in enumerate(zip(ours, found)) if pair[0] != pair[1]), min(len(ours), len(found))))
        lengths.append(len(ours))
    good = error < SAME_LOGITS and short < TIE
    print(f"  greedy: {equal} of {lengths} tokens equal, none more than {short:.1e} below the largest logit; "
          f"log-probabilities {error:.1e}{'' if good else ' DIFFERENT'}")
    return good


def checksums(checkpoint):
    tensors = json.loads(run("trireme-inspect", checkpoint, "--json"))["tensors"]
    return {tensor["name"]: tensor["checksum"] for tensor in tensors if tensor["name"].startswith("model/")}


def check_there_and_back(model, checkpoint, folder):
    run("trireme-convert", "hf", checkpoint, folder / "back", "--shard-size", 0.0002)
    again = tf.AutoModelForCausalLM.from_pretrained(folder / "back", dtype=torch.float32, attn_implementation="eager").eval()
    same = all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values(), strict=True))
    ids = torch.arange(200)[None] % VOCABULARY
    with torch.no_grad():
        same = same and torch.equal(model(ids).logits, again(ids).logits)
    run("trireme-convert", "hf", folder / "back", folder / "again.h5")
    same = same and checksums(checkpoint) == checksums(folder / "again.h5")
    # In bf16: what is rounded once is not changed any more.
    model.to(torch.bfloat16).save_pretrained(folder / "bf16")
    model.float()
    run("trireme-convert", "hf", folder / "bf16", folder / "bf16.h5")
    run("trireme-convert", "hf", folder / "bf16.h5", folder / "bf16-back", "--dtype", "bf16")
    half = [tf.AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.bfloat16).state_dict()
            for name in ("bf16", "bf16-back")]
    same = same and all(torch.equal(half[0][key], half[1][key]) for key in half[0])
    print(f"  there and back, fp32 and bf16: {'equal' if same else 'DIFFERENT'}")
    return same


def check(name, folder, layouts, tokens):
    print(name, flush=True)
    model = make_model(name)
    text = "".join(chr(32 + (i * i * 7 + i * 13 + (i >> 3) * 29) % 95) for i in range(SAMPLES * SEQUENCE + 1))
    (folder / "t.jsonl").write_text(json.dumps({"text": text}) + "\n")
    run("trireme-preprocess", "--input", folder / "t.jsonl", "--output", folder / "t", "--tokenizer", "bytes")
    model.save_pretrained(folder / "hf", max_shard_size="200KB")
    checkpoint, deck = folder / "model.h5", folder / "deck.yaml"
    run("trireme-convert", "hf", folder / "hf", checkpoint, "--write-deck", deck)
    good = check_training(model, name, deck, folder, text, layouts)
    good = check_texts(model, checkpoint, tokens) and good
    return check_there_and_back(model, checkpoint, folder) and good


def main():
    global BIN
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--layouts", nargs="+", default=["1,1", "2,1", "4,1", "1,2", "2,2"], metavar="TENSOR,PIPELINE")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("models", nargs="*", help=f"of {', '.join(MODELS)}; default: all")
    words = parser.parse_args()
    BIN = words.bin.resolve()
    layouts = [tuple(map(int, layout.split(","))) for layout in words.layouts]
    bad = []
    for name in words.models or MODELS:
        with tempfile.TemporaryDirectory() as folder:
            if not check(name, pathlib.Path(folder), layouts, words.tokens):
                bad.append(name)
    sys.exit(f"different: {', '.join(bad)}" if bad else 0)


if __name__ == "__main__":
    main()
