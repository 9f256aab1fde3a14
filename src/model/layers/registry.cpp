#include "model/layers/registry.hpp"

#include <map>

#include "core/error.hpp"

namespace trireme::model {
namespace {

template <typename Factory>
using Kinds = std::map<std::string, Factory>;

Kinds<NormFactory>& norms() {
  static Kinds<NormFactory> kinds = {
      {"layernorm",
       [](const NormSpec& spec, const std::string& name, std::int64_t hidden)
           -> std::unique_ptr<Norm> { return std::make_unique<LayerNorm>(spec, name, hidden); }},
  };
  return kinds;
}

Kinds<MlpFactory>& mlps() {
  static Kinds<MlpFactory> kinds = {
      {"gelu",
       [](const MlpSpec& spec, const LayerPlace& place) -> std::unique_ptr<Mlp> {
         return std::make_unique<GeluMlp>(spec, place);
       }},
  };
  return kinds;
}

template <typename Factory>
std::vector<std::string> names(const Kinds<Factory>& kinds) {
  std::vector<std::string> names;
  for (const auto& [name, factory] : kinds) names.push_back(name);
  return names;
}

template <typename Factory>
void add(Kinds<Factory>& kinds, const std::string& kind, Factory make) {
  TRIREME_CHECK(kinds.emplace(kind, make).second, "two layers are called '{}'", kind);
}

template <typename Factory>
Factory find(const Kinds<Factory>& kinds, const std::string& kind) {
  const auto found = kinds.find(kind);
  TRIREME_CHECK(found != kinds.end(), "no layer is called '{}'", kind);
  return found->second;
}

}  // namespace

void register_norm(const std::string& kind, NormFactory make) { add(norms(), kind, make); }
void register_mlp(const std::string& kind, MlpFactory make) { add(mlps(), kind, make); }

std::vector<std::string> norm_kinds() { return names(norms()); }
std::vector<std::string> mlp_kinds() { return names(mlps()); }
bool has_norm(const std::string& kind) { return norms().contains(kind); }
bool has_mlp(const std::string& kind) { return mlps().contains(kind); }

std::unique_ptr<Norm> make_norm(const NormSpec& spec, const std::string& name,
                                std::int64_t hidden) {
  return find(norms(), spec.kind)(spec, name, hidden);
}

std::unique_ptr<Mlp> make_mlp(const MlpSpec& spec, const LayerPlace& place) {
  return find(mlps(), spec.kind)(spec, place);
}

}  // namespace trireme::model
