#include "data/prepare/split_lines.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <string_view>

#include "core/error.hpp"
#include "data/numpy_random.hpp"
#include "data/split.hpp"
#include "tokenizer/preprocess/dataset.hpp"
#include "tokenizer/preprocess/documents.hpp"

namespace trireme::data {
namespace {

void check(const LineSplitOptions& options) {
  if (std::ranges::count(options.inputs, "-") > 0)
    throw UsageError("the input is read twice, which standard input ('-') cannot be");
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

std::int64_t count_lines(const std::vector<std::string>& inputs) {
  std::int64_t lines = 0;
  for_each_line(inputs, [&](std::string_view line, const std::string& place) {
    if (!tokenizer::is_json_object(line)) throw DataError("{}: not a JSON object on a line", place);
    ++lines;
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
  const std::int64_t lines = count_lines(options.inputs);
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
  for_each_line(options.inputs, [&](std::string_view line, const std::string& place) {
    if (at == parts.size()) throw DataError("{}: the input grew while it was read", place);
    PartFiles& part = *files[parts[at++]];
    write_line(part.lines, line);
    write_line(part.places, place);
  });
  if (at != parts.size()) throw DataError("the input shrank while it was read");
  for (tokenizer::PartFile* file : unpublished) file->sync();
  for (tokenizer::PartFile* file : unpublished) file->publish();
  return counts;
}

}  // namespace trireme::data
