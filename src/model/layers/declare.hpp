// The parameter table of a model.
#pragma once

#include <vector>

#include "model/parameters/table.hpp"
#include "model/spec.hpp"

namespace trireme::model {

/// What the layers of `spec` declare, in checkpoint order: embedding, blocks, head. Throws as
/// require_implemented().
std::vector<Parameter> declare_parameters(const ModelSpec& spec);

}  // namespace trireme::model
