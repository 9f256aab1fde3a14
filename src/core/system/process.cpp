#include "core/system/process.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.hpp"

namespace trireme {
namespace {

int process_rank = -1;

}  // namespace

void set_process_rank(int rank) { process_rank = rank; }

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "unknown host";
}

std::string process_identity() {
  return process_rank < 0 ? host_name() : fmt::format("rank {} on {}", process_rank, host_name());
}

namespace {

/// The size of a note's name or contents, which end on a multiple of four bytes.
constexpr std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

/// The build id among the notes of `size` bytes at `notes`; "" when there is none.
std::string find_build_id(const std::byte* notes, std::size_t size) {
  const std::byte* const end = notes + size;
  ElfW(Nhdr) note;
  while (notes + sizeof note <= end) {
    std::memcpy(&note, notes, sizeof note);
    const std::byte* name = notes + sizeof note;
    const std::byte* contents = name + padded(note.n_namesz);
    notes = contents + padded(note.n_descsz);
    if (notes > end) return "";
    if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || std::memcmp(name, "GNU", 4) != 0)
      continue;
    std::string text;
    for (std::size_t i = 0; i < note.n_descsz; ++i)
      text += fmt::format("{:02x}", std::to_integer<unsigned>(contents[i]));
    return text;
  }
  return "";
}

/// The build id of a loaded object; "" when it has none.
std::string build_id_of(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const std::byte*>(object.dlpi_addr + segment.p_vaddr);
    const std::string id = find_build_id(notes, segment.p_memsz);
    if (!id.empty()) return id;
  }
  return "";
}

/// Adds the ids of the program, which the loader lists first, and of Trireme's shared libraries.
int add_build_id(dl_phdr_info* object, std::size_t, void* result) {
  std::string& ids = *static_cast<std::string*>(result);
  const bool is_ours =
      std::string_view(object->dlpi_name).find("/libtrireme_") != std::string::npos;
  if (ids.empty())
    ids = build_id_of(*object);
  else if (is_ours)
    ids.append("+").append(build_id_of(*object));
  return 0;
}

}  // namespace

std::string build_id() {
  std::string ids;
  dl_iterate_phdr(&add_build_id, &ids);
  return ids;
}

std::string program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

// ---------------------------------------------------------------------------- signals

namespace {

/// Launchers and schedulers signal a process and its group: the same request comes twice.
constexpr double kOneRequest = 1.0;  // seconds

volatile std::sig_atomic_t received = 0;
timespec first{};  ///< when; written once, before `received`

double seconds_since(const timespec& start) {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);  // safe in a handler
  return static_cast<double>(now.tv_sec - start.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec - start.tv_nsec);
}

void remember(int signal) {
  if (received == 0)
    ::clock_gettime(CLOCK_MONOTONIC, &first);
  else if (signal != SIGUSR1 && seconds_since(first) > kOneRequest) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
  received = signal;
}

}  // namespace

void catch_stop_signals() {
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  const int stops[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
  // One after the other: a handler that another interrupts has not written down when it came.
  for (const int signal : stops) ::sigaddset(&action.sa_mask, signal);
  for (const int signal : stops) {
    struct sigaction before {};
    ::sigaction(signal, nullptr, &before);
    const bool by_nohup = signal == SIGHUP && before.sa_handler == SIG_IGN;
    if (!by_nohup) ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() { return received; }

// ---------------------------------------------------------------------------- shells and libraries

namespace {

/// `word` in double quotes, inside which four characters keep their meaning.
std::string double_quoted(const std::string& word) {
  std::string text;
  for (const char c : word) {
    if (std::string_view("\\\"$`").find(c) != std::string_view::npos) text += '\\';
    text += c;
  }
  return '"' + text + '"';
}

/// `word` in single quotes, inside which none has a meaning, and which a single quote ends.
std::string single_quoted(const std::string& word) {
  std::string text;
  for (const char c : word) {
    if (c == '\'')
      text += "'\\''";
    else
      text += c;
  }
  return '\'' + text + '\'';
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  // Double quotes read better around a quote, but at a prompt '!' has a meaning inside them.
  const bool reads_better = word.find_first_of("'$`") != std::string::npos;
  return reads_better && word.find('!') == std::string::npos ? double_quoted(word)
                                                             : single_quoted(word);
}

ShellAnswer ask_shell(const std::string& line) {
  std::FILE* const pipe = ::popen(line.c_str(), "r");
  if (pipe == nullptr) throw IoError("cannot run '{}': {}", line, std::strerror(errno));
  ShellAnswer answer;
  std::array<char, 4096> part;
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe))
    answer.output.append(part.data(), count);
  const int status = ::pclose(pipe);
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return answer;
}

SharedLibrary::SharedLibrary(std::vector<std::string> names, const std::string& hint)
    : hint_(hint) {
  std::string said;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) {
      name_ = name;
      return;
    }
    said = dlerror();
  }
  throw CodedError<ExitCode::failure>("{}: {}", said, hint);
}

