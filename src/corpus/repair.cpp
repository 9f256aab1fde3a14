#include "corpus/corpus.hpp"

#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "core/error.hpp"
#include "tokenizer/tokenizer.hpp"

namespace trireme::corpus {
namespace {

using tokenizer::append_utf8;
using tokenizer::read_utf8;

constexpr int kMaxRounds = 8;  ///< mojibake of mojibake is rarely more than three deep

/// Windows-1252's characters of the bytes 0x80 to 0x9F; those that it lacks are C1 controls.
constexpr std::array<char16_t, 32> kWindows1252 = {
    0x20AC, 0x0081, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0x008D, 0x017D, 0x008F, 0x0090, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0x009D, 0x017E, 0x0178};

/// The byte that Latin-1 or Windows-1252 reads as `c`; -1 when there is none.
int byte_of(char32_t c) {
  if (c < 0x100) return static_cast<int>(c);
  if (c > 0x2122) return -1;
  const auto found = std::ranges::find(kWindows1252, c);
  return found == kWindows1252.end() ? -1 : 0x80 + static_cast<int>(found - kWindows1252.begin());
}

// ---------------------------------------------------------------------------- HTML entities

constexpr const char* kLatin1Entities =
    "nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn "
    "sup2 sup3 acute micro para middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave "
    "Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave Eacute Ecirc Euml Igrave Iacute Icirc Iuml "
    "ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc Uuml Yacute THORN "
    "szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave "
    "iacute icirc iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute "
    "ucirc uuml yacute thorn yuml";
constexpr const char* kGreekEntities =
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho "
    "sigmaf "
    "sigma tau upsilon phi chi psi omega";
struct Entity {
  const char* name;
  char32_t character;
};
constexpr Entity kEntities[] = {
    {"quot", '"'},      {"amp", '&'},       {"apos", '\''},     {"lt", '<'},
    {"gt", '>'},        {"OElig", 0x152},   {"oelig", 0x153},   {"Scaron", 0x160},
    {"scaron", 0x161},  {"Yuml", 0x178},    {"fnof", 0x192},    {"circ", 0x2C6},
    {"tilde", 0x2DC},   {"ensp", 0x2002},   {"emsp", 0x2003},   {"thinsp", 0x2009},
    {"zwnj", 0x200C},   {"zwj", 0x200D},    {"lrm", 0x200E},    {"rlm", 0x200F},
    {"ndash", 0x2013},  {"mdash", 0x2014},  {"lsquo", 0x2018},  {"rsquo", 0x2019},
    {"sbquo", 0x201A},  {"ldquo", 0x201C},  {"rdquo", 0x201D},  {"bdquo", 0x201E},
    {"dagger", 0x2020}, {"Dagger", 0x2021}, {"bull", 0x2022},   {"hellip", 0x2026},
    {"permil", 0x2030}, {"prime", 0x2032},  {"Prime", 0x2033},  {"lsaquo", 0x2039},
    {"rsaquo", 0x203A}, {"oline", 0x203E},  {"frasl", 0x2044},  {"euro", 0x20AC},
    {"trade", 0x2122},  {"larr", 0x2190},   {"uarr", 0x2191},   {"rarr", 0x2192},
    {"darr", 0x2193},   {"harr", 0x2194},   {"rArr", 0x21D2},   {"hArr", 0x21D4},
    {"forall", 0x2200}, {"part", 0x2202},   {"exist", 0x2203},  {"empty", 0x2205},
    {"nabla", 0x2207},  {"isin", 0x2208},   {"notin", 0x2209},  {"ni", 0x220B},
    {"prod", 0x220F},   {"sum", 0x2211},    {"minus", 0x2212},  {"lowast", 0x2217},
    {"radic", 0x221A},  {"prop", 0x221D},   {"infin", 0x221E},  {"ang", 0x2220},
    {"and", 0x2227},    {"or", 0x2228},     {"cap", 0x2229},    {"cup", 0x222A},
    {"int", 0x222B},    {"there4", 0x2234}, {"sim", 0x223C},    {"cong", 0x2245},
    {"asymp", 0x2248},  {"ne", 0x2260},     {"equiv", 0x2261},  {"le", 0x2264},
    {"ge", 0x2265},     {"sub", 0x2282},    {"sup", 0x2283},    {"sube", 0x2286},
    {"supe", 0x2287},   {"oplus", 0x2295},  {"otimes", 0x2297}, {"perp", 0x22A5},
    {"sdot", 0x22C5},   {"loz", 0x25CA},    {"spades", 0x2660}, {"clubs", 0x2663},
    {"hearts", 0x2665}, {"diams", 0x2666}};

using EntityTable = std::unordered_map<std::string, char32_t>;

void add_entities(EntityTable& table, std::string_view names, char32_t first) {
  for (; !names.empty(); ++first) {
    const std::string_view name = names.substr(0, names.find(' '));
    table.emplace(name, first);
    names.remove_prefix(std::min(names.size(), name.size() + 1));
  }
}

const EntityTable& entity_table() {
  static const EntityTable table = [] {
    EntityTable all;
    add_entities(all, kLatin1Entities, 0xA0);
    add_entities(all, kGreekEntities, 0x3B1);
    const EntityTable small = all;
    for (const auto& [name, c] : small) {
      if (c < 0x3B1 || c == 0x3C2) continue;  // a final sigma has no capital
      std::string capital = name;
      capital[0] = static_cast<char>(capital[0] - 'a' + 'A');
      all.emplace(capital, c - 0x20);
    }
    for (const Entity& entity : kEntities) all.emplace(entity.name, entity.character);
    return all;
  }();
  return table;
}

/// The character of the entity `name`, the text between "&" and ";".
std::optional<char32_t> entity(const std::string& name) {
  if (!name.starts_with('#')) {
    const auto found = entity_table().find(name);
    return found == entity_table().end() ? std::nullopt : std::optional(found->second);
  }
  const bool hexadecimal = name.size() > 1 && (name[1] == 'x' || name[1] == 'X');
  const char* begin = name.data() + (hexadecimal ? 2 : 1);
  const char* end = name.data() + name.size();
  std::uint32_t c = 0;
  const auto [stop, error] = std::from_chars(begin, end, c, hexadecimal ? 16 : 10);
  if (error != std::errc() || stop != end || begin == end) return std::nullopt;
  if (c >= 0x80 && c < 0xA0) return kWindows1252[c - 0x80];  // as browsers do
  if (c == 0 || c > 0x10FFFF || (c >= 0xD800 && c < 0xE000)) return tokenizer::kReplacement;
  return c;
}

std::u32string unescape(const std::u32string& text) {
  if (text.find(U'<') != std::u32string::npos) return text;
  std::u32string result;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == U'&') {
      std::string name;
      std::size_t end = at + 1;
      while (end < text.size() && text[end] < 0x80 && name.size() < 10 && text[end] != U';')
        name.push_back(static_cast<char>(text[end++]));
      if (end < text.size() && text[end] == U';') {
        if (const auto c = entity(name)) {
          result.push_back(*c);
          at = end;
          continue;
        }
      }
    }
    result.push_back(text[at]);
  }
  return result;
}

