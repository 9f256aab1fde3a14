// Network, layout, recomputation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "convert/flags/recipe.hpp"

namespace trireme::convert::flags {

void allow_only(Recipe& recipe, std::string_view name,
                std::initializer_list<std::string_view> harmless, std::string_view message) {
  const Given* given = recipe.flags.find(name);
  if (!given) return;
  if (std::find(harmless.begin(), harmless.end(), given->values[0]) == harmless.end())
    recipe.draft.error(*given, message);
  else
    recipe.draft.leave_out(*given, "is what Trireme does");
}

namespace {

void apply_family(Recipe& recipe) {
  const std::string& program = recipe.program;
  const bool bert = program.find("bert") != std::string::npos;
  if (bert) {
    recipe.draft.set("model.family", "bert", program);
    // Later releases divide the initial output projections by sqrt(2 layers) unasked.
    if (!recipe.is_first_release()) recipe.draft.set("model.bert.deep_init", "true", program);
  }
  for (const std::string_view name :
       {"apply-residual-connection-post-layernorm", "bert-no-binary-head", "deep-init"})
    if (const Given* given = recipe.flags.find(name); given && !bert)
      recipe.draft.error(*given, "is for BERT; remove it");
}

/// muP, whose tuned width is this model's by default.
void apply_mup(Recipe& recipe) {
  const Given* given = recipe.flags.find("use-mup");
  if (!given) {
    for (const std::string_view name :
         {"mup-base-hidden-size", "mup-base-head-dim", "mup-embedding-mult", "mup-output-mult",
          "mup-attn-scale-power"})
      if (const Given* unused = recipe.flags.find(name))
        recipe.draft.leave_out(*unused, "has no effect without --use-mup");
    return;
  }
  const Given* hidden = recipe.flags.find("hidden-size");
  recipe.copy_or("mup-base-hidden-size", "model.mup.base", hidden ? hidden->values[0] : "");
  recipe.copy_or("mup-base-head-dim", "model.mup.base_head", "1");
  recipe.copy_or("mup-embedding-mult", "model.mup.embedding", "");
  for (const std::string_view name : {"mup-output-mult", "mup-attn-scale-power"})
    allow_only(recipe, name, {"1", "1.0"}, "muP's own factor is 1; remove it");
  recipe.draft.note(given->place,
                    "--use-mup: Megatron-LM also scales Adam's epsilon by base / hidden; Trireme "
                    "does not");
}

/// ZeRO's stage of Megatron-Core's FSDP or PyTorch's FSDP2, if the recipe has one.
bool apply_fsdp(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* strategy = recipe.flags.find("data-parallel-sharding-strategy");
  const Given* megatron = recipe.one_of("use-megatron-fsdp", "use-custom-fsdp");
  const Given* torch = recipe.flags.find("use-torch-fsdp2");
  allow_only(recipe, "outer-dp-sharding-strategy", {"no_shard"}, "Trireme has one data group");
  allow_only(recipe, "num-distributed-optimizer-instances", {"1"}, "Trireme has one data group");
  if (strategy && !megatron)
    draft.leave_out(*strategy, "has no effect without --use-megatron-fsdp");
  if (!megatron && !torch) return false;
  if (megatron && torch)
    draft.error(*torch, fmt::format("'{}' shards as well; keep one of the two", megatron->text()));
  if (const Given* sharded = recipe.flags.find("use-distributed-optimizer"))
    draft.leave_out(*sharded, "FSDP shards the optimizer");
  if (!megatron) {
    draft.set("parallel.zero", "3", *torch);
    return true;
  }
  constexpr std::string_view kStages[] = {"no_shard", "optim", "optim_grads", "optim_grads_params"};
  const std::string name = strategy ? strategy->values[0] : "";
  const auto stage = std::ranges::find(kStages, name) - std::begin(kStages);
  if (stage < 4)
    draft.set("parallel.zero", fmt::format("{}", stage), *strategy);
  else
    draft.error(strategy ? *strategy : *megatron,
                "expected --data-parallel-sharding-strategy no_shard, optim, optim_grads or "
                "optim_grads_params");
  return true;
}

void apply_zero(Recipe& recipe) {
  Draft& draft = recipe.draft;
  if (apply_fsdp(recipe)) return;
  const Given* file = recipe.deepspeed ? recipe.json.find("zero_optimization.stage") : nullptr;
  const Given* flag = recipe.flags.find("zero-stage");
  const Given* sharded = recipe.flags.find("use-distributed-optimizer");
  if (file && flag && file->values != flag->values)
    draft.note(flag->place,
               fmt::format("{} wins over {}: DeepSpeed reads the stage from its JSON file",
                           file->text(), flag->text()));
  const Given* stage = file ? file : flag;
  if (sharded && stage)
    draft.error(*sharded, fmt::format("'{}' asks for another ZeRO stage; keep one of the two",
                                      stage->text()));
  else if (sharded)
    draft.set("parallel.zero", "1", *sharded);
  else if (!stage)
    draft.set("parallel.zero", "0", std::string("the recipe has no ZeRO"));
  if (!stage) return;
  if (recipe.deepspeed && recipe.whole(stage).value_or(0) >= 2 && recipe.pipeline() > 1)
    draft.error(*stage, fmt::format("DeepSpeed does not pipeline with ZeRO 2 and 3, but the "
                                    "recipe has {} stages (write stage 1)",
                                    recipe.pipeline()));
  recipe.copy(*stage, "parallel.zero");
}

/// DeepSpeed's pipeline partition: by layers, the deck's default if the stages divide them, or by
/// layers and both embeddings, each counted as a layer.
void apply_partition_method(Recipe& recipe) {
  const Given* given = recipe.flags.find("pp-partition-method");
  if (!given) return;
  std::string method = given->values[0];
  std::transform(method.begin(), method.end(), method.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::int64_t stages = recipe.pipeline();
  const std::int64_t parts = recipe.whole("num-layers").value_or(0) + 2;
  const bool with_embeddings = method == "type:transformer|embedding";
  if (stages == 1) {
    recipe.draft.leave_out(*given, "one stage has all layers");
  } else if (method == "type:transformer" && (parts - 2) % stages == 0) {
    recipe.draft.leave_out(*given, "all stages have the same number of layers");
  } else if (with_embeddings && parts % stages == 0 && parts > stages) {
    std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), parts / stages);
    --layers.front();
    --layers.back();
    recipe.draft.set("parallel.partition", fmt::format("{}", fmt::join(layers, "-")), *given);
  } else {
    recipe.draft.error(
        *given, "has no deck key; give --balance with the layers of each stage, such as 4-5-5-4");
  }
}

/// The layers of the first and last stage; the other stages divide the rest equally.
void apply_end_stages(Recipe& recipe) {
  const Given* first = recipe.flags.find("decoder-first-pipeline-num-layers");
  const Given* last = recipe.flags.find("decoder-last-pipeline-num-layers");
  const Given* given = first ? first : last;
  if (!given) return;
  const std::int64_t stages = recipe.pipeline();
  if (stages == 1) return recipe.draft.leave_out(*given, "one stage has all layers");
  const std::int64_t between = stages - (first ? 1 : 0) - (last ? 1 : 0);
  const std::int64_t all = recipe.whole("num-layers").value_or(0);
  std::int64_t rest = all;
  bool fits = stages <= all + 2;
  for (const Given* end : {first, last}) {
    const std::int64_t count = recipe.whole(end).value_or(0);
    fits = fits && count >= 0 && count <= rest;
    if (fits) rest -= count;
  }
  if (!fits || (between == 0 ? rest != 0 : rest % between != 0)) {
    recipe.draft.error(*given,
                       fmt::format("the {} layers of the other {} stages cannot be divided equally "
                                   "among them",
                                   rest, between));
    return;
  }
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages),
                                   between > 0 ? rest / between : 0);
  if (first) layers.front() = recipe.whole(first).value_or(0);
  if (last) layers.back() = recipe.whole(last).value_or(0);
  recipe.draft.set("parallel.partition", fmt::format("{}", fmt::join(layers, "-")), *given);
}

