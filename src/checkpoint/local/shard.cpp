#include "checkpoint/local/shard.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>

#include "checkpoint/elements.hpp"
#include "core/content_hash.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {
namespace {

// A shard: the magic, the header's bytes as a 64-bit number, the header (JSON), the payload, its
// hash.
constexpr std::string_view kShardMagic = "TRIREME SHARD 1\n";
constexpr std::int64_t kMaxHeaderBytes = std::int64_t{64} << 20;
/// Bytes that are read, hashed and sent at a time.
constexpr std::int64_t kChunkBytes = std::int64_t{8} << 20;

std::int64_t piece_bytes(const Piece& piece, DType dtype) {
  return count_elements(piece.slabs) * static_cast<std::int64_t>(size_of(dtype));
}

nlohmann::json to_json(const ShardHeader& header) {
  nlohmann::json attributes;
  for (const auto& [name, value] : header.attributes)
    std::visit([&, &key = name](const auto& each) { attributes[key] = each; }, value);
  return {{"iteration", header.iteration}, {"rank", header.rank}, {"ranks", header.ranks},
          {"attributes", attributes},      {"deck", header.deck}, {"layout", header.layout},
          {"pieces", header.pieces}};
}

ShardHeader from_json(const nlohmann::json& json) {
  ShardHeader header{.iteration = json.at("iteration").get<std::int64_t>(),
                     .rank = json.at("rank").get<int>(),
                     .ranks = json.at("ranks").get<int>(),
                     .deck = json.at("deck").get<std::string>(),
                     .layout = json.at("layout").get<std::uint64_t>(),
                     .pieces = json.at("pieces").get<std::vector<std::int64_t>>()};
  for (const auto& [name, value] : json.at("attributes").items()) {
    if (value.is_number_integer())
      header.attributes[name] = value.get<std::int64_t>();
    else if (value.is_number())
      header.attributes[name] = value.get<double>();
    else
      header.attributes[name] = value.get<std::string>();
  }
  return header;
}

/// A file that is open for reading from its begin to its end.
class Input {
 public:
  explicit Input(const std::filesystem::path& path)
      : path_(path), fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (fd_ < 0) throw IoError("cannot open '{}': {}", path.string(), std::strerror(errno));
  }
  ~Input() { ::close(fd_); }
  Input(const Input&) = delete;
  Input& operator=(const Input&) = delete;

  void read(void* data, std::int64_t bytes) {
    while (bytes > 0) {
      const ssize_t got = ::read(fd_, data, static_cast<std::size_t>(bytes));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
      if (got == 0) fail("it has lost its end");
      data = static_cast<std::byte*>(data) + got;
      bytes -= got;
    }
  }
  [[noreturn]] void fail(const std::string& why) const {
    throw DataError("'{}' is not a readable local checkpoint: {}", path_.string(), why);
  }
  std::int64_t size() const {
    struct stat status {};
    if (::fstat(fd_, &status) != 0)
      throw IoError("cannot read '{}': {}", path_.string(), std::strerror(errno));
    return status.st_size;
  }
  /// Reads up to the payload.
  ShardHeader header() {
    std::array<char, kShardMagic.size()> magic{};
    std::int64_t bytes = 0;
    const std::int64_t before = std::ssize(magic) + static_cast<std::int64_t>(sizeof bytes);
    const std::int64_t after = sizeof(std::uint64_t);
    if (size() < before + after) fail("it has lost its end");
    read(magic.data(), std::ssize(magic));
    if (std::string_view(magic.data(), magic.size()) != kShardMagic)
      fail("it begins with other bytes");
    read(&bytes, sizeof bytes);
    if (bytes < 0 || bytes > std::min(kMaxHeaderBytes, size() - before - after))
      fail("its header is damaged");
    std::string text(static_cast<std::size_t>(bytes), '\0');
    read(text.data(), bytes);
    ShardHeader header;
    try {
      header = from_json(nlohmann::json::parse(text));
    } catch (const nlohmann::json::exception&) {
      fail("its header is damaged");
    }
    std::int64_t payload = size() - before - bytes - after;
    for (const std::int64_t piece : header.pieces) {
      if (piece < 0 || piece > payload) fail("it has lost its end");
      payload -= piece;
    }
    if (payload != 0) fail("its size is not right");
    hash_.add(text);
    return header;
  }
  /// Reads part of the payload.
  void payload(void* data, std::int64_t bytes) {
    read(data, bytes);
    hash_.add(data, static_cast<std::size_t>(bytes));
  }
  /// After the payload: compares the hash of all that was read.
  void check_hash() {
    std::uint64_t stored = 0;
    read(&stored, sizeof stored);
    if (stored != hash_.value()) fail("it is damaged: its checksum does not match");
  }

