// Files of torch.save(): both forms, and damaged ones. tests/regression/programs/foreign_test.py
// reads whole checkpoints.

#include <random>

#include "convert/megatron/foreign.hpp"
#include "convert/torch/archive.hpp"
#include "core/error.hpp"
#include "fixture.hpp"

namespace trireme::convert::torch {
namespace {

// {"model": {"w": fp16 [[0, 1, 2], [3, 4, 5]], "b": fp32 [0.5, -1], a view}, "n": 5, "args":
// Namespace(x=1.5, big=2**40)}: the pickle of the zip archive, and a whole file of the older form.
constexpr std::string_view kPickleHex =
    "80027d71002858050000006d6f64656c71017d710228580100000077710363746f7263682e5f7574696c730a5f"
    "72656275696c645f74656e736f725f76320a71042828580700000073746f72616765710563746f7263680a4861"
    "6c6653746f726167650a71065801000000307107580300000063707571084b06747109514b004b024b0386710a"
    "4b034b0186710b8963636f6c6c656374696f6e730a4f726465726564446963740a710c2952710d74710e52710f"
    "580100000062711068042828680563746f7263680a466c6f617453746f726167650a7111580100000031711268"
    "084b03747113514b014b028571144b0185711589680c295271167471175271187558010000006e71194b055804"
    "00000061726773711a6361726770617273650a4e616d6573706163650a711b2981711c7d711d28580100000078"
    "711e473ff80000000000005803000000626967711f8a060000000000017562752e";
constexpr std::string_view kLegacyHex =
    "80028a0a6cfc9c46f9206aa850192e80024de9032e80027d7100580d0000006c6974746c655f656e6469616e71"
    "0188732e80027d71002858050000006d6f64656c71017d710228580100000077710363746f7263682e5f757469"
    "6c730a5f72656275696c645f74656e736f725f76320a71042828580700000073746f72616765710563746f7263"
    "680a48616c6653746f726167650a71065801000000307107580300000063707571084b064e747109514b004b02"
    "4b0386710a4b034b0186710b8963636f6c6c656374696f6e730a4f726465726564446963740a710c2952710d74"
    "710e52710f580100000062711068042828680563746f7263680a466c6f617453746f726167650a711158010000"
    "0031711268084b034e747113514b014b028571144b0185711589680c295271167471175271187558010000006e"
    "71194b05580400000061726773711a6361726770617273650a4e616d6573706163650a711b2981711c7d711d28"
    "580100000078711e473ff80000000000005803000000626967711f8a060000000000017562752e80025d710028"
    "58010000003071015801000000317102652e06000000000000000000003c004000420044004503000000000000"
    "00000000000000003f000080bf";

std::string bytes_of(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

void put(std::string& bytes, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i, value >>= 8) bytes += static_cast<char>(value & 0xFF);
}

/// A zip archive of stored entries.
std::string zip_of(const std::vector<std::pair<std::string, std::string>>& entries) {
  std::string zip, directory;
  for (const auto& [name, data] : entries) {
    std::string common;  // version to CRC, then sizes and lengths
    put(common, 0, 10);
    put(common, 0, 4);
    put(common, data.size(), 4);
    put(common, data.size(), 4);
    put(common, name.size(), 2);
    put(common, 0, 2);
    directory += "PK\x01\x02";
    put(directory, 0, 2);
    directory += common;
    put(directory, 0, 10);
    put(directory, zip.size(), 4);
    directory += name;
    zip += "PK\x03\x04" + common + name + data;
  }
  const std::size_t begin = zip.size();
  zip += directory + "PK\x05\x06";
  put(zip, 0, 4);
  put(zip, entries.size(), 2);
  put(zip, entries.size(), 2);
  put(zip, directory.size(), 4);
  put(zip, begin, 4);
  put(zip, 0, 2);
  return zip;
}

std::string sample() {
  const std::string legacy = bytes_of(kLegacyHex);
  const std::string b = legacy.substr(legacy.size() - 12),
                    w = legacy.substr(legacy.size() - 32, 12);
  return zip_of({{"x/data.pkl", bytes_of(kPickleHex)}, {"x/data/0", w}, {"x/data/1", b}});
}

class TorchFile : public FolderTest {};

TEST_F(TorchFile, BothFormsHaveTheSameContent) {
  for (const std::string& content : {sample(), bytes_of(kLegacyHex)}) {
    const Archive archive(file("a.pt", content));
    const Value& root = archive.root();
    EXPECT_EQ(root.find("n")->integer, 5);
    const Value& args = *root.find("args");
    EXPECT_EQ(args.class_name(), "argparse.Namespace");
    EXPECT_EQ(args.find("x")->real, 1.5);
    EXPECT_EQ(args.find("big")->integer, std::int64_t{1} << 40);
    const auto tensors = megatron::flatten(*root.find("model"));
    ASSERT_EQ(tensors.size(), 2u);
    EXPECT_EQ(tensors[0].first, "w");
    EXPECT_EQ(tensors[0].second.shape, (std::vector<std::int64_t>{2, 3}));
    EXPECT_EQ(archive.read(tensors[0].second), (std::vector<float>{0, 1, 2, 3, 4, 5}));
    EXPECT_EQ(archive.read(tensors[1].second), (std::vector<float>{0.5f, -1}));
    Tensor turned = tensors[0].second;
    turned.shape = {3, 2};
    turned.strides = {1, 3};
    EXPECT_EQ(archive.read(turned), (std::vector<float>{0, 3, 1, 4, 2, 5}));
    turned.strides = {2, 3};
    EXPECT_NE(message_of<DataError>([&] { archive.read(turned); }).find("outside its storage"),
              std::string::npos);
  }
}

TEST_F(TorchFile, NothingIsCalled) {
  // os.system("touch called"), as pickle.loads() would run it.
  const std::string evil = "cos\nsystem\n(S'touch called'\ntR.";
  const Archive archive(file("a.pt", zip_of({{"x/data.pkl", evil}})));
  EXPECT_EQ(archive.root().class_name(), "os.system");
  EXPECT_FALSE(std::filesystem::exists("called"));
}

TEST_F(TorchFile, DamagedFilesAreErrors) {
  std::mt19937 random(1);
  int readable = 0;
  for (const std::string& whole : {sample(), bytes_of(kLegacyHex)})
    for (int i = 0; i < 300; ++i) {
      std::string content = whole;
      for (unsigned n = random() % 3 + 1; n > 0; --n) {
        const std::size_t at = random() % content.size();
        if (random() % 4 == 0)
          content.resize(at + 1);
        else
          content[at] = static_cast<char>(random());
      }
      try {
        const Archive archive(file("a.pt", content));
        for (const auto& [name, tensor] : megatron::flatten(archive.root()))
          if (tensor.dtype) archive.read(tensor);
        ++readable;
      } catch (const DataError&) {
      }
    }
  EXPECT_GT(readable, 10);
  EXPECT_LT(readable, 590);
}

TEST_F(TorchFile, SharedDictsDoNotMultiply) {
  // Each level holds the one before it ten times: a billion paths to nine dicts.
  std::string pickle = "}q\x01U\x01xK\x01s";
  for (int level = 1; level < 15; ++level) {
    pickle += "}";
    for (char key = 'a'; key < 'k'; ++key)
      pickle += std::string("U\x01") + key + "h" + static_cast<char>(level) + "s";
    pickle += "q" + std::string(1, static_cast<char>(level + 1));
  }
  const Archive archive(file("a.pt", zip_of({{"x/data.pkl", pickle + "."}})));
  EXPECT_EQ(message_of<DataError>([&] { megatron::flatten(archive.root()); }),
            "a state dict has more than 1000000 entries");
}

}  // namespace
}  // namespace trireme::convert::torch