/// The first and last stage, if the embedding or the head counts as a layer of theirs.
void apply_counted_ends(Recipe& recipe) {
  const Given* embedding = recipe.flags.find("account-for-embedding-in-pipeline-split");
  const Given* loss = recipe.flags.find("account-for-loss-in-pipeline-split");
  const Given* given = embedding ? embedding : loss;
  if (!given) return;
  const std::int64_t stages = recipe.pipeline();
  if (stages == 1) return recipe.draft.leave_out(*given, "one stage has all layers");
  const std::int64_t parts =
      recipe.whole("num-layers").value_or(0) + (embedding ? 1 : 0) + (loss ? 1 : 0);
  if (parts % stages != 0 || recipe.flags.has("num-layers-per-virtual-pipeline-stage") ||
      recipe.flags.has("num-virtual-stages-per-pipeline-rank"))
    return recipe.draft.error(
        *given, fmt::format("{} layers and ends cannot be divided among {} stages without "
                            "interleaving; give --decoder-first-pipeline-num-layers",
                            parts, stages));
  std::vector<std::int64_t> layers(static_cast<std::size_t>(stages), parts / stages);
  if (embedding) --layers.front();
  if (loss) --layers.back();
  recipe.draft.set("parallel.partition", fmt::format("{}", fmt::join(layers, "-")), *given);
}

