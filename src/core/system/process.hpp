// This process: what identifies it and its build, signals that stop it, commands in a shell,
// libraries that it loads, its memory, and its call stacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
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

// Memory, as the system sees it; and the message when reading a mapped file fails.

/// Bytes now and at their highest; 0 where the system does not tell (no /proc).
struct ProcessMemory {
  std::int64_t resident = 0;
  std::int64_t peak = 0;  ///< of resident
  /// Of addresses, whether memory stands behind them or not.
  std::int64_t address_space = 0;
  std::int64_t peak_address_space = 0;
};

/// Reads it from the system.
ProcessMemory process_memory();

/// Bytes of this host's memory.
std::int64_t host_memory();

/// Bytes that new processes can have without swapping: what the system says is available, and what
/// the control groups (version 2) of this process leave it. `root` stands before /proc and /sys.
/// 0 where the system does not tell.
std::int64_t available_memory(const std::string& root = "");

/// From now on a SIGBUS at an address of [`begin`, `begin + size`) writes one message that names
/// `path` to standard error and ends the process with the exit code of an IoError; elsewhere it
/// does what it did before. Mappings beyond the first 1024 at a time are not known to it.
void add_mapping(const void* begin, std::size_t size, const std::string& path);

/// Forgets the mapping that begins at `begin`.
void remove_mapping(const void* begin);

// The call stacks of a process that hangs: they show where.

/// Names the file that write_stacks() appends to, and prepares the signal (SIGRTMAX - 3) that makes
/// threads note their stacks.
void keep_stacks(const std::filesystem::path& file);

/// Appends what each thread of this process does to the file of keep_stacks(), the main thread
/// first: "[rank 3] ", and the functions from the innermost one on, or the state of a thread that
/// does not react. Within some three seconds; again only after 10 seconds. Does nothing without
/// keep_stacks().
void write_stacks();

/// write_stacks() in its own thread: the storage may be what hangs.
void start_to_write_stacks();
/// Whether a thread of start_to_write_stacks() has not come to its end.
bool are_stacks_under_way();

}  // namespace trireme
