#include "kernels/cuda/gemm/plans.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

namespace trireme::kernels::cuda {
namespace {

constexpr char kSeparator = '\t';
constexpr std::string_view kSeparateText = "separate";

/// The file, held by this process alone while it is open, where the file system can lock.
class LockedFile {
 public:
  LockedFile(const std::string& path, int flags, int lock)
      : fd_(path.empty() ? -1 : ::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (fd_ >= 0) ::flock(fd_, lock);
  }
  LockedFile(const LockedFile&) = delete;
  ~LockedFile() {
    if (fd_ >= 0) ::close(fd_);
  }

  /// All of it; empty when it could not be opened.
  std::string read() const {
    std::string content;
    char buffer[1 << 14];
    ssize_t got = 0;
    while (fd_ >= 0 && (got = ::read(fd_, buffer, sizeof buffer)) > 0) content.append(buffer, got);
    return content;
  }

  /// In one piece, so that lines stay whole even where locks do nothing. A disk that is full costs
  /// a timing in the next run, no more.
  void append(const std::string& text) const {
    if (fd_ < 0) return;
    const ssize_t put = ::write(fd_, text.data(), text.size());
    static_cast<void>(put);
  }

 private:
  int fd_;
};

std::optional<Algorithm> latest_plan(std::string_view content, std::string_view machine,
                                     std::string_view problem) {
  std::optional<Algorithm> latest;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n'), content.size());
    if (const auto plan = parse_plan(content.substr(0, end), machine, problem)) latest = plan;
    content.remove_prefix(std::min(end + 1, content.size()));
  }
  return latest;
}

std::string_view name_of(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::gelu:
      return " gelu";
    case Epilogue::gelu_gradient:
      return " gelu-gradient";
    case Epilogue::exact_gelu:
      return " exact-gelu";
    case Epilogue::exact_gelu_gradient:
      return " exact-gelu-gradient";
    case Epilogue::gated:
      return " gated";
    case Epilogue::gated_gradient:
      return " gated-gradient";
    case Epilogue::bias_gradient:
      return " bias-gradient";
    case Epilogue::none:
      break;
  }
  return "";
}

std::string_view name_of(ScaleBlocks blocks) {
  switch (blocks) {
    case ScaleBlocks::vectors:
      return " 1x128";
    case ScaleBlocks::squares:
      return " 128x128";
    case ScaleBlocks::tensor:
      break;
  }
  return "";
}

/// Removes `expected` from the head of `text`, if it is there.
bool consume(std::string_view& text, std::string_view expected) {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

}  // namespace

std::uint32_t alignment_of(const void* pointer) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(pointer) | kLargestAlignment;
  return static_cast<std::uint32_t>(address & -address);
}

std::string to_string(const GemmProblem& problem) {
  const std::string fp8 =
      is_fp8(problem.operands)
          ? fmt::format("{} x {}{}{}", name_of(problem.blocks_a), name_of(problem.operands_b),
                        name_of(problem.blocks_b), problem.fast_accumulation ? " fast" : "")
          : "";
  return fmt::format(
      "{}x{}x{} {}{} {}{} to {}{}{}{} align {} {} {}", problem.m, problem.n, problem.k,
      problem.transpose_a ? 'T' : 'N', problem.transpose_b ? 'T' : 'N', name_of(problem.operands),
      fp8, name_of(problem.result), problem.adds ? " add" : "", problem.bias ? " bias" : "",
      name_of(problem.epilogue), problem.alignment_a, problem.alignment_b, problem.alignment_c);
}

std::string format_plan(std::string_view machine, std::string_view problem,
                        const Algorithm& algorithm) {
  std::string line = fmt::format("{}{}{}{}", machine, kSeparator, problem, kSeparator);
  if (algorithm == kSeparate) return line.append(kSeparateText);
  for (const std::uint64_t word : algorithm) line += fmt::format("{:016x}", word);
  return line;
}

std::optional<Algorithm> parse_plan(std::string_view line, std::string_view machine,
                                    std::string_view problem) {
  const std::string_view separator(&kSeparator, 1);
  if (!consume(line, machine) || !consume(line, separator) || !consume(line, problem) ||
      !consume(line, separator))
    return std::nullopt;
  if (line == kSeparateText) return kSeparate;
  constexpr std::size_t kDigits = 2 * sizeof(std::uint64_t);
  Algorithm algorithm{};
  if (line.size() != algorithm.size() * kDigits) return std::nullopt;
  for (std::uint64_t& word : algorithm) {
    const auto [end, error] = std::from_chars(line.data(), line.data() + kDigits, word, 16);
    if (error != std::errc() || end != line.data() + kDigits) return std::nullopt;
    line.remove_prefix(kDigits);
  }
  return algorithm;
}

GemmPlans::GemmPlans(std::string path, std::string machine, std::string_view shipped)
    : path_(std::move(path)), machine_(std::move(machine)), shipped_(shipped) {}

std::optional<Algorithm> GemmPlans::find(const GemmProblem& problem) const {
  const LockedFile file(path_, O_RDONLY, LOCK_SH);
  const std::string name = to_string(problem);
  const auto timed = latest_plan(file.read(), machine_, name);
  return timed ? timed : latest_plan(shipped_, machine_, name);
}

Algorithm GemmPlans::settle(const GemmProblem& problem, const Algorithm& mine,
                            const std::function<bool(const Algorithm&)>& usable) const {
  const std::string name = to_string(problem);
  const LockedFile file(path_, O_RDWR | O_CREAT | O_APPEND, LOCK_EX);
  const std::string content = file.read();
  const auto theirs = latest_plan(content, machine_, name);
  if (theirs && usable(*theirs)) return *theirs;
  const bool cut_off = !content.empty() && content.back() != '\n';
  file.append(fmt::format("{}{}\n", cut_off ? "\n" : "", format_plan(machine_, name, mine)));
  return mine;
}

}  // namespace trireme::kernels::cuda
