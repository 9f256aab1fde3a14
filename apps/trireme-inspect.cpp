// trireme-inspect: what is in a checkpoint or a dataset, and the sample order of a run.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "app.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/local/shard.hpp"
#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "data/gpt/gpt_dataset.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-inspect";
constexpr const char* kUsage =
    "Usage: trireme-inspect CHECKPOINT.h5|RUN [--json|--verify]\n"
    "           lists the tensors of a checkpoint, or of the newest one of a run's folder\n"
    "       trireme-inspect STEP.RANK.shard --verify\n"
    "           verifies a rank's part of a local checkpoint\n"
    "       trireme-inspect PREFIX [--json]\n"
    "           lists a dataset, PREFIX.bin and PREFIX.idx\n"
    "       trireme-inspect PREFIX --index train|valid|test --sequence L [--samples N] [--seed S]\n"
    "                       [--split A,B,C|whole] --output DIR\n"
    "           writes the sample indices of a run as document_index.npy, sample_index.npy and\n"
    "           shuffle_index.npy\n"
    "       trireme-inspect [WEIGHT] PREFIX [WEIGHT] PREFIX ... --index ...\n"
    "           writes those of a blend as dataset_index.npy and dataset_sample_index.npy, and\n"
    "           those of each of its datasets in the folders 0, 1, ...; weights need --samples\n\n";

// Tokens of a document that are shown.
constexpr std::int64_t kShown = 16;

/// A document's number of tokens and its first ids; null where the elements are no token ids.
nlohmann::ordered_json document_json(const data::IndexedDataset& dataset, std::int64_t document) {
  nlohmann::ordered_json begins = nlohmann::ordered_json::array();
  std::int64_t length = 0;
  for (std::int64_t sequence = dataset.first_sequence(document);
       sequence < dataset.first_sequence(document + 1); ++sequence) {
    const std::int64_t wanted = kShown - std::min(kShown, length);
    std::vector<std::int64_t> tokens(std::min<std::int64_t>(wanted, dataset.length(sequence)));
    length += dataset.length(sequence);
    try {
      dataset.read<std::int64_t>(sequence, 0, tokens);
    } catch (const DataError&) {
      tokens.clear();
      begins = nullptr;
    }
    for (const std::int64_t token : tokens)
      if (!begins.is_null()) begins.push_back(token);
  }
  return {{"document", document}, {"tokens", length}, {"begins", begins}};
}

nlohmann::ordered_json dataset_json(const data::IndexedDataset& dataset) {
  const std::vector<std::int32_t> lengths = dataset.lengths();
  nlohmann::ordered_json summary = {{"kind", "dataset"},
                                    {"prefix", dataset.prefix().string()},
                                    {"type", data::name_of(dataset.type())},
                                    {"documents", dataset.documents()},
                                    {"sequences", dataset.sequences()},
                                    {"tokens", dataset.tokens()}};
  if (!lengths.empty()) {
    const auto [shortest, longest] = std::ranges::minmax(lengths);
    summary["length"] = {
        {"shortest", shortest},
        {"median", median(lengths)},
        {"mean", static_cast<double>(dataset.tokens()) / static_cast<double>(lengths.size())},
        {"longest", longest},
        {"empty", std::ranges::count(lengths, 0)}};
  }
  if (dataset.documents() > 0) {
    summary["first"] = document_json(dataset, 0);
    summary["last"] = document_json(dataset, dataset.documents() - 1);
  }
  return summary;
}

