#include "deck/value.hpp"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/text.hpp"

namespace trireme::deck {
namespace {

std::string text_of(const std::vector<InvalidDeck::Line>& lines) {
  std::string text;
  for (const InvalidDeck::Line& line : lines) text += line.text + "\n";
  return text +
         fmt::format("{}; nothing was started. 'trireme-pretrain --help deck' lists every key.",
                     counted(static_cast<std::int64_t>(lines.size()), "error"));
}

}  // namespace

InvalidDeck::InvalidDeck(std::vector<Line> lines)
    : DeckError("{}", text_of(lines)), lines_(std::move(lines)) {}

bool Place::before(const Place& other) const {
  const auto rank = [](const Place& place) {
    const int line = place.line > 0 ? place.line : std::numeric_limits<int>::max();
    return std::make_tuple(place.source, line, place.column);
  };
  return rank(*this) < rank(other);
}

Problems::Problems(std::string filename, std::vector<std::string> overrides)
    : filename_(std::move(filename)), overrides_(std::move(overrides)) {}

void Problems::add(const Place& place, std::string message, bool missing) {
  problems_.push_back({place, std::move(message), missing});
}

void Problems::raise() const {
  std::vector<Problem> sorted = problems_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Problem& a, const Problem& b) { return a.place.before(b.place); });
  std::vector<InvalidDeck::Line> lines;
  for (const auto& [place, message, missing] : sorted) {
    const std::string where =
        place.source > 0 ? fmt::format("--set {}", overrides_[place.source - 1])
        : place.line > 0 ? fmt::format("{}:{}:{}", filename_, place.line, place.column)
                         : filename_;
    lines.push_back({fmt::format("{}: {}", where, message), place.source, message, missing});
  }
  throw InvalidDeck(std::move(lines));
}

void Problems::raise_if_any() const {
  if (!empty()) raise();
}

namespace {

constexpr std::size_t kMaxBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxDepth = 64;

Place to_place(const YAML::Mark& mark, int source) {
  if (mark.is_null()) return {source, 0, 0};
  return {source, mark.line + 1, mark.column + 1};
}

// Builds the tree of items. Containers that are still open wait on the stack.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(int source, Problems& problems) : source_(source), problems_(problems) {}

  Item take_root() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    attach(make(Item::Kind::null, mark, "", anchor));
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "an alias ('*name') has no place in a deck; write the value out");
    attach(make(Item::Kind::refused, mark, "", YAML::NullAnchor));
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Item item = make(Item::Kind::scalar, mark, tag, anchor);
    item.text = value;
    item.quoted = tag == "!";
    attach(std::move(item));
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, make(Item::Kind::list, mark, tag, anchor));
  }
  void OnSequenceEnd() override { close(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, make(Item::Kind::mapping, mark, tag, anchor));
  }
  void OnMapEnd() override { close(); }

 private:
  void refuse(const YAML::Mark& mark, const char* message) {
    problems_.add(to_place(mark, source_), message);
  }

  // A tag of "" or "?" means that none was written, "!" that the scalar was quoted.
  Item make(Item::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    Item item;
    item.kind = kind;
    item.place = to_place(mark, source_);
    const bool tagged = !tag.empty() && tag != "?" && tag != "!";
    if (tagged) refuse(mark, "a tag ('!name') has no place in a deck; leave it out");
    if (anchor != YAML::NullAnchor) {
      refuse(mark, "an anchor ('&name') has no place in a deck; leave it out");
    }
    return item;
  }

  void open(const YAML::Mark& mark, Item item) {
    // yaml-cpp recurses once per level; stop long before the stack does.
    if (open_.size() == kMaxDepth) {
      throw YAML::ParserException(mark, fmt::format("nested deeper than {} levels", kMaxDepth));
    }
    open_.push_back(std::move(item));
  }

  void close() {
    Item item = std::move(open_.back());
    open_.pop_back();
    attach(std::move(item));
  }

  void attach(Item item) {
    if (open_.empty()) {
      root_ = std::move(item);
      return;
    }
    Item& parent = open_.back();
    const bool is_key =
        parent.kind == Item::Kind::mapping && parent.keys.size() == parent.items.size();
    (is_key ? parent.keys : parent.items).push_back(std::move(item));
  }

  int source_;
  Problems& problems_;
  std::vector<Item> open_;
  Item root_;
};

// Length of the UTF-8 sequence at the head of `text`, 0 when it is not one.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xED && byte(1) > 0x9F;
  const bool beyond = lead == 0xF4 && byte(1) > 0x8F;
  return overlong || surrogate || beyond ? 0 : length;
}

bool is_control(char c) { return (c >= 0 && c < 0x20) || c == 0x7F; }

