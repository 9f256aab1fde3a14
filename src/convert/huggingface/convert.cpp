// Import and export of models: what all families share. format.hpp has what each differs in.
#include "convert/convert.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <system_error>

#include "checkpoint/file.hpp"
#include "convert/huggingface/format.hpp"
#include "convert/huggingface/safetensors.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "deck/choices.hpp"
#include "deck/keys/schema.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"
#include "model/families/registry.hpp"
#include "plan/setup.hpp"
#include "train/run_state.hpp"

namespace trireme::convert::huggingface {
namespace {

namespace fs = std::filesystem;

const Format& format_of(const deck::Deck& deck) {
  for (const Format& format : formats())
    if (format.family == deck.model.family && (!format.represents || format.represents(deck)))
      return format;
  throw DataError("models of model.family = {} have no form in Hugging Face's transformers",
                  name_of(deck.model.family));
}

// ---------------------------------------------------------------------------- tensors

/// A parameter and the tensors that have its rows there, in order: one, or one for each row block.
struct Counterpart {
  model::Parameter parameter;
  std::vector<SafetensorsWriter::Tensor> tensors;
  bool transposed = false;  ///< the tensor has the transposed shape
};

Counterpart counterpart(const model::Parameter& parameter, const std::vector<std::string>& names,
                        const Format& format) {
  const bool matrix = parameter.shape.rank() == 2;
  Counterpart result{
      .parameter = parameter,
      .tensors = {},
      .transposed = format.transposes && matrix && parameter.stage == model::StagePlacement::layer};
  std::vector<model::RowBlock> blocks = parameter.blocks();
  if (names.size() == 1) blocks = {parameter.shape[0]};
  TRIREME_CHECK(blocks.size() == names.size(), "'{}' has {} row blocks and {} names",
                parameter.name, blocks.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::vector<std::int64_t> shape = {blocks[i].rows};
    if (matrix) shape.push_back(parameter.shape[1]);
    if (result.transposed) std::reverse(shape.begin(), shape.end());
    result.tensors.push_back({names[i], shape});
  }
  return result;
}

/// Those of all parameters, in checkpoint order. Throws DataError for a parameter without any.
std::vector<Counterpart> counterparts(const deck::Deck& deck, const model::ModelSpec& spec,
                                      const Format& format) {
  const model::Family& family = model::family_of(deck);
  std::vector<Counterpart> found;
  for (const model::Parameter& parameter : model::declare_parameters(spec)) {
    const std::vector<std::string> names = family.hugging_face_names(parameter);
    if (names.empty())
      throw DataError("{} has no counterpart of '{}': this model has no form there", format.title,
                      parameter.name);
    found.push_back(counterpart(parameter, names, format));
  }
  return found;
}

// ---------------------------------------------------------------------------- import

/// The file's tensor for `name`, in any of its spellings; null when there is none.
const TensorEntry* find(const WeightsReader& weights, const Format& format,
                        const std::string& name) {
  for (const std::string& spelling : format.spellings(name))
    if (const TensorEntry* entry = weights.find(spelling)) return entry;
  return nullptr;
}

/// Whether two tensors of one shape have the same elements; all NaN are the same.
bool have_same_elements(const WeightsReader& weights, const TensorEntry& a, const TensorEntry& b) {
  constexpr std::int64_t kPart = 1 << 20;
  const auto same = [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); };
  std::vector<float> of_a(kPart), of_b(kPart);
  for (std::int64_t first = 0; first < a.elements(); first += kPart) {
    const auto count = static_cast<std::size_t>(std::min(kPart, a.elements() - first));
    weights.read(a.name, first, std::span(of_a).first(count));
    weights.read(b.name, first, std::span(of_b).first(count));
    if (!std::equal(of_a.begin(), of_a.begin() + static_cast<std::ptrdiff_t>(count), of_b.begin(),
                    same))
      return false;
  }
  return true;
}

/// Throws DataError unless the files have the tensors of `parts` with their shapes, and in addition
/// only redundant ones and copies that equal their original.
void check_tensors(const WeightsReader& weights, const std::vector<Counterpart>& parts,
                   const Format& format) {
  std::set<std::string> known;
  for (const Counterpart& part : parts)
    for (const auto& [name, shape] : part.tensors) {
      const TensorEntry* entry = find(weights, format, name);
      if (!entry)
        throw DataError("'{}' has no tensor '{}'", weights.path().string(),
                        format.spellings(name).front());
      if (entry->shape != shape)
        throw DataError("'{}': tensor '{}' has shape {}, but config.json's model needs {}",
                        weights.file_of(entry->name).string(), entry->name, to_string(entry->shape),
                        to_string(shape));
      known.insert(entry->name);
    }
  for (const Copy& copy : format.copies) {
    const TensorEntry* entry = weights.find(copy.name);
    const TensorEntry* original = find(weights, format, copy.original);
    if (!entry || !original || known.contains(copy.name)) continue;
    if (entry->shape != original->shape || !have_same_elements(weights, *entry, *original))
      throw DataError("'{}': '{}' is not '{}', but config.json says that the two are tied",
                      weights.file_of(entry->name).string(), copy.name, original->name);
    known.insert(copy.name);
  }
  for (const std::string& name : weights.names())
    if (!known.contains(name) && !format.is_redundant(name))
      throw DataError("'{}' has a tensor '{}' {}, which config.json's model does not have",
                      weights.file_of(name).string(), name, to_string(weights.find(name)->shape));
}

bool is_finite(float value) { return std::isfinite(value); }

/// Throws DataError for the tensor of `entry`, which has elements that are NaN or infinite.
[[noreturn]] void refuse_not_finite(const WeightsReader& weights, const TensorEntry& entry) {
  const std::vector<float> values = weights.read(entry.name);
  const auto bad = std::find_if_not(values.begin(), values.end(), is_finite);
  throw DataError(
      "'{}': tensor '{}' {} has {} elements that are not finite, the first {} at {}: a run that "
      "starts from it has no loss that is a number",
      weights.file_of(entry.name).string(), entry.name, to_string(entry.shape),
      values.size() -
          static_cast<std::size_t>(std::count_if(values.begin(), values.end(), is_finite)),
      *bad, bad - values.begin());
}

/// Writes the rows [begin, end) of a parameter to `out`. Throws DataError for weights that are not
/// finite. Any number of threads may call it.
void read_rows(const WeightsReader& weights, const Counterpart& part, const Format& format,
               std::int64_t begin, std::int64_t end, float* out) {
  const Shape& shape = part.parameter.shape;
  const std::int64_t columns = shape.rank() == 2 ? shape[1] : 1;
  std::int64_t base = 0;  // the tensor's first row of the parameter
  for (const auto& tensor : part.tensors) {
    const TensorEntry& entry = *find(weights, format, tensor.name);
    const std::int64_t rows = entry.elements() / columns;
    const std::int64_t first = std::max(begin, base) - base,
                       last = std::min(end, base + rows) - base;
    base += rows;
    if (first >= last) continue;
    const std::span to(out, static_cast<std::size_t>((last - first) * columns));
    out += to.size();
    if (part.transposed) {
      std::vector<float> theirs(to.size());  // a part of each of their rows
      for (std::int64_t column = 0; column < columns; ++column)
        weights.read(entry.name, column * rows + first,
                     std::span(theirs).subspan(static_cast<std::size_t>(column * (last - first)),
                                               static_cast<std::size_t>(last - first)));
      const std::vector<float> ours = transpose(theirs, columns, last - first);
      std::copy(ours.begin(), ours.end(), to.begin());
    } else {
      weights.read(entry.name, first * columns, to);
    }
    if (!std::all_of(to.begin(), to.end(), is_finite)) refuse_not_finite(weights, entry);
  }
}

/// The rest of a deck that is as short as can be.
constexpr const char* kRest =
    "batch: {micro: 1, global: 1}\nschedule: {peak: 1e-4}\ntrain: {iterations: 1}\n";

/// Throws DataError unless `deck` describes the model of `imported`, the deck made of config.json.
void check_model(const deck::Deck& deck, const deck::Deck& imported, const fs::path& file) {
  // What a run may choose: initial weights are not used, samples may be shorter.
  static const std::set<std::string> kFree = {
      "model.sequence",       "model.init",           "model.init_std", "model.init_cutoff",
      "model.dropout.hidden", "model.bert.deep_init", "model.z_loss",   "model.dropout.attention"};
  for (const deck::Key& key : deck::keys()) {
    if (!key.path.starts_with("model.") || key.unbuilt || key.of_sweep || kFree.contains(key.path))
      continue;
    const std::string wanted = key.write(deck), found = key.write(imported);
    if (wanted == found || (key.path == "model.vocab" && wanted.empty())) continue;
    throw DataError("the deck says {} = {}, but '{}' is of a model with {}", key.path,
                    wanted.empty() ? "none" : wanted, file.string(),
                    found.empty() ? "none" : found);
  }
}

/// The format of the model that config.json describes. Throws DataError.
const Format& format_of(const ConfigReader& config) {
  // The first GPT-2s name no type.
  const std::string type = config.text("model_type", config.has("n_embd") ? "gpt2" : "");
  std::vector<std::string> known;
  for (const Format& format : formats())
    for (const std::string& name : format.model_types) {
      if (name == type) return format;
      known.push_back(name);
    }
  throw DataError("'{}': \"model_type\" is {}; read are {}", config.file(),
                  type.empty() ? "missing" : fmt::format("\"{}\"", type), fmt::join(known, ", "));
}

/// Elements of the largest tensor bound what a damaged config.json can ask for.
void check_layers(const deck::Deck& deck, const WeightsReader& weights,
                  const ConfigReader& config) {
  const auto tensors = static_cast<std::int64_t>(weights.names().size());
  if (deck.model.layers > tensors)
    throw DataError("'{}' says that the model has {} layers, but '{}' has {} tensors",
                    config.file(), deck.model.layers, weights.path().string(), tensors);
}

/// Parses the deck of `config`. Throws DataError where no deck can have its values.
deck::Deck parse_imported(const std::string& deck, const std::string& config) {
  try {
    return deck::parse(deck, "imported", {}, {.need_data = false});
  } catch (const deck::InvalidDeck& error) {
    std::string text;
    for (const auto& line : error.lines()) text += (text.empty() ? "" : "; ") + line.message;
    throw DataError("'{}' describes a model that no deck can: {}", config, text);
  }
}

}  // namespace

