// Megatron's indexed datasets: PREFIX.bin holds tokens back to back, PREFIX.idx says where each
// sequence and each document begins. Their division into train, valid and test parts, how many
// samples a run takes of each, the blend of several, and what is made of datasets before training.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/files.hpp"
#include "data/numpy.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::data {

/// The three parts of a dataset.
enum class Split { train = 0, valid = 1, test = 2 };

/// "train", "valid" or "test".
std::string_view name_of(Split split);

/// "train", "valid" or "test" read back; throws UsageError for anything else.
Split parse_split(std::string_view text);

/// Sequences [begin, end) of a dataset.
struct SequenceRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const SequenceRange&) const = default;
};

/// The weights of train, valid and test divided by their sum.
using SplitWeights = std::array<double, 3>;

/// Divides one to three weights, missing ones being 0, by their sum. Throws DeckError, naming
/// data.split, when there are more, when one is negative or not finite, or when all are 0.
SplitWeights normalize_weights(std::span<const double> weights);

/// Weights as a deck writes them: "969,30,1".
std::string to_text(std::span<const double> weights);

/// Reads "969,30,1": numbers separated by commas, slashes or spaces. Throws DeckError, naming
/// data.split, when a word is not a plain decimal number.
std::vector<double> parse_split_weights(std::string_view text);

/// The sequences of a part: boundaries are the running sums of the weights times `sequences`,
/// rounded half to even, as Megatron-LM does it.
SequenceRange split_range(const SplitWeights& weights, Split split, std::int64_t sequences);

/// How long a run trains and how often it evaluates.
struct RunLength {
  std::int64_t train_samples = 0;
  std::int64_t evaluations = 0;         ///< while it trains, those at the end not counted
  std::int64_t evaluation_samples = 0;  ///< of one evaluation
};

/// Samples that a run takes of a part: train: its own; valid: its evaluations and the one at the
/// end, even where that is the last of them, as in Megatron-LM; test: one evaluation.
std::int64_t samples_wanted(Split split, const RunLength& run);

// ---- Megatron-LM's blend: which dataset each sample of several mixed ones comes from

/// The weights divided by their sum, which is added up in numpy's order. Throws DeckError when one
/// is not above 0, and when there are more than a blend can hold (32766).
std::vector<double> normalize_blend(std::span<const double> weights);

/// Samples that a dataset of normalised weight `weight` gives to a blend of `samples`:
/// ceil(samples * weight).
std::int64_t blend_share(double weight, std::int64_t samples);

/// Samples that its index is built for: half a percent more than its share, rounded up.
std::int64_t share_to_build(double weight, std::int64_t samples);

/// Sample i of a blend is sample `sample`(i) of dataset `dataset`(i).
struct BlendIndex {
  NpyArray dataset;  ///< [samples] int16
  NpyArray sample;   ///< [samples] int64: 0, 1, 2, ... within each dataset

  std::int64_t samples() const { return dataset.rows(); }
};

/// Mixes by normalised weights: sample i comes from the dataset that is furthest below its weight
/// times i, the first of equals. As many samples as the datasets' shares of `samples` add up to.
BlendIndex build_blend_index(std::span<const double> weights, std::int64_t samples);

/// Mixes all samples of datasets of `sizes` samples, by the same rule with the sizes as weights
/// among those that are not yet used up; at most `samples` of them.
BlendIndex build_exhaustive_blend_index(std::span<const std::int64_t> sizes, std::int64_t samples);

/// Checks an index against the sizes of the datasets: that each sample is the next one of an
/// existing dataset, and that they hold the first `wanted` samples. Throws DataError that begins
/// with `name`. Returns how many samples they hold: every share is rounded up, so that an index is
/// longer than what is wanted, and the rest of it may take more of a dataset than its share.
std::int64_t check_blend_index(const BlendIndex& index, std::span<const std::int64_t> sizes,
                               std::int64_t wanted, const std::string& name);

// ---- indexed datasets

/// What one element of a .bin file is; the values are the codes of the .idx header.
enum class TokenType : std::uint8_t {
  uint8 = 1,
  int8 = 2,
  int16 = 3,
  int32 = 4,
  int64 = 5,
  float64 = 6,
  float32 = 7,
  uint16 = 8,
};

/// "uint16" and so on.
std::string_view name_of(TokenType type);

/// Bytes of one element.
std::size_t size_of(TokenType type);

/// The prefix that names a dataset: `path` without an ending ".bin" or ".idx".
std::filesystem::path dataset_prefix(const std::filesystem::path& path);

