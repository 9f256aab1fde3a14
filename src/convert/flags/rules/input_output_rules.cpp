// Datasets and tokenizer; checkpoints, evaluation and logs.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "convert/flags/recipe.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

/// One prefix, or a blend: alternating weights and prefixes, or prefixes alone.
void set_dataset(Recipe& recipe, const Given* given, std::string_view key) {
  if (!given) return;
  const auto& values = given->values;
  if (values.size() == 1) return recipe.draft.set(key, deck::write_text(values[0]), *given);
  const auto weights = std::count_if(values.begin(), values.end(), is_number);
  const bool alternate = values.size() % 2 == 0 &&
                         2 * static_cast<std::size_t>(weights) == values.size() &&
                         is_number(values[0]);
  if (weights > 0 && !alternate) {
    recipe.draft.error(*given, "expected one prefix, or weight prefix weight prefix ...");
    return;
  }
  std::vector<std::string> items;
  for (const std::string& value : values)
    items.push_back(is_number(value) ? as_number(value) : deck::write_text(value));
  recipe.draft.set(key, fmt::format("[{}]", fmt::join(items, ", ")), *given);
}

void set_text(Recipe& recipe, std::string_view name, std::string_view key,
              std::string_view fallback) {
  if (const Given* given = recipe.flags.find(name))
    recipe.copy(*given, key);
  else if (!fallback.empty())
    recipe.draft.set(key, std::string(fallback),
                     std::string("Megatron-LM downloaded GPT-2's; put the file there"));
}

/// Ignores the files that the tokenizer does not use.
void leave_out(Recipe& recipe, std::initializer_list<std::string_view> names,
               std::string_view type) {
  for (const std::string_view name : names)
    if (const Given* given = recipe.flags.find(name))
      recipe.draft.leave_out(*given, fmt::format("the tokenizer {} does not use it", type));
}

void apply_tokenizer(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* given = recipe.flags.find("tokenizer-type");
  const bool bert = recipe.program.find("bert") != std::string::npos;
  const std::string type = given  ? given->values[0]
                           : bert ? "BertWordPieceLowerCase"
                                  : "GPT2BPETokenizer";
  const auto set_type = [&](const char* name) {
    if (given)
      draft.set("data.tokenizer.type", name, *given);
    else
      draft.set("data.tokenizer.type", name,
                fmt::format("{} without --tokenizer-type", recipe.program));
  };
  if (type == "GPT2BPETokenizer") {
    set_type("gpt2");
    // The first release downloaded its vocabulary; later ones need the files.
    const bool fetched = recipe.is_first_release();
    set_text(recipe, "vocab-file", "data.tokenizer.vocab", fetched ? "gpt2-vocab.json" : "");
    set_text(recipe, "merge-file", "data.tokenizer.merges", fetched ? "gpt2-merges.txt" : "");
    leave_out(recipe, {"tokenizer-model", "tokenizer-path", "vocab-size"}, type);
  } else if (type.starts_with("BertWordPiece")) {
    set_type("wordpiece");
    const bool fetched = recipe.is_first_release();
    set_text(recipe, "vocab-file", "data.tokenizer.vocab", fetched ? "bert-vocab.txt" : "");
    // The first release took the case from the model's name, bert-large-uncased by default.
    const Given* model = recipe.flags.find("tokenizer-model-type");
    const std::string name = model ? model->values[0] : "";
    const bool cased = type == "BertWordPieceCase" || name.find("-cased") != std::string::npos ||
                       name.find("chinese") != std::string::npos;
    draft.set("data.tokenizer.lowercase", cased ? "false" : "true",
              model ? fmt::format("{} {}", type, name) : type);
    leave_out(recipe, {"tokenizer-model", "tokenizer-path", "merge-file", "vocab-size"}, type);
  } else if (type.find("SentencePiece") != std::string::npos || type == "Llama2Tokenizer") {
    set_type("sentencepiece");
    // The first Megatron-LM's --tokenizer-path is the model, tokenizer.model by default.
    if (const Given* model = recipe.one_of("tokenizer-model", "tokenizer-path"))
      recipe.copy(*model, "data.tokenizer.model");
    else if (recipe.is_first_release())
      draft.set("data.tokenizer.model", "tokenizer.model",
                std::string("the default of the first Megatron-LM"));
    leave_out(recipe, {"vocab-file", "merge-file", "vocab-size"}, type);
  } else if (type == "HuggingFaceTokenizer") {
    set_type("bpe");
    const Given* model = recipe.one_of("tokenizer-model", "tokenizer-path");
    if (model) {
      const std::string& name = model->values[0];
      const bool file = name.ends_with(".json");
      draft.set("data.tokenizer.model", deck::write_text(file ? name : name + "/tokenizer.json"),
                *model);
      if (!file)
        draft.note(model->place,
                   fmt::format("{} names a folder or a model of Hugging Face's hub: Trireme reads "
                               "its tokenizer.json, which must be at that path",
                               model->text()));
    }
    leave_out(recipe, {"vocab-file", "merge-file", "vocab-size"}, type);
  } else if (type == "NullTokenizer") {
    // Its end of document is the id after the vocabulary.
    if (const Given* given_size = recipe.flags.find("vocab-size"))
      if (const auto size = recipe.whole(given_size))
        draft.set("model.vocab", fmt::format("{}", *size + 1),
                  given_size->text() + ", and the end of document");
    leave_out(recipe, {"vocab-file", "merge-file", "tokenizer-model", "tokenizer-path"}, type);
  } else {
    draft.error(
        *given,
        "is not supported; preprocess the data again with trireme-preprocess and one of the "
        "tokenizers of 'trireme-tokenizer --help', and give that: GPT2BPETokenizer, "
        "BertWordPieceLowerCase, SentencePieceTokenizer, HuggingFaceTokenizer or NullTokenizer");
  }
}

