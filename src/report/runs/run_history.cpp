// Runs read from metrics.jsonl and from logs, tables of them, and Megatron-LM's log.
#include "report/runs/run_history.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "core/text.hpp"
#include "deck/model.hpp"
#include "report/follow/follower.hpp"

namespace trireme::report {
namespace {

namespace fs = std::filesystem;

/// Calls `take` with every line of the file, with or without a newline at its end.
void for_each_line(const fs::path& path, const std::function<void(const std::string&)>& take) {
  errno = 0;
  std::ifstream file(path);
  if (!file) throw IoError("cannot read '{}': {}", path.string(), std::strerror(errno));
  for (std::string line; std::getline(file, line);) take(line);
  if (file.bad()) throw IoError("cannot read '{}'", path.string());
}

/// Adds a row in place of those that a restart repeats.
template <typename Row>
void append(std::vector<Row>& rows, const Row& row) {
  while (!rows.empty() && rows.back().iteration >= row.iteration) rows.pop_back();
  rows.push_back(row);
}

std::optional<double> real(const std::optional<std::int64_t>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

TrainRow row_of(const TrainPoint& point) {
  return {.iteration = point.iteration,
          .loss = point.loss,
          .ms = point.ms,
          .tokens_per_second = point.tokens_per_second,
          .tflops = point.tflops,
          .mfu = point.mfu,
          .learning_rate = point.learning_rate,
          .grad_norm = point.grad_norm,
          .global_batch = real(point.global_batch),
          .samples = real(point.samples),
          .tokens = real(point.tokens),
          .since = point.since};
}

void read_metrics(const fs::path& path, RunHistory& history) {
  RunState run;
  for_each_line(path, [&](const std::string& line) {
    run.evaluation.reset();
    if (run.take(line)) append(history.train, row_of(*run.train));
    if (const auto& done = run.evaluation)
      append(history.validation,
             EvalRow{done->iteration, done->loss, real(done->samples), real(done->tokens)});
  });
  history.start = run.start;
  history.memory = run.memory;
}

/// The iteration from which a start or a rewind continues, if `line` of a log says so.
std::optional<std::int64_t> resumed_iteration(const std::string& line) {
  static const std::regex kSays(
      "^restart +from .*, iteration (\\d+)$|successfully loaded checkpoint .*(?:at|of) iteration "
      "+(\\d+)|: resuming from '.*' of iteration (\\d+),");
  constexpr std::size_t kLongest = 4096;  // std::regex recurses over a line
  if (line.size() > kLongest || line.find("from") == std::string::npos ||
      line.find("iteration ") == std::string::npos)
    return {};
  std::smatch found;
  if (!std::regex_search(line, found, kSays)) return {};
  for (std::size_t i = 1; i < found.size(); ++i)
    if (found[i].matched) return std::stoll(found[i]);
  return {};
}

void read_log(const fs::path& path, RunHistory& history) {
  MegatronLog log;
  std::int64_t last = 0;
  for_each_line(path, [&](const std::string& line) {
    auto row = log.take(line);
    if (!row) {
      last = resumed_iteration(line).value_or(last);
      return;
    }
    row->since = last < row->iteration ? std::optional(last) : std::nullopt;
    last = row->iteration;
    append(history.train, *row);
  });
  history.is_log = true;
  history.memory = log.memory();
}

}  // namespace

RunHistory read_run(const fs::path& path) {
  RunHistory history{.name = path.string()};
  std::error_code unreadable;  // reading it will say why
  if (fs::is_directory(path, unreadable)) {
    if (!fs::exists(path / "metrics.jsonl"))
      throw IoError("'{}' is no run folder: it has no metrics.jsonl", path.string());
    read_metrics(path / "metrics.jsonl", history);
    if (fs::exists(path / "deck.yaml", unreadable)) history.deck = path / "deck.yaml";
  } else if (path.extension() == ".jsonl") {
    read_metrics(path, history);
  } else {
    read_log(path, history);
  }
  return history;
}

// ---------------------------------------------------------------------------- summaries

namespace {

/// The row with the median time, the faster one of an even number.
const TrainRow* usual_row(const std::vector<TrainRow>& rows) {
  std::vector<const TrainRow*> timed;
  for (const TrainRow& row : rows)
    if (row.ms) timed.push_back(&row);
  if (timed.empty()) return nullptr;
  const auto middle = timed.begin() + static_cast<std::ptrdiff_t>((timed.size() - 1) / 2);
  std::nth_element(timed.begin(), middle, timed.end(),
                   [](const TrainRow* a, const TrainRow* b) { return *a->ms < *b->ms; });
  return *middle;
}

// ---------------------------------------------------------------------------- tables

using Cells = std::vector<std::string>;

/// A column with a number: its names for people and for programs, and how people see it.
struct Column {
  const char* title;
  const char* key;
  std::optional<double> RunSummary::*value;
  double unit;
  int digits;
};
constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
constexpr Column kColumns[] = {
    {"loss", "last_loss", &RunSummary::last_loss, 1, 6},
    {"best loss", "best_loss", &RunSummary::best_loss, 1, 6},
    {"ms/iteration", "ms_per_iteration", &RunSummary::ms, 1, 1},
    {"tokens/s", "tokens_per_second", &RunSummary::tokens_per_second, 1, 0},
    {"TFLOP/s/GPU", "tflops_per_gpu", &RunSummary::tflops, 1, 3},
    {"memory GiB", "memory_bytes", &RunSummary::memory, kGiB, 2},
    {"MFU %", "mfu", &RunSummary::mfu, 0.01, 1},
};

Cells titles(bool for_people) {
  Cells cells = {for_people ? "run" : "name", "iterations"};
  for (const Column& column : kColumns) cells.push_back(for_people ? column.title : column.key);
  return cells;
}

Cells cells_for_people(const RunSummary& run) {
  Cells cells = {run.name, std::to_string(run.iterations)};
  std::replace(cells[0].begin(), cells[0].end(), '\n', ' ');  // a row is one line
  for (const Column& column : kColumns) {
    const auto& value = run.*column.value;
    cells.push_back(value ? fmt::format("{:.{}f}", *value / column.unit, column.digits) : "");
  }
  return cells;
}

TableRows rows_for_people(const std::vector<RunSummary>& runs) {
  TableRows rows = {titles(/*for_people=*/true)};
  for (const RunSummary& run : runs) rows.push_back(cells_for_people(run));
  return rows;
}

TableRows rows_for_programs(const std::vector<RunSummary>& runs) {
  TableRows rows = {titles(/*for_people=*/false)};
  for (const RunSummary& run : runs) {
    Cells cells = {run.name, std::to_string(run.iterations)};
    for (const Column& column : kColumns) {
      const auto& value = run.*column.value;
      cells.push_back(value ? fmt::format("{}", *value) : "");
    }
    rows.push_back(cells);
  }
  return rows;
}

std::string to_json(const std::vector<RunSummary>& runs) {
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const RunSummary& run : runs) {
    nlohmann::ordered_json row = {{"name", run.name}, {"iterations", run.iterations}};
    for (const Column& column : kColumns)
      row[column.key] = run.*column.value ? nlohmann::ordered_json(*(run.*column.value)) : nullptr;
    table.push_back(std::move(row));
  }
  return table.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

RunSummary summarize(const RunHistory& run) {
  RunSummary summary{.name = run.name,
                     .iterations = run.train.empty() ? 0 : run.train.back().iteration};
  if (const TrainRow* usual = usual_row(run.train)) {
    summary.ms = usual->ms;
    summary.tokens_per_second = usual->tokens_per_second;
    summary.tflops = usual->tflops;
    summary.mfu = usual->mfu;
  }
  for (const TrainRow& row : run.train) {
    if (row.has_loss) summary.last_loss = row.loss;
    if (row.loss) summary.best_loss = std::min(summary.best_loss.value_or(*row.loss), *row.loss);
  }
  if (run.memory > 0) summary.memory = run.memory;
  return summary;
}

std::string to_table(const std::vector<RunSummary>& runs, TableFormat format) {
  switch (format) {
    case TableFormat::csv:
      return csv_table(rows_for_programs(runs));
    case TableFormat::json:
      return to_json(runs);
    case TableFormat::markdown:
      return markdown_table(rows_for_people(runs), 1);
    case TableFormat::text:
      break;
  }
  return aligned_table(rows_for_people(runs), 1);
}

// ---------------------------------------------------------------------------- Megatron-LM's log

namespace {

constexpr std::string_view kSpace = " \t\r";

std::string_view trim(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

/// All of `text` as a number, also "43.1%", without infinities and NaN.
std::optional<double> finite(std::string_view text) {
  text = trim(text);
  if (text.ends_with('%')) text.remove_suffix(1);
  const std::string digits(text);
  char* end = nullptr;
  const double value = std::strtod(digits.c_str(), &end);
  const bool whole = !digits.empty() && end == digits.c_str() + digits.size();
  return whole && std::isfinite(value) ? std::optional(value) : std::nullopt;
}

using Field = std::pair<std::string_view, std::string_view>;

/// The fields of "name: value | name value | truncated": those that end with a bar. The first
/// versions of Megatron-LM have no colons.
std::vector<Field> fields_of(std::string_view text) {
  std::vector<Field> fields;
  for (std::size_t bar; (bar = text.find('|')) != std::string_view::npos;
       text.remove_prefix(bar + 1)) {
    const std::string_view field = trim(text.substr(0, bar));
    const std::size_t colon = field.rfind(':');
    const std::size_t cut = colon != std::string_view::npos ? colon : field.rfind(' ');
    if (cut != std::string_view::npos)
      fields.emplace_back(trim(field.substr(0, cut)), trim(field.substr(cut + 1)));
  }
  return fields;
}

/// Finds "iteration  100/  500 |" in `line`: returns its number, and the text after the bar.
std::optional<std::pair<std::int64_t, std::string_view>> find_iteration(std::string_view line) {
  constexpr std::string_view kWord = "iteration";
  for (std::size_t at = line.find(kWord); at != std::string_view::npos;
       at = line.find(kWord, at + 1)) {
    const std::string_view rest = line.substr(at + kWord.size());
    const std::size_t slash = rest.find('/'), bar = rest.find('|');
    if (slash == std::string_view::npos || bar == std::string_view::npos || slash > bar) continue;
    const auto done = finite(rest.substr(0, slash)),
               all = finite(rest.substr(slash + 1, bar - slash - 1));
    if (!done || !all || *done < 0 || *done > 1e15) continue;
    return std::pair(static_cast<std::int64_t>(*done), rest.substr(bar + 1));
  }
  return std::nullopt;
}

/// "61.2 GiB" in bytes, as human_bytes() writes it.
double bytes_of(std::string_view text) {
  const std::size_t space = std::min(text.find(' '), text.size());
  double value = finite(text.substr(0, space)).value_or(0.0);
  for (const char* unit : {" B", " KiB", " MiB", " GiB", " TiB"}) {
    if (text.substr(space) == unit) return value;
    value *= 1024.0;
  }
  return 0.0;
}

}  // namespace

std::optional<TrainRow> MegatronLog::take(std::string_view line) {
  const auto found = find_iteration(line);
  if (!found) {
    take_argument(line);
    take_vocabulary(line);
    take_memory(line);
    return std::nullopt;
  }
  TrainRow row{.iteration = found->first, .has_loss = false};
  for (const auto& [name, text] : fields_of(found->second)) {
    const std::optional<double> value = finite(text);
    if (name == "lm loss") {
      row.loss = value;
      row.has_loss = true;
    } else if (name == "elapsed time per iteration (ms)")
      row.ms = value;
    else if (name == "elapsed time per iteration (s)")
      row.ms = value ? std::optional(1e3 * *value) : value;
    else if (name == "global batch size")
      row.global_batch = value;
    else if (name == "learning rate")
      row.learning_rate = value;
    else if (name == "grad norm")
      row.grad_norm = value;
    else if (name == "consumed samples")
      row.samples = value;
    else if (name == "consumed tokens")
      row.tokens = value;
    else if (name == "tokens per second")
      row.tokens_per_second = value;
    else if (name == "throughput per GPU (TFLOP/s/GPU)" || name == "TFLOPs" ||
             name == "model TFLOP/s per GPU")
      row.tflops = value;
    else if (name == "MFU")
      row.mfu = value ? std::optional(*value / 100) : value;
  }
  complete(row);
  return row;
}

/// Computes what the line does not have from the arguments.
void MegatronLog::complete(TrainRow& row) const {
  const double samples = row.global_batch.value_or(global_batch_);
  if (!row.tokens_per_second && row.ms && *row.ms > 0 && samples > 0 && sequence_ > 0)
    row.tokens_per_second = samples * sequence_ / *row.ms * 1e3;
  const bool shape = layers_ > 0 && hidden_ > 0 && vocab_ > 0 && ranks_ > 0 && sequence_ > 0;
  if (!row.tokens && row.samples && sequence_ > 0) row.tokens = *row.samples * sequence_;
  // Megatron-LM rounds low values to 0.0.
  if (row.tflops.value_or(0.0) > 0 || !shape || !row.tokens_per_second) return;
  const auto whole = [](double value) { return static_cast<std::int64_t>(value); };
  row.tflops = *row.tokens_per_second / ranks_ / 1e12 *
               deck::gpt_flops_per_token(whole(layers_), whole(hidden_),
                                         whole(ffn_ > 0 ? ffn_ : 4 * hidden_), whole(sequence_),
                                         whole(vocab_));
}

/// "  seq_length ........................... 1024"
void MegatronLog::take_argument(std::string_view line) {
  const std::size_t dots = line.find(" ...");
  if (dots == std::string_view::npos) return;
  std::string_view name = trim(line.substr(0, dots));
  name.remove_prefix(std::min(name.find_last_of(" :]") + 1, name.size()));  // a launcher's label
  const std::size_t end = line.find_first_not_of('.', dots + 1);
  const auto value = end == std::string_view::npos ? std::nullopt : finite(line.substr(end));
  if (!value || *value < 0 || *value > 1e9) return;
  const std::pair<std::string_view, double*> wanted[] = {
      {"seq_length", &sequence_},    {"num_layers", &layers_},
      {"hidden_size", &hidden_},     {"ffn_hidden_size", &ffn_},
      {"world_size", &ranks_},       {"global_batch_size", &global_batch_},
      {"padded_vocab_size", &vocab_}};
  for (const auto& [argument, place] : wanted)
    if (name == argument) *place = *value;
}

/// " > padded vocab (size: 50257) with 47 dummy tokens (new size: 50304)"
void MegatronLog::take_vocabulary(std::string_view line) {
  constexpr std::string_view kSize = "(new size: ";
  const std::size_t at = line.find(kSize);
  if (at == std::string_view::npos || line.find("padded vocab") == std::string_view::npos) return;
  const std::string_view rest = line.substr(at + kSize.size());
  if (const auto size = finite(rest.substr(0, rest.find(')'))); size && *size > 0 && *size < 1e9)
    vocab_ = *size;
}

/// "[Rank 0] (after 1 iterations) memory (MB) | allocated: 1.0 | ... | max reserved: 2.0", or this
/// program's " memory of the rank with the highest peak after iteration 20 | ... | peak: 29.5 MiB
/// |" (version 0.1: "memory of the fullest rank").
void MegatronLog::take_memory(std::string_view line) {
  constexpr std::string_view kRank = "memory (MB) |", kHighest = " memory of the rank with the ",
                             kHighestBefore = " memory of the fullest rank ";
  const std::size_t at = std::min(line.find(kHighest), line.find(kHighestBefore));
  if (at != std::string_view::npos) {
    for (const auto& [name, value] : fields_of(line.substr(at)))
      if (name == "GPU" || (name == "peak" && !on_gpu_)) {
        highest_ = bytes_of(value);
        on_gpu_ = name == "GPU";
      }
  } else if (const std::size_t rank = line.find(kRank); rank != std::string_view::npos) {
    // The last field ends with the line.
    const std::string fields = std::string(line.substr(rank + kRank.size())) + "|";
    for (const auto& [name, value] : fields_of(fields))
      if (name == "max reserved")
        reserved_ = std::max(reserved_, finite(value).value_or(0.0) * 1048576.0);
  }
}

}  // namespace trireme::report
