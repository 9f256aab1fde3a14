// Opening a split of a BERT run's data, and samples in TensorFlow's record files.
#include "data/bert/bert_split.hpp"

#include <glob.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "core/text.hpp"
#include "data/bert/sample.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "data/indexed_dataset.hpp"

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
  const auto named = open_named_map(config.common, dataset);
  return {.documents = map.documents,
          .lengths_hash = sentences_hash(dataset, map.documents),
          .tokens = rows.tokens,
          .epochs = rows.epochs,
          .samples = named ? named->rows() : rows.rows,
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
  // What all records have in common, such as their length, must fit the deck.
  Batch batch;
  batch.resize(records->fields(), 1);
  batch.read(*records, /*sample=*/0, /*j=*/0);
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

// ---- samples in record files

namespace {

constexpr std::uint32_t kFeistelRounds = 6;

// ---- files

// Files that a pattern matches, sorted; a name without special characters is itself.
std::vector<std::filesystem::path> expand(const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos) return {pattern};
  glob_t found{};
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<std::filesystem::path> paths(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  if (status != 0 || paths.empty()) throw DeckError("data: no file matches '{}'", pattern);
  return paths;
}

/// What a record file becomes in the cache; both names change with the file.
struct CachedRecords {
  std::filesystem::path offsets, unpacked;
};

CachedRecords cached_records(const std::filesystem::path& path,
                             const std::filesystem::path& index_cache) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  const auto changed = std::filesystem::last_write_time(path, error).time_since_epoch().count();
  if (error) throw IoError("cannot open '{}': {}", path.string(), error.message());
  ContentHash hash;
  hash.add(std::filesystem::absolute(path).string());
  hash.add(&size, sizeof size);
  hash.add(&changed, sizeof changed);
  const std::filesystem::path folder =
      index_cache.empty() ? default_index_cache(path) : index_cache;
  const std::string stem =
      (folder / fmt::format("{}-{:016x}", path.filename().string(), hash.value())).string();
  return {stem + "-offsets.npy", stem + "-unpacked.tfrecord"};
}

// What the builder does for one file.
void prepare(const std::filesystem::path& path, bool gzip, const CachedRecords& cached) {
  std::error_code unknown;
  if (std::filesystem::exists(cached.offsets, unknown) &&
      (!gzip || std::filesystem::exists(cached.unpacked, unknown)))
    return;
  if (gzip)
    publish_index(cached.unpacked,
                  [&](const std::filesystem::path& own) { unpack_gzip(path, own); });
  try {
    publish_index(cached.offsets, NpyArray(scan_records(gzip ? cached.unpacked : path)));
  } catch (const DataError&) {
    if (gzip) std::filesystem::remove(cached.unpacked, unknown);
    throw;
  }
}

// ---- examples

template <typename T>
void require_length(const std::vector<T>& list, std::int64_t length, const char* name,
                    const char* key, const std::string& place) {
  if (std::ssize(list) != length)
    throw DataError("{}: {} has {} elements, {} is {}", place, name, list.size(), key, length);
}

void require_below(std::int64_t value, std::int64_t end, const char* name,
                   const std::string& place) {
  if (value < 0 || value >= end)
    throw DataError("{}: {} has a {}; expected 0 to {}", place, name, value, end - 1);
}

std::int64_t length_of(const std::vector<std::int64_t>& mask, const std::string& place) {
  const auto padding = std::ranges::find(mask, 0);
  if (!std::all_of(mask.begin(), padding, [](std::int64_t one) { return one == 1; }) ||
      !std::all_of(padding, mask.end(), [](std::int64_t zero) { return zero == 0; }))
    throw DataError("{}: input_mask is not ones followed by zeros", place);
  return padding - mask.begin();
}

}  // namespace

RecordSamples::RecordSamples(RecordConfig config, std::vector<RecordFile> files)
    : BertDataset(config.sequence, 0),
      config_(std::move(config)),
      files_(std::move(files)),
      first_record_{0} {
  for (const RecordFile& file : files_)
    first_record_.push_back(first_record_.back() + file.records());
  if (records() == 0)
    throw DeckError("data: {} without a record", counted(files_.size(), "TFRecord file"));
}

std::uint64_t RecordSamples::lengths_hash() const {
  ContentHash hash;
  for (const RecordFile& file : files_)
    for (std::int64_t i = 0; i <= file.records(); ++i) {
      const std::int64_t offset = file.offset(i);
      hash.add(&offset, sizeof offset);
    }
  return hash.value();
}

void RecordSamples::require_unchanged() const {
  for (const RecordFile& file : files_) file.require_unchanged();
}

