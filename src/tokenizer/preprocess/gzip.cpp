#include "tokenizer/preprocess/gzip.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "core/error.hpp"

namespace trireme::tokenizer {
namespace {

constexpr std::size_t kGzipBlockBytes = 1 << 17;
constexpr int kWindowOfGzip = MAX_WBITS + 16;  // zlib's sign for gzip's header and checksums

}  // namespace

GzipReader::GzipReader(const std::string& input)
    : descriptor_(input == "-" ? ::dup(STDIN_FILENO) : ::open(input.c_str(), O_RDONLY | O_CLOEXEC)),
      block_(kGzipBlockBytes) {
  if (descriptor_ < 0) throw IoError("cannot open '{}': {}", input, std::strerror(errno));
  if (inflateInit2(&stream_, kWindowOfGzip) != Z_OK) {
    ::close(descriptor_);
    throw std::bad_alloc();
  }
}

GzipReader::~GzipReader() {
  inflateEnd(&stream_);
  ::close(descriptor_);
}

ssize_t GzipReader::read(char* buffer, std::size_t bytes) {
  stream_.next_out = reinterpret_cast<Bytef*>(buffer);
  stream_.avail_out = static_cast<uInt>(bytes);
  while (!failed() && stream_.avail_out > 0 && fill()) {
    if (!packed_) packed_ = stream_.avail_in > 1 && block_[0] == 0x1f && block_[1] == 0x8b;
    *packed_ ? unpack() : copy();
  }
  // The bytes before an error come first.
  const auto got = static_cast<ssize_t>(bytes - stream_.avail_out);
  return got == 0 && failed() ? -1 : got;
}

bool GzipReader::fill() {
  if (stream_.avail_in > 0) return true;
  std::size_t have = 0;
  while (have < block_.size()) {
    const ssize_t got = ::read(descriptor_, block_.data() + have, block_.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) io_error_ = std::strerror(errno);
    if (got <= 0) break;
    have += static_cast<std::size_t>(got);
  }
  stream_.next_in = block_.data();
  stream_.avail_in = static_cast<uInt>(have);
  if (have == 0 && in_member_ && !failed()) set_data_error("unexpected end of file");
  return have > 0;
}

void GzipReader::copy() {
  const uInt bytes = std::min(stream_.avail_in, stream_.avail_out);
  std::memcpy(stream_.next_out, stream_.next_in, bytes);
  stream_.next_in += bytes;
  stream_.avail_in -= bytes;
  stream_.next_out += bytes;
  stream_.avail_out -= bytes;
}

void GzipReader::unpack() {
  while (!in_member_ && stream_.avail_in > 0 && *stream_.next_in == 0) {
    ++stream_.next_in;
    --stream_.avail_in;
  }
  if (stream_.avail_in == 0) return;
  in_member_ = true;
  const int status = inflate(&stream_, Z_NO_FLUSH);
  if (status == Z_STREAM_END) {
    inflateReset(&stream_);
    in_member_ = false;
    ++members_;
  } else if (status != Z_OK) {
    set_data_error(stream_.msg ? stream_.msg : zError(status));
  }
}

void GzipReader::set_data_error(const char* reason) {
  data_error_ = reason;
  if (members_ > 0) data_error_ += fmt::format(" in member {}", members_ + 1);
}

}  // namespace trireme::tokenizer
