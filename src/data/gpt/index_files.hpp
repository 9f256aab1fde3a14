// Sample indices in files: Trireme's cache, and the .npy files that Megatron-LM left.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/gpt/gpt_dataset.hpp"
#include "data/split.hpp"

namespace trireme::data {

/// All that the indices of one part depend on.
struct IndexKey {
  Split split = Split::train;
  SequenceRange documents;
  std::optional<std::int64_t> samples;  ///< wanted; absent: one epoch
  std::int64_t sequence = 0;
  std::uint32_t seed = 0;
  std::uint64_t lengths_hash = 0;  ///< hash_lengths of the documents
};

/// A hash of documents' lengths in their order: indices outlive a dataset that was made anew.
std::uint64_t hash_lengths(std::span<const std::int32_t> lengths);

/// The key for people, one "name: value" a line.
std::string describe(const IndexKey& key);

/// All that a blend index depends on.
struct BlendKey {
  Split split = Split::train;
  std::int64_t samples = 0;         ///< wanted
  std::vector<double> weights;      ///< normalised; empty: every dataset by its size
  std::vector<std::int64_t> sizes;  ///< samples of each dataset; only without weights
};

/// The key for people, one "name: value" a line.
std::string describe(const BlendKey& key);

/// The .npy files of a blend index.
struct BlendFiles {
  std::filesystem::path dataset, sample;
  std::string stem;  ///< what names them in messages
};

/// FOLDER/STEM-{dataset,dataset_sample}_index.npy, where STEM is
/// <hash>-<part>-<samples>samples-blend with the hash of describe(key).
BlendFiles cache_files(const std::filesystem::path& folder, const BlendKey& key);

/// Maps the two files. Throws IoError and DataError.
BlendIndex map_index(const BlendFiles& files);

/// Three .npy files that belong together.
struct IndexFiles {
  std::filesystem::path document, sample, shuffle;
  std::string stem;  ///< what names them in messages
};

/// FOLDER/STEM-{document,sample,shuffle}_index.npy, where STEM is
/// <hash>-<part>-<samples>samples-<sequence>sequence-<seed>seed with the hash of describe(key).
IndexFiles cache_files(const std::filesystem::path& folder, const IndexKey& key);

/// STEM_{doc,sample,shuffle}_idx.npy, as Megatron-LM before its core wrote them.
IndexFiles indexmap_files(const std::string& stem);

/// The stem among `stems`, separated by commas, that names the part, as PREFIX_train_indexmap_...
/// does; nothing when none does. A whole file name is taken for its stem. Throws DeckError, naming
/// data.index_files, for a stem that names no part at all and when two name the same one.
std::optional<std::string> indexmap_stem(std::string_view stems, Split split);

/// Maps and checks (check_gpt_index) the three files. Throws IoError and DataError.
GptIndex map_index(const IndexFiles& files, std::span<const std::int32_t> lengths,
                   std::int64_t sequence);

/// Writes the files and the key's description to one folder; makes the folder. Several programs may
/// write the same files concurrently: each appears whole. Throws IoError that names
/// data.index_cache.
void write_index(const IndexFiles& files, const IndexKey& key, const GptIndex& index);
void write_index(const BlendFiles& files, const BlendKey& key, const BlendIndex& index);

/// The blend index of `key`, built in memory.
BlendIndex build_index(const BlendKey& key);

/// The blend index of `key` from its files, or, where these cannot be read or do not fit datasets
/// of `sizes` samples and a blend of `samples`, built and written to them. Throws as write_index().
BlendIndex open_blend_index(const BlendKey& key, const BlendFiles& files, std::int64_t samples,
                            std::span<const std::int64_t> sizes);

/// Writes one array; otherwise as write_index().
void publish_index(const std::filesystem::path& path, const NpyArray& array);

/// Calls write(OWN) with a name of this process alone and renames what it wrote to `path`, whose
/// folder is made. Throws what `write` does, and IoError.
void publish_index(const std::filesystem::path& path,
                   const std::function<void(const std::filesystem::path& own)>& write);

}  // namespace trireme::data
