"""Writes a Trireme checkpoint as Megatron-LM and DeepSpeed would, in PyTorch's file formats, without PyTorch.

Formats: Megatron-LM, megatron/checkpointing.py of v1.0 to core_v0.12.0;
DeepSpeed, runtime/engine.py and utils/zero_to_fp32.py.
"""

import io
from collections import OrderedDict

import numpy
from torch_files import (BYTES_STORAGE, Call, INDEX, METADATA, Pickler, save, save_zip, SIZE, STORAGE_INFO, TENSOR_STORAGE)

MODULES = [("norm1", "input_layernorm"), ("attention/qkv", "attention.query_key_value"),
           ("attention/projection", "attention.dense"), ("norm2", "post_attention_layernorm"),
           ("mlp/up", "mlp.dense_h_to_4h"), ("mlp/down", "mlp.dense_4h_to_h")]
CORE_MODULES = [("norm1", "self_attention.linear_qkv.layer_norm_"), ("attention/qkv", "self_attention.linear_qkv."),
                ("attention/projection", "self_attention.linear_proj."), ("norm2", "mlp.linear_fc1.layer_norm_"),
                ("mlp/up", "mlp.linear_fc1."), ("mlp/down", "mlp.linear_fc2.")]
LLAMA_MODULES = [("norm1", "input_norm"), ("attention/qkv", "self_attention.query_key_value"),
                 ("attention/q_norm", "self_attention.q_layernorm"),
                 ("attention/k_norm", "self_attention.k_layernorm"),
                 ("attention/projection", "self_attention.dense"), ("norm2", "post_attention_norm"),
                 ("mlp/gate_up", "mlp.dense_h_to_4h"), ("mlp/down", "mlp.dense_4h_to_h")]
CORE_LLAMA_MODULES = [("norm1", "self_attention.linear_qkv.layer_norm_"), ("attention/qkv", "self_attention.linear_qkv."),
                      ("attention/q_norm", "self_attention.q_layernorm."),
                      ("attention/k_norm", "self_attention.k_layernorm."),
                      ("attention/projection", "self_attention.linear_proj."), ("norm2", "mlp.linear_fc1.layer_norm_"),
                      ("mlp/gate_up", "mlp.linear_fc1."), ("mlp/down", "mlp.linear_fc2.")]


def grouped(array, heads, groups):
    """Rows of q, k and v as Megatron-Core orders them: each group's query heads, its key, its value."""
    size = array.shape[0] // (heads + 2 * groups)
    shape = (groups, -1, size) + array.shape[1:]
    q, k, v = numpy.split(array, [heads * size, (heads + groups) * size])
    return numpy.concatenate([part.reshape(shape) for part in (q, k, v)], axis=1)


