#include "data/indexed_dataset.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string_view>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "data/numpy.hpp"
#include "tokenizer/preprocess/preprocess.hpp"

namespace trireme::data {
namespace {

// Also where one of them is a link or has another spelling.
bool same_dataset(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code absent;
  return std::filesystem::equivalent(a.string() + ".idx", b.string() + ".idx", absent) ||
         std::filesystem::equivalent(a.string() + ".bin", b.string() + ".bin", absent);
}

void check_input(const IndexedDataset& dataset, const IndexedDataset& first,
                 const std::filesystem::path& output) {
  if (same_dataset(dataset.prefix(), output))
    throw UsageError("the output '{}' is one of the inputs; name another", output.string());
  if (dataset.type() != first.type())
    throw DataError("'{}' holds {}, '{}' holds {}: datasets of one type can be merged",
                    dataset.prefix().string(), name_of(dataset.type()), first.prefix().string(),
                    name_of(first.type()));
  if (dataset.has_modes())
    throw DataError("'{}' has the modes of a multimodal dataset, which a merge would lose",
                    dataset.prefix().string());
}

/// `before` are the tokens that `meter` has counted.
void append(const IndexedDataset& dataset, tokenizer::DatasetWriter& writer, std::int64_t before,
            Progress& meter) {
  std::vector<std::byte> elements;
  for (std::int64_t document = 0; document < dataset.documents(); ++document) {
    for (std::int64_t sequence = dataset.first_sequence(document);
         sequence < dataset.first_sequence(document + 1); ++sequence) {
      elements.resize(dataset.length(sequence) * size_of(dataset.type()));
      dataset.read_elements(dataset.first_token(sequence), elements);
      writer.add_elements(elements);
    }
    writer.end_document();
    meter.update(
        static_cast<double>(before + dataset.first_token(dataset.first_sequence(document + 1))));
  }
}

/// What the inputs' records say of all together; nothing where one has none.
class MergedInfo {
 public:
  void add(const IndexedDataset& dataset) {
    const auto info = read_dataset_info(dataset);
    if (!info) {
      if (!without_) without_ = dataset.prefix();
      return;
    }
    if (!merged_) {
      merged_ = info;
      first_ = dataset.prefix();
      return;
    }
    if (!merged_->tokenizer.same_ids(info->tokenizer))
      throw DataError("'{}' holds ids of {}, '{}' of {}: datasets of one tokenizer can be merged",
                      dataset.prefix().string(), tokenizer::to_text(info->tokenizer),
                      first_.string(), tokenizer::to_text(merged_->tokenizer));
    if (merged_->tokenizer.library != info->tokenizer.library) merged_->tokenizer.library.clear();
    if (merged_->options != info->options) merged_->options.reset();
    merged_->largest_id = std::max(merged_->largest_id, info->largest_id);
    merged_->documents += info->documents;
    merged_->tokens += info->tokens;
  }

  std::optional<tokenizer::DatasetInfo> info() const { return without_ ? std::nullopt : merged_; }
  /// The first input without a record, where others have one.
  std::optional<std::filesystem::path> without() const { return merged_ ? without_ : std::nullopt; }

