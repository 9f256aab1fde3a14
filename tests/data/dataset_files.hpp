// What the tests of data share: a scratch folder, datasets written by hand, and the error text of a
// call.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "../scratch_folder.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "data/indexed_dataset.hpp"

namespace trireme::data {

/// A folder of golden files.
inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(TRIREME_SOURCE_DIR) / "tests" / "data" / name;
}

/// A test with its own folder.
class ScratchTest : public testing::Test {
 protected:
  const ScratchFolder scratch_;
  const std::filesystem::path folder_ = scratch_.path();
};

/// Appends the bytes of `value`.
template <typename T>
void append(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// The parts of an .idx file, each of which a test may falsify.
struct IdxContent {
  std::string magic = std::string("MMIDIDX\0\0", 9);
  std::uint64_t version = 1;
  std::uint8_t code = 8;
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> pointers;
  std::vector<std::int64_t> first_sequences;

  std::string bytes() const {
    std::string bytes = magic;
    append(bytes, version);
    append(bytes, code);
    append(bytes, std::uint64_t{lengths.size()});
    append(bytes, std::uint64_t{first_sequences.size()});
    for (const auto value : lengths) append(bytes, value);
    for (const auto value : pointers) append(bytes, value);
    for (const auto value : first_sequences) append(bytes, value);
    return bytes;
  }
};

/// A right index of sequences of these lengths, one document each, of elements of `item` bytes.
inline IdxContent make_idx(const std::vector<std::int32_t>& lengths, TokenType type) {
  IdxContent idx{.code = static_cast<std::uint8_t>(type), .lengths = lengths};
  std::int64_t position = 0;
  for (const auto length : lengths) {
    idx.pointers.push_back(position);
    position += length * static_cast<std::int64_t>(size_of(type));
  }
  idx.first_sequences.resize(lengths.size() + 1);
  std::iota(idx.first_sequences.begin(), idx.first_sequences.end(), 0);
  return idx;
}

/// Writes PREFIX.idx and PREFIX.bin: token t of the stream of T is first + t * step.
template <typename T>
void write_dataset(const std::filesystem::path& prefix, const std::vector<std::int32_t>& lengths,
                   TokenType type, T first = 0, T step = 1) {
  std::string bin;
  const auto tokens = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  for (std::int64_t t = 0; t < tokens; ++t)
    append(bin, static_cast<T>(first + static_cast<T>(t) * step));
  write_file_atomically(prefix.string() + ".bin", bin);
  write_file_atomically(prefix.string() + ".idx", make_idx(lengths, type).bytes());
}

/// The message and exit code of the Error that `call` throws; ("", success) when it throws none.
template <typename Call>
std::pair<std::string, ExitCode> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.what(), error.code()};
  }
  return {"", ExitCode::success};
}

/// Expects `call` to throw an Error with this exit code whose message contains `text`.
template <typename Call>
void expect_error(ExitCode code, const std::string& text, Call&& call) {
  const auto [message, found] = error_of(std::forward<Call>(call));
  EXPECT_EQ(found, code) << message;
  EXPECT_NE(message.find(text), std::string::npos) << "'" << message << "' lacks '" << text << "'";
}

}  // namespace trireme::data
