// trireme-convert: recipes and checkpoints of Megatron-LM and DeepSpeed into decks and checkpoints,
// checkpoints from and to Hugging Face's transformers.
#include <algorithm>

#include "app.hpp"
#include "convert/convert.hpp"
#include "core/files.hpp"

namespace trireme {
namespace {

constexpr const char* kProgram = "trireme-convert";
constexpr const char* kUsage =
    "Usage: trireme-convert flags [options] SCRIPT [ARGUMENT ...]\n"
    "       trireme-convert flags [options] -- COMMAND LINE\n"
    "           turns a command line of Megatron-LM or DeepSpeed, or the shell script around it, "
    "into\n"
    "           a deck; the script is followed, nothing of it is run. Of a script that prepares "
    "data,\n"
    "           evaluates or generates it prints the commands of Trireme\n"
    "       trireme-convert hf [options] CHECKPOINT FOLDER\n"
    "           writes a checkpoint (or the newest of a run's folder) as a model of Hugging "
    "Face's\n"
    "           transformers: safetensors, config.json and the tokenizer's files\n"
    "       trireme-convert hf [options] FOLDER CHECKPOINT.h5 [KEY=VALUE ...]\n"
    "           writes such a folder, or its .safetensors file, as a checkpoint of iteration 0\n"
    "       trireme-convert megatron [options] FOLDER CHECKPOINT.h5 [KEY=VALUE ...]\n"
    "           writes a checkpoint of Megatron-LM or DeepSpeed, with the optimizer's state and "
    "the\n"
    "           position of the run, as a checkpoint from which a run resumes\n\n";

po::options_description flags_options() {
  using Texts = std::vector<std::string>;
  po::options_description options("Options of flags");
  options.add_options()  //
      ("output", po::value<std::string>()->value_name("DECK"),
       "write the deck there instead of to standard output")  //
      ("hosts", po::value<std::string>()->value_name("FILE"),
       "write the hosts of deepspeed's --include there, for jobs/ssh/train.sh")  //
      ("ds-config", po::value<std::string>()->value_name("FILE"),
       "the DeepSpeed configuration, where --deepspeed_config does not lead to it")  //
      ("define", po::value<Texts>()->composing()->value_name("NAME=VALUE"),
       "a variable that the script takes from outside; wins over its own assignments")  //
      ("ranks", po::value<std::int64_t>()->value_name("N"),
       "the number of ranks, where the launcher does not say it")  //
      ("line", po::value<int>()->value_name("N"),
       "the line of the training command, where the script has several")  //
      ("ignore", po::value<Texts>()->composing()->value_name("FLAG"),
       "leave this flag (without dashes) or key of the JSON file out")  //
      ("list", "print what becomes of every flag, and exit");
  return options;
}

po::options_description import_options() {
  po::options_description options("Options of hf and megatron");
  options.add_options()("deck", po::value<std::string>()->value_name("DECK"),
                        "the deck of the run that will start from the checkpoint; without it one "
                        "with the model alone, or of megatron that of the checkpoint's arguments")(
      "write-deck", po::value<std::string>()->value_name("FILE"),
      "write that deck there: of hf the model, its tokenizer and checkpoint.load; of megatron the "
      "run's, made from the arguments in the checkpoint as `flags` does");
  return options;
}

po::options_description hf_options() {
  po::options_description options("Options of hf");
  options.add_options()  //
      ("dtype", po::value<std::string>()->value_name("TYPE"),
       "the type of the written weights: fp32 (the default), bf16 or fp16")  //
      ("shard-size", po::value<std::string>()->value_name("GB"),
       "the maximum size of a written file in 10^9 bytes (5), or as 500MB or 5GB");
  return options;
}

/// `NAME=VALUE` texts as definitions. Throws UsageError.
convert::shell::Definitions definitions_of(const po::variables_map& values) {
  convert::shell::Definitions definitions;
  if (values.count("define") == 0) return definitions;
  for (const std::string& text : values["define"].as<std::vector<std::string>>()) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos)
      throw UsageError("--define {}: expected NAME=VALUE", text);
    definitions[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return definitions;
}

/// The request of `values`, and of the `words` after `--`.
convert::flags::Request request_of(const po::variables_map& values,
                                   std::vector<std::string> words) {
  convert::flags::Request request{.words = std::move(words), .definitions = definitions_of(values)};
  if (values.count("script")) {
    request.arguments = values["script"].as<std::vector<std::string>>();
    request.file = request.arguments.front();
    request.arguments.erase(request.arguments.begin());
  }
  if (request.file.empty() == request.words.empty())
    throw UsageError("give a script, or a command line after --");
  if (values.count("ds-config")) request.ds_config = values["ds-config"].as<std::string>();
  if (values.count("ignore"))
    for (const std::string& flag : values["ignore"].as<std::vector<std::string>>())
      request.ignored.insert(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  if (values.count("ranks")) request.ranks = values["ranks"].as<std::int64_t>();
  if (request.ranks.value_or(1) < 1)
    throw UsageError("--ranks {}: expected 1 or more", *request.ranks);
  if (values.count("line")) request.line = values["line"].as<int>();
  return request;
}

void convert_flags(int argc, char** argv) {
  // Words after `--` belong to the recipe, even if they look like options.
  char** const end = argv + argc;
  char** const dashes = std::find_if(argv, end, [](std::string_view word) { return word == "--"; });
  std::vector<std::string> words(dashes == end ? end : dashes + 1, end);
  po::options_description options;
  options.add(flags_options()).add_options()("script", po::value<std::vector<std::string>>());
  po::positional_options_description positional;
  positional.add("script", -1);
  const po::variables_map values =
      parse_options(static_cast<int>(dashes - argv), argv, options, positional);
  if (values.count("list")) return print_out(convert::flags::describe_flags());

  const convert::flags::Request request = request_of(values, std::move(words));
  std::vector<std::string> inputs = {request.file.string()};
  if (values.count("ds-config")) inputs.push_back(values["ds-config"].as<std::string>());
  std::vector<std::string> outputs;
  for (const char* option : {"output", "hosts"})
    if (values.count(option)) outputs.push_back(output_of(values, option, inputs, outputs));
  const convert::flags::Result result = convert::flags::convert(request);
  std::string said;
  for (const std::string& note : result.notes) said += fmt::format("note: {}\n", note);
  for (const std::string& key : result.unbuilt) said += fmt::format("not built yet: {}\n", key);
  std::string hosts_file;
  if (values.count("hosts")) hosts_file = values["hosts"].as<std::string>();
  if (!hosts_file.empty() && result.hosts.empty())
    throw DataError("--hosts: the recipe names no hosts with deepspeed --include host:0,1@...");
  if (hosts_file.empty() && !result.hosts.empty())
    said += "note: the launcher names hosts: --hosts FILE writes them for jobs/ssh/train.sh\n";
  std::fputs(said.c_str(), stderr);
  const std::string& text = result.deck.empty() ? result.commands : result.deck;
  if (values.count("output"))
    write_file_atomically(values["output"].as<std::string>(), text);
  else
    print_out(text);
  if (!hosts_file.empty()) write_file_atomically(hosts_file, result.hosts);
}

/// Whether a word of hf or megatron is a path rather than KEY=VALUE, which may stand before the
/// paths or after them.
bool is_path(const std::string& word) {
  const std::string key = word.substr(0, word.find('='));
  std::error_code ignored;
  return key.size() == word.size() || key.find('/') != std::string::npos || word.ends_with(".h5") ||
         std::filesystem::exists(word, ignored);
}

/// The command line of hf and megatron: two paths, overrides, options.
struct Paths {
  std::filesystem::path from, to;
  std::vector<std::string> overrides;
  po::variables_map values;
};

Paths read_paths(const char* command, int argc, char** argv, po::options_description options) {
  options.add_options()("words", po::value<std::vector<std::string>>());
  Paths paths{.values = parse_options(argc, argv, options,
                                      po::positional_options_description().add("words", -1))};
  std::vector<std::string> words;
  if (paths.values.count("words")) words = paths.values["words"].as<std::vector<std::string>>();
  const auto overrides = std::stable_partition(words.begin(), words.end(), is_path);
  paths.overrides.assign(overrides, words.end());
  words.erase(overrides, words.end());
  if (words.size() < 2) throw UsageError("{} needs two paths: from and to", command);
  if (words.size() > 2)
    throw UsageError("{} needs two paths, from and to; what is '{}'?", command, words[2]);
  paths.from = words[0];
  paths.to = words[1];
  return paths;
}

std::string path_option(const Paths& paths, const char* name) {
  return paths.values.count(name) ? paths.values[name].as<std::string>() : "";
}

/// The file of --write-deck, or "". Throws UsageError where it would replace one of the model's or
/// the checkpoint.
std::string deck_to_write(const Paths& paths) {
  if (!paths.values.count("write-deck")) return "";
  std::vector<std::string> inputs = {paths.from.string()};
  if (paths.values.count("deck")) inputs.push_back(path_option(paths, "deck"));
  namespace fs = std::filesystem;
  std::error_code error;
  const bool is_folder = fs::is_directory(paths.from, error);
  // A file's model is the folder around it, of which folders below are not.
  fs::recursive_directory_iterator entry(
      is_folder ? paths.from : fs::absolute(paths.from).parent_path(),
      fs::directory_options::skip_permission_denied, error);
  for (; entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    // Decks, which may be written again, are no part of a model.
    if (entry->path().extension() != ".yaml") inputs.push_back(entry->path().string());
    if (!is_folder) entry.disable_recursion_pending();
  }
  return output_of(paths.values, "write-deck", inputs, {paths.to.string()});
}

/// `5`, `5GB` or `500MB` in bytes. Throws UsageError.
std::uint64_t shard_bytes(const std::string& text) {
  std::string number = text;
  double unit = 1e9;
  if (text.ends_with("GB") || text.ends_with("MB")) {
    unit = text.ends_with("MB") ? 1e6 : 1e9;
    number.resize(text.size() - 2);
  }
  try {
    const double bytes = deck::parse_real(number) * unit;
    if (bytes >= 1 && bytes < 1e18) return static_cast<std::uint64_t>(bytes);
  } catch (const deck::BadValue&) {  // below
  }
  throw UsageError("--shard-size {}: expected a size, such as 5, 5GB or 500MB", text);
}

void convert_hf(int argc, char** argv) {
  const Paths paths = read_paths("hf", argc, argv, import_options().add(hf_options()));
  const auto& [from, to, overrides, values] = paths;
  const convert::huggingface::ImportOptions import{.deck = path_option(paths, "deck"),
                                                   .overrides = overrides,
                                                   .write_deck = deck_to_write(paths),
                                                   .progress = progress_output(values)};
  if (from.extension() == ".h5" && to.extension() == ".h5")
    throw UsageError("'{}' and '{}' are both checkpoints: name a folder", from.string(),
                     to.string());
  if (to.extension() == ".h5") {
    if (values.count("dtype") || values.count("shard-size"))
      throw UsageError("--dtype and --shard-size are for hf CHECKPOINT FOLDER");
    print_out(convert::huggingface::import_model(from, to, import));
    return;
  }
  if (!import.deck.empty() || !import.overrides.empty() || !import.write_deck.empty())
    throw UsageError("a deck is for hf FOLDER CHECKPOINT.h5; '{}' is no .h5 file", to.string());
  convert::huggingface::ExportOptions options{.progress = progress_output(values)};
  if (values.count("dtype")) {
    const auto name = values["dtype"].as<std::string>();
    const auto types = {DType::f32, DType::bf16, DType::f16};
    const auto* type = std::find_if(types.begin(), types.end(),
                                    [&](DType dtype) { return name_of(dtype) == name; });
    if (type == types.end()) throw UsageError("--dtype {}: expected fp32, bf16 or fp16", name);
    options.dtype = *type;
  }
  if (values.count("shard-size")) {
    options.shard_bytes = shard_bytes(values["shard-size"].as<std::string>());
  }
  print_out(convert::huggingface::export_model(from, to, options));
}

void convert_megatron(int argc, char** argv) {
  const Paths paths = read_paths("megatron", argc, argv, import_options());
  if (paths.to.extension() != ".h5")
    throw UsageError("megatron FOLDER CHECKPOINT.h5: '{}' is no .h5 file", paths.to.string());
  if (std::filesystem::exists(paths.from / "config.json"))
    throw DataError("'{0}' is a model of Hugging Face's: trireme-convert hf {0} {1}",
                    paths.from.string(), paths.to.string());
  if (std::filesystem::exists(paths.from / "metrics.jsonl"))
    throw DataError("'{0}' is a run folder of Trireme: checkpoint.load={0} starts from it",
                    paths.from.string());
  print_out(convert::megatron::import_checkpoint(paths.from, paths.to,
                                                 {.deck = path_option(paths, "deck"),
                                                  .overrides = paths.overrides,
                                                  .write_deck = deck_to_write(paths),
                                                  .progress = progress_output(paths.values)}));
}

ExitCode run(int argc, char** argv) {
  po::options_description all;
  all.add(flags_options()).add(import_options()).add(hf_options()).add(general_options());
  const auto dashes = static_cast<int>(
      std::find_if(argv, argv + argc, [](std::string_view word) { return word == "--"; }) - argv);
  if (answers_help_or_version(dashes, argv, kProgram, kUsage, all)) return ExitCode::success;

  const std::string command = argc > 1 ? argv[1] : "";
  if (command == "flags")
    convert_flags(argc - 1, argv + 1);
  else if (command == "hf")
    convert_hf(argc - 1, argv + 1);
  else if (command == "megatron")
    convert_megatron(argc - 1, argv + 1);
  else if (command.empty())
    throw UsageError("expected a command: flags, hf or megatron");
  else
    throw UsageError("unknown command '{}': expected flags, hf or megatron{}", command,
                     did_you_mean(command, {"flags", "hf", "megatron"}));
  return ExitCode::success;
}

}  // namespace
}  // namespace trireme

int main(int argc, char** argv) {
  return trireme::run_app(trireme::kProgram, argc, argv, trireme::run);
}
