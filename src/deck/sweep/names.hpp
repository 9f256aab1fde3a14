// Names of the runs of a sweep: words that a file system and a shell take as they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "deck/sweep.hpp"

namespace trireme::deck {

/// FNV-1a: tells names apart that had to be cut.
std::uint32_t checksum(std::string_view text);

/// Whether `name` can be the name of a run's folder: letters, digits and `._+=,-`, not beginning
/// with `.` or `-`.
bool is_run_name(std::string_view name);

/// "tall,peak=1e-4,beta2=0.95": the case's name, if any, then the last name of each key with its
/// value; the whole path where two of `keys` have the same last name. Long names are cut and
/// get a checksum.
std::string run_name(const std::string& case_name, const std::vector<SweptValue>& values,
                     const std::vector<std::string>& keys);

}  // namespace trireme::deck