 private:
  std::optional<tokenizer::DatasetInfo> merged_;
  std::filesystem::path first_;  ///< the input that merged_ began with
  std::optional<std::filesystem::path> without_;
};

}  // namespace

MergeSummary merge_datasets(const std::vector<std::filesystem::path>& inputs,
                            const std::filesystem::path& output, std::FILE* progress) {
  if (inputs.empty()) throw UsageError("name the datasets to merge");
  const std::filesystem::path target = dataset_prefix(output);
  if (const auto name = target.filename(); name.empty() || name == "." || name == "..")
    throw UsageError("the output '{}' is a folder; name a dataset in it, such as '{}'",
                     output.string(), (target / "merged").string());
  std::vector<std::unique_ptr<const IndexedDataset>> datasets;
  MergedInfo info;
  for (const std::filesystem::path& input : inputs) {
    datasets.push_back(std::make_unique<const IndexedDataset>(dataset_prefix(input)));
    check_input(*datasets.back(), *datasets.front(), target);
    info.add(*datasets.back());
  }
  const TokenType type = datasets.front()->type();
  tokenizer::DatasetWriter writer(target, {static_cast<std::uint8_t>(type), size_of(type)});
  MergeSummary summary{.without_info = info.without()};
  std::int64_t tokens = 0;
  for (const auto& dataset : datasets) tokens += dataset->tokens();
  Progress meter("merging", "token", static_cast<double>(tokens), progress);
  for (const auto& dataset : datasets) {
    append(*dataset, writer, summary.tokens, meter);
    summary.documents += dataset->documents();
    summary.sequences += dataset->sequences();
    summary.tokens += dataset->tokens();
  }
  writer.finish(info.info());
  return summary;
}

namespace {

/// One row of an array, or the array itself when it has one axis.
std::vector<std::int32_t> read_row(const NpyArray& array, std::int64_t row, bool whole,
                                   const ArrayImport& options, const std::string& name) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(whole ? array.rows() : array.columns()));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto at = static_cast<std::int64_t>(i);
    const std::int64_t id = whole ? array(at) : array(row, at);
    if (id < 0 || id >= options.vocab_size)
      throw DataError("'{}': id {} at {} is outside the vocabulary of {} ids", name, id,
                      whole ? fmt::format("{}", at) : fmt::format("[{}, {}]", row, at),
                      options.vocab_size);
    ids[i] = static_cast<std::int32_t>(id);
  }
  return ids;
}

/// Adds the documents of one array.
void add_array(const NpyArray& array, const ArrayImport& options, const std::string& name,
               tokenizer::DatasetWriter& writer, Progress& meter, ArraySummary& summary) {
  const auto add = [&](std::span<const std::int32_t> ids) {
    if (ids.empty()) return;
    writer.add_document(ids);
    ++summary.documents;
    summary.tokens += std::ssize(ids);
    meter.update(static_cast<double>(summary.tokens));
  };
  if (array.shape().size() == 2) {
    for (std::int64_t row = 0; row < array.rows(); ++row) {
      std::vector<std::int32_t> ids = read_row(array, row, false, options, name);
      while (options.pad && !ids.empty() && ids.back() == *options.pad) ids.pop_back();
      add(ids);
    }
    return;
  }
  const std::vector<std::int32_t> ids = read_row(array, 0, true, options, name);
  for (std::span<const std::int32_t> rest = ids; !rest.empty();) {
    const auto end = options.eod ? std::ranges::find(rest, *options.eod) : rest.end();
    const auto size = static_cast<std::size_t>(end - rest.begin()) + (end != rest.end());
    add(rest.first(size));
    rest = rest.subspan(size);
  }
}

}  // namespace

ArraySummary import_arrays(const ArrayImport& options) {
  if (options.inputs.empty()) throw UsageError("name the arrays to read");
  if (options.vocab_size < 1)
    throw UsageError("the number of ids of the vocabulary is needed: --vocab-size N");
  for (const auto& [option, id] : {std::pair("eod", options.eod), std::pair("pad", options.pad)})
    if (id && (*id < 0 || *id >= options.vocab_size))
      throw UsageError("--{} {}: expected an id of the vocabulary, 0 to {}", option, *id,
                       options.vocab_size - 1);
  std::vector<NpyArray> arrays;
  for (const std::filesystem::path& input : options.inputs) arrays.push_back(NpyArray::map(input));
  const auto none_has = [&](std::size_t axes) {
    return std::ranges::none_of(arrays,
                                [&](const auto& each) { return each.shape().size() == axes; });
  };
  if (options.eod && none_has(1))
    throw UsageError("--eod is for arrays of one axis: each row of two axes is a document");
  if (options.pad && none_has(2))
    throw UsageError("--pad is for arrays of two axes: --eod ends the documents of one axis");
  tokenizer::DatasetWriter writer(dataset_prefix(options.output), options.vocab_size);
  ArraySummary summary;
  Progress meter("writing", "token", /*total=*/0, options.progress);
  for (std::size_t i = 0; i < arrays.size(); ++i)
    add_array(arrays[i], options, options.inputs[i].string(), writer, meter, summary);
  if (summary.documents == 0)
    throw DataError("'{}': no document to write", options.inputs.front().string());
  writer.finish();
  return summary;
}

