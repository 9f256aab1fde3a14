// The tokenizer of Yuan 1.0 and CPM (EncDecTokenizer), and jieba's segmentation of Chinese text
// into words.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/kinds.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::tokenizer {

std::u32string decode_text(std::string_view text) {
  std::u32string result;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = read_utf8(text, at);
    result.push_back(step.code_point);
    at += step.length;
  }
  return result;
}

std::string encode_text(std::u32string_view text) {
  std::string result;
  for (const char32_t c : text) append_utf8(result, c);
  return result;
}

namespace {

using Text = std::u32string;
using TextView = std::u32string_view;
using TakeWord = std::function<void(TextView)>;

bool is_alphanumeric(char32_t c) {
  return (c >= U'0' && c <= U'9') || (c >= U'a' && c <= U'z') || (c >= U'A' && c <= U'Z');
}
bool is_segmented(char32_t c) { return c >= 0x4E00 && c <= 0x9FD5; }

/// Calls `take(run, inside)` with the longest runs of characters that are, or are not, `inside`.
template <typename Inside, typename Take>
void for_each_run(TextView text, const Inside& inside, const Take& take) {
  for (std::size_t at = 0; at < text.size();) {
    const bool kind = inside(text[at]);
    std::size_t end = at + 1;
    while (end < text.size() && inside(text[end]) == kind) ++end;
    take(text.substr(at, end - at), kind);
    at = end;
  }
}

}  // namespace

class Jieba::Model {
  /// The numbers of a Python file `P = {'B': {'\u4e00': -3.65, ...}, ...}`: by the path of its
  /// keys,
  /// {"B", "\u4e00"}.
  class PythonTable {
   public:
    explicit PythonTable(const std::filesystem::path& path) : content_(read_regular_file(path)) {
      at_ = content_.find('{');
      if (at_ == std::string::npos || !read_table(U"") || numbers_.empty())
        throw DataError("{}: expected a table P = {{'B': number or {{'character': number}}}}",
                        path.string());
    }
    /// The number under the keys `outer` and `inner` (0 for none), or `otherwise`.
    double get(char32_t outer, char32_t inner, double otherwise) const {
      const auto found = numbers_.find(inner ? Text{outer, inner} : Text{outer});
      return found == numbers_.end() ? otherwise : found->second;
    }

   private:
    void skip_blanks() {
      while (at_ < content_.size() && (content_[at_] <= ' ' || content_[at_] == ',')) ++at_;
    }
    bool read_table(const Text& path) {
      for (++at_;;) {
        skip_blanks();
        if (at_ >= content_.size()) return false;
        if (content_[at_] == '}') return ++at_, true;
        Text key = path;
        if (!read_key(key)) return false;
        skip_blanks();
        if (at_ >= content_.size() || content_[at_++] != ':') return false;
        skip_blanks();
        if (at_ < content_.size() && content_[at_] == '{') {
          if (!read_table(key)) return false;
          continue;
        }
        double number = 0;
        const char* end = content_.data() + content_.size();
        const auto [stop, error] = std::from_chars(content_.data() + at_, end, number);
        if (error != std::errc()) return false;
        at_ = static_cast<std::size_t>(stop - content_.data());
        numbers_[key] = number;
      }
    }
    bool read_key(Text& key) {
      if (content_[at_] != '\'') return false;
      const std::size_t end = content_.find('\'', at_ + 1);
      if (end == std::string::npos) return false;
      const std::string_view word = std::string_view(content_).substr(at_ + 1, end - at_ - 1);
      at_ = end + 1;
      std::uint32_t code = 0;
      if (word.starts_with("\\u") &&
          std::from_chars(word.data() + 2, word.data() + word.size(), code, 16).ec == std::errc())
        key.push_back(code);
      else
        key += decode_text(word);
      return true;
    }

    std::string content_;
    std::size_t at_ = 0;
    std::unordered_map<Text, double> numbers_;
  };

