#!/usr/bin/env python3
"""Steps of Llama and Qwen pretraining on one GPU: Trireme's, then PyTorch's compiled models of transformers.

Both train the same model with the same micro-batches of random tokens, in bf16 with AdamW on fp32 master
weights. FLOPs are the same for both: 6 for each weight of a matrix and of the head, causal attention as half,
nothing for the embedding.

    python3 apps/bench/llama_against_pytorch.py --bench build/release/bin/trireme-bench [--shapes qwen2.5-1.5b:1024x8]

Needs PyTorch and transformers for the second half; --only trireme does without.
"""
import argparse
import pathlib
import tempfile

from pytorch_steps import add_options, measure, print_ratio, pytorch_step, trireme_step

# hidden, heads, kv_heads, ffn, layers, vocabulary, theta, tied head, biases of q, k and v
MODELS = {
    "qwen2.5-0.5b": (896, 14, 2, 4864, 24, 151936, 1e6, True, True),
    "qwen2.5-1.5b": (1536, 12, 2, 8960, 28, 151936, 1e6, True, True),
    "qwen2.5-3b": (2048, 16, 2, 11008, 36, 151936, 1e6, True, True),
    "llama-3.2-1b": (2048, 32, 8, 8192, 16, 128256, 5e5, True, False),
    "llama-3.1-8b": (4096, 32, 8, 14336, 32, 128256, 5e5, False, False),
    "llama-3.1-8b-4": (4096, 32, 8, 14336, 4, 128256, 5e5, False, False),  # four layers
}

DECK = """
run: {{name: llama, device: cuda}}
model:
  family: llama
  layers: {layers}
  hidden: {hidden}
  heads: {heads}
  kv_heads: {kv_heads}
  ffn: {ffn}
  sequence: {sequence}
  vocab: {vocabulary}
  bias: {bias}
  tie_embeddings: {tied}
  position: {{theta: {theta}}}
batch: {{micro: {batch}, global: {total}}}
precision: {{compute: bf16, gemm: {gemm}}}
optimizer: {{type: adamw}}
schedule: {{type: constant, peak: 1e-5}}
train: {{iterations: 100}}
"""


def run_trireme(options, name, sequence, batch, folder):
    """Milliseconds of a step by trireme-bench step."""
    hidden, heads, kv_heads, ffn, layers, vocabulary, theta, tied, bias = MODELS[name]
    deck = folder / f"{name}.yaml"
    deck.write_text(DECK.format(layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, ffn=ffn,
                                sequence=sequence, vocabulary=vocabulary, theta=theta,
                                bias="qkv" if bias else "none", tied=str(tied).lower(), batch=batch,
                                total=options.micro_batches * batch,
                                gemm=options.gemm))
    return trireme_step(options, deck, overrides=options.set)


def run_pytorch(options, name, sequence, batch):
    """Milliseconds of a step: forward, backward, AdamW."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

    hidden, heads, kv_heads, ffn, layers, vocabulary, theta, tied, bias = MODELS[name]
    kind, of = (Qwen2Config, Qwen2ForCausalLM) if bias else (LlamaConfig, LlamaForCausalLM)
    config = kind(vocab_size=vocabulary, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
                  num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=sequence,
                  rope_theta=theta, tie_word_embeddings=tied, use_cache=False, attn_implementation="sdpa")
    model = of(config).cuda().train()
    ids = torch.randint(0, vocabulary, (batch, sequence), device="cuda")

    @torch.compile
    def loss_of():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return model(input_ids=ids, labels=ids).loss

    return pytorch_step(options, model, loss_of, learning_rate=1e-5)


def flops_per_token(name, sequence):
    hidden, heads, kv_heads, ffn, layers, vocabulary = MODELS[name][:6]
    head = hidden // heads
    weights = hidden * (2 * hidden + 2 * kv_heads * head + 3 * ffn)
    return 6 * (layers * weights + hidden * vocabulary) + 6 * layers * sequence * hidden


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    add_options(parser)
    parser.add_argument("--shapes", default="qwen2.5-1.5b:1024x8,llama-3.1-8b-4:8192x1",
                        help="model:sequence x micro-batch, ...; models: " + ", ".join(MODELS))
    parser.add_argument("--gemm", default="same", choices=["same", "fp8"], help="Trireme's precision.gemm")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of Trireme's deck")
    options = parser.parse_args()
    print(f"{'model':15} {'sequence':>8} {'batch':>6}  {'program':8} {'ms':>8} {'tokens/s':>9} {'TFLOP/s':>8} "
          f"{'MFU':>6}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for text in options.shapes.split(","):
            name, _, shape = text.partition(":")
            sequence, batch = map(int, shape.split("x"))
            found = measure(options, lambda: run_trireme(options, name, sequence, batch, pathlib.Path(folder)),
                            lambda: run_pytorch(options, name, sequence, batch))
            for program, ms in found.items():
                rate = 1e3 * sequence * batch * options.micro_batches / ms
                tflops = rate * flops_per_token(name, sequence) / 1e12
                print(f"{name:15} {sequence:8} {batch:6}  {program:8} {ms:8.1f} {rate:9.0f} {tflops:8.1f} "
                      f"{tflops / 9.894:5.1f}%", flush=True)
            print_ratio(found, 32)


if __name__ == "__main__":
    main()
