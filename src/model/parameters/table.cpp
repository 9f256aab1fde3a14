#include "model/parameters/table.hpp"

#include <numeric>

#include "core/error.hpp"

namespace trireme::model {

void ParameterTableBuilder::add(Parameter parameter) {
  if (!parameter.row_blocks.empty()) {
    const auto rows =
        std::accumulate(parameter.row_blocks.begin(), parameter.row_blocks.end(), std::int64_t{0});
    TRIREME_CHECK(rows == parameter.shape[0], "the row blocks of '{}' have {} of its {} rows",
                  parameter.name, rows, parameter.shape[0]);
  }
  parameter.stage = stage_;
  parameter.layer = layer_;
  table_.push_back(std::move(parameter));
}

std::int64_t count_elements(const std::vector<Parameter>& table) {
  std::int64_t sum = 0;
  for (const Parameter& parameter : table) sum += parameter.shape.size();
  return sum;
}

}  // namespace trireme::model
