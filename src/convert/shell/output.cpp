// What commands print, and the scripts, shells and programs that a command starts.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <utility>

#include "convert/shell/follower.hpp"
#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::shell {

namespace fs = std::filesystem;

namespace {

using Words = std::vector<std::string>;

// The text of `echo` with its options -n, -e and -E.
std::string echoed(const Words& words) {
  bool ends_line = true, escapes = false;
  std::size_t first = 1;
  for (; first < words.size(); ++first) {
    const std::string& word = words[first];
    if (word.size() < 2 || word[0] != '-' || word.find_first_not_of("neE", 1) != kNone) break;
    for (const char option : word.substr(1)) {
      if (option == 'n') ends_line = false;
      if (option != 'n') escapes = option == 'e';
    }
  }
  std::string text = fmt::format(
      "{}", fmt::join(words.begin() + static_cast<std::ptrdiff_t>(first), words.end(), " "));
  if (escapes) text = unescaped(text);
  return ends_line ? text + "\n" : text;
}

// `value` by the directive of printf that `flags`, such as "%-8.3", and `kind` make; empty if it is
// unknown.
std::optional<std::string> directive(std::string flags, char kind, const std::string& value) {
  const bool is_text = kind == 's' || kind == 'b' || kind == 'c';
  if (flags.find('*') != kNone || flags.size() > 8) return std::nullopt;
  if (has_unknown(value)) return flags == "%" ? std::optional(value) : std::nullopt;
  char text[1024];
  int size = -1;
  if (is_text) {
    const std::string shown = kind == 'b'   ? unescaped(value)
                              : kind == 'c' ? value.substr(0, 1)
                                            : value;
    if (flags == "%") return shown;
    size = std::snprintf(text, sizeof text, (flags + "s").c_str(), shown.c_str());
  } else if (std::string_view("dioxXu").find(kind) != kNone) {
    char* end = nullptr;
    const long long number = std::strtoll(value.c_str(), &end, 0);
    if (*end != '\0') return std::nullopt;
    size = std::snprintf(text, sizeof text, (flags + "ll" + kind).c_str(), number);
  } else if (std::string_view("eEfFgG").find(kind) != kNone) {
    char* end = nullptr;
    const double number = std::strtod(value.c_str(), &end);
    if (*end != '\0') return std::nullopt;
    size = std::snprintf(text, sizeof text, (flags + kind).c_str(), number);
  }
  const bool fits = size >= 0 && static_cast<std::size_t>(size) < sizeof text;
  return fits ? std::optional(std::string(text)) : std::nullopt;
}

// The text of `printf` with its words from `first` on: the format and its values. Empty if a
// directive or a value is unknown.
std::optional<std::string> printed(const Words& words, std::size_t first) {
  if (first >= words.size()) return std::string();
  if (has_unknown(words[first])) return std::nullopt;
  const std::string format = unescaped(words[first]);
  std::size_t next = first + 1;
  std::string text;
  // The format is used again while values are left.
  do {
    const std::size_t before = next;
    for (std::size_t i = 0; i < format.size(); ++i) {
      const std::size_t kind =
          format[i] == '%' ? format.find_first_not_of("-+ #0123456789.*", i + 1) : i;
      if (kind == kNone) return std::nullopt;
      if (format[i] != '%' || format[kind] == '%') {
        text += format[kind];
      } else {
        const bool is_number = std::string_view("sbcq").find(format[kind]) == kNone;
        const std::string value = next < words.size() ? words[next] : is_number ? "0" : "";
        const auto part = directive(format.substr(i, kind - i), format[kind], value);
        if (!part) return std::nullopt;
        text += *part;
        ++next;
      }
      i = kind;
    }
    if (next == before) break;
  } while (next < words.size() && text.size() < kMaxWordBytes);
  return text;
}

// The whole number that `text` is.
std::optional<std::int64_t> number_of(const std::string& text) {
  const Names none{[](std::string_view) { return std::nullopt; }, [](const auto&, const auto&) {}};
  return has_unknown(text) || text.empty() ? std::nullopt : evaluate(text, none);
}

// The output of `seq LAST`, `seq FIRST LAST` and `seq FIRST STEP LAST`.
std::optional<std::string> sequence(const Words& words) {
  if (words.size() < 2 || words.size() > 4) return std::nullopt;
  const auto first = words.size() > 2 ? number_of(words[1]) : 1;
  const auto step = words.size() > 3 ? number_of(words[2]) : 1;
  const auto last = number_of(words.back());
  if (!first || !step || !last || *step == 0) return std::nullopt;
  Words numbers;
  for (std::int64_t i = *first; *step > 0 ? i <= *last : i >= *last; i += *step) {
    if (numbers.size() >= kMaxPasses) return std::nullopt;
    numbers.push_back(fmt::format("{}", i));
  }
  return fmt::format("{}", fmt::join(numbers, "\n"));
}

// `path` without the slashes at its end.
std::string without_slashes(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

std::string folder_of(const std::string& path) {
  const std::string parent = fs::path(without_slashes(path)).parent_path().string();
  return parent.empty() ? "." : parent;
}

std::string base_name(const std::string& path, const std::string& suffix) {
  const std::string whole = without_slashes(path);
  std::string name = whole.substr(whole == "/" ? 0 : whole.rfind('/') + 1);
  if (name.size() > suffix.size() && name.ends_with(suffix))
    name.resize(name.size() - suffix.size());
  return name;
}

}  // namespace

std::string Follower::here_text(const HereDocument& here) {
  if (here.is_word) return expander().text(here.text) + "\n";
  return here.expands ? expander().here_text(here.text) : here.text;
}

// Stores what `command` writes to a file.
void Follower::write(const Command& command, const std::string& text) {
  if (command.written_to.empty()) return;
  const std::string name = expander().text(command.written_to);
  std::string& file = run.files[name];
  if (mode_ == Mode::maybe)
    file = unknown(fmt::format("{} (line {} writes it under a condition)", name, command.line));
  else
    file = command.appends ? file + text : text;
}

// `echo`, `printf` and `cat << END`, and `printf -v NAME`.
void Follower::print(const Words& words, const Command& command) {
  if (words[0] == "echo") return write(command, echoed(words));
  if (words[0] == "cat") {
    if (command.here) write(command, here_text(*command.here));
    return;
  }
  const std::size_t first = words.size() > 1 && words[1] == "--" ? 2 : 1;
  if (words.size() < 4 || words[1] != "-v") {
    const auto text = printed(words, first);
    return write(command, text.value_or(unknown(fmt::format("printf (line {})", line_))));
  }
  const auto text = printed(words, 3);
  assign_result(words[2], text);
}

// `sed s/a/b/ FILE`, or the same on the output of the previous `sed` in a pipe.
void Follower::edit(const Words& words, const Command& command) {
  std::error_code ignored;
  if (words.size() == 3) {
    const auto written = run.files.find(words[2]);
    const fs::path path = resolve(words[2]);
    if (written != run.files.end())
      piped_ = written->second;
    else if (fs::is_regular_file(path, ignored))
      piped_ = read_file(path);
  }
  piped_ = piped_ && words.size() > 1 ? substitute(words[1], *piped_) : std::nullopt;
  if (piped_) write(command, *piped_);
}

// The output of `$( ... )`; empty if unknown.
std::optional<std::string> Follower::output_of(const std::string& text) {
  if (++depth_ > kMaxDepth) throw DataError("{}: '$(' is nested too deeply", file_);
  const Commands commands = read_commands(text, file_);
  std::optional<std::string> output;
  if (commands.size() == 1 && !commands[0].words.empty()) {
    // What is assigned within stays there.
    State before = state();
    output = output_of_command(commands[0]);
    restore(std::move(before));
    while (output && output->ends_with('\n')) output->pop_back();
  }
  --depth_;
  return output;
}

std::optional<std::string> Follower::output_of_command(const Command& command) {
  const Words words = expand_all(command.words, 0);
  if (words.empty() || functions_.contains(words[0]) || !command.written_to.empty())
    return std::nullopt;
  const std::string& name = words[0];
  const bool single = words.size() == 2 || (words.size() == 3 && words[1] == "-f");
  if (name == "cat" && command.here) return here_text(*command.here);
  if (name == "cat" && single)
    if (const auto written = run.files.find(words[1]); written != run.files.end())
      return written->second;
  if (name == "echo") return echoed(words);
  if (name == "printf") return printed(words, words.size() > 1 && words[1] == "--" ? 2 : 1);
  if (name == "seq") return sequence(words);
  if (name == "expr" && words.size() == 4 && words[2].size() == 1) {
    const auto left = number_of(words[1]), right = number_of(words[3]);
    const bool calculates = std::string_view("+-*/%").find(words[2][0]) != kNone;
    const Names none{[](std::string_view) { return std::nullopt; },
                     [](const auto&, const auto&) {}};
    const auto value = left && right && calculates
                           ? evaluate(fmt::format("({}) {} ({})", *left, words[2], *right), none)
                           : std::nullopt;
    return value ? std::optional(fmt::format("{}", *value)) : std::nullopt;
  }
  if (name == "pwd" && words.size() == 1) return expander().text("$PWD");
  if (single && (name == "realpath" || name == "readlink")) return words.back();
  if (single && name == "dirname") return folder_of(words.back());
  if (name == "basename" && (words.size() == 2 || words.size() == 3) && !words[1].starts_with('-'))
    return base_name(words[1], words.size() == 3 ? words[2] : "");
  return std::nullopt;
}

// ---- scripts, shells and programs

// The path of the file `name`, relative to the script's folder.
fs::path Follower::resolve(const std::string& name) const {
  // A folder that the script computes, by `pwd` or `cd`, is usually its own.
  const std::size_t mark = name.rfind(kUnknownEnd);
  const fs::path known(mark == std::string::npos ? name
                                                 : fmt::format(".{}", name.substr(mark + 1)));
  return known.is_absolute() ? known : (folder_ / known).lexically_normal();
}

// `source FILE` or `source FILE ARGUMENTS`.
void Follower::source(const std::vector<std::string>& words) {
  const fs::path path = resolve(words[1]);
  std::error_code ignored;
  // The variables of a missing file stay unknown.
  if (!fs::is_regular_file(path, ignored)) return;
  const std::string outer = std::exchange(file_, path.string());
  const int line = line_;
  const Branches branches = branches_;
  branches_.open_block(mode_);
  ++returns_;
  const bool has_arguments = words.size() > 2;
  Values before;
  if (has_arguments) before = variables_.replace_arguments({words.begin() + 1, words.end()});
  follow_text(read_file(path));
  if (has_arguments) variables_.restore_arguments(std::move(before));
  --returns_;
  if (leaves_ == Leaves::function) leaves_ = Leaves::nothing;
  branches_ = branches;
  line_ = line;
  file_ = outer;
}

// Interprets the script that `words` start directly, by a shell, a launcher or sbatch; false if
// they start none that exists.
bool Follower::starts_script(const std::vector<std::string>& words) {
  const auto name_of = [](const std::string& word) { return fs::path(word).filename().string(); };
  const std::string first = name_of(words[0]);
  const bool submits = first == "sbatch";
  const bool by_shell = is_one_of(first, {"bash", "sh", "zsh"});
  const bool may_start =
      submits || by_shell || is_one_of(first, {"srun", "mpirun", "mpiexec", "env", "nice", "time"});
  const auto script = std::find_if(words.begin(), words.end(), [&](const std::string& word) {
    return word.ends_with(".sh") || word.ends_with(".sbatch") || word.ends_with(".slurm");
  });
  if (script == words.end() || (script != words.begin() && !may_start)) return false;
  const bool runs_python =
      std::any_of(words.begin(), script, [](const auto& word) { return word.ends_with(".py"); });
  const fs::path path = resolve(*script);
  std::error_code ignored;
  if (runs_python || has_unknown(*script) || !fs::is_regular_file(path, ignored)) return false;
  // A script that resubmits itself adds nothing.
  for (const fs::path& open : open_)
    if (fs::equivalent(open, path, ignored)) return false;

  const std::vector<std::string> arguments(script + 1, words.end());
  Values environment = variables_.exported(prefix_);
  // `env NAME=text bash X.sh`
  if (first == "env")
    for (auto word = words.begin() + 1; word != script && assignment_at(*word); ++word)
      environment[word->substr(0, *assignment_at(*word))] = {
          word->substr(*assignment_at(*word) + 1)};
  Follower inner(path, definitions_, arguments, environment, depth_);
  // A script started without arguments has none (rather than unknown ones).
  if (arguments.empty()) inner.set_arguments({});
  inner.followed_ = followed_;
  inner.open_.insert(inner.open_.begin(), open_.begin(), open_.end());
  // The launcher of a shell launches the commands of the shell.
  inner.words_before_ = words_before_;
  auto launcher = script;
  if (launcher != words.begin() && is_one_of(name_of(*(launcher - 1)), {"bash", "sh", "zsh"}))
    --launcher;
  if (!submits && !by_shell)
    inner.words_before_.insert(inner.words_before_.end(), words.begin(), launcher);
  inner.follow_text(read_file(path));
  followed_ = inner.followed_;
  if (submits) {
    // Options on the command line override those in the script.
    run.sbatch.insert(run.sbatch.end(), words.begin() + 1, script);
    run.sbatch.insert(run.sbatch.end(), inner.run.sbatch.begin(), inner.run.sbatch.end());
  }
  for (RunCommand& command : inner.run.commands) run.commands.push_back(std::move(command));
  for (auto& [name, text] : inner.run.files) run.files[name] = std::move(text);
  return true;
}

// Interprets the text of `eval`; `before` are the words of the launcher of a shell.
void Follower::follow_inner(const std::string& text, const std::vector<std::string>& before) {
  const std::size_t outer = words_before_.size();
  words_before_.insert(words_before_.end(), before.begin(), before.end());
  const Branches branches = branches_;
  branches_.open_block(mode_);
  follow_commands(read_commands(text, file_, line_));
  branches_ = branches;
  words_before_.resize(outer);
}

// Interprets the text of `bash -c TEXT NAME ARGUMENTS` or of `ssh HOST TEXT`: another shell, which
// has the variables `environment`.
void Follower::follow_shell(const std::string& text, const std::vector<std::string>& before,
                            const std::vector<std::string>& arguments, const Values& environment) {
  State outer = state();
  variables_ = Variables(definitions_, file_, environment);
  functions_.clear();
  if (!arguments.empty()) {
    variables_.set("0", {arguments[0]});
    variables_.replace_arguments(arguments);
  }
  const int returns = std::exchange(returns_, 0), loops = std::exchange(loops_, 0);
  follow_inner(text, before);
  returns_ = returns;
  loops_ = loops;
  leaves_ = Leaves::nothing;
  restore(std::move(outer));
}

void Follower::record(std::vector<std::string> words) {
  for (std::size_t i = 0; i + 2 < words.size(); ++i) {
    const std::string name = fs::path(words[i]).filename().string();
    const bool commands =
        words[i + 1].starts_with("-") && words[i + 1].ends_with("c") && words[i + 1].size() <= 4;
    if (!is_one_of(name, {"bash", "sh"}) || !commands) continue;
    const std::string text = words[i + 2];
    const std::vector<std::string> arguments(words.begin() + static_cast<std::ptrdiff_t>(i) + 3,
                                             words.end());
    words.resize(i);
    follow_shell(text, words, arguments, variables_.exported(prefix_));
    assumed_ = true;
    return;
  }
  assumed_ = true;
  // The command of `ssh HOST "cd FOLDER && python ..."`, which is one word.
  if (words[0] == "ssh" && words.size() > 2 && words.back().find(' ') != std::string::npos)
    return follow_shell(words.back(), {}, {}, {});
  if (starts_script(words)) return;
  // What a program that searches finds is unknown, also in `grep -q ... && X=1`.
  if (is_one_of(words[0], {"grep", "egrep", "which", "type", "pgrep", "diff", "cmp"}) ||
      (words[0] == "command" && words.size() > 1 && words[1].starts_with("-")))
    status_ = std::nullopt;
  words.insert(words.begin(), words_before_.begin(), words_before_.end());
  run.commands.push_back({std::move(words), file_, line_});
}

}  // namespace trireme::convert::shell
