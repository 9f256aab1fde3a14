#include "convert/flags/recipe.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <sstream>
#include <string_view>
#include <system_error>

#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::convert::flags {
namespace {

using Words = std::vector<std::string>;

/// `words` split at the program, the first *.py; or flags alone.
std::optional<TrainingCommand> cut(const shell::RunCommand& command) {
  const Words& words = command.words;
  const auto is_program = [](const std::string& word) { return word.ends_with(".py"); };
  const auto program = std::find_if(words.begin(), words.end(), is_program);
  TrainingCommand found;
  found.place = command.line > 0 ? fmt::format("{}:{}", command.file, command.line) : command.file;
  if (program != words.end()) {
    found.launcher.assign(words.begin(), program);
    found.program = program->substr(program->rfind('/') + 1);
    found.flags.assign(program + 1, words.end());
  } else if (!words.empty() && words[0].starts_with("--")) {
    found.flags = words;
  } else {
    return std::nullopt;
  }
  return found;
}

bool trains(const TrainingCommand& command) {
  return std::any_of(command.flags.begin(), command.flags.end(), [](const std::string& word) {
    return word.starts_with("--num-layers") || word.starts_with("--num_layers") ||
           word.starts_with("--encoder-num-layers");
  });
}

/// The purpose of a program that has model flags but does not train; "" for others.
std::string_view other_purpose(const TrainingCommand& command) {
  const auto names = [&](std::string_view word) {
    return command.program.find(word) != std::string::npos;
  };
  const auto is_task = [](const std::string& word) { return word.starts_with("--task"); };
  if (names("server")) return ", which serves a model over HTTP: trireme-serve does that";
  if (names("generat") || names("inference"))
    return ", which generates text: trireme-generate does that";
  if (names("eval") || std::any_of(command.flags.begin(), command.flags.end(), is_task))
    return ", which evaluates a checkpoint: trireme-evaluate does that";
  return "";
}

/// Describes a program that does not train, and unknown variables that may contain its flags.
std::string other_program(const TrainingCommand& command) {
  if (command.program.empty()) return "";
  std::string text = fmt::format("; {} runs {}", command.place, command.program);
  if (const std::string_view purpose = other_purpose(command); !purpose.empty())
    return text.append(purpose);
  for (const std::string& word : command.flags)
    if (shell::has_unknown(word)) text += fmt::format(", where {}", unknown_values(word));
  return text;
}

/// Describes a command whose program is unknown, `$run_cmd`, or is in another script.
std::string hidden_program(const shell::RunCommand& command) {
  const auto is_script = [](const std::string& word) { return word.ends_with(".sh"); };
  const auto script = std::find_if(command.words.begin(), command.words.end(), is_script);
  if (script != command.words.end())
    return fmt::format("; {}:{} starts {}: convert that, with --define for what it takes from here",
                       command.file, command.line, shell::shown(*script));
  const Words& words = command.words;
  const bool has_network = std::find(words.begin(), words.end(), "--num-layers") != words.end();
  // Without model flags only the program itself may be unknown.
  const std::size_t end = has_network ? words.size() : std::min<std::size_t>(words.size(), 1);
  for (std::size_t i = 0; i < end; ++i) {
    const bool is_value = i > 0 && words[i - 1].starts_with("-");
    if (shell::has_unknown(words[i]) && !is_value)
      return fmt::format("; {}:{} runs {}, where {}", command.file, command.line,
                         shell::shown(words[i]), unknown_values(words[i]));
  }
  return "";
}

std::optional<std::int64_t> whole(std::string_view text) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && value > 0 ? std::optional(value) : std::nullopt;
}

/// Whether one of `words` is the program `name`, whatever its folder.
bool has_program(const Words& words, std::string_view name) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) {
    return std::string_view(word).substr(word.rfind('/') + 1) == name;
  });
}

