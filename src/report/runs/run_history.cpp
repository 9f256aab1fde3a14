#include "report/runs/run_history.hpp"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>

#include "core/error.hpp"
#include "report/follow/run_state.hpp"

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
          .tokens = real(point.tokens)};
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

void read_log(const fs::path& path, RunHistory& history) {
  MegatronLog log;
  for_each_line(path, [&](const std::string& line) {
    if (const auto row = log.take(line)) append(history.train, *row);
  });
  history.memory = log.memory();
}

}  // namespace

std::vector<TrainRow> without_repeated(const std::vector<TrainRow>& rows) {
  std::vector<TrainRow> kept;
  for (const TrainRow& row : rows) append(kept, row);
  return kept;
}

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

}  // namespace trireme::report
