#!/usr/bin/env python3
"""Independent models of the Llama family in NumPy, fp64: writes reference.json next to this script.

The file holds four tiny models with fixed weights under Trireme's names, which together use every option of the
family: llama (untied head, Llama-3 scaling), qwen2 (biases of q, k and v, YaRN), qwen3 (norms of each head) and
olmo2 (norms of the sublayers' outputs and of whole queries and keys); all have two query heads to a key head and heads
that are wider than hidden / heads. For each: logits, loss and the gradient of every weight. All is written from the
formulas; the backward pass is checked here against finite differences and, with --transformers, all against
LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM and Olmo2ForCausalLM of Hugging Face's transformers, in PyTorch.

    python3 make_reference.py [--transformers]
"""
import json
import math
import pathlib
import sys

import numpy as np

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN, SEQUENCE, VOCAB, BATCH = 2, 8, 4, 2, 4, 10, 7, 19, 2
Q, K = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
EPS = 1e-5
IGNORED = -1
MODELS = {
    "llama": {"tied": False, "theta": 50.0, "scaling": {"type": "llama3", "factor": 4, "original": 12, "low": 1, "high": 4}},
    "qwen2": {"tied": True, "theta": 100.0, "bias": True, "scaling": {"type": "yarn", "factor": 4, "original": 6, "low": 0.2, "high": 2}},
    "qwen3": {"tied": True, "theta": 10000.0, "qk_norm": "head"},
    "olmo2": {"tied": False, "theta": 500.0, "qk_norm": "width", "placement": "output"},
}


def make_weights(rng, model):
    """Every weight random, norms and biases too; rounded, so that the file says them exactly."""
    def normal(*shape, mean=0.0, std=0.3):
        return np.round(mean + std * rng.standard_normal(shape), 4)

    output = model.get("placement") == "output"
    w = {"embedding/word": normal(VOCAB, HIDDEN, std=1.0), "final_norm/weight": normal(HIDDEN, mean=1.0)}
    if not model["tied"]:
        w["head/weight"] = normal(VOCAB, HIDDEN)
    for l in range(LAYERS):
        layer = f"layers/{l}/"
        for number in 1, 2:
            w[f"{layer}{'output_' if output else ''}norm{number}/weight"] = normal(HIDDEN, mean=1.0)
        w[layer + "attention/qkv/weight"] = normal(Q + 2 * K, HIDDEN)
        if model.get("bias"):
            w[layer + "attention/qkv/bias"] = normal(Q + 2 * K)
        if "qk_norm" in model:
            whole = model["qk_norm"] == "width"
            w[layer + "attention/q_norm/weight"] = normal(Q if whole else HEAD_DIM, mean=1.0)
            w[layer + "attention/k_norm/weight"] = normal(K if whole else HEAD_DIM, mean=1.0)
        w[layer + "attention/projection/weight"] = normal(HIDDEN, Q)
        w[layer + "mlp/gate_up/weight"] = normal(2 * FFN, HIDDEN)
        w[layer + "mlp/down/weight"] = normal(HIDDEN, FFN)
    return w


# ---- operations: each returns its result and a function from its gradient to its input's. The
# ---- gradients of weights are added to `grad`.


def linear(x, w, grad, name):
    bias = name + "/bias"

    def backward(dy):
        grad[name + "/weight"] += np.einsum("bso,bsi->oi", dy, x)
        if bias in w:
            grad[bias] += dy.sum((0, 1))
        return dy @ w[name + "/weight"]

    return x @ w[name + "/weight"].T + w.get(bias, 0.0), backward


def rms_norm(x, w, grad, name):
    """Over the last axis."""
    rstd = 1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPS)
    normal, weight = x * rstd, w[name + "/weight"]

    def backward(dy):
        grad[name + "/weight"] += (dy * normal).reshape(-1, x.shape[-1]).sum(0)
        g = dy * weight
        return rstd * (g - normal * (g * normal).mean(-1, keepdims=True))

    return normal * weight, backward


