// This process: what identifies it and its build, signals that stop it, commands in a shell, and
// libraries that it loads.
#pragma once

#include <string>
#include <vector>

namespace trireme {

// What identifies this process and the build that it runs, in messages and between ranks.

/// Sets this process's rank among all ranks; called once, when MPI has started.
void set_process_rank(int rank);

/// "rank 3 on node07", or "node07" while there are no ranks.
std::string process_identity();

/// This host's name.
std::string host_name();

/// The build ids (the linker's digests of what it linked) of the running program and of the shared
/// libraries of Trireme that it loaded, in hexadecimal with '+' between them; equal for copies of
/// one build alone. "" when it was linked without one.
std::string build_id();

/// The running program's path; "" when the system does not tell.
std::string program_path();

// Signals that ask a run to stop cleanly.

/// Installs handlers for SIGUSR1, SIGTERM, SIGINT and SIGHUP that only set a flag. A SIGTERM,
/// SIGINT or SIGHUP that comes more than a second after the first of them ends the process
/// immediately. A SIGHUP that the process was started to ignore (nohup) stays ignored.
void catch_stop_signals();

/// The number of the newest stop signal received so far, 0 when none. The caller makes all ranks
/// agree.
int stop_signal();

// Words for a shell, and what it answers.

/// `word` as one word of a shell's command line: quoted where it needs to be.
std::string shell_word(const std::string& word);

/// What a command printed on standard output, and how it ended.
struct ShellAnswer {
  std::string output;
  int code = 0;  ///< the exit code; 128 when a signal ended the shell
};

/// Runs `line` in a shell and waits for its end. Throws IoError when no shell can be started.
ShellAnswer ask_shell(const std::string& line);

// A library loaded when it is first needed, so that programs start on machines without it.

/// A dynamically loaded library; stays loaded until the program ends.
class SharedLibrary {
 public:
  /// Loads the first of `names` that the system's loader finds. Throws Error (exit 1) with the
  /// loader's text and `hint`, what the user can do, when there is none.
  SharedLibrary(std::vector<std::string> names, const std::string& hint);

  /// The function `name`, as `Function*`; throws Error (exit 1) when the library has none: it is
  /// too old.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address(name));
  }

 private:
  void* address(const char* name) const;

  void* handle_ = nullptr;
  std::string name_;
  std::string hint_;
};

}  // namespace trireme
