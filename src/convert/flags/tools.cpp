#include "convert/flags/recipe.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <string_view>

#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "core/system/process.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

using Words = std::vector<std::string>;

/// How a flag is converted: Trireme's option followed by the flag's values; "" if the code below
/// reads it or it is not needed.
struct ToolFlag {
  std::string_view name;
  Takes takes;
  std::string_view option = "";
};

const std::vector<ToolFlag> kPreprocessFlags = {{"input", kSeveral, "--input"},
                                                {"output-prefix", kOne, "--output"},
                                                {"workers", kOne, "--workers"},
                                                {"append-eod", kNone, "--append-eod"},
                                                {"split-sentences", kNone, "--split-sentences"},
                                                {"keep-newlines", kNone, "--keep-newlines"},
                                                {"json-keys", kSeveral},
                                                {"json-key", kOne},
                                                {"tokenizer-type", kOne},
                                                {"vocab", kOne, "--vocab"},
                                                {"vocab-file", kOne, "--vocab"},
                                                {"merge-file", kOne, "--merges"},
                                                {"tokenizer-model", kOne, "--model"},
                                                {"dataset-impl", kOne},
                                                {"lang", kOne},
                                                {"log-interval", kOne},
                                                {"chunk-size", kOne},
                                                {"vocab-size", kOne},
                                                {"make-vocab-size-divisible-by", kOne},
                                                {"pad-vocab-size-to", kOne}};

const std::vector<ToolFlag> kGenerateFlags = {{"load", kOne, "--checkpoint"},
                                              {"temperature", kOne, "--temperature"},
                                              {"greedy", kNone, "--greedy"},
                                              {"top-p", kOne},
                                              {"top-k", kOne},
                                              {"out-seq-length", kOne, "--tokens"},
                                              {"num-samples", kOne},
                                              {"sample-input-file", kOne, "--input"},
                                              {"sample-output-file", kOne},
                                              {"genfile", kOne},
                                              {"recompute", kNone, "--recompute"},
                                              {"seed", kOne, "--seed"},
                                              {"vocab-file", kOne, "--vocab"},
                                              {"merge-file", kOne, "--merges"},
                                              {"tokenizer-model", kOne, "--model"},
                                              {"tokenizer-type", kOne}};

const std::vector<ToolFlag> kEvaluateFlags = {{"load", kOne},
                                              {"valid-data", kSeveral},
                                              {"task", kOne},
                                              {"model-path", kOne},
                                              {"data-path", kSeveral},
                                              {"webtext-eval", kNone},
                                              {"eval-iters", kOne},
                                              {"cloze-eval", kNone},
                                              {"overlapping-eval", kOne},
                                              {"strict-lambada", kNone},
                                              {"vocab-file", kOne},
                                              {"merge-file", kOne},
                                              {"tokenizer-model", kOne},
                                              {"tokenizer-type", kOne},
                                              {"eval-batch-size", kOne}};

/// The values of flags by name; names are joined by dashes.
using Values = std::map<std::string, Words>;

bool starts_flag(const std::string& word) {
  return word.size() > 2 && word.starts_with("--") &&
         std::isalpha(static_cast<unsigned char>(word[2]));
}

/// The words of `command` as flags of `table`. Other flags are errors, except flags of training if
/// `network` is set: the checkpoint contains the model.
Values parse(const TrainingCommand& command, const std::vector<ToolFlag>& table, bool network,
             Words& errors) {
  Values values;
  for (std::size_t at = 0; at < command.flags.size();) {
    const std::string& word = command.flags[at++];
    if (!starts_flag(word)) {
      if (!word.empty())
        errors.push_back(fmt::format("'{}' is not a value of any flag", shell::shown(word)));
      continue;
    }
    const std::size_t equals = word.find('=');
    std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    std::replace(name.begin(), name.end(), '_', '-');
    const auto row = std::find_if(table.begin(), table.end(),
                                  [&](const auto& flag) { return flag.name == name; });
    const Flag* training = network ? find_flag(command_flags(), name) : nullptr;
    const Takes takes = row != table.end() ? row->takes : training ? training->takes : kSeveral;
    Words given;
    if (equals != std::string::npos) given.push_back(word.substr(equals + 1));
    while (at < command.flags.size() && !starts_flag(command.flags[at]) && takes != kNone &&
           (takes == kSeveral || given.empty()))
      given.push_back(command.flags[at++]);
    if (row == table.end()) {
      if (!training) errors.push_back(fmt::format("'--{}' has no counterpart", name));
      continue;
    }
    for (const std::string& value : given)
      if (shell::has_unknown(value))
        errors.push_back(fmt::format("--{}: {}", name, unknown_values(value)));
    if (takes != kNone && given.empty()) errors.push_back(fmt::format("--{} has no value", name));
    values[name] = std::move(given);
  }
  return values;
}

