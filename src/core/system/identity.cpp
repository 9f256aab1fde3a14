#include "core/system/identity.hpp"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <climits>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>

namespace trireme {
namespace {

int process_rank = -1;

}  // namespace

void set_process_rank(int rank) { process_rank = rank; }

std::string host_name() {
  char name[HOST_NAME_MAX + 1] = {};
  return gethostname(name, HOST_NAME_MAX) == 0 ? name : "unknown host";
}

std::string process_identity() {
  return process_rank < 0 ? host_name() : fmt::format("rank {} on {}", process_rank, host_name());
}

namespace {

/// The size of a note's name or contents, which end on a multiple of four bytes.
constexpr std::size_t padded(std::size_t size) { return (size + 3) / 4 * 4; }

/// The build id among the notes of `size` bytes at `notes`; "" when there is none.
std::string find_build_id(const std::byte* notes, std::size_t size) {
  const std::byte* const end = notes + size;
  ElfW(Nhdr) note;
  while (notes + sizeof note <= end) {
    std::memcpy(&note, notes, sizeof note);
    const std::byte* name = notes + sizeof note;
    const std::byte* contents = name + padded(note.n_namesz);
    notes = contents + padded(note.n_descsz);
    if (notes > end) return "";
    if (note.n_type != NT_GNU_BUILD_ID || note.n_namesz != 4 || std::memcmp(name, "GNU", 4) != 0)
      continue;
    std::string text;
    for (std::size_t i = 0; i < note.n_descsz; ++i)
      text += fmt::format("{:02x}", std::to_integer<unsigned>(contents[i]));
    return text;
  }
  return "";
}

/// The build id of a loaded object; "" when it has none.
std::string build_id_of(const dl_phdr_info& object) {
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& segment = object.dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* notes = reinterpret_cast<const std::byte*>(object.dlpi_addr + segment.p_vaddr);
    const std::string id = find_build_id(notes, segment.p_memsz);
    if (!id.empty()) return id;
  }
  return "";
}

/// Adds the ids of the program, which the loader lists first, and of Trireme's shared libraries.
int add_build_id(dl_phdr_info* object, std::size_t, void* result) {
  std::string& ids = *static_cast<std::string*>(result);
  const bool is_ours =
      std::string_view(object->dlpi_name).find("/libtrireme_") != std::string::npos;
  if (ids.empty())
    ids = build_id_of(*object);
  else if (is_ours)
    ids.append("+").append(build_id_of(*object));
  return 0;
}

}  // namespace

std::string build_id() {
  std::string ids;
  dl_iterate_phdr(&add_build_id, &ids);
  return ids;
}

std::string program_path() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).string();
}

}  // namespace trireme
