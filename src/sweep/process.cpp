#include "sweep/process.hpp"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "core/error.hpp"

namespace trireme::sweep {
namespace {

/// What is left to do in the child: becomes the program or ends with 127.
[[noreturn]] void become(const Command& command, std::vector<char*>& words, int output,
                         pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);  // the parent died before the line above
  ::setpgid(0, 0);
  for (const int number : {SIGUSR1, SIGTERM, SIGINT, SIGPIPE}) std::signal(number, SIG_DFL);
  for (const auto& [name, value] : command.environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::dup2(::open("/dev/null", O_RDONLY), STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execvp(words[0], words.data());
  const std::string message = fmt::format("{}: {}\n", command.words[0], std::strerror(errno));
  if (::write(STDERR_FILENO, message.data(), message.size()) < 0) ::_exit(126);
  ::_exit(127);
}

}  // namespace

Process::Process(const Command& command) {
  const int output =
      ::open(command.output.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (output < 0)
    throw IoError("cannot open '{}': {}", command.output.string(), std::strerror(errno));
  std::vector<char*> words;
  for (const std::string& word : command.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) become(command, words, output, parent);
  const int reason = errno;
  ::close(output);
  if (pid_ < 0) throw IoError("cannot start a process: {}", std::strerror(reason));
}

void Process::signal(int number) const { ::kill(pid_, number); }

std::optional<int> Process::ended() {
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace trireme::sweep
