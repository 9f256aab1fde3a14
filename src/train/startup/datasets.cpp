#include "train/startup/startup.hpp"

#include <fmt/ranges.h>

#include <map>
#include <set>
#include <sstream>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "data/bert/bert_split.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "deck/load.hpp"
#include "train/run_state.hpp"

namespace trireme::train {

std::unique_ptr<const data::Dataset> open_dataset(const deck::Deck& deck,
                                                  const plan::Vocabulary& vocabulary,
                                                  data::Split split,
                                                  std::optional<std::int64_t> samples,
                                                  comm::Communicator& world) {
  const data::IndexBuilder builder{.builds = world.rank() == 0,
                                   .barrier = [&world] { world.barrier(); }};
  if (model::family_of(deck).causal)
    return std::make_unique<data::GptDataset>(
        data::open_gpt_blend(plan::split_config(deck, split, vocabulary, samples), builder));
  return data::open_bert_split(plan::bert_split_config(deck, split, vocabulary, samples), builder);
}

namespace {

/// `samples` of a split; absent: one epoch.
SplitData summarize(const deck::Deck& deck, const plan::Vocabulary& vocabulary, data::Split split,
                    std::optional<std::int64_t> samples) {
  SplitData found;
  if (!model::family_of(deck).causal) {
    const data::BertSplitConfig config = plan::bert_split_config(deck, split, vocabulary, samples);
    found = {.summary = data::summarize_bert_split(config), .names = config.names, .samples = {}};
    for (std::size_t i = 0; i < found.summary.datasets.size(); ++i) {
      const auto taken = config.is_blend() ? data::part_config(config, i).common.samples : samples;
      found.samples.push_back(taken.value_or(found.summary.datasets[i].samples));
    }
    return found;
  }
  const data::GptBlendConfig config = plan::split_config(deck, split, vocabulary, samples);
  found.summary = data::summarize_blend(config);
  for (std::size_t i = 0; i < config.prefixes.size(); ++i) {
    found.names.push_back(config.prefixes[i].string());
    found.samples.push_back(
        data::dataset_config(config, i).samples.value_or(found.summary.datasets[i].samples));
  }
  return found;
}

}  // namespace

SplitData summarize_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                         data::Split split) {
  SplitData found =
      summarize(deck, vocabulary, split, data::samples_wanted(split, plan::run_length(deck)));
  if (split != data::Split::train) return found;
  const std::int64_t needed = samples_needed(deck, RunState{});
  return found.summary.samples < needed ? summarize(deck, vocabulary, split, needed) : found;
}

std::string lack_of_samples(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                            std::int64_t samples, comm::MpiCommunicator& world) {
  const comm::WatchedWork work = preparation(world, "reading the index of the data");
  return on_rank_zero(world, [&]() -> std::string {
    try {
      summarize(deck, vocabulary, data::Split::train, samples);
    } catch (const DataError& error) {
      return error.what();
    } catch (const DeckError& error) {
      return error.what();
    }
    return "";
  });
}