void RecordSamples::fill(std::int64_t i, BertSample& sample) const {
  const std::int64_t epoch = i / records();
  std::int64_t record = i % records();
  if (config_.shuffle) record = permuted(record, records(), config_.seed, epoch);
  const auto after = std::ranges::upper_bound(first_record_, record);
  const auto which = static_cast<std::size_t>(after - first_record_.begin()) - 1;
  record -= first_record_[which];

  std::string data;
  files_[which].read(record, data);
  const std::string place = files_[which].place_of(record);
  fill_sample(parse_pretraining_example(data, place), config_, place, sample);
}

std::unique_ptr<RecordSamples> open_records(const RecordConfig& config,
                                            const IndexBuilder& builder) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& pattern : config.files)
    for (std::filesystem::path& path : expand(pattern)) paths.push_back(std::move(path));
  std::vector<CachedRecords> cached;
  std::vector<bool> gzip;
  for (const std::filesystem::path& path : paths) {
    cached.push_back(cached_records(path, config.index_cache));
    gzip.push_back(is_gzip(path));
    if (builder.builds) prepare(path, gzip.back(), cached.back());
  }
  builder.barrier();
  std::vector<RecordFile> files;
  for (std::size_t i = 0; i < paths.size(); ++i)
    files.emplace_back(gzip[i] ? cached[i].unpacked : paths[i], paths[i].string(),
                       NpyArray::map(cached[i].offsets));
  return std::make_unique<RecordSamples>(config, std::move(files));
}

void fill_sample(const PretrainingExample& example, const RecordConfig& config,
                 const std::string& place, BertSample& sample) {
  const auto& positions = example.masked_lm_positions;
  require_length(example.input_ids, config.sequence, "input_ids", "model.sequence", place);
  require_length(example.input_mask, config.sequence, "input_mask", "model.sequence", place);
  require_length(example.segment_ids, config.sequence, "segment_ids", "model.sequence", place);
  require_length(positions, config.max_predictions.value_or(std::ssize(positions)),
                 "masked_lm_positions", "data.bert.max_predictions", place);
  require_length(example.masked_lm_ids, std::ssize(positions), "masked_lm_ids",
                 "the length of masked_lm_positions", place);
  require_length(example.masked_lm_weights, std::ssize(positions), "masked_lm_weights",
                 "the length of masked_lm_positions", place);
  require_length(example.next_sentence_labels, 1, "next_sentence_labels", "the expected number",
                 place);

  const std::int64_t length = length_of(example.input_mask, place);
  sample.clear(0);
  sample.length = static_cast<std::int32_t>(length);
  for (std::size_t i = 0; i < example.input_ids.size(); ++i) {
    require_below(example.input_ids[i], config.vocab, "input_ids", place);
    sample.tokens[i] = static_cast<std::int32_t>(example.input_ids[i]);
    require_below(example.segment_ids[i], 2, "segment_ids", place);
    sample.types[i] = static_cast<std::int32_t>(example.segment_ids[i]);
  }
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const float weight = example.masked_lm_weights[i];
    if (weight == 0) continue;  // fills the list up
    if (weight != 1)
      throw DataError("{}: masked_lm_weights has {}, expected 0 or 1", place, weight);
    require_below(positions[i], length, "masked_lm_positions", place);
    require_below(example.masked_lm_ids[i], config.vocab, "masked_lm_ids", place);
    sample.labels[static_cast<std::size_t>(positions[i])] =
        static_cast<std::int32_t>(example.masked_lm_ids[i]);
  }
  require_below(example.next_sentence_labels[0], 2, "next_sentence_labels", place);
  sample.sentence_label = static_cast<std::int32_t>(example.next_sentence_labels[0]);
}

std::int64_t permuted(std::int64_t k, std::int64_t n, std::int64_t seed, std::int64_t epoch) {
  TRIREME_CHECK(k >= 0 && k < n && n < std::int64_t{1} << 62, "element {} of {}", k, n);
  const int bits = (std::bit_width(static_cast<std::uint64_t>(n - 1)) + 1) / 2;
  const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
  auto value = static_cast<std::uint64_t>(k);
  do {
    std::uint64_t left = value >> bits, right = value & mask;
    for (std::uint32_t round = 0; round < kFeistelRounds; ++round) {
      const Philox4 words =
          philox({static_cast<std::uint32_t>(right), static_cast<std::uint32_t>(epoch),
                  static_cast<std::uint32_t>(static_cast<std::uint64_t>(epoch) >> 32), round},
                 static_cast<std::uint64_t>(seed));
      left = std::exchange(right, left ^ (words.x & mask));
    }
    value = left << bits | right;
  } while (value >= static_cast<std::uint64_t>(n));
  return static_cast<std::int64_t>(value);
}

}  // namespace trireme::data
