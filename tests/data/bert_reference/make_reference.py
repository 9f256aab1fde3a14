#!/usr/bin/env python3
"""An independent BERT in NumPy, fp64: writes reference.json next to this script.

The file holds a tiny BERT with fixed weights under Trireme's names, once with norms after the sublayers (Devlin
et al. 2019) and once before them (Megatron-LM), a batch of padded sentence pairs, and the hidden states, the
masked-LM and sentence losses and the gradient of every weight. All is written from the formulas; the backward
pass is checked here against finite differences and, with --transformers, that with norms after the sublayers
against BertForPreTraining of Hugging Face's transformers, in PyTorch.

    python3 make_reference.py [--transformers]
"""
import json
import math
import pathlib
import sys

import numpy as np

LAYERS, HIDDEN, HEADS, FFN, SEQUENCE, POSITIONS, TYPES, VOCAB, BATCH = 2, 12, 3, 20, 9, 11, 2, 23, 3
EPS = 1e-12  # of the layer normalization
IGNORED = -1  # label of a token or a sample that does not count
LENGTHS = np.array([9, 6, 4])


def make_weights(rng, post_norm):
    """Every weight random, norms and biases too; rounded, so that the file says them exactly."""
    def normal(*shape, mean=0.0, std=0.2):
        return np.round(mean + std * rng.standard_normal(shape), 4)

    w = {}

    def norm(name):
        w[name + "/weight"] = normal(HIDDEN, mean=1.0)
        w[name + "/bias"] = normal(HIDDEN)

    def linear(name, inputs, outputs):
        w[name + "/weight"] = normal(outputs, inputs)
        w[name + "/bias"] = normal(outputs)

    w["embedding/word"] = normal(VOCAB, HIDDEN)
    if post_norm:
        norm("embedding/norm")
    w["embedding/token_type"] = normal(TYPES, HIDDEN)
    w["embedding/position"] = normal(POSITIONS, HIDDEN)
    for l in range(LAYERS):
        norm(f"layers/{l}/norm1")
        linear(f"layers/{l}/attention/qkv", HIDDEN, 3 * HIDDEN)
        linear(f"layers/{l}/attention/projection", HIDDEN, HIDDEN)
        norm(f"layers/{l}/norm2")
        linear(f"layers/{l}/mlp/up", HIDDEN, FFN)
        linear(f"layers/{l}/mlp/down", FFN, HIDDEN)
    if not post_norm:
        norm("final_norm")
    linear("masked_lm/dense", HIDDEN, HIDDEN)
    norm("masked_lm/norm")
    w["head/bias"] = normal(VOCAB)
    linear("pooler", HIDDEN, HIDDEN)
    linear("sentence", HIDDEN, 2)
    return w


# ---- operations: each returns its result and a function from its gradient to its input's. The
# ---- gradients of weights are added to `grad`.


def linear(x, w, grad, name):
    def backward(dy):
        grad[name + "/weight"] += dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])
        grad[name + "/bias"] += dy.reshape(-1, dy.shape[-1]).sum(0)
        return dy @ w[name + "/weight"]

    return x @ w[name + "/weight"].T + w[name + "/bias"], backward


def layernorm(x, w, grad, name):
    centred = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    normal = centred * rstd

    def backward(dy):
        grad[name + "/weight"] += (dy * normal).sum((0, 1))
        grad[name + "/bias"] += dy.sum((0, 1))
        d = dy * w[name + "/weight"]
        return rstd * (d - d.mean(-1, keepdims=True) - normal * (d * normal).mean(-1, keepdims=True))

    return normal * w[name + "/weight"] + w[name + "/bias"], backward


def gelu(x):
    cdf = 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2)))

    def backward(dy):
        return dy * (cdf + x * np.exp(-0.5 * x**2) / np.sqrt(2 * np.pi))

    return x * cdf, backward


def tanh(x):
    y = np.tanh(x)
    return y, lambda dy: dy * (1 - y**2)