std::string import_model(const fs::path& from, const fs::path& to, const ImportOptions& options) {
  if (fs::exists(to))
    throw IoError("'{}' is there already: remove it, or name another file", to.string());
  const WeightsReader weights(from);
  const fs::path folder = weights.path().parent_path();
  const ConfigReader config(folder / "config.json");
  const Format& format = format_of(config);
  std::vector<std::string> notes;
  const std::string text =
      format.deck_text({folder, config,
                        [&](const std::string& name) { return find(weights, format, name); },
                        notes}) +
      kRest;
  const auto load = [&](const std::vector<std::string>& overrides) {
    return options.deck.empty() ? deck::parse(text, "imported", overrides, {.need_data = false})
                                : deck::load(options.deck, overrides, {.need_data = false});
  };
  const deck::Deck imported = parse_imported(text, config.file()), deck = load(options.overrides);
  check_model(deck, imported, weights.path());
  check_layers(imported, weights, config);
  const model::ModelSpec spec = model::make_spec(imported, {.size = *imported.model.vocab});
  const std::vector<Counterpart> parts = counterparts(imported, spec, format);
  check_tensors(weights, parts, format);

  // Threads read, convert and write rows of them.
  std::vector<checkpoint::WholeTensor> tensors;
  std::int64_t elements = 0;
  for (const Counterpart& part : parts) {
    tensors.push_back({.name = "model/" + part.parameter.name,
                       .shape = part.parameter.shape,
                       .load = [&](std::int64_t begin, std::int64_t end, float* out) {
                         read_rows(weights, part, format, begin, end, out);
                       }});
    elements += part.parameter.shape.size();
  }
  std::string deck_to_write = text + fmt::format("checkpoint: {{load: {}}}\n", path_text(to));
  if (!options.write_deck.empty() && !(options.deck.empty() && options.overrides.empty())) {
    std::vector<std::string> overrides = {"checkpoint.load=" + path_text(to)};
    if (options.deck.empty())  // the run is called after its deck
      overrides.push_back("run.name=" + deck::write_text(options.write_deck.stem().string()));
    overrides.insert(overrides.end(), options.overrides.begin(), options.overrides.end());
    deck_to_write = deck::print_deck(load(overrides));
  }
  checkpoint::write_checkpoint(to, train::RunState{}.attributes(), deck::print_deck(deck), tensors,
                               options.progress);
  if (!options.write_deck.empty()) write_file_atomically(options.write_deck, deck_to_write);
  std::string message = fmt::format(
      "{}: {} tensors, {} elements, from '{}'\nThere is no optimizer state in it: a run that "
      "starts here begins at iteration 0 with moments of zero\n",
      to.string(), parts.size(), elements, weights.path().string());
  for (const std::string& note : notes) message += fmt::format("note: {}\n", note);
  return message;
}