 public:
  explicit Model(const std::filesystem::path& folder)
      : start_(folder / "finalseg" / "prob_start.py"),
        transition_(folder / "finalseg" / "prob_trans.py"),
        emission_(folder / "finalseg" / "prob_emit.py") {
    const std::filesystem::path path = folder / "dict.txt";
    const std::string content = read_regular_file(path);
    std::string_view rest = content;
    for (int line = 1; !rest.empty(); ++line) {
      const std::string_view entry = rest.substr(0, rest.find('\n'));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const std::size_t blank = entry.find(' ');
      double count = 0;
      if (blank == std::string_view::npos ||
          std::from_chars(entry.data() + blank + 1, entry.data() + entry.size(), count).ec !=
              std::errc())
        throw DataError("{}:{}: expected a word and its count", path.string(), line);
      const Text word = decode_text(entry.substr(0, blank));
      counts_[word] = count;
      total_ += count;
      for (std::size_t size = 1; size < word.size(); ++size)
        counts_.try_emplace(word.substr(0, size));
    }
    if (counts_.empty()) throw DataError("{}: the dictionary is empty", path.string());
  }

  /// Calls `take` with every word of `text`, which they join to.
  void cut(TextView text, const TakeWord& take) const {
    const auto in_word = [](char32_t c) {
      return is_segmented(c) || is_alphanumeric(c) ||
             TextView(U"+#&._%-").find(c) != TextView::npos;
    };
    for_each_run(text, in_word, [&](TextView run, bool inside) {
      if (inside) return cut_block(run, take);
      for (std::size_t at = 0; at < run.size(); ++at) {
        const std::size_t size = run.substr(at, 2) == U"\r\n" ? 2 : 1;
        take(run.substr(at, size));
        at += size - 1;
      }
    });
  }

 private:
  double count_of(TextView word) const {
    const auto found = counts_.find(Text(word));
    return found == counts_.end() ? -1 : found->second;
  }

  /// For each place the end of the word that begins there on the most probable path.
  std::vector<std::size_t> best_path(TextView text) const {
    const double log_total = std::log(total_);
    std::vector<double> best(text.size() + 1, 0);
    std::vector<std::size_t> ends(text.size());
    for (std::size_t at = text.size(); at-- > 0;) {
      bool found = false;
      const auto offer = [&](std::size_t end, double count) {
        const double value = std::log(count > 0 ? count : 1) - log_total + best[end];
        if (found && value < best[at]) return;  // of equal ones the longer word
        best[at] = value;
        ends[at] = end;
        found = true;
      };
      for (std::size_t end = at + 1; end <= text.size(); ++end) {
        const double count = count_of(text.substr(at, end - at));
        if (count < 0) break;
        if (count > 0) offer(end, count);
      }
      if (!found) offer(at + 1, count_of(text.substr(at, 1)));
    }
    return ends;
  }

  void cut_block(TextView text, const TakeWord& take) const {
    const std::vector<std::size_t> ends = best_path(text);
    std::size_t single = 0;  // where the current run of single characters began
    const auto end_singles = [&](std::size_t end) {
      const TextView run = text.substr(single, end - single);
      if (run.size() == 1) take(run);
      if (run.size() > 1 && count_of(run) > 0)
        for (std::size_t i = 0; i < run.size(); ++i) take(run.substr(i, 1));
      else if (run.size() > 1)
        cut_unknown(run, take);
    };
    for (std::size_t at = 0; at < text.size(); at = ends[at]) {
      if (ends[at] == at + 1) continue;
      end_singles(at);
      take(text.substr(at, ends[at] - at));
      single = ends[at];
    }
    end_singles(text.size());
  }

  /// Chinese characters by the hidden Markov model; numbers and Latin words whole.
  void cut_unknown(TextView text, const TakeWord& take) const {
    for_each_run(text, is_segmented, [&](TextView run, bool chinese) {
      if (chinese) return cut_by_model(run, take);
      std::size_t begin = 0;  // of what is no Latin word
      for (std::size_t at = 0; at < run.size();) {
        const std::size_t size = latin_word(run.substr(at));
        if (size == 0) {
          ++at;
          continue;
        }
        if (at > begin) take(run.substr(begin, at - begin));
        take(run.substr(at, size));
        begin = at += size;
      }
      if (begin < run.size()) take(run.substr(begin));
    });
  }

