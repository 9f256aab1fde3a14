#include "data/gpt_split.hpp"

#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/memory.hpp"
#include "data/index_files.hpp"

namespace trireme::data {
namespace {

std::uint32_t checked_seed(std::int64_t seed) {
  if (seed < 0 || seed > std::numeric_limits<std::uint32_t>::max())
    throw DeckError("data.seed = {} is not between 0 and 4294967295", seed);
  return static_cast<std::uint32_t>(seed);
}

std::span<const std::int32_t> part_of(std::span<const std::int32_t> lengths, SequenceRange range) {
  return lengths.subspan(static_cast<std::size_t>(range.begin),
                         static_cast<std::size_t>(range.size()));
}

SplitSummary summarize(const GptSplitConfig& config, std::span<const std::int32_t> lengths) {
  SplitSummary summary;
  summary.documents = {0, std::ssize(lengths)};
  if (!config.split_weights.empty())
    summary.documents =
        split_range(normalize_weights(config.split_weights), config.split, std::ssize(lengths));
  const auto part = part_of(lengths, summary.documents);
  summary.lengths_hash = hash_lengths(part);
  summary.tokens = std::accumulate(part.begin(), part.end(), std::int64_t{0});
  if (summary.tokens == 0) return summary;
  const EpochPlan plan = plan_epochs(summary.tokens, config.samples, config.format.sequence);
  summary.epochs = plan.epochs;
  summary.samples = plan.samples;
  summary.index_bytes = index_bytes(plan, summary.documents.size());
  return summary;
}

GptIndex build(const GptSplitConfig& config, const SplitSummary& summary,
               std::span<const std::int32_t> lengths) {
  return build_gpt_index(lengths, summary.documents, config.samples, config.format.sequence,
                         checked_seed(config.seed));
}

// Indices that the deck names.
GptIndex open_named(const GptSplitConfig& config, const std::string& stem,
                    std::span<const std::int32_t> lengths) {
  GptIndex index = map_index(indexmap_files(stem), lengths, config.format.sequence);
  const std::int64_t wanted = config.samples.value_or(1);
  if (index.samples() < wanted)
    throw DataError("'{}' holds {} samples, the run takes {} for {}", stem, index.samples(), wanted,
                    name_of(config.split));
  return index;
}

// What the builder does: takes what the cache has, or builds and writes. Files that cannot be read
// or are wrong are replaced.
GptIndex open_or_build(const GptSplitConfig& config, const SplitSummary& summary,
                       const IndexKey& key, const IndexFiles& files,
                       std::span<const std::int32_t> lengths) {
  try {
    GptIndex cached = map_index(files, lengths, config.format.sequence);
    if (cached.samples() == summary.samples) return cached;
  } catch (const Error&) {
  }
  GptIndex index = build(config, summary, lengths);
  write_index(files, key, index);
  return index;
}

}  // namespace

std::filesystem::path default_index_cache(const std::filesystem::path& prefix) {
  return prefix.parent_path() / "cache" / "trireme_indices";
}

SplitSummary summarize_split(const GptSplitConfig& config) {
  const IndexedDataset dataset(dataset_prefix(config.prefix));
  const std::vector<std::int32_t> lengths = dataset.lengths();
  if (const auto stem = indexmap_stem(config.index_files, config.split))
    open_named(config, *stem, lengths);
  return summarize(config, lengths);
}

void require_samples(const GptSplitConfig& config, const SplitSummary& summary) {
  const bool whole = config.split_weights.empty();
  if (summary.samples == 0)
    throw DeckError(
        "the {} part of '{}' is too small for one sample of {} tokens: {} {} documents with {} "
        "tokens, and {}; give it {}more data",
        name_of(config.split), config.prefix.string(), config.format.sequence + 1,
        whole ? "it has" : fmt::format("data.split = {} gives it", to_text(config.split_weights)),
        summary.documents.size(), summary.tokens,
        summary.tokens == 0 ? "no number of epochs changes that" : "1 epoch holds none",
        whole ? "" : "more weight or ");
  if (summary.index_bytes > static_cast<double>(host_memory()))
    throw DeckError(
        "the run takes {} samples of the {} part of '{}', which is {} epochs of {} documents: "
        "their "
        "index is {} large, and this host has {} of memory; take fewer samples (train.iterations, "
        "train.samples, train.skip, evaluate.iterations) or give it more data",
        summary.samples, name_of(config.split), config.prefix.string(), summary.epochs,
        summary.documents.size(), human_bytes(summary.index_bytes),
        human_bytes(static_cast<double>(host_memory())));
}

GptIndex build_split_index(const GptSplitConfig& config) {
  const IndexedDataset dataset(dataset_prefix(config.prefix));
  const std::vector<std::int32_t> lengths = dataset.lengths();
  const SplitSummary summary = summarize(config, lengths);
  require_samples(config, summary);
  return build(config, summary, lengths);
}

GptCorpus open_gpt_split(const GptSplitConfig& config, const IndexBuilder& builder) {
  const std::filesystem::path prefix = dataset_prefix(config.prefix);
  auto dataset = std::make_shared<const IndexedDataset>(prefix);
  const std::vector<std::int32_t> lengths = dataset->lengths();
  if (const auto stem = indexmap_stem(config.index_files, config.split))
    return {std::move(dataset), open_named(config, *stem, lengths)};

  const SplitSummary summary = summarize(config, lengths);
  require_samples(config, summary);
  const IndexKey key{.split = config.split,
                     .documents = summary.documents,
                     .samples = config.samples,
                     .sequence = config.format.sequence,
                     .seed = checked_seed(config.seed),
                     .lengths_hash = summary.lengths_hash};
  const IndexFiles files = cache_files(
      config.index_cache.empty() ? default_index_cache(prefix) : config.index_cache, key);
  GptIndex index;
  if (builder.builds) index = open_or_build(config, summary, key, files, lengths);
  builder.barrier();
  if (!builder.builds) index = map_index(files, lengths, config.format.sequence);
  return {std::move(dataset), std::move(index)};
}

}  // namespace trireme::data
