// Which URLs to leave out of a corpus: blacklisted domains and file types, malformed, short.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_set>

namespace trireme::corpus {

/// Rules for one URL at a time; duplicates are the stream's. The checks and their order are those
/// of Megatron-LM's tools/openwebtext/blacklist_urls.py: domain, file type, length, form.
class UrlFilter {
 public:
  /// With the built-in lists: hosts of pictures, videos, music, files, games and shops and social
  /// networks, and suffixes of files that are not prose.
  UrlFilter();

  /// Adds the words of `path`, one a line, to the domains or suffixes; "#" starts a comment. Throws
  /// IoError when it cannot be read, DataError with the line for a word with a blank in it.
  void add_domains(const std::filesystem::path& path);
  void add_suffixes(const std::filesystem::path& path);

  /// Why the URL is dropped: "url: domain", "url: file type", "url: short" (8 characters or fewer),
  /// "url: malformed" (not http or https, no host with a dot or IPv4 address, blanks); or "".
  std::string reason(std::string_view url) const;

  /// The registered name in a URL: "bbc" of https://news.bbc.co.uk/x; "" without a host. The
  /// public suffix is the last label, or the last two in names such as co.uk and com.au.
  static std::string domain_of(std::string_view url);

 private:
  std::unordered_set<std::string> domains_;
  std::unordered_set<std::string> suffixes_;
};

}  // namespace trireme::corpus
