#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "report/commands.hpp"
#include "report/follow/follower.hpp"

namespace trireme::report_app {
namespace {

using Words = std::vector<std::string>;

report::FollowTarget target_of(const po::variables_map& values, const Words& words) {
  if (words.empty()) throw UsageError("follow: no run folder and no job is given");
  report::FollowTarget target = report::find_target(words[0]);
  target.version = TRIREME_VERSION;
  const Words overrides(words.begin() + 1, words.end());
  if (values.count("deck"))
    target.asked = report::AskedDeck{values["deck"].as<std::string>(), overrides};
  else if (!overrides.empty())
    throw UsageError("follow: '{}' belongs to a --deck, and none is given", overrides[0]);
  return target;
}

}  // namespace

po::options_description follow_options() {
  po::options_description options("Options of follow");
  options.add_options()                //
      ("once", "print once and exit")  //
      ("every", po::value<double>()->default_value(2.0, "2")->value_name("SECONDS"),
       "interval between updates")  //
      ("deck", po::value<std::string>()->value_name("DECK"),
       "the deck that was asked for, followed by its KEY=VALUEs; default: the deck of the run's "
       "command");
  return options;
}

ExitCode follow(const po::variables_map& values, const Words& words) {
  const double every = values["every"].as<double>();
  if (!(every >= 0.1 && every <= 86400))
    throw UsageError("--every {}: expected 0.1 to 86400 seconds", every);
  report::Follower follower(target_of(values, words));
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  const bool colour = terminal && std::getenv("NO_COLOR") == nullptr;
  while (true) {
    const report::Page page = follower.look();
    const bool last = page.ended || values.count("once") > 0;
    const bool clears = terminal && values.count("once") == 0;
    print_out((clears ? "\033[H\033[J" : "") + to_text(page, colour) +
              (clears || last ? "" : "\n"));
    if (last) return page.well() ? ExitCode::success : ExitCode::failure;
    if (std::fflush(stdout) != 0) throw IoError("cannot write to standard output");
    std::this_thread::sleep_for(std::chrono::duration<double>(every));
  }
}

}  // namespace trireme::report_app