std::string dataset_text(const nlohmann::ordered_json& summary) {
  const auto number = [](const nlohmann::ordered_json& value) { return value.dump(); };
  std::string text = fmt::format(
      "{}: dataset of {} tokens\n  documents  {}\n  sequences  {}\n  tokens     {}\n",
      summary["prefix"].get<std::string>(), summary["type"].get<std::string>(),
      number(summary["documents"]), number(summary["sequences"]), number(summary["tokens"]));
  if (const auto length = summary.find("length"); length != summary.end())
    text += fmt::format("  sequence lengths: {} to {}, median {}, mean {:.1f}, {} empty\n",
                        number((*length)["shortest"]), number((*length)["longest"]),
                        number((*length)["median"]), (*length)["mean"].get<double>(),
                        number((*length)["empty"]));
  for (const char* which : {"first", "last"}) {
    const auto document = summary.find(which);
    if (document == summary.end()) continue;
    const auto tokens = (*document)["tokens"].get<std::int64_t>();
    const auto& begins = (*document)["begins"];
    text += fmt::format(
        "  document {} ({}): {}{}\n", number((*document)["document"]), counted(tokens, "token"),
        begins.is_null()
            ? "not token ids"
            : fmt::format("{}", fmt::join(begins.get<std::vector<std::int64_t>>(), " ")),
        tokens > kShown && !begins.is_null() ? " ..." : "");
  }
  return text;
}

/// The datasets that `words` name: weights and prefixes in turn where every second word, from the
/// first on, is a number; prefixes alone otherwise.
data::GptBlendConfig datasets_of(const std::vector<std::string>& words) {
  const auto number = [](const std::string& word) {
    char* end = nullptr;
    const double value = std::strtod(word.c_str(), &end);
    return *end == '\0' && end != word.c_str() ? std::optional(value) : std::nullopt;
  };
  bool weighted = true;
  for (std::size_t i = 0; i < words.size(); i += 2) weighted = weighted && number(words[i]);
  if (weighted && words.size() > 1 && words.size() % 2 == 1)
    throw UsageError("a blend is WEIGHT PREFIX WEIGHT PREFIX ...: no prefix follows '{}'",
                     words.back());
  weighted = weighted && words.size() % 2 == 0;
  data::GptBlendConfig config;
  for (std::size_t i = 0; i < words.size(); ++i)
    if (weighted && i % 2 == 0)
      config.weights.push_back(*number(words[i]));
    else
      config.prefixes.push_back(words[i]);
  return config;
}

data::GptBlendConfig index_config(const po::variables_map& values) {
  for (const char* needed : {"sequence", "output"})
    if (values.count(needed) == 0) throw UsageError("--index needs --{}", needed);
  data::GptBlendConfig config = datasets_of(values["path"].as<std::vector<std::string>>());
  data::GptSplitConfig& common = config.common;
  common.split = data::parse_split(values["index"].as<std::string>());
  const auto split = values["split"].as<std::string>();
  try {
    if (split != "whole") {
      common.split_weights = data::parse_split_weights(split);
      data::normalize_weights(common.split_weights);
    }
  } catch (const DeckError&) {
    throw UsageError("--split {}: expected weights, such as 969,30,1, or whole", split);
  }
  common.seed = values["seed"].as<std::int64_t>();
  if (common.seed < 0 || common.seed > std::numeric_limits<std::uint32_t>::max())
    throw UsageError("--seed {} is not between 0 and 4294967295", common.seed);
  common.format.sequence = values["sequence"].as<std::int64_t>();
  if (values.count("samples") > 0) common.samples = values["samples"].as<std::int64_t>();
  if (common.format.sequence < 1 || common.samples.value_or(1) < 1)
    throw UsageError("--sequence and --samples: expected 1 or more");
  if (common.samples.value_or(1) > INT64_MAX / 4 / common.format.sequence)
    throw UsageError("--samples {} of {} tokens are more than 64-bit numbers count",
                     *common.samples, common.format.sequence);
  if (config.weights.size() > 1 && !common.samples)
    throw UsageError("weights need --samples: without it each dataset is taken once");
  return config;
}

/// Writes arrays into `folder`, which is made: all of them, or none where the disk is full.
void write_arrays(const std::filesystem::path& folder,
                  std::initializer_list<std::pair<const char*, const data::NpyArray&>> arrays) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw IoError("cannot make the folder '{}': {}", folder.string(), error.message());
  std::deque<tokenizer::PartFile> files;
  for (const auto& [name, array] : arrays) {
    const std::string bytes = array.serialize();
    files.emplace_back(folder / name).write(bytes.data(), bytes.size());
    files.back().sync();
  }
  for (tokenizer::PartFile& file : files) file.publish();
}

