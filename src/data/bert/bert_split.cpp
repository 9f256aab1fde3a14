#include "data/bert/bert_split.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "data/bert/pair_samples.hpp"
#include "data/bert/record_samples.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "data/split.hpp"

namespace trireme::data {
namespace {

bool is_weighted(const BertSplitConfig& config) {
  return !config.weights.empty() && config.common.samples.has_value();
}

PairSplitConfig pair_config(const BertSplitConfig& config) {
  PairSplitConfig pairs = config.common;
  pairs.prefix = config.names.front();
  return pairs;
}

FirstReleaseConfig first_release_config(const BertSplitConfig& config) {
  const PairSplitConfig& common = config.common;
  FirstReleaseConfig first{.samples = common.samples,
                           .short_probability = common.short_probability,
                           .seed = common.seed,
                           .format = common.format};
  for (const std::string& name : config.names) {
    auto dataset = std::make_shared<const IndexedDataset>(dataset_prefix(name));
    const SequenceRange documents = pair_map_config(common, *dataset).documents;
    first.corpora.push_back({std::move(dataset), documents});
  }
  return first;
}

RecordConfig record_config(const BertSplitConfig& config) {
  const PairSplitConfig& common = config.common;
  if (!common.split_weights.empty()) {
    // Every record is of this split, or the files would have to be divided.
    const SequenceRange all =
        split_range(normalize_weights(common.split_weights), common.split, 1'000'000);
    if (all != SequenceRange{0, 1'000'000})
      throw DeckError(
          "data.split = {}: TFRecord files are not divided; give data.split the value [1, 0, 0] "
          "and data.valid and data.test separate files",
          to_text(common.split_weights));
  }
  return {.files = config.names,
          .samples = common.samples,
          .sequence = common.format.sequence,
          .vocab = config.vocab,
          .max_predictions = common.format.max_predictions,
          .shuffle = common.split == Split::train,
          .seed = common.seed,
          .index_cache = common.index_cache};
}

// ---- summaries

std::uint64_t sentences_hash(const IndexedDataset& dataset, SequenceRange documents) {
  std::vector<std::int32_t> lengths;
  for (std::int64_t document = documents.begin; document < documents.end; ++document) {
    const std::int64_t last = dataset.first_sequence(document + 1);
    for (std::int64_t s = dataset.first_sequence(document); s < last; ++s)
      lengths.push_back(dataset.length(s));
    lengths.push_back(-1);  // tells documents apart
  }
  return hash_lengths(lengths);
}

SplitSummary summarize_pairs(const BertSplitConfig& config) {
  const IndexedDataset dataset(dataset_prefix(config.names.front()));
  const PairMapConfig map = pair_map_config(config.common, dataset);
  const PairMapSummary rows = summarize_pair_map(dataset, map);
  require_rows(rows, dataset, map);
  return {.documents = map.documents,
          .lengths_hash = sentences_hash(dataset, map.documents),
          .tokens = rows.tokens,
          .epochs = rows.epochs,
          .samples = rows.rows,
          .index_bytes = 12.0 * static_cast<double>(rows.rows)};
}

SplitSummary summarize_first_release(const BertSplitConfig& config) {
  const FirstReleaseConfig first = first_release_config(config);
  SplitSummary summary{.epochs = 1, .samples = FirstReleaseSamples(first).samples()};
  for (const auto& [dataset, documents] : first.corpora) {
    summary.documents.end += documents.size();
    summary.tokens += dataset->first_token(dataset->first_sequence(documents.end)) -
                      dataset->first_token(dataset->first_sequence(documents.begin));
    summary.lengths_hash = summary.lengths_hash * 31 + sentences_hash(*dataset, documents);
  }
  return summary;
}

SplitSummary summarize_records(const BertSplitConfig& config) {
  const auto records = open_records(record_config(config));
  const std::int64_t samples = records->samples();
  return {.documents = {0, records->records()},
          .lengths_hash = records->lengths_hash(),
          .tokens = records->records() * config.common.format.sequence,
          .epochs = (samples + records->records() - 1) / records->records(),
          .samples = samples};
}

SplitSummary summarize_part(const BertSplitConfig& config) {
  switch (config.dialect) {
    case BertDialect::megatron:
      return summarize_pairs(config);
    case BertDialect::v0:
      return summarize_first_release(config);
    case BertDialect::tfrecord:
      return summarize_records(config);
  }
  throw InternalError("unknown data.bert.dialect");
}

// ---- opening

std::unique_ptr<const Dataset> open_part(const BertSplitConfig& config,
                                         const IndexBuilder& builder) {
  switch (config.dialect) {
    case BertDialect::megatron:
      return open_pair_split(pair_config(config), builder);
    case BertDialect::v0: {
      auto samples = std::make_unique<FirstReleaseSamples>(first_release_config(config));
      builder.barrier();
      return samples;
    }
    case BertDialect::tfrecord:
      return open_records(record_config(config), builder);
  }
  throw InternalError("unknown data.bert.dialect");
}

/// Datasets of the same fields, mixed by an index.
class BlendedDataset final : public Dataset {
 public:
  BlendedDataset(std::vector<std::unique_ptr<const Dataset>> parts, BlendIndex index,
                 std::int64_t samples)
      : parts_(std::move(parts)), index_(std::move(index)), samples_(samples) {}

