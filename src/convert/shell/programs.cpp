// The scripts, shells and programs that a command starts.
#include <fmt/format.h>

#include <algorithm>
#include <system_error>
#include <utility>

#include "convert/shell/follower.hpp"
#include "core/files.hpp"

namespace trireme::convert::shell {

namespace fs = std::filesystem;

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