/// The value of the first of `names` among `words`: `--name value`, `--name=value`, or `-n4`.
std::optional<std::string> value_of(const Words& words,
                                    std::initializer_list<std::string_view> names) {
  for (std::size_t i = 0; i < words.size(); ++i)
    for (const std::string_view name : names) {
      if (words[i] == name && i + 1 < words.size()) return words[i + 1];
      const bool is_long = name.starts_with("--");
      if (is_long && words[i].starts_with(fmt::format("{}=", name)))
        return words[i].substr(name.size() + 1);
      if (!is_long && words[i].starts_with(name) && whole(words[i].substr(name.size())))
        return words[i].substr(name.size());
    }
  return std::nullopt;
}

std::optional<std::int64_t> number_of(const Words& words,
                                      std::initializer_list<std::string_view> names) {
  const auto text = value_of(words, names);
  return text ? whole(*text) : std::nullopt;
}

/// The number of GPUs in DeepSpeed's `-i host:4,5@host2:4,5`; empty if a host has no list.
std::optional<std::int64_t> count_included(std::string_view text) {
  std::int64_t count = 0;
  while (!text.empty()) {
    const std::string_view host = text.substr(0, text.find('@'));
    text.remove_prefix(std::min(host.size() + 1, text.size()));
    const std::size_t colon = host.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    count += 1 + std::count(host.begin() + static_cast<std::ptrdiff_t>(colon), host.end(), ',');
  }
  return count > 0 ? std::optional(count) : std::nullopt;
}

std::optional<Ranks> torch_ranks(const Words& launcher) {
  const auto processes = number_of(launcher, {"--nproc_per_node", "--nproc-per-node"});
  const auto written = value_of(launcher, {"--nnodes"});
  const auto nodes = written ? whole(*written) : std::optional<std::int64_t>(1);
  if (!processes || !nodes) return std::nullopt;
  return Ranks{*processes * *nodes,
               fmt::format("--nproc_per_node {} --nnodes {}", *processes, *nodes)};
}

std::optional<Ranks> deepspeed_ranks(const Words& launcher) {
  if (const auto list = value_of(launcher, {"-i", "--include"})) {
    const auto count = count_included(*list);
    return count ? std::optional(Ranks{*count, "deepspeed --include " + *list}) : std::nullopt;
  }
  const auto nodes = value_of(launcher, {"--num_nodes", "--num-nodes"});
  const auto count = nodes ? whole(*nodes) : std::optional<std::int64_t>(1);
  const auto gpus = number_of(launcher, {"--num_gpus", "--num-gpus"});
  const bool one_node = nodes || !value_of(launcher, {"-H", "--hostfile"});
  if (!count || !gpus || !one_node) return std::nullopt;
  return Ranks{*count * *gpus,
               fmt::format("deepspeed --num_nodes {} --num_gpus {}", *count, *gpus)};
}

std::optional<Ranks> srun_ranks(Words words, const Words& sbatch) {
  // srun's own options override the job's.
  words.insert(words.end(), sbatch.begin(), sbatch.end());
  if (const auto tasks = number_of(words, {"-n", "--ntasks"}))
    return Ranks{*tasks, fmt::format("srun --ntasks {}", *tasks)};
  const auto nodes = number_of(words, {"-N", "--nodes"});
  const auto each = number_of(words, {"--ntasks-per-node"});
  if (!nodes || !each) return std::nullopt;
  return Ranks{*nodes * *each, fmt::format("srun --nodes {} --ntasks-per-node {}", *nodes, *each)};
}

}  // namespace

TrainingCommand find_training_command(const shell::Run& run, const std::string& file,
                                      std::optional<int> line) {
  std::vector<TrainingCommand> found;
  std::vector<std::string> places;
  std::string others;
  const bool has_strays = !stray_flags(run).empty();
  for (const shell::RunCommand& command : run.commands) {
    auto candidate = cut(command);
    if (candidate && candidate->program.empty() && has_strays) continue;
    if (!candidate) {
      others += hidden_program(command);
      continue;
    }
    const bool is_training = trains(*candidate) && other_purpose(*candidate).empty();
    if (!is_training) others += other_program(*candidate);
    if (!is_training || (line && command.line != *line)) continue;
    const bool is_new = std::none_of(found.begin(), found.end(), [&](const auto& other) {
      return other.program == candidate->program && other.flags == candidate->flags;
    });
    if (!is_new) continue;
    found.push_back(std::move(*candidate));
    places.push_back(fmt::format("{}", command.line));
  }
  if (found.size() == 1) return found[0];
  if (found.empty())
    throw DataError(
        "{} has no training command{}: expected a program such as pretrain_gpt.py with "
        "--num-layers{}",
        file == "command line" ? "the command line" : "'" + file + "'",
        line ? fmt::format(" in line {}", *line) : "", others);
  throw DataError("'{}' has {} training commands, in lines {}: choose one with --line", file,
                  found.size(), fmt::join(places, ", "));
}

