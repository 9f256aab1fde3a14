#include "plan/cluster/cluster.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "../message_of.hpp"
#include "../scratch_folder.hpp"
#include "core/error.hpp"

namespace trireme::plan {
namespace {

constexpr const char* kGpu =
    "name: G\nmemory: 24GB\npeak: {fp16: 100}\nbandwidth: 600 GB/s\n"
    "profiles:\n  - {hidden: 64, heads: 4, sequence: 32, forward_ms: {embedding: 1, block: 2, "
    "head: "
    "3}}\n";

class ClusterFile : public testing::Test {
 protected:
  ClusterFile() {
    std::filesystem::create_directory(folder() / "gpus");
    write("gpus/g.yaml", kGpu);
  }
  std::filesystem::path folder() const { return scratch_.path(); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(folder() / name, std::ios::binary) << text;
  }
  Cluster parse(const std::string& text) const { return parse_cluster(text, folder() / "c.yaml"); }
  std::string problem(const std::string& text) const {
    std::string message = message_of<DeckError>([&] { parse(text); });
    const std::string prefix = folder().string() + "/";
    for (std::size_t at; (at = message.find(prefix)) != std::string::npos;)
      message.erase(at, prefix.size());
    return message;
  }

 private:
  ScratchFolder scratch_;
};

TEST_F(ClusterFile, IsRead) {
  const Cluster cluster = parse(
      "name: two\nnodes:\n  - {gpu: g, count: 3, gpus: 4, link: 40 GB/s, network: 100 Gbit/s, "
      "price: 7.2}\n  - {gpu: gpus/g.yaml, gpus: 2}\n");
  EXPECT_EQ(cluster.gpus(), 14);
  ASSERT_EQ(cluster.nodes.size(), 2u);
  EXPECT_DOUBLE_EQ(*cluster.nodes[0].link, 40e9);
  EXPECT_DOUBLE_EQ(*cluster.nodes[0].network, 12.5e9);
  EXPECT_DOUBLE_EQ(*cluster.nodes[0].price, 7.2);
  EXPECT_FALSE(cluster.has_links());
  EXPECT_FALSE(cluster.has_prices());
  const GpuKind& gpu = cluster.nodes[1].gpu;
  EXPECT_DOUBLE_EQ(gpu.memory, 24e9);
  EXPECT_DOUBLE_EQ(gpu.peak_of(deck::Compute::fp16), 100e12);
  EXPECT_DOUBLE_EQ(gpu.peak_of(deck::Compute::bf16), 0);
  EXPECT_DOUBLE_EQ(gpu.profiles.at(0).forward.block, 2e-3);
}

TEST_F(ClusterFile, NamesEveryError) {
  EXPECT_EQ(problem("nodes:\n  - {gpu: g, cuont: 3, gpus: 0, link: 40}\n  - {gpus: 2}\n"
                    "  - {gpu: nothing, gpus: 1, gpus: 2}\n"),
            "c.yaml:2:14: unknown key 'nodes[0].cuont' — did you mean 'count'?\n"
            "c.yaml:2:30: nodes[0].gpus = 0: must be from 1 to 1024\n"
            "c.yaml:2:39: nodes[0].link = 40: expected a rate above 0 and up to 1000 TB/s, such as "
            "25 GB/s or 200 Gbit/s\n"
            "c.yaml:3:5: missing key 'nodes[1].gpu': a kind of GPU: the name of a file in the "
            "folder gpus, or a path\n"
            "c.yaml:4:11: nodes[2].gpu: there is no file 'gpus/nothing.yaml'\n"
            "c.yaml:4:29: key 'nodes[2].gpus' is given twice\n"
            "6 errors; nothing was planned. 'trireme-plan --help cluster' lists every key.");
  write("gpus/bad.yaml", "name: B\nmemory: lots\nbandwidth: 1 TB/s\npeak: {fp8: 1}\n");
  EXPECT_EQ(problem("nodes: [{gpu: bad, gpus: 1}]\n"),
            "gpus/bad.yaml:2:9: memory = lots: expected a size, such as 80GiB, 80GB or 81920M\n"
            "gpus/bad.yaml:4:8: unknown key 'peak.fp8'\n"
            "2 errors; nothing was planned. 'trireme-plan --help cluster' lists every key.");
}

TEST_F(ClusterFile, RefusesNumbersThatNoMachineHas) {
  EXPECT_EQ(problem("network_latency_us: 1e300\nlink_latency_us: -1\n"
                    "nodes: [{gpu: g, gpus: 1, price: 1e99, link: 1e200 GB/s}]\n"),
            "c.yaml:1:21: network_latency_us = 1e300: must be from 0 to 1000000\n"
            "c.yaml:2:18: link_latency_us = -1: must be from 0 to 1000000\n"
            "c.yaml:3:34: nodes[0].price = 1e99: must be from 0 to 1000000000\n"
            "c.yaml:3:46: nodes[0].link = 1e200 GB/s: expected a rate above 0 and up to 1000 TB/s, "
            "such as 25 GB/s or 200 Gbit/s\n"
            "4 errors; nothing was planned. 'trireme-plan --help cluster' lists every key.");
}

std::string npy(const std::vector<double>& values, const std::string& type = "<f8") {
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({},), }}",
                                   type, values.size());
  header.resize(117, ' ');
  header += '\n';
  std::string text("\x93NUMPY\x01\x00", 8);
  text += static_cast<char>(header.size());
  text += '\0';
  text += header;
  text.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  return text;
}

