#include "data/bert/sample.hpp"

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "data/numpy.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t kColumns = 3;

struct Row {
  std::int64_t first, last, target;
};

/// The target lengths of samples: a draw each, unless all are long.
class TargetLengths {
 public:
  explicit TargetLengths(const PairMapConfig& config)
      : max_(static_cast<std::uint64_t>(config.max_target())),
        ratio_(config.short_probability > 0
                   ? static_cast<std::uint64_t>(std::round(1.0 / config.short_probability))
                   : 0),
        generator_(static_cast<std::uint32_t>(config.seed)) {}

  std::int64_t next() {
    if (ratio_ == 0) return static_cast<std::int64_t>(max_);
    const std::uint64_t draw = generator_();
    return static_cast<std::int64_t>(draw % ratio_ == 0 ? 2 + draw % (max_ - 1) : max_);
  }

 private:
  std::uint64_t max_, ratio_;
  std::mt19937 generator_;
};

bool has_long_sentence(const IndexedDataset& dataset, std::int64_t first, std::int64_t last) {
  for (std::int64_t sentence = first; sentence < last; ++sentence)
    if (dataset.length(sentence) > kLongSentence) return true;
  return false;
}

// Calls visit(Row) for each sample of a document whose sentences are [first, last).
template <typename Visit>
void cut_document(const IndexedDataset& dataset, const PairMapConfig& config, std::int64_t first,
                  std::int64_t last, TargetLengths& targets, Visit&& visit) {
  std::int64_t target = targets.next(), start = first, tokens = 0;
  for (std::int64_t sentence = first; sentence < last; ++sentence) {
    tokens += dataset.length(sentence);
    const std::int64_t left = last - sentence - 1, count = sentence + 1 - start;
    const bool full = tokens >= target && left > 1 && count >= config.min_sentences();
    if (!full && left > 0) continue;
    visit(Row{start, sentence + 1, target});
    start = sentence + 1;
    target = targets.next();  // also after the last sample of a document
    tokens = 0;
  }
}

// Calls visit(Row) for each sample in the order of the documents, epoch by epoch.
template <typename Visit>
PairMapSummary walk(const IndexedDataset& dataset, const PairMapConfig& config, Visit&& visit) {
  PairMapSummary summary;
  const SequenceRange documents = config.documents;
  const std::int64_t begin = dataset.first_sequence(documents.begin);
  const std::int64_t end = dataset.first_sequence(documents.end);
  summary.sentences = end - begin;
  summary.tokens = dataset.first_token(end) - dataset.first_token(begin);
  TargetLengths targets(config);
  while (summary.epochs == 0 || (config.samples && summary.rows < *config.samples)) {
    for (std::int64_t document = documents.begin; document < documents.end; ++document) {
      const std::int64_t first = dataset.first_sequence(document);
      const std::int64_t last = dataset.first_sequence(document + 1);
      const bool too_short = last - first < config.min_sentences();
      const bool with_long = last - first > 1 && has_long_sentence(dataset, first, last);
      if (summary.epochs == 0) {
        summary.too_short += too_short;
        summary.with_long += with_long;
      }
      if (too_short || with_long) continue;
      cut_document(dataset, config, first, last, targets, [&](const Row& row) {
        ++summary.rows;
        visit(row);
      });
    }
    if (summary.rows == 0) break;  // every further epoch is like this one
    ++summary.epochs;
  }
  return summary;
}

// Of one row; sums of these tell sets of rows apart. The multipliers are those of splitmix64.
std::uint64_t hash_of(const Row& row) {
  std::uint64_t hash = static_cast<std::uint64_t>(row.first) * 0x9e3779b97f4a7c15u;
  hash = (hash ^ hash >> 30 ^ static_cast<std::uint64_t>(row.last)) * 0xbf58476d1ce4e5b9u;
  hash = (hash ^ hash >> 27 ^ static_cast<std::uint64_t>(row.target)) * 0x94d049bb133111ebu;
  return hash ^ hash >> 31;
}

Row row_of(const NpyArray& map, std::int64_t i) { return {map(i, 0), map(i, 1), map(i, 2)}; }

void check_config(const PairMapConfig& config) {
  if (config.sequence < kMinBertSequence)
    throw DeckError("model.sequence = {} is too short for BERT; the minimum is {}", config.sequence,
                    kMinBertSequence);
  if (!(config.short_probability >= 0) || !(config.short_probability <= 1))
    throw DeckError("data.bert.short_sequence = {} is not between 0 and 1",
                    config.short_probability);
  if (config.short_probability > 0 && config.short_probability < 1e-9)
    throw DeckError("data.bert.short_sequence = {} is neither 0 nor at least 1e-9",
                    config.short_probability);
  if (config.seed < 0 || config.seed > kMaxPairMapSeed)
    throw DeckError("data.seed = {} is not between 0 and {}, which BERT's sentence pairs need",
                    config.seed, kMaxPairMapSeed);
  const double bytes = 4.0 * kColumns * static_cast<double>(config.samples.value_or(0));
  if (bytes > static_cast<double>(host_memory()))
    throw DeckError(
        "the run takes {} samples: their index is {} large, and this host has {} of memory; take "
        "fewer samples (train.iterations, train.samples, evaluate.iterations)",
        *config.samples, human_bytes(bytes), human_bytes(static_cast<double>(host_memory())));
}

