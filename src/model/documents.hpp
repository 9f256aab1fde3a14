// Where the documents of a sample begin.
#pragma once

#include <cstdint>
#include <span>

namespace trireme::model {

/// Writes where the document of each token begins: starts [b, s], the position behind the last
/// `eod` before the token, 0 where there is none. ids [s, b].
void find_document_starts(std::span<const std::int32_t> ids, std::int64_t micro_batch,
                          std::int32_t eod, std::span<std::int32_t> starts);

/// Writes the positions of tokens within their documents: positions [s, b], from starts [b, s].
void positions_in_documents(std::span<const std::int32_t> starts, std::int64_t micro_batch,
                            std::span<std::int32_t> positions);

}  // namespace trireme::model
