#include "checkpoint/local/shard.hpp"

#include <fcntl.h>
#include <fmt/ranges.h>
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
#include <set>
#include <system_error>
#include <utility>

#include "checkpoint/elements.hpp"
#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::checkpoint {
namespace {

// A shard: the magic, the header's bytes as a 64-bit number, the header (JSON), the payload, the
// hash of each piece of it, the hash of the header and of these hashes. Earlier versions wrote no
// names of the pieces and no hashes of them, but one of the header and all pieces.
constexpr std::string_view kShardMagic = "TRIREME SHARD 1\n";
constexpr std::int64_t kMaxHeaderBytes = std::int64_t{64} << 20;
/// Bytes that are read, hashed and sent at a time.
constexpr std::int64_t kCopyBytes = std::int64_t{8} << 20;

nlohmann::json to_json(const ShardHeader& header) {
  nlohmann::json attributes;
  for (const auto& [name, value] : header.attributes)
    std::visit([&, &key = name](const auto& each) { attributes[key] = each; }, value);
  return {{"iteration", header.iteration}, {"rank", header.rank},       {"ranks", header.ranks},
          {"attributes", attributes},      {"deck", header.deck},       {"layout", header.layout},
          {"pieces", header.pieces},       {"tensors", header.tensors}, {"save", header.save}};
}

ShardHeader from_json(const nlohmann::json& json) {
  ShardHeader header{.iteration = json.at("iteration").get<std::int64_t>(),
                     .rank = json.at("rank").get<int>(),
                     .ranks = json.at("ranks").get<int>(),
                     .deck = json.at("deck").get<std::string>(),
                     .layout = json.at("layout").get<std::uint64_t>(),
                     .pieces = json.at("pieces").get<std::vector<std::int64_t>>()};
  if (json.contains("tensors")) header.tensors = json.at("tensors").get<std::vector<std::string>>();
  if (json.contains("save")) header.save = json.at("save").get<std::string>();
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

/// Calls use(offset, bytes) for the consecutive parts of `bytes`.
template <typename Use>
void for_parts(std::int64_t bytes, const Use& use) {
  for (std::int64_t begin = 0; begin < bytes; begin += kCopyBytes)
    use(begin, std::min(kCopyBytes, bytes - begin));
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
    if (!header.tensors.empty() && header.tensors.size() != header.pieces.size())
      fail("its header is damaged");
    std::int64_t payload =
        size() - before - bytes - after -
        std::ssize(header.tensors) * static_cast<std::int64_t>(sizeof hashes_[0]);
    for (const std::int64_t piece : header.pieces) {
      if (piece < 0 || piece > payload) fail("it has lost its end");
      payload -= piece;
    }
    if (payload != 0) fail("its size is not right");
    hash_.add(text);
    one_hash_ = header.tensors.empty();
    return header;
  }
  /// Reads a piece of `bytes` of the payload, in parts, to place(offset); calls
  /// use(offset, bytes) after each.
  template <typename Place, typename Use>
  void piece(std::int64_t bytes, const Place& place, const Use& use) {
    ContentHash hash;
    for_parts(bytes, [&](std::int64_t offset, std::int64_t part) {
      std::byte* const data = place(offset);
      read(data, part);
      hash.add(data, static_cast<std::size_t>(part));
      if (one_hash_) hash_.add(data, static_cast<std::size_t>(part));
      use(offset, part);
    });
    hashes_.push_back(hash.value());
  }
  /// After the payload of the file with `header`: compares the hashes of all that was read.
  void check_hashes(const ShardHeader& header) {
    std::vector<std::uint64_t> written(header.tensors.size());
    const auto bytes = written.size() * sizeof(std::uint64_t);
    read(written.data(), static_cast<std::int64_t>(bytes));
    if (!written.empty()) hash_.add(written.data(), bytes);
    std::uint64_t stored = 0;
    read(&stored, sizeof stored);
    if (stored != hash_.value())
      fail(one_hash_ ? "it is damaged: its checksum does not match"
                     : "its structure is damaged: its checksum does not match");
    if (!one_hash_ && written.size() != hashes_.size()) fail("its header is damaged");
    std::vector<std::string> damaged;
    for (std::size_t i = 0; i < written.size(); ++i)
      if (written[i] != hashes_[i] && (damaged.empty() || damaged.back() != header.tensors[i]))
        damaged.push_back(header.tensors[i]);
    if (!damaged.empty())
      fail(fmt::format("tensors are damaged, their checksums do not match: '{}'",
                       fmt::join(damaged, "', '")));
  }

 private:
  const std::filesystem::path path_;
  const int fd_;
  ContentHash hash_;                   ///< of the header and `hashes_`, or the payload
  bool one_hash_ = false;              ///< an earlier version wrote it
  std::vector<std::uint64_t> hashes_;  ///< of the pieces that were read
};

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
  header.tensors.clear();
  for (const LocalTensor& tensor : tensors)
    for (const Piece& piece : tensor.pieces) {
      header.pieces.push_back(piece_bytes(piece, tensor.dtype));
      header.tensors.push_back(tensor.name);
    }
  const std::int64_t payload =
      std::accumulate(header.pieces.begin(), header.pieces.end(), std::int64_t{0});
  std::vector<std::uint64_t> hashes;
  const auto hash_bytes = static_cast<std::int64_t>(header.pieces.size() * sizeof(std::uint64_t));
  const std::filesystem::path part = create_part(path);
  try {
    const std::string text = to_json(header).dump();
    const auto text_bytes = static_cast<std::int64_t>(text.size());
    std::string begin(kShardMagic);
    begin.append(reinterpret_cast<const char*>(&text_bytes), sizeof text_bytes).append(text);
    std::int64_t at = std::ssize(begin);
    ContentHash hash;
    hash.add(text);
    reserve_space(part, at + payload + hash_bytes + static_cast<std::int64_t>(sizeof hashes[0]));
    PartFile file(part, progressed);
    file.write(begin.data(), at, 0);
    for (const LocalTensor& tensor : tensors)
      for (const Piece& piece : tensor.pieces) {
        ContentHash of_piece;
        for_parts(piece_bytes(piece, tensor.dtype), [&](std::int64_t offset, std::int64_t bytes) {
          const std::byte* data = static_cast<const std::byte*>(piece.data) + offset;
          of_piece.add(data, static_cast<std::size_t>(bytes));
          file.write(data, bytes, at);
          at += bytes;
        });
        hashes.push_back(of_piece.value());
      }
    if (!hashes.empty()) hash.add(hashes.data(), static_cast<std::size_t>(hash_bytes));
    file.write(hashes.data(), hash_bytes, at);
    at += hash_bytes;
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

Verified verify_shard(const std::filesystem::path& path) {
  Input input(path);
  const ShardHeader header = input.header();
  std::vector<std::byte> buffer(static_cast<std::size_t>(kCopyBytes));
  Verified verified;
  for (const std::int64_t bytes : header.pieces) {
    input.piece(
        bytes, [&](std::int64_t) { return buffer.data(); }, [](std::int64_t, std::int64_t) {});
    verified.bytes += static_cast<double>(bytes);
  }
  input.check_hashes(header);
  verified.tensors = std::set(header.tensors.begin(), header.tensors.end()).size();
  return verified;
}

void read_shard(const std::filesystem::path& path, const std::vector<LocalTensor>& tensors,
                device::Backend* memory, const std::function<void()>& progressed) {
  Input input(path);
  const ShardHeader header = input.header();
  if (header.layout != shard_layout(tensors)) input.fail("it belongs to another layout or model");
  const bool direct = !memory || memory->is_host_memory();
  std::vector<std::byte> staging(direct ? 0 : static_cast<std::size_t>(kCopyBytes));
  for (const LocalTensor& tensor : tensors)
    for (const Piece& piece : tensor.pieces) {
      auto* const data = static_cast<std::byte*>(piece.data);
      input.piece(
          piece_bytes(piece, tensor.dtype),
          [&](std::int64_t offset) { return direct ? data + offset : staging.data(); },
          [&](std::int64_t offset, std::int64_t bytes) {
            if (!direct)
              memory->upload(data + offset, staging.data(), static_cast<std::size_t>(bytes));
            progressed();
          });
    }
  input.check_hashes(header);
}

void remove_shards(const std::filesystem::path& folder,
                   const std::function<bool(std::int64_t)>& is_old) {
  std::error_code ignored;
  for (const std::filesystem::path& path : entries_of(folder)) {
    const auto shard = path.extension() == kDamaged ? path.stem() : path.filename();
    const auto name = parse_shard_name(shard.string());
    if (name && is_old(name->iteration)) std::filesystem::remove(path, ignored);
  }
}

void remove_unfinished_shards(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const std::filesystem::path& path : entries_of(folder))
    if (path.extension() == ".part" && parse_shard_name(path.stem().string()))
      std::filesystem::remove(path, ignored);
}

}  // namespace trireme::checkpoint
