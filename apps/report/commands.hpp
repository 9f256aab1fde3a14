// The commands of trireme-report, each with its own options.
#pragma once

#include "app.hpp"

namespace trireme::report_app {

/// A command: its options, and the function that gets their values and the other words.
struct Command {
  const char* name;
  po::options_description (*options)();
  ExitCode (*run)(const po::variables_map& values, const std::vector<std::string>& words);
};

/// `follow`: shows a run while it runs. `words` are the run or job, then overrides of --deck. Fails
/// (exit 1) where one of the four answers is bad.
po::options_description follow_options();
ExitCode follow(const po::variables_map& values, const std::vector<std::string>& words);

/// `summary`: runs and logs in one table.
po::options_description summary_options();
ExitCode summary(const po::variables_map& values, const std::vector<std::string>& words);

/// `plot`: curves of runs and logs as an SVG.
po::options_description plot_options();
ExitCode plot(const po::variables_map& values, const std::vector<std::string>& words);

/// `export`: the values of all training lines.
po::options_description export_options();
ExitCode export_values(const po::variables_map& values, const std::vector<std::string>& words);

/// `diff`: what differs between two runs. Exit code 1 when decks or losses differ, else 0.
po::options_description diff_options();
ExitCode diff(const po::variables_map& values, const std::vector<std::string>& words);

}  // namespace trireme::report_app
