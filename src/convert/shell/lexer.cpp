#include "convert/shell/script.hpp"

#include <algorithm>
#include <cctype>

#include "core/error.hpp"

namespace trireme::convert::shell {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

// The end, one past it, of the mark at `at`: marks are opaque to the lexer.
std::size_t end_of_mark(std::string_view text, std::size_t at) {
  return std::min(text.find(kUnknownEnd, at), text.size() - 1) + 1;
}

// The end, one past it, of the quote that opens at `open`; npos if it is not closed.
std::size_t end_of_quote(std::string_view text, std::size_t open, int nesting = 0) {
  const char quote = text[open];
  for (std::size_t i = open + 1; i < text.size(); ++i) {
    if (text[i] == quote) return i + 1;
    if (quote == '\'') continue;
    if (text[i] == kUnknownBegin) {
      i = end_of_mark(text, i) - 1;
    } else if (text[i] == '\\') {
      ++i;
    } else if (quote == '"' && text.substr(i, 2) == "$(") {
      const std::size_t end = end_of_brackets(text, i + 1, nesting + 1);
      if (end == kNone) return kNone;
      i = end - 1;
    }
  }
  return kNone;
}

// The operand of `<<`: the word that ends the here-document, and how the document is read.
struct HereMark {
  std::string word;
  bool expands = true;
  bool strips_tabs = false;
};

// Reads the operand of `<<` and moves `at` past it.
HereMark read_here_mark(std::string_view text, std::size_t& at) {
  HereMark mark;
  if (at < text.size() && text[at] == '-') {
    mark.strips_tabs = true;
    ++at;
  }
  while (at < text.size() && is_blank(text[at])) ++at;
  for (; at < text.size() && (is_name(text[at]) || text[at] == '"' || text[at] == '\''); ++at) {
    if (is_name(text[at]))
      mark.word += text[at];
    else
      mark.expands = false;
  }
  return mark;
}

// The lines from `at` to the end word; moves `at` past that line.
std::string read_here_text(std::string_view text, const HereMark& mark, std::size_t& at) {
  std::string body;
  while (at < text.size()) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = std::min(end + 1, text.size());
    while (mark.strips_tabs && !line.empty() && line[0] == '\t') line.remove_prefix(1);
    if (line == mark.word) break;
    body.append(line).append("\n");
  }
  return body;
}

class Lexer {
 public:
  Lexer(std::string_view text, const std::string& file, int line, bool in_comment = false)
      : text_(text), file_(file), line_(line), in_comment_(in_comment) {}

  std::vector<Command> read() {
    while (at_ < text_.size()) step();
    finish(Link::next);
    return std::move(commands_);
  }

 private:
  void step();
  void comment();
  void word();
  void redirect();
  void brackets();
  void end_line();
  void finish(Link following);

  [[noreturn]] void unclosed(const char* what) const {
    throw DataError("{}:{}: {} is not closed", file_, line_, what);
  }
  bool sees(std::string_view words) const { return text_.substr(at_, words.size()) == words; }
  void advance(std::size_t end) {
    line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + end, '\n'));
    at_ = end;
  }

  std::string_view text_;
  const std::string& file_;
  int line_;
  bool in_comment_;  // the text is that of an #SBATCH line
  std::size_t at_ = 0;
  int open_brackets_ = 0;
  Command command_;
  std::vector<HereMark> here_;  // opened on this line
  std::vector<Command> commands_;
};

void Lexer::finish(Link following) {
  if (!command_.words.empty() || command_.here) commands_.push_back(std::move(command_));
  command_ = {};
  command_.link = following;
}

void Lexer::step() {
  const char c = text_[at_];
  if (is_blank(c)) {
    ++at_;
  } else if (sees("\\\n") || sees("\\\r\n")) {
    advance(at_ + (text_[at_ + 1] == '\r' ? 3 : 2));
  } else if (c == '#') {
    comment();
  } else if (c == '\n') {
    end_line();
  } else if (sees("&&") || sees("||")) {
    finish(c == '&' ? Link::if_succeeded : Link::if_failed);
    at_ += 2;
  } else if (end_of_placeholder(text_, at_, /*quoted=*/false) != kNone) {
    word();
  } else if (c == '<' || c == '>' || sees("&>")) {
    redirect();
  } else if (c == ';' || c == '&' || c == '|') {
    finish(c == '|' ? Link::pipe : Link::next);
    ++at_;
  } else if (c == '(' || c == ')') {
    brackets();
  } else {
    word();
  }
}

