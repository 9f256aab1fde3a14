// The commands of trireme-preprocess that work on a corpus before it is tokenized.
#pragma once

#include <string>

#include "app.hpp"

namespace trireme {

/// Adds the options of all of them, for --help.
void add_corpus_options(po::options_description& options);

/// Whether `command` is urls, clean, dedup, decontaminate or shuffle.
bool is_corpus_command(const std::string& command);

/// Runs one; `argv[0]` is its name. Throws as the command does, and UsageError.
void run_corpus_command(int argc, char** argv);

}  // namespace trireme
