#include "data/bert/bert_split.hpp"

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/preprocess/gzip.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t kHeaderBytes = 12, kFooterBytes = 4;
constexpr std::size_t kBlockBytes = 1 << 18;

template <typename T>
T load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

bool has_good_header(std::string_view header) {
  return load<std::uint32_t>(header.data() + 8) == masked_crc32c(header.substr(0, 8));
}

std::string read_header(const ReadFile& file, std::int64_t at) {
  std::string header(kHeaderBytes, '\0');
  file.read(static_cast<std::size_t>(at), header.data(), header.size());
  return header;
}

}  // namespace

std::vector<std::int64_t> scan_records(const std::filesystem::path& path) {
  const ReadFile file(path);
  const auto size = static_cast<std::int64_t>(file.size());
  std::vector<std::int64_t> offsets = {0};
  for (std::int64_t at = 0; at < size; offsets.push_back(at)) {
    const auto fail = [&](const std::string& reason) {
      throw DataError("'{}', record {} at byte {}: {}", path.string(), offsets.size() - 1, at,
                      reason);
    };
    if (size - at < kHeaderBytes)
      fail(fmt::format("truncated: its header needs {} bytes, the file has {}", kHeaderBytes,
                       size - at));
    const std::string header = read_header(file, at);
    if (!has_good_header(header))
      fail(at == 0 ? "not a TFRecord file: the checksum of the first length is wrong"
                   : "damaged: the checksum of its length is wrong");
    const auto length = load<std::uint64_t>(header.data());
    const auto left = static_cast<std::uint64_t>(size - at - kHeaderBytes);
    if (left < kFooterBytes || length > left - kFooterBytes)
      fail(
          fmt::format("truncated: it needs {} bytes of data and {} of their checksum, the file has "
                      "{}",
                      length, kFooterBytes, left));
    at += kHeaderBytes + static_cast<std::int64_t>(length) + kFooterBytes;
  }
  return offsets;
}

bool is_gzip(const std::filesystem::path& path) {
  const ReadFile file(path);
  if (file.size() < 3) return false;
  std::array<unsigned char, 3> magic{};
  file.read(0, magic.data(), magic.size());
  if (magic[0] != 0x1f || magic[1] != 0x8b || magic[2] != 8) return false;
  // A record's length may begin with the same bytes.
  return file.size() < kHeaderBytes || !has_good_header(read_header(file, 0));
}

void unpack_gzip(const std::filesystem::path& path, const std::filesystem::path& output) {
  require_regular_file(path);
  tokenizer::GzipReader packed(path.string());

  std::ofstream file(output, std::ios::binary | std::ios::trunc);
  std::vector<char> block(kBlockBytes);
  std::int64_t unpacked = 0;
  std::string problem;
  ExitCode code = ExitCode::data;
  while (file) {
    const ssize_t got = packed.read(block.data(), block.size());
    if (got <= 0) break;
    file.write(block.data(), got);
    unpacked += got;
  }
  if (!packed.io_error().empty()) {
    problem = fmt::format("cannot read '{}': {}", path.string(), packed.io_error());
    code = ExitCode::io;
  } else if (!packed.data_error().empty()) {
    problem = fmt::format("'{}': broken gzip stream after {} unpacked bytes: {}", path.string(),
                          unpacked, packed.data_error());
  }
  file.close();
  std::error_code ignored;
  if (problem.empty() && !file) {
    problem = fmt::format("cannot write '{}': {}", output.string(), std::strerror(errno));
    code = ExitCode::io;
  }
  if (!problem.empty()) {
    std::filesystem::remove(output, ignored);
    throw Error(code, problem);
  }
  sync_path(output);
}

RecordFile::RecordFile(const std::filesystem::path& path, std::string name, NpyArray offsets)
    : file_(path), name_(std::move(name)), offsets_(std::move(offsets)) {
  if (offsets_.rows() < 1 ||
      offsets_(offsets_.rows() - 1) != static_cast<std::int64_t>(file_.size()))
    throw DataError("'{}' has changed while it was opened", name_);
}

std::string RecordFile::place_of(std::int64_t i) const {
  return fmt::format("'{}', record {} at byte {}", name_, i, offsets_(i));
}

void RecordFile::read(std::int64_t i, std::string& data) const {
  TRIREME_CHECK(i >= 0 && i < records(), "record {} of {}", i, records());
  const std::int64_t begin = offsets_(i), bytes = offsets_(i + 1) - begin;
  data.resize(static_cast<std::size_t>(bytes));
  file_.read(static_cast<std::size_t>(begin), data.data(), data.size());
  const auto length = static_cast<std::size_t>(bytes - kHeaderBytes - kFooterBytes);
  if (!has_good_header(data) || load<std::uint64_t>(data.data()) != length)
    throw DataError("{}: damaged: the checksum of its length is wrong", place_of(i));
  const auto checksum = load<std::uint32_t>(data.data() + kHeaderBytes + length);
  data.erase(0, kHeaderBytes);
  data.resize(length);
  if (masked_crc32c(data) != checksum)
    throw DataError("{}: damaged: the checksum of its data is wrong", place_of(i));
}

// -- Protocol buffers -----------------------------------------------------------------------------

namespace {

/// Reads the fields of one message.
class Message {
 public:
  Message(std::string_view data, const std::string& place) : rest_(data), place_(place) {}