  std::int64_t samples() const override { return samples_; }
  const std::vector<Field>& fields() const override { return parts_.front()->fields(); }
  void read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const override {
    TRIREME_CHECK(sample >= 0 && sample < samples_, "sample {} of {}", sample, samples_);
    parts_[static_cast<std::size_t>(index_.dataset(sample))]->read(index_.sample(sample), tensors);
  }
  void require_unchanged() const override {
    for (const auto& part : parts_) part->require_unchanged();
  }

 private:
  std::vector<std::unique_ptr<const Dataset>> parts_;
  BlendIndex index_;
  std::int64_t samples_;
};

}  // namespace

bool BertSplitConfig::is_blend() const {
  return is_weighted(*this) || (dialect == BertDialect::megatron && names.size() > 1);
}

BertSplitConfig part_config(const BertSplitConfig& config, std::size_t which) {
  BertSplitConfig part = config;
  part.names = {config.names[which]};
  part.weights = {};
  part.common.samples.reset();
  if (is_weighted(config))
    part.common.samples =
        share_to_build(normalize_blend(config.weights)[which], *config.common.samples);
  return part;
}

BlendSummary summarize_bert_split(const BertSplitConfig& config) {
  TRIREME_CHECK(!config.names.empty() &&
                    (config.weights.empty() || config.weights.size() == config.names.size()),
                "{} weights of {} datasets", config.weights.size(), config.names.size());
  if (config.dialect == BertDialect::v0 && !config.weights.empty())
    throw DeckError(
        "data.{}: datasets have no weights with data.bert.dialect = v0, which takes their "
        "documents "
        "alike; list them alone",
        name_of(config.common.split));
  BlendSummary summary;
  if (!config.is_blend()) {
    summary.datasets = {summarize_part(config)};
    summary.samples = summary.datasets.front().samples;
    return summary;
  }
  for (std::size_t i = 0; i < config.names.size(); ++i)
    summary.datasets.push_back(summarize_part(part_config(config, i)));
  total_blend(summary, config.common.split, config.weights, config.common.samples, config.names);
  return summary;
}

std::unique_ptr<const Dataset> open_bert_split(const BertSplitConfig& config,
                                               const IndexBuilder& builder) {
  if (!config.is_blend()) {
    if (!config.weights.empty()) summarize_bert_split(config);  // refuses what has no weights
    return open_part(config, builder);
  }
  const BlendSummary summary = summarize_bert_split(config);
  const BlendKey key =
      blend_key(config.common.split, config.weights, config.common.samples, summary);
  const std::filesystem::path& cache = config.common.index_cache;
  const BlendFiles files = cache_files(
      cache.empty() ? default_index_cache(dataset_prefix(config.names.front())) : cache, key);

  // The builder finishes all files of the split before the others look for any.
  if (!builder.builds) builder.barrier();
  std::vector<std::unique_ptr<const Dataset>> parts;
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < config.names.size(); ++i) {
    parts.push_back(open_part(part_config(config, i), {.builds = builder.builds}));
    sizes.push_back(parts.back()->samples());
  }
  BlendIndex index =
      builder.builds ? open_blend_index(key, files, summary.samples, sizes) : map_index(files);
  if (builder.builds) builder.barrier();
  const std::int64_t samples =
      check_blend_index(index, sizes, key.samples, fmt::format("'{}'", files.stem));
  return std::make_unique<BlendedDataset>(std::move(parts), std::move(index), samples);
}

}  // namespace trireme::data
