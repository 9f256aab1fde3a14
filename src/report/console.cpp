#include "report/console.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>

#include "core/clock.hpp"
#include "core/files.hpp"

namespace trireme::report {

std::string training_line(const TrainEvent& event, std::int64_t total_iterations) {
  const double seconds_left =
      static_cast<double>(total_iterations - event.iteration) * event.ms / 1e3;
  return fmt::format(
             " iteration {:8d}/{:8d} | consumed samples: {:12d} |"
             " elapsed time per iteration (ms): {:.1f} | learning rate: {:.3E} |"
             " global batch size: {:5d} | lm loss: {:.6E} | loss scale: {:.1f} |"
             " grad norm: {:.3f} | number of skipped iterations: {:3d} |"
             " number of nan iterations: {:3d} |",
             event.iteration, total_iterations, event.consumed_samples, event.ms,
             event.learning_rate, event.global_batch, event.loss, event.loss_scale, event.grad_norm,
             event.skipped, event.nan) +
         fmt::format(
             " tokens per second: {:.1f} | model TFLOP/s per GPU: {:.3f} | MFU: {} | ETA: {} |",
             event.tokens_per_second, event.model_tflops_per_rank,
             event.mfu ? fmt::format("{:.1f}%", *event.mfu * 100) : "-",
             human_duration(seconds_left));
}

std::string validation_lines(const EvalEvent& event) {
  const std::string line = fmt::format(
      " validation loss at iteration {}{} | lm loss value: {:.6E} | lm loss PPL: {:.6E} | ",
      event.iteration, event.split == "valid" ? "" : fmt::format(" on {} set", event.split),
      event.loss, perplexity(event.loss));
  const std::string rule(line.size() + 1, '-');
  return rule + '\n' + line + '\n' + rule;
}

std::string start_line(const StartEvent& event) {
  const RunLayout& layout = event.layout;
  const int ranks = layout.tensor * layout.pipeline * layout.data;
  return fmt::format("{} {} | {} rank{} on {} | tensor {} x pipeline {} x data {} | {} parameters",
                     event.program, event.version, ranks, ranks == 1 ? "" : "s",
                     fmt::join(event.hosts, ", "), layout.tensor, layout.pipeline, layout.data,
                     event.parameters);
}

std::string checkpoint_line(const CheckpointEvent& event) {
  return fmt::format("  successfully saved checkpoint at iteration {:7d} to {} ({} in {:.1f} s)",
                     event.iteration, event.path, human_bytes(static_cast<double>(event.bytes)),
                     event.seconds);
}

std::string memory_line(const MemoryEvent& event) {
  const auto bytes = [](std::int64_t count) { return human_bytes(static_cast<double>(count)); };
  return fmt::format(
      " memory of the fullest rank after iteration {} | planned: {} |{} resident: {} | peak: {} |",
      event.iteration, bytes(event.planned_bytes),
      event.gpu_bytes > 0 ? fmt::format(" GPU: {} |", bytes(event.gpu_bytes)) : "",
      bytes(event.resident_bytes), bytes(event.peak_bytes));
}

std::string stop_line(const StopEvent& event) {
  return fmt::format("stopped after iteration {}: {} (exit code {})", event.iteration, event.reason,
                     event.exit_code);
}

void Console::print(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fputc('\n', stdout);
  std::fflush(stdout);
  log_.line(text);
}

}  // namespace trireme::report
