#include "train/startup/datasets.hpp"

#include <fmt/ranges.h>

#include <map>
#include <set>
#include <sstream>

#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "data/gpt/gpt_split.hpp"
#include "deck/describe.hpp"
#include "train/run_state.hpp"

namespace trireme::train {
std::unique_ptr<const data::Dataset> open_dataset(const deck::Deck& deck,
                                                  const plan::Vocabulary& vocabulary,
                                                  data::Split split,
                                                  std::optional<std::int64_t> samples,
                                                  comm::Communicator& world) {
  return std::make_unique<data::GptDataset>(data::open_gpt_blend(
      plan::split_config(deck, split, vocabulary, samples),
      {.builds = world.rank() == 0, .barrier = [&world] { world.barrier(); }}));
}

data::BlendSummary summarize_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                  data::Split split, data::GptBlendConfig& config) {
  const auto of = [&](std::int64_t samples) {
    config = plan::split_config(deck, split, vocabulary, samples);
    return data::summarize_blend(config);
  };
  const data::BlendSummary summary = of(data::samples_wanted(split, plan::run_length(deck)));
  if (split != data::Split::train) return summary;
  const deck::Progress end = deck::end_of_run(deck);
  const std::int64_t needed = end.samples + samples_to_skip(deck, RunState{}, end.iteration);
  return summary.samples < needed ? of(needed) : summary;
}

std::string describe_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary) {
  require_datasets(deck, vocabulary);
  std::string text;
  for (const data::Split split : {data::Split::train, data::Split::valid, data::Split::test}) {
    if (!plan::uses_split(deck, split)) continue;
    data::GptBlendConfig config;
    const data::BlendSummary summary = summarize_data(deck, vocabulary, split, config);
    for (std::size_t i = 0; i < summary.datasets.size(); ++i) {
      const data::SplitSummary& dataset = summary.datasets[i];
      text += fmt::format("{:<10} {} documents, {} tokens; {} samples wanted: {} epoch{}{}\n",
                          data::name_of(split), dataset.documents.size(), dataset.tokens,
                          data::dataset_config(config, i).samples.value_or(dataset.samples),
                          dataset.epochs, dataset.epochs == 1 ? "" : "s",
                          config.single() ? "" : " of " + config.prefixes[i].string());
    }
  }
  return text;
}

