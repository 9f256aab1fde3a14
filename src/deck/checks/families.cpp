// The keys of one family, and what a family has no use for.
#include <fmt/format.h>

#include <string_view>

#include "deck/checks/checks.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"

namespace trireme::deck {

void Checker::bert() {
  if (deck_.model.family != Family::bert) return;
  bert_model();
  bert_samples();
}

void Checker::bert_model() {
  const Model& model = deck_.model;
  require(
      !model.embedding_layernorm, {"model.embedding_layernorm", "model.family"},
      [] {
        return "model.embedding_layernorm = true is for model.family = gpt; BERT with "
               "model.bert.post_norm: true has a norm after the sum of its embeddings";
      },
      Suggestion::leave_out_first);
  require(!model.bert.post_norm.value_or(false) ||
              deck_.recompute.granularity != Granularity::selective,
          {"recompute.granularity", "model.bert.post_norm"}, [] {
            return "recompute.granularity = selective recomputes norms before the sublayers, but "
                   "model.bert.post_norm = true has them after (try recompute.granularity: full, "
                   "or none)";
          });
  const bool deep = model.bert.deep_init.value_or(false);
  require(
      model.init == (deep ? InitScheme::scaled : InitScheme::normal),
      {"model.init", "model.bert.deep_init"}, [&] {
        return fmt::format(
            "model.init = {} contradicts model.bert.deep_init = {}, which decides for BERT (try "
            "model.init = {})",
            name_of(model.init), deep, deep ? "scaled" : "normal");
      });
  require(!model.mup.base, {"model.mup.base", "model.family"}, [] {
    return "model.mup.base needs model.family = gpt or llama: BERT's heads have no muP rules; "
           "leave it out";
  });
  require(deck_.evaluate.tasks.empty(), {"evaluate.tasks", "model.family"}, [] {
    return "evaluate.tasks needs a model that predicts the next token, but model.family = bert; "
           "leave it out";
  });
  constexpr std::int64_t kMinSequence = 5;  // data::kMinBertSequence
  require(model.sequence >= kMinSequence, {"model.sequence"}, [&] {
    return fmt::format(
        "model.sequence = {} is too short for BERT: a sample has [CLS], two [SEP] and a token of "
        "each segment (try 128)",
        model.sequence);
  });
}

void Checker::bert_samples() {
  const BertData& bert = deck_.data.bert;
  // A bad value has been reported, and is unset.
  if (!bert.dialect || !bert.sentence_task || !deck_.model.bert.binary_head) return;
  const BertDialect dialect = *bert.dialect;
  const bool megatron = dialect == BertDialect::megatron;
  const bool records = dialect == BertDialect::tfrecord;
  const auto allow = [&](bool used, std::string_view path) {
    require(
        used || !given_.places.contains(path), {path, "data.bert.dialect"},
        [&] {
          return fmt::format("'{}' has no effect with data.bert.dialect = {}; leave it out", path,
                             name_of(dialect));
        },
        Suggestion::leave_out_first);
  };
  allow(megatron, "data.bert.max_ngram");
  allow(!records, "data.bert.mask_probability");
  allow(!records, "data.bert.short_sequence");
  allow(megatron, "data.index_files");

  const SentenceTask task = *bert.sentence_task;
  const SentenceTask built = megatron ? SentenceTask::order : SentenceTask::next;
  require(task == built || task == SentenceTask::none,
          {"data.bert.sentence_task", "data.bert.dialect"}, [&] {
            return fmt::format(
                "data.bert.sentence_task = {} is not made by data.bert.dialect = {} (try {})",
                name_of(task), name_of(dialect), name_of(built));
          });
  const bool head = *deck_.model.bert.binary_head;
  require(head == (task != SentenceTask::none),
          {"data.bert.sentence_task", "model.bert.binary_head"}, [&] {
            return fmt::format(
                "data.bert.sentence_task = {} does not fit model.bert.binary_head = {}: the head "
                "classifies the sentence task",
                name_of(task), head);
          });
  constexpr std::int64_t kMaxSeed = 2147483646;  // data::kMaxPairMapSeed
  require(!megatron || deck_.data.seed <= kMaxSeed, {"data.seed", "run.seed"}, [&] {
    return fmt::format(
        "data.seed = {}: the maximum of data.bert.dialect = megatron is {} (try 1234)",
        deck_.data.seed, kMaxSeed);
  });
  const auto& tokenizer = deck_.data.tokenizer.type;
  require(
      records || tokenizer == TokenizerType::wordpiece || tokenizer == TokenizerType::sentencepiece,
      {"data.tokenizer.type", "data.tokenizer", "model.family"}, [] {
        return "model.family = bert masks whole words: give data.tokenizer.type = wordpiece or "
               "sentencepiece (only data.bert.dialect = tfrecord needs none)";
      });
  require(
      !deck_.data.reset_positions && !deck_.data.reset_attention,
      {"data.reset_positions", "data.reset_attention", "model.family"},
      [] {
        return "data.reset_positions and data.reset_attention have no effect with model.family = "
               "bert, whose samples are of one document each; leave them out";
      },
      Suggestion::leave_out_one);
  require(
      deck_.data.eod_loss, {"data.eod_loss", "model.family"},
      [] {
        return "data.eod_loss = false has no effect with model.family = bert, whose samples have "
               "no end-of-document tokens; leave it out";
      },
      Suggestion::leave_out_first);
  const auto share = [&](std::size_t i) {
    return i < deck_.data.split.size() ? deck_.data.split[i] : 0.0;
  };
  require(!records || (share(1) == 0 && share(2) == 0), {"data.split", "data.bert.dialect"}, [&] {
    return fmt::format(
        "data.split = {}: TFRecord files are not divided; give data.split: [1, 0, 0], and separate "
        "files in data.valid and data.test",
        Codec<std::vector<double>>::write(deck_.data.split));
  });
}

// The keys of Llama, and what Llama has no use for.

void Checker::llama() {
  const Model& model = deck_.model;
  if (model.family != Family::llama) {
    require(model.tie_embeddings, {"model.tie_embeddings", "model.family"}, [&] {
      return fmt::format(
          "model.tie_embeddings = false is not built for model.family = {} (try true)",
          name_of(model.family));
    });
    return;
  }
  require(
      !model.embedding_layernorm, {"model.embedding_layernorm", "model.family"},
      [] { return "model.embedding_layernorm = true is for model.family = gpt; leave it out"; },
      Suggestion::leave_out_first);
  const std::int64_t kv_heads = model.kv_heads.value_or(0), heads = model.heads;
  require(kv_heads == 0 || heads % kv_heads == 0, {"model.kv_heads", "model.heads"}, [&] {
    return fmt::format("model.kv_heads = {} does not divide model.heads = {} (try {})", kv_heads,
                       heads, divisor_list(heads, kv_heads));
  });
  require(!model.head_dim || *model.head_dim % 2 == 0, {"model.head_dim", "model.heads"}, [&] {
    return fmt::format(
        "model.head_dim = {} is odd, but rotary positions turn pairs of elements (try {})",
        *model.head_dim, *model.head_dim + 1);
  });
  const std::int64_t tensor = deck_.parallel.tensor;
  const auto fits = [&](std::int64_t ranks) { return shards_of_kv_heads(kv_heads, ranks) > 0; };
  require(kv_heads == 0 || tensor <= 0 || heads % tensor != 0 || fits(tensor),
          {"parallel.tensor", "model.kv_heads"}, [&] {
            return fmt::format(
                "parallel.tensor = {} neither divides model.kv_heads = {} nor is a multiple of it "
                "(try {})",
                tensor, kv_heads, divisor_list(heads, tensor, fits));
          });
  const bool output = model.norm_placement == NormPlacement::output;
  require(!output || model.dropout.hidden == 0, {"model.dropout.hidden", "model.norm_placement"},
          [&] {
            return fmt::format(
                "model.dropout.hidden = {} is not built with model.norm_placement = output (try 0)",
                model.dropout.hidden);
          });
  require(!output || deck_.recompute.granularity != Granularity::selective,
          {"recompute.granularity", "model.norm_placement"}, [] {
            return "recompute.granularity = selective recomputes norms before the sublayers, but "
                   "model.norm_placement = output has them after (try recompute.granularity: full, "
                   "or none)";
          });
  position();
}

void Checker::position() {
  const Position& position = deck_.model.position;
  if (!position.scaling) return;  // a bad value has been reported
  const PositionScaling scaling = *position.scaling;
  const bool scales = scaling != PositionScaling::none;
  const bool by_wavelength = scales && scaling != PositionScaling::linear;
  struct Rule {
    std::string_view path;
    bool given, used;
  };
  const Rule rules[] = {{"model.position.factor", position.factor.has_value(), scales},
                        {"model.position.original", position.original.has_value(), by_wavelength},
                        {"model.position.low", position.low.has_value(), by_wavelength},
                        {"model.position.high", position.high.has_value(), by_wavelength}};
  for (const auto& [path, given, used] : rules) {
    require(
        given || !used, {path, "model.position.scaling"},
        [&, path = path] {
          return fmt::format("model.position.scaling = {} needs '{}'", name_of(scaling), path);
        },
        Suggestion::give_key);
    require(
        !given || used, {path, "model.position.scaling"},
        [&, path = path] {
          return fmt::format("'{}' has no effect with model.position.scaling = {}; leave it out",
                             path, name_of(scaling));
        },
        Suggestion::leave_out_first);
  }
  require(!position.low || !position.high || *position.low < *position.high,
          {"model.position.low", "model.position.high"}, [&] {
            return fmt::format(
                "model.position.low = {} is not below model.position.high = {} (try {})",
                *position.low, *position.high, *position.high / 4);
          });
}

}  // namespace trireme::deck
