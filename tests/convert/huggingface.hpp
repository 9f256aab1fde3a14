// Checkpoints of small models, and folders of Hugging Face's made from them.
#pragma once

#include <bit>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/file.hpp"
#include "convert/convert.hpp"
#include "convert/huggingface/format.hpp"
#include "convert/huggingface/safetensors.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "deck/load.hpp"
#include "fixture.hpp"
#include "model/families/registry.hpp"
#include "model/spec.hpp"
#include "train/run_state.hpp"

namespace trireme::convert::huggingface {

namespace fs = std::filesystem;

inline constexpr const char* kDeck =
    "model: {layers: 2, hidden: 6, heads: 3, ffn: 10, sequence: 4, positions: 5, vocab: 7,\n       "
    " layernorm_eps: 1e-6}\nbatch: {micro: 1, global: 1}\nschedule: {peak: 1e-3}\ntrain: "
    "{iterations: 3}\n";

/// A deck of the Llama family with `keys` of the model.
inline std::string llama_deck_with(const std::string& keys) {
  return "model: {family: llama, layers: 2, hidden: 16, heads: 4, kv_heads: 2, ffn: 10, sequence: "
         "8,\n        vocab: 7, " +
         keys + "}\nbatch: {micro: 1, global: 1}\nschedule: {peak: 1e-3}\ntrain: {iterations: 3}\n";
}

inline model::Gpt2Config small_config() {
  return {
      .layers = 2, .hidden = 6, .heads = 3, .ffn = 10, .sequence = 4, .positions = 5, .vocab = 7};
}

/// Elements of one tensor: all bits may occur.
inline std::vector<float> elements(std::int64_t count, std::uint64_t stream) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i)
    values.push_back(static_cast<float>(philox_normal(3, stream, static_cast<std::uint64_t>(i))));
  values[0] = std::bit_cast<float>(0x80012345u);  // no arithmetic may touch it: it would vanish
  return values;
}

class HuggingFaceTest : public FolderTest {
 protected:
  /// A checkpoint of the small model at iteration 3.
  fs::path checkpoint(const std::string& deck = kDeck) {
    return checkpoint(deck, model::gpt2_spec(small_config()));
  }
  fs::path checkpoint(const std::string& deck, const model::ModelSpec& spec) {
    const std::vector<model::Parameter> table = model::declare_parameters(spec);
    std::vector<checkpoint::WholeTensor> tensors;
    for (std::size_t i = 0; i < table.size(); ++i)
      tensors.push_back({.name = "model/" + table[i].name,
                         .shape = table[i].shape,
                         .load = [&table, i](std::int64_t begin, std::int64_t end, float* out) {
                           const Shape& shape = table[i].shape;
                           const std::int64_t columns = shape.rank() == 2 ? shape[1] : 1;
                           const std::vector<float> all = elements(shape.size(), i);
                           std::copy(all.begin() + begin * columns, all.begin() + end * columns,
                                     out);
                         }});
    checkpoint::write_checkpoint(folder_ / "run.h5", train::RunState{.iteration = 3}.attributes(),
                                 deck, tensors);
    return folder_ / "run.h5";
  }
  /// The same for the model of `deck`.
  fs::path checkpoint_of(const std::string& deck) {
    const deck::Deck parsed = deck::parse(deck, "deck", {}, {.need_data = false});
    return checkpoint(deck, model::make_spec(parsed, {.size = *parsed.model.vocab}));
  }

  /// Expects the weights of two checkpoints to be the same, bit for bit.
  static void expect_same_weights(const fs::path& a, const fs::path& b) {
    const checkpoint::Reader before(a), after(b);
    for (const checkpoint::TensorInfo& tensor : before.header().tensors) {
      if (!tensor.name.starts_with("model/")) continue;
      ASSERT_NE(after.header().find(tensor.name), nullptr) << tensor.name;
      EXPECT_EQ(after.header().find(tensor.name)->checksum, tensor.checksum) << tensor.name;
    }
  }

  /// A folder that holds the small model.
  fs::path exported() {
    export_model(checkpoint(), folder_ / "out");
    return folder_ / "out";
  }

  /// Changes the config.json in `out`.
  void configure(const char* key, const nlohmann::json& value) const {
    nlohmann::json config = nlohmann::json::parse(read_file(folder_ / "out/config.json"));
    config[key] = value;
    file("out/config.json", config.dump());
  }

  /// Writes the tensors of `out` again, after `change` has had its way with names and elements.
  template <typename Change>
  void rewrite(const Change& change) const {
    std::vector<SafetensorsWriter::Tensor> tensors;
    std::vector<std::vector<float>> values;
    {
      const SafetensorsReader reader(folder_ / "out/model.safetensors");
      for (const TensorEntry& entry : reader.entries()) {
        tensors.push_back({entry.name, entry.shape});
        values.push_back(reader.read(entry));
      }
    }
    change(tensors, values);
    SafetensorsWriter writer(folder_ / "out/model.safetensors", tensors);
    for (const auto& each : values) writer.write(each);
    writer.finish();
  }

  std::string import_problem(const ImportOptions& options = {}) const {
    std::string text =
        message_of<DataError>([&] { import_model(folder_ / "out", folder_ / "bad.h5", options); });
    EXPECT_FALSE(fs::exists(folder_ / "bad.h5"));
    const std::string path = folder_.string() + "/";
    for (std::size_t at; (at = text.find(path)) != std::string::npos;) text.erase(at, path.size());
    return text;
  }
};

}  // namespace trireme::convert::huggingface
