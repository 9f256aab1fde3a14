// Vocabulary files: JSON objects {"token": id}, or a token per line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace trireme::tokenizer {

/// The end-of-document token.
inline constexpr std::string_view kEndOfText = "<|endoftext|>";

/// Tokens and their ids, 0 to size() - 1, each used once.
class Vocabulary {
 public:
  enum class Format {
    json,  ///< an object {"token": id} with the ids 0 to N-1, each once
    lines  ///< a token per line, in the order of their ids; each once
  };

  /// Reads `path`. Throws IoError when it cannot be read, DataError (file and reason) when it is
  /// not of `format`.
  explicit Vocabulary(const std::filesystem::path& path, Format format = Format::json);

  /// The file, for messages.
  const std::filesystem::path& path() const { return path_; }

  std::int32_t size() const { return static_cast<std::int32_t>(tokens_.size()); }

  /// The token of `id`, which must be below size(), as the file spells it.
  const std::string& token(std::int32_t id) const { return tokens_[static_cast<std::size_t>(id)]; }

  /// A hash of the tokens in the order of their ids.
  std::uint64_t hash() const;

  /// The id of `token`, if the vocabulary has it.
  std::optional<std::int32_t> find(std::string_view token) const;

 private:
  void read_json(const std::string& content);
  void read_lines(std::string_view content);
  struct Hash : std::hash<std::string_view> {
    using is_transparent = void;
  };
  std::filesystem::path path_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
};

/// Throws DataError that names `tokenizer` unless 0 <= id < vocab_size.
void check_id(std::string_view tokenizer, std::int32_t id, std::int32_t vocab_size);

}  // namespace trireme::tokenizer
