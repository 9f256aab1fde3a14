#include "tokenizer/preprocess/preprocess.hpp"

#include <unicode/uchar.h>

#include <algorithm>

#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {
namespace {

int break_property(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c), UCHAR_SENTENCE_BREAK);
}

bool is_space(char32_t c) { return u_isUWhiteSpace(static_cast<UChar32>(c)); }

bool is_letter(char32_t c) { return u_isalpha(static_cast<UChar32>(c)); }

bool is_digit(char32_t c) { return u_isdigit(static_cast<UChar32>(c)); }

bool is_period(char32_t c) { return break_property(c) == U_SB_ATERM; }

bool is_terminator(char32_t c) {
  return is_period(c) || break_property(c) == U_SB_STERM || c == 0x2026;
}

/// Terminators of scripts without blanks between words.
bool is_ideographic_terminator(char32_t c) {
  return c == 0x3002 || c == 0xFF01 || c == 0xFF0E || c == 0xFF1F || c == 0xFF61;
}

bool is_dash(char32_t c) { return u_charType(static_cast<UChar32>(c)) == U_DASH_PUNCTUATION; }

bool is_quote_or_bracket(char32_t c) { return break_property(c) == U_SB_CLOSE; }

/// A position in a text, with the character there.
class Cursor {
 public:
  Cursor(std::string_view text, std::size_t at) : text_(text), at_(at) { read(); }
  bool done() const { return at_ >= text_.size(); }
  std::size_t at() const { return at_; }
  char32_t operator*() const { return step_.code_point; }
  Cursor& operator++() {
    at_ += step_.length;
    read();
    return *this;
  }
  template <typename Predicate>
  void skip(Predicate&& predicate) {
    while (!done() && predicate(**this)) ++*this;
  }

 private:
  void read() { step_ = done() ? Utf8Step{0, false, 0} : read_utf8(text_, at_); }
  std::string_view text_;
  std::size_t at_;
  Utf8Step step_{};
};

/// Terminators with the quotes, brackets and references after them.
struct Ending {
  std::size_t begin;  ///< of the terminators
  std::size_t end;
  bool one_period;
  bool ideographic;
};

Ending read_ending(std::string_view text, std::size_t at) {
  Cursor cursor(text, at);
  Ending ending{at, at, is_period(*cursor), is_ideographic_terminator(*cursor)};
  for (++cursor; !cursor.done() && is_terminator(*cursor); ++cursor) {
    ending.one_period = false;
    ending.ideographic = ending.ideographic || is_ideographic_terminator(*cursor);
  }
  while (!cursor.done() && is_quote_or_bracket(*cursor)) {
    const bool reference = *cursor == '[';
    const auto type = u_charType(static_cast<UChar32>(*cursor));
    const bool opens = type == U_START_PUNCTUATION || type == U_INITIAL_PUNCTUATION;
    if (opens && ending.ideographic) break;
    Cursor after = cursor;
    ++after;
    if (reference) {
      after.skip(is_digit);
      if (after.done() || *after != ']') break;
      ++after;
    }
    cursor = after;
  }
  ending.end = cursor.at();
  // French sets a blank before its closing quotes, and another one follows them.
  cursor.skip([](char32_t c) { return c == ' ' || c == 0xA0 || c == 0x202F; });
  if (!cursor.done() && *cursor == 0xBB) {
    ++cursor;
    if (cursor.done() || is_space(*cursor)) ending.end = cursor.at();
  }
  return ending;
}