std::string describe_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary) {
  require_datasets(deck, vocabulary);
  std::string text;
  for (const data::Split split : {data::Split::train, data::Split::valid, data::Split::test}) {
    if (!plan::uses_split(deck, split)) continue;
    const SplitData found = summarize_data(deck, vocabulary, split);
    for (std::size_t i = 0; i < found.summary.datasets.size(); ++i) {
      const data::SplitSummary& dataset = found.summary.datasets[i];
      const bool several = found.summary.datasets.size() > 1;
      text += fmt::format("{:<10} {}, {}; {} wanted: {} {}{}\n", data::name_of(split),
                          counted(dataset.documents.size(), "document"),
                          counted(dataset.tokens, "token"), counted(found.samples[i], "sample"),
                          dataset.epochs, dataset.epochs == 1 ? "epoch" : "epochs",
                          several ? " of " + found.names[i] : "");
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

/// The prefixes of a split's datasets; none where it is of record files.
std::vector<std::string> indexed_datasets(const deck::Deck& deck, data::Split split,
                                          const plan::Vocabulary& vocabulary) {
  if (deck.data.bert.dialect == deck::BertDialect::tfrecord) return {};
  std::vector<std::string> names;
  if (!model::family_of(deck).causal)
    return plan::bert_split_config(deck, split, vocabulary, std::nullopt).names;
  for (const auto& prefix : plan::split_config(deck, split, vocabulary, std::nullopt).prefixes)
    names.push_back(prefix.string());
  return names;
}

/// The sequences of the training split in one of its datasets, the i-th.
data::SequenceRange training_sequences(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                       const data::BlendSummary& summary,
                                       const data::IndexedDataset& dataset, std::size_t i) {
  if (model::family_of(deck).causal) return summary.datasets[i].documents;
  const auto config =
      plan::bert_split_config(deck, data::Split::train, vocabulary, std::nullopt).common;
  const data::SequenceRange documents = data::pair_map_config(config, dataset).documents;
  return {dataset.first_sequence(documents.begin), dataset.first_sequence(documents.end)};
}

std::vector<NamedDataset> datasets_of(const deck::Deck& deck, const plan::Vocabulary& vocabulary) {
  std::vector<NamedDataset> datasets;
  std::set<std::string> seen;
  for (const data::Split split : {data::Split::train, data::Split::valid, data::Split::test}) {
    if (!plan::uses_split(deck, split)) continue;
    const bool own = (split == data::Split::valid && deck.data.valid) ||
                     (split == data::Split::test && deck.data.test);
    const std::string key = fmt::format("data.{}", own ? data::name_of(split) : "train");
    for (const std::string& prefix : indexed_datasets(deck, split, vocabulary)) {
      const std::string name = data::dataset_prefix(prefix).string();
      if (seen.insert(name).second) datasets.push_back({key, name});
    }
  }
  return datasets;
}

[[noreturn]] void refuse_id(const NamedDataset& dataset, std::int64_t id, std::int64_t vocab) {
  throw DataError(
      "{}: '{}' holds the token id {}, outside the vocabulary: model.vocab = {}; give "
      "data.tokenizer the one that the dataset was made with, or make the dataset again",
      dataset.key, dataset.prefix, id, vocab);
}

/// Of a dataset with a record; a note or "".
std::string check_recorded(const NamedDataset& dataset, const tokenizer::DatasetInfo& info,
                           const plan::Vocabulary& vocabulary) {
  const auto& expected = vocabulary.tokenizer;
  if (expected && !expected->same_ids(info.tokenizer))
    throw DeckError(
        "{0}: '{1}' was made with the tokenizer {2}, but data.tokenizer is {3}; give "
        "data.tokenizer the dataset's, or make the dataset again with trireme-preprocess "
        "--tokenizer {4}",
        dataset.key, dataset.prefix, tokenizer::to_text(info.tokenizer),
        tokenizer::to_text(*expected), expected->type);
  if (info.largest_id >= vocabulary.size) refuse_id(dataset, info.largest_id, vocabulary.size);
  const bool known = expected && !expected->library.empty() && !info.tokenizer.library.empty();
  if (!known || expected->library == info.tokenizer.library) return "";
  return fmt::format(
      "warning: '{}' was made with {}, this program has {}: unigram models of two versions differ "
      "in about 2 % of long documents; make it again where text must be tokenized alike",
      dataset.prefix, info.tokenizer.library, expected->library);
}

/// Of a dataset without a record: a note.
std::string check_scanned(const NamedDataset& named, const data::IndexedDataset& dataset,
                          const plan::Vocabulary& vocabulary, data::TokenScan scan,
                          std::FILE* progress) {
  const data::IdRange ids = data::scan_ids(dataset, scan, progress);
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
std::string hash_text(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                      const data::BlendSummary& summary, data::TokenScan scan,
                      std::FILE* progress) {
  std::vector<std::string> hashes;
  ContentHash folded;
  const auto prefixes = indexed_datasets(deck, data::Split::train, vocabulary);
  for (std::size_t i = 0; i < prefixes.size(); ++i) {
    const data::IndexedDataset dataset(data::dataset_prefix(prefixes[i]));
    const std::uint64_t hash = data::hash_tokens(
        dataset, training_sequences(deck, vocabulary, summary, dataset, i), scan, progress);
    folded.add(&hash, sizeof hash);
    hashes.push_back(fmt::format("{:016x}", hash));
  }
  if (hashes.empty()) return "";
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
    } catch (const DataError& error) {
      throw DataError("{}: {}", named.key, error.what());
    }
  }
}

std::vector<std::string> check_datasets(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                        data::TokenScan scan, std::FILE* progress) {
  std::vector<std::string> notes;
  for (const NamedDataset& named : datasets_of(deck, vocabulary)) {
    const data::IndexedDataset dataset(named.prefix);
    const auto info = data::read_dataset_info(dataset);
    std::string note = info ? check_recorded(named, *info, vocabulary)
                            : check_scanned(named, dataset, vocabulary, scan, progress);
    if (!note.empty()) notes.push_back(std::move(note));
  }
  return notes;
}

TrainingData identify_training_data(const deck::Deck& deck, const plan::Vocabulary& vocabulary,
                                    data::TokenScan scan, std::FILE* progress) {
  const SplitData training = summarize_data(deck, vocabulary, data::Split::train);
  const auto hashes = [&](data::TokenScan of) {
    return hash_text(deck, vocabulary, training.summary, of, progress);
  };
  TrainingData found{.documents = data::identify_documents(training.summary),
                     .tokens = hashes(data::TokenScan::sample),
                     .files = {}};
  if (vocabulary.tokenizer) found.tokenizer = tokenizer::to_text(*vocabulary.tokenizer);
  if (scan == data::TokenScan::all && !found.tokens.empty())
    found.tokens += "; " + hashes(data::TokenScan::all);
  for (const auto& prefix : indexed_datasets(deck, data::Split::train, vocabulary))
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
