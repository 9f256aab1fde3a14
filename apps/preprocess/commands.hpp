// What trireme-preprocess does, each command with its own options.
#pragma once

#include "app.hpp"

namespace trireme::preprocess {

/// --help and --version, which every command takes.
inline po::options_description general_options() {
  po::options_description options("General");
  options.add_options()("help,h", "print this and exit")("version", "print the version and exit");
  return options;
}

/// Documents to a dataset: the program without a command.
po::options_description encode_options();
void encode(const po::variables_map& values);

/// `merge`: datasets appended to one.
po::options_description merge_options();
void merge(const po::variables_map& values);

/// `split`: JSON lines divided into files for training, validation and tests.
po::options_description split_options();
void split(const po::variables_map& values);

}  // namespace trireme::preprocess