void* SharedLibrary::address(const char* name) const {
  void* found = dlsym(handle_, name);
  if (!found)
    throw CodedError<ExitCode::failure>("{} has no {}: it is too old: {}", name_, name, hint_);
  return found;
}

// ---------------------------------------------------------------------------- memory

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> memory.resident;
    if (word == "VmHWM:") status >> memory.peak;
    if (word == "VmSize:") status >> memory.address_space;
    if (word == "VmPeak:") status >> memory.peak_address_space;
  }
  for (std::int64_t* figure :
       {&memory.resident, &memory.peak, &memory.address_space, &memory.peak_address_space})
    *figure *= 1024;
  return memory;
}

std::int64_t host_memory() {
  return std::int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
}

namespace {

/// The number after `key` in a file of lines "key number"; nothing when it is not there.
std::optional<std::int64_t> number_in(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::int64_t number = 0;
    if (word == key && file >> number) return number;
  }
  return std::nullopt;
}

/// The number that a file begins with; nothing for "max".
std::optional<std::int64_t> number_of(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

/// What the control group in `folder` leaves; nothing when it has no limit. Pages of files that
/// were not used lately make room.
std::optional<std::int64_t> left_in_group(const std::string& folder) {
  const auto limit = number_of(folder + "/memory.max");
  const auto used = number_of(folder + "/memory.current");
  if (!limit || !used) return std::nullopt;
  const std::int64_t cached = number_in(folder + "/memory.stat", "inactive_file").value_or(0);
  return std::max<std::int64_t>(0, *limit - *used + cached);
}

}  // namespace

std::int64_t available_memory(const std::string& root) {
  const auto kibibytes = number_in(root + "/proc/meminfo", "MemAvailable:");
  if (!kibibytes) return 0;
  std::int64_t available = *kibibytes * 1024;
  // "0::/user.slice/job": a limit of any group above holds, too.
  std::string path;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);)
    if (line.starts_with("0::/")) path = line.substr(3);
  while (true) {
    while (path.ends_with('/')) path.pop_back();
    if (const auto left = left_in_group(root + "/sys/fs/cgroup" + path))
      available = std::min(available, *left);
    if (path.empty()) return available;
    path.erase(path.rfind('/'));
  }
}

// ---------------------------------------------------------------------------- mapped files

namespace {

// Three index files of each dataset of each split, and the indices of their blends.
constexpr int kMaxMappings = 1024;
constexpr std::size_t kMaxMessage = 4352;  // of a path and the words around it

/// A mapping that the handler knows. `begin` is set last and cleared first; the text is never
/// freed while the entry is in use.
struct Mapping {
  std::atomic<std::uintptr_t> begin = 0;
  std::atomic<std::uintptr_t> end = 0;
  std::array<char, kMaxMessage> message = {};
};

std::array<Mapping*, kMaxMappings> mappings = {};  // made when first needed
std::atomic<int> num_mappings = 0;
std::mutex adding;
struct sigaction before = {};

// Only what POSIX allows in a signal handler.
void on_bus_error(int signal, siginfo_t* info, void* context) {
  const auto address = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (int i = 0; i < num_mappings.load(); ++i) {
    const std::uintptr_t begin = mappings[i]->begin.load();
    if (begin == 0 || address < begin || address >= mappings[i]->end.load()) continue;
    const char* text = mappings[i]->message.data();
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
    ::_exit(static_cast<int>(ExitCode::io));
  }
  if ((before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction) {
    before.sa_sigaction(signal, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(signal);
  } else {
    // Pending until the handler returns: then the process ends as without a handler.
    std::signal(signal, SIG_DFL);
    ::raise(signal);
  }
}

/// MPI, too, takes the signal when it starts: the handler is put before that of today.
void install() {
  struct sigaction current = {};
  ::sigaction(SIGBUS, nullptr, &current);
  if ((current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_bus_error) return;
  before = current;
  struct sigaction action = {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void add_mapping(const void* begin, std::size_t size, const std::string& path) {
  const std::lock_guard lock(adding);
  install();
  int entry = 0;
  while (entry < num_mappings && mappings[entry]->begin != 0) ++entry;
  if (entry == kMaxMappings) return;
  if (entry == num_mappings) {
    if (!mappings[entry]) mappings[entry] = new Mapping;  // lives as long as the handler
    ++num_mappings;
  }
  const std::string text = fmt::format(
      "cannot read '{}': it was cut, or its disk failed, while this program used it\n", path);
  Mapping& mapping = *mappings[entry];
  std::strncpy(mapping.message.data(), text.c_str(), kMaxMessage - 1);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  mapping.end = address + size;
  mapping.begin = address;
}

void remove_mapping(const void* begin) {
  const std::lock_guard lock(adding);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  for (int entry = 0; entry < num_mappings; ++entry)
    if (mappings[entry]->begin == address) mappings[entry]->begin = 0;
}

}  // namespace trireme