std::vector<shell::RunCommand> stray_flags(const shell::Run& run) {
  std::vector<shell::RunCommand> strays;
  bool has_program = false;
  for (const shell::RunCommand& command : run.commands) {
    const auto found = cut(command);
    if (found && !found->program.empty()) has_program = true;
    if (found && found->program.empty()) strays.push_back(command);
  }
  return has_program ? strays : std::vector<shell::RunCommand>();
}

std::vector<TrainingCommand> commands_without_training(const shell::Run& run) {
  std::vector<TrainingCommand> others;
  for (const shell::RunCommand& command : run.commands) {
    auto candidate = cut(command);
    if (!candidate) continue;
    if (trains(*candidate) && other_purpose(*candidate).empty()) return {};
    if (!candidate->program.empty()) others.push_back(std::move(*candidate));
  }
  return others;
}

std::string hosts_of(const Words& launcher) {
  const auto list = value_of(launcher, {"-i", "--include"});
  if (!list || !count_included(*list)) return "";
  std::string lines;
  for (std::string_view rest = *list; !rest.empty();) {
    const std::string_view host = rest.substr(0, rest.find('@'));
    rest.remove_prefix(std::min(host.size() + 1, rest.size()));
    const std::string_view name = host.substr(0, host.find(':'));
    const std::string_view gpus = host.substr(name.size() + 1);
    // Only plain host names: the file is split at spaces.
    constexpr std::string_view kNames =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
    const bool is_name = !name.empty() && name.find_first_not_of(kNames) == std::string_view::npos;
    if (!is_name || gpus.find_first_not_of("0123456789,") != std::string_view::npos) return "";
    lines += fmt::format("{} slots={} gpus={}\n", name,
                         1 + std::count(gpus.begin(), gpus.end(), ','), gpus);
  }
  return lines;
}

namespace {

/// A host and the numbers of its GPUs.
struct Host {
  std::string name;
  std::vector<std::int64_t> gpus;
};

/// The lines "host slots=N" of a hostfile.
std::vector<Host> read_hostfile(const std::filesystem::path& path) {
  std::vector<Host> hosts;
  std::istringstream lines(read_file(path));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    std::istringstream words(line);
    Host host;
    std::string slots;
    if (!(words >> host.name)) continue;
    constexpr std::string_view kSlots = "slots=";
    const auto count = words >> slots && slots.starts_with(kSlots)
                           ? whole(std::string_view(slots).substr(kSlots.size()))
                           : std::nullopt;
    // No host has more GPUs.
    if (!count || *count > 1024)
      throw DataError("{}:{}: expected 'HOST slots=N'", path.string(), number);
    for (std::int64_t gpu = 0; gpu < *count; ++gpu) host.gpus.push_back(gpu);
    hosts.push_back(std::move(host));
  }
  if (hosts.empty()) throw DataError("'{}' names no hosts", path.string());
  return hosts;
}

/// The hosts of `--include` or `--exclude`, "a:0,1@b": without a list all GPUs of the host.
std::vector<Host> read_filter(std::string_view text) {
  std::vector<Host> hosts;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find('@'));
    text.remove_prefix(std::min(one.size() + 1, text.size()));
    const std::size_t colon = std::min(one.find(':'), one.size());
    Host host{.name = std::string(one.substr(0, colon))};
    for (std::string_view list = one.substr(std::min(colon + 1, one.size())); !list.empty();) {
      const std::string_view gpu = list.substr(0, list.find(','));
      list.remove_prefix(std::min(gpu.size() + 1, list.size()));
      host.gpus.push_back(gpu == "0" ? 0 : whole(gpu).value_or(-1));
    }
    hosts.push_back(std::move(host));
  }
  return hosts;
}

