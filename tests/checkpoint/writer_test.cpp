// A checkpoint that one process writes without MPI is the one that save() writes.
#include "checkpoint/file.hpp"

#include "core/error.hpp"
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
