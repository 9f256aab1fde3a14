// What the programs share: parsing options, turning an error into one message and an exit code.
#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/process.hpp"
#include "core/text.hpp"
#include "deck/keys/schema.hpp"
#include "deck/value.hpp"
#include "version.hpp"

namespace trireme {

namespace po = boost::program_options;

/// Throws UsageError unless `value` is one that boost takes for a truth value.
inline void require_truth(const std::string& option, const std::string& value) {
  for (const char* word : {"true", "false", "yes", "no", "on", "off", "1", "0"})
    if (value == word) return;
  throw UsageError("--{} {}: expected true or false", option, value);
}

/// Writes out the values of options that are numbers: `10k` becomes 10000 and `90%` 0.9, as in a
/// deck. Throws UsageError for a value that is none, and for one that is neither true nor false
/// where the option wants that.
inline void write_out_numbers(po::parsed_options& words, const po::options_description& options) {
  for (po::option& word : words.options) {
    const auto* option = options.find_nothrow(word.string_key, /*approx=*/false);
    const auto* typed =
        option ? dynamic_cast<const po::typed_value_base*>(option->semantic().get()) : nullptr;
    if (!typed) continue;
    const std::type_info& type = typed->value_type();
    if (type == typeid(bool))
      for (const std::string& value : word.value) require_truth(word.string_key, value);
    const bool real = type == typeid(double);
    if (!real && type != typeid(int) && type != typeid(std::int64_t)) continue;
    for (std::string& value : word.value) {
      const auto refuse = [&](const char* expected) {
        throw UsageError("--{} {}: expected {}", word.string_key, value, expected);
      };
      try {
        value = real ? fmt::format("{}", deck::parse_real(value))
                     : fmt::format("{}", deck::parse_whole(value, deck::Suffix::allowed));
      } catch (const deck::BadValue&) {
        refuse(real ? "a number, such as 0.9, 1e-3 or 90%" : "a whole number, such as 2000 or 2k");
      }
      if (type == typeid(int) && std::abs(std::stoll(value)) > std::numeric_limits<int>::max())
        refuse("a number below 2^31");
    }
  }
}

inline std::string_view without_dashes(std::string_view option) {
  return option.substr(std::min(option.find_first_not_of('-'), option.size()));
}

/// Whether `argument` names an option that takes no value.
inline bool is_switch(std::string_view argument, const po::options_description& options) {
  if (!argument.starts_with("--")) return false;
  const auto* option = options.find_nothrow(std::string(argument.substr(2)), /*approx=*/false);
  return option && option->semantic()->max_tokens() == 0;
}

/// The message for a word that belongs to no option of a program that takes no such words.
inline std::string misplaced_word(int argc, char** argv, const po::options_description& options) {
  po::options_description all;
  all.add(options).add_options()("word", po::value<std::vector<std::string>>());
  const po::parsed_options words =
      po::command_line_parser(argc, argv)
          .options(all)
          .positional(po::positional_options_description().add("word", -1))
          .run();
  for (const po::option& word : words.options) {
    if (word.string_key != "word") continue;
    const std::string& text = word.value.front();
    for (int i = 1; i + 1 < argc; ++i)
      if (argv[i + 1] == text && is_switch(argv[i], options))
        return fmt::format("'{}' belongs to no option: {} takes no value", text, argv[i]);
    const auto is_given = [&](const char* option) {
      return std::ranges::any_of(words.options,
                                 [&](const po::option& each) { return each.string_key == option; });
    };
    for (const char* option : {"checkpoint", "input", "prompt"})
      if (options.find_nothrow(option, /*approx=*/false) && !is_given(option))
        return fmt::format("'{0}' belongs to no option; did you mean --{1} {0}?", text, option);
    return fmt::format("'{}' belongs to no option", text);
  }
  return "a word belongs to no option";
}

/// The option of the same meaning as `name`, a word of another program: its help says "(elsewhere
/// max_new_tokens)". "" where there is none.
inline std::string option_of_other_name(std::string_view name,
                                        const po::options_description& options) {
  const auto plain = [](std::string_view text) {
    std::string word(text);
    std::ranges::replace(word, '-', '_');
    return word;
  };
  for (const auto& option : options.options()) {
    const std::string help = plain(option->description());
    const std::size_t begin = help.find("(elsewhere ");
    if (begin == std::string::npos) continue;
    std::istringstream words(help.substr(begin + 11, help.find(')', begin) - begin - 11));
    for (std::string word; words >> word;)
      if (word == plain(name) || word == plain(name) + ",") return "--" + option->long_name();
  }
  return "";
}

/// The words of the command line, in order; abbreviated options are not guessed. Positional words
/// are an error unless `positional` takes them. Throws UsageError, with a suggestion, for an option
/// that does not exist, and boost's po::error, which run_app turns into exit code 2 as well.
inline po::parsed_options parse_words(int argc, char** argv, const po::options_description& options,
                                      const po::positional_options_description& positional = {}) {
  const auto style = po::command_line_style::unix_style & ~po::command_line_style::allow_guessing;
  try {
    po::parsed_options words = po::command_line_parser(argc, argv)
                                   .options(options)
                                   .positional(positional)
                                   .style(style)
                                   .run();
    write_out_numbers(words, options);
    return words;
  } catch (const po::invalid_command_line_syntax& error) {
    const std::string name(without_dashes(error.get_option_name()));
    const auto* option = options.find_nothrow(name, /*approx=*/false);
    const bool without_value = error.kind() == po::invalid_syntax::missing_parameter ||
                               error.kind() == po::invalid_syntax::empty_adjacent_parameter;
    if (!without_value || !option) throw;
    throw UsageError("--{} needs a value: {}", name, option->format_parameter());
  } catch (const po::too_many_positional_options_error&) {
    throw UsageError("{}", misplaced_word(argc, argv, options));
  } catch (const po::unknown_option& error) {
    const std::string option = error.get_option_name();
    const std::string_view name = without_dashes(option);
    if (options.find_nothrow("set", /*approx=*/false)) {  // a program that reads a deck
      if (name == "n" || name == "np")
        throw UsageError("{}: a launcher starts ranks: mpirun -n N ...", error.what());
      const deck::Synonym* synonym = deck::find_synonym(name);
      const std::string_view key = synonym ? synonym->key : deck::find_key(name) ? name : "";
      if (!key.empty()) throw UsageError("{}; did you mean {}=VALUE?", error.what(), key);
    }
    if (const std::string other = option_of_other_name(name, options); !other.empty())
      throw UsageError("{}; did you mean '{}'?", error.what(), other);
    std::vector<std::string> names;
    for (const auto& option : options.options())
      if (!option->description().empty()) names.push_back("--" + option->long_name());
    for (const std::string& candidate : names)  // --output-prefix is --output here
      if (option.starts_with(candidate + "-") || candidate.starts_with(option + "-"))
        throw UsageError("{}; did you mean '{}'?", error.what(), candidate);
    throw UsageError("{}{}", error.what(),
                     did_you_mean(error.get_option_name(), {names.begin(), names.end()}));
  }
}

/// The values of the options. Throws boost's po::error.
inline po::variables_map values_of(const po::parsed_options& words) {
  po::variables_map values;
  po::store(words, values);
  po::notify(values);
  return values;
}

/// Writes `text` to standard output. A failure shows when run_app flushes.
inline void print_out(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

/// `text` in lines of at most `columns` columns. What does not fit into a line continues under its
/// last column: the words after two or more blanks, else two columns further in.
inline std::string wrapped(std::string_view text, std::size_t columns) {
  std::string result;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string line(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t blanks = line.find_first_not_of(' ');
    if (blanks != std::string::npos && blanks > columns / 2) line.replace(0, blanks, 4, ' ');
    std::size_t indent = line.find_first_not_of(' ') + 2;
    for (std::size_t gap = line.find("  ", indent); gap < columns / 2; gap = line.find("  ", gap))
      indent = gap = std::min(line.find_first_not_of(' ', gap), line.size());
    if (indent > columns / 2) indent = line.find_first_not_of(' ') + 2;
    while (line.size() > columns) {
      std::size_t blank = line.rfind(' ', columns);
      if (blank == std::string::npos || blank <= indent) blank = line.find(' ', columns);
      if (blank == std::string::npos) break;
      result += line.substr(0, blank) + "\n";
      line = std::string(indent, ' ') + line.substr(blank + 1);
    }
    result += line + "\n";
  }
  return result;
}

/// Prints help: never wider than the terminal, nor than 100 columns.
inline void print_help(std::string_view text) {
  winsize size{};
  const bool known = ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  print_out(wrapped(text, known ? std::clamp<std::size_t>(size.ws_col, 40, 100) : 100));
}

/// Prints version_text().
inline void print_version(const char* program) { print_out(version_text(program)); }

/// Adds --quiet, --verbose and --version, which every program and command takes.
inline void add_general_options(po::options_description& options) {
  options.add_options()  //
      ("quiet,q", "print results, warnings and errors alone: no progress")(
          "verbose,v", "print version, command, time and peak memory, too, on standard error")(
          "version", "print the version and exit");
}

/// The general options and --help.
inline po::options_description general_options() {
  po::options_description options("General");
  options.add_options()("help,h", "print this and exit");
  add_general_options(options);
  return options;
}

/// The values of the options of a command line, --quiet and --verbose included. Throws as
/// parse_words does.
inline po::variables_map parse_options(int argc, char** argv,
                                       const po::options_description& options,
                                       const po::positional_options_description& positional = {}) {
  po::options_description all;
  all.add(options);
  if (!options.find_nothrow("quiet", /*approx=*/false)) add_general_options(all);
  return values_of(parse_words(argc, argv, all, positional));
}

/// Whether both paths are of one file, which need not be there.
inline bool is_same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code absent;
  return std::filesystem::absolute(a, absent).lexically_normal() ==
             std::filesystem::absolute(b, absent).lexically_normal() ||
         std::filesystem::equivalent(a, b, absent);
}

/// `paths` and the files of the run folders in which they are or which they name.
inline std::vector<std::string> with_run_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files = paths;
  for (const std::filesystem::path path : paths)
    for (const char* name : {"metrics.jsonl", "console.log", "deck.yaml"})
      files.push_back(
          ((std::filesystem::is_directory(path) ? path : path.parent_path()) / name).string());
  return files;
}

