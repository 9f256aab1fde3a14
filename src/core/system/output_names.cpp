#include "core/system/output_names.hpp"

#include <system_error>

#include "core/error.hpp"

namespace trireme {

void refuse_device(const std::filesystem::path& path) {
  std::error_code ignored;
  // /dev/stdout is a symbolic link, behind which there may be a regular file.
  const auto folder = std::filesystem::absolute(path, ignored).lexically_normal().parent_path();
  if (folder == "/dev" || std::filesystem::is_other(path, ignored))
    throw IoError("cannot write '{}': it is a device or a FIFO; name a file", path.string());
}

}  // namespace trireme