void Lexer::comment() {
  const std::size_t end = std::min(text_.find('\n', at_), text_.size());
  const std::string_view line = text_.substr(at_, end - at_);
  at_ = end;
  constexpr std::string_view kMark = "#SBATCH ";
  if (!line.starts_with(kMark) || in_comment_) return;
  // Its words are lexed like one command.
  std::vector<Command> options = Lexer(line.substr(kMark.size()), file_, line_, true).read();
  if (options.empty()) return;
  options[0].words.insert(options[0].words.begin(), "#SBATCH");
  commands_.push_back(std::move(options[0]));
}

void Lexer::end_line() {
  ++at_;
  ++line_;
  for (const HereMark& mark : here_) {
    const std::size_t begin = at_;
    std::size_t end = at_;
    command_.here = HereDocument{read_here_text(text_, mark, end), mark.expands};
    at_ = begin;
    advance(end);
  }
  here_.clear();
  // `a &&` continues on the next line.
  if (!command_.words.empty() || command_.here) finish(Link::next);
}

void Lexer::redirect() {
  // The digit of `2>` is not an argument.
  const bool numbered = !command_.words.empty() && at_ > 0 && text_[at_] != '&' &&
                        (text_[at_ - 1] == '1' || text_[at_ - 1] == '2') &&
                        command_.words.back().size() == 1;
  if (numbered) command_.words.pop_back();
  const bool output = text_[at_] != '<';
  const bool appends = sees(">>");
  if (sees("<<<")) {
    at_ += 3;
  } else if (sees("<<")) {
    at_ += 2;
    here_.push_back(read_here_mark(text_, at_));
    return;
  } else {
    while (at_ < text_.size() && (text_[at_] == '>' || text_[at_] == '<' || text_[at_] == '&'))
      ++at_;
  }
  while (at_ < text_.size() && is_blank(text_[at_])) ++at_;
  const std::size_t words = command_.words.size();
  if (at_ < text_.size() && text_[at_] != '\n') word();
  if (command_.words.size() == words) return;
  if (output && !numbered) {
    command_.written_to = command_.words.back();
    command_.appends = appends;
  }
  command_.words.pop_back();
}

void Lexer::brackets() {
  // `((a > b))` is an arithmetic command; `for ((` is not.
  auto& before = command_.words;
  const std::size_t end = sees("((") ? end_of_brackets(text_, at_) : kNone;
  if (end != kNone && text_[end - 2] == ')' && (before.empty() || before.back() != "for")) {
    if (before.empty()) command_.line = line_;
    before.emplace_back("((");
    before.emplace_back(text_.substr(at_ + 2, end - at_ - 4));
    advance(end);
    return;
  }
  // `name ( )` begins a function; other brackets group commands.
  std::size_t next = at_ + 1;
  while (next < text_.size() && is_blank(text_[next])) ++next;
  const bool empty = text_[at_] == '(' && next < text_.size() && text_[next] == ')';
  auto& words = command_.words;
  if (empty && !words.empty()) {
    if (words.size() == 1) words.insert(words.begin(), "function");
    at_ = next + 1;
    return;
  }
  if (text_[at_] == '(') {
    ++open_brackets_;
  } else if (open_brackets_ > 0) {
    --open_brackets_;
  } else {
    command_.pattern = true;
  }
  finish(Link::next);
  ++at_;
}