TEST_F(ClusterFile, ReadsFasopsKnownCost) {
  write("gpus/cost.npy", npy({0.3e-3, 2e-3, 4e-3, 1e-3}));
  const Profile profile = read_known_cost(folder() / "gpus/cost.npy");
  EXPECT_EQ(profile.layers, 2);
  EXPECT_DOUBLE_EQ(profile.forward.embedding, 0.3e-3);
  EXPECT_DOUBLE_EQ(profile.forward.block, 3e-3);
  EXPECT_DOUBLE_EQ(profile.forward.head, 1e-3);
  write("gpus/k.yaml",
        "name: K\nmemory: 1GB\npeak: {fp16: 1}\nbandwidth: 1 GB/s\n"
        "profiles: [{hidden: 8, heads: 2, sequence: 4, tensor: 2, known_cost: cost.npy}]\n");
  const Cluster cluster = parse("nodes: [{gpu: k, gpus: 2}]\n");
  EXPECT_EQ(cluster.nodes[0].gpu.profiles.at(0).layers, 2);
  EXPECT_EQ(cluster.nodes[0].gpu.profiles.at(0).tensor, 2);

  const auto refusal = [&](const std::string& content) {
    write("bad.npy", content);
    const std::string message =
        message_of<DataError>([&] { read_known_cost(folder() / "bad.npy"); });
    return message.substr(message.find(": ") + 2);
  };
  EXPECT_EQ(refusal("nothing"), "not a known_cost vector: not a .npy file");
  EXPECT_EQ(refusal(npy({1, 2, 3}, "<f4")),
            "not a known_cost vector: its elements are not float64 ('<f8')");
  EXPECT_EQ(refusal(npy({1, 2})),
            "not a known_cost vector: fewer than an embedding, a layer and a head");
  EXPECT_EQ(refusal(npy({1, -2, 3})), "not a known_cost vector: a time is negative or not finite");
  EXPECT_EQ(refusal(npy({1, 2, 3}).substr(0, 140)),
            "not a known_cost vector: its shape is not that of its elements, one axis");
}

Profile measured_profile(std::int64_t micro, double block) {
  return {.hidden = 64,
          .heads = 4,
          .sequence = 32,
          .micro = micro,
          .forward = {1e-3, block, 3e-3},
          .own = MeasuredPasses{.family = deck::Family::gpt,
                                .compute = deck::Compute::bf16,
                                .dropout = true,
                                .ffn = 256,
                                .vocab = 512,
                                .backward = {1e-3, 2 * block, 5e-3},
                                .weight_gradient = {0, 0.9 * block, 0},
                                .recompute_full = 0.8 * block,
                                .tensor_forward = UnitSeconds{1e-5, 2e-5, 3e-5},
                                .tensor_backward = UnitSeconds{0, 1e-5, 3e-5}}};
}

