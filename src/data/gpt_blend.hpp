// One part of a run's data from one dataset or several mixed ones: what a run opens.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/gpt_split.hpp"

namespace trireme::data {

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
