#include "corpus/corpus.hpp"

#include <unicode/uchar.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <unordered_set>
#include <vector>

#include "core/error.hpp"
#include "core/files.hpp"
#include "tokenizer/tokenizer.hpp"

#ifdef TRIREME_WITH_CLD2
#include <cld2/public/compact_lang_det.h>
#endif

namespace trireme::corpus {
namespace {

constexpr const char* kAnyLanguage = "any";

/// Characters per token of the longest ordinary texts: longer documents need no tokenizing.
constexpr std::uint64_t kMaxCharactersPerToken = 8;

bool mentions_javascript(std::string_view text) {
  constexpr std::string_view word = "javascript";
  return !std::ranges::search(text, word, {}, [](unsigned char c) {
            return static_cast<char>(std::tolower(c));
          }).empty();
}

bool has_too_few_tokens(const CleanOptions& options, const std::string& text,
                        std::uint64_t characters) {
  if (characters >= kMaxCharactersPerToken * options.min_tokens) return false;
  const std::uint64_t tokens =
      options.tokenizer ? options.tokenizer->encode(text).size() : count_words(text);
  return tokens < options.min_tokens;
}

/// Why `text` is dropped; "" when it is kept.
std::string reason_of(const CleanOptions& options, const std::string& text) {
  if (options.language != kAnyLanguage && language_of(text) != options.language)
    return "language is not " + options.language;
  const std::uint64_t characters = count_characters(text);
  if (characters < options.min_characters)
    return fmt::format("fewer than {} characters", options.min_characters);
  if (characters < options.min_javascript && mentions_javascript(text))
    return fmt::format("javascript in fewer than {} characters", options.min_javascript);
  if (has_too_few_tokens(options, text, characters))
    return fmt::format("fewer than {} tokens", options.min_tokens);
  return "";
}

std::string dropped_line(const Document& document, const std::string& reason) {
  return with_field(with_field(document.line, "reason", reason), "place", document.place) + "\n";
}

Outcome clean_document(const CleanOptions& options, Document& document) {
  const std::string& key = options.stream.source.key;
  Outcome outcome;
  outcome.characters = count_characters(document.text);
  std::string text = document.text;
  if (is_bytes_literal(text)) {
    if (!options.decode_bytes)
      throw DataError(
          "{}: the text is a Python literal of bytes (b'...'): the script that wrote it printed "
          "bytes; decode it there, or give --decode-bytes-literals",
          document.place);
    try {
      text = decode_bytes_literal(text);
    } catch (const DataError& error) {
      throw DataError("{}: {}", document.place, error.what());
    }
    outcome.changes.push_back("bytes literal decoded");
  }
  if (options.repair) {
    std::string repaired = repair_text(text);
    if (repaired != text) outcome.changes.push_back("text repaired");
    text = std::move(repaired);
  }
  if (options.urls) outcome.url = document.field(options.url_key);
  if (!outcome.url.empty()) outcome.reason = options.urls->reason(outcome.url);
  // A URL that is dropped is not seen: a later document may have it.
  if (!outcome.reason.empty()) outcome.url.clear();
  if (outcome.reason.empty()) outcome.reason = reason_of(options, text);
  if (outcome.reason.empty()) outcome.lines.push_back(json_line(document, key, text));
  if (options.stream.dropped.empty()) return outcome;
  // Kept for a document whose URL turns out to be a duplicate, too.
  outcome.dropped_line =
      dropped_line(document, outcome.reason.empty() ? "url: duplicate" : outcome.reason);
  return outcome;
}

/// The URLs of the documents so far, as hashes.
class SeenUrls {
 public:
  /// Drops an outcome whose URL has been seen.
  void check(Outcome& outcome) {
    if (outcome.url.empty() || seen_.insert(hash128(outcome.url)).second) return;
    outcome.reason = "url: duplicate";
  }

