// A seeded loop over random and damaged inputs, for every reader: each must be read or refused with
// one Error, within seconds and a bounded memory. With clang and -DTRIREME_LIBFUZZER the same
// readers are libFuzzer's, chosen by TRIREME_FUZZ_TARGET.
//
//   fuzz [--inputs N] [--seconds S] [--seed K] [--only NAME] [--found FOLDER]
//
// Inputs in corpus/NAME-*, what was found before, are read first. Child processes read the others:
// an input that ends one is written to FOLDER, and the next child resumes after it.
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>
#include <random>

#include "core/error.hpp"
#include "core/files.hpp"
#include "fuzz.hpp"

namespace trireme::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxBytes = 1 << 17;
constexpr unsigned kMaxSeconds = 10;
constexpr rlim_t kMaxMemory = rlim_t{4} << 30;

/// What a child and its parent share.
struct Shared {
  std::int64_t next;  ///< number of the input that is about to be read
  std::int64_t read;  ///< inputs that were not refused
  std::size_t bytes;
  char input[kMaxBytes];
  char trouble[512];
};

std::string mutated(const Target& target, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) {
    return n == 0 ? 0 : static_cast<std::size_t>(random() % n);
  };
  std::string text = target.seeds[below(target.seeds.size())];
  const std::size_t changes = 1 + below(below(4) == 0 ? 16 : 3);
  for (std::size_t i = 0; i < changes; ++i) {
    const std::size_t at = below(text.size() + 1), length = std::min(below(64), text.size() - at);
    switch (below(9)) {
      case 0:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 2:
        text.erase(at, length);
        break;
      case 3:
        text.insert(below(text.size() + 1), text.substr(at, length));
        break;
      case 4: {
        const std::string& other = target.seeds[below(target.seeds.size())];
        text.insert(at, other.substr(below(other.size() + 1), below(64)));
        break;
      }
      case 5:
        text.resize(at);
        break;
      case 6:
        if (!target.pieces.empty()) text.insert(at, target.pieces[below(target.pieces.size())]);
        break;
      default: {
        // Numbers at which sizes and offsets overflow.
        constexpr std::uint64_t kNumbers[] = {0,          1,          0x7f,       0xff,
                                              0xffff,     0x7fffffff, 0x80000000, 0xffffffff,
                                              1ull << 40, 1ull << 62, 1ull << 63, ~0ull};
        const std::uint64_t number = kNumbers[below(std::size(kNumbers))];
        const std::size_t width = std::size_t{1} << below(4);
        if (at + width <= text.size()) std::memcpy(text.data() + at, &number, width);
      }
    }
  }
  if (text.size() > kMaxBytes) text.resize(kMaxBytes);
  return text;
}

/// "" where `bytes` are read or refused as they should.
std::string trouble_with(const Target& target, std::string_view bytes, const fs::path& folder,
                         bool& was_read) {
  try {
    target.read(bytes, folder);
    was_read = true;
  } catch (const Error& error) {
    was_read = false;
    if (error.code() == ExitCode::internal) return error.what();
    if (std::string_view(error.what()).empty()) return "an error without a message";
  } catch (const std::bad_alloc&) {
    return "memory without bound (std::bad_alloc)";
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", typeid(error).name(), error.what());
  }
  return "";
}

/// What a child does: inputs until `end`, or the deadline.
[[noreturn]] void read_inputs(const Target& target, std::uint64_t seed, std::int64_t end,
                              std::chrono::steady_clock::time_point deadline,
                              const fs::path& folder, Shared& shared) {
  const rlimit no_core{0, 0};
  [[maybe_unused]] const rlimit memory{kMaxMemory, kMaxMemory};
#if !defined(TRIREME_SANITIZED)  // whose shadow memory is terabytes of addresses
  ::setrlimit(RLIMIT_AS, &memory);
#endif
  ::setrlimit(RLIMIT_CORE, &no_core);
  for (; shared.next < end && std::chrono::steady_clock::now() < deadline; ++shared.next) {
    std::mt19937_64 random(seed * 1'000'003 + static_cast<std::uint64_t>(shared.next));
    const std::string input = mutated(target, random);
    std::memcpy(shared.input, input.data(), input.size());
    shared.bytes = input.size();
    ::alarm(kMaxSeconds);
    bool was_read = false;
    const std::string trouble = trouble_with(target, input, folder, was_read);
    ::alarm(0);
    shared.read += was_read;
    if (trouble.empty()) continue;
    std::strncpy(shared.trouble, trouble.c_str(), sizeof shared.trouble - 1);
    ::_exit(1);
  }
  ::_exit(0);
}

struct Options {
  std::int64_t inputs = 1'000'000;
  double seconds = 0.0;  ///< of all; 0: no limit
  std::uint64_t seed = 1;
  std::string only;
  fs::path found = "fuzz-found";
};

