// Names that files are renamed to.
#pragma once

#include <filesystem>

namespace trireme {

/// Throws IoError when `path`, which a complete file is to be renamed to, names no regular file but
/// a device, a FIFO or a socket, or anything directly in /dev: the rename would replace it, for all
/// programs of the machine.
void refuse_device(const std::filesystem::path& path);

}  // namespace trireme
