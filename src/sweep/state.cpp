#include "sweep/sweep.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <fmt/ranges.h>

#include <cerrno>
#include <charconv>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"

namespace trireme::sweep {
namespace {

using Json = nlohmann::json;

std::optional<double> number(const Json& event, const char* key) {
  const auto value = event.find(key);
  if (value == event.end() || !value->is_number()) return std::nullopt;
  return value->get<double>();
}

/// A value of each training line.
class Series {
 public:
  void add(const std::optional<double>& value, bool warm_up) {
    if (value) (warm_up ? first_ : rest_).push_back(*value);
  }
  std::optional<double> median() const {
    const std::vector<double>& values = rest_.empty() ? first_ : rest_;
    return values.empty() ? std::nullopt : std::optional(trireme::median(values));
  }

 private:
  std::vector<double> first_;  // lines after a start
  std::vector<double> rest_;
};

class Reader {
 public:
  void read(const Json& event) {
    const auto kind = event.find("kind");
    if (kind == event.end()) return;
    if (*kind == "start") {
      figures_.started = true;
      figures_.exit_code.reset();
      warm_up_ = true;
    } else if (*kind == "train") {
      read_train(event);
    } else if (*kind == "eval" && event.value("split", "") == "valid") {
      figures_.valid_loss = number(event, "loss");
    } else if (*kind == "memory") {
      const auto gpu = number(event, "gpu_bytes");
      figures_.memory_bytes = gpu ? gpu : number(event, "peak_bytes");
    } else if (*kind == "stop") {
      if (const auto code = number(event, "exit_code"))
        figures_.exit_code = static_cast<int>(*code);
      figures_.finished = event.value("reason", "finished") == "finished";
    }
  }

  Figures take() {
    figures_.ms = ms_.median();
    figures_.samples_per_second = samples_.median();
    figures_.tokens_per_second = tokens_.median();
    figures_.mfu = mfu_.median();
    return figures_;
  }

 private:
  void read_train(const Json& event) {
    const auto ms = number(event, "ms");
    const auto batch = number(event, "global_batch");
    figures_.iteration = static_cast<std::int64_t>(number(event, "iteration").value_or(0));
    figures_.loss = number(event, "loss");
    ms_.add(ms, warm_up_);
    if (ms && batch && *ms > 0) samples_.add(*batch / *ms * 1e3, warm_up_);
    tokens_.add(number(event, "tokens_per_second"), warm_up_);
    mfu_.add(number(event, "mfu"), warm_up_);
    warm_up_ = false;
  }

  Figures figures_;
  Series ms_, samples_, tokens_, mfu_;
  bool warm_up_ = true;
};

}  // namespace

Figures read_figures(const std::filesystem::path& run_folder) {
  std::ifstream file(run_folder / "metrics.jsonl");
  Reader reader;
  for (std::string line; std::getline(file, line);) {
    const Json event = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object()) reader.read(event);
  }
  return reader.take();
}

namespace {

namespace fs = std::filesystem;

/// What the run's deck says otherwise than the deck that its folder was trained with, as far as a
/// restart has to say something about it. The kind of device is no part of what was asked: a run on
/// GPUs is not changed by looking at it from a machine that has none, where defaults differ.
std::vector<deck::Change> changes_of(const PlannedSweep& sweep, const PlannedRun& run) {
  const fs::path path = run.folder / "deck.yaml";
  if (!fs::exists(path)) return {};
  const deck::Deck before =
      deck::parse(deck::read_deck(path), path.string(), {}, {.need_data = false});
  const bool elsewhere = before.run.device != run.deck.run.device;
  auto changes = deck::compare_for_restart(
      before,
      elsewhere ? run_deck(sweep, run.swept, before.run.device, /*need_data=*/false) : run.deck);
  std::erase_if(changes, [](const deck::Change& change) {
    return change.rule == deck::RestartRule::free || change.key == "run.device";
  });
  return changes;
}

/// The exit code that the launcher left, unless the run was started otherwise since.
std::optional<int> launcher_code(const PlannedSweep& sweep, const PlannedRun& run) {
  const fs::path path = exit_code_path(sweep, run);
  std::error_code error;
  const auto written = fs::last_write_time(path, error);
  if (error) return std::nullopt;
  const auto metrics = fs::last_write_time(run.folder / "metrics.jsonl", error);
  if (!error && metrics > written) return std::nullopt;
  const std::string text = read_file(path);
  int code = 0;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), code);
  return read.ec == std::errc() ? std::optional(code) : std::nullopt;
}