template <typename T>
NpyArray build_rows(const IndexedDataset& dataset, const PairMapConfig& config,
                    std::int64_t count) {
  std::vector<T> rows;
  rows.reserve(static_cast<std::size_t>(kColumns * count));
  walk(dataset, config, [&](const Row& row) {
    rows.push_back(static_cast<T>(row.first));
    rows.push_back(static_cast<T>(row.last));
    rows.push_back(static_cast<T>(row.target));
  });
  std::mt19937_64 generator(static_cast<std::uint64_t>(config.seed + 1));
  for (std::uint64_t i = static_cast<std::uint64_t>(count); i-- > 1;) {
    const std::uint64_t j = generator() % (i + 1);
    for (std::uint64_t column = 0; column < kColumns; ++column)
      std::swap(rows[kColumns * i + column], rows[kColumns * j + column]);
  }
  return NpyArray(std::move(rows), kColumns);
}

}  // namespace

PairMapSummary summarize_pair_map(const IndexedDataset& dataset, const PairMapConfig& config) {
  check_config(config);
  std::uint64_t hash = 0;
  PairMapSummary summary = walk(dataset, config, [&](const Row& row) { hash += hash_of(row); });
  summary.rows_hash = hash;
  return summary;
}

void require_rows(const PairMapSummary& summary, const IndexedDataset& dataset,
                  const PairMapConfig& config) {
  if (summary.rows == 0)
    throw DeckError(
        "'{}': none of the {} documents ({} sentences) of the split can be a sample: {} have fewer "
        "than {} sentences, {} have a sentence of more than {} tokens; split the text into "
        "sentences (trireme-preprocess --split-sentences) or give the split more data",
        dataset.prefix().string(), config.documents.size(), summary.sentences, summary.too_short,
        config.min_sentences(), summary.with_long, kLongSentence);
}

NpyArray build_pair_map(const IndexedDataset& dataset, const PairMapConfig& config) {
  const PairMapSummary summary = summarize_pair_map(dataset, config);
  require_rows(summary, dataset, config);
  return dataset.sequences() > std::numeric_limits<std::uint32_t>::max()
             ? build_rows<std::uint64_t>(dataset, config, summary.rows)
             : build_rows<std::uint32_t>(dataset, config, summary.rows);
}

void check_pair_map(const NpyArray& map, const IndexedDataset& dataset, const PairMapConfig& config,
                    const std::string& name) {
  if (map.shape().size() != 2 || map.columns() != kColumns)
    throw DataError("{}: not a sentence-pair map, which is an array [samples, {}]", name, kColumns);
  const std::int64_t wanted = config.samples.value_or(1);
  if (map.rows() < wanted)
    throw DataError("{} holds {} samples, the run takes {}", name, map.rows(), wanted);
  const std::int64_t begin = dataset.first_sequence(config.documents.begin);
  const std::int64_t end = dataset.first_sequence(config.documents.end);
  for (std::int64_t i = 0; i < map.rows(); ++i) {
    const auto [first, last, target] = row_of(map, i);
    const bool inside = first >= begin && last <= end && last - first >= config.min_sentences() &&
                        dataset.first_sequence(dataset.document_of(first) + 1) >= last;
    if (inside && target >= 1 && target <= config.max_target()) continue;
    throw DataError(
        "{}: row {} is ({}, {}, {}); expected the first and the end of at least {} sentences of "
        "one document, between sentences {} and {}, and a target of 1 to {} tokens",
        name, i, first, last, target, config.min_sentences(), begin, end, config.max_target());
  }
}

bool has_rows_of(const NpyArray& map, const PairMapSummary& summary) {
  if (map.shape().size() != 2 || map.columns() != kColumns || map.rows() != summary.rows)
    return false;
  std::uint64_t hash = 0;
  for (std::int64_t i = 0; i < map.rows(); ++i) hash += hash_of(row_of(map, i));
  return hash == summary.rows_hash;
}

std::string indexmap_file(const std::filesystem::path& prefix, Split split,
                          const PairMapConfig& config) {
  return fmt::format("{}_{}_indexmap_{}_{}msl_{:.2f}ssp_{}s.npy", prefix.filename().string(),
                     name_of(split),
                     config.samples ? fmt::format("{}mns", *config.samples) : std::string("1ep"),
                     config.sequence, config.short_probability, config.seed);
}

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

std::optional<NpyArray> open_named_map(const PairSplitConfig& config,
                                       const IndexedDataset& dataset) {
  const auto stem = indexmap_stem(config.index_files, config.split);
  if (!stem) return std::nullopt;
  const std::filesystem::path path = stem->ends_with(".npy") ? *stem : *stem + ".npy";
  NpyArray map = NpyArray::map(path);
  check_pair_map(map, dataset, pair_map_config(config, dataset),
                 fmt::format("'{}'", path.string()));
  return map;
}

std::unique_ptr<PairSamples> open_pair_split(const PairSplitConfig& config,
                                             const IndexBuilder& builder) {
  auto dataset = std::make_shared<const IndexedDataset>(dataset_prefix(config.prefix));
  const PairMapConfig map_config = pair_map_config(config, *dataset);
  auto named = open_named_map(config, *dataset);
  NpyArray map =
      named ? std::move(*named) : open_or_build_map(config, *dataset, map_config, builder);
  return std::make_unique<PairSamples>(std::move(dataset), std::move(map), config.format,
                                       config.pairs, config.seed);
}

}  // namespace trireme::data