 private:
  std::unordered_set<Hash128, Hash128Bucket> seen_;
};

void require_language(const std::string& language) {
  if (language == kAnyLanguage) return;
  if (!has_language_detection())
    throw UsageError(
        "--language {}: this build cannot tell languages; install CLD2 (Debian: libcld2-dev) and "
        "configure again, or give --language any",
        language);
#ifdef TRIREME_WITH_CLD2
  if (CLD2::GetLanguageFromName(language.c_str()) == CLD2::UNKNOWN_LANGUAGE)
    throw UsageError("--language {}: expected a code that CLD2 knows, such as en or de, or any",
                     language);
#endif
}

}  // namespace

bool has_language_detection() {
#ifdef TRIREME_WITH_CLD2
  return true;
#else
  return false;
#endif
}

std::string language_of([[maybe_unused]] std::string_view text) {
#ifdef TRIREME_WITH_CLD2
  bool reliable = false;
  const CLD2::Language language = CLD2::DetectLanguage(
      text.data(), static_cast<int>(std::min<std::size_t>(text.size(), 1 << 20)),
      /*is_plain_text=*/true, &reliable);
  return CLD2::LanguageCode(language);
#else
  throw UsageError("this build cannot tell languages");
#endif
}

std::uint64_t count_words(std::string_view text) {
  enum class Kind { blank, word, other } before = Kind::blank;
  std::uint64_t count = 0;
  for (std::size_t at = 0; at < text.size();) {
    const tokenizer::Utf8Step step = tokenizer::read_utf8(text, at);
    const auto c = static_cast<UChar32>(step.code_point);
    const Kind kind = u_isUWhiteSpace(c)          ? Kind::blank
                      : u_isalnum(c) || c == U'_' ? Kind::word
                                                  : Kind::other;
    if (kind != Kind::blank && kind != before) ++count;
    before = kind;
    at += step.length;
  }
  return count;
}

Report clean(const CleanOptions& options) {
  require_language(options.language);
  Collector collector("clean", options.stream);
  SeenUrls seen;
  for_each_document(
      options.stream, [&](Document& document) { return clean_document(options, document); },
      [&](Outcome& outcome) {
        seen.check(outcome);
        collector.take(outcome);
      },
      [&](std::uint64_t bytes) { collector.read_bytes(bytes); });
  return collector.finish();
}

Report filter_urls(const StreamOptions& options, const UrlFilter& urls) {
  Collector collector("urls", options);
  SeenUrls seen;
  for_each_document(
      options,
      [&](Document& document) {
        Outcome outcome;
        const std::size_t end = document.text.find_last_not_of(" \t\r\v\f");
        outcome.url = document.text.substr(0, end == std::string::npos ? 0 : end + 1);
        outcome.url.erase(0,
                          std::min(outcome.url.find_first_not_of(" \t\v\f"), outcome.url.size()));
        outcome.characters = count_characters(outcome.url);
        outcome.lines.push_back(outcome.url + "\n");
        outcome.reason = urls.reason(outcome.url);
        document.line = nlohmann::json{{"url", outcome.url}}.dump();
        outcome.dropped_line =
            dropped_line(document, outcome.reason.empty() ? "url: duplicate" : outcome.reason);
        if (!outcome.reason.empty()) outcome.url.clear();
        return outcome;
      },
      [&](Outcome& outcome) {
        seen.check(outcome);
        collector.take(outcome);
      },
      [&](std::uint64_t bytes) { collector.read_bytes(bytes); });
  return collector.finish();
}

namespace {

constexpr std::size_t kShortUrl = 8;

constexpr const char* kDomains =
    "500px amazon apple artstation bandcamp bitchute box dailymotion deviantart discord discordapp "
    "dropbox ebay etsy facebook fbcdn flickr furaffinity gfycat gifsoup giphy github gitlab google "
    "gyazo imagebam imagefap imageshack imgbox imgflip imgur instagram karmadecay kickstarter "
    "linkedin liveleak lmgtfy mega mediafire memegenerator mixcloud onlyfans pcpartpicker patreon "
    "photobucket pinimg pinterest pixiv pornhub prntscr puu quickmeme redd reddit redditmedia "
    "redtube roblox shutterstock sli snapchat soundcloud soundgasm spankbang spotify "
    "steamcommunity "
    "steampowered strawpoll streamable telegram tenor tiktok tinypic tumblr twimg twitch twitter "
    "vid vimeo vine vocaroo walmart whatsapp wikimedia wikipedia xhamster xkcd xvideos youtu "
    "youtube ytimg";

constexpr const char* kSuffixes =
    "3gp 7z aac ai aif aiff apk app avi bin bmp bz2 c class cpp css csv dat db deb dll dmg doc "
    "docx "
    "eot epub exe flac flv gif gifv gz heic ico img ipa iso jar jpeg jpg js json log m4a m4v mid "
    "midi mkv mobi mov mp3 mp4 mpeg mpg msi obj odp ods odt oga ogg ogv otf pdf pkg png pps ppt "
    "pptx ps psd py qt ram rar rpm rss rtf so sql svg swf tar tbz tgz tif tiff torrent ttf txt wav "
    "weba webm webp wma wmv woff woff2 xls xlsx xml xz zip zst";

/// Labels that form a public suffix with the country after them: co.uk, com.au.
constexpr const char* kSecondLevel = "ac co com edu gob gov gouv ltd mil ne net nom or org";

void add_words(std::unordered_set<std::string>& set, std::string_view words) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    set.emplace(word);
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

/// The part between "://" and the next "/", "?" or "#", without a user; port included.
std::string_view authority_of(std::string_view url) {
  const std::size_t scheme = url.find("://");
  if (scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  url = url.substr(0, url.find_first_of("/?#"));
  const std::size_t user = url.rfind('@');
  return user == std::string_view::npos ? url : url.substr(user + 1);
}

std::vector<std::string> labels_of(std::string_view host) {
  std::vector<std::string> labels;
  for (std::size_t at = 0; at <= host.size();) {
    const std::size_t end = std::min(host.find('.', at), host.size());
    labels.push_back(lower(host.substr(at, end - at)));
    at = end + 1;
  }
  if (labels.size() > 1 && labels.back().empty()) labels.pop_back();  // "example.com."
  return labels;
}

bool all_of(std::string_view text, int (*kind)(int)) {
  return std::ranges::all_of(text, [&](unsigned char c) { return kind(c) != 0; });
}

bool is_label(const std::string& label) {
  const auto word = [](unsigned char c) { return std::isalnum(c) || c >= 0x80; };
  return !label.empty() && label.size() <= 63 && word(label.front()) && word(label.back()) &&
         std::ranges::all_of(label, [&](unsigned char c) { return word(c) || c == '-'; });
}

bool is_malformed(std::string_view url) {
  const std::string head = lower(url.substr(0, 8));
  if (!head.starts_with("http://") && !head.starts_with("https://")) return true;
  if (std::ranges::any_of(url, [](unsigned char c) { return c <= 0x20 || c == 0x7F; })) return true;
  std::string_view host = authority_of(url);
  const std::size_t colon = host.find(':');
  if (colon != std::string_view::npos) {
    const std::string_view port = host.substr(colon + 1);
    if (port.empty() || port.size() > 5 || !all_of(port, std::isdigit)) return true;
    host = host.substr(0, colon);
  }
  const std::vector<std::string> labels = labels_of(host);
  if (labels.size() < 2 || !std::ranges::all_of(labels, is_label)) return true;
  if (!all_of(labels.back(), std::isdigit)) return labels.back().size() < 2;
  return labels.size() != 4 || !std::ranges::all_of(labels, [](const std::string& label) {
           return all_of(label, std::isdigit) && label.size() <= 3 && std::stoi(label) <= 255;
         });
}

void read_words(const std::filesystem::path& path,
                const std::function<void(const std::string&)>& take) {
  const std::string content = read_regular_file(path);
  std::string_view rest = content;
  for (int number = 1; !rest.empty(); ++number) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    line = line.substr(0, line.find('#'));
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.back())))
      line.remove_suffix(1);
    while (!line.empty() && std::isspace(static_cast<unsigned char>(line.front())))
      line.remove_prefix(1);
    if (line.find_first_of(" \t") != std::string_view::npos)
      throw DataError("{}:{}: expected one word a line, not '{}'", path.string(), number, line);
    if (!line.empty()) take(lower(line));
  }
}

}  // namespace