/// Writes the indices of one dataset and reports them.
nlohmann::ordered_json write_dataset_index(const data::GptSplitConfig& config,
                                           const std::filesystem::path& folder) {
  const data::SplitSummary summary = data::summarize_split(config);
  const data::GptIndex index = data::build_split_index(config);
  write_arrays(folder, {{"document_index.npy", index.document},
                        {"sample_index.npy", index.sample},
                        {"shuffle_index.npy", index.shuffle}});
  return {{"kind", "index"},
          {"part", data::name_of(config.split)},
          {"first_sequence", summary.documents.begin},
          {"end_sequence", summary.documents.end},
          {"tokens_per_epoch", summary.tokens},
          {"epochs", summary.epochs},
          {"samples", index.samples()},
          {"output", folder.string()}};
}

/// Writes the indices of a blend and of its datasets, and reports them.
nlohmann::ordered_json write_blend_index(const data::GptBlendConfig& config,
                                         const std::filesystem::path& folder) {
  const data::BlendIndex index = data::build_blend_index(config);
  write_arrays(folder,
               {{"dataset_index.npy", index.dataset}, {"dataset_sample_index.npy", index.sample}});
  nlohmann::ordered_json report = {{"kind", "blend"},
                                   {"part", data::name_of(config.common.split)},
                                   {"samples", index.samples()},
                                   {"output", folder.string()},
                                   {"datasets", nlohmann::ordered_json::array()}};
  std::vector<std::int64_t> taken(config.prefixes.size(), 0);
  for (std::int64_t i = 0; i < index.samples(); ++i) ++taken[index.dataset(i)];
  for (std::size_t i = 0; i < config.prefixes.size(); ++i) {
    auto dataset = write_dataset_index(data::dataset_config(config, i), folder / std::to_string(i));
    dataset["prefix"] = config.prefixes[i].string();
    dataset["taken"] = taken[i];
    report["datasets"].push_back(std::move(dataset));
  }
  return report;
}

std::string index_text(const nlohmann::ordered_json& report, std::int64_t sequence) {
  const auto number = [&](const char* key) { return report[key].get<std::int64_t>(); };
  const auto text = [&](const char* key) { return report[key].get<std::string>(); };
  if (report["kind"] == "index")
    return fmt::format(
        "{}: {} of {} from sequences {} to {} ({} per epoch, {} {}), in {}\n", text("part"),
        counted(number("samples"), "sample"), counted(sequence, "token"), number("first_sequence"),
        number("end_sequence") - 1, counted(number("tokens_per_epoch"), "token"), number("epochs"),
        number("epochs") == 1 ? "epoch" : "epochs", text("output"));
  std::string lines = fmt::format("{}: {} of {} from {}, in {}\n", text("part"),
                                  counted(number("samples"), "sample"), counted(sequence, "token"),
                                  counted(report["datasets"].size(), "dataset"), text("output"));
  for (const auto& dataset : report["datasets"])
    lines += fmt::format("  {}: {} taken\n  {}", dataset["prefix"].get<std::string>(),
                         counted(dataset["taken"].get<std::int64_t>(), "sample"),
                         index_text(dataset, sequence));
  return lines;
}

void write_index(const po::variables_map& values) {
  const data::GptBlendConfig config = index_config(values);
  const std::filesystem::path folder = values["output"].as<std::string>();
  const auto report = config.single() ? write_dataset_index(data::dataset_config(config, 0), folder)
                                      : write_blend_index(config, folder);
  print_out(values["json"].as<bool>() ? report.dump(2) + "\n"
                                      : index_text(report, config.common.format.sequence));
}

