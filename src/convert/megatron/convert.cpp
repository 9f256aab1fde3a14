// A foreign checkpoint as one of Trireme's: shards of tensor ranks are joined to logical tensors.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "checkpoint/file.hpp"
#include "convert/convert.hpp"
#include "convert/megatron/foreign.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/load.hpp"
#include "model/families/registry.hpp"
#include "plan/setup.hpp"
#include "train/run_state.hpp"

namespace trireme::convert::megatron {
namespace {

using model::TensorSharding;

/// A matrix [rows, columns]; vectors have one column.
struct Matrix {
  std::int64_t rows = 0, columns = 1;
  std::vector<float> values;

  float* row(std::int64_t r) { return values.data() + r * columns; }
  const float* row(std::int64_t r) const { return values.data() + r * columns; }
};

Matrix read(const Shard& shard, const model::Parameter& parameter) {
  const auto rank = static_cast<std::size_t>(parameter.shape.rank());
  if (shard.shape.size() != rank)
    throw DataError("'{}' has shape [{}] in the checkpoint, but its logical tensor has {} axes",
                    parameter.name, fmt::join(shard.shape, ", "), rank);
  return {
      .rows = shard.shape[0], .columns = rank == 2 ? shard.shape[1] : 1, .values = shard.read()};
}

/// The rows of a qkv projection, or of a tensor rank's part of it, in the order q, k, v, each by
/// head. With fewer key-value than query heads the foreign order is, for each group, its query
/// heads, key and value.
Matrix reorder_qkv(const Matrix& from, const model::Parameter& parameter, QkvOrder order,
                   std::int64_t head_dim) {
  const auto& blocks = parameter.row_blocks;
  const std::int64_t queries = blocks[0].rows / blocks[1].rows;  // query heads of a group
  const std::int64_t parts = queries + 2;
  const std::int64_t groups = from.rows / (parts * head_dim);
  if (groups * parts * head_dim != from.rows || (order != QkvOrder::head_split_row && queries > 1))
    throw DataError(
        "'{}' has {} rows, which are not groups of {} query heads, a key and a "
        "value, each of {} rows (model.heads, model.kv_heads, model.head_dim)",
        parameter.name, from.rows, queries, head_dim);
  Matrix to{from.rows, from.columns, std::vector<float>(from.values.size())};
  for (std::int64_t group = 0; group < groups; ++group)
    for (std::int64_t part = 0; part < parts; ++part)
      for (std::int64_t row = 0; row < head_dim; ++row) {
        const std::int64_t source =
            order == QkvOrder::split_head_row   ? (part * groups + group) * head_dim + row
            : order == QkvOrder::head_row_split ? (group * head_dim + row) * parts + part
                                                : (group * parts + part) * head_dim + row;
        const std::int64_t head = part < queries ? group * queries + part : groups * part + group;
        std::copy_n(from.row(source), from.columns, to.row(head * head_dim + row));
      }
  return to;
}

/// Concatenates rows; of row blocks each block separately.
std::vector<float> join_rows(const std::vector<Matrix>& shards, const model::Parameter& parameter) {
  const auto count = static_cast<std::int64_t>(shards.size());
  std::vector<float> values;
  std::int64_t begin = 0;
  for (const model::RowBlock& block : parameter.blocks()) {
    const std::int64_t rows = block.rows / count;
    for (const Matrix& shard : shards)
      values.insert(values.end(), shard.row(begin), shard.row(begin + rows));
    begin += rows;
  }
  return values;
}

std::vector<float> join_columns(const std::vector<Matrix>& shards) {
  std::vector<float> values;
  for (std::int64_t row = 0; row < shards[0].rows; ++row)
    for (const Matrix& shard : shards)
      values.insert(values.end(), shard.row(row), shard.row(row) + shard.columns);
  return values;
}

}  // namespace

std::vector<float> assemble(const std::vector<Shard>& shards, const model::Parameter& parameter,
                            QkvOrder order, std::int64_t head_dim) {
  const bool vocabulary = parameter.sharding == TensorSharding::vocabulary;
  // A norm that all heads share is whole on each tensor rank.
  const bool by_rows =
      parameter.sharding == TensorSharding::rows && parameter.blocks().front().max_shards != 1;
  const bool by_columns =
      parameter.sharding == TensorSharding::columns && parameter.shape.rank() == 2;
  const std::size_t used = vocabulary || by_rows || by_columns ? shards.size() : 1;
  const bool qkv = parameter.name.find("attention/qkv/") != std::string::npos;
  // Groups follow each other through the tensor ranks, which may have parts of them.
  const bool in_groups = qkv && order == QkvOrder::head_split_row;
  std::vector<Matrix> parts;
  std::int64_t rows = 0, columns = 0;
  for (std::size_t i = 0; i < used; ++i) {
    Matrix part = read(shards[i], parameter);
    if (qkv && !in_groups) part = reorder_qkv(part, parameter, order, head_dim);
    rows = by_columns ? part.rows : rows + part.rows;
    columns = by_columns ? columns + part.columns : part.columns;
    parts.push_back(std::move(part));
  }
  const std::int64_t want_rows = parameter.shape[0];
  const std::int64_t want_columns = parameter.shape.rank() == 2 ? parameter.shape[1] : 1;
  const bool equal_parts = std::all_of(parts.begin(), parts.end(), [&](const Matrix& part) {
    return part.rows == parts[0].rows && part.columns == parts[0].columns;
  });
  if (!equal_parts || columns != want_columns ||
      (vocabulary ? rows < want_rows : rows != want_rows))
    throw DataError(
        "'{}': {} of tensor ranks {} [{}, {}], but the deck's model needs [{}, {}]: is the file of "
        "a rank missing?",
        parameter.name, used == 1 ? "1 shard" : fmt::format("{} shards", used),
        used == 1 ? "makes" : "make", rows, columns, want_rows, want_columns);
  if (by_columns) return join_columns(parts);
  if (by_rows && !in_groups) return join_rows(parts, parameter);
  std::vector<float> values;
  for (const Matrix& part : parts)
    values.insert(values.end(), part.values.begin(), part.values.end());
  if (in_groups)
    return reorder_qkv({rows, columns, std::move(values)}, parameter, order, head_dim).values;
  values.resize(static_cast<std::size_t>(want_rows * want_columns));
  return values;
}

// ---------------------------------------------------------------------------- the checkpoint

namespace fs = std::filesystem;

namespace {

/// A logical tensor, whole, under its name in a checkpoint.
struct Whole {
  std::string name;
  Shape shape;
  std::vector<float> values;  ///< none for zeros
};

std::int64_t count_rows(const Tensors& tensors, const std::string& name) {
  std::int64_t rows = 0;
  if (const auto found = tensors.find(name); found != tensors.end())
    for (const Shard& shard : found->second)
      if (!shard.shape.empty()) rows += shard.shape[0];
  return rows;
}

/// The vocabulary: the deck's, or GPT-2's if its tokenizer was used, else the padded one.
std::int64_t vocabulary_of(const deck::Deck& deck, const Foreign& foreign,
                           std::vector<std::string>& notes) {
  if (deck.model.vocab) return *deck.model.vocab;
  constexpr std::int64_t kGpt2 = 50257;
  const std::int64_t padded = count_rows(foreign.weights, "embedding/word");
  if (deck.data.tokenizer.type == deck::TokenizerType::gpt2 && padded >= kGpt2) return kGpt2;
  notes.push_back(fmt::format(
      "model.vocab is {}, the checkpoint's padded vocabulary: give model.vocab=N to drop padding",
      padded));
  return padded;
}

/// Throws DataError for a separate head if the model's head is the word embedding, and for other
/// tensors that the model does not have.
void check_complete(const Foreign& foreign, const std::vector<model::Parameter>& table) {
  std::set<std::string_view> known;
  for (const model::Parameter& parameter : table) known.insert(parameter.name);
  for (const auto& [name, shards] : foreign.weights)
    if (!known.contains(name) && name != "head/weight")
      throw DataError(
          "'{}' has '{}', which the deck's model does not have: is the deck that of its run?",
          foreign.folder.string(), name);
  const auto head = foreign.weights.find("head/weight");
  const auto words = foreign.weights.find("embedding/word");
  if (known.contains("head/weight") || head == foreign.weights.end() ||
      words == foreign.weights.end())
    return;
  for (std::size_t i = 0; i < head->second.size() && i < words->second.size(); ++i)
    if (head->second[i].read() != words->second[i].read())
      throw DataError(
          "'{}' has an output layer that is not its word embedding, but the deck's "
          "model ties them (model.tie_embeddings)",
          foreign.folder.string());
}

/// Names the first linear of MLPs as `table` does: with a gate it is mlp/gate_up, gate first.
void name_gates(Foreign& foreign, const std::vector<model::Parameter>& table) {
  constexpr std::string_view kPlain = "/mlp/up/", kGated = "/mlp/gate_up/";
  const bool gated = std::ranges::any_of(table, [&](const model::Parameter& parameter) {
    return parameter.name.find(kGated) != std::string::npos;
  });
  if (!gated) return;
  for (Tensors* tensors : {&foreign.weights, &foreign.masters, &foreign.m, &foreign.v}) {
    Tensors renamed;
    for (auto& [name, shards] : *tensors) {
      std::string ours = name;
      if (const std::size_t at = ours.find(kPlain); at != std::string::npos)
        ours.replace(at, kPlain.size(), kGated);
      renamed[ours] = std::move(shards);
    }
    *tensors = std::move(renamed);
  }
}

/// Whether `name` is the weight of a norm: layers/0/norm1/weight, layers/0/attention/q_norm/weight,
/// final_norm/weight.
bool is_norm_weight(std::string_view name) {
  return name.ends_with("norm/weight") || name.ends_with("norm1/weight") ||
         name.ends_with("norm2/weight");
}

/// The tensors of `table` from `tensors`, under `prefix`. Throws DataError for missing ones and for
/// elements that are not finite.
void append(const Tensors& tensors, const std::string& prefix,
            const std::vector<model::Parameter>& table, const Foreign& foreign,
            std::int64_t head_dim, std::vector<Whole>& all) {
  for (const model::Parameter& parameter : table) {
    const auto found = tensors.find(parameter.name);
    if (found == tensors.end())
      throw DataError("'{}' has no tensor for '{}'", foreign.folder.string(), parameter.name);
    std::vector<float> values = assemble(found->second, parameter, foreign.qkv, head_dim);
    if (foreign.norms_less_one && prefix == "model/" && is_norm_weight(parameter.name))
      for (float& value : values) value += 1;
    const auto bad = std::find_if_not(values.begin(), values.end(),
                                      [](float value) { return std::isfinite(value); });
    if (bad != values.end())
      throw DataError("'{}': '{}{}' has an element that is not finite, {} at {}",
                      foreign.folder.string(), prefix, parameter.name, *bad, bad - values.begin());
    all.push_back({prefix + parameter.name, parameter.shape, std::move(values)});
  }
}

/// The state of the run after `foreign.iteration` iterations.
train::RunState state_of(const Foreign& foreign, const deck::Deck& deck,
                         std::vector<std::string>& notes) {
  train::RunState state;
  state.loss_scale = plan::loss_scaler(deck).state();
  if (foreign.m.empty()) return state;
  state.iteration = foreign.iteration;
  state.applied_iterations =
      std::max(foreign.optimizer_steps, foreign.schedule_iterations.value_or(0));
  if (state.applied_iterations == 0 || state.applied_iterations > state.iteration)
    state.applied_iterations = state.iteration;
  state.skipped = state.iteration - state.applied_iterations;
  const std::int64_t batch = deck.batch.global;
  state.consumed_samples = foreign.consumed_samples.value_or(foreign.iteration * batch);
  if (!foreign.consumed_samples)
    notes.push_back(
        fmt::format("the checkpoint does not contain its number of samples: {} "
                    "iterations of batch.global = {} make {}",
                    foreign.iteration, batch, state.consumed_samples));
  state.applied_samples =
      std::min(foreign.schedule_samples.value_or(state.consumed_samples - state.skipped * batch),
               state.consumed_samples);
  if (foreign.loss_scale && state.loss_scale.hysteresis_left > 0)
    state.loss_scale.scale = *foreign.loss_scale;
  if (std::min({state.iteration, state.consumed_samples, state.applied_samples}) < 0)
    throw DataError("'{}' counts {} iterations and {} samples, {} of them in its schedule",
                    foreign.folder.string(), state.iteration, state.consumed_samples,
                    state.applied_samples);
  return state;
}

std::string report(const Foreign& foreign, const fs::path& to, const train::RunState& state,
                   std::size_t tensors, const std::vector<std::string>& notes) {
  std::string text =
      fmt::format("{}: {} tensors from '{}'", to.string(), tensors, foreign.folder.string());
  if (foreign.m.empty())
    text += fmt::format(
        " (iteration {})\nThere is no optimizer state in it: a run that starts "
        "here begins at iteration 0 with moments of zero\n",
        foreign.iteration);
  else
    text += fmt::format(
        ", with the optimizer's state\nA run that starts here resumes after "
        "iteration {}, at sample {}\n",
        state.iteration, state.consumed_samples);
  for (const std::string& note : notes) text += fmt::format("note: {}\n", note);
  for (const std::string& name : foreign.unread) text += fmt::format("not read: {}\n", name);
  return text;
}

}  // namespace

std::string import_checkpoint(const fs::path& from, const fs::path& to,
                              const ImportOptions& options) {
  if (fs::exists(to))
    throw IoError("'{}' is there already: remove it, or name another file", to.string());
  Foreign foreign = read_foreign(from);
  std::vector<std::string> notes;
  const std::string text = !options.deck_text.empty() ? options.deck_text
                           : options.deck.empty()     ? deck_text(foreign, notes)
                                                      : "";
  const auto load = [&](const std::vector<std::string>& overrides) {
    return options.deck.empty()
               ? deck::parse(text, foreign.folder.string(), overrides, {.need_data = false})
               : deck::load(options.deck, overrides, {.need_data = false});
  };
  std::vector<std::string> overrides = options.overrides;
  deck::Deck deck = load(overrides);
  const std::int64_t vocabulary =
      options.vocabulary ? *options.vocabulary : vocabulary_of(deck, foreign, notes);
  if (!deck.model.vocab && !options.vocabulary) {
    overrides.push_back(fmt::format("model.vocab={}", vocabulary));
    deck = load(overrides);
  }
  const model::ModelSpec spec = model::make_spec(deck, {.size = vocabulary});
  const std::vector<model::Parameter> table = model::declare_parameters(spec);
  if (spec.blocks.empty()) throw DataError("the deck's model has no layers");
  const std::int64_t head_dim = spec.blocks.front().attention.head_dim;
  name_gates(foreign, table);
  check_complete(foreign, table);

  std::vector<Whole> all;
  append(foreign.masters.empty() ? foreign.weights : foreign.masters, "model/", table, foreign,
         head_dim, all);
  const bool keeps_moments = deck.optimizer.type != deck::OptimizerType::sgd;
  if (deck.optimizer.type == deck::OptimizerType::muon)
    throw DataError(
        "optimizer.type = muon cannot resume from the moments of Megatron-LM's Adam (try adamw)");
  if (keeps_moments && !foreign.m.empty()) {
    append(foreign.m, "optimizer/m/", table, foreign, head_dim, all);
    append(foreign.v, "optimizer/v/", table, foreign, head_dim, all);
  } else if (keeps_moments) {
    for (const char* prefix : {"optimizer/m/", "optimizer/v/"})
      for (const model::Parameter& parameter : table)
        all.push_back({prefix + parameter.name, parameter.shape, {}});
  }
  const train::RunState state = state_of(foreign, deck, notes);
  std::vector<checkpoint::WholeTensor> tensors;
  for (const Whole& whole : all)
    tensors.push_back(
        {whole.name, whole.shape, whole.values.empty() ? nullptr : whole.values.data()});
  checkpoint::write_checkpoint(to, state.attributes(), deck::print_deck(deck), tensors,
                               options.progress);
  if (!options.write_deck.empty())
    write_file_atomically(options.write_deck, options.deck.empty() && options.overrides.empty()
                                                  ? text
                                                  : deck::print_deck(deck));
  return report(foreign, to, state, table.size(), notes);
}

}  // namespace trireme::convert::megatron
