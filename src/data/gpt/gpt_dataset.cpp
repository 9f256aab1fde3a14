// The samples of GPT, and opening a split: one dataset or a blend of several.
#include "data/gpt/gpt_dataset.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/philox.hpp"
#include "core/system/process.hpp"
#include "core/text.hpp"

namespace trireme::data {

GptDataset::GptDataset(GptCorpus corpus, SampleFormat format)
    : samples_(corpus.index.samples()),
      format_(format),
      fields_{{.name = field::kTokens, .size = format.sequence},
              {.name = field::kLabels, .size = format.sequence, .padding = kIgnoredLabel}} {
  corpora_.push_back(std::move(corpus));
  if (!format_.eod_loss && !format_.eod)
    throw DeckError(
        "data.eod_loss = false needs the end-of-document token: give data.tokenizer one that has "
        "it");
}

GptDataset::GptDataset(std::vector<GptCorpus> corpora, BlendIndex blend, std::int64_t wanted,
                       SampleFormat format, const std::string& name)
    : GptDataset(corpora.front(), format) {
  corpora_ = std::move(corpora);
  std::vector<std::int64_t> sizes;
  for (const GptCorpus& corpus : corpora_) sizes.push_back(corpus.index.samples());
  samples_ = check_blend_index(blend, sizes, wanted, name);
  blend_ = std::move(blend);
}

void GptDataset::read_tokens(std::int64_t sample, std::span<std::int32_t> tokens) const {
  TRIREME_CHECK(sample >= 0 && sample < samples(), "sample {} of {}", sample, samples());
  TRIREME_CHECK(std::ssize(tokens) == format_.sequence + 1, "{} tokens wanted, sequence is {}",
                tokens.size(), format_.sequence);
  const auto& [corpus, index] = corpora_[blend_ ? blend_->dataset(sample) : 0];
  const std::int64_t row = index.shuffle(blend_ ? blend_->sample(sample) : sample);
  std::int64_t slot = index.sample(row, 0), offset = index.sample(row, 1);
  while (!tokens.empty()) {
    const std::int64_t sequence = index.document(slot++);
    const std::int64_t rest = corpus->length(sequence) - offset;
    const auto part = tokens.first(std::min<std::size_t>(tokens.size(), rest));
    corpus->read(sequence, offset, part);
    check_ids(*corpus, sequence, offset, part);
    tokens = tokens.subspan(part.size());
    offset = 0;
  }
}

void GptDataset::require_unchanged() const {
  for (const GptCorpus& corpus : corpora_) corpus.tokens->require_unchanged();
}

void GptDataset::check_ids(const IndexedDataset& corpus, std::int64_t sequence, std::int64_t offset,
                           std::span<const std::int32_t> tokens) const {
  const auto bad = std::ranges::find_if(
      tokens, [vocab = format_.vocab](std::int32_t id) { return id < 0 || id >= vocab; });
  if (bad == tokens.end()) return;
  throw DataError(
      "'{}': token id {} in document {} (sequence {}, token {}) is outside the vocabulary: "
      "model.vocab = {}",
      corpus.prefix().string(), *bad, corpus.document_of(sequence), sequence,
      offset + (bad - tokens.begin()), format_.vocab);
}

void GptDataset::read(std::int64_t sample, std::span<const std::span<std::int32_t>> tensors) const {
  TRIREME_CHECK(tensors.size() == 2, "{} tensors", tensors.size());
  const auto inputs = tensors[0], labels = tensors[1];
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(format_.sequence) + 1);
  read_tokens(sample, tokens);
  std::copy(tokens.begin(), tokens.end() - 1, inputs.begin());
  std::copy(tokens.begin() + 1, tokens.end(), labels.begin());
  if (format_.eod_loss) return;
  for (std::size_t i = 0; i < labels.size(); ++i)
    if (inputs[i] == *format_.eod) labels[i] = kIgnoredLabel;
}

// ---- opening a split

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
  SplitSummary summary = summarize(config, lengths);
  if (const auto stem = indexmap_stem(config.index_files, config.split))
    summary.samples = open_named(config, *stem, lengths).samples();
  return summary;
}

void require_samples(const GptSplitConfig& config, const SplitSummary& summary) {
  const bool whole = config.split_weights.empty();
  if (summary.samples == 0)
    throw DeckError(
        "the {} part of '{}' is too small for one sample of {} tokens: {} {} with {}, "
        "and {}; give it {}more data",
        name_of(config.split), config.prefix.string(), config.format.sequence + 1,
        whole ? "it has" : fmt::format("data.split = {} gives it", to_text(config.split_weights)),
        counted(summary.documents.size(), "document"), counted(summary.tokens, "token"),
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

namespace {

// A weight says nothing when every dataset is used once.
bool is_weighted(const GptBlendConfig& config) {
  return !config.weights.empty() && config.common.samples.has_value();
}

}  // namespace

BlendKey blend_key(Split split, std::span<const double> weights, std::optional<std::int64_t> wanted,
                   const BlendSummary& summary) {
  BlendKey key{.split = split, .samples = summary.samples};
  if (!weights.empty() && wanted) {
    key.weights = normalize_blend(weights);
    key.samples = *wanted;
  } else {
    for (const SplitSummary& dataset : summary.datasets) key.sizes.push_back(dataset.samples);
  }
  return key;
}

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

void total_blend(BlendSummary& summary, Split split, std::span<const double> weights,
                 std::optional<std::int64_t> wanted, std::span<const std::string> names) {
  const bool weighted = !weights.empty() && wanted.has_value();
  for (std::size_t i = 0; i < summary.datasets.size(); ++i)
    summary.samples +=
        weighted ? blend_share(normalize_blend(weights)[i], *wanted) : summary.datasets[i].samples;
  if (weighted || !wanted) return;
  if (summary.samples < *wanted)
    throw DeckError(
        "the {} split of {} datasets without weights has {} samples, the run takes {}; give them "
        "weights, which let datasets be repeated: [1, '{}', ...]",
        name_of(split), names.size(), summary.samples, *wanted, names.front());
  if (names.size() > 1) summary.samples = *wanted;
}

BlendSummary summarize_blend(const GptBlendConfig& config) {
  TRIREME_CHECK(config.weights.empty() || config.weights.size() == config.prefixes.size(),
                "{} weights of {} datasets", config.weights.size(), config.prefixes.size());
  BlendSummary summary;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < config.prefixes.size(); ++i) {
    const GptSplitConfig dataset = dataset_config(config, i);
    summary.datasets.push_back(summarize_split(dataset));
    require_samples(dataset, summary.datasets.back());
    names.push_back(config.prefixes[i].string());
  }
  total_blend(summary, config.common.split, config.weights, config.common.samples, names);
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
  return build_index(blend_key(config.common.split, config.weights, config.common.samples,
                               summarize_blend(config)));
}

GptDataset open_gpt_blend(const GptBlendConfig& config, const IndexBuilder& builder) {
  if (config.single())
    return {open_gpt_split(dataset_config(config, 0), builder), config.common.format};
  const BlendSummary summary = summarize_blend(config);
  const BlendKey key =
      blend_key(config.common.split, config.weights, config.common.samples, summary);
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
      builder.builds ? open_blend_index(key, files, summary.samples, sizes) : map_index(files);
  if (builder.builds) builder.barrier();
  return {std::move(corpora), std::move(blend), key.samples, config.common.format,
          fmt::format("'{}'", files.stem)};
}

}  // namespace trireme::data