UrlFilter::UrlFilter() {
  add_words(domains_, kDomains);
  add_words(suffixes_, kSuffixes);
}

void UrlFilter::add_domains(const std::filesystem::path& path) {
  read_words(path, [&](const std::string& word) { domains_.insert(word); });
}

void UrlFilter::add_suffixes(const std::filesystem::path& path) {
  read_words(
      path, [&](const std::string& word) { suffixes_.insert(word.substr(word.starts_with('.'))); });
}

std::string UrlFilter::domain_of(std::string_view url) {
  const std::string_view authority = authority_of(url);
  const std::vector<std::string> labels = labels_of(authority.substr(0, authority.find(':')));
  if (labels.size() < 2) return labels.front();
  static const auto second_level = [] {
    std::unordered_set<std::string> set;
    add_words(set, kSecondLevel);
    return set;
  }();
  const std::size_t last = labels.size() - 1;
  const bool two = last >= 2 && labels[last].size() == 2 && second_level.contains(labels[last - 1]);
  return labels[last - (two ? 2 : 1)];
}

std::string UrlFilter::reason(std::string_view url) const {
  if (domains_.contains(domain_of(url))) return "url: domain";
  const std::string path = lower(url.substr(0, url.find_first_of("?#")));
  const std::size_t scheme = path.find("://");
  const std::size_t slash = path.find('/', scheme == std::string::npos ? 0 : scheme + 3);
  const std::size_t dot = path.rfind('.');
  if (slash != std::string::npos && dot != std::string::npos && dot > path.rfind('/') &&
      suffixes_.contains(path.substr(dot + 1)))
    return "url: file type";
  if (url.size() <= kShortUrl) return "url: short";
  return is_malformed(url) ? "url: malformed" : "";
}

}  // namespace trireme::corpus
