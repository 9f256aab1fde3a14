#include "core/system/process.hpp"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme {
namespace {

/// Times in which a thread has to react, and all of them together: a busy machine lets some wait.
constexpr double kThreadSeconds = 0.2, kSeconds = 3.0;
/// Seconds before stacks are written again: several ranks ask at about the same time.
constexpr double kMinimumInterval = 10.0;

int stack_signal() { return SIGRTMAX - 3; }

/// The stack of one thread, which its signal handler fills.
struct Stack {
  explicit Stack(pid_t thread) : thread(thread) {}
  const pid_t thread;
  std::array<void*, 64> frames{};
  int count = 0;
  std::atomic<bool> done = false;
};
std::atomic<Stack*> wanted_stack = nullptr;

void note_stack(int) {
  const int before = errno;
  Stack* const stack = wanted_stack;
  // One that reacts too late finds another thread's, or none.
  if (stack && stack->thread == static_cast<pid_t>(::syscall(SYS_gettid)) && !stack->done) {
    stack->count = ::backtrace(stack->frames.data(), static_cast<int>(stack->frames.size()));
    stack->done = true;
  }
  errno = before;
}

std::atomic<int> threads_under_way = 0;
std::mutex file_mutex;
// Guarded by it; never destroyed: start_to_write_stacks() may still run when the process exits.
std::filesystem::path& stacks_file = *new std::filesystem::path;

/// The first line of /proc/self/task/`thread`/`name`.
std::string about(pid_t thread, const char* name) {
  std::ifstream file(fmt::format("/proc/self/task/{}/{}", thread, name));
  std::string line;
  std::getline(file, line);
  return line;
}

/// The functions of this program, also those that the loader does not know of.
class FunctionNames {
 public:
  /// Of the program's symbol table; without any where it has none (strip).
  FunctionNames() {
    try {
      program_ = read_file(program_path());
    } catch (const Error&) {
      return;
    }
    const auto header = at<Elf64_Ehdr>(0);
    if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return;
    for (int i = 0; i < header.e_shnum; ++i) {
      const auto section = at<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr));
      if (section.sh_type != SHT_SYMTAB) continue;
      symbols_ = section;
      names_ = at<Elf64_Shdr>(header.e_shoff + section.sh_link * sizeof(Elf64_Shdr));
    }
  }
  /// The function at `offset` from where the program is loaded; "" where it is not known.
  std::string find(std::uint64_t offset) const {
    for (std::uint64_t i = 0; i + sizeof(Elf64_Sym) <= symbols_.sh_size; i += sizeof(Elf64_Sym)) {
      const auto symbol = at<Elf64_Sym>(symbols_.sh_offset + i);
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || offset < symbol.st_value ||
          offset - symbol.st_value >= symbol.st_size)
        continue;
      const std::uint64_t name = names_.sh_offset + symbol.st_name;
      return name < program_.size() ? program_.c_str() + name : "";
    }
    return "";
  }

 private:
  /// What the file has at `offset`; zeros after its end.
  template <typename T>
  T at(std::uint64_t offset) const {
    T value{};
    if (offset + sizeof value <= program_.size())
      std::memcpy(&value, program_.data() + offset, sizeof value);
    return value;
  }

  std::string program_;
  Elf64_Shdr symbols_{}, names_{};
};

/// Where this program is loaded.
void* program_base() {
  Dl_info info{};
  ::dladdr(reinterpret_cast<void*>(::getauxval(AT_PHDR)), &info);
  return info.dli_fbase;
}

/// "trireme::train::Trainer::run() (trireme-pretrain+0x4f3a)".
std::string describe_frame(void* address, const FunctionNames& names) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || !info.dli_fname) return fmt::format("{}", address);
  const auto offset = static_cast<const char*>(address) - static_cast<const char*>(info.dli_fbase);
  const std::string place =
      fmt::format("{}+{:#x}", std::filesystem::path(info.dli_fname).filename().string(), offset);
  std::string symbol = info.dli_sname ? info.dli_sname : "";
  if (symbol.empty() && info.dli_fbase == program_base())
    symbol = names.find(static_cast<std::uint64_t>(offset));
  if (symbol.empty()) return place;
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), &std::free);
  return fmt::format("{} ({})", status == 0 ? name.get() : symbol, place);
}

/// A thread, and the text of its stack: no functions where it has not reacted.
struct ThreadStack {
  std::string text;
  const Stack* stack = nullptr;
};