 private:
  const std::filesystem::path path_;
  const int fd_;
  ContentHash hash_;
};

/// Calls use(offset, bytes) for the consecutive parts of `bytes`.
template <typename Use>
void for_parts(std::int64_t bytes, const Use& use) {
  for (std::int64_t begin = 0; begin < bytes; begin += kChunkBytes)
    use(begin, std::min(kChunkBytes, bytes - begin));
}

}  // namespace

std::filesystem::path create_part(const std::filesystem::path& path) {
  const std::filesystem::path part = path.string() + ".part";
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0) throw IoError("cannot open '{}': {}", part.string(), std::strerror(errno));
  ::close(fd);
  return part;
}

void rename_part(const std::filesystem::path& part, const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::rename(part, path, error);
  if (error)
    throw IoError("cannot rename '{}' to '{}': {}", part.string(), path.string(), error.message());
}

namespace {

/// The whole number in `text` from `at` on, of which it moves `at` to the end; -1 for none.
std::int64_t number(const std::string& text, std::size_t& at) {
  std::int64_t value = -1;
  const auto [stop, error] = std::from_chars(text.data() + at, text.data() + text.size(), value);
  if (error != std::errc()) return -1;
  at = static_cast<std::size_t>(stop - text.data());
  return value;
}

}  // namespace

std::optional<ShardName> parse_shard_name(const std::string& text) {
  const std::string before = "step-", between = ".rank-", after = ".shard";
  if (!text.starts_with(before)) return std::nullopt;
  std::size_t at = before.size();
  ShardName name{.iteration = number(text, at)};
  if (name.iteration < 0 || text.compare(at, between.size(), between) != 0) return std::nullopt;
  at += between.size();
  name.rank = static_cast<int>(number(text, at));
  const std::string rest = text.substr(at);
  name.copy = rest == after + ".copy";
  if (name.rank < 0 || (rest != after && !name.copy)) return std::nullopt;
  return name;
}

