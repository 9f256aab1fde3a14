#!/usr/bin/env python3
"""An independent GPT-2 in NumPy, fp64: writes reference.json next to this script.

The file holds a tiny GPT-2 with fixed weights under GPT-2's own names and shapes (Conv1D weights are
[in, out]), a batch of tokens, and the logits, the mean loss and the gradient of every weight. All is
written from the formulas; the backward pass is checked here against finite differences and, with
--transformers, everything against the GPT-2 of Hugging Face's transformers.

    python3 make_reference.py [--transformers]
"""
import json
import pathlib
import sys

import numpy as np

LAYERS, HIDDEN, HEADS, SEQUENCE, POSITIONS, VOCAB, BATCH = 2, 18, 3, 12, 14, 37, 2
EPS = 1e-5  # of the layer normalisation
IGNORED = -1  # label of a token that does not count


def make_weights(rng):
    """Every weight random, norms and biases too; rounded, so that the file says them exactly."""
    def normal(*shape, mean=0.0, std=0.2):
        return np.round(mean + std * rng.standard_normal(shape), 4)

    w = {"wte": normal(VOCAB, HIDDEN), "wpe": normal(POSITIONS, HIDDEN)}
    for l in range(LAYERS):
        for norm in "ln_1", "ln_2":
            w[f"h.{l}.{norm}.weight"] = normal(HIDDEN, mean=1.0)
            w[f"h.{l}.{norm}.bias"] = normal(HIDDEN)
        for name, inputs, outputs in (("attn.c_attn", HIDDEN, 3 * HIDDEN), ("attn.c_proj", HIDDEN, HIDDEN),
                                      ("mlp.c_fc", HIDDEN, 4 * HIDDEN), ("mlp.c_proj", 4 * HIDDEN, HIDDEN)):
            w[f"h.{l}.{name}.weight"] = normal(inputs, outputs)
            w[f"h.{l}.{name}.bias"] = normal(outputs)
    w["ln_f.weight"] = normal(HIDDEN, mean=1.0)
    w["ln_f.bias"] = normal(HIDDEN)
    return w


# ---- operations: each returns its result and a function from its gradient to its input's. The
# ---- gradients of weights are added to `grad`.


def linear(x, w, grad, name):
    def backward(dy):
        grad[name + ".weight"] += np.einsum("bsi,bso->io", x, dy)
        grad[name + ".bias"] += dy.sum((0, 1))
        return dy @ w[name + ".weight"].T

    return x @ w[name + ".weight"] + w[name + ".bias"], backward


def layernorm(x, w, grad, name):
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    normal = centred * rstd

    def backward(dy):
        grad[name + ".weight"] += (dy * normal).sum((0, 1))
        grad[name + ".bias"] += dy.sum((0, 1))
        d = dy * w[name + ".weight"]
        return rstd * (d - d.mean(-1, keepdims=True) - normal * (d * normal).mean(-1, keepdims=True))

    return normal * w[name + ".weight"] + w[name + ".bias"], backward


def gelu(x):
    c = np.sqrt(2 / np.pi)
    t = np.tanh(c * (x + 0.044715 * x**3))

    def backward(dy):
        return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t**2) * c * (1 + 3 * 0.044715 * x**2))

    return 0.5 * x * (1 + t), backward


