#include <algorithm>
#include <cctype>
#include <iterator>

#include "convert/shell/script.hpp"
#include "core/error.hpp"

namespace trireme::convert::shell {
namespace {

// Words after which a command may begin.
bool is_keyword(std::string_view word) {
  constexpr std::string_view kWords[] = {"if", "elif", "then", "else", "while", "until",
                                         "do", "!",    "{",    "(",    "time"};
  return std::find(std::begin(kWords), std::end(kWords), word) != std::end(kWords);
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
  void subshell();
  void condition();
  void regular_expression();
  void end_line();
  void finish(Link following);
  // Marks the command before a `&`.
  void leave_in_background() {
    const bool is_block = command_.words.empty() && !commands_.empty();
    (is_block ? commands_.back() : command_).background = true;
  }

  [[noreturn]] void unclosed(const char* what) const {
    throw DataError("{}:{}: {} is not closed", file_, line_, what);
  }
  bool begins_command() const;
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
  bool pattern_next_ = false;  // a pattern of a `case` follows
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
  } else if (sees(";&") || sees(";;&")) {
    throw DataError("{}:{}: ';&' of a case is not supported (end the branch with ';;')", file_,
                    line_);
  } else if (sees(";;")) {
    finish(Link::next);
    pattern_next_ = true;
    at_ += 2;
  } else if (end_of_placeholder(text_, at_, /*quoted=*/false) != kNone) {
    word();
  } else if (c == '<' || c == '>' || sees("&>")) {
    redirect();
  } else if (c == ';' || c == '&' || c == '|') {
    if (c == '&') leave_in_background();
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
  const bool here_string = sees("<<<");
  if (here_string) {
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
  if (here_string) {
    command_.here = HereDocument{command_.words.back(), true, true};
  } else if (output && !numbered) {
    command_.written_to = command_.words.back();
    command_.appends = appends;
  }
  command_.words.pop_back();
}

// Whether the next word may be the name of a command: only keywords stand before it.
bool Lexer::begins_command() const {
  const auto& words = command_.words;
  for (std::size_t i = 0; i < words.size(); ++i) {
    // After `function NAME`, the head of a function, a body follows.
    if (words[i] == "function")
      ++i;
    else if (!is_keyword(words[i]))
      return false;
  }
  return true;
}

void Lexer::brackets() {
  auto& words = command_.words;
  // `((a > b))` is an arithmetic command.
  const bool is_for = !words.empty() && words.back() == "for";
  const std::size_t end =
      sees("((") && (is_for || begins_command()) ? end_of_brackets(text_, at_) : kNone;
  if (end != kNone && text_[end - 2] == ')') {
    if (words.empty()) command_.line = line_;
    words.emplace_back("((");
    words.emplace_back(text_.substr(at_ + 2, end - at_ - 4));
    advance(end);
    return;
  }
  // `name ( )` begins a function.
  std::size_t next = at_ + 1;
  while (next < text_.size() && is_blank(text_[next])) ++next;
  const bool empty = text_[at_] == '(' && next < text_.size() && text_[next] == ')';
  if (empty && !words.empty()) {
    if (std::all_of(words.begin(), words.end() - 1, is_keyword))
      words.insert(words.end() - 1, "function");
    at_ = next + 1;
    return;
  }
  if (text_[at_] == ')' && (pattern_next_ || open_brackets_ == 0)) {
    command_.pattern = true;
    pattern_next_ = false;
    finish(Link::next);
  } else if (!pattern_next_) {
    subshell();
  }
  ++at_;
}

// The `(` or `)` of a subshell is a command, unless it follows keywords.
void Lexer::subshell() {
  const bool opens = text_[at_] == '(';
  open_brackets_ += opens ? 1 : -1;
  if (!opens || !begins_command()) finish(Link::next);
  if (command_.words.empty()) command_.line = line_;
  command_.words.emplace_back(opens ? "(" : ")");
  finish(Link::next);
}

// The words of `[[ ... ]]`, in which `&&`, `<` and brackets are operators of the test.
void Lexer::condition() {
  const int first_line = line_;
  while (at_ < text_.size()) {
    const std::size_t before = at_;
    if (is_blank(text_[at_]) || text_[at_] == '\n') {
      advance(at_ + 1);
    } else if (sees("\\\n")) {
      advance(at_ + 2);
    } else if (sees("&&") || sees("||")) {
      command_.words.emplace_back(text_.substr(at_, 2));
      at_ += 2;
    } else if (std::string_view("()<>").find(text_[at_]) != kNone) {
      command_.words.emplace_back(text_.substr(at_++, 1));
    } else if (command_.words.back() == "=~") {
      regular_expression();
    } else {
      word();
      if (command_.words.back() == "]]") return;
    }
    // Another pattern, such as `@(a|b)`, is no condition that test_raw() reads.
    if (at_ == before && text_[at_] == ';') break;
    if (at_ == before) command_.words.emplace_back(text_.substr(at_++, 1));
  }
  throw DataError("{}:{}: '[[' is not closed", file_, first_line);
}

// The word after `=~`: it ends at a blank outside of quotes and brackets.
void Lexer::regular_expression() {
  int depth = 0;
  std::size_t i = at_;
  for (; i < text_.size() && text_[i] != '\n'; ++i) {
    const char c = text_[i];
    if (is_blank(c) && depth <= 0) break;
    if (c == '(') ++depth;
    if (c == ')') --depth;
    if (c == '\\') ++i;
    if (c != '"' && c != '\'') continue;
    const std::size_t end = end_of_quote(text_, i);
    if (end == kNone) unclosed("a quote");
    i = end - 1;
  }
  i = std::min(i, text_.size());
  command_.words.emplace_back(text_.substr(at_, i - at_));
  advance(i);
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
    } else if (c == '\'' || c == '"' || c == '`' || begins_escaped_quote(text_, i)) {
      const std::size_t end = end_of_quote(text_, i);
      if (end == kNone) unclosed("a quote");
      i = end;
    } else if (text_.substr(i, 2) == "${") {
      const std::size_t end = end_of_braces(text_, i + 1, /*quoted=*/false);
      if (end == kNone) unclosed("'${'");
      i = end;
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
  const bool may_begin = begins_command();
  command_.words.emplace_back(text_.substr(begin, i - begin));
  advance(i);
  const std::string& word = command_.words.back();
  if (word == "[[" && may_begin) return condition();
  if (word == "esac" && may_begin) pattern_next_ = false;
  const std::size_t size = command_.words.size();
  if (word == "in" && size >= 3 && command_.words[size - 3] == "case") pattern_next_ = true;
}

}  // namespace

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
