#include "report/output_file.hpp"

#include <cerrno>
#include <cstring>

#include "core/error.hpp"

namespace trireme::report {

OutputFile::OutputFile(const std::filesystem::path& path, Mode mode) : path_(path) {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error)
      throw IoError("cannot make folder '{}': {}", path.parent_path().string(), error.message());
  }
  const char* flags = mode == Mode::fresh ? "wbe" : mode == Mode::resume ? "abe" : "wbxe";
  file_.reset(std::fopen(path.c_str(), flags));
  if (!file_) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
}

void OutputFile::write(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) != bytes.size())
    throw IoError("cannot write '{}': {}", path_.string(), std::strerror(errno));
}

void OutputFile::flush() {
  if (std::fflush(file_.get()) != 0)
    throw IoError("cannot write '{}': {}", path_.string(), std::strerror(errno));
}

void OutputFile::line(std::string_view text) {
  write(text);
  write("\n");
  flush();
}

}  // namespace trireme::report
