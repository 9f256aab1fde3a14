// The options of trireme-generate beyond those of the model.
#pragma once

#include "app.hpp"
#include "generate/generator.hpp"

namespace trireme {

/// --prompt, --input and what is printed.
po::options_description work_options();
/// How tokens are chosen.
po::options_description sampling_options();
/// Throws UsageError for a value outside its range.
generate::Sampling sampling_of(const po::variables_map& values);
/// Throws UsageError for options that exclude each other and for counts below 1.
void check_options(const po::variables_map& values);

}  // namespace trireme
