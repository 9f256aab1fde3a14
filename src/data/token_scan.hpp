// What the tokens of a dataset themselves say of it: their range, and a hash.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "data/indexed_dataset.hpp"
#include "data/split.hpp"
#include "tokenizer/preprocess/dataset.hpp"

namespace trireme::data {

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

}  // namespace trireme::data
