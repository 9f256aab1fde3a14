// What trireme-report does, each command with its own options.
#pragma once

#include "app.hpp"

namespace trireme::report_app {

/// `follow`: a run as it goes on. `words` are the run or job, then overrides of --deck. Fails
/// (exit 1) where one of the four answers is bad.
po::options_description follow_options();
ExitCode follow(const po::variables_map& values, const std::vector<std::string>& words);

/// `summary`: runs and logs in one table.
po::options_description summary_options();
ExitCode summary(const po::variables_map& values, const std::vector<std::string>& words);

}  // namespace trireme::report_app
