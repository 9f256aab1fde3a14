#include "core/error.hpp"

namespace trireme {

void throw_check_failed(const char* expression, const char* file, int line,
                        const std::string& explanation) {
  throw InternalError("{}:{}: check '{}' failed: {}", file, line, expression, explanation);
}

}  // namespace trireme