bool is_early(int code) { return code == static_cast<int>(ExitCode::stopped_early); }

}  // namespace

const char* name_of(State state) {
  switch (state) {
    case State::waiting:
      return "waiting";
    case State::queued:
      return "queued";
    case State::running:
      return "running";
    case State::stopped:
      return "stopped";
    case State::killed:
      return "killed";
    case State::diverged:
      return "diverged";
    case State::failed:
      return "failed";
    case State::changed:
      return "changed";
    case State::finished:
      return "finished";
    case State::too_large:
      return "too large";
  }
  return "";
}

bool is_to_do(State state) {
  switch (state) {
    case State::waiting:
    case State::running:
    case State::stopped:
    case State::killed:
    case State::failed:
    case State::changed:
      return true;
    case State::queued:
    case State::diverged:
    case State::finished:
    case State::too_large:
      break;
  }
  return false;
}

Status status_of(const PlannedSweep& sweep, std::size_t index, const Queue& queue) {
  const PlannedRun& run = sweep.runs[index];
  Status status{.figures = read_figures(run.folder)};
  const auto is = [&](State state, const std::string& note = "") {
    status.state = state;
    status.note = note;
    return status;
  };
  if (is_in_use(run.folder)) return is(State::running);
  if (const auto task = queue.find(static_cast<int>(index) + 1); task != queue.end())
    return is(task->second);
  const std::optional<int> code = launcher_code(sweep, run);
  const std::optional<int> stop = status.figures.exit_code;
  const auto ended_with = [&](ExitCode exit) {
    return code.value_or(stop.value_or(-1)) == static_cast<int>(exit);
  };
  const bool diverged = ended_with(ExitCode::diverged);
  if (code && *code != 0 && !is_early(*code) && !diverged)
    return is(State::failed, fmt::format("exit code {}", *code));
  if ((stop == 0 && status.figures.finished) || diverged) {
    std::vector<std::string> changes;
    for (const deck::Change& change : changes_of(sweep, run))
      changes.push_back(fmt::format("{} was {}", change.key, change.before));
    return changes.empty() ? is(diverged ? State::diverged : State::finished)
                           : is(State::changed, fmt::format("{}", fmt::join(changes, ", ")));
  }
  if (run.unfit) return is(State::too_large, *run.unfit);
  if (stop == 0) return is(State::stopped);  // the deck or a person asked for it
  if (stop) return is_early(*stop) ? is(State::stopped) : is(State::failed);
  if (status.figures.started || fs::exists(output_path(sweep, run))) return is(State::killed);
  return is(State::waiting);
}

void refuse_other_run(const PlannedSweep& sweep, const PlannedRun& run) {
  if (!fs::exists(run.folder / "checkpoints" / "latest")) return;
  for (const deck::Change& change : changes_of(sweep, run))
    if (change.rule == deck::RestartRule::immutable)
      throw deck::InvalidDeck(fmt::format(
          "{}: trained with {} = {}, which is {} now; move the folder away to train afresh",
          run.folder.string(), change.key, change.before, change.after));
}

bool is_in_use(const fs::path& run_folder) {
  // The trainer holds this lock exclusively for as long as it lives, and tries again for a moment
  // when it meets this question.
  const int fd = ::open((run_folder / ".lock").c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool in_use = ::flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(fd);
  return in_use;
}

fs::path output_path(const PlannedSweep& sweep, const PlannedRun& run) {
  return sweep.own_folder() / (run.name() + ".out");
}

fs::path exit_code_path(const PlannedSweep& sweep, const PlannedRun& run) {
  return sweep.own_folder() / (run.name() + ".exit");
}

}  // namespace trireme::sweep
