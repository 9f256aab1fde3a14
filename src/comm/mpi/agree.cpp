#include "comm/mpi/agree.hpp"

#include <string>

#include "core/error.hpp"

namespace trireme::comm {
namespace {

[[noreturn]] void throw_as(ExitCode code, const std::string& message) {
  switch (code) {
    case ExitCode::data:
      throw DataError("{}", message);
    case ExitCode::io:
      throw IoError("{}", message);
    case ExitCode::deck:
      throw DeckError("{}", message);
    case ExitCode::usage:
      throw UsageError("{}", message);
    default:
      throw InternalError("{}", message);
  }
}

}  // namespace

void agree(MpiCommunicator& ranks, const std::function<void()>& step) {
  if (ranks.size() == 1) return step();
  int code = 0;
  std::string message;
  try {
    step();
  } catch (const Error& error) {
    code = static_cast<int>(error.code());
    message = error.what();
  } catch (const std::exception& error) {
    code = static_cast<int>(ExitCode::internal);
    message = error.what();
  }
  if (ranks.all_reduce(code, Reduce::max) == 0) return;
  for (const std::string& text : ranks.all_gather_text(std::to_string(code) + " " + message)) {
    if (const int first = std::stoi(text); first != 0)
      throw_as(static_cast<ExitCode>(first), text.substr(text.find(' ') + 1));
  }
}

}  // namespace trireme::comm
