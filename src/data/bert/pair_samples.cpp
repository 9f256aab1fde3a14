#include "data/bert/pair_samples.hpp"

#include <optional>
#include <span>
#include <utility>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "data/bert/sample.hpp"
#include "data/gpt/index_files.hpp"
#include "data/numpy.hpp"

namespace trireme::data {
namespace {

/// Where a map is kept: under Megatron-LM's name, or, where that is taken by other rows, under
/// one that also hashes what Megatron-LM's leaves out.
struct MapFiles {
  std::filesystem::path named, hashed;
};

MapFiles map_files(const PairSplitConfig& config, const PairMapConfig& map,
                   const PairMapSummary& summary) {
  const std::filesystem::path prefix = dataset_prefix(config.prefix);
  const std::filesystem::path folder =
      config.index_cache.empty() ? prefix.parent_path() : config.index_cache;
  const std::filesystem::path file = indexmap_file(prefix, config.split, map);
  ContentHash hash;
  for (const std::uint64_t word : {static_cast<std::uint64_t>(map.documents.begin),
                                   static_cast<std::uint64_t>(map.documents.end),
                                   static_cast<std::uint64_t>(map.pairs), summary.rows_hash})
    hash.add(&word, sizeof word);
  return {folder / file,
          folder / fmt::format("{}-{:016x}.npy", file.stem().string(), hash.value())};
}

// The map in a file; nothing when there is no such file, or its rows are others.
std::optional<NpyArray> find_map(const std::filesystem::path& path, const PairMapSummary& summary) {
  try {
    NpyArray map = NpyArray::map(path);
    if (has_rows_of(map, summary)) return map;
  } catch (const Error&) {
  }
  return std::nullopt;
}

std::optional<NpyArray> find_map(const MapFiles& files, const PairMapSummary& summary) {
  auto map = find_map(files.named, summary);
  return map ? map : find_map(files.hashed, summary);
}

NpyArray open_named_map(const std::filesystem::path& path, const IndexedDataset& dataset,
                        const PairMapConfig& config) {
  NpyArray map = NpyArray::map(path);
  check_pair_map(map, dataset, config, fmt::format("'{}'", path.string()));
  return map;
}

NpyArray open_or_build_map(const PairSplitConfig& config, const IndexedDataset& dataset,
                           const PairMapConfig& map_config, const IndexBuilder& builder) {
  const PairMapSummary summary = summarize_pair_map(dataset, map_config);
  const MapFiles files = map_files(config, map_config, summary);
  if (builder.builds && !find_map(files, summary)) {
    std::error_code unknown;
    const bool taken = std::filesystem::exists(files.named, unknown);
    publish_index(taken ? files.hashed : files.named, build_pair_map(dataset, map_config));
  }
  builder.barrier();
  auto map = find_map(files, summary);
  if (!map)
    throw IoError(
        "the sentence-pair map '{}' cannot be read on this node, or has changed; name a folder "
        "that all nodes share in data.index_cache",
        files.named.string());
  return std::move(*map);
}

}  // namespace

PairSamples::PairSamples(std::shared_ptr<const IndexedDataset> dataset, NpyArray map,
                         BertFormat format, bool pairs, std::int64_t seed)
    : BertDataset(format.sequence, format.vocabulary->pad),
      dataset_(std::move(dataset)),
      map_(std::move(map)),
      format_(std::move(format)),
      pairs_(pairs),
      seed_(seed) {
  check_bert_format(format_);
}

void PairSamples::fill(std::int64_t i, BertSample& sample) const {
  const std::int64_t first = map_(i, 0), last = map_(i, 1), target = map_(i, 2);
  NumpyRandom random(static_cast<std::uint32_t>(seed_ + i));

  // ---- segments
  std::int64_t pivot = last;
  bool swapped = false;
  if (pairs_) {
    pivot =
        first + 1 +
        static_cast<std::int64_t>(random.interval(static_cast<std::uint64_t>(last - first - 2)));
    swapped = random.uniform() < 0.5;
  }
  const auto tokens_of = [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int32_t> tokens(
        static_cast<std::size_t>(dataset_->first_token(end) - dataset_->first_token(begin)));
    std::size_t at = 0;
    for (std::int64_t sentence = begin; sentence < end; ++sentence) {
      const auto length = static_cast<std::size_t>(dataset_->length(sentence));
      dataset_->read(sentence, 0, std::span(tokens).subspan(at, length));
      at += length;
    }
    return tokens;
  };
  SegmentPair pair{tokens_of(first, pivot), tokens_of(pivot, last)};
  for (const auto* segment : {&pair.a, &pair.b})
    if (const auto bad = id_outside(*segment, format_.vocabulary->ids()))
      throw DataError("'{}': token id {} in sentences {} to {} is outside the tokenizer's {} ids",
                      dataset_->prefix().string(), *bad, first, last - 1,
                      format_.vocabulary->ids());
  if (swapped) std::swap(pair.a, pair.b);

  // ---- sample
  truncate_pair(pair, target, [&] { return random.uniform(); });
  join_segments(pair, format_, sample);
  sample.sentence_label = pairs_ ? static_cast<std::int32_t>(swapped) : kIgnoredLabel;
  mask_ngrams(format_, target, random, sample);
}

PairMapConfig pair_map_config(const PairSplitConfig& config, const IndexedDataset& dataset) {
  PairMapConfig map{.documents = {0, dataset.documents()},
                    .samples = config.samples,
                    .sequence = config.format.sequence,
                    .short_probability = config.short_probability,
                    .pairs = config.pairs,
                    .seed = config.seed};
  if (!config.split_weights.empty())
    map.documents =
        split_range(normalize_weights(config.split_weights), config.split, dataset.documents());
  return map;
}

std::unique_ptr<PairSamples> open_pair_split(const PairSplitConfig& config,
                                             const IndexBuilder& builder) {
  auto dataset = std::make_shared<const IndexedDataset>(dataset_prefix(config.prefix));
  const PairMapConfig map_config = pair_map_config(config, *dataset);
  const auto named = indexmap_stem(config.index_files, config.split);
  NpyArray map = named ? open_named_map(named->ends_with(".npy") ? *named : *named + ".npy",
                                        *dataset, map_config)
                       : open_or_build_map(config, *dataset, map_config, builder);
  return std::make_unique<PairSamples>(std::move(dataset), std::move(map), config.format,
                                       config.pairs, config.seed);
}

}  // namespace trireme::data
