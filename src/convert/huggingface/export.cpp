#include <fmt/format.h>

#include <system_error>

#include "checkpoint/folder.hpp"
#include "checkpoint/reader.hpp"
#include "convert/huggingface/convert.hpp"
#include "convert/huggingface/gpt2.hpp"
#include "convert/huggingface/safetensors.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/half.hpp"
#include "deck/load.hpp"
#include "plan/setup.hpp"

namespace trireme::convert::huggingface {
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
  // A disk that is full leaves a part of one.
  for (const char* part : {"vocab.json", "merges.txt"}) fs::remove(to / part, ignored);
  return fmt::format("no tokenizer is written: '{}', '{}': {}\n", *tokenizer.vocab,
                     *tokenizer.merges, error.message());
}

/// The token that ends documents, where the tokenizer and its files tell.
std::optional<std::int64_t> end_of_document(const deck::Deck& deck) {
  try {
    return plan::vocabulary(deck).eod;
  } catch (const Error&) {
    return std::nullopt;  // its files are elsewhere; config.json has null then
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
