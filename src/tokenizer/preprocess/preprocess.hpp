// From documents to datasets: reading documents from text files and JSON lines, compressed or in
// tar archives; sentences; tokenizing; and writing Megatron-LM's indexed datasets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

class GzipReader;
class InputStream;

/// How an input is split into documents.
enum class DocumentFormat {
  by_name,        ///< text_lines for *.txt, compressed or not, otherwise json_lines
  by_name_whole,  ///< text_files for *.txt, compressed or not, otherwise json_lines
  json_lines,     ///< each line is a JSON object with the text under a key
  text_lines,     ///< each line is a document; blank lines are dropped unless keep_blank_lines
  text_files,     ///< each file is a document
  files_by_name,  ///< json_lines for *.jsonl and *.json, compressed or not, otherwise text_files
};

/// Which documents to read.
struct DocumentSource {
  std::vector<std::string> inputs;  ///< as InputStream takes them
  DocumentFormat format = DocumentFormat::by_name;
  std::string key = "text";  ///< of the text in JSON lines
  /// Blank lines of plain text are documents. No effect on JSON lines and whole files.
  bool keep_blank_lines = false;
};

/// Throws UsageError when an input is standard input, a pipe or a device: `reader` reads it again.
void require_rereadable(const std::vector<std::string>& inputs, const std::string& reader);

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
/// "input:line: reason" when the record is not JSON, has no such key, is not UTF-8; `plain_text`
/// says there what to do with a file of plain text.
std::string document_text(
    const DocumentBatch& batch, const DocumentBatch::Record& record, const std::string& key,
    const char* plain_text = "if each line is a document of plain text: --format text");

// ---- the parts that readers are made of

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

/// The last value under `key` of the JSON object, as it stands in `line`; nothing without the key.
std::optional<std::string_view> json_value(std::string_view line, const std::string& key);

/// `line`, a JSON object with at least one key, with the JSON text `value` under `key`: in the
/// place of json_value(), or else at the end. All other bytes stay, so that no number loses digits.
std::string with_json_value(std::string_view line, const std::string& key, std::string_view value);

/// `name` without the suffix of a compression that InputStream detects: .gz, .bz2, .xz, .zst.
std::string without_compression_suffix(std::string name);

/// The texts of an input in their order: the input itself, or the members *.txt, *.json and *.jsonl
/// of a tar archive; members that are tar archives or compressed (*.tar, *.xz, *.bz2, *.zst) are
/// read in place, as OpenWebText's archive of urlsf_*.xz. Detects compression by the first bytes,
/// not by the name: gzip (concatenated members, checksums verified), bzip2, xz, zstd.
class InputStream {
 public:
  /// Opens `input`, "-" being standard input. Throws IoError.
  explicit InputStream(const std::string& input);
  ~InputStream();

  /// Advances to the next text, the last being read to its end; false at the end. Throws DataError
  /// when the input is truncated or damaged, or is an archive without a text or with one in gzip.
  bool next();

  /// Up to `bytes` bytes of the text; 0 at its end. Throws IoError, and DataError as next().
  std::size_t read(char* buffer, std::size_t bytes);

  /// The text's name for messages: "corpus.txt.gz", "standard input", "corpus.tar:part/a.jsonl".
  const std::string& name() const { return name_; }

  /// The name that tells the text's format: that of the archive's member, or that of the input
  /// without the suffix of its compression: "corpus.txt", "part/a.jsonl".
  const std::string& plain_name() const { return plain_name_; }

 private:
  struct Archive;
  bool next_entry();

  std::string input_, name_, plain_name_;
  std::unique_ptr<GzipReader> source_;
  std::vector<std::unique_ptr<Archive>> archives_;  ///< each a member of the one before
  bool found_text_ = false;
};

// Splitting text into sentences by rules.

/// What the rules know of a language. Words are spelled as before their last period ("e.g"), and
/// match capitalized, too ("E.g").
struct SentenceRules {
  using Words = std::unordered_set<std::string_view>;
  std::string_view code, name;  ///< "en", "english"
  Words never_last;             ///< abbreviations that never end a sentence: Mr, e.g
  Words before_number;          ///< abbreviations only before a number or one capital: No, p, Fig
  Words perhaps_last;           ///< abbreviations that may end one: etc, Inc, a.m
  Words starters;               ///< words that, capitalized, start a sentence after these: The, It
  bool ordinal_period = false;  ///< whether "3." is an ordinal number
};

/// The rules of a language by its code or name; those of no language ("none") have no words.
/// Throws UsageError for an unknown language, naming those that there are.
const SentenceRules& sentence_rules(std::string_view language);

