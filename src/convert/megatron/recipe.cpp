// The arguments that a checkpoint holds as a command line, and that as a deck.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "convert/convert.hpp"
#include "convert/flags/arguments.hpp"
#include "convert/megatron/foreign.hpp"
#include "core/error.hpp"

namespace trireme::convert::megatron {
namespace {

using flags::Fate;
using flags::Flag;
using flags::Takes;
using torch::Value;

/// Arguments that Megatron-LM computes from others, or that name the place of this checkpoint.
bool is_derived(std::string_view name, const Value& arguments) {
  for (const std::string_view other :
       {"load", "finetune", "no-load-optim", "no-load-rng", "deepspeed", "deepspeed-config",
        "zero-stage", "tensorboard-dir", "kv-channels", "world-size"})
    if (name == other) return true;
  const auto is_set = [&](const char* key) {
    const Value* value = arguments.find(key);
    return value && !value->is(Value::Kind::none);
  };
  // Iterations follow from samples.
  if (name == "train-iters") return is_set("train_samples");
  if (name == "lr-decay-iters") return is_set("train_samples") || is_set("lr_decay_samples");
  if (name == "start-weight-decay" || name == "end-weight-decay") {
    const Value* style = arguments.find("weight_decay_incr_style");
    return !style || style->text == "constant";
  }
  if (name == "encoder-num-layers" || name == "encoder-seq-length") return true;
  return false;
}

/// A number as a command line has it: whole ones without a point.
std::string text_of(const Value& value) {
  if (value.is(Value::Kind::integer)) return fmt::format("{}", value.integer);
  if (!value.is(Value::Kind::real)) return value.text;
  const bool is_whole = std::abs(value.real) < 1e15 && value.real == std::floor(value.real);
  return is_whole ? fmt::format("{:.0f}", value.real) : fmt::format("{}", value.real);
}

/// Appends the flag of one argument, if it sets a key.
void add_words(const Flag& flag, const Value& value, std::vector<std::string>& words) {
  const std::string name = fmt::format("--{}", flag.name);
  if (flag.takes == Takes::nothing) {
    if (value.is(Value::Kind::boolean) && value.integer != 0) words.push_back(name);
    return;
  }
  // Other refused flags have values that mean "not used".
  if (flag.fate == Fate::refused || value.is(Value::Kind::none)) return;
  std::vector<std::string> texts;
  if (value.is(Value::Kind::list))
    for (const Value* item : value.items) texts.push_back(text_of(*item));
  else if (value.is_number() || value.is(Value::Kind::text))
    texts.push_back(text_of(value));
  if (texts.empty()) return;
  words.push_back(name);
  words.insert(words.end(), texts.begin(), texts.end());
}

}  // namespace

std::string deck_text(const Foreign& foreign, std::vector<std::string>& notes) {
  if (!foreign.arguments)
    throw DataError("'{}' does not contain the arguments of its run: give its deck with --deck",
                    foreign.folder.string());
  const Value& arguments = *foreign.arguments;
  std::vector<std::string> words{"pretrain_gpt.py"};
  for (const Flag& flag : flags::command_flags()) {
    if (flag.fate == Fate::dropped || is_derived(flag.name, arguments)) continue;
    std::string name(flag.name);
    std::replace(name.begin(), name.end(), '-', '_');
    if (const Value* value = arguments.find(name)) add_words(flag, *value, words);
  }
  flags::Request request{.words = std::move(words)};
  if (const Value* ranks = arguments.find("world_size");
      ranks && ranks->is(Value::Kind::integer) && ranks->integer > 0)
    request.ranks = ranks->integer;
  const flags::Result result = flags::convert(request);
  notes.insert(notes.end(), result.notes.begin(), result.notes.end());
  return result.deck;
}

}  // namespace trireme::convert::megatron
