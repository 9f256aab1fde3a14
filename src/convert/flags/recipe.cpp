#include "convert/flags/recipe.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "convert/shell/script.hpp"
#include "core/error.hpp"
#include "deck/keys/schema.hpp"
#include "deck/load.hpp"
#include "deck/value.hpp"

namespace trireme::convert::flags {
namespace {

// The column of comments after shorter values.
constexpr int kCommentColumn = 36;

/// `text` as part of a comment or message: marks as their source, one line of UTF-8.
std::string one_line(std::string_view text) {
  std::string line = shell::shown(text);
  if (!deck::is_plain_line(line))
    std::replace_if(
        line.begin(), line.end(), [](unsigned char c) { return c >= 0x7F; }, '?');
  return line;
}

/// Whether the feature of `key` is implemented for this value.
bool is_built(const deck::Key& key, const deck::Item& item) {
  if (!key.has_member()) return false;
  return key.built.empty() ||
         std::find(key.built.begin(), key.built.end(), item.text) != key.built.end();
}

/// The indented last name of `path`, after the headings of sections that `before` is not in.
std::string heading(std::string_view path, std::string_view before) {
  std::string text;
  int depth = 0;
  for (std::size_t end = path.find('.'); end != std::string_view::npos;
       end = path.find('.', end + 1), ++depth) {
    const std::string_view section = path.substr(0, end + 1);
    if (before.starts_with(section)) continue;
    if (depth == 0 && !before.empty()) text += "\n";
    const std::size_t dot = path.rfind('.', end - 1);
    const std::size_t begin = dot == std::string_view::npos ? 0 : dot + 1;
    text += fmt::format("{:{}}{}:\n", "", 2 * depth, path.substr(begin, end - begin));
  }
  return text + fmt::format("{:{}}{}", "", 2 * depth, path.substr(path.rfind('.') + 1));
}

}  // namespace

void Draft::set(std::string_view key, const std::string& yaml, const Given& given) {
  put(key, yaml, given.text(), given.place);
}

void Draft::set(std::string_view key, const std::string& yaml, const std::string& why) {
  put(key, yaml, why, why);
}

void Draft::put(std::string_view key, const std::string& yaml, const std::string& origin,
                const std::string& place) {
  const deck::Key* row = deck::find_key(key);
  TRIREME_CHECK(row != nullptr, "'{}' is no key of the deck", key);
  if (!deck::is_plain_line(yaml)) {
    error(place, fmt::format("{}: {} cannot have this value: it is not one line of UTF-8 text",
                             origin, key));
    return;
  }
  deck::Problems ignored("", {});
  const deck::Item item = deck::read_yaml(yaml, 0, ignored);
  const bool built = is_built(*row, item);
  const bool readable = row->has_member() && (built || item.kind == deck::Item::Kind::scalar);
  if (readable) {
    try {
      deck::Deck scratch;
      row->read(scratch, item, row->rules);
    } catch (const deck::BadValue& problem) {
      error(place, fmt::format("{}: {} = {}: {}", origin, key, deck::found(item), problem.what()));
      return;
    }
  }
  settings_[std::string(key)] = {yaml, origin, built};
}

void Draft::leave_out(const Given& given, std::string_view reason) {
  left_out_.push_back({one_line(given.text()), std::string(reason)});
}

void Draft::error(const std::string& place, std::string message) {
  message = one_line(message);
  const bool told = std::any_of(errors_.begin(), errors_.end(), [&](const Remark& other) {
    return other.place == place && other.message == message;
  });
  if (!told) errors_.push_back({place, std::move(message)});
}

void Draft::error(const Given& given, std::string_view message) {
  error(given.place, fmt::format("{}: {}", one_line(given.text()), message));
}

void Draft::note(const std::string& place, std::string message) {
  notes_.push_back({one_line(place), one_line(message)});
}

void Draft::check_deck(const std::string& place, std::int64_t ranks) {
  // The tokenizer determines the size of the vocabulary; its files may be elsewhere.
  std::vector<std::string> overrides;
  if (!has("model.vocab")) overrides.push_back("model.vocab=1");
  try {
    deck::Deck deck = deck::parse(body(/*with_unbuilt=*/false), "", overrides,
                                  {.need_data = false, .automatic = deck::Device::cuda});
    if (ranks > 0) deck::resolve_world_size(deck, ranks);
  } catch (const deck::InvalidDeck& invalid) {
    // A key may be missing because its flag is already reported.
    const bool may_miss = !errors_.empty();
    for (const deck::InvalidDeck::Line& line : invalid.lines())
      if (!may_miss || !line.missing) error(place, line.message);
  }
}

std::vector<std::string> Draft::unbuilt() const {
  std::vector<std::string> lines;
  for (const deck::Key& key : deck::keys()) {
    const auto found = settings_.find(key.path);
    if (found != settings_.end() && !found->second.built)
      lines.push_back(
          fmt::format("{}: {} ({})", key.path, found->second.yaml, one_line(found->second.origin)));
  }
  return lines;
}

std::string Draft::body(bool with_unbuilt) const {
  std::string text;
  std::string_view before;
  for (const deck::Key& key : deck::keys()) {
    const auto found = settings_.find(key.path);
    if (found == settings_.end() || (!found->second.built && !with_unbuilt)) continue;
    const Setting& setting = found->second;
    text += heading(key.path, before);
    const std::size_t line = text.rfind('\n') + 1;
    text += ": " + setting.yaml;
    const auto width = static_cast<int>(text.size() - line);
    text += fmt::format("{:{}}  # {}{}\n", "", std::max(kCommentColumn - width, 0),
                        one_line(setting.origin), setting.built ? "" : "; not built yet");
    before = key.path;
  }
  return text;
}

std::string Draft::render(const std::vector<std::string>& title) const {
  std::string text;
  for (const std::string& line : title) text += fmt::format("# {}\n", one_line(line));
  text += '\n';
  text += body(/*with_unbuilt=*/true);
  if (!left_out_.empty()) text += "\n# Ignored:\n";
  for (const Remark& remark : left_out_)
    text += fmt::format("#   {}: {}\n", remark.place, remark.message);
  if (!notes_.empty()) text += "\n# Notes:\n";
  for (const Remark& remark : notes_) text += fmt::format("#   {}\n", remark.message);
  return text;
}

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
    draft.error(*b, fmt::format("'{}' is the same option of another version; keep one of the two",
                                a->text()));
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