/// How BERT's samples are made. Returns whether they are TFRecords.
bool apply_bert_samples(Recipe& recipe) {
  const Given* records = recipe.flags.find("use-tfrecords");
  if (recipe.program.find("bert") == std::string::npos) {
    if (records) recipe.draft.error(*records, "is for BERT; remove it");
    return false;
  }
  if (records) {
    recipe.draft.set("data.bert.dialect", "tfrecord", *records);
    for (const char* name : {"short-seq-prob", "mask-prob"})
      if (const Given* given = recipe.flags.find(name))
        recipe.draft.error(*given, "has no effect with --use-tfrecords, whose samples are masked");
  } else if (recipe.is_first_release()) {
    recipe.draft.set("data.bert.dialect", "v0", std::string("the samples of the first release"));
  }
  return records != nullptr;
}

}  // namespace

void apply_data_rules(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Arguments& flags = recipe.flags;
  const Given* old = flags.find("train-data");
  const Given* train = recipe.one_of("data-path", "train-data-path");
  if (train && old)
    draft.error(*old,
                fmt::format("'{}' names a dataset as well; keep one of the two", train->text()));
  set_dataset(recipe, train ? train : old, "data.train");
  const bool records = apply_bert_samples(recipe);
  if (old && !records)
    draft.note(old->place,
               fmt::format("{} names text that Megatron-LM tokenized as it ran: make datasets with "
                           "trireme-preprocess, and write their prefixes in data.train",
                           old->text()));
  if (!train && !old)
    draft.note(recipe.place, "the recipe names no dataset: write data.train into the deck");
  for (const auto& [first, second, third, key] :
       {std::array{"valid-data-path", "val-data-path", "valid-data", "data.valid"},
        std::array{"test-data-path", "test-data-path", "test-data", "data.test"}})
    for (const char* name : {third, second, first}) set_dataset(recipe, flags.find(name), key);

  const Given* split = flags.find("split");
  if (records) {
    draft.set("data.split", "[1, 0, 0]", std::string("TFRecord files are not divided"));
    if (split) draft.leave_out(*split, "has no effect with --use-tfrecords");
  } else if (split) {
    std::string weights = split->values[0];
    std::erase_if(weights, [](char c) { return c == ' ' || c == '\'' || c == '"'; });
    draft.set("data.split", weights, *split);
  } else if (old) {
    draft.set("data.split", "1000,1,1", kMegatronDefault);
  }
  if (const Given* type = flags.find("dataloader-type")) {
    if (type->values[0] == "single")
      draft.leave_out(*type, "is Trireme's order of samples");
    else
      draft.error(*type, "Trireme reads samples in the order of 'single'; use that");
  }
  apply_tokenizer(recipe);
  if (const Given* given = flags.find("calculate-per-token-loss")) {
    const bool masks =
        flags.has("eod-mask-loss") || recipe.program.find("bert") != std::string::npos;
    if (masks)
      draft.error(*given,
                  "Trireme averages the loss over micro-batches, in which it differs where tokens "
                  "are masked; remove it");
    else
      draft.leave_out(*given, "no token is masked: the mean over micro-batches is the same");
  }
}

