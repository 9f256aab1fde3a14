#include "checkpoint/hdf5/handles.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace trireme::checkpoint::hdf5 {
namespace {

/// The error stack's outermost and innermost texts: what failed, and why.
std::string error_stack_text() {
  std::vector<std::string> texts;
  const auto collect = [](unsigned, const H5E_error2_t* error, void* data) -> herr_t {
    auto& found = *static_cast<std::vector<std::string>*>(data);
    if (error->desc && *error->desc) found.emplace_back(error->desc);
    return 0;
  };
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_DOWNWARD, collect, &texts);
  H5Eclear2(H5E_DEFAULT);
  if (texts.empty()) return "no explanation";
  return texts.size() == 1 ? texts[0] : texts.front() + ": " + texts.back();
}

}  // namespace

template <typename Result>
Result checked(Result result, const char* call) {
  if (result < 0) [[unlikely]]
    throw Failure(fmt::format("{}: {}", call, error_stack_text()));
  return result;
}
template int checked(int, const char*);
template hid_t checked(hid_t, const char*);
template hssize_t checked(hssize_t, const char*);

void silence() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

Handle::Handle(Handle&& other) noexcept
    : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}

Handle& Handle::operator=(Handle&& other) noexcept {
  std::swap(id_, other.id_);
  std::swap(close_, other.close_);
  return *this;
}

Handle::~Handle() {
  if (id_ >= 0) close_(id_);
}

void Handle::close() {
  if (id_ >= 0) checked(close_(std::exchange(id_, H5I_INVALID_HID)), "close");
}

Handle file_access() {
  Handle access = TRIREME_HDF5_OPEN(H5Pclose, H5Pcreate, H5P_FILE_ACCESS);
  TRIREME_HDF5(H5Pset_libver_bounds, access.get(), H5F_LIBVER_V18, H5F_LIBVER_LATEST);
  TRIREME_HDF5(H5Pset_file_locking, access.get(), false, true);
  TRIREME_HDF5(H5Pset_fclose_degree, access.get(), H5F_CLOSE_STRONG);
  return access;
}

hid_t file_type(DType dtype) {
  return dispatch(dtype, [](auto zero) -> hid_t {
    return dtype_of<decltype(zero)> == DType::f64 ? H5T_IEEE_F64LE : H5T_IEEE_F32LE;
  });
}

hid_t memory_type(DType dtype) {
  return dispatch(dtype, [](auto zero) -> hid_t {
    return dtype_of<decltype(zero)> == DType::f64 ? H5T_NATIVE_DOUBLE : H5T_NATIVE_FLOAT;
  });
}

Handle space_of(const Shape& shape) {
  std::array<hsize_t, 4> extents{};
  for (int axis = 0; axis < shape.rank(); ++axis)
    extents[static_cast<std::size_t>(axis)] = static_cast<hsize_t>(shape[axis]);
  return TRIREME_HDF5_OPEN(H5Sclose, H5Screate_simple, shape.rank(), extents.data(), nullptr);
}

void select(hid_t space, const Shape& shape, const grid::Hyperslabs& slabs) {
  TRIREME_CHECK(shape.rank() <= 2, "slabs select in one or two axes, not in {}", to_string(shape));
  TRIREME_HDF5(H5Sselect_none, space);
  for (const grid::Hyperslab& slab : slabs) {
    const std::array<hsize_t, 2> begin = {static_cast<hsize_t>(slab.row),
                                          static_cast<hsize_t>(slab.column)};
    const std::array<hsize_t, 2> count = {static_cast<hsize_t>(slab.rows),
                                          static_cast<hsize_t>(slab.columns)};
    TRIREME_HDF5(H5Sselect_hyperslab, space, H5S_SELECT_OR, begin.data(), nullptr, count.data(),
                 nullptr);
  }
}

Handle string_type(std::size_t length) {
  Handle type = TRIREME_HDF5_OPEN(H5Tclose, H5Tcopy, H5T_C_S1);
  TRIREME_HDF5(H5Tset_size, type.get(), std::max<std::size_t>(length, 1));
  TRIREME_HDF5(H5Tset_cset, type.get(), H5T_CSET_UTF8);
  TRIREME_HDF5(H5Tset_strpad, type.get(), H5T_STR_NULLPAD);
  return type;
}

}  // namespace trireme::checkpoint::hdf5
