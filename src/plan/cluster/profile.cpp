#include "plan/cluster/cluster.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/error.hpp"
#include "core/files.hpp"

namespace trireme::plan {
namespace {

/// {embedding, block, head} of `key`, which is milliseconds; nothing where it is not given.
std::optional<UnitSeconds> read_units(Section& section, const std::string& key,
                                      const std::string& name, deck::Problems& problems) {
  const deck::Item* item = section.section(key);
  if (!item) return std::nullopt;
  Section parts(*item, name + "." + key, problems);
  UnitSeconds units;
  for (const auto& [part, value] :
       {std::pair{"embedding", &units.embedding}, {"block", &units.block}, {"head", &units.head}}) {
    parts.require(part, "milliseconds of this part of the model");
    *value = parts.number(part, 0, kNotNegative) * 1e-3;
  }
  parts.finish();
  return units;
}

/// What `trireme-bench profile` measures in addition to forward passes; nothing without
/// backward_ms.
std::optional<MeasuredPasses> read_own(Section& section, const std::string& name,
                                       deck::Problems& problems) {
  const auto backward = read_units(section, "backward_ms", name, problems);
  if (!backward) return std::nullopt;
  for (const char* key : {"family", "compute", "ffn", "vocab", "weight_gradient_ms"})
    section.require(key, "of a profile with backward_ms");
  MeasuredPasses own{.family = section.choice<deck::Family>("family"),
                     .compute = section.choice<deck::Compute>("compute"),
                     .dropout = section.flag("dropout", false),
                     .sequence_parallel = section.flag("sequence_parallel", false),
                     .ffn = section.whole("ffn", 1, kCount),
                     .vocab = section.whole("vocab", 1, {.low = 1, .high = 1 << 30}),
                     .backward = *backward};
  own.weight_gradient =
      read_units(section, "weight_gradient_ms", name, problems).value_or(UnitSeconds{});
  if (const deck::Item* item = section.section("recompute_ms")) {
    Section recompute(*item, name + ".recompute_ms", problems);
    own.recompute_full = recompute.number("full", 0, kNotNegative) * 1e-3;
    own.recompute_selective = recompute.number("selective", 0, kNotNegative) * 1e-3;
    recompute.finish();
  }
  own.tensor_forward = read_units(section, "tensor_forward_ms", name, problems);
  own.tensor_backward = read_units(section, "tensor_backward_ms", name, problems);
  return own;
}

MeasuredCollective read_collective(const deck::Item& item, const std::string& name,
                                   deck::Problems& problems) {
  Section section(item, name, problems);
  for (const char* key : {"operation", "ranks", "mib", "us"})
    section.require(key, "{operation: all-reduce, ranks: 2, mib: 16, us: 90}");
  MeasuredCollective collective{.operation = section.text("operation", "all-reduce"),
                                .ranks = section.whole("ranks", 2, {.low = 2, .high = 1 << 20}),
                                .bytes = section.number("mib", 1, kPositive) * (1 << 20),
                                .seconds = section.number("us", 1, kPositive) * 1e-6};
  section.finish();
  return collective;
}

MeasuredGpu read_measured(const deck::Item& item, const std::filesystem::path& folder,
                          deck::Problems& problems) {
  Section section(item, "", problems);
  section.require("name", "the GPU's name");
  MeasuredGpu gpu{.name = section.text("name", ""),
                  .launch = section.number("launch_us", 0, kLatency) * 1e-6,
                  .copy = section.has("copy") ? section.rate("copy") : 0,
                  .to_host = section.has("copy_to_host") ? section.rate("copy_to_host") : 0,
                  .from_host = section.has("copy_from_host") ? section.rate("copy_from_host") : 0,
                  .optimizer = section.number("optimizer_ps", 0, kNotNegative) * 1e-12,
                  .optimizer_constant = section.number("optimizer_us", 0, kNotNegative) * 1e-6};
  int index = 0;
  for (const deck::Item* collective : section.list("collectives"))
    gpu.collectives.push_back(
        read_collective(*collective, fmt::format("collectives[{}]", index++), problems));
  index = 0;
  for (const deck::Item* profile : section.list("profiles"))
    gpu.profiles.push_back(
        read_profile(*profile, fmt::format("profiles[{}]", index++), folder, problems));
  section.finish();
  return gpu;
}

/// Bytes that each link carries for a byte of the tensor.
double link_share(const std::string& operation, double ranks) {
  if (operation == "send") return 1;
  return (operation == "all-reduce" ? 2 : 1) * (ranks - 1) / ranks;
}

std::string to_yaml(const char* key, const UnitSeconds& units) {
  return fmt::format("{}: {{embedding: {:.5g}, block: {:.5g}, head: {:.5g}}}", key,
                     1e3 * units.embedding, 1e3 * units.block, 1e3 * units.head);
}

std::string to_yaml(const Profile& profile) {
  const MeasuredPasses& own = profile.own.value();
  std::string text = fmt::format(
      "  - family: {}\n    hidden: {}\n    heads: {}\n    ffn: {}\n    sequence: {}\n    vocab: "
      "{}\n"
      "    compute: {}\n    dropout: {}\n    tensor: {}\n    sequence_parallel: {}\n    micro: {}\n"
      "    {}\n    {}\n    {}\n    recompute_ms: {{full: {:.5g}, selective: {:.5g}}}\n",
      name_of(own.family), profile.hidden, profile.heads, own.ffn, profile.sequence, own.vocab,
      name_of(own.compute), own.dropout, profile.tensor, own.sequence_parallel, profile.micro,
      to_yaml("forward_ms", profile.forward), to_yaml("backward_ms", own.backward),
      to_yaml("weight_gradient_ms", own.weight_gradient), 1e3 * own.recompute_full,
      1e3 * own.recompute_selective);
  if (own.tensor_forward)
    text += fmt::format("    {}\n", to_yaml("tensor_forward_ms", *own.tensor_forward));
  if (own.tensor_backward)
    text += fmt::format("    {}\n", to_yaml("tensor_backward_ms", *own.tensor_backward));
  return text;
}

}  // namespace

bool Profile::same_passes(const Profile& other) const {
  const auto key = [](const Profile& p) {
    return std::make_tuple(p.layers, p.hidden, p.heads, p.sequence, p.tensor, p.micro,
                           p.own.has_value());
  };
  const auto own_key = [](const MeasuredPasses& p) {
    return std::make_tuple(p.family, p.compute, p.dropout, p.sequence_parallel, p.ffn, p.vocab);
  };
  return key(*this) == key(other) && (!own || own_key(*own) == own_key(*other.own));
}

void MeasuredGpu::update(const MeasuredGpu& newer) {
  name = newer.name;
  const auto take = [](double& value, double measured) {
    if (measured > 0) value = measured;
  };
  take(launch, newer.launch);
  take(copy, newer.copy);
  take(to_host, newer.to_host);
  take(from_host, newer.from_host);
  if (newer.optimizer > 0) {
    optimizer = newer.optimizer;
    optimizer_constant = newer.optimizer_constant;
  }
  for (const MeasuredCollective& measured : newer.collectives) {
    std::erase_if(collectives, [&](const MeasuredCollective& c) {
      return c.operation == measured.operation && c.ranks == measured.ranks &&
             c.bytes == measured.bytes;
    });
    collectives.push_back(measured);
  }
  for (const Profile& measured : newer.profiles) {
    const auto found = std::ranges::find_if(
        profiles, [&](const Profile& profile) { return profile.same_passes(measured); });
    if (found == profiles.end()) {
      profiles.push_back(measured);
      continue;
    }
    // One rank does not measure the collectives of tensor ranks.
    const auto forward = found->own->tensor_forward, backward = found->own->tensor_backward;
    *found = measured;
    if (!found->own->tensor_forward) {
      found->own->tensor_forward = forward;
      found->own->tensor_backward = backward;
    }
  }
}

std::optional<double> MeasuredGpu::collective(const std::string& operation, double ranks,
                                              double bytes) const {
  // Of the group whose size is nearest, by the bytes that each link carries.
  double nearest = 0;
  const auto distance = [&](double size) { return std::abs(std::log(size / ranks)); };
  for (const MeasuredCollective& c : collectives)
    if (c.operation == operation &&
        (nearest == 0 || distance(static_cast<double>(c.ranks)) < distance(nearest)))
      nearest = static_cast<double>(c.ranks);
  if (nearest == 0) return std::nullopt;
  std::vector<std::pair<double, double>> points;  // bytes on each link, seconds
  for (const MeasuredCollective& c : collectives)
    if (c.operation == operation && static_cast<double>(c.ranks) == nearest)
      points.emplace_back(c.bytes * link_share(operation, nearest), c.seconds);
  std::ranges::sort(points);
  const double carried = bytes * link_share(operation, ranks);
  const auto& largest = points.back();
  if (carried >= largest.first) return largest.second * carried / largest.first;
  if (carried <= points.front().first) return points.front().second;
  const auto above = std::ranges::lower_bound(points, std::pair{carried, 0.0});
  const auto below = above - 1;
  const double share = (carried - below->first) / (above->first - below->first);
  return below->second + share * (above->second - below->second);
}

MeasuredGpu parse_measured_gpu(const std::string& text, const std::filesystem::path& path) {
  return parse_file(text, path, [&](const deck::Item& item, deck::Problems& problems) {
    return read_measured(item, path.parent_path(), problems);
  });
}

MeasuredGpu load_measured_gpu(const std::filesystem::path& path) {
  return parse_measured_gpu(read_file(path), path);
}

std::string to_yaml(const MeasuredGpu& gpu, const std::string& comment) {
  std::string text = comment + fmt::format("name: {}\n", gpu.name);
  const auto line = [&](const char* key, double value, const char* unit) {
    if (value > 0) text += fmt::format("{}: {:.5g}{}\n", key, value, unit);
  };
  line("launch_us", 1e6 * gpu.launch, "");
  line("copy", 1e-9 * gpu.copy, " GB/s");
  line("copy_to_host", 1e-9 * gpu.to_host, " GB/s");
  line("copy_from_host", 1e-9 * gpu.from_host, " GB/s");
  line("optimizer_ps", 1e12 * gpu.optimizer, "");
  line("optimizer_us", 1e6 * gpu.optimizer_constant, "");
  if (!gpu.collectives.empty()) text += "collectives:\n";
  for (const MeasuredCollective& c : gpu.collectives)
    text += fmt::format("  - {{operation: {}, ranks: {}, mib: {:.5g}, us: {:.5g}}}\n", c.operation,
                        c.ranks, c.bytes / (1 << 20), 1e6 * c.seconds);
  if (!gpu.profiles.empty()) text += "profiles:\n";
  for (const Profile& profile : gpu.profiles) text += to_yaml(profile);
  return text;
}

Profile read_profile(const deck::Item& item, const std::string& name,
                     const std::filesystem::path& folder, deck::Problems& problems) {
  Section section(item, name, problems);
  Profile profile;
  const std::string known_cost = section.text("known_cost", "");
  if (!known_cost.empty()) {
    if (section.has("forward_ms"))
      section.refuse("forward_ms", "known_cost gives the times, too; leave one of them out");
    profile = read_known_cost(folder / known_cost);
  } else if (const auto forward = read_units(section, "forward_ms", name, problems)) {
    profile.forward = *forward;
  } else {
    section.require("forward_ms", "times of embedding, block and head; or known_cost: FILE.npy");
  }
  section.require("hidden", "width of the model that was measured");
  section.require("heads", "attention heads of the model that was measured");
  section.require("sequence", "tokens of a sample that was measured");
  profile.layers = section.whole("layers", profile.layers, kCount);
  profile.hidden = section.whole("hidden", 0, kCount);
  profile.heads = section.whole("heads", 0, kCount);
  profile.sequence = section.whole("sequence", 0, {.low = 1, .high = 1 << 24});
  profile.tensor = section.whole("tensor", 1, kCount);
  profile.micro = section.whole("micro", 1, kCount);
  profile.backward = section.number("backward", 2, kPositive);
  profile.optimizer = section.number("optimizer_ps", 0, kNotNegative) * 1e-12;
  profile.own = read_own(section, name, problems);
  section.finish();
  return profile;
}

Profile read_known_cost(const std::filesystem::path& path) {
  static_assert(std::endian::native == std::endian::little);
  const std::string content = read_file(path);
  const auto refuse = [&](const char* why) {
    throw DataError("'{}': not a known_cost vector: {}", path.string(), why);
  };
  if (content.size() < 10 || !content.starts_with("\x93NUMPY")) refuse("not a .npy file");
  const auto byte = [&](std::size_t at) {
    return std::size_t{static_cast<unsigned char>(content[at])};
  };
  const bool wide = byte(6) > 1;
  std::size_t start = wide ? 12 : 10, length = byte(8) | byte(9) << 8;
  if (wide && content.size() >= 12) length |= byte(10) << 16 | byte(11) << 24;
  if (content.size() < start + length) refuse("truncated");
  const std::string header = content.substr(start, length);
  if (header.find("'<f8'") == std::string::npos) refuse("its elements are not float64 ('<f8')");
  start += length;
  const std::size_t bytes = content.size() - start, units = bytes / sizeof(double);
  if (bytes % sizeof(double) != 0 || header.find(fmt::format("({},)", units)) == std::string::npos)
    refuse("its shape is not that of its elements, one axis");
  if (units < 3) refuse("fewer than an embedding, a layer and a head");
  std::vector<double> seconds(units);
  std::memcpy(seconds.data(), content.data() + start, bytes);
  for (const double value : seconds)
    if (!(value >= 0 && value < 1e4)) refuse("a time is negative or not finite");
  Profile profile{.layers = static_cast<std::int64_t>(units) - 2};
  profile.forward.embedding = seconds.front();
  profile.forward.head = seconds.back();
  for (std::size_t i = 1; i + 1 < units; ++i)
    profile.forward.block += seconds[i] / static_cast<double>(units - 2);
  return profile;
}

}  // namespace trireme::plan
