#include "core/system/shell.hpp"

#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "core/error.hpp"

namespace trireme {
namespace {

/// `word` in double quotes, inside which four characters keep their meaning.
std::string double_quoted(const std::string& word) {
  std::string text;
  for (const char c : word) {
    if (std::string_view("\\\"$`").find(c) != std::string_view::npos) text += '\\';
    text += c;
  }
  return '"' + text + '"';
}

/// `word` in single quotes, inside which none has a meaning, and which a single quote ends.
std::string single_quoted(const std::string& word) {
  std::string text;
  for (const char c : word) {
    if (c == '\'')
      text += "'\\''";
    else
      text += c;
  }
  return '\'' + text + '\'';
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%^";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  // Double quotes read better around a quote, but at a prompt '!' has a meaning inside them.
  const bool reads_better = word.find_first_of("'$`") != std::string::npos;
  return reads_better && word.find('!') == std::string::npos ? double_quoted(word)
                                                             : single_quoted(word);
}

ShellAnswer ask_shell(const std::string& line) {
  std::FILE* const pipe = ::popen(line.c_str(), "r");
  if (pipe == nullptr) throw IoError("cannot run '{}': {}", line, std::strerror(errno));
  ShellAnswer answer;
  std::array<char, 4096> part;
  while (const std::size_t count = std::fread(part.data(), 1, part.size(), pipe))
    answer.output.append(part.data(), count);
  const int status = ::pclose(pipe);
  answer.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128;
  return answer;
}

}  // namespace trireme
