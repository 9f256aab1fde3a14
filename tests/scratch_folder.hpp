// A folder of one test's own.
#pragma once

#include "core/files.hpp"

namespace trireme {

/// A new empty folder, removed with all that is in it.
class ScratchFolder : public TemporaryFolder {
 public:
  ScratchFolder() : TemporaryFolder("trireme_test") {}
};

}  // namespace trireme