/// The file that `option` names, to be written. Throws UsageError when it names none, or one of
/// `inputs`, which would be lost, or one of `outputs`, which are written as well, or a folder.
inline std::string output_of(const po::variables_map& values, const char* option,
                             const std::vector<std::string>& inputs,
                             const std::vector<std::string>& outputs = {}) {
  const auto path = values[option].as<std::string>();
  if (path.empty()) throw UsageError("--{}: must name a file", option);
  for (const std::string& input : inputs)
    if (is_same_file(path, input))
      throw UsageError("--{} {}: this is an input; name another file", option, path);
  for (const std::string& output : outputs)
    if (is_same_file(path, output))
      throw UsageError("--{} {}: this is another output; name another file", option, path);
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored))
    throw UsageError("--{} {}: this is a folder; name a file in it", option, path);
  return path;
}

/// Where a program shows its progress: null with --quiet.
inline std::FILE* progress_output(const po::variables_map& values) {
  return values.count("quiet") ? nullptr : stderr;
}

/// Whether this process should print where every rank would say the same, before MPI tells the
/// rank.
inline bool prints_before_mpi() {
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"})
    if (const char* rank = std::getenv(variable)) return std::string_view(rank) == "0";
  return true;
}

/// True when the command line asks for --help or --version, which is then printed; other options
/// need not be right. `usage` comes before the list of `options`.
inline bool answers_help_or_version(int argc, char** argv, const char* program, const char* usage,
                                    const po::options_description& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--version") {
      print_version(program);
      return true;
    }
    if (argument == "--help" || argument == "-h") {
      std::ostringstream list;
      list << options;
      // Groups without a caption begin with an empty line each.
      const std::string text = list.str();
      print_help(usage + text.substr(std::min(text.find_first_not_of('\n'), text.size())));
      return true;
    }
  }
  return false;
}

