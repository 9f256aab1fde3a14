// A file that a run appends to while people and programs read it.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

namespace trireme::report {

/// An append-only file that closes itself.
class OutputFile {
 public:
  enum class Mode {
    fresh,      ///< begins the file anew
    resume,     ///< continues what is there
    exclusive,  ///< the file must not exist yet
  };

  /// Opens `path`, making its folder where needed. Throws IoError.
  OutputFile(const std::filesystem::path& path, Mode mode);

  /// Appends `bytes`; they may stay in memory until `flush`. Throws IoError.
  void write(std::string_view bytes);

  /// Hands everything to the operating system. Throws IoError.
  void flush();

  /// Writes `text` and a newline, and flushes. Throws IoError.
  void line(std::string_view text);

  const std::filesystem::path& path() const { return path_; }

 private:
  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Closer> file_;
};

}  // namespace trireme::report
