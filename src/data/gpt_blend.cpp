#include "data/gpt_blend.hpp"

#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "data/index_files.hpp"

namespace trireme::data {
namespace {

// A weight says nothing when every dataset is used once.
bool is_weighted(const GptBlendConfig& config) {
  return !config.weights.empty() && config.common.samples.has_value();
}

BlendKey key_of(const GptBlendConfig& config, const BlendSummary& summary) {
  BlendKey key{.split = config.common.split, .samples = summary.samples};
  if (is_weighted(config)) {
    key.weights = normalize_blend(config.weights);
    key.samples = *config.common.samples;
  } else {
    for (const SplitSummary& dataset : summary.datasets) key.sizes.push_back(dataset.samples);
  }
  return key;
}

BlendIndex build(const BlendKey& key) {
  return key.weights.empty() ? build_exhaustive_blend_index(key.sizes, key.samples)
                             : build_blend_index(key.weights, key.samples);
}

// What the builder does: files that cannot be read, or do not fit the datasets, are replaced.
BlendIndex open_or_build(const BlendKey& key, const BlendFiles& files, std::int64_t samples,
                         std::span<const std::int64_t> sizes) {
  try {
    BlendIndex cached = map_index(files);
    check_blend_index(cached, sizes, key.samples, files.stem);
    if (cached.samples() == samples) return cached;
  } catch (const Error&) {
  }
  BlendIndex index = build(key);
  write_index(files, key, index);
  return index;
}

}  // namespace

GptSplitConfig dataset_config(const GptBlendConfig& config, std::size_t which) {
  GptSplitConfig dataset = config.common;
  dataset.prefix = config.prefixes[which];
  if (is_weighted(config))
    dataset.samples =
        share_to_build(normalize_blend(config.weights)[which], *config.common.samples);
  else if (!config.single())
    dataset.samples.reset();
  return dataset;
}

BlendSummary summarize_blend(const GptBlendConfig& config) {
  TRIREME_CHECK(config.weights.empty() || config.weights.size() == config.prefixes.size(),
                "{} weights of {} datasets", config.weights.size(), config.prefixes.size());
  BlendSummary summary;
  for (std::size_t i = 0; i < config.prefixes.size(); ++i) {
    const GptSplitConfig dataset = dataset_config(config, i);
    summary.datasets.push_back(summarize_split(dataset));
    require_samples(dataset, summary.datasets.back());
    summary.samples += is_weighted(config)
                           ? blend_share(normalize_blend(config.weights)[i], *config.common.samples)
                           : summary.datasets.back().samples;
  }
  const std::int64_t wanted = config.common.samples.value_or(summary.samples);
  if (summary.samples < wanted)
    throw DeckError(
        "the {} part of {} datasets without weights holds {} samples, the run takes {}; give them "
        "weights, which let datasets be repeated: [1, '{}', ...]",
        name_of(config.common.split), config.prefixes.size(), summary.samples, wanted,
        config.prefixes.front().string());
  if (!is_weighted(config) && !config.single()) summary.samples = wanted;
  return summary;
}

std::string identify_documents(const BlendSummary& summary) {
  std::string text;
  for (const SplitSummary& dataset : summary.datasets)
    text += fmt::format("{} to {}: {:016x}\n", dataset.documents.begin, dataset.documents.end,
                        dataset.lengths_hash);
  return fmt::format("{:016x}", name_hash(text.c_str()));
}

BlendIndex build_blend_index(const GptBlendConfig& config) {
  return build(key_of(config, summarize_blend(config)));
}

GptDataset open_gpt_blend(const GptBlendConfig& config, const IndexBuilder& builder) {
  if (config.single())
    return {open_gpt_split(dataset_config(config, 0), builder), config.common.format};
  const BlendSummary summary = summarize_blend(config);
  const BlendKey key = key_of(config, summary);
  const std::filesystem::path& cache = config.common.index_cache;
  const BlendFiles files = cache_files(
      cache.empty() ? default_index_cache(dataset_prefix(config.prefixes.front())) : cache, key);

  // The builder finishes all files of the part before the others look for any.
  if (!builder.builds) builder.barrier();
  std::vector<GptCorpus> corpora;
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < config.prefixes.size(); ++i) {
    corpora.push_back(open_gpt_split(dataset_config(config, i), {.builds = builder.builds}));
    sizes.push_back(corpora.back().index.samples());
  }
  BlendIndex blend =
      builder.builds ? open_or_build(key, files, summary.samples, sizes) : map_index(files);
  if (builder.builds) builder.barrier();
  return {std::move(corpora), std::move(blend), key.samples, config.common.format,
          fmt::format("'{}'", files.stem)};
}

}  // namespace trireme::data