/// Fuzzes one target; returns the number of inputs that were found.
int fuzz(const Target& target, const Options& options, std::int64_t inputs, double seconds,
         const fs::path& folder, Shared& shared) {
  const auto start = std::chrono::steady_clock::now();
  const auto deadline =
      seconds > 0.0 ? start + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                  std::chrono::duration<double>(seconds))
                    : std::chrono::steady_clock::time_point::max();
  std::uint64_t seed = options.seed;
  for (const char c : target.name) seed = seed * 131 + static_cast<unsigned char>(c);
  shared.next = shared.read = 0;
  int found = 0;
  while (shared.next < inputs && std::chrono::steady_clock::now() < deadline) {
    shared.trouble[0] = '\0';
    const pid_t child = ::fork();
    if (child == 0) read_inputs(target, seed, inputs, deadline, folder, shared);
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) break;
    std::string why = shared.trouble;
    if (why.empty())
      why = WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM
                ? fmt::format("it takes more than {} s", kMaxSeconds)
            : WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status))
                                  : fmt::format("the process ends with {}", WEXITSTATUS(status));
    fs::create_directories(options.found);
    const fs::path path = options.found / fmt::format("{}-{}", target.name, shared.next);
    std::ofstream(path, std::ios::binary).write(shared.input, static_cast<long>(shared.bytes));
    fmt::print("{}: {}: {}\n", target.name, path.string(), why);
    ++found;
    ++shared.next;
  }
  const double took =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  fmt::print("{:<16} {:>9} inputs, {:>8} of them readable, {:>3} found, {:.1f} s\n", target.name,
             shared.next, shared.read, found, took);
  std::fflush(stdout);
  return found;
}

/// Whether all seeds are read: mutations of others would prove little.
int check_seeds(const Target& target, const fs::path& folder) {
  int unreadable = 0;
  for (const std::string& seed : target.seeds) try {
      target.read(seed, folder);
    } catch (const std::exception& error) {
      fmt::print("{}: a seed is refused: {}\n", target.name, error.what());
      ++unreadable;
    }
  return unreadable;
}

/// Reads what was found before.
int check_corpus(const Target& target, const fs::path& folder) {
  int found = 0;
  for (const auto& entry :
       fs::directory_iterator(fs::path(TRIREME_SOURCE_DIR) / "tests/fuzz/corpus")) {
    const std::string name = entry.path().filename().string();
    if (name.substr(0, name.rfind('-')) != target.name) continue;
    const std::string input = read_file(entry.path());
    bool was_read = false;
    ::alarm(kMaxSeconds);
    const std::string trouble = trouble_with(target, input, folder, was_read);
    ::alarm(0);
    if (!trouble.empty()) fmt::print("{}: {}\n", entry.path().string(), trouble);
    found += !trouble.empty();
  }
  return found;
}

int run(const Options& options) {
  const fs::path folder =
      fs::path(fs::exists("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string()) /
      fmt::format("trireme-fuzz-{}", ::getpid());
  fs::create_directories(folder);
  auto* shared = static_cast<Shared*>(
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  std::vector<Target> targets = all_targets(folder);
  if (!options.only.empty())
    std::erase_if(targets, [&](const Target& target) { return target.name != options.only; });
  const auto count = static_cast<std::int64_t>(targets.size());
  int found = 0;
  for (const Target& target : targets)
    found += check_seeds(target, folder) + check_corpus(target, folder) +
             fuzz(target, options, (options.inputs + count - 1) / std::max<std::int64_t>(count, 1),
                  options.seconds / static_cast<double>(count), folder, *shared);
  fs::remove_all(folder);
  fmt::print("{} inputs found\n", found);
  return count == 0 ? 2 : found == 0 ? 0 : 1;
}

}  // namespace
}  // namespace trireme::fuzz

#ifdef TRIREME_LIBFUZZER

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  using namespace trireme::fuzz;
  static const std::filesystem::path folder = [] {
    auto path = std::filesystem::temp_directory_path() / fmt::format("trireme-fuzz-{}", ::getpid());
    std::filesystem::create_directories(path);
    return path;
  }();
  static const Target target = [] {
    const char* name = std::getenv("TRIREME_FUZZ_TARGET");
    for (const Target& each : all_targets(folder))
      if (name && each.name == name) return each;
    fmt::print("TRIREME_FUZZ_TARGET names no reader\n");
    std::exit(2);
  }();
  bool was_read = false;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const std::string trouble = trouble_with(target, bytes, folder, was_read); !trouble.empty()) {
    fmt::print("{}\n", trouble);
    std::abort();
  }
  return 0;
}

#else

int main(int argc, char** argv) {
  trireme::fuzz::Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--inputs")
      options.inputs = std::stoll(value);
    else if (name == "--seconds")
      options.seconds = std::stod(value);
    else if (name == "--seed")
      options.seed = std::stoull(value);
    else if (name == "--only")
      options.only = value;
    else if (name == "--found")
      options.found = value;
    else
      argc = 0;  // unknown
  }
  if (argc % 2 == 0) {
    fmt::print(
        "usage: fuzz [--inputs N] [--seconds S] [--seed K] [--only NAME] [--found FOLDER]\n");
    return 2;
  }
  return trireme::fuzz::run(options);
}

#endif