/// The sentences of valid UTF-8, in order, without the white space between them; with
/// `keep_newlines` each with the white space after it, so that they join to `text`. The rules:
///  1. A blank line ends a sentence; a single newline is white space.
///  2. A sentence ends with ".", "!", "?", "…" or another terminator of Unicode (UAX 29: STerm,
///     ATerm), or several, together with closing quotes and brackets and references like "[12]"
///     after them, where white space follows; a closing » may have white space before it.
///     Ideographic terminators need no white space.
///  3. Not where the next word is in lower case, or "," ";" ":" follows. Quotes, brackets and
///     dashes before that word do not count.
///  4. Not after one period that ends an abbreviation: one of `never_last`; one of `before_number`
///     before a number; one of `perhaps_last`, a single letter (an initial) or letters with periods
///     (U.S), unless the next word is one of `starters`.
///  5. Not after a number with one period that starts the sentence ("1. Introduction") or, with
///     `ordinal_period`, has at most two digits and is not followed by one of `starters`.
std::vector<std::string_view> split_sentences(std::string_view text, const SentenceRules& rules,
                                              bool keep_newlines = false);

/// `text` with plain punctuation: quotes of all forms (and `` and '') become " and ', dashes and
/// hyphens -, ellipses ..., blanks of all widths one blank, newlines kept; soft hyphens and
/// zero-width characters vanish.
std::string standardize_punctuation(std::string_view text);

// Preprocessing: tokenizes documents into an indexed dataset, or splits them into sentences.

/// Input, output and options of preprocess().
struct PreprocessOptions {
  DocumentSource source;
  std::string output;               ///< prefix of the file names
  bool append_eod = false;          ///< append the tokenizer's eod to each document that has tokens
  bool presplit_sentences = false;  ///< each line of a document is a sentence: a sequence
  const SentenceRules* split_sentences = nullptr;  ///< each sentence is a sequence; may be null
  bool keep_newlines = false;  ///< with split_sentences: sentences keep the white space after them
  bool skip_bad = false;       ///< skip and count unreadable documents instead of throwing
  int workers = 1;             ///< tokenizing threads; the caller's thread reads and writes
  std::FILE* log = nullptr;    ///< for messages about skipped documents
  std::FILE* progress = nullptr;  ///< for the progress meter
};

/// Totals of preprocess().
struct PreprocessSummary {
  std::filesystem::path dataset;  ///< prefix of .bin, .idx and .json
  std::int32_t vocab_size = 0;    ///< of the tokenizer
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  std::uint64_t bytes = 0;    ///< of input, after decompression
  std::uint64_t skipped = 0;  ///< unreadable documents
  double seconds = 0;
};

/// <output>_<key>_document, or <output>_<key>_sentence with presplit_sentences or split_sentences.
std::string dataset_prefix(const PreprocessOptions& options);

/// Writes dataset_prefix().{bin,idx,json}, the same bytes for any number of workers. Drops
/// sentences without tokens; the eod joins the last sentence. Throws what reading, tokenizing and
/// writing throw, the first error in the order of the input; DataError when there is no document;
/// UsageError when the tokenizer has no eod to append, or when presplit_sentences meets documents
/// of one line. After an exception an older dataset of this name is unchanged.
PreprocessSummary preprocess(const Tokenizer& tokenizer, const PreprocessOptions& options);

/// Input, output and options of presplit().
struct PresplitOptions {
  DocumentSource source;
  std::filesystem::path output;  ///< JSON lines
  const SentenceRules* rules = nullptr;
  bool standardize_punctuation = false;  ///< as the function of this name does, before splitting
  std::FILE* progress = nullptr;         ///< for the progress meter
};

/// Totals of presplit().
struct PresplitSummary {
  std::uint64_t documents = 0;
  std::uint64_t sentences = 0;
};

/// Writes the documents as JSON lines with a sentence per line of the text, as the
/// presplit_sentences_json.py of the first Megatron-LM does: newlines end sentences, too. Other
/// keys keep their bytes. Throws what reading and writing throw.
PresplitSummary presplit(const PresplitOptions& options);

/// Input, output and options of train_tokenizer().
struct TrainingOptions {
  DocumentSource source;
  /// The model (sentencepiece), vocabulary (wordpiece) or tokenizer.json (bpe).
  std::filesystem::path output;
  std::string type = "sentencepiece";  ///< sentencepiece, wordpiece or bpe
  std::int32_t size = 0;               ///< number of pieces, with the special tokens
  std::string model_type = "unigram";  ///< unigram or bpe: sentencepiece
  bool bert_tokens = false;            ///< add [PAD], [CLS], [SEP] and [MASK]: sentencepiece
  std::optional<bool> lowercase;       ///< as in TokenizerSpec: wordpiece
  std::int32_t alphabet = 1000;        ///< maximum number of distinct characters: wordpiece
  std::string pattern = "llama3";      ///< gpt2, llama3 or qwen: bpe
  bool skip_bad = false;               ///< leaves out documents that cannot be read
  std::FILE* progress = nullptr;       ///< for the progress meter
};

/// Totals of train_tokenizer().
struct TrainingSummary {
  std::uint64_t lines = 0;  ///< without empty lines
  std::uint64_t bytes = 0;
  double seconds = 0;
};