/// The transformer layers (t) of each stage of "Et*3|(tt|)*2,m|L"; empty for another text.
std::vector<std::int64_t> layers_of(const std::string& layout) {
  // Repetitions are written out, innermost first: "(tt|)*2" and "t*3".
  constexpr std::size_t kMaxLength = 100'000;
  std::string text;
  for (std::size_t i = 0; i < layout.size(); ++i) {
    if (layout[i] == ' ' || layout[i] == ',') continue;
    if (layout[i] != '*') {
      text += layout[i];
      continue;
    }
    std::size_t times = 0, digits = 0;
    for (; i + 1 < layout.size() && std::isdigit(static_cast<unsigned char>(layout[i + 1])) &&
           digits < 6;
         ++i, ++digits)
      times = 10 * times + static_cast<std::size_t>(layout[i + 1] - '0');
    if (text.empty() || times == 0) return {};
    std::string part(1, text.back());
    text.pop_back();
    if (part == ")") {
      const std::size_t open = text.rfind('(');
      if (open == std::string::npos) return {};
      part = text.substr(open + 1);
      text.resize(open);
    }
    if (text.size() + part.size() * times > kMaxLength) return {};
    for (std::size_t n = 0; n < times; ++n) text += part;
  }
  std::vector<std::int64_t> layers{0};
  for (const char c : text) {
    if (c == '|')
      layers.push_back(0);
    else if (c == 't')
      ++layers.back();
    else if (c != 'E' && c != 'L')
      return {};
  }
  return layers;
}

void apply_layout_text(Recipe& recipe) {
  const Given* given = recipe.flags.find("pipeline-model-parallel-layout");
  if (!given) return;
  const std::vector<std::int64_t> layers = layers_of(given->values[0]);
  if (static_cast<std::int64_t>(layers.size()) != recipe.pipeline())
    recipe.draft.error(*given, fmt::format("expected the layers of {} stages, such as Ett|ttt|ttL; "
                                           "interleaved stages have equal numbers of layers: "
                                           "--num-virtual-stages-per-pipeline-rank",
                                           recipe.pipeline()));
  else
    recipe.draft.set("parallel.partition", fmt::format("{}", fmt::join(layers, "-")), *given);
}

/// Interleaving, given in layers per chunk or in chunks per rank.
void apply_interleaving(Recipe& recipe) {
  const Given* layers = recipe.flags.find("num-layers-per-virtual-pipeline-stage");
  const Given* chunks = recipe.one_of("num-virtual-stages-per-pipeline-rank",
                                      "num-layers-per-virtual-pipeline-stage");
  if (const Given* group = recipe.flags.find("microbatch-group-size-per-virtual-pipeline-stage")) {
    if (!chunks || recipe.whole(group).value_or(0) == recipe.pipeline())
      recipe.draft.leave_out(*group, "chunks take turns after as many micro-batches as stages");
    else
      recipe.draft.error(*group, fmt::format("chunks take turns after {} micro-batches, the number "
                                             "of stages; give that or remove it",
                                             recipe.pipeline()));
  }
  if (!chunks) return;
  std::int64_t count = recipe.whole(chunks).value_or(1);
  if (chunks == layers) {
    const std::int64_t all = recipe.whole("num-layers").value_or(0);
    const std::int64_t chunk = recipe.pipeline() * std::max<std::int64_t>(count, 1);
    if (all % chunk != 0) {
      recipe.draft.error(*chunks, fmt::format("--num-layers {} is not a multiple of {} stages * {} "
                                              "layers = {}",
                                              all, recipe.pipeline(), count, chunk));
      return;
    }
    count = all / chunk;
  }
  recipe.draft.set("parallel.schedule", "interleaved", *chunks);
  recipe.draft.set("parallel.interleave", fmt::format("{}", count), *chunks);
}

}  // namespace