/// An open dataset whose index is wholly validated. The index is mapped to memory, tokens are read
/// when they are needed. A document is a run of consecutive sequences (one, as
/// GPT preprocessing writes them); either may be empty.
class IndexedDataset {
 public:
  /// Maps PREFIX.idx, opens PREFIX.bin and checks all of the index: afterwards nothing in it can
  /// lead outside the files. Throws IoError when a file cannot be opened, and DataError, naming the
  /// file, when it is truncated, foreign or inconsistent, or when `prefix` itself is one. Header
  /// code 7 is float32, or float64 when only that agrees with the size of the .bin file
  /// (Megatron 23.04 wrote 7 for float64).
  explicit IndexedDataset(const std::filesystem::path& prefix);

  const std::filesystem::path& prefix() const { return prefix_; }
  TokenType type() const { return type_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }

  /// Tokens in a sequence, 0 <= sequence < sequences().
  std::int32_t length(std::int64_t sequence) const {
    return load<std::int32_t>(lengths_ + sequence * sizeof(std::int32_t));
  }

  /// Lengths of all sequences, copied: [sequences()].
  std::vector<std::int32_t> lengths() const;

  /// The first sequence of a document, 0 <= document <= documents(); the last value is sequences().
  std::int64_t first_sequence(std::int64_t document) const {
    return load<std::int64_t>(first_sequences_ + document * sizeof(std::int64_t));
  }

  /// Tokens before a sequence, 0 <= sequence <= sequences().
  std::int64_t first_token(std::int64_t sequence) const {
    if (sequence == sequences_) return tokens_;
    return load<std::int64_t>(pointers_ + 8 * sequence) / static_cast<std::int64_t>(size_of(type_));
  }

  /// Fills `elements` with elements as they lie in the .bin file, from the token `first` of all
  /// sequences' on: [elements.size() / size_of(type())] of type(). Throws IoError.
  void read_elements(std::int64_t first, std::span<std::byte> elements) const;

  /// Fills `tokens` with tokens of all sequences from the token `first` on; throws as read().
  void read_tokens(std::int64_t first, std::span<std::int64_t> tokens) const;

  /// Throws IoError that names the .bin file when it has been changed since it was opened.
  void require_unchanged() const { bin_.require_unchanged(); }

  /// Whether the .idx file ends with the modes of a multimodal dataset, which are not read.
  bool has_modes() const {
    return first_sequences_ + (documents_ + 1) * sizeof(std::int64_t) != idx_.data() + idx_.size();
  }

  /// The document that a sequence belongs to.
  std::int64_t document_of(std::int64_t sequence) const;

  /// Fills `tokens` with the sequence's tokens from `offset` on; `offset + tokens.size()` is at
  /// most length(sequence). Floating-point elements must be whole numbers. Throws DataError when an
  /// element is not, or does not fit Integer (int32_t or int64_t); IoError that names the .bin file
  /// when it cannot be read.
  template <typename Integer>
  void read(std::int64_t sequence, std::int64_t offset, std::span<Integer> tokens) const;

 private:
  // The arrays of an .idx file are not aligned.
  template <typename T>
  static T load(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }

  /// Converts elements to token ids; `place` words where in the file an element lies.
  template <typename Integer, typename Place>
  void convert(std::span<const std::byte> elements, std::span<Integer> tokens, Place&& place) const;
  void open_header(const std::filesystem::path& name);
  void resolve_type();
  void check_sequences(const std::filesystem::path& name) const;
  void check_documents(const std::filesystem::path& name) const;

  std::filesystem::path prefix_;
  MappedFile idx_;
  ReadFile bin_;
  TokenType type_ = TokenType::uint8;
  std::int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  // Arrays inside idx_: lengths in tokens, byte offsets in .bin, first sequence of each document.
  const std::byte* lengths_ = nullptr;
  const std::byte* pointers_ = nullptr;
  const std::byte* first_sequences_ = nullptr;
};

// What the tokens of a dataset themselves say of it: their range, and a hash.

/// How many of the tokens are read: 128 blocks of 8192, the first and the last of them among these,
/// or all.
enum class TokenScan { sample, all };

/// The ids that were met.
struct IdRange {
  std::int64_t smallest = 0;
  std::int64_t largest = -1;  ///< below smallest when there is no token
  std::int64_t tokens = 0;    ///< how many were read
};

