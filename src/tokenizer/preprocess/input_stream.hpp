// Bytes of an input, whatever it is packed in.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace trireme::tokenizer {

/// The texts inside an input, one after the other: the input itself, or the members *.txt, *.json
/// and *.jsonl of a tar archive in their order. Compression is told by the first bytes, not the
/// name: gzip (members one after the other, checksums verified), bzip2, xz, zstd.
class InputStream {
 public:
  /// Opens `input`, "-" being standard input. Throws IoError.
  explicit InputStream(const std::string& input);
  ~InputStream();

  /// Goes to the first or next text; false when there is none. Throws DataError when the input is
  /// truncated or damaged, or is an archive without a text or with one that is packed once more.
  bool next();

  /// Up to `bytes` bytes of the text; 0 at its end. Throws IoError, and DataError as next().
  std::size_t read(char* buffer, std::size_t bytes);

  /// The text's name for messages: "corpus.txt.gz", "standard input", "corpus.tar:part/a.jsonl".
  const std::string& name() const { return name_; }

  /// The name that says what the text is: that of the archive's member, or of the input without
  /// what says that it is packed: "corpus.txt", "part/a.jsonl".
  const std::string& plain_name() const { return plain_name_; }

 private:
  struct Source;
  struct Archive;
  bool next_entry();

  std::string input_, name_, plain_name_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<Archive> archive_;
  bool found_text_ = false;
};

}  // namespace trireme::tokenizer