namespace {

/// The run folder, whose checkpoints are in its folder `checkpoints`.
std::string run_folder(const std::string& save) {
  const std::filesystem::path path(save);
  const bool inner = path.filename() == "checkpoints" && path.has_parent_path();
  return inner ? path.parent_path().string() : save;
}

/// Flags that start a new run from the weights of another.
void apply_new_run(Recipe& recipe) {
  for (const std::string_view name : {"finetune", "no-load-optim", "no-load-rng"}) {
    const Given* given = recipe.flags.find(name);
    if (!given) continue;
    if (recipe.flags.mentions("load"))
      recipe.draft.error(*given,
                         "loading a checkpoint resumes its run; exporting and importing it with "
                         "'trireme-convert hf' makes one of iteration 0");
    else
      recipe.draft.leave_out(*given, "has no effect without --load");
  }
}

/// Checkpoints on local disks between those of --save.
void apply_local_checkpoints(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* every = recipe.flags.find("non-persistent-save-interval");
  const Given* type = recipe.flags.find("non-persistent-ckpt-type");
  const Given* folder = recipe.flags.find("non-persistent-local-ckpt-dir");
  const Given* copies = recipe.flags.find("replication");
  if (!every || !type || !recipe.flags.has("save")) {
    for (const Given* given : {every, type, folder, copies})
      if (given)
        draft.leave_out(*given,
                        "has no effect without --save, --non-persistent-save-interval and "
                        "--non-persistent-ckpt-type");
    return;
  }
  if (type->values[0] != "local")
    return draft.error(*type, "Trireme's are local; write local, or remove it");
  if (!folder) return draft.error(*type, "needs --non-persistent-local-ckpt-dir");
  recipe.copy(*folder, "checkpoint.local.path");
  recipe.copy(*every, "checkpoint.local.every", "iterations");
  if (copies) draft.set("checkpoint.local.partner", "true", *copies);
}

void apply_checkpoints(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* save = recipe.flags.find("save");
  const Given* load = recipe.flags.find("load");
  const Given* every = recipe.flags.find("save-interval");
  if (save) {
    draft.set("run.output", deck::write_text(run_folder(save->values[0])), *save);
    if (every)
      recipe.copy(*every, "checkpoint.every", "iterations");
    else if (recipe.is_first_release())
      draft.set("checkpoint.every", "5000 iterations",
                std::string("the default of the first Megatron-LM"));
  } else {
    if (every) draft.leave_out(*every, "has no effect without --save");
    draft.set("checkpoint.at_end", "false", std::string("no --save"));
  }
  if (const Given* retain = recipe.flags.find("save-retain-interval"); retain && save) {
    draft.set("checkpoint.keep", "1", *retain);
    recipe.copy(*retain, "checkpoint.keep_every", "iterations");
  } else if (retain) {
    draft.leave_out(*retain, "has no effect without --save");
  }
  apply_local_checkpoints(recipe);
  apply_new_run(recipe);
  if (!load) return;
  if (save && save->values == load->values) {
    draft.leave_out(*load, "a run resumes from the newest checkpoint of run.output automatically");
    return;
  }
  recipe.copy(*load, "checkpoint.load");
  draft.note(load->place,
             fmt::format("{} is a checkpoint of Megatron-LM: convert it with 'trireme-convert "
                         "megatron' and name the result in checkpoint.load, or delete the key to "
                         "start from random weights",
                         load->text()));
}

/// Whether a split has data: its own datasets, under `key`, or a weight in --split after `commas`
/// commas.
bool keeps(const Recipe& recipe, const char* key, int commas) {
  if (recipe.draft.has(key)) return true;
  const Given* split = recipe.flags.find("split");
  if (!split) return true;
  std::string_view weights = split->values[0];
  for (; commas > 0; --commas) {
    const std::size_t comma = weights.find(',');
    if (comma == std::string_view::npos) return false;
    weights.remove_prefix(comma + 1);
  }
  return std::strtod(weights.data(), nullptr) > 0;
}

void apply_evaluation(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Given* every = recipe.flags.find("eval-interval");
  const Given* iterations = recipe.flags.find("eval-iters");
  const bool none = iterations && iterations->values[0] == "0";
  const bool valid = !none && keeps(recipe, "data.valid", 1);
  const bool test = !none && keeps(recipe, "data.test", 2);
  const std::string reason =
      none ? "--eval-iters 0 turns evaluation off" : "--split has no validation part";
  if (valid)
    recipe.copy_or("eval-interval", "evaluate.every", "1000", "iterations");
  else if (every)
    draft.leave_out(*every, reason);
  if (valid || test)
    recipe.copy_or("eval-iters", "evaluate.iterations", "100");
  else if (iterations)
    draft.leave_out(*iterations, reason);
  if (none) draft.set("evaluate.at_end", "false", *iterations);
}

void apply_logs(Recipe& recipe) {
  Draft& draft = recipe.draft;
  recipe.copy_or("log-interval", "log.every", "100");
  if (const Given* folder = recipe.flags.find("tensorboard-dir")) {
    draft.set("log.tensorboard.enable", "true", *folder);
    const bool bigscience = recipe.deepspeed && !recipe.before_version_2();
    draft.set("log.tensorboard.dialect", bigscience ? "bigscience" : "megatron",
              std::string("the tags of the recipe's program"));
    draft.note(folder->place, "event files go to run.output/tensorboard");
  } else {
    draft.set("log.tensorboard.enable", "false", std::string("no --tensorboard-dir"));
  }
  if (const Given* level = recipe.flags.find("timing-log-level"))
    draft.set("log.timers", recipe.whole(level).value_or(0) > 0 ? "true" : "false", *level);
}

}  // namespace

void apply_output_rules(Recipe& recipe) {
  apply_checkpoints(recipe);
  apply_evaluation(recipe);
  apply_logs(recipe);
}

}  // namespace trireme::convert::flags
