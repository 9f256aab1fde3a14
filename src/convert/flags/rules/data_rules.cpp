// Datasets and tokenizer.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "convert/flags/rules/rules.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

bool is_number(const std::string& text) {
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return !text.empty() && *end == '\0';
}

/// One prefix, or a blend: weights and prefixes in turn, or prefixes alone.
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
                     std::string("Megatron-LM fetched GPT-2's; put the file there"));
}

/// Vocabulary and merges of a tokenizer that has no use for one of them.
void leave_out(Recipe& recipe, std::initializer_list<std::string_view> names,
               std::string_view type) {
  for (const std::string_view name : names)
    if (const Given* given = recipe.flags.find(name))
      recipe.draft.leave_out(*given, fmt::format("the tokenizer {} has no use for it", type));
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
    // The first release fetched its vocabulary; later ones need the files.
    const bool fetched = recipe.is_first_release();
    set_text(recipe, "vocab-file", "data.tokenizer.vocab", fetched ? "gpt2-vocab.json" : "");
    set_text(recipe, "merge-file", "data.tokenizer.merges", fetched ? "gpt2-merges.txt" : "");
    leave_out(recipe, {"tokenizer-model", "tokenizer-path", "vocab-size"}, type);
  } else if (type.starts_with("BertWordPiece")) {
    set_type("wordpiece");
    const bool fetched = recipe.is_first_release();
    set_text(recipe, "vocab-file", "data.tokenizer.vocab", fetched ? "bert-vocab.txt" : "");
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
  } else if (type == "NullTokenizer") {
    if (const Given* size = recipe.flags.find("vocab-size")) recipe.copy(*size, "model.vocab");
    leave_out(recipe, {"vocab-file", "merge-file", "tokenizer-model", "tokenizer-path"}, type);
  } else {
    draft.error(*given,
                "has no counterpart; make the dataset anew with trireme-preprocess and a tokenizer "
                "of 'trireme-tokenizer --help', and give that: GPT2BPETokenizer, "
                "BertWordPieceLowerCase, SentencePieceTokenizer or NullTokenizer");
  }
}

}  // namespace

void apply_data_rules(Recipe& recipe) {
  Draft& draft = recipe.draft;
  const Arguments& flags = recipe.flags;
  const Given* old = flags.find("train-data");
  const Given* train = recipe.one_of("data-path", "train-data-path");
  if (train && old)
    draft.error(*old, fmt::format("'{}' names a dataset as well; keep one", train->text()));
  set_dataset(recipe, train ? train : old, "data.train");
  if (old)
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

  if (const Given* split = flags.find("split")) {
    std::string weights = split->values[0];
    std::erase(weights, ' ');
    draft.set("data.split", weights, *split);
  } else if (old) {
    draft.set("data.split", "1000,1,1", kMegatronDefault);
  }
  if (const Given* type = flags.find("dataloader-type")) {
    if (type->values[0] == "single")
      draft.leave_out(*type, "is the order of samples that Trireme has");
    else
      draft.error(*type, "Trireme reads samples in the order of 'single'; give that");
  }
  apply_tokenizer(recipe);
}

}  // namespace trireme::convert::flags
