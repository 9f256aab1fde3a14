#include "sweep/command.hpp"

#include "core/error.hpp"
#include "core/system/shell.hpp"
#include "deck/problems.hpp"
#include "deck/value.hpp"

namespace trireme::sweep {
namespace {

constexpr std::string_view kRanks = "{ranks}";

std::vector<std::string> launcher_words(const Launch& launch, int ranks) {
  if (ranks == 1 && launch.alone_on_one_rank) return {};
  std::vector<std::string> words;
  std::string text = launch.launcher;
  for (std::size_t at; (at = text.find(kRanks)) != std::string::npos;)
    text.replace(at, kRanks.size(), std::to_string(ranks));
  return words_of(text);
}

}  // namespace

void check_launch(const PlannedSweep& sweep, const Launch& launch) {
  if (launch.launcher.find(kRanks) != std::string::npos) return;
  for (const PlannedRun& run : sweep.runs)
    if (run.need.ranks > 1)
      throw DeckError(
          "sweep.launcher = {}: nothing says how many ranks to start; write {} where the number "
          "goes, as in '{}'\n{}",
          launch.launcher, kRanks, kMpirun, deck::closing_line(1));
}

std::filesystem::path deck_copy(const PlannedSweep& sweep) {
  return sweep.own_folder() / sweep.deck_path.filename();
}

std::vector<std::string> run_words(const PlannedSweep& sweep, const PlannedRun& run,
                                   const Launch& launch) {
  std::vector<std::string> words = launcher_words(launch, run.need.ranks);
  words.push_back(launch.program.string());
  words.push_back(launch.deck.string());
  words.push_back("sweep=");
  for (const std::string& each : sweep.section.overrides)
    if (!each.starts_with("run.output=")) words.push_back(each);
  for (const deck::SweptValue& value : run.swept.values) words.push_back(value.as_override());
  words.push_back(deck::text_override("run.output", run.folder.string()));
  return words;
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  bool inside = false;  // of a word
  char quote = '\0';
  for (const char c : line) {
    if (quote == '\0' && (c == ' ' || c == '\t' || c == '\n')) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    inside = true;
    if (c == quote)
      quote = '\0';
    else if (quote == '\0' && (c == '"' || c == '\''))
      quote = c;
    else
      words.back() += c;
  }
  return words;
}

std::string shell_line(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += ' ';
    line += shell_word(word);
  }
  return line;
}

}  // namespace trireme::sweep
