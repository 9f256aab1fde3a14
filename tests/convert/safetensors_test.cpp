#include "convert/huggingface/safetensors.hpp"

#include <sys/resource.h>

#include <bit>
#include <csignal>
#include <cstring>

#include "core/error.hpp"
#include "core/files.hpp"
#include "fixture.hpp"

namespace trireme::convert::huggingface {
namespace {

namespace fs = std::filesystem;

class SafetensorsTest : public FolderTest {
 protected:
  /// A file with this header and data, its length put in front.
  fs::path raw(const std::string& header, const std::string& data) const {
    const std::uint64_t length = header.size();
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    return file("raw.safetensors", bytes + header + data);
  }
  /// What is wrong with such a file, without its name.
  std::string problem(const std::string& header, const std::string& data) const {
    return problem(raw(header, data));
  }
  std::string problem(const fs::path& path) const {
    const std::string text = message_of<DataError>([&] { SafetensorsReader{path}; });
    const std::string name = fmt::format("'{}'", path.string());
    return text.starts_with(name) ? text.substr(name.size()) : text;
  }
};

TEST_F(SafetensorsTest, WritesTheFormatByteByByte) {
  const fs::path path = folder_ / "a.safetensors";
  SafetensorsWriter writer(path, {{"b", {2, 1}}, {"a", {1}}});
  writer.write(std::vector<float>{1.0f, -2.0f});
  writer.write(std::vector<float>{0.5f});
  EXPECT_FALSE(fs::exists(path));
  writer.finish();
  const std::string bytes = read_file(path);
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})";
  const std::size_t padded = (header.size() + 7) / 8 * 8;
  ASSERT_EQ(bytes.size(), 8 + padded + 12);
  EXPECT_EQ(bytes.substr(0, 8), std::string(1, static_cast<char>(padded)) + std::string(7, '\0'));
  EXPECT_EQ(bytes.substr(8, padded), header + std::string(padded - header.size(), ' '));
  EXPECT_EQ(bytes.substr(8 + padded),
            std::string("\x00\x00\x80\x3F\x00\x00\x00\xC0\x00\x00\x00\x3F", 12));
}

