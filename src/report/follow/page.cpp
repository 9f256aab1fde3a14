#include "report/follow/verdicts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/clock.hpp"
#include "core/files.hpp"

namespace trireme::report {
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
  if (run.skipped > 0) loss += fmt::format(", {} updates skipped", run.skipped);
  if (run.nan > 0) loss += fmt::format(", {} iterations with NaN or infinite loss", run.nan);
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