// yaml-cpp takes byte 4 for the end of the text and guesses UTF-16 from zeros, so text must be
// clean before it gets there.
std::optional<std::pair<Place, std::string>> find_bad_byte(std::string_view text, int source) {
  Place place{source, 1, 1};
  for (std::size_t at = 0; at < text.size();) {
    const auto byte = static_cast<std::uint8_t>(text[at]);
    const std::size_t length = utf8_length(text.substr(at));
    if (at == 0 && (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff")))
      return std::pair(place, "UTF-16; convert it: iconv -f UTF-16 -t UTF-8 FILE");
    if (length == 0) return std::pair(place, fmt::format("byte 0x{:02x} is not UTF-8", byte));
    if (is_control(text[at]) && byte != '\t' && byte != '\n' && byte != '\r') {
      return std::pair(place, fmt::format("control character 0x{:02x}: a deck is a text", byte));
    }
    if (byte == '\r' && source == 0 && text.find('\n') == std::string_view::npos)
      return std::pair(place, "its lines end with CR alone; convert it: tr '\\r' '\\n' <FILE");
    if (byte == '\n') {
      ++place.line;
      place.column = 0;
    }
    ++place.column;
    at += length;
  }
  return std::nullopt;
}

// Tabs and no-break spaces in the indentation are the errors that YAML parsers explain worst.
// Those of the lines from `first` on, counted from 1.
std::string indentation_problem(std::string_view text, int first) {
  constexpr std::string_view kNoBreakSpace = "\u00a0";
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    const std::string_view indent = text.substr(0, text.find_first_not_of(" \t\u00a0"));
    for (const auto& [what, name] :
         {std::pair(std::string_view("\t"), "a tab"), std::pair(kNoBreakSpace, "a no-break space")})
      if (line >= first && indent.find(what) < end)
        return fmt::format("line {} is indented with {}; use spaces", line, name);
    text.remove_prefix(end + 1);
  }
  return "";
}

// "layers:2" is one text to YAML, and what comes after it the error.
std::string space_hint(std::string_view text) {
  constexpr std::string_view kName = "abcdefghijklmnopqrstuvwxyz0123456789_";
  for (int line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1);
    const std::string_view words = text.substr(0, end);
    const std::size_t begin = std::min(words.find_first_not_of(" {"), words.size());
    const std::size_t colon = words.find_first_not_of(kName, begin);
    if (colon != std::string_view::npos && colon > begin && colon + 1 < words.size() &&
        words[colon] == ':' && words[colon + 1] != ' ')
      return fmt::format(" (line {} needs a space after '{}')", line,
                         words.substr(begin, colon + 1 - begin));
    text.remove_prefix(end + 1);
  }
  return "";
}

// What is wrong with a text that is no YAML, given yaml-cpp's word for it and its line.
std::string yaml_problem(const std::string& word, int line, std::string_view text) {
  const std::string indented = indentation_problem(text, line - 2);
  if (!indented.empty()) return indented;
  constexpr std::pair<std::string_view, const char*> kWords[] = {
      {"end of map flow not found", "'{' is not closed by '}', or a quote not by another one"},
      {"end of sequence flow not found", "'[' is not closed by ']', or a quote not by another one"},
      {"illegal EOF in scalar", "a quote is not closed"},
      {"illegal flow end", "'}' or ']' without its '{' or '['"},
      {"illegal map value",
       "a ':' that belongs to no key: is this line indented as its neighbours "
       "are, and has the key above its own ':'?"},
      {"illegal map key",
       "a key where none can stand; is the line indented as its neighbours are?"},
      {"end of map not found", "the indentation differs from that of the lines above"},
      {"end of sequence not found", "the indentation differs from that of the lines above"},
      {"illegal block entry", "'-' where no list can begin"},
      {"the referenced anchor is not defined",
       "an alias ('*name') has no place in a deck; write the value out, or quote the text"},
      {"alias not found after *",
       "'*' begins an alias, which has no place in a deck; quote the text"},
      {"anchor not found after &",
       "'&' begins an anchor, which has no place in a deck; quote the text"},
      {"unknown token", "a text that begins with '%', '@', '`', '|' or '>' needs quotes"}};
  for (const auto& [theirs, ours] : kWords)
    if (word == theirs) return ours + space_hint(text);
  return word + space_hint(text);
}

}  // namespace

bool is_plain_line(std::string_view text) {
  return std::none_of(text.begin(), text.end(), is_control) && !find_bad_byte(text, 0);
}

std::string printable(std::string_view text) {
  constexpr std::size_t kLongest = 80;
  std::size_t length = std::min(text.size(), kLongest);
  // Do not cut inside a UTF-8 sequence.
  while (length < text.size() && length > 0 && (text[length] & 0xC0) == 0x80) --length;
  std::string line(text.substr(0, length));
  std::replace_if(line.begin(), line.end(), is_control, ' ');
  return length < text.size() ? line + "..." : line;
}

std::string found(const Item& item) {
  switch (item.kind) {
    case Item::Kind::scalar:
      return item.quoted ? '"' + printable(item.text) + '"' : printable(item.text);
    case Item::Kind::list:
      return "a list";
    case Item::Kind::mapping:
      return "a section";
    case Item::Kind::null:
    case Item::Kind::refused:
      break;
  }
  return "nothing";
}

Item read_yaml(std::string_view text, int source, Problems& problems) {
  Item refused;
  refused.kind = Item::Kind::refused;
  if (text.size() > kMaxBytes) {
    problems.add({source, 0, 0},
                 fmt::format("{} bytes are too many for a deck (at most 1 MiB)", text.size()));
    return refused;
  }
  if (const auto bad = find_bad_byte(text, source)) {
    problems.add(bad->first, bad->second);
    return refused;
  }
  // yaml-cpp lets the end of a text close a quote where the text ends with a newline.
  const std::size_t last_line_end =
      text.find_first_of("\r\n", text.find_last_not_of(" \t\r\n") + 1);
  text = text.substr(0, last_line_end);
  TreeBuilder builder(source, problems);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    Item root = builder.take_root();
    TreeBuilder second(source, problems);
    if (parser.HandleNextDocument(second)) {
      problems.add(second.take_root().place, "a second YAML document; a deck is only one");
    }
    return root;
  } catch (const YAML::Exception& error) {
    problems.add(
        to_place(error.mark, source),
        fmt::format("not valid YAML: {}", yaml_problem(error.msg, error.mark.line + 1, text)));
  }
  return refused;
}

}  // namespace trireme::deck