// ---------------------------------------------------------------------------- mojibake

/// A character of UTF-8 that was read as Windows-1252.
struct Misread {
  std::size_t length = 0;  ///< characters of the text; 0 when there is none
  char32_t character = 0;
};

Misread misread_at(const std::u32string& text, std::size_t at) {
  const int lead = byte_of(text[at]);
  const std::size_t length = lead >= 0xC2 && lead <= 0xDF   ? 2
                             : lead >= 0xE0 && lead <= 0xEF ? 3
                             : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                            : 0;
  if (length == 0 || at + length > text.size()) return {};
  std::string bytes;
  for (std::size_t i = 0; i < length; ++i) {
    const int byte = byte_of(text[at + i]);
    if (byte < 0) return {};
    bytes.push_back(static_cast<char>(byte));
  }
  const tokenizer::Utf8Step step = read_utf8(bytes, 0);
  if (!step.valid || step.length != length) return {};
  return {length, step.code_point};
}

/// Quotes and dashes of Windows-1252, which also follow words in capitals.
bool is_quote_or_dash(char32_t c) { return (c >= 0x2013 && c <= 0x201E) || c == 0x2026; }

bool is_plausible_text(const std::u32string& text, std::size_t at) {
  return is_quote_or_dash(text[at + 1]) && at > 0 && u_isupper(static_cast<UChar32>(text[at - 1]));
}

