#include "convert/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <system_error>

#include "checkpoint/file.hpp"
#include "checkpoint/folder.hpp"
#include "convert/huggingface/gpt2.hpp"
#include "convert/huggingface/safetensors.hpp"
#include "core/dtype.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/choices.hpp"
#include "deck/describe.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"
#include "plan/setup.hpp"
#include "train/run_state.hpp"

namespace trireme::convert::huggingface {
namespace {

namespace fs = std::filesystem;

/// The files of a model.
struct Source {
  fs::path weights;
  fs::path folder;
};

Source find_source(const fs::path& from) {
  if (!fs::exists(from)) throw IoError("there is no '{}'", from.string());
  if (!fs::is_directory(from)) return {from, from.parent_path()};
  const fs::path weights = from / "model.safetensors";
  if (!fs::exists(weights) && fs::exists(from / "model.safetensors.index.json"))
    throw DataError(
        "'{}' is cut into several files: write it as one, with save_pretrained(..., "
        "max_shard_size=\"100GB\")",
        from.string());
  if (!fs::exists(weights))
    throw IoError(
        "'{}' has no model.safetensors: write it with save_pretrained(..., "
        "safe_serialization=True)",
        from.string());
  return {weights, from};
}

/// A deck that has the model and is otherwise as short as can be.
deck::Deck plain_deck(const model::Gpt2Config& config, const Source& source,
                      const std::vector<std::string>& overrides) {
  std::string text = fmt::format(
      "model:\n  layers: {}\n  hidden: {}\n  heads: {}\n  ffn: {}\n  sequence: {}\n"
      "  positions: {}\n  vocab: {}\n  dropout: {{attention: {}, hidden: {}}}\n"
      "  init_std: {}\n  layernorm_eps: {}\n"
      "batch: {{micro: 1, global: 1}}\nschedule: {{peak: 1e-4}}\ntrain: {{iterations: 1}}\n",
      config.layers, config.hidden, config.heads, config.ffn, config.sequence, config.positions,
      config.vocab, config.attention_dropout, config.hidden_dropout, config.init_std,
      config.layernorm_eps);
  const fs::path vocab = source.folder / "vocab.json", merges = source.folder / "merges.txt";
  if (fs::exists(vocab) && fs::exists(merges))
    text += fmt::format("data: {{tokenizer: {{type: gpt2, vocab: {}, merges: {}}}}}\n",
                        deck::write_text(fs::absolute(vocab).string()),
                        deck::write_text(fs::absolute(merges).string()));
  try {
    return deck::parse(text, "imported", overrides, {.need_data = false});
  } catch (const DeckError& error) {
    throw DataError("'{}' describes a model that no deck can: {}",
                    (source.folder / "config.json").string(), error.what());
  }
}

/// Throws DataError unless `deck` describes the model of `config`.
void check_model(const deck::Deck& deck, const model::Gpt2Config& config, const fs::path& file) {
  const auto check = [&](const char* key, auto of_deck, auto of_config) {
    if (of_deck != of_config)
      throw DataError("the deck says {} = {}, but '{}' is of a model with {}", key, of_deck,
                      file.string(), of_config);
  };
  check("model.layers", deck.model.layers, config.layers);
  check("model.hidden", deck.model.hidden, config.hidden);
  check("model.heads", deck.model.heads, config.heads);
  check("model.ffn", deck.model.ffn, config.ffn);
  check("model.positions", deck.model.positions, config.positions);
  check("model.vocab", deck.model.vocab.value_or(config.vocab), config.vocab);
  check("model.layernorm_eps", deck.model.layernorm_eps, config.layernorm_eps);
  check("model.embedding_layernorm", deck.model.embedding_layernorm, false);
}

/// The checkpoint's names of the optimizer state that the deck's optimizer keeps per parameter.
std::vector<std::string> moments_of(const deck::Deck& deck) {
  if (deck.optimizer.type != deck::OptimizerType::sgd) return {"optimizer/m/", "optimizer/v/"};
  if (deck.optimizer.momentum > 0) return {"optimizer/m/"};
  return {};
}

/// Throws DataError for a weight that is NaN or infinite.
void check_finite(const std::vector<float>& values, const TensorEntry& entry,
                  const fs::path& file) {
  const auto is_finite = [](float value) { return std::isfinite(value); };
  const auto bad = std::find_if_not(values.begin(), values.end(), is_finite);
  if (bad == values.end()) return;
  throw DataError(
      "'{}': tensor '{}' {} has {} elements that are not finite, the first {} at {}: a run that "
      "starts from it has no loss that is a number",
      file.string(), entry.name, to_string(entry.shape),
      values.size() -
          static_cast<std::size_t>(std::count_if(values.begin(), values.end(), is_finite)),
      *bad, bad - values.begin());
}

/// The tensor called `name` with or without the prefix; null when there is none.
const TensorEntry* find(const SafetensorsReader& reader, const std::string& name) {
  const TensorEntry* entry = reader.find(kPrefix + name);
  return entry ? entry : reader.find(name);
}

/// Throws DataError unless the file has the tensors of `parts` with their shapes, and besides only
/// causal masks and an output projection that equals the word embedding.
void check_tensors(const SafetensorsReader& reader, const std::vector<Counterpart>& parts) {
  const std::string file = fmt::format("'{}'", reader.path().string());
  std::set<std::string> known = {"lm_head.weight"};
  for (const Counterpart& part : parts) {
    const TensorEntry* entry = find(reader, part.name);
    if (!entry) throw DataError("{} has no tensor '{}{}'", file, kPrefix, part.name);
    if (entry->shape != part.shape())
      throw DataError("{}: tensor '{}' has shape {}, but config.json's model needs {}", file,
                      entry->name, to_string(entry->shape), to_string(part.shape()));
    known.insert(entry->name);
  }
  for (const TensorEntry& entry : reader.entries()) {
    const bool prefixed = entry.name.starts_with(kPrefix);
    const std::string bare = prefixed ? entry.name.substr(std::string(kPrefix).size()) : entry.name;
    if (!known.contains(entry.name) && !is_mask(bare))
      throw DataError("{} has a tensor '{}' {}, which config.json's model does not have", file,
                      entry.name, to_string(entry.shape));
  }
  const TensorEntry* head = reader.find("lm_head.weight");
  if (!head) return;
  const TensorEntry* words = find(reader, "wte.weight");
  const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  const std::vector<float> a = reader.read(*head), b = reader.read(*words);
  if (head->shape != words->shape || !std::equal(a.begin(), a.end(), b.begin(), b.end(), same))
    throw DataError("{}: 'lm_head.weight' is not 'wte.weight': untied embeddings are not built yet",
                    file);
}

}  // namespace

std::string import_model(const fs::path& from, const fs::path& to, const ImportOptions& options) {
  if (fs::exists(to))
    throw IoError("'{}' is there already: remove it, or name another file", to.string());
  const Source source = find_source(from);
  const fs::path config_file = source.folder / "config.json";
  const model::Gpt2Config config = read_config(config_file);
  const deck::Deck deck = options.deck.empty()
                              ? plain_deck(config, source, options.overrides)
                              : deck::load(options.deck, options.overrides, {.need_data = false});
  check_model(deck, config, source.weights);
  const SafetensorsReader reader(source.weights);
  // Before the parameter table is allocated.
  if (config.layers > static_cast<std::int64_t>(reader.entries().size()))
    throw DataError("'{}': \"n_layer\" is {}, but '{}' has {} tensors", config_file.string(),
                    config.layers, source.weights.string(), reader.entries().size());
  const std::vector<Counterpart> parts = counterparts(config);
  check_tensors(reader, parts);

  std::vector<std::vector<float>> weights;
  std::size_t largest = 0;
  std::int64_t elements = 0;
  for (const Counterpart& part : parts) {
    const Shape& shape = part.parameter.shape;
    const TensorEntry& entry = *find(reader, part.name);
    std::vector<float> values = reader.read(entry);
    check_finite(values, entry, source.weights);
    weights.push_back(part.transposed ? transpose(values, shape[1], shape[0]) : std::move(values));
    largest = std::max(largest, weights.back().size());
    elements += shape.size();
  }
  // All moments are zero and share one buffer.
  const std::vector<float> zeros(largest);
  std::vector<checkpoint::WholeTensor> tensors;
  for (std::size_t i = 0; i < parts.size(); ++i)
    tensors.push_back(
        {"model/" + parts[i].parameter.name, parts[i].parameter.shape, weights[i].data()});
  for (const std::string& moment : moments_of(deck))
    for (const Counterpart& part : parts)
      tensors.push_back({moment + part.parameter.name, part.parameter.shape, zeros.data()});
  checkpoint::write_checkpoint(to, train::RunState{}.attributes(), deck::print_deck(deck), tensors);
  return fmt::format(
      "{}: {} tensors, {} elements, from '{}'\nThere is no optimizer state in it: a run that "
      "starts "
      "here begins at iteration 0 with moments of zero\n",
      to.string(), parts.size(), elements, source.weights.string());
}

namespace {

namespace fs = std::filesystem;

/// The tensor of `counterpart` in the checkpoint. Throws DataError when it is missing or of another
/// shape.
std::vector<float> read_weights(const checkpoint::Reader& reader, const Counterpart& counterpart,
                                const std::string& file) {
  const model::Parameter& parameter = counterpart.parameter;
  const std::string name = "model/" + parameter.name;
  const checkpoint::TensorInfo* info = reader.header().find(name);
  if (!info) throw DataError("'{}' has no tensor '{}'", file, name);
  if (info->shape != parameter.shape)
    throw DataError("'{}': tensor '{}' has shape {}, but its deck's model needs {}", file, name,
                    to_string(info->shape), to_string(parameter.shape));
  std::vector<float> values(static_cast<std::size_t>(info->shape.size()));
  if (info->dtype == DType::f32) {
    reader.read_whole(name, DType::f32, values.data());
  } else {
    std::vector<double> wide(values.size());
    reader.read_whole(name, DType::f64, wide.data());
    convert_to_float(wide.data(), wide.size(), DType::f64, values.data());
  }
  if (!counterpart.transposed) return values;
  return transpose(values, parameter.shape[0], parameter.shape[1]);
}

/// Copies the vocabulary that the deck names, where it is GPT-2's and there. Returns a sentence.
std::string copy_vocabulary(const deck::Deck& deck, const fs::path& to) {
  const deck::Tokenizer& tokenizer = deck.data.tokenizer;
  if (tokenizer.type != deck::TokenizerType::gpt2)
    return "no tokenizer is written: transformers has none of this kind\n";
  std::error_code error, ignored;
  fs::copy_file(*tokenizer.vocab, to / "vocab.json", fs::copy_options::overwrite_existing, error);
  if (!error)
    fs::copy_file(*tokenizer.merges, to / "merges.txt", fs::copy_options::overwrite_existing,
                  error);
  if (!error) return "vocab.json and merges.txt are the run's\n";
  // A full disk may leave an incomplete file.
  for (const char* part : {"vocab.json", "merges.txt"}) fs::remove(to / part, ignored);
  return fmt::format("no tokenizer is written: '{}', '{}': {}\n", *tokenizer.vocab,
                     *tokenizer.merges, error.message());
}

/// The token that ends documents, if the tokenizer's files are available.
std::optional<std::int64_t> end_of_document(const deck::Deck& deck) {
  try {
    return plan::vocabulary(deck).eod;
  } catch (const Error&) {
    return std::nullopt;  // the files are elsewhere; config.json then has null
  }
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError("cannot make the folder '{}': {}", folder.string(), error.message());
  if (fs::exists(folder / "model.safetensors"))
    throw IoError("'{}' is there already: remove it, or name another folder",
                  (folder / "model.safetensors").string());
}

}  // namespace

std::string export_model(const fs::path& from, const fs::path& to) {
  const auto [file, note] = checkpoint::locate(from);
  const checkpoint::Reader reader(file);
  const checkpoint::TensorInfo* words = reader.header().find("model/embedding/word");
  if (!words) throw DataError("'{}' has no tensor 'model/embedding/word'", file.string());
  const deck::Deck deck =
      deck::parse(reader.header().deck, file.string() + ":deck", {}, {.need_data = false});
  if (deck.model.family != deck::Family::gpt)
    throw DataError("'{}' is of a model with model.family = {}: only gpt is converted, to GPT-2",
                    file.string(), deck::name_of(deck.model.family));
  const model::Gpt2Config config =
      model::gpt2_config(deck, {.size = words->shape[0], .eod = std::nullopt});
  const std::vector<Counterpart> parts = counterparts(config);

  make_folder(to);
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::int64_t elements = 0;
  for (const Counterpart& part : parts) {
    tensors.push_back({kPrefix + part.name, part.shape()});
    elements += part.parameter.shape.size();
  }
  SafetensorsWriter writer(to / "model.safetensors", std::move(tensors));
  for (const Counterpart& part : parts) writer.write(read_weights(reader, part, file.string()));
  writer.finish();
  write_file_atomically(to / "config.json", write_config(config, end_of_document(deck)));
  return fmt::format("{}{}{}: {} tensors, {} elements, from iteration {} of '{}'\n{}", note,
                     note.empty() ? "" : "\n", to.string(), parts.size(), elements,
                     reader.header().get<std::int64_t>("iteration"), file.string(),
                     copy_vocabulary(deck, to));
}

}  // namespace trireme::convert::huggingface