  /// Goes to the next field; false at the end.
  bool next() {
    if (rest_.empty()) return false;
    const std::uint64_t key = varint();
    field_ = key >> 3;
    wire_ = static_cast<WireType>(key & 7);
    return true;
  }
  bool is(std::uint64_t field, WireType wire) const { return field_ == field && wire_ == wire; }
  bool empty() const { return rest_.empty(); }

  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const auto byte = static_cast<unsigned char>(take(1)[0]);
      value |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    fail("a number of more than 64 bits");
  }
  std::string_view bytes() { return take(varint()); }
  float fixed32() { return load<float>(take(4).data()); }

  /// Skips the value of the field.
  void skip() {
    switch (wire_) {
      case WireType::varint:
        varint();
        return;
      case WireType::fixed64:
        take(8);
        return;
      case WireType::bytes:
        bytes();
        return;
      case WireType::fixed32:
        take(4);
        return;
    }
    fail(fmt::format("field {} of the unknown wire type {}", field_, static_cast<int>(wire_)));
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const {
    throw DataError("{}: not a tf.train.Example: {}", place_, reason);
  }
  std::string_view take(std::uint64_t bytes) {
    if (bytes > rest_.size())
      fail(fmt::format("a field needs {} bytes, the message has {}", bytes, rest_.size()));
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }

  std::string_view rest_;
  const std::string& place_;
  std::uint64_t field_ = 0;
  WireType wire_ = WireType::varint;
};

// Numbers of feature.proto.
constexpr std::uint64_t kFeatures = 1, kFeature = 1, kKey = 1, kValue = 2, kFloatList = 2,
                        kInt64List = 3, kElements = 1;

/// The elements of an Int64List or FloatList, packed or one by one.
template <typename T>
void parse_list(Message list, const std::string& place, std::vector<T>& values) {
  const auto element = [](Message& from) {
    if constexpr (std::is_same_v<T, float>)
      return from.fixed32();
    else
      return static_cast<std::int64_t>(from.varint());
  };
  while (list.next()) {
    if (list.is(kElements, std::is_same_v<T, float> ? WireType::fixed32 : WireType::varint))
      values.push_back(element(list));
    else if (list.is(kElements, WireType::bytes))
      for (Message packed(list.bytes(), place); !packed.empty();) values.push_back(element(packed));
    else
      list.skip();
  }
}

/// The list of a Feature. Throws when it is of another kind.
template <typename T>
void parse_feature(std::string_view data, std::string_view name, const std::string& place,
                   std::vector<T>& values) {
  constexpr bool kFloats = std::is_same_v<T, float>;
  values.clear();
  bool found = false;
  for (Message feature(data, place); feature.next();) {
    if (!feature.is(kFloats ? kFloatList : kInt64List, WireType::bytes)) {
      feature.skip();
      continue;
    }
    parse_list(Message(feature.bytes(), place), place, values);
    found = true;
  }
  if (!found)
    throw DataError("{}: feature '{}' is not a list of {}", place, name,
                    kFloats ? "floats" : "whole numbers");
}

/// Calls visit(name, bytes of the Feature) for each entry of an Example.
template <typename Visit>
void for_each_feature(std::string_view data, const std::string& place, Visit&& visit) {
  for (Message example(data, place); example.next();) {
    if (!example.is(kFeatures, WireType::bytes)) {
      example.skip();
      continue;
    }
    for (Message features(example.bytes(), place); features.next();) {
      if (!features.is(kFeature, WireType::bytes)) {
        features.skip();
        continue;
      }
      std::string_view name, value;
      for (Message entry(features.bytes(), place); entry.next();) {
        if (entry.is(kKey, WireType::bytes))
          name = entry.bytes();
        else if (entry.is(kValue, WireType::bytes))
          value = entry.bytes();
        else
          entry.skip();
      }
      visit(name, value);
    }
  }
}

}  // namespace

PretrainingExample parse_pretraining_example(std::string_view data, const std::string& place) {
  PretrainingExample example;
  const std::array<std::pair<std::string_view, std::vector<std::int64_t>*>, 6> lists = {
      {{"input_ids", &example.input_ids},
       {"input_mask", &example.input_mask},
       {"segment_ids", &example.segment_ids},
       {"masked_lm_positions", &example.masked_lm_positions},
       {"masked_lm_ids", &example.masked_lm_ids},
       {"next_sentence_labels", &example.next_sentence_labels}}};
  constexpr std::string_view kWeights = "masked_lm_weights";
  std::array<bool, lists.size() + 1> found{};
  for_each_feature(data, place, [&](std::string_view name, std::string_view value) {
    for (std::size_t i = 0; i < lists.size(); ++i) {
      if (lists[i].first != name) continue;
      parse_feature(value, name, place, *lists[i].second);
      found[i] = true;
    }
    if (name == kWeights) {
      parse_feature(value, name, place, example.masked_lm_weights);
      found.back() = true;
    }
  });
  for (std::size_t i = 0; i < found.size(); ++i)
    if (!found[i])
      throw DataError("{}: no feature '{}'; expected an example of create_pretraining_data", place,
                      i < lists.size() ? lists[i].first : kWeights);
  return example;
}

}  // namespace trireme::data
