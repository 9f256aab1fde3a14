// Reading documents from text files and JSON lines, packed or not.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tokenizer/preprocess/input_stream.hpp"

namespace trireme::tokenizer {

/// How an input is cut into documents.
enum class DocumentFormat {
  by_name,     ///< text_lines for *.txt, packed or not, otherwise json_lines
  json_lines,  ///< a JSON object a line, the text under a key
  text_lines,  ///< a line a document; blank lines are left out unless keep_blank_lines
  text_files,  ///< a file a document
};

/// Which documents to read.
struct DocumentSource {
  std::vector<std::string> inputs;  ///< as InputStream takes them
  DocumentFormat format = DocumentFormat::by_name;
  std::string key = "text";  ///< of the text in JSON lines
  /// Blank lines of plain text are documents, too. No effect on JSON lines and whole files.
  bool keep_blank_lines = false;
};

/// Some consecutive documents of one input, as they lie there.
struct DocumentBatch {
  /// Where a document lies in `bytes`.
  struct Record {
    std::size_t offset, size;
    std::uint64_t line;  ///< from 1; 0 when the document is the whole input
  };
  std::string input;  ///< the input's name for messages
  bool json = false;
  std::string bytes;
  std::vector<Record> records;
};

/// Reads a source from its first document to its last. The batches do not depend on who asks.
class DocumentReader {
 public:
  /// Throws IoError when an input file cannot be read or is a folder, UsageError when there is none
  /// or standard input is named twice, DataError for the text of Megatron-LM v0's lazy loader.
  explicit DocumentReader(DocumentSource source);

  /// Reads about a megabyte, or a whole document if it is longer. False at the end. Throws as
  /// InputStream does, and DataError for files of known formats that are no text.
  bool read(DocumentBatch& batch);

 private:
  bool open_next();
  bool fill(std::string& bytes);
  void cut(DocumentBatch& batch);

  DocumentSource source_;
  std::size_t next_ = 0;
  std::unique_ptr<InputStream> input_;
  bool in_text_ = false;  ///< of input_
  DocumentFormat format_ = DocumentFormat::json_lines;
  std::uint64_t line_ = 0;
  std::string rest_;  ///< the beginning of a line whose end is still to be read
};

/// Where a record lies, for messages: "input:line", or the input where it is the document.
std::string place_of(const DocumentBatch& batch, const DocumentBatch::Record& record);

/// The text of one record: valid UTF-8. `key` names it in JSON lines. Throws DataError
/// "input:line: reason" when the record is not JSON, has no such key, is not UTF-8.
std::string document_text(const DocumentBatch& batch, const DocumentBatch::Record& record,
                          const std::string& key);

}  // namespace trireme::tokenizer