/// The word before `end`, back to the white space, quote, bracket or dash before it, or `begin`.
std::string_view word_before(std::string_view text, std::size_t begin, std::size_t end) {
  std::size_t start = end;
  while (start > begin) {
    std::size_t at = start - 1;
    while (at > begin && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    const char32_t c = read_utf8(text, at).code_point;
    const bool apostrophe = c == '\'' || c == 0x2019;
    if (is_space(c) || (is_quote_or_bracket(c) && !apostrophe) || (is_dash(c) && c != '-')) break;
    start = at;
  }
  return text.substr(start, end - start);
}

bool contains(const SentenceRules::Words& words, std::string_view word) {
  if (words.contains(word)) return true;
  if (word.empty()) return false;
  const Utf8Step first = read_utf8(word, 0);
  std::string lower;
  append_utf8(lower, static_cast<char32_t>(u_tolower(static_cast<UChar32>(first.code_point))));
  return words.contains(lower.append(word.substr(first.length)));
}

/// Whether `word` is a letter, or letters with periods between them: an initial or acronym.
bool is_initials(std::string_view word) {
  bool letter = false;
  for (Cursor cursor(word, 0); !cursor.done(); ++cursor) {
    if (!letter && *cursor == '-' && cursor.at() > 0) continue;  // J.-J.
    if (letter ? *cursor != '.' : !is_letter(*cursor)) return false;
    letter = !letter;
  }
  return letter;
}

bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// The text after an ending.
class Continuation {
 public:
  Continuation(std::string_view text, std::size_t end) : cursor_(text, end) {
    cursor_.skip(is_space);
    space_ = cursor_.at() > end;
    done_ = cursor_.done();
    cursor_.skip([](char32_t c) {
      return is_quote_or_bracket(c) || is_dash(c) || is_space(c) || c == 0xBF || c == 0xA1;
    });
    const std::size_t begin = cursor_.at();
    first_ = cursor_.done() ? 0 : *cursor_;
    cursor_.skip(is_letter);
    word_ = text.substr(begin, cursor_.at() - begin);
  }
  bool space() const { return space_; }      ///< whether white space comes first
  bool done() const { return done_; }        ///< whether there is nothing else
  char32_t first() const { return first_; }  ///< after white space, quotes, brackets and dashes
  std::string_view word() const { return word_; }  ///< letters from there; may be empty

  /// Whether a number comes next, or a single capital ("Fig. A", "Vol. II").
  bool number() const {
    if (is_digit(first_)) return true;
    return !word_.empty() &&
           (word_.size() == 1 || word_.find_first_not_of("IVXLC") == std::string_view::npos);
  }

 private:
  Cursor cursor_;
  bool space_, done_;
  char32_t first_;
  std::string_view word_;
};

/// Rules 4 and 5: whether the one period after `word` ends the sentence, which `word` starts or
/// not.
bool period_ends(std::string_view word, bool starts, const Continuation& next,
                 const SentenceRules& rules) {
  const bool starter = rules.starters.contains(next.word());
  if (is_number(word)) {
    if (starts && word.size() <= 3) return false;
    return !rules.ordinal_period || word.size() > 2 || starter;
  }
  const bool capital = !word.empty() && u_isupper(static_cast<UChar32>(*Cursor(word, 0)));
  if (capital && is_initials(word)) return starter;
  if (contains(rules.never_last, word)) return false;
  if (contains(rules.before_number, word)) return starter || !next.number();
  if (contains(rules.perhaps_last, word) || is_initials(word)) return starter;
  return true;
}

/// Rules 2 to 5, for the sentence that starts at `begin`.
bool ends_sentence(std::string_view text, std::size_t begin, const Ending& ending,
                   const SentenceRules& rules) {
  const Continuation next(text, ending.end);
  if (next.done() || ending.ideographic) return true;
  if (!next.space()) return false;
  const char32_t c = next.first();
  if (u_islower(static_cast<UChar32>(c)) || c == ',' || c == ';' || c == ':') return false;
  if (!ending.one_period) return true;
  const std::string_view word = word_before(text, begin, ending.begin);
  return period_ends(word, word.data() == text.data() + begin, next, rules);
}

/// Whether a blank line starts with the newline at `at`.
bool is_blank_line(std::string_view text, std::size_t at) {
  const std::size_t next = text.find_first_not_of(" \t\r", at + 1);
  return next != std::string_view::npos && text[next] == '\n';
}

}  // namespace

std::vector<std::string_view> split_sentences(std::string_view text, const SentenceRules& rules,
                                              bool keep_newlines) {
  std::vector<std::string_view> sentences;
  const auto after_space = [&](std::size_t at) {
    Cursor cursor(text, at);
    cursor.skip(is_space);
    return cursor.at();
  };
  std::size_t begin = after_space(0);
  std::size_t kept = 0;  // where the kept white space before the sentence begins
  const auto end_at = [&](std::size_t end) {
    const std::size_t next = after_space(end);
    if (end > begin)
      sentences.push_back(keep_newlines ? text.substr(kept, next - kept)
                                        : text.substr(begin, end - begin));
    begin = kept = next;
    return next;
  };
  std::size_t last = begin;  // the end of the last character that is not white space
  for (std::size_t at = begin; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    if (step.code_point == '\n' && is_blank_line(text, at)) {
      last = at = end_at(last);
    } else if (is_terminator(step.code_point)) {
      const Ending ending = read_ending(text, at);
      at = last = ending.end;
      if (ends_sentence(text, begin, ending, rules)) at = last = end_at(ending.end);
    } else {
      at += step.length;
      if (!is_space(step.code_point)) last = at;
    }
  }
  end_at(last);
  return sentences;
}

std::string standardize_punctuation(std::string_view text) {
  std::string plain;
  const auto append = [&](char32_t c, std::string_view bytes) {
    if (c == 0x2018 || c == 0x2019 || c == 0x201A || c == 0x201B || c == 0x2032 || c == 0x02BC ||
        c == 0x2039 || c == 0x203A || c == 0x00B4)
      plain += '\'';
    else if (c == 0x201C || c == 0x201D || c == 0x201E || c == 0x201F || c == 0x2033 ||
             c == 0x00AB || c == 0x00BB)
      plain += '"';
    else if (is_dash(c) || c == 0x2212)
      plain += '-';
    else if (c == 0x2026)
      plain += "...";
    else if (u_charType(static_cast<UChar32>(c)) == U_SPACE_SEPARATOR || c == '\t')
      plain += ' ';
    else if (c != 0xAD && c != 0x200B && c != 0xFEFF && c != 0x2060)
      plain += bytes;
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::string_view two = text.substr(at, 2);
    if (two == "``" || two == "''") {
      plain += '"';
      at += 2;
      continue;
    }
    const Utf8Step step = read_utf8(text, at);
    append(step.code_point, text.substr(at, step.length));
    at += step.length;
  }
  return plain;
}

}  // namespace trireme::tokenizer