ArraySummary export_array(const std::filesystem::path& dataset,
                          const std::filesystem::path& output) {
  const IndexedDataset input(dataset_prefix(dataset));
  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> ids;
  ids.reserve(static_cast<std::size_t>(input.tokens()));
  for (std::int64_t sequence = 0; sequence < input.sequences(); ++sequence) {
    tokens.resize(static_cast<std::size_t>(input.length(sequence)));
    input.read_tokens(input.first_token(sequence), tokens);
    const auto wide = std::ranges::find_if(
        tokens, [](std::int64_t id) { return id < INT32_MIN || id > INT32_MAX; });
    if (wide != tokens.end())
      throw DataError("'{}': id {} of sequence {} needs more than the 32 bits of an array's ids",
                      dataset.string(), *wide, sequence);
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  write_file_atomically(output, NpyArray(std::move(ids)).serialize());
  return {input.documents(), input.tokens()};
}

namespace {

void check(const LineSplitOptions& options) {
  tokenizer::require_rereadable(options.inputs, "split");
  if (options.seed < 0 || options.seed > std::numeric_limits<std::uint32_t>::max())
    throw UsageError("--seed {} is not between 0 and 4294967295", options.seed);
  const double sum = std::accumulate(options.fractions.begin(), options.fractions.end(), 0.0);
  const bool good = std::ranges::all_of(options.fractions, [](double f) { return f >= 0; });
  if (options.fractions.size() > 3 || !good || !(sum > 0) || !std::isfinite(sum))
    throw UsageError(
        "--fractions {}: expected those of train, valid and test, such as 0.95,0.04,0.01",
        to_text(options.fractions));
}

/// Calls `visit(line, place)` for every line of the inputs, without its line end.
template <typename Visit>
void for_each_line(const std::vector<std::string>& inputs, Visit&& visit) {
  tokenizer::DocumentReader reader(
      {.inputs = inputs, .format = tokenizer::DocumentFormat::json_lines});
  tokenizer::DocumentBatch batch;
  while (reader.read(batch))
    for (const auto& record : batch.records)
      visit(std::string_view(batch.bytes).substr(record.offset, record.size),
            fmt::format("{}:{}", batch.input, record.line));
}

std::int64_t count_lines(const std::vector<std::string>& inputs, std::FILE* progress) {
  std::int64_t lines = 0;
  Progress meter("counting", "line", /*total=*/0, progress);
  for_each_line(inputs, [&](std::string_view line, const std::string& place) {
    if (!tokenizer::is_json_object(line)) throw DataError("{}: not a JSON object on a line", place);
    meter.update(static_cast<double>(++lines));
  });
  return lines;
}

/// The part of each line: [lines].
std::vector<std::uint8_t> draw_parts(const LineCounts& counts, std::int64_t seed) {
  std::vector<std::uint8_t> parts;
  for (std::size_t part = 0; part < counts.size(); ++part)
    parts.insert(parts.end(), counts[part], static_cast<std::uint8_t>(part));
  NumpyRandom(static_cast<std::uint32_t>(seed)).shuffle(std::span(parts));
  return parts;
}

std::filesystem::path stem_of(const LineSplitOptions& options, std::size_t part) {
  return options.folder / name_of(static_cast<Split>(part));
}

void check_outputs(const LineSplitOptions& options, const LineCounts& counts) {
  for (std::size_t part = 0; part < counts.size(); ++part) {
    const std::filesystem::path output = stem_of(options, part).string() + ".jsonl";
    std::error_code absent;
    if (std::ranges::any_of(options.inputs, [&](const std::string& input) {
          return std::filesystem::equivalent(input, output, absent);
        }))
      throw UsageError("the output '{}' is one of the inputs; name another folder",
                       output.string());
    // It would be taken for a part of this split, whose train.jsonl may have the same lines.
    if (counts[part] == 0 && std::filesystem::exists(output, absent))
      throw UsageError(
          "'{}' is of another split, this one has no such part; remove it, or name another folder",
          output.string());
  }
}

/// A part's lines and where they came from.
struct PartFiles {
  explicit PartFiles(const std::filesystem::path& stem)
      : lines(stem.string() + ".jsonl"), places(stem.string() + ".lines") {}
  tokenizer::PartFile lines, places;
};

void write_line(tokenizer::PartFile& file, std::string_view line) {
  file.write(line.data(), line.size());
  file.write("\n", 1);
}

}  // namespace

LineCounts count_split(std::int64_t lines, const std::vector<double>& fractions) {
  const SplitWeights weights = normalize_weights(fractions);
  LineCounts counts{};
  double left_over = 0;
  std::int64_t given = 0;
  for (std::size_t part = 0; part < counts.size(); ++part) {
    const double share = static_cast<double>(lines) * weights[part] + left_over;
    counts[part] = static_cast<std::int64_t>(share);
    left_over = share - static_cast<double>(counts[part]);
    given += counts[part];
  }
  // Rounding may have lost a line: it belongs to the last part that there is.
  for (std::size_t part = counts.size(); part-- > 0;)
    if (weights[part] > 0) {
      counts[part] += lines - given;
      break;
    }
  return counts;
}

LineCounts split_lines(const LineSplitOptions& options) {
  check(options);
  const SplitWeights weights = normalize_weights(options.fractions);
  const std::int64_t lines = count_lines(options.inputs, options.progress);
  const LineCounts counts = count_split(lines, options.fractions);
  for (std::size_t part = 0; part < counts.size(); ++part)
    if (weights[part] > 0 && counts[part] == 0)
      throw DataError("{} lines are too few for {} parts: {} gets none", lines,
                      std::ranges::count_if(weights, [](double w) { return w > 0; }),
                      name_of(static_cast<Split>(part)));

  check_outputs(options, counts);
  std::error_code error;
  std::filesystem::create_directories(options.folder, error);
  if (error)
    throw IoError("cannot make the folder '{}': {}", options.folder.string(), error.message());
  std::array<std::unique_ptr<PartFiles>, 3> files;
  std::vector<tokenizer::PartFile*> unpublished;
  for (std::size_t part = 0; part < counts.size(); ++part) {
    if (counts[part] == 0) continue;
    files[part] = std::make_unique<PartFiles>(stem_of(options, part));
    unpublished.insert(unpublished.end(), {&files[part]->lines, &files[part]->places});
  }
  const std::vector<std::uint8_t> parts = draw_parts(counts, options.seed);
  std::size_t at = 0;
  Progress meter("dividing", "line", static_cast<double>(lines), options.progress);
  for_each_line(options.inputs, [&](std::string_view line, const std::string& place) {
    if (at == parts.size()) throw DataError("{}: the input grew while it was read", place);
    PartFiles& part = *files[parts[at++]];
    write_line(part.lines, line);
    write_line(part.places, place);
    meter.update(static_cast<double>(at));
  });
  if (at != parts.size())
    throw DataError(
        "{} of the {} lines of the input are left: a file of --input shrank while it "
        "was read",
        at, parts.size());
  for (tokenizer::PartFile* file : unpublished) file->sync();
  for (tokenizer::PartFile* file : unpublished) file->publish();
  return counts;
}

}  // namespace trireme::data