void Lexer::word() {
  if (command_.words.empty()) command_.line = line_;
  const std::size_t begin = at_;
  std::size_t i = at_;
  while (i < text_.size()) {
    const char c = text_[i];
    if (const std::size_t end = end_of_placeholder(text_, i, /*quoted=*/false); end != kNone) {
      i = end;
      continue;
    }
    if (is_blank(c) || c == '\n' || c == ';' || c == '&' || c == '|' || c == '<' || c == '>' ||
        c == ')')
      break;
    if (c == kUnknownBegin) {
      i = end_of_mark(text_, i);
    } else if (c == '\\') {
      i += 2;
    } else if (c == '\'' || c == '"' || c == '`') {
      const std::size_t end = end_of_quote(text_, i);
      if (end == kNone) unclosed("a quote");
      i = end;
    } else if (text_.substr(i, 2) == "${") {
      const std::size_t end = text_.find('}', i);
      if (end == kNone) unclosed("'${'");
      i = end + 1;
    } else if (c == '(') {
      const std::string_view so_far = text_.substr(begin, i - begin);
      const auto equals = assignment_at(so_far);
      const bool array = equals && *equals + 1 == so_far.size();
      if (!array && (i == begin || text_[i - 1] != '$')) break;
      const std::size_t end = end_of_brackets(text_, i);
      if (end == kNone) unclosed("'('");
      i = end;
    } else {
      ++i;
    }
  }
  i = std::min(i, text_.size());
  command_.words.emplace_back(text_.substr(begin, i - begin));
  advance(i);
}

}  // namespace

std::size_t end_of_brackets(std::string_view text, std::size_t open, int nesting) {
  if (nesting > kMaxNesting)
    throw DataError("brackets and quotes are nested more than {} deep", kMaxNesting);
  int depth = 0;
  bool word_begins = true;
  std::vector<HereMark> here;
  for (std::size_t i = open; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins = word_begins;
    word_begins = is_blank(c) || c == '\n';
    if (c == kUnknownBegin) {
      i = end_of_mark(text, i) - 1;
    } else if (c == '\\') {
      ++i;
    } else if (c == '\'' || c == '"') {
      const std::size_t end = end_of_quote(text, i, nesting);
      if (end == kNone) return kNone;
      i = end - 1;
    } else if (c == '#' && begins) {
      i = std::min(text.find('\n', i), text.size()) - 1;
    } else if (text.substr(i, 2) == "<<" && text.substr(i, 3) != "<<<") {
      i += 2;
      here.push_back(read_here_mark(text, i));
      --i;
    } else if (c == '\n' && !here.empty()) {
      ++i;
      for (const HereMark& mark : here) read_here_text(text, mark, i);
      here.clear();
      --i;
    } else if (c == '(') {
      ++depth;
    } else if (c == ')' && --depth == 0) {
      return i + 1;
    }
  }
  return kNone;
}

std::size_t end_of_placeholder(std::string_view text, std::size_t at, bool quoted) {
  if (text[at] != '<' || at + 1 >= text.size()) return kNone;
  if (!is_name(text[at + 1]) && text[at + 1] != '/') return kNone;
  const std::size_t close = text.find_first_of("<>\n|;&$`\"'", at + 1);
  if (close == kNone || text[close] != '>') return kNone;
  const std::string_view inside = text.substr(at + 1, close - at - 1);
  // `<in >out`, `<in 2>err` and `<in>>out` are redirections.
  const std::size_t last_word = inside.find_last_of(" \t") + 1;
  const std::string_view last = inside.substr(last_word);
  const bool has_space = last_word > 0;
  const char next = close + 1 < text.size() ? text[close + 1] : ' ';
  const bool is_number = has_space && last.find_first_not_of("0123456789") == kNone;
  if (is_number || next == '>' || next == '&') return kNone;
  if (has_space) return close + 1;
  const bool glued = at == 0 || (!is_blank(text[at - 1]) && text[at - 1] != '\n');
  return !quoted && (glued || is_blank(next) || next == '\n') ? close + 1 : kNone;
}

std::optional<std::size_t> assignment_at(std::string_view text) {
  if (text.empty() || !is_name(text[0]) || std::isdigit(static_cast<unsigned char>(text[0])))
    return std::nullopt;
  std::size_t i = 0;
  while (i < text.size() && is_name(text[i])) ++i;
  if (i < text.size() && text[i] == '[') i = std::min(text.find(']', i), text.size() - 1) + 1;
  if (text.substr(i, 2) == "+=") ++i;
  if (i < text.size() && text[i] == '=') return i;
  return std::nullopt;
}

std::vector<Command> read_commands(std::string_view text, const std::string& file, int first_line) {
  return Lexer(text, file, first_line).read();
}

}  // namespace trireme::convert::shell