po::options_description index_options() {
  po::options_description options("Options");
  options.add_options()                                     //
      ("json", po::bool_switch(), "print one JSON object")  //
      ("verify", po::bool_switch(),
       "verify the checksums of a checkpoint's structure and tensors; exit code 65 and the names "
       "of "
       "the damaged tensors where some do not match")  //
      ("index", po::value<std::string>()->value_name("PART"),
       "write the sample indices of train, valid or test")                               //
      ("sequence", po::value<std::int64_t>()->value_name("L"), "tokens the model sees")  //
      ("samples", po::value<std::int64_t>()->value_name("N"),
       "samples the run takes; without it one epoch")                                         //
      ("seed", po::value<std::int64_t>()->default_value(1234)->value_name("S"), "data.seed")  //
      ("split", po::value<std::string>()->default_value("969,30,1")->value_name("A,B,C"),
       "data.split: weights of train, valid and test; whole for data.valid and data.test")  //
      ("output", po::value<std::string>()->value_name("DIR"), "folder for the arrays");
  return options;
}

/// Whether `path` is a rank's part of a local checkpoint (checkpoint.local), or a copy of it.
bool is_shard(const std::filesystem::path& path) {
  return checkpoint::parse_shard_name(path.filename().string()).has_value();
}

std::string verified_text(const std::filesystem::path& path, std::FILE* progress) {
  const Stopwatch watch;
  const checkpoint::Verified verified =
      is_shard(path) ? checkpoint::verify_shard(path) : checkpoint::verify(path, progress);
  return fmt::format(
      "{}: {} of {} are as they were written{} (verified in {:.2f} s, {}/s)\n", path.string(),
      counted(verified.tensors, "tensor"), human_bytes(verified.bytes),
      verified.structure ? ", and so is the structure"
                         : "; a file of format version 1 has no checksum of its structure",
      watch.seconds(), human_bytes(verified.bytes / std::max(watch.seconds(), 1e-9)));
}

// Options of --index mean nothing without it.
void refuse_stray_options(const po::variables_map& values) {
  for (const char* option : {"sequence", "samples", "seed", "split", "output"})
    if (values.count(option) > 0 && !values[option].defaulted())
      throw UsageError("--{} needs --index", option);
}

ExitCode run(int argc, char** argv) {
  po::options_description shown;
  shown.add(index_options()).add(general_options());
  if (answers_help_or_version(argc, argv, kProgram, kUsage, shown)) return ExitCode::success;
  po::options_description options;
  options.add(shown).add_options()("path", po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("path", -1);
  const po::variables_map values = parse_options(argc, argv, options, positional);
  if (values.count("path") == 0) throw UsageError("name a checkpoint or a dataset's prefix");

  if (values.count("index") > 0) {
    if (values["verify"].as<bool>()) throw UsageError("--verify has no effect with --index");
    write_index(values);
    return ExitCode::success;
  }
  refuse_stray_options(values);
  const auto& words = values["path"].as<std::vector<std::string>>();
  if (words.size() > 1) throw UsageError("several datasets ('{}' ...) need --index", words[0]);
  std::filesystem::path path = words.front();
  // Of a run folder the newest checkpoint.
  if (std::filesystem::is_directory(path)) path = checkpoint::locate(path).path;
  const bool json = values["json"].as<bool>();
  if (values["verify"].as<bool>()) {
    if (json || (path.extension() != ".h5" && !is_shard(path)))
      throw UsageError(
          "--verify takes a checkpoint (.h5), or a part of a local one (.shard, .shard.copy), and "
          "no "
          "other option");
    print_out(verified_text(path, progress_output(values)));
    return ExitCode::success;
  }
  if (is_shard(path))
    throw UsageError("'{}' is a rank's part of a local checkpoint: --verify checks it",
                     path.string());
  if (path.extension() == ".h5") {
    print_out(checkpoint::describe(path, json, progress_output(values)));
    return ExitCode::success;
  }
  const auto summary = dataset_json(data::IndexedDataset(data::dataset_prefix(path)));
  print_out(json ? summary.dump(2) + "\n" : dataset_text(summary));
  return ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