namespace {

std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    paths.push_back(entry->path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

}  // namespace

std::vector<std::pair<ShardName, std::filesystem::path>> list_shards(
    const std::filesystem::path& folder) {
  std::vector<std::pair<ShardName, std::filesystem::path>> shards;
  for (const std::filesystem::path& path : entries_of(folder))
    if (const auto name = parse_shard_name(path.filename().string()))
      shards.emplace_back(*name, path);
  return shards;
}

std::optional<std::filesystem::path> find_shard(const std::filesystem::path& folder,
                                                std::int64_t iteration, int rank) {
  std::error_code error;
  for (const bool copy : {false, true}) {
    const auto path = shard_path(folder, iteration, rank, copy);
    if (std::filesystem::exists(path, error)) return path;
  }
  return std::nullopt;
}

std::uint64_t shard_layout(const std::vector<LocalTensor>& tensors) {
  ContentHash hash;
  for (const LocalTensor& tensor : tensors) {
    hash.add(fmt::format("{} {} {}", tensor.name, to_string(tensor.shape), name_of(tensor.dtype)));
    for (const Piece& piece : tensor.pieces)
      for (const grid::Hyperslab& slab : piece.slabs)
        hash.add(fmt::format("{} {} {} {}", slab.row, slab.rows, slab.column, slab.columns));
  }
  return hash.value();
}

std::filesystem::path shard_path(const std::filesystem::path& folder, std::int64_t iteration,
                                 int rank, bool copy) {
  return folder /
         fmt::format("step-{:08}.rank-{:05}.shard{}", iteration, rank, copy ? ".copy" : "");
}

void write_shard(const std::filesystem::path& path, ShardHeader header,
                 const std::vector<LocalTensor>& tensors, const std::function<void()>& progressed) {
  header.layout = shard_layout(tensors);
  header.pieces.clear();
  for (const LocalTensor& tensor : tensors)
    for (const Piece& piece : tensor.pieces)
      header.pieces.push_back(piece_bytes(piece, tensor.dtype));
  const std::int64_t payload =
      std::accumulate(header.pieces.begin(), header.pieces.end(), std::int64_t{0});
  const std::filesystem::path part = create_part(path);
  try {
    const std::string text = to_json(header).dump();
    const auto text_bytes = static_cast<std::int64_t>(text.size());
    std::string begin(kShardMagic);
    begin.append(reinterpret_cast<const char*>(&text_bytes), sizeof text_bytes).append(text);
    std::int64_t at = std::ssize(begin);
    ContentHash hash;
    hash.add(text);
    reserve_space(part, at + payload + static_cast<std::int64_t>(sizeof hash));
    PartFile file(part, progressed);
    file.write(begin.data(), at, 0);
    for (const LocalTensor& tensor : tensors)
      for (const Piece& piece : tensor.pieces)
        for_parts(piece_bytes(piece, tensor.dtype), [&](std::int64_t offset, std::int64_t bytes) {
          const std::byte* data = static_cast<const std::byte*>(piece.data) + offset;
          hash.add(data, static_cast<std::size_t>(bytes));
          file.write(data, bytes, at);
          at += bytes;
        });
    const std::uint64_t value = hash.value();
    file.write(&value, sizeof value, at);
    file.resize(at + static_cast<std::int64_t>(sizeof value));
    file.sync();
    rename_part(part, path);
  } catch (...) {
    std::error_code ignored;
    std::filesystem::remove(part, ignored);
    throw;
  }
}

ShardHeader read_shard_header(const std::filesystem::path& path) { return Input(path).header(); }

void verify_shard(const std::filesystem::path& path) {
  Input input(path);
  const ShardHeader header = input.header();
  std::vector<std::byte> buffer(static_cast<std::size_t>(kChunkBytes));
  for (const std::int64_t piece : header.pieces)
    for_parts(piece,
              [&](std::int64_t, std::int64_t bytes) { input.payload(buffer.data(), bytes); });
  input.check_hash();
}

void read_shard(const std::filesystem::path& path, const std::vector<LocalTensor>& tensors,
                device::Backend* memory) {
  Input input(path);
  const ShardHeader header = input.header();
  if (header.layout != shard_layout(tensors)) input.fail("it belongs to another layout");
  std::vector<std::byte> staging;
  const bool direct = !memory || memory->is_host_memory();
  for (const LocalTensor& tensor : tensors)
    for (const Piece& piece : tensor.pieces)
      for_parts(piece_bytes(piece, tensor.dtype), [&](std::int64_t offset, std::int64_t bytes) {
        std::byte* data = static_cast<std::byte*>(piece.data) + offset;
        if (direct) return input.payload(data, bytes);
        staging.resize(static_cast<std::size_t>(bytes));
        input.payload(staging.data(), bytes);
        memory->upload(data, staging.data(), staging.size());
      });
  input.check_hash();
}

void remove_shards(const std::filesystem::path& folder,
                   const std::function<bool(std::int64_t)>& is_old) {
  std::error_code ignored;
  for (const auto& [name, path] : list_shards(folder))
    if (is_old(name.iteration)) std::filesystem::remove(path, ignored);
}

void remove_unfinished_shards(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const std::filesystem::path& path : entries_of(folder))
    if (path.extension() == ".part" && parse_shard_name(path.stem().string()))
      std::filesystem::remove(path, ignored);
}

}  // namespace trireme::checkpoint