const std::string* value_of(const Values& values, const char* name) {
  const auto found = values.find(name);
  return found == values.end() || found->second.empty() ? nullptr : &found->second[0];
}

/// Trireme's options for `values`, in the table's order.
Words options_of(const Values& values, const std::vector<ToolFlag>& table) {
  Words words;
  for (const ToolFlag& flag : table) {
    const auto found = values.find(std::string(flag.name));
    if (flag.option.empty() || found == values.end()) continue;
    words.emplace_back(flag.option);
    words.insert(words.end(), found->second.begin(), found->second.end());
  }
  return words;
}

/// `--tokenizer gpt2` for Megatron's name of a tokenizer.
void put_tokenizer(const Values& values, Words& words, Words& errors) {
  const std::string* type = value_of(values, "tokenizer-type");
  const std::string name = type ? *type : "GPT2BPETokenizer";
  words.emplace_back("--tokenizer");
  if (name == "GPT2BPETokenizer")
    words.emplace_back("gpt2");
  else if (name.starts_with("BertWordPiece"))
    words.insert(words.end(),
                 {"wordpiece", "--lowercase", name == "BertWordPieceCase" ? "false" : "true"});
  else if (name.find("SentencePiece") != std::string::npos || name == "Llama2Tokenizer")
    words.emplace_back("sentencepiece");
  else
    errors.push_back(fmt::format("--tokenizer-type {} has no counterpart", name));
}

std::string line_of(const Words& words) {
  std::string text;
  for (const std::string& word : words)
    text.append(text.empty() ? "" : " ").append(shell_word(word));
  return text + "\n";
}

void preprocess(const TrainingCommand& command, Equivalent& result, Words& errors) {
  const Values values = parse(command, kPreprocessFlags, /*network=*/false, errors);
  for (const char* name : {"input", "output-prefix"})
    if (!values.contains(name)) errors.push_back(fmt::format("--{} is missing", name));
  Words words = {"trireme-preprocess"};
  for (const std::string& word : options_of(values, kPreprocessFlags)) words.push_back(word);
  const std::string* language = value_of(values, "lang");
  if (language && values.contains("split-sentences"))
    words.insert(words.end(), {"--language", *language});
  put_tokenizer(values, words, errors);
  Words keys = {"text"};
  for (const char* name : {"json-key", "json-keys"})
    if (const auto found = values.find(name); found != values.end()) keys = found->second;
  for (const std::string& key : keys) {
    Words line = words;
    if (key != "text") line.insert(line.end(), {"--key", key});
    result.commands += line_of(line);
  }
  if (keys.size() > 1)
    result.notes.push_back(fmt::format("{}: a command for each of its keys", command.place));
  if (const std::string* kind = value_of(values, "dataset-impl"); kind && *kind != "mmap")
    result.notes.push_back(
        fmt::format("{}: datasets are of Megatron's kind mmap, not {}", command.place, *kind));
}

/// The checkpoint that `trireme-convert megatron` makes of the folder `load`: "x.h5" of "runs/x/".
std::string converted(std::string load) {
  while (load.ends_with('/')) load.pop_back();
  return load.substr(load.rfind('/') + 1) + ".h5";
}

void note_arguments(const TrainingCommand& command, Equivalent& result) {
  result.notes.push_back(fmt::format(
      "{}: --load names a checkpoint of Megatron-LM, which is converted first; one of before 2020 "
      "does not contain its arguments: give --deck with the deck of its training command",
      command.place));
}

void generate(const TrainingCommand& command, Equivalent& result, Words& errors) {
  Values values = parse(command, kGenerateFlags, /*network=*/true, errors);
  Words& load = values["load"];
  const std::string folder = load.empty() ? "" : load[0];
  if (!folder.empty()) load[0] = converted(folder);
  Words words = {"trireme-generate"};
  for (const std::string& word : options_of(values, kGenerateFlags)) words.push_back(word);
  // Without tokenizer files the checkpoint's deck names them.
  const bool names_files = values.contains("vocab-file") || values.contains("merge-file") ||
                           values.contains("tokenizer-model");
  if (names_files) put_tokenizer(values, words, errors);
  // 0 turns sampling limits off.
  for (const char* name : {"top-k", "top-p"})
    if (const std::string* value = value_of(values, name);
        value && std::strtod(value->c_str(), nullptr) != 0)
      words.insert(words.end(), {fmt::format("--{}", name), *value});
  const std::string* samples = value_of(values, "num-samples");
  const bool unconditional = samples && *samples != "0";
  if (unconditional) words.insert(words.end(), {"--prompt", "", "--samples", *samples});
  if (const std::string* file = value_of(values, "sample-output-file"))
    words.insert(words.end(), {"--output", *file});
  else if (const std::string* lines = value_of(values, "genfile"); lines && unconditional)
    words.insert(words.end(), {"--json", "--output", *lines});
  result.commands =
      line_of({"trireme-convert", "megatron", folder, converted(folder)}) + line_of(words);
  note_arguments(command, result);
}