def shard(name, array, rank, ranks, heads, version, groups=None):
    """The part of a logical tensor that tensor rank `rank` holds."""
    if "/mlp/gate_up/" in name:
        return numpy.concatenate([numpy.split(part, ranks)[rank] for part in numpy.split(array, 2)])
    if groups and name.startswith("layers/") and "/attention/qkv/" in name:
        # With more ranks than groups a rank has a part of one.
        return numpy.split(grouped(array, heads, groups).reshape((-1,) + array.shape[1:]), ranks)[rank]
    if name.startswith("layers/") and "/attention/qkv/" in name:
        parts = array.reshape((3, heads, array.shape[0] // 3 // heads) + array.shape[1:])
        parts = numpy.split(parts, ranks, axis=1)[rank]
        order = {0: (0, 1, 2), 1: (1, 2, 0)}.get(version, (1, 0, 2)) + tuple(range(3, parts.ndim))
        return parts.transpose(order).reshape((-1,) + array.shape[1:])
    if name in ("embedding/word", "head/bias", "head/weight"):
        rows = -(-array.shape[0] // (8 * ranks)) * 8 * ranks
        padded = numpy.concatenate([array, numpy.full((rows - array.shape[0],) + array.shape[1:], 7, array.dtype)])
        return numpy.split(padded, ranks)[rank]
    if "/mlp/up/" in name:
        return numpy.split(array, ranks)[rank]
    if name.endswith(("projection/weight", "mlp/down/weight")):
        return numpy.split(array, ranks, axis=1)[rank]
    return array


def is_llama(source):
    return "model/layers/0/mlp/gate_up/weight" in source


class Stage:
    """The tensors of a tensor rank and pipeline stage, in the modules' order."""
    def __init__(self, source, layers, first, last, args=None, **how):
        self.source, self.how = source, how
        self.less_one = getattr(args, "apply_layernorm_1p", False)
        if is_llama(source):
            self.how["groups"] = args.num_query_groups
        bert = "model/embedding/token_type" in source
        self.names = [name for name in ("embedding/word", "embedding/position") if first]
        if first and bert:
            self.names.append("embedding/token_type")
        self.names = [name for name in self.names if f"model/{name}" in source]
        for layer in layers:
            for ours, _ in LLAMA_MODULES if is_llama(source) else MODULES:
                self.names += [name for name in (f"layers/{layer}/{ours}/{kind}" for kind in ("weight", "bias"))
                               if f"model/{name}" in source]
        if last:
            self.names += [name for name in ("final_norm/weight", "final_norm/bias", "head/weight")
                           if f"model/{name}" in source]
            if bert:
                self.names += ["pooler/weight", "pooler/bias", "head/bias"]
                self.names += [f"{module}/{kind}" for module in ("masked_lm/dense", "masked_lm/norm", "sentence")
                               for kind in ("weight", "bias")]
            if not first and "head/weight" not in self.names:
                self.names.append("head")

    def array(self, kind, name):
        name = "embedding/word" if name == "head" else name
        array = self.source[f"{kind}/{name}"][()]
        if self.less_one and kind == "model" and "norm" in name and name.endswith("weight"):
            array = array - 1
        return shard(name, array, **self.how)

    def optimizer(self, half):
        """The state dict of Megatron-LM's optimizer: matrices are the first group, vectors the second."""
        groups = [[name for name in self.names if (self.array("model", name).ndim == 2) == matrices]
                  for matrices in (True, False)]
        ordered = groups[0] + groups[1]
        adam = {"state": {i: {"step": int(self.source.attrs["applied_iterations"]),
                              "exp_avg": self.array("optimizer/m", name),
                              "exp_avg_sq": self.array("optimizer/v", name)} for i, name in enumerate(ordered)},
                "param_groups": [{"params": list(range(len(groups[0]))), "lr": 1e-3},
                                 {"params": list(range(len(groups[0]), len(ordered))), "lr": 1e-3}]}
        if not half:
            return adam
        return {"optimizer": adam,
                "grad_scaler": {"scale": numpy.array([4096.0], "float32"), "growth_tracker": 3},
                "fp32_from_fp16_params": [[self.array("model", name) for name in group] for group in groups]}


def bert_heads(stage, core, stored):
    """The state dicts of BERT's pooler, masked-LM head and binary head."""
    pooler, lm_head, binary = OrderedDict(), OrderedDict(), OrderedDict()
    for name in stage.names:
        module, _, kind = name.rpartition("/")
        if module == "pooler":
            pooler["dense." + kind] = stored(name)
        elif module == "sentence":
            binary[kind] = stored(name)
        elif name == "head/bias":
            lm_head["bias"] = stored(name)
        elif module.startswith("masked_lm/"):
            norm = "layer_norm." if core else "layernorm."
            lm_head[("dense." if module.endswith("dense") else norm) + kind] = stored(name)
    return pooler, lm_head, binary


def nested(stage, half, core, first_layer):
    """The state dict of a model."""
    def stored(name):
        array = stage.array("model", name)
        return array.astype("float16") if half else array

    embedding, encoder, head, output = OrderedDict(), OrderedDict(), OrderedDict(), OrderedDict()
    llama = is_llama(stage.source)
    modules = {(False, False): MODULES, (False, True): CORE_MODULES, (True, False): LLAMA_MODULES,
               (True, True): CORE_LLAMA_MODULES}[llama, core]
    for name in stage.names:
        if name == "head/weight":
            output["weight"] = stored(name)
        elif name == "head":
            head["weight"] = stored(name)
        elif name.startswith("embedding/"):
            embedding[{"word": "word_embeddings", "position": "position_embeddings",
                       "token_type": "tokentype_embeddings"}[name[10:]]] = OrderedDict(weight=stored(name))
        elif name.startswith("final_norm/"):
            encoder[("final_norm." if llama and not core else "final_layernorm.") + name[11:]] = stored(name)
        elif name.startswith("layers/"):
            _, layer, *module, kind = name.split("/")
            theirs = dict(modules)["/".join(module)]
            dot = "" if core else "."
            encoder[f"layers.{int(layer) - first_layer}.{theirs}{dot}{kind}"] = stored(name)
    pooler, lm_head, binary = bert_heads(stage, core, stored)
    if core:
        flat = OrderedDict(("embedding." + name + ".weight", value["weight"]) for name, value in embedding.items())
        flat.update(("decoder." + name, value) for name, value in encoder.items())
        if lm_head:
            bias = {"bias": lm_head.pop("bias")}
            for module, part in (("pooler", pooler), ("output_layer", bias), ("lm_head", lm_head),
                                 ("binary_head", binary)):
                flat.update((f"{module}.{name}", value) for name, value in part.items())
        if head or output:
            flat["output_layer.weight"] = (head or output)["weight"]
        flat["decoder.layers.0.self_attention.linear_qkv._extra_state"] = None
        return flat
    state = OrderedDict(language_model=OrderedDict(embedding=embedding, encoder=encoder))
    if output:
        state["language_model"]["output_layer"] = output
    if lm_head:
        state["language_model"]["pooler"] = pooler
        state["lm_head"], state["binary_head"] = lm_head, binary
    if head:
        state["word_embeddings_for_head"] = head
    return state


def megatron(folder, source, args, tensor=1, pipeline=1, chunks=1, version=3.0, half=False, core=False,
             legacy=False):
    """A checkpoint of Megatron-LM; `source` is the HDF5 file of Trireme's, `args` the Namespace."""
    layers, heads = args.num_layers, args.num_attention_heads
    iteration = int(source.attrs["iteration"])
    per_chunk = layers // (pipeline * chunks)
    for stage in range(pipeline):
        for rank in range(tensor):
            state = {"args": args, "iteration": iteration,
                     "rng_state": [{"random_rng_state": (3, tuple(range(5)), None)}]}
            if version:
                state["checkpoint_version"] = version
            everything = []
            for chunk in range(chunks):
                begin = (chunk * pipeline + stage) * per_chunk
                part = Stage(source, range(begin, begin + per_chunk), begin == 0, begin + per_chunk == layers,
                             args, rank=rank, ranks=tensor, heads=heads, version=version)
                state["model" if chunks == 1 else f"model{chunk}"] = nested(part, half, core, begin)
                everything.append(part)
            whole = everything[0]
            whole.names = [name for part in everything for name in part.names]
            state["optimizer"] = whole.optimizer(half)
            state["opt_param_scheduler" if version > 1 else "lr_scheduler"] = (
                {"num_steps": int(source.attrs["applied_samples"])} if version > 1 else
                {"num_iters": int(source.attrs["applied_iterations"])})
            name = f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if pipeline > 1 else "")
            save(folder / f"iter_{iteration:07d}" / name / "model_optim_rng.pt", state, legacy)
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{iteration}")


def instance(kind, **state):
    thing = kind()
    thing.__dict__.update(state)
    return thing


def distributed(folder, source, args, tensor=2, half=True, stacked=True):
    """A checkpoint of Megatron-Core in the format torch_dist: chunks of tensor ranks, in one file."""
    iteration = int(source.attrs["iteration"])
    where = folder / f"iter_{iteration:07d}"
    where.mkdir(parents=True)
    stages = [Stage(source, range(args.num_layers), True, True, args, rank=rank, ranks=tensor,
                    heads=args.num_attention_heads, version=3) for rank in range(tensor)]
    modules = dict(CORE_LLAMA_MODULES if is_llama(source) else CORE_MODULES)
    tensors, places, file = {}, {}, io.BytesIO()

    def core_name(name):
        if name.startswith("embedding/"):
            return f"embedding.{name[10:]}_embeddings.weight", None
        if name.startswith("final_norm/"):
            return "decoder.final_layernorm." + name[11:], None
        if name == "head/weight":
            return "output_layer.weight", None
        _, layer, *module, kind = name.split("/")
        theirs = modules["/".join(module)] + kind
        return f"decoder.layers.{theirs}" if stacked else f"decoder.layers.{layer}.{theirs}", int(layer)

    def put(key, layer, kind, name):
        parts = [stage.array(kind, name) for stage in stages]
        if kind == "model" and half and not key.startswith("optimizer."):
            parts = [part.astype("float16") for part in parts]
        whole = source[f"model/{name}"].shape
        axis = next((axis for axis in range(len(whole))
                     if parts[0].shape[axis] != whole[axis] or name in ("embedding/word", "head/weight")), None)
        shape = list(parts[0].shape)
        if "/mlp/gate_up/" in name:
            # All ranks' gates, then all ranks' other halves, each a chunk (apply_swiglu_sharded_factory).
            axis = 0
            halves = [numpy.split(part, 2) for part in parts]
            parts = [half[i] for i in (0, 1) for half in halves]
        if axis is None:
            parts = parts[:1]
        else:
            shape[axis] = sum(part.shape[axis] for part in parts)
        prefix = (args.num_layers,) if stacked and layer is not None else ()
        tensors[key] = instance(TENSOR_STORAGE, size=Call(SIZE, prefix + tuple(shape)))
        for rank, part in enumerate(parts):
            offsets = [0] * len(shape)
            if axis is not None:
                offsets[axis] = rank * part.shape[axis]
            chunk = io.BytesIO()
            save_zip(chunk, part.reshape((1,) * len(prefix) + part.shape))
            begin = file.tell()
            file.write(chunk.getvalue())
            index = instance(INDEX, fqn=key, index=rank,
                             offset=Call(SIZE, ((layer,) if prefix else ()) + tuple(offsets)))
            places[index] = instance(STORAGE_INFO, relative_path="__0_0.distcp", offset=begin,
                                     length=len(chunk.getvalue()))

    for name in stages[0].names:
        key, layer = core_name(name)
        put(key, layer, "model", name)
        for kind, prefix in [("optimizer/m", "exp_avg"), ("optimizer/v", "exp_avg_sq")] + half * [("model", "fp32_param")]:
            put(f"optimizer.state.{prefix}.{key}", layer, kind, name)
    tensors["decoder.layers.0.self_attention.linear_qkv._extra_state"] = instance(BYTES_STORAGE)
    (where / "__0_0.distcp").write_bytes(file.getvalue())
    with open(where / ".metadata", "wb") as out:
        Pickler(out, False).dump(instance(METADATA, state_dict_metadata=tensors, storage_data=places))
    save(where / "common.pt", {
        "args": args, "iteration": iteration, "checkpoint_version": 3.0,
        "opt_param_scheduler": {"num_steps": int(source.attrs["applied_samples"])},
        "optimizer": {"optimizer": {"param_groups": [{"step": int(source.attrs["applied_iterations"])}]}}})
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{iteration}")


def deepspeed(folder, source, args, data=2, pipeline=False):
    """A checkpoint of Megatron-DeepSpeed with ZeRO stage 1: one tensor rank, `data` data ranks."""
    iteration = int(source.attrs["iteration"])
    stage = Stage(source, range(args.num_layers), True, True, rank=0, ranks=1,
                  heads=args.num_attention_heads, version=3)
    modules = {}

    def place(name):
        if name.startswith("embedding/"):
            return 1, {"word": "word_embeddings", "position": "position_embeddings"}[name[10:]] + ".weight"
        if name.startswith("final_norm/"):
            return args.num_layers + 4, name[11:]
        _, layer, *module, kind = name.split("/")
        return 3 + int(layer), dict(MODULES)["/".join(module)].replace("attention.", "self_attention.", 1) + "." + kind

    shapes, groups = [], []
    for matrices in (True, False):
        names = [name for name in stage.names if (stage.array("model", name).ndim == 2) == matrices]
        shape = OrderedDict()
        for name in names:
            module, tensor = place(name)
            known = (f"tied_modules.embed.{tensor}" if module == 1 else f"{module}.{tensor}") if pipeline else \
                flat_name(name)
            shape[known] = stage.array("model", name).shape
        shapes.append(shape)
        groups.append(names)
    root = {"args": args, "iteration": iteration, "global_steps": iteration, "checkpoint_version": 3.0,
            "param_shapes": shapes, "module": None, "dp_world_size": data}
    where = folder / f"global_step{iteration}"
    for name in stage.names:
        module, tensor = place(name)
        modules.setdefault(module, OrderedDict())[tensor] = stage.array("model", name).astype("float16")
    if pipeline:
        for module, tensors in modules.items():
            save(where / f"layer_{module:02d}-model_00-model_states.pt", tensors)
    else:
        root["module"] = OrderedDict((flat_name(name), stage.array("model", name).astype("float16"))
                                     for name in stage.names)
    save(where / "mp_rank_00_model_states.pt", root)

    def flat(kind, names):
        values = numpy.concatenate([stage.array(kind, name).ravel() for name in names])
        padded = -(-values.size // (2 * data)) * 2 * data
        return numpy.split(numpy.concatenate([values, numpy.full(padded - values.size, 9, "float32")]), data)

    for rank in range(data):
        state = {"single_partition_of_fp32_groups": [flat("model", names)[rank] for names in groups],
                 "base_optimizer_state": {"state": {i: {"step": iteration,
                                                        "exp_avg": flat("optimizer/m", names)[rank],
                                                        "exp_avg_sq": flat("optimizer/v", names)[rank]}
                                                    for i, names in enumerate(groups)}}}
        save(where / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": state})
    (folder / "latest").write_text(where.name)


def universal(folder, source, args, pipeline=False):
    """A universal checkpoint of DeepSpeed: a folder for each parameter, whole, as ds_to_universal.py makes it."""
    iteration = int(source.attrs["iteration"])
    stage = Stage(source, range(args.num_layers), True, True, rank=0, ranks=1,
                  heads=args.num_attention_heads, version=3)
    where = folder / f"global_step{iteration}_universal"
    save(where / "mp_rank_00_model_states.pt",
         {"args": args, "iteration": iteration, "global_steps": iteration, "checkpoint_version": 3.0,
          "module": None, "universal_checkpoint_info": {"universal_checkpoint_version": 0.2}})
    for name in stage.names:
        known = flat_name(name)
        if pipeline and name.startswith("embedding/"):
            known = f"tied_modules.embed.{name[10:]}_embeddings.weight"
        elif pipeline and name.startswith("final_norm/"):
            known = f"{args.num_layers + 4}.{name[11:]}"
        elif pipeline:
            known = f"{3 + int(name.split('/')[1])}." + known.split(".", 4)[4].replace("attention.", "self_attention.", 1)
        for file, kind in [("fp32", "model"), ("exp_avg", "optimizer/m"), ("exp_avg_sq", "optimizer/v")]:
            array = stage.array(kind, name)
            if name == "embedding/word":  # without padding
                array = array[:source[f"model/{name}"].shape[0]]
            save(where / "zero" / known / f"{file}.pt", {"cat_dim": 0, "param": array})
        save(where / "zero" / known / "step.pt", iteration)
    (folder / "latest_universal").write_text(where.name)


def flat_name(name):
    if name.startswith("embedding/"):
        return f"language_model.embedding.{name[10:]}_embeddings.weight"
    if name.startswith("final_norm/"):
        return f"language_model.encoder.final_layernorm.{name[11:]}"
    _, layer, *module, kind = name.split("/")
    return f"language_model.encoder.layers.{layer}.{dict(MODULES)['/'.join(module)]}.{kind}"
