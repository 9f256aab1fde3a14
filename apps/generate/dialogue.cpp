#include "generate/dialogue.hpp"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "generate/generator.hpp"
#include "generate/texts.hpp"

#ifdef TRIREME_WITH_EDIT
#include <editline/readline.h>
#endif

namespace trireme {
namespace {

std::atomic<bool> interrupted = false;

/// The next line after `prompt`; nothing at the end of the input.
std::optional<std::string> edited_line(const char* prompt) {
#ifdef TRIREME_WITH_EDIT
  errno = 0;
  interrupted = false;
  char* typed = ::readline(prompt);
  if (!typed && (errno == EINTR || interrupted)) {  // Ctrl-C ends libedit's line
    std::puts("");
    return "";
  }
  if (!typed) return std::nullopt;
  std::string line = typed;
  std::free(typed);
  if (!line.empty()) ::add_history(line.c_str());
  return line;
#else
  std::fputs(prompt, stdout);
  std::fflush(stdout);
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
#endif
}

void print(const std::string& text) {
  print_out(text);
  std::fflush(stdout);
}

}  // namespace

void run_dialogue(generate::BatchDecoder& decoder, const tokenizer::Tokenizer& tokenizer,
                  const generate::Request& request, const std::vector<std::string>& stop_strings) {
  std::signal(SIGINT, [](int) { interrupted = true; });
  generate::BatchGenerator generator(decoder);
  std::uint64_t sample = 0;
  while (const auto line = edited_line("prompt> ")) {
    interrupted = false;
    if (line->empty()) continue;
    try {
      const auto ids = encode(tokenizer, *line);
      generate::TextStream stream(tokenizer, ids, stop_strings);
      generator.submit({.prompt = ids,
                        .request = request,
                        .sample = sample++,
                        .on_token = [&](const generate::ChosenToken& token) {
                          print(stream.push(token.score.id));
                          return !stream.stopped() && !interrupted;
                        }});
      print(*line);
      while (generator.step()) {
      }
      print(stream.finish() + "\n");
    } catch (const DataError& error) {
      std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
    }
  }
  print("\n");
}

}  // namespace trireme
