// Several indexed datasets appended to one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
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
/// first, or has modes, which would be lost; IoError.
MergeSummary merge_datasets(const std::vector<std::filesystem::path>& inputs,
                            const std::filesystem::path& output);

}  // namespace trireme::data
