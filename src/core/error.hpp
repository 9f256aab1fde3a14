// Errors and exit codes: everything that can go wrong is thrown as an Error that knows how the
// program must end.
#pragma once

#ifdef __CUDACC__
#include <fmt/core.h>  // enough, and nvcc takes two seconds less
#else
#include <fmt/format.h>
#endif

#include <stdexcept>
#include <string>

namespace trireme {

/// What a program returns to its launcher. Job scripts requeue on `stopped_early` only.
/// Values 64 to 78 are those of sysexits.h.
enum class ExitCode : int {
  success = 0,         ///< finished, or stopped because the deck or a person asked for it
  failure = 1,         ///< anything without its own code
  usage = 2,           ///< bad command line
  data = 65,           ///< bad data file
  internal = 70,       ///< an internal check failed
  io = 74,             ///< input or output failed
  stopped_early = 75,  ///< stopped early with a checkpoint: run again
  diverged = 76,       ///< training diverged, or weights or a loss are not finite: do not run again
  corrupted = 77,      ///< a GPU or host computes wrong results: leave it out and run again
  deck = 78,           ///< bad deck or layout
};

/// Base of all errors: one clear message and the exit code it leads to.
class Error : public std::runtime_error {
 public:
  Error(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// An Error with a fixed exit code, made from a fmt format string and its arguments.
template <ExitCode kCode>
class CodedError : public Error {
 public:
  template <typename... Args>
  explicit CodedError(fmt::format_string<Args...> format, Args&&... args)
      : Error(kCode, fmt::format(format, std::forward<Args>(args)...)) {}
};

using UsageError = CodedError<ExitCode::usage>;
using DataError = CodedError<ExitCode::data>;
using InternalError = CodedError<ExitCode::internal>;
using IoError = CodedError<ExitCode::io>;
using DeckError = CodedError<ExitCode::deck>;

/// Throws InternalError with the expression, its place and the formatted explanation.
[[noreturn]] inline void throw_check_failed(const char* expression, const char* file, int line,
                                            const std::string& explanation) {
  throw InternalError("{}:{}: check '{}' failed: {}", file, line, expression, explanation);
}

}  // namespace trireme

/// Throws InternalError unless `condition` holds; the rest is a fmt format string and its
/// arguments.
#define TRIREME_CHECK(condition, ...)                                                          \
  do {                                                                                         \
    if (!(condition)) [[unlikely]]                                                             \
      ::trireme::throw_check_failed(#condition, __FILE__, __LINE__, fmt::format(__VA_ARGS__)); \
  } while (false)