/// Whether the sequence at `at` is certainly no text: 3 or 4 bytes, or the Latin letters of UTF-8,
/// or one of a run.
bool is_certain(const std::u32string& text, std::size_t at, const Misread& here, bool in_run) {
  if (here.length != 2) return here.length > 2;
  if (text[at] == 0xC2 || text[at] == 0xC3) return !is_plausible_text(text, at);
  const std::size_t next = at + 2;
  return in_run || (next < text.size() && text[next] >= 0x80 && misread_at(text, next).length > 0);
}

/// Appends a line, repaired. Where one sequence is certain, the doubtful ones are mojibake, too.
void undo_mojibake(const std::u32string& line, std::u32string& result) {
  const std::size_t before = result.size();
  bool certain = false, doubtful = false;
  for (const bool all : {false, true}) {
    result.resize(before);
    bool in_run = false;  // whether the previous character was repaired from two
    for (std::size_t at = 0; at < line.size();) {
      const Misread here = line[at] < 0x80 ? Misread{} : misread_at(line, at);
      bool repair = is_certain(line, at, here, in_run);
      certain |= repair;
      doubtful |= !repair && here.length > 0;
      if (all && here.length > 0 && !is_plausible_text(line, at)) repair = true;
      in_run = repair && here.length == 2;
      result.push_back(repair ? here.character : line[at]);
      at += repair ? here.length : 1;
    }
    if (!certain || !doubtful) return;
  }
}

/// Undoes mojibake of mojibake, too, before curly quotes, which are parts of it, become straight.
std::u32string undo_mojibake(std::u32string text) {
  for (int round = 0; round < kMaxRounds; ++round) {
    std::u32string result;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t end = std::min(text.find(U'\n', at), text.size() - 1) + 1;
      undo_mojibake(text.substr(at, end - at), result);
      at = end;
    }
    if (result == text) break;
    text = std::move(result);
  }
  return text;
}

// ---------------------------------------------------------------------------- single characters

/// Appends what the rules 4 to 8 make of text[at] and returns the number of characters read.
std::size_t repair_character(const std::u32string& text, std::size_t at, std::u32string& result) {
  char32_t c = text[at];
  if (c >= 0x80 && c < 0xA0) c = kWindows1252[c - 0x80];
  if (c == U'\r') {
    result.push_back(U'\n');
    return at + 1 < text.size() && text[at + 1] == U'\n' ? 2 : 1;
  }
  if (c == 0x2028 || c == 0x2029) c = U'\n';
  const bool control = (c < 0x20 && c != U'\t' && c != U'\n' && c != U'\f') || c == 0x7F ||
                       (c >= 0x206A && c <= 0x206F) || c == 0xFEFF || (c >= 0xFFF9 && c <= 0xFFFC);
  if (control) return 1;
  if (c == 0x2BC || (c >= 0x2018 && c <= 0x201B)) c = U'\'';
  if (c >= 0x201C && c <= 0x201F) c = U'"';
  if (c == 0x3000) c = U' ';
  if (c >= 0xFF01 && c <= 0xFF5E) c -= 0xFEE0;
  static constexpr const char32_t* kLigatures[] = {U"ff",  U"fi",      U"fl", U"ffi",
                                                   U"ffl", U"\u017ft", U"st"};
  if (c >= 0xFB00 && c <= 0xFB06)
    result += kLigatures[c - 0xFB00];
  else if (c == 0x132 || c == 0x133)
    result += c == 0x132 ? U"IJ" : U"ij";
  else
    result.push_back(c);
  return 1;
}

/// Length of a terminal's escape sequence (ESC [ numbers letter) at `at`; 0 when there is none.
std::size_t escape_sequence(const std::u32string& text, std::size_t at) {
  if (text[at] != 0x1B || at + 1 >= text.size() || text[at + 1] != U'[') return 0;
  std::size_t end = at + 2;
  while (end < text.size() && (text[end] == U';' || (text[end] >= U'0' && text[end] <= U'9')))
    ++end;
  const bool letter = end < text.size() && text[end] < 0x80 && u_isalpha(UChar32(text[end]));
  return letter ? end + 1 - at : 0;
}

