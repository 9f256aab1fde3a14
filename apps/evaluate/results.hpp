// What trireme-evaluate prints and draws.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

#include "app.hpp"

namespace trireme {

/// Prints one result as lines of keys and values, several as a table, or all as JSON.
void print_results(const std::vector<nlohmann::ordered_json>& results, bool json);

/// Throws UsageError for a --plot that can draw no curve, or would replace an input.
void check_plot(const po::variables_map& values);

/// Draws the numbers of the results, of one task, over their checkpoints' iterations to an SVG
/// file: a panel for each. Throws UsageError for a single result and IoError.
void plot_results(const std::vector<nlohmann::ordered_json>& results,
                  const std::filesystem::path& file);

}  // namespace trireme