/// "--task wikitext ..." or "--task lambada ..." for the flags of an evaluation.
Words task_of(const Values& values, Words& errors) {
  const std::string* task = value_of(values, "task");
  if (values.contains("cloze-eval") || (task && *task == "LAMBADA")) {
    Words words = {"--task", "lambada"};
    if (values.contains("strict-lambada")) words.emplace_back("--strict-lambada");
    return words;
  }
  if (task && *task != "WIKITEXT103")
    errors.push_back(fmt::format("--task {} has no counterpart", *task));
  if (values.contains("webtext-eval")) {
    Words words = {"--task", "perplexity"};
    if (const std::string* batches = value_of(values, "eval-iters"))
      words.insert(words.end(), {"--iterations", *batches});
    return words;
  }
  const std::string* overlap = value_of(values, "overlapping-eval");
  return {"--task", "wikitext", "--overlapping-eval", overlap ? *overlap : "32"};
}

/// The overrides that name the tokenizer's files.
Words tokenizer_overrides(const Values& values, Words& errors) {
  Words words, option;
  const bool names_files = values.contains("vocab-file") || values.contains("merge-file") ||
                           values.contains("tokenizer-model");
  if (!names_files) return words;
  put_tokenizer(values, option, errors);
  if (option.size() > 1) words.push_back("data.tokenizer.type=" + option[1]);
  for (const auto& [name, key] :
       {std::pair{"vocab-file", "vocab"}, {"merge-file", "merges"}, {"tokenizer-model", "model"}})
    if (const std::string* value = value_of(values, name))
      words.push_back(deck::text_override(fmt::format("data.tokenizer.{}", key), *value));
  return words;
}

void evaluate(const TrainingCommand& command, Equivalent& result, Words& errors) {
  const Values values = parse(command, kEvaluateFlags, /*network=*/true, errors);
  // The first release's run_gpt2_eval.py has other names for two flags of evaluate_gpt2.py.
  const auto data = values.find(values.contains("valid-data") ? "valid-data" : "data-path");
  const std::string* load = value_of(values, values.contains("load") ? "load" : "model-path");
  const Words task = task_of(values, errors);
  const Words overrides = tokenizer_overrides(values, errors);
  if (data == values.end() || !load || !errors.empty()) return;
  const std::string checkpoint = converted(*load);
  result.commands =
      line_of({"trireme-convert", "megatron", *load, checkpoint, "--write-deck", "evaluated.yaml"});
  for (const std::string& file : data->second) {
    Words words = {"trireme-evaluate", "evaluated.yaml"};
    words.insert(words.end(), overrides.begin(), overrides.end());
    words.insert(words.end(), {"--checkpoint", checkpoint});
    words.insert(words.end(), task.begin(), task.end());
    words.insert(words.end(), {"--input", file});
    result.commands += line_of(words);
  }
  note_arguments(command, result);
}

}  // namespace

std::optional<Equivalent> equivalent_of(const TrainingCommand& command) {
  const auto names = [&](std::string_view word) {
    return command.program.find(word) != std::string::npos;
  };
  const auto gives = [&](std::string_view flag) {
    return std::any_of(command.flags.begin(), command.flags.end(),
                       [&](const std::string& word) { return word.starts_with(flag); });
  };
  Equivalent result;
  Words errors;
  const bool evaluates = names("evaluate") || names("gpt2_eval") || gives("--task");
  if (names("preprocess_data"))
    preprocess(command, result, errors);
  else if (names("generate_samples") && gives("--load"))
    generate(command, result, errors);
  else if (evaluates && (gives("--load") || gives("--model-path")) &&
           (gives("--valid") || gives("--data-path")))
    evaluate(command, result, errors);
  else
    return std::nullopt;
  if (errors.empty()) return result;
  std::string text;
  for (const std::string& error : errors) text += fmt::format("{}: {}\n", command.place, error);
  throw DeckError("{}{} error{}; no command was written.", text, errors.size(),
                  errors.size() == 1 ? "" : "s");
}

}  // namespace trireme::convert::flags