def swiglu(x):
    gate, up = np.split(x, 2, axis=-1)
    sigmoid = 1 / (1 + np.exp(-gate))

    def backward(dy):
        return np.concatenate([dy * up * sigmoid * (1 + gate * (1 - sigmoid)), dy * gate * sigmoid], -1)

    return gate * sigmoid * up, backward


def frequencies(model):
    """The angle of each pair of a head per position, and the scale of queries and keys."""
    f = model["theta"] ** (-2.0 * np.arange(HEAD_DIM // 2) / HEAD_DIM)
    scaling = model.get("scaling")
    if scaling is None:
        return f, 1.0
    factor, original, low, high = (scaling[key] for key in ("factor", "original", "low", "high"))
    if scaling["type"] == "llama3":
        wavelength = 2 * math.pi / f
        mix = (original / wavelength - low) / (high - low)
        middle = (1 - mix) * f / factor + mix * f
        return np.where(wavelength < original / high, f, np.where(wavelength > original / low, f / factor, middle)), 1.0

    def pair(turns):
        return HEAD_DIM * math.log(original / (2 * math.pi * turns)) / (2 * math.log(model["theta"]))

    first, last = max(math.floor(pair(high)), 0), min(math.ceil(pair(low)), HEAD_DIM - 1)
    last += 0.001 if first == last else 0
    ramp = np.clip((np.arange(HEAD_DIM // 2) - first) / (last - first), 0, 1)
    return ramp * f / factor + (1 - ramp) * f, 0.1 * math.log(factor) + 1


def rotary(x, model):
    """x [b, s, heads, d]: pairs (x_i, x_{i + d/2}) as complex numbers."""
    f, scale = frequencies(model)
    turn = scale * np.exp(1j * np.arange(SEQUENCE)[:, None] * f)[None, :, None, :]

    def times(x, turn):
        low, high = np.split(x, 2, axis=-1)
        z = (low + 1j * high) * turn
        return np.concatenate([z.real, z.imag], -1)

    return times(x, turn), lambda dy: times(dy, turn.conj())


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attention(q, k, v):
    """q [b, s, HEADS, d], k and v [b, s, KV_HEADS, d]: causal; query head i reads key head i // (HEADS / KV_HEADS)."""
    group = HEADS // KV_HEADS
    q = q.reshape(BATCH, SEQUENCE, KV_HEADS, group, HEAD_DIM)
    scale = 1 / math.sqrt(HEAD_DIM)
    mask = np.where(np.tril(np.ones((SEQUENCE, SEQUENCE), bool)), 0.0, -np.inf)
    p = softmax(np.einsum("bskgd,btkd->bkgst", q, k) * scale + mask)

    def backward(dy):
        dy = dy.reshape(q.shape)
        dp = np.einsum("bskgd,btkd->bkgst", dy, v)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        dq = np.einsum("bkgst,btkd->bskgd", ds, k).reshape(BATCH, SEQUENCE, HEADS, HEAD_DIM)
        return dq, np.einsum("bkgst,bskgd->btkd", ds, q), np.einsum("bkgst,bskgd->btkd", p, dy)

    return np.einsum("bkgst,btkd->bskgd", p, v).reshape(BATCH, SEQUENCE, Q), backward


def heads_of(x):
    return x.reshape(BATCH, SEQUENCE, -1, HEAD_DIM)


def flat(x):
    return x.reshape(BATCH, SEQUENCE, -1)


def self_attention(x, w, grad, layer, model):
    name = layer + "attention/"
    qkv, qkv_backward = linear(x, w, grad, name + "qkv")
    q, k, v = np.split(qkv, [Q, Q + K], axis=-1)
    norm = model.get("qk_norm")
    steps = {}
    parts = {}
    for part, value in (("q", q), ("k", k)):
        norm_backward = lambda dy: dy
        if norm == "width":
            value, norm_backward = rms_norm(value, w, grad, f"{name}{part}_norm")
        value = heads_of(value)
        if norm == "head":
            value, norm_backward = rms_norm(value, w, grad, f"{name}{part}_norm")
        value, turn_back = rotary(value, model)
        parts[part], steps[part] = value, (norm_backward, turn_back)
    out, attention_backward = attention(parts["q"], parts["k"], heads_of(v))
    y, projection_backward = linear(out, w, grad, name + "projection")

    def backward(dy):
        dq, dk, dv = attention_backward(projection_backward(dy))
        gradients = []
        for part, d in (("q", dq), ("k", dk)):
            norm_backward, turn_back = steps[part]
            d = turn_back(d)
            gradients.append(flat(norm_backward(flat(d) if norm == "width" else d)))
        return qkv_backward(np.concatenate([*gradients, flat(dv)], -1))

    return y, backward


def mlp(x, w, grad, layer):
    x, first = linear(x, w, grad, layer + "mlp/gate_up")
    x, middle = swiglu(x)
    x, last = linear(x, w, grad, layer + "mlp/down")
    return x, lambda dy: first(middle(last(dy)))


def run(w, batch, model):
    """Logits [b, s, V], the mean loss and its gradient for each weight."""
    grad = {name: np.zeros_like(value) for name, value in w.items()}
    output = model.get("placement") == "output"
    x = w["embedding/word"][batch["ids"]]
    backwards = []
    for l in range(LAYERS):
        layer = f"layers/{l}/"
        for number, sublayer in ((1, lambda x: self_attention(x, w, grad, layer, model)),
                                 (2, lambda x: mlp(x, w, grad, layer))):
            norm = lambda x: rms_norm(x, w, grad, f"{layer}{'output_' if output else ''}norm{number}")
            y, before = sublayer(x) if output else norm(x)
            y, after = norm(y) if output else sublayer(y)
            x = x + y
            backwards.append((before, after))
    final, final_backward = rms_norm(x, w, grad, "final_norm")
    head = "embedding/word" if model["tied"] else "head/weight"
    logits = final @ w[head].T
    counts = batch["labels"] != IGNORED
    p = softmax(logits)
    picked = np.take_along_axis(p, np.where(counts, batch["labels"], 0)[..., None], -1)[..., 0]
    dlogits = (p - np.eye(VOCAB)[batch["labels"]]) * counts[..., None] / counts.sum()
    grad[head] += np.einsum("bsv,bsh->vh", dlogits, final)
    dx = final_backward(dlogits @ w[head])
    for before, after in reversed(backwards):
        dx = dx + before(after(dx))
    np.add.at(grad["embedding/word"], batch["ids"], dx)
    return {"logits": logits, "loss": -np.log(picked[counts]).mean()}, grad


# ---- the checks


def check_finite_differences(w, batch, model, grad, rng, step=1e-4):
    """Fourth-order central differences along one random direction in each weight tensor."""
    for name in w:
        direction = rng.standard_normal(w[name].shape)
        direction /= np.linalg.norm(direction)

        def loss(t):
            return run({**w, name: w[name] + t * step * direction}, batch, model)[0]["loss"]

        slope = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * step)
        error = abs(slope - (grad[name] * direction).sum())
        assert error < 1e-8, f"{name}: {error}"


def transformers_tensors(values, model):
    """`values` under the names of transformers."""
    output = model.get("placement") == "output"
    result = {"model.embed_tokens.weight": values["embedding/word"], "model.norm.weight": values["final_norm/weight"]}
    if not model["tied"]:
        result["lm_head.weight"] = values["head/weight"]
    for l in range(LAYERS):
        ours, theirs = f"layers/{l}/", f"model.layers.{l}."
        after_attention, after_mlp = "post_attention_layernorm", "post_feedforward_layernorm"
        norms = (after_attention, after_mlp) if output else ("input_layernorm", after_attention)
        for number, norm in enumerate(norms, 1):
            result[f"{theirs}{norm}.weight"] = values[f"{ours}{'output_' if output else ''}norm{number}/weight"]
        for kind in "weight", "bias":
            if f"{ours}attention/qkv/{kind}" in values:
                for part, x in zip("qkv", np.split(values[f"{ours}attention/qkv/{kind}"], [Q, Q + K])):
                    result[f"{theirs}self_attn.{part}_proj.{kind}"] = x
        for part in "qk":
            if f"{ours}attention/{part}_norm/weight" in values:
                result[f"{theirs}self_attn.{part}_norm.weight"] = values[f"{ours}attention/{part}_norm/weight"]
        result[theirs + "self_attn.o_proj.weight"] = values[ours + "attention/projection/weight"]
        gate, up = np.split(values[ours + "mlp/gate_up/weight"], 2)
        result[theirs + "mlp.gate_proj.weight"], result[theirs + "mlp.up_proj.weight"] = gate, up
        result[theirs + "mlp.down_proj.weight"] = values[ours + "mlp/down/weight"]
    return result


def check_transformers(name, w, batch, model, result, grad):
    """Needs PyTorch and transformers."""
    import torch
    import transformers

    kind = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "olmo2": "Olmo2"}[name]
    scaling = model.get("scaling")
    rope = {"rope_type": "default", "rope_theta": model["theta"]}
    if scaling and scaling["type"] == "llama3":
        rope |= {"rope_type": "llama3", "factor": scaling["factor"], "low_freq_factor": scaling["low"],
                 "high_freq_factor": scaling["high"], "original_max_position_embeddings": scaling["original"]}
    elif scaling:
        rope |= {"rope_type": "yarn", "factor": scaling["factor"], "beta_slow": scaling["low"],
                 "beta_fast": scaling["high"], "original_max_position_embeddings": scaling["original"]}
    config = getattr(transformers, kind + "Config")(
        vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, intermediate_size=FFN, rms_norm_eps=EPS,
        tie_word_embeddings=model["tied"], rope_parameters=rope, rope_theta=model["theta"],
        rope_scaling=rope if scaling else None, max_position_embeddings=64, pad_token_id=None, bos_token_id=None,
        eos_token_id=None, attn_implementation="eager")
    network = getattr(transformers, kind + "ForCausalLM")(config).double()
    missing, unexpected = network.load_state_dict(
        {key: torch.tensor(x) for key, x in transformers_tensors(w, model).items()}, strict=False)
    assert not unexpected and all("lm_head" in key and model["tied"] for key in missing), (missing, unexpected)
    network.tie_weights()
    network.train()
    logits = network(input_ids=torch.tensor(batch["ids"])).logits
    loss = torch.nn.functional.cross_entropy(logits.double().flatten(0, 1), torch.tensor(batch["labels"]).flatten(),
                                             ignore_index=IGNORED)
    loss.backward()
    theirs = {key: x.grad.numpy() for key, x in network.named_parameters()}

    def distance(x, y):
        return np.linalg.norm(x - y) / np.linalg.norm(y)

    worst = max(abs(loss.item() - result["loss"]), distance(logits.detach().numpy(), result["logits"]),
                *(distance(theirs[key], x) for key, x in transformers_tensors(grad, model).items()))
    print(f"{name}: largest difference from transformers' {kind}ForCausalLM: {worst:.1e}")
    # transformers computes norms, angles, cosines and sines in fp32.
    assert worst < 1e-5


def main():
    rng = np.random.default_rng(20230227)
    batch = {"ids": rng.integers(0, VOCAB, (BATCH, SEQUENCE)), "labels": rng.integers(0, VOCAB, (BATCH, SEQUENCE))}
    batch["labels"][0, 2] = batch["labels"][1, 5] = IGNORED

    def numbers(x):
        return [float(f"{value:.10e}") for value in np.ravel(x)]

    reference = {
        "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": HEAD_DIM, "ffn": FFN,
        "sequence": SEQUENCE, "vocab": VOCAB, "batch": BATCH, "eps": EPS,
        **{name: x.tolist() for name, x in batch.items()}, "models": {},
    }
    for name, model in MODELS.items():
        w = make_weights(rng, model)
        result, grad = run(w, batch, model)
        check_finite_differences(w, batch, model, grad, rng)
        if "--transformers" in sys.argv:
            check_transformers(name, w, batch, model, result, grad)
        reference["models"][name] = {
            **model, "loss": result["loss"], "logits": numbers(result["logits"]),
            "weights": {weight: x.ravel().tolist() for weight, x in w.items()},
            "gradients": {weight: numbers(x) for weight, x in grad.items()},
        }
    with open(pathlib.Path(__file__).parent / "reference.json", "w") as file:
        json.dump(reference, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