std::u32string repair_characters(const std::u32string& text) {
  std::u32string result;
  for (std::size_t at = 0; at < text.size();) at += repair_character(text, at, result);
  return result;
}

std::u32string without_escapes(const std::u32string& text) {
  std::u32string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = escape_sequence(text, at);
    if (length == 0) result.push_back(text[at]);
    at += std::max<std::size_t>(length, 1);
  }
  return result;
}

std::u32string decode(std::string_view text) {
  std::u32string result;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = read_utf8(text, at);
    result.push_back(step.code_point);
    at += step.length;
  }
  return result;
}

std::string encode(const std::u32string& text) {
  std::string result;
  for (const char32_t c : text) append_utf8(result, c);
  return result;
}

std::string to_nfc(const std::string& text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = icu::Normalizer2::getNFCInstance(error);
  TRIREME_CHECK(U_SUCCESS(error), "ICU has no data of normal form C: {}", u_errorName(error));
  if (normalizer->isNormalizedUTF8(text, error)) return text;
  std::string result;
  icu::StringByteSink<std::string> sink(&result);
  normalizer->normalizeUTF8(0, text, sink, nullptr, error);
  TRIREME_CHECK(U_SUCCESS(error), "normal form C: {}", u_errorName(error));
  return result;
}

bool needs_no_repair(std::string_view text) {
  return std::ranges::all_of(text, [](unsigned char c) {
    return (c >= 0x20 && c < 0x7F && c != '&') || c == '\n' || c == '\t';
  });
}

}  // namespace

std::string repair_text(std::string_view text) {
  if (needs_no_repair(text)) return std::string(text);
  std::u32string now = decode(text);
  for (int round = 0; round < kMaxRounds; ++round) {
    std::u32string next = repair_characters(undo_mojibake(without_escapes(unescape(now))));
    next = decode(to_nfc(encode(next)));
    if (next == now) break;
    now = std::move(next);
  }
  return encode(now);
}

// ---------------------------------------------------------------------------- bytes literals

bool is_bytes_literal(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  if (text.size() < 3 || text[0] != 'b' || (text[1] != '\'' && text[1] != '"')) return false;
  for (std::size_t at = 2; at < text.size(); ++at) {
    if (text[at] == '\\')
      ++at;
    else if (text[at] == text[1])
      return at + 1 == text.size();
  }
  return false;
}

std::string decode_bytes_literal(std::string_view text) {
  text = text.substr(text.find('b'));
  const char quote = text[1];
  text = text.substr(2, text.rfind(quote) - 2);
  std::string bytes;
  const auto number = [&](std::size_t at, std::size_t digits, int base) {
    unsigned value = 0;
    const char* begin = text.data() + std::min(at, text.size());
    const char* end = begin + std::min(digits, text.size() - std::min(at, text.size()));
    const auto [stop, error] = std::from_chars(begin, end, value, base);
    if (error != std::errc() || (base == 16 && stop != begin + 2))
      throw DataError("the bytes literal has \\x without two hexadecimal digits");
    bytes.push_back(static_cast<char>(value));
    return static_cast<std::size_t>(stop - begin);
  };
  constexpr std::string_view kNames = "abfnrtv\\'\"", kValues = "\a\b\f\n\r\t\v\\'\"";
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (static_cast<unsigned char>(text[at]) >= 0x80)
      throw DataError("the bytes literal has characters outside ASCII");
    if (text[at] != '\\') {
      bytes.push_back(text[at]);
      continue;
    }
    const char escaped = text[++at];  // is_bytes_literal() has found the end after it
    const std::size_t name = kNames.find(escaped);
    if (name != std::string_view::npos)
      bytes.push_back(kValues[name]);
    else if (escaped == 'x')
      at += number(at + 1, 2, 16);
    else if (escaped >= '0' && escaped <= '7')
      at += number(at, 3, 8) - 1;
    else if (escaped != '\n')  // a backslash joins lines; others stand for themselves
      bytes.append({'\\', escaped});
  }
  const std::size_t valid = tokenizer::valid_utf8_prefix(bytes);
  if (valid != bytes.size())
    throw DataError("the bytes literal is not UTF-8 at byte {} (0x{:02x})", valid + 1,
                    static_cast<unsigned char>(bytes[valid]));
  return bytes;
}

}  // namespace trireme::corpus
