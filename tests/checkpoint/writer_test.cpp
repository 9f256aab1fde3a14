// A checkpoint that one process writes without MPI is the one that save() writes.
#include "checkpoint/file.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"
#include "core/files.hpp"
#include "core/system/parallel.hpp"
#include "one_rank.hpp"

namespace trireme::checkpoint {
namespace {

class WriterTest : public OneRankTest {};

TEST_F(WriterTest, WritesWhatSaveWrites) {
  std::vector<float> matrix = {1.0f, -2.0f, 0.5f, 3e-41f, 7.0f, -0.0f}, row = {4.0f};
  const std::filesystem::path saved = step_path(folder_, 7);
  const Attributes attributes = {{"iteration", std::int64_t{7}}, {"loss_scale", 1.0}};
  save(saved, *world_, attributes, kOneRankDeck,
       {{"model/matrix",
         {2, 3},
         DType::f32,
         {{.slabs = {grid::whole_tensor({2, 3})}, .data = matrix.data()}}},
        {"optimizer/m/row",
         {1},
         DType::f32,
         {{.slabs = {grid::whole_tensor({1})}, .data = row.data()}}}});
  const std::filesystem::path written = folder_ / "written.h5";
  write_checkpoint(written, attributes, kOneRankDeck,
                   {{"model/matrix", {2, 3}, matrix.data()}, {"optimizer/m/row", {1}, row.data()}});
  const auto without_name = [](const std::filesystem::path& path) {
    const std::string text = describe(path, /*json=*/false);
    return text.substr(text.find('\n'));
  };
  EXPECT_EQ(without_name(written), without_name(saved));
  EXPECT_EQ(find_latest(folder_)->path, saved);
}

// Tensors of several chunks, rows that are longer than one, and zeros that are not made.
TEST_F(WriterTest, WritesTheSameBytesOnAnyNumberOfThreads) {
  const auto value = [](std::int64_t i) { return static_cast<float>(i % 8191) - 4000.5f; };
  const auto tensor = [&](const std::string& name, const Shape& shape) {
    const std::int64_t columns = shape.rank() == 2 ? shape[1] : 1;
    return WholeTensor{.name = name,
                       .shape = shape,
                       .load = [=](std::int64_t begin, std::int64_t end, float* out) {
                         for (std::int64_t i = begin * columns; i < end * columns; ++i)
                           *out++ = value(i);
                       }};
  };
  const std::vector<WholeTensor> tensors = {tensor("model/tall", {5000, 1024}),
                                            tensor("model/wide", {3, (5 << 20) + 3}),
                                            tensor("model/row", {7}),
                                            {.name = "optimizer/m/zeros", .shape = {300, 70}}};
  std::filesystem::create_directories(folder_);
  std::string first;
  for (const std::size_t threads : {1, 2, 5}) {
    const std::filesystem::path path = folder_ / fmt::format("{}.h5", threads);
    write_checkpoint(path, {{"iteration", std::int64_t{0}}}, kOneRankDeck, tensors, nullptr,
                     threads);
    verify(path);
    const std::string bytes = read_file(path);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << threads << " threads";
    const Reader reader(path);
    std::vector<float> wide(3 * ((5 << 20) + 3)), zeros(300 * 70, 1.0f);
    reader.read_whole("model/wide", DType::f32, wide.data());
    for (std::size_t i = 0; i < wide.size(); i += 1009)
      ASSERT_EQ(wide[i], value(static_cast<std::int64_t>(i))) << i;
    EXPECT_EQ(wide.back(), value(std::ssize(wide) - 1));
    reader.read_whole("optimizer/m/zeros", DType::f32, zeros.data());
    EXPECT_EQ(zeros, std::vector<float>(300 * 70));
  }
}

TEST_F(WriterTest, ThrowsTheErrorOfTheFirstTensorThatCannotBeMade) {
  std::filesystem::create_directories(folder_);
  std::vector<WholeTensor> tensors;
  for (int i = 0; i < 9; ++i)
    tensors.push_back({.name = fmt::format("model/{}", i),
                       .shape = {4},
                       .load = [i](std::int64_t, std::int64_t, float* out) {
                         if (i % 4 == 3) throw DataError("tensor {} is bad", i);
                         std::fill_n(out, 4, 1.0f);
                       }});
  for (const std::size_t threads : {1, 4}) {
    try {
      write_checkpoint(folder_ / "bad.h5", {}, kOneRankDeck, tensors, nullptr, threads);
      FAIL() << "bad tensors were written";
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "tensor 3 is bad");
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  }
}

// HDF5 as distributions build it must not be used by two threads at once.
TEST_F(WriterTest, ThreadsReadAndWriteAtTheSameTime) {
  constexpr std::size_t kThreads = 4, kFiles = 200;
  std::filesystem::create_directories(folder_);
  const std::filesystem::path packed = save_step(/*iteration=*/3, /*compression=*/1);
  std::vector<float> row(300);
  std::iota(row.begin(), row.end(), 0.0f);
  in_parallel(kFiles, kThreads, [&](std::size_t i) {
    const std::filesystem::path path = folder_ / fmt::format("{}.h5", i);
    write_checkpoint(path, {{"iteration", static_cast<std::int64_t>(i)}}, kOneRankDeck,
                     {{"model/row", {std::ssize(row)}, row.data()}});
    std::vector<float> read(row.size());
    const Reader reader(path);
    reader.read_whole("model/row", DType::f32, read.data());
    EXPECT_EQ(read, row);
    EXPECT_EQ(reader.header().get<std::int64_t>("iteration"), static_cast<std::int64_t>(i));
    EXPECT_TRUE(verify(packed).structure);
  });
}

TEST_F(WriterTest, SaysWhatItCannotWrite) {
  try {
    write_checkpoint(folder_ / "absent/a.h5", {}, "", {});
    FAIL() << "a file in a folder that is not there was written";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot write"), std::string::npos);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "absent"));
}

}  // namespace
}  // namespace trireme::checkpoint
