// What trireme-preprocess does, each command with its own options.
#pragma once

#include "app.hpp"

namespace trireme::preprocess {

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
