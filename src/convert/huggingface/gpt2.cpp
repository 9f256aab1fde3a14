#include "convert/huggingface/gpt2.hpp"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/files.hpp"
#include "model/spec.hpp"

namespace trireme::convert::huggingface {
namespace {

/// Reads the keys of a config.json; errors name the file and the key.
class ConfigReader {
 public:
  explicit ConfigReader(const std::filesystem::path& path)
      : file_(path.string()),
        json_(nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false)) {
    if (!json_.is_object()) throw DataError("'{}' is not a JSON object", file_);
  }

  std::int64_t size(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || !found->is_number_integer() || found->get<std::int64_t>() < 1 ||
        found->get<std::int64_t>() > std::numeric_limits<std::int32_t>::max())
      throw DataError("'{}': \"{}\" is missing or no size", file_, key);
    return found->get<std::int64_t>();
  }
  std::int64_t size(const char* key, std::int64_t fallback) const {
    const auto found = json_.find(key);
    return found == json_.end() || found->is_null() ? fallback : size(key);
  }
  double number(const char* key, double fallback) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return fallback;
    if (!found->is_number()) throw DataError("'{}': \"{}\" is no number", file_, key);
    return found->get<double>();
  }
  /// Throws unless the key is absent or has one of the values.
  void require(const char* key, std::initializer_list<nlohmann::json> values,
               const char* why) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return;
    if (std::find(values.begin(), values.end(), *found) == values.end())
      throw DataError("'{}': \"{}\" is {}; {}", file_, key, found->dump(), why);
  }

 private:
  std::string file_;
  nlohmann::json json_;
};

}  // namespace

std::vector<std::int64_t> Counterpart::shape() const {
  std::vector<std::int64_t> extents;
  for (int axis = 0; axis < parameter.shape.rank(); ++axis)
    extents.push_back(parameter.shape[axis]);
  if (transposed) std::reverse(extents.begin(), extents.end());
  return extents;
}

std::vector<Counterpart> counterparts(const model::Gpt2Config& config) {
  std::vector<Counterpart> found;
  for (const model::Parameter& parameter : model::declare_parameters(model::gpt2_spec(config))) {
    const auto names = model::gpt2_hugging_face_names(parameter);
    const std::string name = names.empty() ? "" : names.front();
    if (name.empty())
      throw DataError("GPT-2 has no counterpart of '{}': this model has no form there",
                      parameter.name);
    const bool transposed =
        parameter.stage == model::StagePlacement::layer && parameter.shape.rank() == 2;
    found.push_back({parameter, name, transposed});
  }
  return found;
}

bool is_mask(const std::string& name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

std::vector<float> transpose(const std::vector<float>& values, std::int64_t rows,
                             std::int64_t columns) {
  // In blocks that fit into the cache.
  constexpr std::int64_t kBlock = 32;
  std::vector<float> result(values.size());
  for (std::int64_t r0 = 0; r0 < rows; r0 += kBlock)
    for (std::int64_t c0 = 0; c0 < columns; c0 += kBlock)
      for (std::int64_t r = r0; r < std::min(r0 + kBlock, rows); ++r)
        for (std::int64_t c = c0; c < std::min(c0 + kBlock, columns); ++c)
          result[static_cast<std::size_t>(c * rows + r)] =
              values[static_cast<std::size_t>(r * columns + c)];
  return result;
}

std::string write_config(const model::Gpt2Config& config, std::optional<std::int64_t> eod) {
  nlohmann::ordered_json json = {{"architectures", {"GPT2LMHeadModel"}},
                                 {"model_type", "gpt2"},
                                 {"activation_function", "gelu_new"},
                                 {"n_layer", config.layers},
                                 {"n_embd", config.hidden},
                                 {"n_head", config.heads},
                                 {"n_inner", config.ffn},
                                 {"n_positions", config.positions},
                                 {"n_ctx", config.positions},
                                 {"vocab_size", config.vocab},
                                 {"layer_norm_epsilon", config.layernorm_eps},
                                 {"initializer_range", config.init_std},
                                 {"attn_pdrop", config.attention_dropout},
                                 {"embd_pdrop", config.hidden_dropout},
                                 {"resid_pdrop", config.hidden_dropout},
                                 {"tie_word_embeddings", true},
                                 {"torch_dtype", "float32"}};
  // Without them transformers uses GPT-2's ids, which other vocabularies do not have.
  json["bos_token_id"] = eod ? nlohmann::json(*eod) : nlohmann::json();
  json["eos_token_id"] = json["bos_token_id"];
  return json.dump(2) + "\n";
}

model::Gpt2Config read_config(const std::filesystem::path& path) {
  const ConfigReader reader(path);
  reader.require("model_type", {"gpt2"}, "only GPT-2 is read");
  reader.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"},
                 "Trireme's GELU is the tanh form, \"gelu_new\"");
  reader.require("tie_word_embeddings", {true}, "untied embeddings are not built yet");
  reader.require("scale_attn_weights", {true}, "Trireme divides by the root of a head's width");
  reader.require("scale_attn_by_inverse_layer_idx", {false}, "Trireme does not scale by layer");
  reader.require("add_cross_attention", {false}, "Trireme has no cross attention");
  model::Gpt2Config config{.layers = reader.size("n_layer"),
                           .hidden = reader.size("n_embd"),
                           .heads = reader.size("n_head")};
  config.ffn = reader.size("n_inner", 4 * config.hidden);
  config.positions = reader.size("n_positions");
  config.sequence = config.positions;
  config.vocab = reader.size("vocab_size");
  config.attention_dropout = reader.number("attn_pdrop", 0.1);
  config.hidden_dropout = reader.number("resid_pdrop", 0.1);
  config.init_std = reader.number("initializer_range", 0.02);
  config.layernorm_eps = reader.number("layer_norm_epsilon", 1e-5);
  if (config.hidden % config.heads != 0)
    throw DataError("'{}': \"n_head\" {} does not divide \"n_embd\" {}", path.string(),
                    config.heads, config.hidden);
  return config;
}

}  // namespace trireme::convert::huggingface
