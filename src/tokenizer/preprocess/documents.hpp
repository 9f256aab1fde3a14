// Reading documents from text files and JSON lines, compressed or in tar archives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::tokenizer {

class InputStream;

/// How an input is split into documents.
enum class DocumentFormat {
  by_name,     ///< text_lines for *.txt, compressed or not, otherwise json_lines
  json_lines,  ///< each line is a JSON object with the text under a key
  text_lines,  ///< each line is a document; blank lines are dropped unless keep_blank_lines
  text_files,  ///< each file is a document
};

/// Which documents to read.
struct DocumentSource {
  std::vector<std::string> inputs;  ///< as InputStream takes them
  DocumentFormat format = DocumentFormat::by_name;
  std::string key = "text";  ///< of the text in JSON lines
  /// Blank lines of plain text are documents. No effect on JSON lines and whole files.
  bool keep_blank_lines = false;
};

/// Consecutive documents of one input, in the input's own bytes.
struct DocumentBatch {
  /// The range of a document in `bytes`.
  struct Record {
    std::size_t offset, size;
    std::uint64_t line;  ///< from 1; 0 when the document is the whole input
  };
  std::string input;  ///< the input's name for messages
  bool json = false;
  std::string bytes;
  std::vector<Record> records;
};

/// Reads a source from its first document to its last. The batches depend on the source alone.
class DocumentReader {
 public:
  /// Throws IoError when an input file cannot be read or is a folder, UsageError when there is none
  /// or standard input is named twice, DataError for the files of Megatron-LM v0's lazy loader.
  explicit DocumentReader(DocumentSource source);

  /// Reads about a megabyte, or a whole document if it is longer. False at the end. Throws as
  /// InputStream does, and DataError for known binary formats (Parquet, Arrow, zip).
  bool read(DocumentBatch& batch);

 private:
  bool open_next();
  bool fill(std::string& bytes);
  void cut(DocumentBatch& batch);

  DocumentSource source_;
  std::size_t next_ = 0;
  std::unique_ptr<InputStream> input_;
  bool in_text_ = false;  ///< whether input_ is inside a text
  DocumentFormat format_ = DocumentFormat::json_lines;
  std::uint64_t line_ = 0;
  std::string rest_;  ///< the start of a line whose end is not read yet
};

/// The place of a record for messages: "input:line", or "input" where the file is the document.
std::string place_of(const DocumentBatch& batch, const DocumentBatch::Record& record);

/// The text of one record: valid UTF-8. `key` names it in JSON lines. Throws DataError
/// "input:line: reason" when the record is not JSON, has no such key, is not UTF-8.
std::string document_text(const DocumentBatch& batch, const DocumentBatch::Record& record,
                          const std::string& key);

// --- The parts that readers are made of
// -----------------------------------------------------------

/// The string under `key` of the JSON object in `line`; a repeated key has its last value. Reads
/// what Python's json.loads reads: NaN, Infinity and -Infinity are numbers, numbers may be
/// of any size, and strings under other keys may hold lone surrogates. Throws DataError
/// "place: reason" when the line is not a JSON object or has no valid string under that key.
std::string json_text(std::string_view line, const std::string& key, const std::string& place);

/// Deeper JSON is refused where it is copied, compared or printed, which recurses.
inline constexpr int kMaxJsonDepth = 500;

/// How deep arrays and objects are nested in JSON.
int json_depth(std::string_view json);

/// Whether json_text() reads `line` as a JSON object.
bool is_json_object(std::string_view line);

/// The texts of an input in their order: the input itself, or the members *.txt, *.json and *.jsonl
/// of a tar archive; members that are tar archives or compressed (*.tar, *.xz, *.bz2, *.zst) are
/// read in place, as OpenWebText's archive of urlsf_*.xz. Detects compression by the first bytes,
/// not by the name: gzip (concatenated members, checksums verified), bzip2, xz, zstd.
class InputStream {
 public:
  /// Opens `input`, "-" being standard input. Throws IoError.
  explicit InputStream(const std::string& input);
  ~InputStream();

  /// Advances to the first or next text; false at the end. Throws DataError when the input is
  /// truncated or damaged, or is an archive without a text or with a text packed by gzip.
  bool next();

  /// Up to `bytes` bytes of the text; 0 at its end. Throws IoError, and DataError as next().
  std::size_t read(char* buffer, std::size_t bytes);

  /// The text's name for messages: "corpus.txt.gz", "standard input", "corpus.tar:part/a.jsonl".
  const std::string& name() const { return name_; }

  /// The name that tells the text's format: that of the archive's member, or that of the input
  /// without the suffix of its compression: "corpus.txt", "part/a.jsonl".
  const std::string& plain_name() const { return plain_name_; }

 private:
  struct Source;
  struct Archive;
  bool next_entry();

  std::string input_, name_, plain_name_;
  std::unique_ptr<Source> source_;
  std::vector<std::unique_ptr<Archive>> archives_;  ///< each a member of the one before
  bool found_text_ = false;
};

}  // namespace trireme::tokenizer
