// The kinds of layers that a spec may name. A new kind is a class that is registered here by one
// row of registry.cpp, or with register_norm() and register_mlp() from anywhere else.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/layers/mlp.hpp"
#include "model/layers/norm.hpp"

namespace trireme::model {

using NormFactory = std::unique_ptr<Norm> (*)(const NormSpec& spec, const std::string& name,
                                              std::int64_t hidden);
using MlpFactory = std::unique_ptr<Mlp> (*)(const MlpSpec& spec, const LayerPlace& place);

/// Adds a kind; throws InternalError where it is known already. Not while models are being made.
void register_norm(const std::string& kind, NormFactory make);
void register_mlp(const std::string& kind, MlpFactory make);

/// The names of all kinds, sorted.
std::vector<std::string> norm_kinds();
std::vector<std::string> mlp_kinds();
bool has_norm(const std::string& kind);
bool has_mlp(const std::string& kind);

/// The layer that `spec` names; throws InternalError for an unknown kind. `name` is the prefix of
/// the norm's parameters, such as "layers/3/norm1/".
std::unique_ptr<Norm> make_norm(const NormSpec& spec, const std::string& name, std::int64_t hidden);
std::unique_ptr<Mlp> make_mlp(const MlpSpec& spec, const LayerPlace& place);

}  // namespace trireme::model
