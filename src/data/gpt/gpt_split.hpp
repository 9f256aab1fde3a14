// Opens one split of a run's data, from one indexed dataset or a blend of several: split, index,
// cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/gpt/gpt_dataset.hpp"
#include "data/split.hpp"

namespace trireme::data {
/// All that decides the samples of one part of a dataset.
struct GptSplitConfig {
  std::filesystem::path prefix;       ///< with or without ".bin" or ".idx"
  std::vector<double> split_weights;  ///< of train, valid and test; empty: the part is all of it
  Split split = Split::train;
  std::optional<std::int64_t> samples;  ///< samples the run takes; absent: one epoch
  std::int64_t seed = 1234;             ///< data.seed, 0 .. 2^32 - 1 as numpy takes it
  SampleFormat format;
  std::filesystem::path index_cache;  ///< data.index_cache; empty: default_index_cache(prefix)
  /// data.index_files: stems of existing PREFIX_SPLIT_indexmap_..._{doc,sample,shuffle}_idx.npy
  /// files, separated by commas. The one that names this part is used instead of building; parts
  /// not named are built.
  std::string index_files;
};

/// The process that builds indices when several processes open the same part.
struct IndexBuilder {
  bool builds = true;                     ///< true in exactly one process
  std::function<void()> barrier = [] {};  ///< collective over all processes that open the part
};

/// Documents, tokens and epochs of one part: what `--check` shows.
struct SplitSummary {
  SequenceRange documents;
  std::uint64_t lengths_hash = 0;  ///< hash_lengths of the documents
  std::int64_t tokens = 0;         ///< in one epoch
  std::int64_t epochs = 0;   ///< needed for the samples wanted; 0 when no number of them suffices
  std::int64_t samples = 0;  ///< that those epochs give
  double index_bytes = 0;    ///< of the indices of those samples, in memory while they are built
};

/// Where indices are kept unless the deck says otherwise: cache/trireme_indices in the folder of
/// the dataset.
std::filesystem::path default_index_cache(const std::filesystem::path& prefix);

/// Describes a part without building anything. Reads the .idx file only once, in milliseconds per
/// million documents. Throws as IndexedDataset and normalize_weights do, and for index files that
/// the deck names and the part cannot use.
SplitSummary summarize_split(const GptSplitConfig& config);

/// Throws DeckError, naming the part, its documents, tokens and epochs, when it cannot give one
/// sample, or gives so many that their index is larger than the host's memory.
void require_samples(const GptSplitConfig& config, const SplitSummary& summary);

/// Builds the indices of a part in memory, without cache or files. Throws as summarize_split and
/// require_samples do.
GptIndex build_split_index(const GptSplitConfig& config);

/// Opens a part. Collective: every process calls it with the same configuration and its own
/// `builder`; the one that builds writes the indices to the cache if they are not there yet, the
/// others wait at the barrier, then all map them. Throws IoError that names data.index_cache when
/// the cache cannot be written, DeckError for bad keys and DataError for bad files; a process that
/// throws does not reach the barrier, so the caller must end the others.
GptCorpus open_gpt_split(const GptSplitConfig& config, const IndexBuilder& builder = {});

/// All that decides the samples of one part of a run's data.
struct GptBlendConfig {
  std::vector<std::filesystem::path> prefixes;  ///< of the datasets, at least one
  /// One for each prefix, above 0: datasets are repeated and cut to give samples in proportion.
  /// Empty: each is used once, in proportion to its size; a dataset alone as often as need be.
  std::vector<double> weights;
  /// All else. Its prefix is left empty; its samples are those of the blend, and where they are
  /// absent every dataset is used once whatever its weight.
  GptSplitConfig common;

  /// Whether there is nothing to mix.
  bool single() const { return prefixes.size() == 1 && weights.empty(); }
};

/// What `--check` shows.
struct BlendSummary {
  std::vector<SplitSummary> datasets;  ///< in the order of the prefixes
  std::int64_t samples = 0;            ///< of the blend
};

/// The key of a blend's index for `wanted` samples: by the `weights`, or by the sizes in `summary`
/// where there are none. A weight says nothing when every dataset is used once (`wanted` empty).
BlendKey blend_key(Split split, std::span<const double> weights, std::optional<std::int64_t> wanted,
                   const BlendSummary& summary);

/// How the part of dataset `which` is opened: Megatron-LM asks of each dataset of a weighted blend
/// half a percent more samples than its share.
GptSplitConfig dataset_config(const GptBlendConfig& config, std::size_t which);

/// Describes a part without building anything. Throws as summarize_split, and as require_samples
/// for each dataset of a blend; DeckError for bad weights and when datasets without weights hold
/// fewer samples than the run takes.
BlendSummary summarize_blend(const GptBlendConfig& config);

/// 16 hexadecimal digits that tell which documents the part has of each dataset, by their ranges
/// and lengths in order: other documents give others. Neither paths nor weights nor samples matter.
std::string identify_documents(const BlendSummary& summary);

/// The blend's index, built in memory. Throws as summarize_blend.
BlendIndex build_blend_index(const GptBlendConfig& config);

/// Opens a part. Collective in the way of open_gpt_split, and throws like it and summarize_blend.
GptDataset open_gpt_blend(const GptBlendConfig& config, const IndexBuilder& builder = {});

}  // namespace trireme::data