/// Trains on each line of the documents and writes the output; for sentencepiece also the .vocab
/// file next to the model. The same input gives the same bytes. Throws what reading and writing
/// throw; UsageError for an unknown type or options of the other type, DataError when the corpus is
/// too small or too varied for the size.
TrainingSummary train_tokenizer(const TrainingOptions& options);

// ---- Megatron-LM's indexed datasets: writing PREFIX.bin and PREFIX.idx, and PREFIX.json, which
// records how they were made

/// How a dataset was made.
struct DatasetInfo {
  TokenizerIdentity tokenizer;
  std::int32_t largest_id = -1;  ///< -1 without tokens
  std::uint64_t documents = 0;
  std::uint64_t tokens = 0;
  /// The options of trireme-preprocess; unset for a merge of datasets whose options differ.
  struct Options {
    std::string key;  ///< of the text in JSON lines
    bool append_eod = false;
    bool presplit_sentences = false;
    bool keep_blank_lines = false;
    std::string split_sentences = "";  ///< code of the language; "" without splitting
    bool keep_newlines = false;
    bool operator==(const Options&) const = default;
  };
  std::optional<Options> options;
};

/// PREFIX.json.
std::filesystem::path info_path(const std::filesystem::path& prefix);

/// The file's text.
std::string to_json(const DatasetInfo& info);

/// Reads PREFIX.json; nullopt when there is no such file, or when it is not a dataset's record (the
/// corpus may have this name). Throws IoError, and DataError that names a damaged record.
std::optional<DatasetInfo> read_dataset_info(const std::filesystem::path& prefix);

/// Throws UsageError when PREFIX.json is not a dataset's record: writing one would destroy it.
void refuse_foreign_info(const std::filesystem::path& prefix);

/// The folder of a file that will be written. Where it is missing it is made, with those above it;
/// folders that were made are removed again if they are empty in the end.
class OutputFolder {
 public:
  /// Makes the folder of `file`. Throws IoError, also where `file` is a device, or the folder would
  /// be a new one directly below the root of the file system: there names are mistyped.
  explicit OutputFolder(const std::filesystem::path& file);
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;
  ~OutputFolder();

 private:
  std::vector<std::filesystem::path> made_;  ///< the innermost first
};

/// A new file under the name `<path>.part`, locked against other processes, until publish() renames
/// the complete file.
class PartFile {
 public:
  /// Creates the part, and its folder where it is missing. Throws IoError, as OutputFolder, and
  /// when another process is writing the part.
  explicit PartFile(std::filesystem::path path);
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;
  /// Removes the part unless it was published.
  ~PartFile();

  /// Appends bytes. Throws IoError.
  void write(const void* data, std::size_t bytes);

  /// Flushes to the disk. Throws IoError.
  void sync();

  /// Renames the synced part to `path`, replacing an older file. Throws IoError.
  void publish();

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::filesystem::path part_;
  OutputFolder folder_;
  std::unique_ptr<std::FILE, Close> file_;
};

/// Element type of a dataset: its code in the .idx header and its size.
struct ElementType {
  std::uint8_t code = 0;
  std::size_t bytes = 0;
};

/// Writes `<prefix>.bin` and `<prefix>.idx` byte for byte as Megatron-LM's IndexedDatasetBuilder.
/// Neither name is touched before finish(); a writer destroyed without it leaves no trace.
class DatasetWriter {
 public:
  /// Ids are stored in 16 bits when vocab_size < 65500 (Megatron's limit), else in 32. Throws as
  /// PartFile and refuse_foreign_info().
  DatasetWriter(const std::filesystem::path& prefix, std::int32_t vocab_size);

  /// Elements are of `type`. Throws the same.
  DatasetWriter(const std::filesystem::path& prefix, ElementType type);

  /// Appends a sequence of ids to the current document. Only for a writer that was made with a
  /// vocabulary. Throws as add_elements().
  void add_sequence(std::span<const std::int32_t> ids);

  /// Appends a sequence of whole elements to the current document. Throws IoError, and DataError
  /// for 2^31 elements or more.
  void add_elements(std::span<const std::byte> elements);

  /// Ends the current document, which may have no sequence.
  void end_document() { document_indices_.push_back(static_cast<std::int64_t>(lengths_.size())); }

  /// Appends a document of one sequence; without ids it is a document of no sequence. Throws as
  /// add_elements().
  void add_document(std::span<const std::int32_t> ids);

  /// The largest id that add_sequence() has written; -1 before any.
  std::int32_t largest_id() const { return largest_id_; }

  /// Syncs and publishes the files, the index last: a dataset with an index is complete. Writes
  /// `info` as PREFIX.json; without `info` removes an older dataset's. Throws IoError.
  void finish(const std::optional<DatasetInfo>& info = std::nullopt);

 private:
  void write_index();

  std::filesystem::path prefix_;
  ElementType type_;
  std::filesystem::path index_path_;
  PartFile tokens_;
  PartFile index_;
  std::vector<std::uint16_t> narrowed_;
  std::int32_t largest_id_ = -1;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> document_indices_ = {0};
};

}  // namespace trireme::tokenizer
