// Commands of Megatron-LM that do not train: they prepare a dataset, generate text or evaluate.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "convert/flags/command.hpp"

namespace trireme::convert::flags {

/// The same done by Trireme's programs.
struct Equivalent {
  std::string commands;              ///< a line of a shell each
  std::vector<std::string> notes;    ///< a line each, with the place
  std::vector<std::string> unbuilt;  ///< options among them that are not built yet
};

/// What does the work of `command`; empty where its program is another, or lacks what it needs.
/// Throws DeckError, a line for each flag that has no counterpart.
std::optional<Equivalent> equivalent_of(const TrainingCommand& command);

}  // namespace trireme::convert::flags
