// A library loaded when it is first needed, so that programs start on machines without it.
#pragma once

#include <string>
#include <vector>

namespace trireme {

/// A dynamically loaded library; stays loaded until the program ends.
class SharedLibrary {
 public:
  /// Loads the first of `names` that the system's loader finds. Throws Error (exit 1) with the
  /// loader's text and `hint`, what the user can do, when there is none.
  SharedLibrary(std::vector<std::string> names, const std::string& hint);

  /// The function `name`, as `Function*`; throws Error (exit 1) when the library has none: it is
  /// too old.
  template <typename Function>
  Function* function(const char* name) const {
    return reinterpret_cast<Function*>(address(name));
  }

 private:
  void* address(const char* name) const;

  void* handle_ = nullptr;
  std::string name_;
  std::string hint_;
};

}  // namespace trireme