def attention(qkv):
    def split(x):  # [b, s, h] -> [b, heads, s, d]
        return x.reshape(BATCH, SEQUENCE, HEADS, -1).transpose(0, 2, 1, 3)

    def merge(x):
        return x.transpose(0, 2, 1, 3).reshape(BATCH, SEQUENCE, HIDDEN)

    q, k, v = (split(x) for x in np.split(qkv, 3, axis=-1))
    scale = 1 / np.sqrt(HIDDEN // HEADS)
    scores = np.where(np.tri(SEQUENCE, dtype=bool), q @ k.swapaxes(-1, -2) * scale, -np.inf)
    p = softmax(scores)

    def backward(dy):
        dy = split(dy)
        dp = dy @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        return np.concatenate([merge(ds @ k), merge(ds.swapaxes(-1, -2) @ q), merge(p.swapaxes(-1, -2) @ dy)], -1)

    return merge(p @ v), backward


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# ---- the model


def run(w, ids, labels):
    """Logits [b, s, V], the mean loss over the labels that count, and the gradient of each weight."""
    grad = {name: np.zeros_like(value) for name, value in w.items()}
    backwards = []  # of the sublayers, in forward order

    x = w["wte"][ids] + w["wpe"][:SEQUENCE]
    for l in range(LAYERS):
        for norm, first, middle, last in (("ln_1", "attn.c_attn", attention, "attn.c_proj"),
                                          ("ln_2", "mlp.c_fc", gelu, "mlp.c_proj")):
            steps = []
            y = x
            for step in (lambda y: layernorm(y, w, grad, f"h.{l}.{norm}"),
                         lambda y: linear(y, w, grad, f"h.{l}.{first}"),
                         middle,
                         lambda y: linear(y, w, grad, f"h.{l}.{last}")):
                y, backward = step(y)
                steps.append(backward)
            x = x + y
            backwards.append(steps)
    final, final_backward = layernorm(x, w, grad, "ln_f")
    logits = final @ w["wte"].T

    counts = labels != IGNORED
    p = softmax(logits)
    picked = np.take_along_axis(p, np.where(counts, labels, 0)[..., None], -1)[..., 0]
    loss = -np.log(picked[counts]).mean()

    dlogits = (p - np.eye(VOCAB)[labels]) * counts[..., None] / counts.sum()
    grad["wte"] += np.einsum("bsv,bsh->vh", dlogits, final)
    dx = final_backward(dlogits @ w["wte"])
    for steps in reversed(backwards):
        dy = dx
        for backward in reversed(steps):
            dy = backward(dy)
        dx = dx + dy
    grad["wpe"][:SEQUENCE] += dx.sum(0)
    np.add.at(grad["wte"], ids, dx)
    return logits, loss, grad


# ---- the checks


def check_finite_differences(w, ids, labels, grad, rng, step=1e-5):
    """Fourth-order central differences along one random direction in each weight tensor."""
    for name in w:
        direction = rng.standard_normal(w[name].shape)
        direction /= np.linalg.norm(direction)

        def loss(t):
            return run({**w, name: w[name] + t * step * direction}, ids, labels)[1]

        slope = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * step)
        error = abs(slope - (grad[name] * direction).sum())
        assert error < 1e-9, f"{name}: {error}"


def check_transformers(w, ids, labels, logits, loss, grad):
    """Needs jax, flax and a version of transformers that has Flax models (4.44, say)."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import jax.numpy as jnp
    from transformers import FlaxGPT2LMHeadModel, GPT2Config

    config = GPT2Config(vocab_size=VOCAB, n_positions=POSITIONS, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS,
                        layer_norm_epsilon=EPS, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = FlaxGPT2LMHeadModel(config, dtype=jnp.float64)

    def flax_parameters(w):
        tree = {}
        for name, x in w.items():
            *path, last = name.split(".")
            if last in ("wte", "wpe"):
                path, last = [last], "embedding"
            elif last == "weight":
                last, x = ("scale", x) if "ln" in path[-1] else ("kernel", x.T)  # Flax's Conv1D is [out, in]
            node = tree
            for key in path:
                node = node.setdefault(key, {})
            node[last] = x
        return {"transformer": tree}

    def mean_loss(w):
        logits = model(ids, params=flax_parameters(w)).logits
        picked = jnp.take_along_axis(jax.nn.log_softmax(logits), labels.clip(0)[..., None], -1)[..., 0]
        return -picked[labels != IGNORED].mean(), logits

    differentiate = jax.value_and_grad(mean_loss, has_aux=True)
    (flax_loss, flax_logits), flax_grad = differentiate({name: jnp.array(x) for name, x in w.items()})
    worst = max(abs(flax_loss - loss), np.abs(flax_logits - logits).max(),
                *(np.abs(flax_grad[name] - grad[name]).max() for name in w))
    print(f"largest difference from transformers' FlaxGPT2LMHeadModel: {worst:.1e}")
    assert worst < 1e-12


def main():
    rng = np.random.default_rng(20190214)
    w = make_weights(rng)
    ids = rng.integers(0, VOCAB, (BATCH, SEQUENCE))
    labels = rng.integers(0, VOCAB, (BATCH, SEQUENCE))
    ids[1, 3] = ids[0, 3] = ids[0, 7]  # a token that appears more than once
    labels[0, 5] = labels[1, 11] = IGNORED
    logits, loss, grad = run(w, ids, labels)
    check_finite_differences(w, ids, labels, grad, rng)
    if "--transformers" in sys.argv:
        check_transformers(w, ids, labels, logits, loss, grad)

    def numbers(x):  # 13 significant digits are enough for a comparison to 1e-10
        return [float(f"{value:.12e}") for value in x.ravel()]

    reference = {
        "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "sequence": SEQUENCE, "positions": POSITIONS,
        "vocab": VOCAB, "batch": BATCH, "layernorm_eps": EPS,
        "ids": ids.tolist(), "labels": labels.tolist(), "loss": loss, "logits": numbers(logits),
        "weights": {name: {"shape": x.shape, "values": x.ravel().tolist()} for name, x in w.items()},
        "gradients": {name: numbers(x) for name, x in grad.items()},
    }
    with open(pathlib.Path(__file__).parent / "reference.json", "w") as file:
        json.dump(reference, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
