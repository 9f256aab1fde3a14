// What Hugging Face's transformers keeps of a family of models: names and shapes of tensors, and
// config.json. Each family has its part of a file here and a row in formats().
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/tensor.hpp"
#include "deck/deck.hpp"
#include "model/spec.hpp"

namespace trireme::convert::huggingface {

/// Reads the keys of a config.json; errors name the file and the key.
class ConfigReader {
 public:
  /// Throws IoError; DataError unless the file has a JSON object.
  explicit ConfigReader(const std::filesystem::path& path);

  const std::string& file() const { return file_; }
  /// The value of `key`; null if it is absent.
  const nlohmann::json& operator[](const char* key) const;
  bool has(const char* key) const { return json_.contains(key); }
  std::int64_t size(const char* key) const;
  std::int64_t size(const char* key, std::int64_t fallback) const;
  double number(const char* key, double fallback) const;
  bool flag(const char* key, bool fallback) const;
  std::string text(const char* key, const std::string& fallback) const;
  /// Throws unless the key is absent or has one of the values.
  void require(const char* key, std::initializer_list<nlohmann::json> values,
               const char* why) const;

 private:
  std::string file_;
  nlohmann::json json_;
};

/// A folder to import.
struct Source {
  std::filesystem::path folder;
  const ConfigReader& config;
  std::function<bool(const std::string&)> has_tensor;
  std::vector<std::string>& notes;  ///< for the user
};

/// A model to export.
struct Target {
  const deck::Deck& deck;
  const model::ModelSpec& spec;
  std::optional<std::int64_t> bos;  ///< the token that begins texts, if the tokenizer names one
  std::optional<std::int64_t> eod;  ///< the token that ends documents
  DType dtype;
};

/// A tensor that some files have in addition to the one that it equals.
struct Copy {
  const char* name;
  const char* original;
};

/// A family's format.
struct Format {
  deck::Family family;
  /// Whether it is that of this deck's model; null: of all models of the family.
  bool (*represents)(const deck::Deck& deck) = nullptr;
  const char* title;                     ///< for messages
  std::vector<std::string> model_types;  ///< "model_type" of the config.json that are read
  bool transposes = false;               ///< matrices of layers are [in, out] there
  bool generates = false;                ///< a generation_config.json belongs to it
  std::vector<Copy> copies;              ///< of a model with tied embeddings
  /// The names under which files have the tensor `name`, that of new files first.
  std::vector<std::string> (*spellings)(const std::string& name);
  /// Whether the tensor `name` needs no counterpart: masks, positions.
  bool (*is_redundant)(const std::string& name);
  /// The sections `model` and `data` of a deck. Throws DataError that names the file and the key
  /// for a model that computes differently from Trireme's.
  std::string (*deck_text)(const Source& source);
  /// config.json. Throws DataError for a model that the family's class does not represent.
  nlohmann::ordered_json (*config)(const Target& target);
};

/// The formats of all families.
const std::vector<Format>& formats();
Format gpt2_format();
Format bert_format();
Format megatron_bert_format();
Format llama_format();

/// model.init_std by "initializer_range"; where that is 0, as in folders whose author initialises
/// in another way, the deck's default with a note: the weights are given.
double init_std(const Source& source);

/// The transpose [columns, rows] of `values` [rows, columns].
std::vector<float> transpose(const std::vector<float>& values, std::int64_t rows,
                             std::int64_t columns);

/// "float32" and the like, as config.json names types.
const char* torch_name(DType dtype);

/// data.tokenizer for the vocab.txt of a BertTokenizer in `folder`, uncased unless its
/// tokenizer_config.json says otherwise; "" if there is none.
std::string wordpiece_text(const std::filesystem::path& folder, std::vector<std::string>& notes);

/// data.tokenizer for the tokenizer.model in `folder`; "" if there is none.
std::string sentencepiece_text(const std::filesystem::path& folder);

/// data.tokenizer for the tokenizer.json, tokenizer.model, GPT-2 files or vocab.txt in `folder`,
/// the first that Trireme reads; "" if there is none.
std::string tokenizer_text(const std::filesystem::path& folder, std::vector<std::string>& notes);

/// A path as a deck writes it, absolute.
std::string path_text(const std::filesystem::path& path);

// The tokenizer of an exported model: its files, and its tokens that config.json names.

/// The token that ends documents; unset where the tokenizer has none or its files are not there.
std::optional<std::int64_t> end_of_document(const deck::Deck& deck);
/// The token that begins texts, by the tokenizer_config.json next to a tokenizer.json.
std::optional<std::int64_t> beginning_of_text(const deck::Deck& deck);

/// Writes the deck's tokenizer into the folder `to`, where transformers has one of its kind and its
/// files are there; `eod` is the token that ends documents. Returns a sentence that says which
/// files, or why there are none. Throws IoError where tokenizer_config.json cannot be written.
std::string write_tokenizer(const deck::Deck& deck, std::optional<std::int64_t> eod,
                            const std::filesystem::path& to);

}  // namespace trireme::convert::huggingface
