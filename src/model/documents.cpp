#include "model/documents.hpp"

#include "core/error.hpp"

namespace trireme::model {

void find_document_starts(std::span<const std::int32_t> ids, std::int64_t micro_batch,
                          std::int32_t eod, std::span<std::int32_t> starts) {
  TRIREME_CHECK(ids.size() == starts.size(), "{} ids, {} starts", ids.size(), starts.size());
  const std::int64_t sequence = std::ssize(ids) / micro_batch;
  for (std::int64_t j = 0; j < micro_batch; ++j) {
    std::int32_t start = 0;
    for (std::int64_t i = 0; i < sequence; ++i) {
      starts[j * sequence + i] = start;
      if (ids[i * micro_batch + j] == eod) start = static_cast<std::int32_t>(i) + 1;
    }
  }
}

void positions_in_documents(std::span<const std::int32_t> starts, std::int64_t micro_batch,
                            std::span<std::int32_t> positions) {
  const std::int64_t sequence = std::ssize(starts) / micro_batch;
  for (std::int64_t j = 0; j < micro_batch; ++j)
    for (std::int64_t i = 0; i < sequence; ++i)
      positions[i * micro_batch + j] = static_cast<std::int32_t>(i) - starts[j * sequence + i];
}

}  // namespace trireme::model
