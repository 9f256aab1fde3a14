#include "seeds.hpp"

#include <vector>

#include "checkpoint/elements.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/local/shard.hpp"
#include "convert/huggingface/safetensors.hpp"
#include "core/files.hpp"

namespace trireme::fuzz {
namespace fs = std::filesystem;

namespace {

/// The file that `make` writes.
template <typename Make>
std::string made(const fs::path& path, const Make& make) {
  make(path);
  return read_file(path);
}

}  // namespace

std::string a_checkpoint(const fs::path& folder) {
  const std::vector<float> values(40, 0.5f);
  return made(folder / "seed.h5", [&](const fs::path& path) {
    checkpoint::write_checkpoint(
        path, {{"iteration", std::int64_t{3}}, {"loss_scale", 2.0}, {"note", std::string("a")}},
        "run: {name: a}\n",
        {{.name = "model/a", .shape = {4, 10}, .data = values.data()},
         {.name = "model/b", .shape = {7}, .data = values.data()}});
  });
}

std::string a_compressed_checkpoint(const fs::path& folder) {
  (void)a_checkpoint(folder);
  const fs::path path = folder / "seed.h5";
  const checkpoint::Header header = checkpoint::read_header(path);
  std::vector<checkpoint::LocalTensor> tensors;
  std::vector<std::uint64_t> checksums;
  std::vector<std::int64_t> offsets;
  for (const checkpoint::TensorInfo& tensor : header.tensors) {
    tensors.push_back({.name = tensor.name, .shape = tensor.shape, .dtype = tensor.dtype});
    checksums.push_back(tensor.checksum);
    offsets.push_back(tensor.offset.value());
  }
  checkpoint::compress(path, {header.attributes, header.deck, tensors, checksums}, offsets,
                       /*level=*/6, [] {});
  return read_file(path);
}

std::string a_shard(const fs::path& folder) {
  std::vector<float> values(40, 0.5f);
  checkpoint::LocalTensor tensor{.name = "model/a", .shape = {4, 10}};
  tensor.pieces.push_back({.slabs = {grid::whole_tensor({4, 10})}, .data = values.data()});
  return made(folder / "seed.shard", [&](const fs::path& path) {
    checkpoint::write_shard(path, {.iteration = 3, .ranks = 1, .attributes = {{"a", 1.5}}},
                            {tensor}, [] {});
  });
}

std::string a_safetensors(const fs::path& folder) {
  return made(folder / "seed.safetensors", [&](const fs::path& path) {
    convert::huggingface::SafetensorsWriter writer(path, {{"a", {2, 3}}, {"b", {4}}});
    writer.write(std::vector<float>(6, 1.0f));
    writer.write(std::vector<float>(4, 1.0f));
    writer.finish();
  });
}

/// torch.save() of a dict with a tensor: a zip archive whose entries are not compressed.
std::string an_archive() {
  using namespace std::string_literals;
  const std::string pickle =
      "\x80\x02}q\0(X\1\0\0\0aq\1"s
      "ctorch._utils\n_rebuild_tensor_v2\nq\2((X\7\0\0\0storageq\3"
      "ctorch\nFloatStorage\nq\4X\1\0\0\0"
      "0q\5X\3\0\0\0cpuq\6K\6tq\7QK\0K\2K\3\x86q\x08K\3K\1\x86q\x09"
      "\x89}q\x0atq\x0bRq\x0cX\1\0\0\0xK\5u."s;
  std::string zip, directory;
  int entries = 0;
  const auto put = [](std::string& to, std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to += static_cast<char>(value >> (8 * i));
  };
  const auto add = [&](const std::string& name, const std::string& content) {
    const std::uint64_t at = zip.size();
    std::string common;
    for (const int zero : {0, 0, 0, 0}) put(common, static_cast<std::uint64_t>(zero), 2);
    put(common, 0, 4);
    put(common, content.size(), 4);
    put(common, content.size(), 4);
    put(common, name.size(), 2);
    put(common, 0, 2);
    put(zip, 0x04034b50, 4);
    put(zip, 20, 2);
    zip += common + name + content;
    put(directory, 0x02014b50, 4);
    put(directory, 20, 2);
    put(directory, 20, 2);
    directory += common;
    for (int i = 0; i < 5; ++i) put(directory, 0, 2);
    put(directory, at, 4);
    directory += name;
    ++entries;
  };
  add("x/data.pkl", pickle);
  add("x/data/0", std::string(24, '\1'));
  const std::uint64_t at = zip.size();
  zip += directory;
  put(zip, 0x06054b50, 4);
  put(zip, 0, 4);
  put(zip, static_cast<std::uint64_t>(entries), 2);
  put(zip, static_cast<std::uint64_t>(entries), 2);
  put(zip, directory.size(), 4);
  put(zip, at, 4);
  put(zip, 0, 2);
  return zip;
}

/// A tf.train.Example of create_pretraining_data: lists of integers, packed and not, and of floats.
std::string an_example() {
  using namespace std::string_literals;
  const auto field = [](char number, const std::string& bytes) {
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
  };
  const auto feature = [&](const std::string& name, char kind, const std::string& list) {
    return field(1, field(1, name) + field(2, field(kind, list)));
  };
  const std::string packed = field(1, "\1\3\7\2"), loose = "\x08\1\x08\1\x08\0\x08\0"s;
  return field(1, feature("input_ids", 3, packed) + feature("input_mask", 3, loose)) +
         field(1,
               feature("segment_ids", 3, loose) + feature("next_sentence_labels", 3, "\x08\1"s)) +
         field(1, feature("masked_lm_positions", 3, field(1, "\2"))) +
         field(1, feature("masked_lm_ids", 3, field(1, "\7"))) +
         field(1, feature("masked_lm_weights", 2, field(1, "\0\0\x80\x3f"s)));
}

std::string a_record_file() {
  std::string bytes;
  for (int i = 0; i < 2; ++i) {
    const std::string data = an_example();
    std::string length(8, '\0');
    length[0] = static_cast<char>(data.size());
    length[1] = static_cast<char>(data.size() >> 8);
    for (const std::string& part : {length, data}) {
      const std::uint32_t crc = masked_crc32c(part);
      bytes += part;
      for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(crc >> shift);
    }
  }
  return bytes;
}

}  // namespace trireme::fuzz
