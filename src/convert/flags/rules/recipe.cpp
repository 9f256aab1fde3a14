#include "convert/flags/rules/recipe.hpp"

#include <fmt/format.h>

#include "deck/schema.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {

std::string as_number(const std::string& text) { return text.starts_with('.') ? "0" + text : text; }

std::optional<std::int64_t> Recipe::whole(const Given* given) {
  if (!given) return std::nullopt;
  deck::Item item;
  item.kind = deck::Item::Kind::scalar;
  item.text = given->values[0];
  try {
    return deck::read_whole(item);
  } catch (const deck::BadValue& problem) {
    draft.error(*given, problem.what());
    return std::nullopt;
  }
}

const Given* Recipe::one_of(std::string_view first, std::string_view second) {
  const Given* a = flags.find(first);
  const Given* b = flags.find(second);
  if (a && b)
    draft.error(*b,
                fmt::format("'{}' says the same in another version's words; keep one", a->text()));
  return a ? a : b;
}

void Recipe::copy(const Given& given, std::string_view key, std::string_view unit) {
  const deck::Key* row = deck::find_key(key);
  const std::string& value = given.values[0];
  const bool text = row && row->type == deck::Codec<std::string>::kType;
  const std::string yaml = text ? deck::write_text(value) : as_number(value);
  draft.set(key, unit.empty() ? yaml : fmt::format("{} {}", yaml, unit), given);
}

void Recipe::copy_or(std::string_view name, std::string_view key, std::string_view fallback,
                     std::string_view unit) {
  if (const Given* given = flags.find(name)) return copy(*given, key, unit);
  if (fallback.empty()) return;
  const std::string yaml(fallback);
  draft.set(key, unit.empty() ? yaml : fmt::format("{} {}", yaml, unit), kMegatronDefault);
}

std::int64_t Recipe::tensor() {
  const Given* given = flags.find("tensor-model-parallel-size");
  return whole(given ? given : flags.find("model-parallel-size")).value_or(1);
}

std::int64_t Recipe::pipeline() {
  const Given* given = flags.find("pipeline-model-parallel-size");
  // A pipeline of 0 stages is v1.1.5's word for no pipeline.
  return std::max<std::int64_t>(whole(given ? given : flags.find("pipe-parallel-size")).value_or(1),
                                1);
}

std::optional<std::int64_t> Recipe::data() {
  const std::int64_t model = std::max<std::int64_t>(tensor(), 1) * pipeline();
  if (!ranks || ranks->count % model != 0) return std::nullopt;
  return ranks->count / model;
}

}  // namespace trireme::convert::flags