TEST_F(SafetensorsTest, LeavesNothingUnfinished) {
  const fs::path path = folder_ / "a.safetensors";
  {
    SafetensorsWriter writer(path, {{"a", {2}}});
    EXPECT_THROW(writer.write(std::vector<float>{1.0f}), InternalError);
    EXPECT_THROW(writer.finish(), InternalError);
  }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SafetensorsTest, LeavesNothingOnAFullDisk) {
  rlimit before;
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{1000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const fs::path path = folder_ / "a.safetensors";
  // A header longer than the stream's buffer, then elements.
  const std::string text = message_of<IoError>([&] {
    SafetensorsWriter(path, {{std::string(100'000, 'a'), {1}}});
  });
  const std::string later = message_of<IoError>([&] {
    SafetensorsWriter writer(path, {{"a", {100'000}}});
    writer.write(std::vector<float>(100'000));
    writer.finish();
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  for (const std::string& problem : {text, later})
    EXPECT_EQ(problem, "cannot write '" + path.string() + ".part': File too large");
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(SafetensorsTest, ReadsBackEveryBit) {
  std::vector<float> values;
  for (const std::uint32_t bits :
       {0u, 0x80000000u, 1u, 0x7F800000u, 0x7F800001u, 0x7FC12345u, 0x3DCCCCCDu, 0xFF7FFFFFu})
    values.push_back(std::bit_cast<float>(bits));
  const fs::path path = folder_ / "a.safetensors";
  SafetensorsWriter writer(path, {{"x", {2, 4}}});
  writer.write(values);
  writer.finish();
  const SafetensorsReader reader(path);
  ASSERT_NE(reader.find("x"), nullptr);
  EXPECT_EQ(to_string(reader.find("x")->shape), "[2, 4]");
  const std::vector<float> read = reader.read(*reader.find("x"));
  EXPECT_EQ(std::memcmp(read.data(), values.data(), 32), 0);
  EXPECT_EQ(reader.find("y"), nullptr);
}

TEST_F(SafetensorsTest, ReadsHalfTypesExactly) {
  const SafetensorsReader reader(
      raw(R"({"h":{"dtype":"F16","shape":[2],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},)"
          R"("m":{"dtype":"U8","shape":[1,1,1,1],"data_offsets":[8,9]}})",
          std::string("\x00\x3C\x01\x00\x80\x3F\x80\xC0\x01", 9)));
  EXPECT_EQ(reader.read(*reader.find("h")), (std::vector<float>{1.0f, 0x1p-24f}));
  EXPECT_EQ(reader.read(*reader.find("b")), (std::vector<float>{1.0f, -4.0f}));
  EXPECT_NE(message_of<DataError>([&] {
              reader.read(*reader.find("m"));
            }).find("tensor 'm' is U8; weights are F32, F16, BF16 or F64"),
            std::string::npos);
}

TEST_F(SafetensorsTest, RefusesWhatATypeCannotHold) {
  const auto problem = [&](DType dtype, float value) {
    SafetensorsWriter writer(folder_ / "types.safetensors", {{"w", {2}}}, dtype);
    const std::string text = message_of<DataError>([&] {
      writer.write(std::vector<float>{1, value});
    });
    return text.substr(std::min(text.find(": tensor") + 2, text.size()));
  };
  EXPECT_EQ(problem(DType::f16, -65520.0f),
            "tensor 'w' has -65520 at element 1, which fp16 cannot hold (--dtype fp32 can)");
  EXPECT_EQ(problem(DType::f16, 65519.0f), "");
  EXPECT_EQ(problem(DType::f16, std::numeric_limits<float>::quiet_NaN()), "");
  EXPECT_EQ(problem(DType::bf16, 3.4e38f),
            "tensor 'w' has 3.4e+38 at element 1, which bf16 cannot hold (--dtype fp32 can)");
  EXPECT_EQ(problem(DType::bf16, 1e38f), "");
}

TEST_F(SafetensorsTest, RefusesWhatIsDamaged) {
  const std::string good = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  EXPECT_EQ(problem(good, std::string(8, 'x')), "");
  EXPECT_EQ(problem(good, "1234"), " is truncated: its tensors take 8 bytes, of which 4 are there");
  EXPECT_EQ(problem(good, "123456789"), " has 1 bytes after its last tensor");
  EXPECT_EQ(problem(file("short", "abc")), " is not a safetensors file: it has 3 bytes");
  EXPECT_EQ(problem(file("cut", std::string("\x20\0\0\0\0\0\0\0{", 9))),
            " is truncated: its header takes 32 bytes, of which 1 are there");
  EXPECT_EQ(problem(file("text", "a text that is no tensors at all")).substr(0, 65),
            " is not a safetensors file: its first eight bytes ask for a heade");
  EXPECT_EQ(problem("{]", ""), " is not a safetensors file: its header is no JSON object");
  EXPECT_EQ(problem(R"({"a":{"dtype":"F32"}})", ""),
            ": tensor 'a' lacks dtype, shape or two data_offsets");
  EXPECT_EQ(problem(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678"),
            ": tensor 'a' F32 [3] takes 12 bytes, but its data_offsets are 0 and 8");
  EXPECT_EQ(problem(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", "12345678"),
            ": tensor 'a' has a shape that is no list of sizes");
  EXPECT_EQ(problem(R"({"a":{"dtype":"F32","shape":[99999999,99999999],"data_offsets":[0,8]}})",
                    "12345678"),
            ": tensor 'a' has a shape that is too large");
  EXPECT_EQ(problem(R"({"a":{"dtype":"Q4","shape":[2],"data_offsets":[0,1]}})", "1"),
            ": tensor 'a' has the unknown type 'Q4'");
  EXPECT_EQ(problem(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
                    R"("b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
                    "123"),
            ": tensor 'b' begins at byte 1, but 2 ends the one before it");
}

}  // namespace
}  // namespace trireme::convert::huggingface