TEST_F(ClusterFile, ReadsWhatTheProfilerWrites) {
  MeasuredGpu gpu{.name = "G", .launch = 2e-6, .copy = 2e12, .optimizer = 1e-11};
  gpu.collectives = {{"all-reduce", 2, 1 << 20, 5e-5}, {"all-reduce", 2, 3 << 20, 9e-5}};
  gpu.profiles = {measured_profile(1, 1e-3)};
  const MeasuredGpu read = parse_measured_gpu(to_yaml(gpu, "# of a test\n"), "p.yaml");
  EXPECT_EQ(to_yaml(read, ""), to_yaml(gpu, ""));
  ASSERT_EQ(read.profiles.size(), 1u);
  EXPECT_TRUE(read.profiles[0].same_passes(gpu.profiles[0]));
  EXPECT_DOUBLE_EQ(read.profiles[0].own->tensor_backward->block, 1e-5);

  // Between sizes; below the smallest its latency; above the largest its rate; a group of four by
  // the bytes on each link: 3/2 of two ranks'.
  EXPECT_DOUBLE_EQ(*read.collective("all-reduce", 2, 2 << 20), 7e-5);
  EXPECT_DOUBLE_EQ(*read.collective("all-reduce", 2, 1000), 5e-5);
  EXPECT_DOUBLE_EQ(*read.collective("all-reduce", 2, 6 << 20), 18e-5);
  EXPECT_DOUBLE_EQ(*read.collective("all-reduce", 4, 2 << 20), 9e-5);
  EXPECT_FALSE(read.collective("all-gather", 2, 1000));

  // A newer measurement replaces that of the same passes, and keeps what one rank cannot measure.
  MeasuredGpu newer{.name = "G",
                    .profiles = {measured_profile(1, 2e-3), measured_profile(4, 8e-3)}};
  newer.profiles[0].own->tensor_forward.reset();
  newer.profiles[0].own->tensor_backward.reset();
  gpu.update(newer);
  ASSERT_EQ(gpu.profiles.size(), 2u);
  EXPECT_DOUBLE_EQ(gpu.profiles[0].forward.block, 2e-3);
  EXPECT_DOUBLE_EQ(gpu.profiles[0].own->tensor_forward->head, 3e-5);
  EXPECT_DOUBLE_EQ(gpu.launch, 2e-6);

  write("gpus/p.yaml", to_yaml(gpu, ""));
  write("gpus/m.yaml", std::string(kGpu) + "measured: p.yaml\n");
  EXPECT_EQ(parse("nodes: [{gpu: m, gpus: 1}]\n").nodes[0].gpu.measured->profiles.size(), 2u);
  write("gpus/m.yaml", std::string(kGpu) + "measured: q.yaml\n");
  EXPECT_EQ(problem("nodes: [{gpu: m, gpus: 1}]\n"),
            "gpus/m.yaml:7:11: measured: there is no file 'gpus/q.yaml'\n"
            "1 error; nothing was planned. 'trireme-plan --help cluster' lists every key.");
  EXPECT_EQ(message_of<DeckError>([&] {
              parse_measured_gpu(
                  "name: G\nprofiles:\n  - {hidden: 64, heads: 4, sequence: 32, family: gtp,\n"
                  "     forward_ms: {embedding: 1, block: 2, head: 3}, ffn: 256, vocab: 5,\n"
                  "     backward_ms: {embedding: 1, block: 2}, compute: bf16}\n",
                  "p.yaml");
            }),
            "p.yaml:3:5: missing key 'profiles[0].weight_gradient_ms': of a profile with "
            "backward_ms\n"
            "p.yaml:3:50: profiles[0].family = gtp: expected gpt, bert, llama\n"
            "p.yaml:5:19: missing key 'profiles[0].backward_ms.head': milliseconds of this part of "
            "the model\n"
            "3 errors; nothing was planned. 'trireme-plan --help cluster' lists every key.");
}

}  // namespace
}  // namespace trireme::plan