// ---------------------------------------------------------------------------- export

namespace {

/// The parameter in the checkpoint. Throws DataError when it is missing or of another shape.
std::vector<float> read_weights(const checkpoint::Reader& reader, const model::Parameter& parameter,
                                const std::string& file) {
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
  return values;
}

/// Whether a file of this name is part of a model, also of one with another tokenizer: next to an
/// exported model its files would be taken for that one's.
bool is_of_model(const std::string& name) {
  static const std::set<std::string> kNames = {"config.json", "generation_config.json",
                                               "merges.txt",  "special_tokens_map.json",
                                               "vocab.json",  "vocab.txt"};
  return kNames.contains(name) || name.starts_with("tokenizer") || name.ends_with(".safetensors") ||
         name.ends_with(".safetensors.index.json");
}

void make_folder(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw IoError("cannot make the folder '{}': {}", folder.string(), error.message());
  std::set<std::string> taken;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder))
    if (const std::string name = entry.path().filename().string(); is_of_model(name))
      taken.insert(name);
  if (!taken.empty())
    throw IoError("'{}' has files of a model already ({}): remove them, or name another folder",
                  folder.string(), fmt::join(taken, ", "));
}

}  // namespace

std::string export_model(const fs::path& from, const fs::path& to, const ExportOptions& options) {
  const auto [file, note] = checkpoint::locate(from);
  const checkpoint::Reader reader(file);
  const checkpoint::TensorInfo* words = reader.header().find("model/embedding/word");
  if (!words) throw DataError("'{}' has no tensor 'model/embedding/word'", file.string());
  const deck::Deck deck =
      deck::parse(reader.header().deck, file.string() + ":deck", {}, {.need_data = false});
  if (deck.model.mup.base)
    throw DataError(
        "'{}' is of a model with model.mup.base = {}: Hugging Face's models have no multipliers of "
        "logits and queries",
        file.string(), *deck.model.mup.base);
  const Format& format = format_of(deck);
  const model::ModelSpec spec = model::make_spec(deck, {.size = words->shape[0]});
  const std::optional<std::int64_t> eod = end_of_document(deck);
  const nlohmann::ordered_json config =
      format.config({deck, spec, beginning_of_text(deck), eod, options.dtype});
  const std::vector<Counterpart> parts = counterparts(deck, spec, format);

  make_folder(to);
  std::vector<SafetensorsWriter::Tensor> tensors;
  std::int64_t elements = 0;
  for (const Counterpart& part : parts) {
    for (const auto& [name, shape] : part.tensors)
      tensors.push_back({format.spellings(name).front(), shape});
    elements += part.parameter.shape.size();
  }
  WeightsWriter writer(to, tensors, options.dtype, options.shard_bytes);
  Progress meter("converting", "element", static_cast<double>(elements), options.progress);
  double done = 0;
  for (const Counterpart& part : parts) {
    const Shape& shape = part.parameter.shape;
    std::vector<float> values = read_weights(reader, part.parameter, file.string());
    if (part.transposed) values = transpose(values, shape[0], shape[1]);
    std::size_t begin = 0;
    for (const auto& tensor : part.tensors) {
      const auto count = static_cast<std::size_t>(TensorEntry{.shape = tensor.shape}.elements());
      writer.write(std::span(values).subspan(begin, count));
      begin += count;
    }
    meter.update(done += static_cast<double>(values.size()));
  }
  writer.finish();
  write_file_atomically(to / "config.json", config.dump(2) + "\n");
  if (format.generates) {
    nlohmann::ordered_json generation;
    for (const char* key : {"bos_token_id", "eos_token_id"})
      if (!config[key].is_null()) generation[key] = config[key];
    generation["do_sample"] = false;
    write_file_atomically(to / "generation_config.json", generation.dump(2) + "\n");
  }
  return fmt::format("{}{}{}: {} tensors, {} elements, from iteration {} of '{}'\n{}", note,
                     note.empty() ? "" : "\n", to.string(), tensors.size(), elements,
                     reader.header().get<std::int64_t>("iteration"), file.string(),
                     write_tokenizer(deck, eod, to));
}

}  // namespace trireme::convert::huggingface
