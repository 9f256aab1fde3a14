#include "report/follow/follower.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "core/text.hpp"
#include "deck/load.hpp"

namespace trireme::report {
namespace {

constexpr double kStall = 5.0;          // times the usual interval
constexpr double kShortestStall = 5.0;  // seconds: the delay of a file system
constexpr double kLongestStart = 600.0;
constexpr double kIdle = 50.0;  // percent
constexpr double kStraggler = 1.2;
constexpr double kNoise = 1.0;  // ms
constexpr std::size_t kNamed = 3;
/// Slurm's states of a job that has ended.
constexpr std::array<std::string_view, 10> kOver = {
    "BOOT_FAIL", "CANCELLED", "COMPLETED",     "DEADLINE",  "FAILED",
    "NODE_FAIL", "TIMEOUT",   "OUT_OF_MEMORY", "PREEMPTED", "REVOKED"};
constexpr int kStoppedEarly = static_cast<int>(ExitCode::stopped_early);

/// "0.41 s" below ten seconds, then "12s", "3m20s".
std::string duration(double seconds) {
  return seconds < 10 ? fmt::format("{:.2g} s", std::max(seconds, 0.0)) : human_duration(seconds);
}

/// "a, b, c and 4 more".
std::string some_of(const std::vector<std::string>& items) {
  std::string text;
  for (std::size_t i = 0; i < std::min(items.size(), kNamed); ++i)
    text += (i > 0 ? ", " : "") + items[i];
  if (items.size() > kNamed) text += fmt::format(" and {} more", items.size() - kNamed);
  return text;
}

Verdict judge_stop(const StopEvent& stop) {
  const std::string how =
      fmt::format("{}: iteration {}, exit code {}", stop.reason, stop.iteration, stop.exit_code);
  if (stop.exit_code == 0) return {Judgement::well, how};
  const char* advice = stop.exit_code == kStoppedEarly ? "; the same command resumes the run" : "";
  return {Judgement::bad, how + advice};
}

/// The verdict by Slurm's state of a job; empty while it runs.
std::optional<Verdict> judge_job(const JobState& job) {
  if (job.state == "RUNNING" || job.state == "COMPLETING") return std::nullopt;
  const std::string why = job.reason.empty() || job.reason == "None" ? "" : " (" + job.reason + ")";
  return Verdict{Judgement::bad, fmt::format("Slurm's job {} is {}{}", job.id, job.state, why)};
}

Verdict judge_silence(const RunState& run, const ProcessState& process) {
  const double silence = std::max(process.now - run.last_time, 0.0);
  const std::optional<double> usual = run.typical_interval();
  if (!usual) {
    const double waited = std::max(process.now - run.start_time, 0.0);
    return {waited > kLongestStart ? Judgement::bad : Judgement::well,
            fmt::format("no training line yet, {} after the start", duration(waited))};
  }
  const double allowed = std::max({kStall * *usual, kShortestStall, 2 * run.longest_pause});
  if (silence <= allowed)
    return {Judgement::well, fmt::format("last line {} ago, usual interval {}", duration(silence),
                                         duration(*usual))};
  return {Judgement::bad,
          fmt::format("stalled: no line for {}, usual interval {}; the last training line is of "
                      "iteration {}",
                      duration(silence), duration(*usual), run.train->iteration)};
}

/// `verdict`, or a bad one where the newest training line has no finite loss.
Verdict judge_loss(const RunState& run, Verdict verdict) {
  const bool finite = run.steps == 0 || run.train->loss;
  if (finite || verdict.judgement != Judgement::well) return verdict;
  return {Judgement::bad, fmt::format("{}; but the loss of iteration {} is not finite",
                                      verdict.reason, run.train->iteration)};
}

}  // namespace

Verdict is_running(const RunState& run, const ProcessState& process) {
  const auto job = process.job ? judge_job(*process.job) : std::nullopt;
  if (run.stop) {
    Verdict verdict = judge_loss(run, judge_stop(*run.stop));
    if (job && verdict.judgement == Judgement::bad) verdict.reason += "; " + job->reason;
    return verdict;
  }
  if (job) return *job;
  if (run.starts == 0 && process.lock == Lock::held) return {Judgement::well, "starting"};
  if (run.starts == 0) return {Judgement::bad, "metrics.jsonl has no start line"};
  if (process.lock == Lock::free)
    return {Judgement::bad, fmt::format("killed, or failed without a message: last line {} ago",
                                        duration(process.now - run.last_time))};
  return judge_loss(run, judge_silence(run, process));
}

bool has_ended(const RunState& run, const ProcessState& process) {
  if (!process.job) return run.stop || (run.starts > 0 && process.lock == Lock::free);
  const std::string& state = process.job->state;
  if (std::find(kOver.begin(), kOver.end(), state) != kOver.end()) return true;
  // Slurm may requeue the job of a run that was killed or stopped early.
  return state != "PENDING" && run.stop && run.stop->exit_code != kStoppedEarly;
}

Verdict are_gpus_busy(const RunState& run) {
  if (run.start.device == "host") return {Judgement::well, "no GPU is used (run.device: host)"};
  if (run.gpus.empty())
    return {Judgement::unknown, run.start.device.empty()
                                    ? "the start line names no device"
                                    : "not sampled yet (every log.gpu_every iterations)"};
  std::vector<std::string> idle;
  double least = 100;
  for (const GpuUse& gpu : run.gpus) {
    if (std::isnan(gpu.utilisation)) continue;
    least = std::min(least, gpu.utilisation);
    if (gpu.utilisation < kIdle)
      idle.push_back(fmt::format("GPU {} of {} {:.0f} %", gpu.index, gpu.host, gpu.utilisation));
  }
  if (idle.empty()) return {Judgement::well, fmt::format("lowest utilisation {:.0f} %", least)};
  return {Judgement::bad, fmt::format("idle: {}", some_of(idle))};
}

Verdict has_no_error(const RankOutput& output, const RunState& run) {
  if (output.errors() == 0 && run.stop && run.stop->exit_code != 0 &&
      run.stop->exit_code != kStoppedEarly)
    return {Judgement::bad, fmt::format("exit code {}: {}", run.stop->exit_code, run.stop->reason)};
  if (output.empty()) return {Judgement::unknown, "no output to read: no console.log"};
  const std::string told = fmt::format("{} read, {}", counted(output.files(), "file"),
                                       counted(output.warnings(), "warning"));
  if (output.errors() == 0) return {Judgement::well, told};
  return {Judgement::bad,
          fmt::format("{} ({}), the first: {}", counted(output.errors(), "error line"), told,
                      output.first_error())};
}

Verdict is_deck_as_asked(const deck::Deck& effective, deck::Deck asked,
                         const std::string& asked_name) {
  if (!asked.parallel.data) asked.parallel.data = effective.parallel.data;
  std::vector<std::string> differences;
  for (const deck::Change& change : deck::compare_for_restart(asked, effective))
    differences.push_back(
        fmt::format("{} is {}, requested {}", change.key, change.after, change.before));
  if (differences.empty()) return {Judgement::well, "as in " + asked_name};
  return {Judgement::bad, fmt::format("not as in {}: {}", asked_name, some_of(differences))};
}

std::vector<std::string> stragglers(const RunState& run) {
  const RunLayout& layout = run.start.layout;
  // rank = tensor + T * (data + D * pipeline): the ranks of a stage follow each other.
  const auto per_stage = static_cast<std::size_t>(layout.tensor) * layout.data;
  std::vector<std::string> lines;
  if (run.rank_ms.empty() || run.rank_ms.size() != per_stage * layout.pipeline) return lines;
  for (std::size_t first = 0; first < run.rank_ms.size(); first += per_stage) {
    const auto begin = run.rank_ms.begin() + static_cast<std::ptrdiff_t>(first);
    const double usual =
        median(std::vector<double>(begin, begin + static_cast<std::ptrdiff_t>(per_stage)));
    for (std::size_t rank = first; rank < first + per_stage; ++rank) {
      const double ms = run.rank_ms[rank];
      if (ms < kStraggler * usual || ms < usual + kNoise) continue;
      const auto& hosts = run.start.hosts;
      const auto& places = run.start.rank_hosts;
      const bool known = rank < places.size() && places[rank] >= 0 &&
                         places[rank] < static_cast<int>(hosts.size());
      lines.push_back(
          fmt::format("rank {}{} computes {:.1f} ms a step, ranks of its stage {:.1f} ms", rank,
                      known ? " on " + hosts[places[rank]] : "", ms, usual));
    }
  }
  return lines;
}

// ---------------------------------------------------------------------------- the page

namespace {

constexpr std::size_t kMaxGpus = 64;  // lines
constexpr std::array<const char*, 4> kQuestions = {"running", "GPUs busy", "no error",
                                                   "deck as asked"};

/// `value` by a fmt format, or "-".
template <typename Value>
std::string shown(const std::optional<Value>& value, fmt::format_string<const Value&> format) {
  return value ? fmt::format(format, *value) : "-";
}

std::string row(const char* name, const std::string& text) {
  return fmt::format("{:<13} {}\n", name, text);
}

std::string run_rows(const Page& page) {
  const StartEvent& start = page.run.start;
  if (page.run.starts == 0) return row("run", page.folder);
  const RunLayout& layout = start.layout;
  std::string hosts = start.hosts.empty() ? "-" : start.hosts.front();
  if (start.hosts.size() > 1) hosts += fmt::format(" and {} more", start.hosts.size() - 1);
  std::string text = row("run", page.folder) +
                     row("program", fmt::format("{} {}, tensor {} x pipeline {} x data {} on {}",
                                                start.program, start.version, layout.tensor,
                                                layout.pipeline, layout.data, hosts));
  const std::string began = fmt::format("{}, {} ago", local_date_time(page.run.start_time),
                                        human_duration(page.now - page.run.start_time));
  return text + row("started", page.run.starts == 1
                                   ? began
                                   : fmt::format("{} (start {}, from iteration {})", began,
                                                 page.run.starts, start.iteration));
}

std::string progress_row(const RunState& run) {
  std::int64_t done = run.start.iteration;
  // A run may stop or save between two training lines.
  if (run.train) done = std::max(done, run.train->iteration);
  if (run.checkpoint) done = std::max(done, run.checkpoint->iteration);
  if (run.stop) done = std::max(done, run.stop->iteration);
  const std::int64_t all = run.start.length.iterations;
  std::string text = fmt::format("iteration {}", done);
  if (all > 0)
    text += fmt::format(" of {} ({:.1f} %)", all,
                        100.0 * static_cast<double>(done) / static_cast<double>(all));
  if (run.train && run.train->samples) text += fmt::format(", {} samples", *run.train->samples);
  if (const auto left = run.seconds_left(); left && !run.stop)
    text += ", ETA " + human_duration(*left);
  return row("progress", text);
}

std::string training_rows(const RunState& run) {
  if (!run.train) return "";
  const TrainPoint& train = *run.train;
  std::string loss = shown(train.loss, "{:.6f}");
  if (run.best_loss) loss += fmt::format(", best {:.6f} at {}", *run.best_loss, run.best_iteration);
  if (run.evaluation)
    loss += fmt::format(", validation {} at {}", shown(run.evaluation->loss, "{:.6f}"),
                        run.evaluation->iteration);
  if (run.skipped > 0) loss += fmt::format(", {} skipped", counted(run.skipped, "update"));
  if (run.nan > 0)
    loss += fmt::format(", {} with NaN or infinite loss", counted(run.nan, "iteration"));
  const std::optional<double> percent =
      train.mfu ? std::optional(100.0 * *train.mfu) : std::nullopt;
  return row("loss", loss) +
         row("step",
             fmt::format("learning rate {}, grad norm {}, global batch {}",
                         shown(train.learning_rate, "{:.3E}"), shown(train.grad_norm, "{:.3f}"),
                         shown(train.global_batch, "{}"))) +
         row("speed",
             fmt::format("{} ms a step, {} tokens/s, {} TFLOP/s a rank, MFU {}",
                         shown(train.ms, "{:.1f}"), shown(train.tokens_per_second, "{:.0f}"),
                         shown(train.tflops, "{:.3f}"), shown(percent, "{:.1f} %")));
}

std::string storage_rows(const RunState& run) {
  std::string text;
  if (run.memory > 0)
    text += row("memory", human_bytes(run.memory) + " on the rank with the highest peak");
  if (run.checkpoint)
    text += row("checkpoint", fmt::format("of iteration {}", run.checkpoint->iteration));
  return text;
}

std::string gpu_rows(const std::vector<GpuUse>& gpus) {
  if (gpus.empty()) return "";
  std::size_t width = 5;
  for (const GpuUse& gpu : gpus)
    width = std::max(width, fmt::format("{}:{}", gpu.host, gpu.index).size());
  const auto told = [](double value, const char* unit) {
    return std::isnan(value) ? "-" : fmt::format("{:.0f} {}", value, unit);
  };
  const auto bytes = [](double value) { return std::isnan(value) ? "-" : human_bytes(value); };
  std::string text = fmt::format("\n{:<{}} {:>6} {:>22} {:>11} {:>7}\n", "GPU", width, "use",
                                 "memory", "temperature", "power");
  for (std::size_t i = 0; i < std::min(gpus.size(), kMaxGpus); ++i) {
    const GpuUse& gpu = gpus[i];
    text += fmt::format(
        "{:<{}} {:>6} {:>22} {:>11} {:>7}\n", fmt::format("{}:{}", gpu.host, gpu.index), width,
        told(gpu.utilisation, "%"), bytes(gpu.memory) + " / " + bytes(gpu.memory_total),
        told(gpu.temperature, "C"), told(gpu.power, "W"));
  }
  if (gpus.size() > kMaxGpus) text += fmt::format("... and {} more\n", gpus.size() - kMaxGpus);
  return text;
}

std::string verdict_row(const char* question, const Verdict& verdict, bool colour) {
  const bool well = verdict.judgement == Judgement::well;
  const bool bad = verdict.judgement == Judgement::bad;
  const std::string word = fmt::format("{:<4}", well ? "yes" : bad ? "NO" : "?");
  const char* code = well ? "32" : bad ? "1;31" : "33";
  return fmt::format("{:<13} {} {}\n", question,
                     colour ? fmt::format("\033[{}m{}\033[0m", code, word) : word, verdict.reason);
}

}  // namespace

bool Page::well() const {
  return std::none_of(verdicts.begin(), verdicts.end(),
                      [](const Verdict& v) { return v.judgement == Judgement::bad; });
}

std::string to_text(const Page& page, bool colour) {
  std::string text = run_rows(page);
  if (page.run.starts > 0)
    text += progress_row(page.run) + training_rows(page.run) + storage_rows(page.run) +
            gpu_rows(page.run.gpus);
  text += '\n';
  for (std::size_t i = 0; i < kQuestions.size(); ++i)
    text += verdict_row(kQuestions[i], page.verdicts[i], colour);
  for (const std::string& note : page.notes) text += row("note", note);
  return text;
}

}  // namespace trireme::report