/// Keeps a standard stream that is closed from becoming the first file that is opened, which would
/// get what is printed: writing to it and reading from it still fail.
inline void occupy_standard_streams() {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(stream, F_GETFD) < 0)
      ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

/// What --verbose prints before and after a program's work, on the first rank; nothing without it.
class VerboseNotes {
 public:
  VerboseNotes(const char* program, int argc, char** argv) : program_(program) {
    const auto asks = [](std::string_view word) { return word == "--verbose" || word == "-v"; };
    wanted_ = prints_before_mpi() && std::any_of(argv + 1, argv + argc, asks);
    if (!wanted_) return;
    std::string text = fmt::format("{} {} ({}):", program, TRIREME_VERSION, commit());
    for (int i = 1; i < argc; ++i) text += fmt::format(" {}", argv[i]);
    std::fputs((text + "\n").c_str(), stderr);
  }

  void end(int code) const {
    if (!wanted_) return;
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
    std::fputs(fmt::format("{}: exit code {} after {:.1f} s and {} at most\n", program_, code,
                           seconds.count(), human_bytes(static_cast<double>(process_memory().peak)))
                   .c_str(),
               stderr);
  }

 private:
  const char* program_;
  bool wanted_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// What `body` returns. An exception of std::filesystem becomes an IoError.
template <typename Body>
auto with_io_errors(const Body& body) {
  try {
    return body();
  } catch (const std::filesystem::filesystem_error& error) {
    std::string path = error.path1().string();
    if (!error.path2().empty()) path += "' or '" + error.path2().string();
    throw IoError("cannot access '{}': {}", path.empty() ? "." : path, error.code().message());
  }
}

/// The one try of a program: runs `body`, prints an error once as `program: message` on standard
/// error, and returns the exit code. Output that standard output did not take turns success into
/// the exit code of an IoError; a closed pipe does so without a message. Neither a closed pipe nor
/// a limit of file sizes ends the program by a signal: the write fails. An MPI program whose other
/// ranks still run calls MPI_Abort with what this returns.
inline int run_app(const char* program, int argc, char** argv,
                   const std::function<ExitCode(int, char**)>& body) {
  occupy_standard_streams();
  for (int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  // Some daemons ignore it, which their children inherit: then no child of ours has an exit code.
  std::signal(SIGCHLD, SIG_DFL);
  const VerboseNotes notes(program, argc, argv);
  const auto report = [&](ExitCode code, const char* message) {
    // The lines of a deck's errors begin with their place in it, for editors that jump there.
    std::string text = code == ExitCode::deck ? fmt::format("{}\n", message)
                                              : fmt::format("{}: {}\n", program, message);
    if (code == ExitCode::usage) text += fmt::format("'{} --help' lists the options.\n", program);
    std::fputs(text.c_str(), stderr);
    return static_cast<int>(code);
  };
  const auto end = [&]() -> int {
    const ExitCode code = with_io_errors([&] { return body(argc, argv); });
    errno = 0;
    if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return static_cast<int>(code);
    // A reader that closed the pipe, as `head` does, wants no message.
    if (errno != EPIPE) report(ExitCode::io, "cannot write to standard output");
    // A run that wants to be started again has to say so all the same.
    return static_cast<int>(code == ExitCode::success ? ExitCode::io : code);
  };
  const auto guarded = [&]() -> int {
    try {
      return end();
    } catch (const Error& error) {
      return report(error.code(), error.what());
    } catch (const po::error& error) {
      return report(ExitCode::usage, error.what());
    } catch (const std::bad_alloc&) {
      return report(ExitCode::failure, "out of memory");
    } catch (const std::exception& error) {
      return report(ExitCode::failure, error.what());
    }
  };
  const int code = guarded();
  notes.end(code);
  return code;
}

}  // namespace trireme
