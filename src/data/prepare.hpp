// Datasets before training: several merged into one, and JSON lines divided at random into files.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace trireme::data {
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
/// axis is a document, or several where `eod` ends them. Throws UsageError for no input or no
/// vocabulary size; DataError for what is no array of integers, for an id outside the vocabulary
/// (its file, row and column), and when there is no document; IoError.
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
/// twice and keeps a few bytes per line. Returns the counts. Throws UsageError for standard input,
/// fractions that are none, a seed out of range, an output that is an input, a folder with a part
/// that this split has not; DataError for a line that is no JSON object and when a part gets no
/// line; IoError. Then no file was touched.
LineCounts split_lines(const LineSplitOptions& options);

}  // namespace trireme::data
