#include "core/system/shared_library.hpp"

#include <dlfcn.h>

#include "core/error.hpp"

namespace trireme {

SharedLibrary::SharedLibrary(std::vector<std::string> names, const std::string& hint)
    : hint_(hint) {
  std::string said;
  for (const std::string& name : names) {
    handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_) {
      name_ = name;
      return;
    }
    said = dlerror();
  }
  throw CodedError<ExitCode::failure>("{}: {}", said, hint);
}

void* SharedLibrary::address(const char* name) const {
  void* found = dlsym(handle_, name);
  if (!found)
    throw CodedError<ExitCode::failure>("{} has no {}: it is too old: {}", name_, name, hint_);
  return found;
}

}  // namespace trireme