  /// Length of [a-zA-Z0-9]+(\.\d+)?%? at the start of `text`.
  static std::size_t latin_word(TextView text) {
    const auto digit = [&](std::size_t i) {
      return i < text.size() && text[i] >= U'0' && text[i] <= U'9';
    };
    std::size_t size = 0;
    while (size < text.size() && is_alphanumeric(text[size])) ++size;
    if (size == 0) return 0;
    if (size < text.size() && text[size] == U'.' && digit(size + 1))
      for (++size; digit(size);) ++size;
    return size + (size < text.size() && text[size] == U'%');
  }

  void cut_by_model(TextView text, const TakeWord& take) const {
    // The Viterbi algorithm. Of equal paths that whose state has the later letter wins.
    constexpr std::array<char32_t, 4> kStates = {U'B', U'E', U'M', U'S'};
    constexpr std::array<std::array<int, 2>, 4> kBefore = {{{1, 3}, {0, 2}, {0, 2}, {1, 3}}};
    constexpr double kNever = -3.14e100;
    std::vector<std::array<int, 4>> from(text.size());
    std::array<double, 4> now{};
    for (int s = 0; s < 4; ++s)
      now[s] = start_.get(kStates[s], 0, kNever) + emission_.get(kStates[s], text[0], kNever);
    for (std::size_t at = 1; at < text.size(); ++at) {
      std::array<double, 4> next{};
      for (int s = 0; s < 4; ++s) {
        const double emitted = emission_.get(kStates[s], text[at], kNever);
        const auto value = [&](int before) {
          return now[before] + transition_.get(kStates[before], kStates[s], kNever) + emitted;
        };
        const auto [first, second] = kBefore[s];
        from[at][s] = value(first) > value(second) ? first : second;
        next[s] = value(from[at][s]);
      }
      now = next;
    }
    std::vector<int> states(text.size());
    states.back() = now[1] > now[3] ? 1 : 3;
    for (std::size_t at = text.size() - 1; at > 0; --at) states[at - 1] = from[at][states[at]];
    std::size_t begin = 0, next = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
      if (states[at] == 0) begin = at;
      if (states[at] == 1 || states[at] == 3) {
        const std::size_t first = states[at] == 1 ? begin : at;
        take(text.substr(first, at + 1 - first));
        next = at + 1;
      }
    }
    if (next < text.size()) take(text.substr(next));
  }

  PythonTable start_, transition_, emission_;
  std::unordered_map<Text, double> counts_;  ///< of words; 0 for beginnings of words
  double total_ = 0;
};

Jieba::Jieba(const std::filesystem::path& folder) : model_(std::make_unique<const Model>(folder)) {}
Jieba::~Jieba() = default;

void Jieba::cut(TextView text, const TakeWord& take) const { model_->cut(text, take); }

// ---- EncDecTokenizer

namespace {

bool has_chinese(TextView text) {
  return std::ranges::any_of(text, [](char32_t c) { return c >= 0x4E00 && c <= 0x9FFF; });
}

constexpr char32_t kBlank = 0x2582, kLineBreak = 0x2583;
constexpr std::size_t kMaxCharacters = 200;

Vocabulary read_vocabulary(const std::filesystem::path& path) {
  const bool json = read_regular_file(path).starts_with('{');
  return Vocabulary(path, json ? Vocabulary::Format::json : Vocabulary::Format::lines);
}

class EncDecTokenizer : public Tokenizer {
 public:
  EncDecTokenizer(const std::filesystem::path& vocab, const std::filesystem::path& jieba)
      : vocabulary_(read_vocabulary(vocab)), jieba_(jieba) {
    const auto unknown = vocabulary_.find("<unk>");
    if (!unknown)
      throw DataError("{}: an encdec vocabulary needs the token '<unk>'", vocab.string());
    unknown_ = *unknown;
    blank_ = vocabulary_.find(encode_text(Text{kBlank})).value_or(-1);
    for (std::int32_t id = 0; id < vocabulary_.size(); ++id)
      chinese_.push_back(has_chinese(decode_text(vocabulary_.token(id))));
  }