void apply_model_rules(Recipe& recipe) {
  apply_family(recipe);
  const bool llama = apply_llama_rules(recipe);
  apply_mup(recipe);
  allow_only(recipe, "context-parallel-size", {"1"},
             "Trireme has no context parallelism; use more tensor ranks");
  allow_only(recipe, "num-experts", {"1"}, kNoExperts);
  allow_only(recipe, "expert-model-parallel-size", {"1"}, "Trireme has no mixture of experts");
  if (const Given* channels = recipe.flags.find("kv-channels"); channels && !llama) {
    const std::int64_t heads = recipe.whole("num-attention-heads").value_or(0);
    const std::int64_t hidden = recipe.whole("hidden-size").value_or(0);
    if (recipe.whole(channels).value_or(0) * heads != hidden)
      recipe.draft.error(*channels,
                         fmt::format("times --num-attention-heads {} is not --hidden-size {}: a "
                                     "head has hidden / heads channels",
                                     heads, hidden));
    else
      recipe.draft.leave_out(*channels, "is hidden / heads");
  }
}

void apply_layout_rules(Recipe& recipe) {
  Draft& draft = recipe.draft;
  if (const Given* given = recipe.one_of("tensor-model-parallel-size", "model-parallel-size"))
    recipe.copy(*given, "parallel.tensor");
  if (const Given* given = recipe.one_of("pipeline-model-parallel-size", "pipe-parallel-size"))
    draft.set("parallel.pipeline", fmt::format("{}", recipe.pipeline()), *given);
  if (const Given* given = recipe.flags.find("balance")) recipe.copy(*given, "parallel.partition");
  apply_partition_method(recipe);
  apply_end_stages(recipe);
  apply_counted_ends(recipe);
  apply_layout_text(recipe);
  apply_interleaving(recipe);
  apply_zero(recipe);
  const std::int64_t model = recipe.tensor() * recipe.pipeline();
  if (recipe.ranks && model > 0 && recipe.ranks->count % model != 0)
    draft.error(recipe.place,
                fmt::format("{} ranks ({}) are not a multiple of tensor * pipeline = {} * {} = {} "
                            "(--ranks N gives another number)",
                            recipe.ranks->count, recipe.ranks->source, recipe.tensor(),
                            recipe.pipeline(), model));
}

void apply_recompute_rules(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Arguments& flags = recipe.flags;
  const Given* old = flags.find("checkpoint-activations");
  const Given* selective = flags.find("recompute-activations");
  const Given* granularity = flags.find("recompute-granularity");
  const Given* method = recipe.one_of("recompute-method", "activations-checkpoint-method");
  if (granularity)
    recipe.copy(*granularity, "recompute.granularity");
  else if (selective)
    draft.set("recompute.granularity", "selective", *selective);
  else if (old || method)
    draft.set("recompute.granularity", "full", old ? *old : *method);
  const Given* chosen = granularity ? granularity : selective;
  if (chosen && (chosen == selective || chosen->values[0] == "selective"))
    draft.note(chosen->place,
               fmt::format("{}: Megatron-LM recomputes the core of attention, whose score matrix "
                           "Trireme never stores; Trireme's selective recomputes layer norms",
                           chosen->text()));
  const bool recomputes = old || selective || granularity || method;
  const bool full = old || method || (granularity && granularity->values[0] == "full");
  const Given* layers = recipe.one_of("recompute-num-layers", "activations-checkpoint-num-layers");
  if (!layers) layers = flags.find("checkpoint-num-layers");
  if (full) {
    if (method)
      recipe.copy(*method, "recompute.method");
    else
      draft.set("recompute.method", "uniform", kMegatronDefault);
    if (layers)
      recipe.copy(*layers, "recompute.layers");
    else
      draft.set("recompute.layers", "1", kMegatronDefault);
  } else if (layers) {
    draft.leave_out(*layers, "has no effect without full recomputation");
  }

  constexpr std::pair<std::string_view, std::string_view> kWhere[] = {
      {"distribute-checkpointed-activations", "recompute.partition"},
      {"distribute-saved-activations", "recompute.partition"},
      {"partition-activations", "recompute.partition"},
      {"checkpoint-in-cpu", "recompute.offload"},
      {"contigious-checkpointing", "recompute.contiguous"}};
  for (const auto& [name, key] : kWhere) {
    const Given* given = flags.find(name);
    if (!given) continue;
    if (!recomputes)
      draft.leave_out(*given, "has no effect without --checkpoint-activations");
    else if (!full)
      draft.leave_out(*given, "has no effect without full recomputation");
    else if (key == "recompute.partition" && recipe.tensor() == 1)
      draft.leave_out(*given, "there is only one tensor rank");
    else if (key == "recompute.partition" && flags.has("sequence-parallel"))
      draft.leave_out(*given, "--sequence-parallel shards these activations already");
    else
      draft.set(key, "true", *given);
  }
  if (const Given* given = flags.find("contigious-checkpointing");
      given && recomputes && !flags.has("partition-activations"))
    draft.error(*given, "DeepSpeed needs --partition-activations with it; give both or none");
}

}  // namespace trireme::convert::flags