namespace {

/// Hashes of more datasets are folded into one: an attribute of HDF5 has room for 64 KiB.
constexpr std::size_t kMaxHashes = 512;

/// A dataset of the run and the key that names it.
struct NamedDataset {
  std::string key;
  std::string prefix;
};

std::vector<NamedDataset> datasets_of(const deck::Deck& deck, const plan::Vocabulary& vocabulary) {
  std::vector<NamedDataset> datasets;
  std::set<std::string> seen;
  for (const data::Split split : {data::Split::train, data::Split::valid, data::Split::test}) {
    if (!plan::uses_split(deck, split)) continue;
    const bool own = (split == data::Split::valid && deck.data.valid) ||
                     (split == data::Split::test && deck.data.test);
    const std::string key = fmt::format("data.{}", own ? data::name_of(split) : "train");
    for (const auto& prefix : plan::split_config(deck, split, vocabulary, std::nullopt).prefixes) {
      const std::string name = data::dataset_prefix(prefix).string();
      if (seen.insert(name).second) datasets.push_back({key, name});
    }
  }
  return datasets;
}

[[noreturn]] void refuse_id(const NamedDataset& dataset, std::int64_t id, std::int64_t vocab) {
  throw DataError(
      "{}: '{}' holds the token id {}, outside the vocabulary: model.vocab = {}; give "
      "data.tokenizer the one that the dataset was made with, or make the dataset anew",
      dataset.key, dataset.prefix, id, vocab);
}

/// Of a dataset with a record; a note or "".
std::string check_recorded(const NamedDataset& dataset, const tokenizer::DatasetInfo& info,
                           const plan::Vocabulary& vocabulary) {
  const auto& expected = vocabulary.tokenizer;
  if (expected && !expected->same_ids(info.tokenizer))
    throw DeckError(
        "{0}: '{1}' was made with the tokenizer {2}, but data.tokenizer is {3}; give "
        "data.tokenizer the dataset's, or make the dataset anew with trireme-preprocess "
        "--tokenizer {4}",
        dataset.key, dataset.prefix, tokenizer::to_text(info.tokenizer),
        tokenizer::to_text(*expected), expected->type);
  if (info.largest_id >= vocabulary.size) refuse_id(dataset, info.largest_id, vocabulary.size);
  const bool known = expected && !expected->library.empty() && !info.tokenizer.library.empty();
  if (!known || expected->library == info.tokenizer.library) return "";
  return fmt::format(
      "warning: '{}' was made with {}, this program has {}: unigram models of two versions differ "
      "in about 2 % of long documents; make it anew where text must be tokenized alike",
      dataset.prefix, info.tokenizer.library, expected->library);
}

/// Of a dataset without a record: a note.
std::string check_scanned(const NamedDataset& named, const data::IndexedDataset& dataset,
                          const plan::Vocabulary& vocabulary, data::TokenScan scan) {
  const data::IdRange ids = data::scan_ids(dataset, scan);
  if (ids.largest >= vocabulary.size) refuse_id(named, ids.largest, vocabulary.size);
  if (ids.tokens > 0 && ids.smallest < 0) refuse_id(named, ids.smallest, vocabulary.size);
  const bool all = ids.tokens == dataset.tokens();
  return fmt::format(
      "'{0}' has no {1} that names its tokenizer; the largest id of {2} {3}tokens is {4}, the "
      "vocabulary has {5}",
      named.prefix, tokenizer::info_path(dataset.prefix().filename()).string(), ids.tokens,
      all ? "" : "sampled ", ids.largest, vocabulary.size);
}

/// "sample H H", the hashes of `scan` of each dataset's part.
std::string hash_text(const data::GptBlendConfig& config, const data::BlendSummary& summary,
                      data::TokenScan scan) {
  std::vector<std::string> hashes;
  ContentHash folded;
  for (std::size_t i = 0; i < config.prefixes.size(); ++i) {
    const data::IndexedDataset dataset(data::dataset_prefix(config.prefixes[i]));
    const std::uint64_t hash = data::hash_tokens(dataset, summary.datasets[i].documents, scan);
    folded.add(&hash, sizeof hash);
    hashes.push_back(fmt::format("{:016x}", hash));
  }
  if (hashes.size() > kMaxHashes) hashes = {fmt::format("{:016x}", folded.value())};
  return fmt::format("{} {}", scan == data::TokenScan::all ? "all" : "sample",
                     fmt::join(hashes, " "));
}

/// The hashes of TrainingData::tokens by what was read.
std::map<std::string, std::vector<std::string>> parse_hashes(const std::string& tokens) {
  std::map<std::string, std::vector<std::string>> hashes;
  std::istringstream parts(tokens);
  for (std::string part; std::getline(parts, part, ';');) {
    std::istringstream words(part);
    std::string kind;
    words >> kind;
    for (std::string hash; words >> hash;) hashes[kind].push_back(hash);
  }
  return hashes;
}

}  // namespace

void require_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary) {
  for (const NamedDataset& named : datasets_of(deck, vocabulary)) {
    try {
      const data::IndexedDataset dataset(named.prefix);
    } catch (const IoError& error) {
      throw IoError("{}, the prefix of a dataset that trireme-preprocess writes: {}", named.key,
                    error.what());
    }
  }
}

std::vector<std::string> check_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                        data::TokenScan scan) {
  std::vector<std::string> notes;
  for (const NamedDataset& named : datasets_of(deck, vocabulary)) {
    const data::IndexedDataset dataset(named.prefix);
    const auto info = data::read_dataset_info(dataset);
    std::string note = info ? check_recorded(named, *info, vocabulary)
                            : check_scanned(named, dataset, vocabulary, scan);
    if (!note.empty()) notes.push_back(std::move(note));
  }
  return notes;
}

TrainingData identify_training_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                    data::TokenScan scan) {
  data::GptBlendConfig config;
  const data::BlendSummary summary = summarize_data(deck, vocabulary, data::Split::train, config);
  TrainingData found{.documents = data::identify_documents(summary),
                     .tokens = hash_text(config, summary, data::TokenScan::sample),
                     .files = {}};
  if (scan == data::TokenScan::all)
    found.tokens += "; " + hash_text(config, summary, data::TokenScan::all);
  for (const auto& prefix : config.prefixes)
    found.files.push_back(data::dataset_prefix(prefix).string() + ".bin");
  return found;
}

std::string changed_file(const std::string& before, const TrainingData& now) {
  const auto then = parse_hashes(before);
  for (const auto& [kind, hashes] : parse_hashes(now.tokens)) {
    const auto same_kind = then.find(kind);
    if (same_kind == then.end() || same_kind->second == hashes) continue;
    const auto& others = same_kind->second;
    if (others.size() != hashes.size() || hashes.size() != now.files.size()) return "data.train";
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (others[i] != hashes[i]) return now.files[i];
  }
  return "";
}

}  // namespace trireme::train