def attention(qkv):
    """Every token attends to all tokens of its sample but the padding."""
    def split(x):  # [b, s, h] -> [b, heads, s, d]
        return x.reshape(BATCH, SEQUENCE, HEADS, -1).transpose(0, 2, 1, 3)

    def merge(x):
        return x.transpose(0, 2, 1, 3).reshape(BATCH, SEQUENCE, HIDDEN)

    q, k, v = (split(x) for x in np.split(qkv, 3, axis=-1))
    scale = 1 / np.sqrt(HIDDEN // HEADS)
    is_token = np.arange(SEQUENCE) < LENGTHS[:, None]
    p = softmax(np.where(is_token[:, None, None, :], q @ k.swapaxes(-1, -2) * scale, -np.inf))

    def backward(dy):
        dy = split(dy)
        dp = dy @ v.swapaxes(-1, -2)
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * scale
        return np.concatenate([merge(ds @ k), merge(ds.swapaxes(-1, -2) @ q), merge(p.swapaxes(-1, -2) @ dy)], -1)

    return merge(p @ v), backward


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def cross_entropy(logits, labels):
    """The mean over the labels that count, and its gradient."""
    counts = labels != IGNORED
    p = softmax(logits)
    picked = np.take_along_axis(p, np.where(counts, labels, 0)[..., None], -1)[..., 0]
    gradient = (p - np.eye(logits.shape[-1])[labels]) * counts[..., None] / counts.sum()
    return -np.log(picked[counts]).mean(), gradient


def chain(x, steps):
    """The result of the steps one after the other, and the backward of them all."""
    backwards = []
    for step in steps:
        x, backward = step(x)
        backwards.append(backward)

    def backward_all(dy):
        for backward in reversed(backwards):
            dy = backward(dy)
        return dy

    return x, backward_all


# ---- the model


def run(w, batch, post_norm):
    """Hidden states [b, s, h], logits [b, s, V], both losses and the gradient of their sum for each weight."""
    grad = {name: np.zeros_like(value) for name, value in w.items()}

    def norm(name):
        return lambda x: layernorm(x, w, grad, name)

    def dense(name):
        return lambda x: linear(x, w, grad, name)

    x = w["embedding/word"][batch["ids"]] + w["embedding/token_type"][batch["types"]]
    x = x + w["embedding/position"][:SEQUENCE]
    backwards = []
    if post_norm:
        x, embedding_backward = layernorm(x, w, grad, "embedding/norm")
    for l in range(LAYERS):
        layer = f"layers/{l}"
        sublayers = {
            "norm1": [dense(layer + "/attention/qkv"), attention, dense(layer + "/attention/projection")],
            "norm2": [dense(layer + "/mlp/up"), gelu, dense(layer + "/mlp/down")],
        }
        for which, sublayer in sublayers.items():
            name = f"{layer}/{which}"
            y, backward = chain(x, sublayer if post_norm else [norm(name)] + sublayer)
            x = x + y
            norm_backward = lambda dy: dy
            if post_norm:
                x, norm_backward = layernorm(x, w, grad, name)
            backwards.append((norm_backward, backward))
    hidden_states = x
    final, final_backward = (x, lambda dy: dy) if post_norm else layernorm(x, w, grad, "final_norm")

    transformed, transform_backward = chain(final, [dense("masked_lm/dense"), gelu, norm("masked_lm/norm")])
    logits = transformed @ w["embedding/word"].T + w["head/bias"]
    sentence_logits, sentence_backward = chain(final[:, 0], [dense("pooler"), tanh, dense("sentence")])
    loss, dlogits = cross_entropy(logits, batch["labels"])
    sentence_loss, dsentence = cross_entropy(sentence_logits, batch["sentence_labels"])

    grad["embedding/word"] += np.einsum("bsv,bsh->vh", dlogits, transformed)
    grad["head/bias"] += dlogits.sum((0, 1))
    dfinal = transform_backward(dlogits @ w["embedding/word"])
    dfinal[:, 0] += sentence_backward(dsentence)
    dx = final_backward(dfinal)
    for norm_backward, backward in reversed(backwards):
        dx = norm_backward(dx)
        dx = dx + backward(dx)
    if post_norm:
        dx = embedding_backward(dx)
    grad["embedding/position"][:SEQUENCE] += dx.sum(0)
    np.add.at(grad["embedding/token_type"], batch["types"], dx)
    np.add.at(grad["embedding/word"], batch["ids"], dx)
    return {"hidden_states": hidden_states, "logits": logits, "loss": loss, "sentence_loss": sentence_loss}, grad


# ---- the checks


def check_finite_differences(w, batch, post_norm, grad, rng, step=1e-5):
    """Fourth-order central differences along one random direction in each weight tensor."""
    for name in w:
        direction = rng.standard_normal(w[name].shape)
        direction /= np.linalg.norm(direction)

        def loss(t):
            result, _ = run({**w, name: w[name] + t * step * direction}, batch, post_norm)
            return result["loss"] + result["sentence_loss"]

        slope = (8 * (loss(1) - loss(-1)) - (loss(2) - loss(-2))) / (12 * step)
        error = abs(slope - (grad[name] * direction).sum())
        assert error < 1e-9, f"{name}: {error}"


def transformers_weights(w):
    """The same weights under the names of BertForPreTraining."""
    names = {"embedding/word": "bert.embeddings.word_embeddings.weight",
             "embedding/token_type": "bert.embeddings.token_type_embeddings.weight",
             "embedding/position": "bert.embeddings.position_embeddings.weight", "head/bias": "cls.predictions.bias"}
    modules = {"embedding/norm": "bert.embeddings.LayerNorm", "masked_lm/dense": "cls.predictions.transform.dense",
               "masked_lm/norm": "cls.predictions.transform.LayerNorm", "pooler": "bert.pooler.dense",
               "sentence": "cls.seq_relationship"}
    for l in range(LAYERS):
        theirs = f"bert.encoder.layer.{l}"
        for ours, module in (("norm1", "attention.output.LayerNorm"), ("norm2", "output.LayerNorm"),
                             ("attention/projection", "attention.output.dense"),
                             ("mlp/up", "intermediate.dense"), ("mlp/down", "output.dense")):
            modules[f"layers/{l}/{ours}"] = f"{theirs}.{module}"
    for ours, theirs in modules.items():
        for kind in "weight", "bias":
            names[f"{ours}/{kind}"] = f"{theirs}.{kind}"
    result = {names[name]: x for name, x in w.items() if name in names}
    for l in range(LAYERS):
        for kind in "weight", "bias":
            for part, x in zip(("query", "key", "value"), np.split(w[f"layers/{l}/attention/qkv/{kind}"], 3)):
                result[f"bert.encoder.layer.{l}.attention.self.{part}.{kind}"] = x
    return result


def check_transformers(w, batch, result, grad):
    """Needs PyTorch and transformers."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                        intermediate_size=FFN, hidden_act="gelu", hidden_dropout_prob=0, attention_probs_dropout_prob=0,
                        max_position_embeddings=POSITIONS, type_vocab_size=TYPES, layer_norm_eps=EPS)
    model = BertForPreTraining(config).double()
    missing, unexpected = model.load_state_dict(
        {name: torch.tensor(x) for name, x in transformers_weights(w).items()}, strict=False)
    absent = [name for name in missing if "decoder" not in name and "position_ids" not in name]
    assert not unexpected and not absent, (absent, unexpected)
    model.tie_weights()
    ids, types = torch.tensor(batch["ids"]), torch.tensor(batch["types"])
    labels, sentences = torch.tensor(batch["labels"]), torch.tensor(batch["sentence_labels"])
    mask = torch.arange(SEQUENCE) < torch.tensor(LENGTHS)[:, None]
    out = model(input_ids=ids, token_type_ids=types, attention_mask=mask.long(), output_hidden_states=True)
    ignore = {"ignore_index": IGNORED}
    loss = torch.nn.functional.cross_entropy(out.prediction_logits.flatten(0, 1), labels.flatten(), **ignore)
    sentence_loss = torch.nn.functional.cross_entropy(out.seq_relationship_logits, sentences, **ignore)
    (loss + sentence_loss).backward()
    theirs = {name: x.grad.numpy() for name, x in model.named_parameters()}
    is_token = mask.numpy()
    worst = max(abs(loss.item() - result["loss"]), abs(sentence_loss.item() - result["sentence_loss"]),
                np.abs(out.hidden_states[-1].detach().numpy() - result["hidden_states"])[is_token].max(),
                np.abs(out.prediction_logits.detach().numpy() - result["logits"])[is_token].max(),
                *(np.abs(theirs[name] - x).max() for name, x in transformers_weights(grad).items()))
    print(f"largest difference from transformers' BertForPreTraining: {worst:.1e}")
    assert worst < 1e-12


def main():
    rng = np.random.default_rng(20181011)
    batch = {"ids": rng.integers(0, VOCAB, (BATCH, SEQUENCE)), "labels": rng.integers(0, VOCAB, (BATCH, SEQUENCE))}
    batch["ids"][1, 3] = batch["ids"][0, 3] = batch["ids"][0, 7]  # a token that appears more than once
    positions = np.arange(SEQUENCE)
    batch["types"] = ((positions >= LENGTHS[:, None] // 2) & (positions < LENGTHS[:, None])).astype(int)
    is_predicted = (rng.random((BATCH, SEQUENCE)) < 0.5) & (positions < LENGTHS[:, None])
    batch["labels"][~is_predicted] = IGNORED
    batch["sentence_labels"] = np.array([1, 0, IGNORED])

    def numbers(x):  # 13 significant digits are enough for a comparison to 1e-10
        return [float(f"{value:.12e}") for value in np.ravel(x)]

    reference = {
        "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "ffn": FFN, "sequence": SEQUENCE, "positions": POSITIONS,
        "token_types": TYPES, "vocab": VOCAB, "batch": BATCH, "layernorm_eps": EPS, "lengths": LENGTHS.tolist(),
        **{name: x.tolist() for name, x in batch.items()},
    }
    for name, post_norm in (("post_norm", True), ("pre_norm", False)):
        w = make_weights(rng, post_norm)
        result, grad = run(w, batch, post_norm)
        check_finite_differences(w, batch, post_norm, grad, rng)
        if post_norm and "--transformers" in sys.argv:
            check_transformers(w, batch, result, grad)
        reference[name] = {
            "loss": result["loss"], "sentence_loss": result["sentence_loss"],
            "hidden_states": numbers(result["hidden_states"]), "logits": numbers(result["logits"]),
            "weights": {weight: x.ravel().tolist() for weight, x in w.items()},
            "gradients": {weight: numbers(x) for weight, x in grad.items()},
        }
    with open(pathlib.Path(__file__).parent / "reference.json", "w") as file:
        json.dump(reference, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