  std::string_view name() const override { return "encdec"; }
  std::int32_t vocab_size() const override { return vocabulary_.size(); }
  std::optional<std::int32_t> eod() const override { return vocabulary_.find("<eod>"); }
  std::uint64_t hash() const override { return vocabulary_.hash(); }

  std::vector<std::int32_t> encode(std::string_view text) const override {
    std::vector<std::int32_t> ids;
    jieba_.cut(prepare(text), [&](TextView word) { add_pieces(word, ids); });
    std::vector<std::int32_t> kept;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const bool inside = i > 0 && i + 1 < ids.size();
      if (inside && ids[i] == blank_ && is_latin(ids[i - 1]) && is_latin(ids[i + 1])) continue;
      kept.push_back(ids[i]);
    }
    return kept;
  }

  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    std::int32_t before = -1;
    for (const std::int32_t id : ids) {
      check_id(name(), id, vocab_size());
      std::string_view piece = vocabulary_.token(id);
      const bool continues = piece.starts_with("##") && piece.size() > 2;
      if (continues)
        piece.remove_prefix(2);
      else if (before >= 0 && is_latin(before) && is_latin(id))
        text += ' ';
      for (const char32_t c : decode_text(piece))
        append_utf8(text, c == kBlank ? U' ' : c == kLineBreak ? U'\n' : c);
      before = id;
    }
    return text;
  }

 private:
  /// Whether blanks next to this piece vanish: it has no Chinese character and is no blank.
  bool is_latin(std::int32_t id) const {
    return id != blank_ && !chinese_[static_cast<std::size_t>(id)];
  }

  static Text prepare(std::string_view text) {
    Text result = decode_text(text);
    const auto strip = [&](TextView set) {
      const std::size_t begin = std::min(result.find_first_not_of(set), result.size());
      const std::size_t end = result.find_last_not_of(set);
      result = begin == result.size() ? Text() : result.substr(begin, end + 1 - begin);
    };
    strip(U" \t\n\r\v\f\u0085\u00A0\u2028\u2029\u3000");
    strip(U"<n>");
    Text lines;
    for (std::size_t at = 0; at < result.size(); ++at) {
      const bool line_break = TextView(result).substr(at, 3) == U"<n>";
      lines.push_back(line_break ? U'\n' : result[at]);
      at += line_break ? 2 : 0;
    }
    return lines;
  }

  void add_pieces(TextView word, std::vector<std::int32_t>& ids) const {
    if (word.size() > kMaxCharacters) return ids.push_back(unknown_);
    Text characters(word);
    for (char32_t& c : characters) c = c == U' ' ? kBlank : c == U'\n' ? kLineBreak : c;
    for (std::size_t at = 0; at < characters.size();) {
      std::size_t end = characters.size();
      std::optional<std::int32_t> id;
      for (; end > at && !id; --end) {
        const Text part = characters.substr(at, end - at);
        id = vocabulary_.find((at > 0 && !has_chinese(part) ? "##" : "") + encode_text(part));
      }
      ids.push_back(id.value_or(unknown_));
      at = id ? end + 1 : at + 1;
    }
  }

  Vocabulary vocabulary_;
  Jieba jieba_;
  std::int32_t unknown_ = 0;
  std::int32_t blank_ = -1;
  std::vector<bool> chinese_;  ///< by id
};

}  // namespace

std::unique_ptr<Tokenizer> make_encdec_tokenizer(const std::filesystem::path& vocab,
                                                 const std::filesystem::path& jieba) {
  return std::make_unique<EncDecTokenizer>(vocab, jieba);
}

}  // namespace trireme::tokenizer
