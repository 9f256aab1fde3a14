#include <netinet/in.h>
#include <sys/socket.h>

#include <charconv>
#include <filesystem>
#include <optional>
#include <string>

#include "serve/server.hpp"

namespace trireme::serve {
namespace {

/// The local port of a connected TCP socket; nothing for other descriptors.
std::optional<int> connected_port(int descriptor) {
  ::sockaddr_storage address{};
  auto* any = reinterpret_cast<::sockaddr*>(&address);
  ::socklen_t size = sizeof address;
  if (::getpeername(descriptor, any, &size) != 0) return std::nullopt;
  size = sizeof address;
  if (::getsockname(descriptor, any, &size) != 0) return std::nullopt;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const ::sockaddr_in*>(&address)->sin_port);
  if (address.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const ::sockaddr_in6*>(&address)->sin6_port);
  return std::nullopt;
}

}  // namespace

// httplib does not say which connections it has: the process's descriptors do.
void cut_connections(int port) {
  std::error_code error;
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator entry("/proc/self/fd", error); !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (connected_port(descriptor) == port) ::shutdown(descriptor, SHUT_RDWR);
  }
}

}  // namespace trireme::serve