/// The stack of `thread`; `seconds` is how long it has to react.
ThreadStack stack_of(pid_t thread, double seconds) {
  const std::string text = fmt::format("thread {} '{}'", thread, about(thread, "comm"));
  // Never freed: the thread may react when all is over.
  static auto& kept = *new std::vector<std::unique_ptr<Stack>>;
  Stack* const stack = kept.emplace_back(std::make_unique<Stack>(thread)).get();
  wanted_stack = stack;
  ::syscall(SYS_tgkill, ::getpid(), thread, stack_signal());
  for (const Stopwatch watch; !stack->done && watch.seconds() < seconds;)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  wanted_stack = nullptr;
  if (!stack->done) {
    const std::string status = about(thread, "stat");
    const std::size_t state = status.rfind(") ");
    return {text + fmt::format(" does not react: state {}, in {}\n",
                               state == std::string::npos ? "?" : status.substr(state + 2, 1),
                               about(thread, "wchan"))};
  }
  return {text + '\n', stack};
}

/// A line for each function of `stack`.
std::string describe_frames(const Stack& stack, const FunctionNames& names) {
  constexpr int kHandler = 2;  // its own frame, and that of the return from it
  std::string text;
  for (int i = std::min(kHandler, stack.count); i < stack.count; ++i)
    text +=
        fmt::format("    {}\n", describe_frame(stack.frames[static_cast<std::size_t>(i)], names));
  return text;
}

/// This process's threads but the calling one, the main thread first.
std::vector<pid_t> other_threads() {
  std::vector<pid_t> threads;
  std::error_code error;
  for (std::filesystem::directory_iterator entry("/proc/self/task", error), end;
       !error && entry != end; entry.increment(error))
    threads.push_back(std::atoi(entry->path().filename().c_str()));
  std::erase(threads, static_cast<pid_t>(::syscall(SYS_gettid)));
  std::ranges::sort(threads);
  return threads;
}

/// `text` with this process's identity before each line.
std::string with_identity(const std::string& text) {
  const std::string prefix = fmt::format("[{}] ", process_identity());
  std::string lines;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end + 1) {
    end = std::min(text.find('\n', begin), text.size());
    lines += prefix + text.substr(begin, end - begin) + '\n';
  }
  return lines;
}

}  // namespace

void keep_stacks(const std::filesystem::path& file) {
  void* frame = nullptr;
  ::backtrace(&frame, 1);  // loads the library that unwinds, which a signal handler must not
  struct sigaction action {};
  action.sa_handler = note_stack;
  action.sa_flags = SA_RESTART;
  ::sigaction(stack_signal(), &action, nullptr);
  const std::scoped_lock lock(file_mutex);
  stacks_file = file;
}

void write_stacks() {
  const std::scoped_lock lock(file_mutex);
  static std::optional<Stopwatch> since_last;
  if (stacks_file.empty() || (since_last && since_last->seconds() < kMinimumInterval)) return;
  since_last.emplace();
  std::string text = fmt::format("stacks at {}\n", local_date_time(unix_time()));
  std::vector<ThreadStack> stacks;
  for (const pid_t thread : other_threads()) {
    const double left = kSeconds - since_last->seconds();
    if (left <= 0.0) break;
    stacks.push_back(
        stack_of(thread, thread == ::getpid() ? left : std::min(left, kThreadSeconds)));
  }
  const FunctionNames names;  // reads the whole program: after the stacks, which have little time
  for (const ThreadStack& each : stacks)
    text += each.text + (each.stack ? describe_frames(*each.stack, names) : "");
  std::error_code ignored;
  std::filesystem::create_directories(stacks_file.parent_path(), ignored);
  const int file = ::open(stacks_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;
  const std::string lines = with_identity(text);  // in one piece: other ranks write there as well
  [[maybe_unused]] const ssize_t put = ::write(file, lines.data(), lines.size());
  ::close(file);
}

void start_to_write_stacks() {
  const auto work = [] {
    try {
      write_stacks();
    } catch (const std::exception&) {
      // No memory, for one: the exit code of the stall matters more.
    }
    --threads_under_way;
  };
  ++threads_under_way;
  try {
    std::thread(work).detach();
  } catch (const std::system_error&) {
    // No thread can be had: the message of the stall says what is known.
    --threads_under_way;
  }
}

bool are_stacks_under_way() { return threads_under_way > 0; }

}  // namespace trireme
