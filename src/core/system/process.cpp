#include "core/system/process.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <initializer_list>
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

}  // namespace trireme
