#include "report/reporter.hpp"
#include "report/metrics.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <utility>

#include "core/clock.hpp"
#include "core/files.hpp"
#include "core/text.hpp"

namespace trireme::report {
namespace {

/// The fields of log.norms, as Megatron-LM prints them; "" without.
std::string norm_fields(const TrainEvent& event) {
  std::string text;
  // A count, but Megatron-LM holds it in a floating-point number.
  if (event.gradient_zeros)
    text += fmt::format(" num zeros: {:.1f} |", static_cast<double>(*event.gradient_zeros));
  if (event.parameter_norm) text += fmt::format(" params norm: {:.3f} |", *event.parameter_norm);
  return text;
}

/// By samples: iterations may grow.
double seconds_left(const TrainEvent& event, const RunLength& run) {
  const double samples_per_second =
      event.tokens_per_second * static_cast<double>(event.consumed_samples) /
      static_cast<double>(std::max<std::int64_t>(event.consumed_tokens, 1));
  const auto samples_left = static_cast<double>(run.samples - event.consumed_samples);
  return samples_per_second > 0 ? samples_left / samples_per_second : 0;
}

/// "46.1k", "1.27M".
std::string short_number(double value) {
  if (value >= 1e9) return fmt::format("{:.3g}G", value / 1e9);
  if (value >= 1e6) return fmt::format("{:.3g}M", value / 1e6);
  if (value >= 1e3) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{:.3g}", value);
}

/// As Python prints a float: the shortest digits that read back as `value`, with ".0" after an
/// integer.
std::string python_float(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
}

/// The loss of the sentence labels, as Megatron-LM prints it; "" without.
std::string sentence_field(const TrainEvent& event) {
  return event.sentence_loss ? fmt::format(" sop loss: {:.6E} |", *event.sentence_loss) : "";
}

std::string rank_memory_line(const RankMemory& memory, std::int64_t iteration) {
  const auto megabytes = [](std::int64_t bytes) {
    return python_float(static_cast<double>(bytes) / (1024.0 * 1024.0));
  };
  return fmt::format(
      "[Rank {}] (after {} iterations) memory (MB) | allocated: {} | max allocated: {} |"
      " reserved: {} | max reserved: {}",
      memory.rank, iteration, megabytes(memory.allocated), megabytes(memory.max_allocated),
      megabytes(memory.reserved), megabytes(memory.max_reserved));
}

}  // namespace

std::string training_line(const TrainEvent& event, const RunLength& run) {
  return fmt::format(
             " iteration {:8d}/{:8d} | consumed samples: {:12d} |"
             " elapsed time per iteration (ms): {:.1f} | learning rate: {:.3E} |"
             " global batch size: {:5d} | lm loss: {:.6E} |{} loss scale: {:.1f} |"
             " grad norm: {:.3f} |{} number of skipped iterations: {:3d} |"
             " number of nan iterations: {:3d} |",
             event.iteration, run.iterations, event.consumed_samples, event.ms, event.learning_rate,
             event.global_batch, event.loss, sentence_field(event), event.loss_scale,
             event.grad_norm, norm_fields(event), event.skipped, event.nan) +
         fmt::format(
             " tokens per second: {:.1f} | model TFLOP/s per GPU: {:.3f} | MFU: {} | ETA: {} |",
             event.tokens_per_second, event.model_tflops_per_rank,
             event.mfu ? fmt::format("{:.1f}%", *event.mfu * 100) : "-",
             human_duration(seconds_left(event, run)));
}

std::string short_training_line(const TrainEvent& event, const RunLength& run) {
  const int width = static_cast<int>(std::to_string(run.iterations).size());
  std::string line =
      fmt::format("{:>{}}/{} | loss {:.4f}", event.iteration, width, run.iterations, event.loss);
  if (event.sentence_loss) line += fmt::format(" + {:.4f}", *event.sentence_loss);
  line += fmt::format(" | norm {:.3g} | lr {:.2e} | {:.4g} ms | {} tokens/s", event.grad_norm,
                      event.learning_rate, event.ms, short_number(event.tokens_per_second));
  if (event.mfu) line += fmt::format(" | MFU {:.1f}%", *event.mfu * 100);
  line += fmt::format(" | ETA {}", human_duration(seconds_left(event, run)));
  if (event.skipped > 0) line += fmt::format(" | {} skipped", event.skipped);
  if (event.nan > 0) line += fmt::format(" | {} NaN", event.nan);
  return line;
}

std::string skip_line(const SkipEvent& event) {
  return fmt::format(" skipped the data of iterations {} to {} ({} samples) due to train.skip",
                     event.first, event.last, event.samples);
}

std::string rewind_line(const RewindEvent& event) {
  return fmt::format(
      " iteration {}: {}: resuming from '{}' of iteration {}, without the data of {} samples "
      "(train.spike.back)",
      event.from, event.reason, event.path, event.iteration, event.samples);
}

std::string validation_lines(const EvalEvent& event) {
  const std::string_view set =
      event.split == "valid" ? "validation" : std::string_view(event.split);
  std::string line = fmt::format(
      " validation loss at iteration {}{} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ",
      event.iteration, event.at_end ? fmt::format(" on {} set", set) : "", event.loss,
      perplexity(event.loss));
  if (event.sentence_loss)
    line += fmt::format("sop loss value: {:.6E} | sop loss PPL: {:.6E} | ", *event.sentence_loss,
                        perplexity(*event.sentence_loss));
  if (event.sentence_accuracy)
    line += fmt::format("sop accuracy: {:.2f}% | ", 100 * *event.sentence_accuracy);
  const std::string rule(line.size() + 1, '-');
  return rule + '\n' + line + '\n' + rule;
}

std::string task_line(const TaskEvent& event) {
  std::string line = fmt::format(" task {} at iteration {} |", event.task, event.iteration);
  for (const auto& [name, value] : event.metrics) line += fmt::format(" {}: {:.6E} |", name, value);
  return line;
}

std::string timers_lines(const TimersEvent& event) {
  std::string text = "(min, max) time across ranks (ms):";
  for (const TimerValue& timer : event.timers)
    text += fmt::format("\n    {:.<48}: ({:.2f}, {:.2f})", timer.name + " ", timer.min_ms,
                        timer.max_ms);
  return text;
}

std::string memory_lines(const MemoryEvent& event) {
  std::string text;
  for (const RankMemory& rank : event.ranks) text += rank_memory_line(rank, event.iteration) + "\n";
  const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
  return text + fmt::format(
                    " memory of the rank with the highest peak after iteration {} | planned: {} "
                    "|{} resident: {} |"
                    " peak: {} |",
                    event.iteration, bytes(event.planned_bytes),
                    event.gpu_bytes > 0 ? fmt::format(" GPU: {} |", bytes(event.gpu_bytes)) : "",
                    bytes(event.resident_bytes), bytes(event.peak_bytes));
}

std::string gpu_line(const GpuEvent& event) {
  const auto of_all = [&](double GpuUse::*figure, auto combine) {
    double result = std::nan("");  // when no GPU reports it
    for (const GpuUse& gpu : event.gpus)
      if (!std::isnan(gpu.*figure))
        result = std::isnan(result) ? gpu.*figure : combine(result, gpu.*figure);
    return result;
  };
  const auto largest = [](double a, double b) { return std::max(a, b); };
  const auto smallest = [](double a, double b) { return std::min(a, b); };
  return fmt::format(
      " use of {} until iteration {} | utilisation: {:.0f}% min, {:.0f}% max |"
      " memory: {} max | temperature: {:.0f} C max | power: {:.0f} W total |",
      counted(event.gpus.size(), "GPU"), event.iteration, of_all(&GpuUse::utilisation, smallest),
      of_all(&GpuUse::utilisation, largest), human_bytes(of_all(&GpuUse::memory, largest)),
      of_all(&GpuUse::temperature, largest), of_all(&GpuUse::power, std::plus<>()));
}

std::string datetime_line(std::string_view what, double time) {
  return fmt::format("[{}] datetime: {} ", what, local_date_time(time));
}

std::string start_lines(const StartEvent& event) {
  const RunLayout& layout = event.layout;
  return fmt::format(
      "{} {} | {} on {} | tensor {} x pipeline {} x data {} | {} parameters\n"
      "model FLOPs {:.4E} a token = {}",
      event.program, event.version, counted(layout.ranks(), "rank"), fmt::join(event.hosts, ", "),
      layout.tensor, layout.pipeline, layout.data, event.parameters, event.model.flops_per_token,
      event.model.flops_formula);
}

std::string checkpoint_line(const CheckpointEvent& event) {
  return fmt::format("  successfully saved checkpoint at iteration {:7d} to {} ({} in {:.1f} s{})",
                     event.iteration, event.path, human_bytes(static_cast<double>(event.bytes)),
                     event.seconds,
                     event.stall_seconds
                         ? fmt::format(", for which training waited {:.2f} s", *event.stall_seconds)
                         : "");
}

std::string trace_line(const TraceEvent& event) {
  return fmt::format(" timeline of iterations {} to {}: {} | bubble: {:.1f}%{} |", event.first,
                     event.iteration, event.path, 100 * event.bubble,
                     event.simulated_bubble ? fmt::format(" | simulated bubble: {:.1f}%",
                                                          100 * *event.simulated_bubble)
                                            : "");
}

std::string warning_line(const WarningEvent& event) {
  return fmt::format("warning: iteration {}: {}", event.iteration, event.message);
}

std::string stop_line(const StopEvent& event) {
  return fmt::format("stopped after iteration {}: {} (exit code {})", event.iteration, event.reason,
                     event.exit_code);
}

void Console::print(std::string_view text, std::string_view on_standard_output) {
  if (!quiet_) {
    std::fwrite(on_standard_output.data(), 1, on_standard_output.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  log_.line(text);
}

// ---------------------------------------------------------------------------- Reporter

namespace {

OutputFile::Mode mode_of(const ReporterOptions& options) {
  return options.restart ? OutputFile::Mode::resume : OutputFile::Mode::fresh;
}

OutputFile open_metrics(const ReporterOptions& options) {
  const std::filesystem::path path = options.folder / "metrics.jsonl";
  record_last_start(options.folder, options.restart.value_or(0));
  if (options.restart) truncate_metrics_after(path, *options.restart);
  return OutputFile(path, mode_of(options));
}

}  // namespace

Reporter::Reporter(const ReporterOptions& options)
    : folder_(options.folder),
      run_(options.run),
      metrics_(open_metrics(options)),
      console_(options.folder / "console.log", mode_of(options), options.quiet),
      curves_(make_curves(options.dialect)),
      over_iterations_alone_(options.dialect == deck::TensorboardDialect::trireme),
      short_lines_(options.short_lines),
      hooks_(options.hooks, options.folder) {
  if (options.prometheus) prometheus_.emplace(*options.prometheus, options.name);
  if (!options.tensorboard) return;
  tensorboard_.emplace(options.folder / "tensorboard", options.flush_every);
  if (!options.restart)
    tensorboard_->begin_at(0, unix_time());
  else if (over_iterations_alone_)
    tensorboard_->begin_at(*options.restart + 1, unix_time());
}

template <typename Event>
void Reporter::emit(const Event& event, const std::string& text) {
  emit(event, text, text);
}

template <typename Write>
void Reporter::keep_going(const Write& write) {
  constexpr std::size_t kMaxUnwritten = std::size_t{64} << 20;
  const auto unwritten = [&] {
    return metrics_.unwritten() + console_.unwritten() +
           (tensorboard_ ? tensorboard_->unwritten() : 0);
  };
  try {
    write();
    if (unwritten() == 0) warned_of_files_ = false;
  } catch (const IoError& error) {
    if (!trains_ || unwritten() > kMaxUnwritten) throw;
    if (!std::exchange(warned_of_files_, true))
      std::fputs(fmt::format("warning: {}; training continues, and writes it later\n", error.what())
                     .c_str(),
                 stderr);
  }
}

void Reporter::print(std::string_view text) {
  keep_going([&] { console_.print(text); });
}

template <typename Event>
void Reporter::emit(const Event& event, const std::string& text,
                    const std::string& on_standard_output) {
  const double now = unix_time();
  keep_going([&] { metrics_.line(json_line(event, now)); });
  keep_going([&] { console_.print(text, on_standard_output); });
  if constexpr (requires { prometheus_->on(event, now); })
    if (prometheus_ && !prometheus_->on(event, now) && !std::exchange(prometheus_failed_, true))
      print("warning: the file of log.prometheus cannot be written");
  if constexpr (requires { curves_->of(event); })
    if (tensorboard_)
      for (const auto& [tag, x, y] : curves_->of(event))
        keep_going([&, &tag = tag, x = x, y = y] { tensorboard_->scalar(tag, x, y, now); });
}

void Reporter::on(const StartEvent& event) {
  emit(event, start_lines(event));
  trains_ = true;
}

void Reporter::on(const TrainEvent& event) {
  const std::string line = training_line(event, run_);
  emit(event, line, short_lines_ ? short_training_line(event, run_) : line);
  hooks_.note(event.iteration);
  poll_hooks(event.iteration);
}

void Reporter::on(const SkipEvent& event) { emit(event, skip_line(event)); }

void Reporter::on(RewindEvent event) {
  const std::filesystem::path path = folder_ / "metrics.jsonl";
  // A full disk keeps the lines of lost iterations, before that of the event.
  keep_going([&] {
    metrics_.flush();
    const std::string text = read_file(path);
    const auto lost = [&](std::int64_t kept) {
      const auto start = last_start(text, kept);
      return start ? start->lost : 0.0;
    };
    event.lost_seconds = lost(event.iteration) - lost(event.from);  // without earlier rewinds
    truncate_metrics_after(path, event.iteration);
    metrics_ = OutputFile(path, OutputFile::Mode::resume);
  });
  if (tensorboard_ && over_iterations_alone_)
    keep_going([&] { tensorboard_->begin_at(event.iteration + 1, unix_time()); });
  run_ = event.length;
  emit(event, rewind_line(event));
}

void Reporter::on(const EvalEvent& event) { emit(event, validation_lines(event)); }

void Reporter::on(const TaskEvent& event) { emit(event, task_line(event)); }

void Reporter::on(const TimersEvent& event) { emit(event, timers_lines(event)); }

void Reporter::on(const CheckpointEvent& event) {
  emit(event, checkpoint_line(event));
  hooks_.checkpoint(event.iteration, event.path);
  poll_hooks(event.iteration);
}

void Reporter::on(const MemoryEvent& event) { emit(event, memory_lines(event)); }

void Reporter::on(const GpuEvent& event) { emit(event, gpu_line(event)); }

void Reporter::on(const TraceEvent& event) { emit(event, trace_line(event)); }

void Reporter::on(const WarningEvent& event) { emit(event, warning_line(event)); }

void Reporter::on(const StopEvent& event) {
  emit(event, stop_line(event));
  trains_ = false;
  metrics_.flush();
  console_.flush();
  if (tensorboard_) tensorboard_->flush();
  hooks_.stop(event.iteration, event.reason, event.exit_code);
  poll_hooks(event.iteration);
}

void Reporter::fault(const std::string& message, int exit_code) {
  hooks_.fault(message, exit_code);
}

void Reporter::poll_hooks(std::int64_t iteration) {
  for (const std::string& failure : hooks_.poll())
    on(WarningEvent{.iteration = iteration, .message = failure});
}

}  // namespace trireme::report
