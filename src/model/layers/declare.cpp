#include "model/layers/declare.hpp"

#include "model/layers/block.hpp"
#include "model/layers/embedding.hpp"
#include "model/layers/head.hpp"

namespace trireme::model {

std::vector<Parameter> declare_parameters(const ModelSpec& spec) {
  require_implemented(spec);
  ParameterTableBuilder table;
  table.at(StagePlacement::first_stage);
  Embedding(spec).declare(table);
  for (int layer = 0; layer < spec.layers(); ++layer) {
    table.at(StagePlacement::layer, layer);
    TransformerBlock(spec, layer).declare(table);
  }
  table.at(StagePlacement::last_stage);
  Head(spec).declare(table);
  return table.take();
}

}  // namespace trireme::model