/// Keeps the hosts and GPUs of `filter`, or those outside of it.
void apply_filter(std::vector<Host>& hosts, const std::vector<Host>& filter, bool keep) {
  for (Host& host : hosts) {
    const auto found = std::find_if(filter.begin(), filter.end(),
                                    [&](const Host& one) { return one.name == host.name; });
    const bool named = found != filter.end();
    std::erase_if(host.gpus, [&](std::int64_t gpu) {
      const bool matches =
          named && (found->gpus.empty() ||
                    std::find(found->gpus.begin(), found->gpus.end(), gpu) != found->gpus.end());
      return matches != keep;
    });
  }
  std::erase_if(hosts, [](const Host& host) { return host.gpus.empty(); });
}

}  // namespace

void expand_hostfile(Words& launcher, const std::filesystem::path& folder) {
  const auto file = value_of(launcher, {"-H", "--hostfile"});
  std::error_code ignored;
  if (!file || shell::has_unknown(*file)) return;
  std::filesystem::path path = *file;
  if (path.is_relative()) path = folder / path;
  if (!std::filesystem::is_regular_file(path, ignored)) return;
  std::vector<Host> hosts = read_hostfile(path);
  if (const auto nodes = number_of(launcher, {"--num_nodes", "--num-nodes"}))
    hosts.resize(std::min(hosts.size(), static_cast<std::size_t>(*nodes)));
  if (const auto gpus = number_of(launcher, {"--num_gpus", "--num-gpus"}))
    for (Host& host : hosts)
      host.gpus.resize(std::min(host.gpus.size(), static_cast<std::size_t>(*gpus)));
  if (const auto text = value_of(launcher, {"-i", "--include"}))
    apply_filter(hosts, read_filter(*text), /*keep=*/true);
  if (const auto text = value_of(launcher, {"-e", "--exclude"}))
    apply_filter(hosts, read_filter(*text), /*keep=*/false);
  if (hosts.empty()) throw DataError("'{}' has no hosts left for this launcher", path.string());
  std::vector<std::string> names;
  for (const Host& host : hosts)
    names.push_back(fmt::format("{}:{}", host.name, fmt::join(host.gpus, ",")));
  launcher = {"deepspeed", "--include", fmt::format("{}", fmt::join(names, "@"))};
}

std::string unknown_ranks(const Words& launcher) {
  for (const char* name :
       {"--nnodes", "--nproc_per_node", "--nproc-per-node", "--num_nodes", "--num-nodes",
        "--num_gpus", "--num-gpus", "-n", "--ntasks", "-N", "--nodes", "-np", "--ntasks-per-node"})
    if (const auto value = value_of(launcher, {name});
        value && shell::has_unknown(*value) && value->find("SLURM_") == std::string::npos)
      return fmt::format("{} {}", name, shell::shown(*value));
  return "";
}

std::optional<Ranks> count_ranks(const Words& launcher, const Words& sbatch) {
  const auto has = [&](std::string_view name) { return has_program(launcher, name); };
  if (has("torchrun") || has("torch.distributed.launch") || has("torch.distributed.run"))
    return torch_ranks(launcher);
  if (has("deepspeed") || has("deepspeed.pt")) return deepspeed_ranks(launcher);
  if (has("srun")) return srun_ranks(launcher, sbatch);
  if (has("mpirun") || has("mpiexec")) {
    const auto count = number_of(launcher, {"-n", "-np", "--np"});
    return count ? std::optional(Ranks{*count, fmt::format("mpirun -n {}", *count)}) : std::nullopt;
  }
  if (has("python") || has("python3")) return Ranks{1, "one process, without a launcher"};
  return std::nullopt;
}

}  // namespace trireme::convert::flags