/// The smallest and the largest id of the dataset, as far as `scan` reads it. `progress` gets a
/// meter, null for none. Throws as IndexedDataset::read_tokens().
IdRange scan_ids(const IndexedDataset& dataset, TokenScan scan, std::FILE* progress = nullptr);

/// A hash of the tokens of `sequences`, as far as `scan` reads them; `progress` as in scan_ids().
/// Throws IoError.
std::uint64_t hash_tokens(const IndexedDataset& dataset, SequenceRange sequences, TokenScan scan,
                          std::FILE* progress = nullptr);

/// The dataset's PREFIX.json; nothing where there is none. Throws as
/// tokenizer::read_dataset_info(), and DataError when it describes another dataset.
std::optional<tokenizer::DatasetInfo> read_dataset_info(const IndexedDataset& dataset);

// ---- datasets before training: several merged into one, and JSON lines divided at random into
// files

/// What a merge has written.
struct MergeSummary {
  std::int64_t documents = 0;
  std::int64_t sequences = 0;
  std::int64_t tokens = 0;
  /// An input without PREFIX.json although others have one: the output gets none.
  std::optional<std::filesystem::path> without_info;
};

/// Writes OUTPUT.bin and OUTPUT.idx: the documents of `inputs` in the order given, elements as they
/// are; and OUTPUT.json where all inputs have theirs. No name is touched before all is written.
/// Throws UsageError when there is no input, or the output is one of them or a folder; DataError
/// when an input is damaged, has elements of another type or ids of another tokenizer than the
/// first, or has modes, which would be lost; IoError. `progress` gets a progress meter, null
/// nothing.
MergeSummary merge_datasets(const std::vector<std::filesystem::path>& inputs,
                            const std::filesystem::path& output, std::FILE* progress = nullptr);

/// Arrays of ids (.npy) to make a dataset of.
struct ArrayImport {
  std::vector<std::filesystem::path> inputs;
  std::filesystem::path output;     ///< prefix of the dataset
  std::int32_t vocab_size = 0;      ///< every id is below it
  std::optional<std::int32_t> eod;  ///< arrays of one axis: a document ends after it
  std::optional<std::int32_t> pad;  ///< arrays of two axes: rows end before the first of its tail
  std::FILE* progress = nullptr;    ///< for the progress meter
};

/// Documents and tokens of an import or export.
struct ArraySummary {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;
};

/// Writes OUTPUT.bin and OUTPUT.idx. In an array of two axes each row is a document; one of one
/// axis is a document, or several where `eod` ends them. Throws UsageError for no input, no
/// vocabulary size, an eod or pad outside the vocabulary, an eod without an array of one axis, or a
/// pad without one of two; DataError for what is no array of integers, for an id outside the
/// vocabulary (its file, row and column), and when there is no document; IoError.
ArraySummary import_arrays(const ArrayImport& options);

/// Writes the tokens of a dataset as one .npy array of one axis, int32, in the order of its
/// sequences. Keeps them all in memory. Throws as IndexedDataset, and IoError.
ArraySummary export_array(const std::filesystem::path& dataset,
                          const std::filesystem::path& output);

/// What to divide and how.
struct LineSplitOptions {
  std::vector<std::string> inputs;  ///< JSON lines, as tokenizer::InputStream takes them
  std::filesystem::path folder;     ///< of the output
  std::vector<double> fractions;    ///< of train, valid and test; divided by their sum
  std::int64_t seed = 1234;         ///< 0 .. 2^32 - 1
  std::FILE* progress = nullptr;    ///< for the progress meter
};

/// Lines of train, valid and test.
using LineCounts = std::array<std::int64_t, 3>;

/// How `lines` are shared out: the whole part of lines * fraction plus what the parts before have
/// left over, as Megatron-LM v0 counts.
LineCounts count_split(std::int64_t lines, const std::vector<double>& fractions);

/// Writes FOLDER/{train,valid,test}.jsonl, but none for a fraction of 0, and for each a file
/// .lines that says where each line came from, as INPUT:LINE. Which line goes where is decided by
/// one numpy shuffle of all of them; within a file they keep the inputs' order. Reads the inputs
/// twice and keeps a few bytes per line. Returns the counts. Throws UsageError for an input that is
/// no regular file, fractions that are none, a seed out of range, an output that is an input, a
/// folder with a part that this split has not; DataError for a line that is no JSON object and when
/// a part gets no line; IoError. Then no file was touched.
LineCounts split_lines(const LineSplitOptions& options);

}  // namespace trireme::data
