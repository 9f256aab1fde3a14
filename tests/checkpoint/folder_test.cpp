#include "checkpoint/file.hpp"

#include <sys/stat.h>

#include "../message_of.hpp"
#include "core/error.hpp"
#include "core/files.hpp"
#include "one_rank.hpp"

namespace trireme::checkpoint {
namespace {

class FolderTest : public OneRankTest {
 protected:
  std::vector<std::int64_t> iterations() const {
    std::vector<std::int64_t> found;
    for (const Step& step : list_steps(folder_)) found.push_back(step.iteration);
    return found;
  }
};

TEST_F(FolderTest, NothingIsFoundWhereNothingIs) {
  EXPECT_TRUE(list_steps(folder_).empty());
  EXPECT_FALSE(find_latest(folder_).has_value());
  std::filesystem::create_directories(folder_);
  EXPECT_FALSE(find_latest(folder_).has_value());
  EXPECT_TRUE(retain(folder_, 1).empty());
}

TEST_F(FolderTest, NamesSortByIteration) {
  EXPECT_EQ(step_path("c", 1000), std::filesystem::path("c/step-00001000.h5"));
  std::filesystem::create_directories(folder_);
  for (const char* name :
       {"step-123456789.h5", "step-00000020.h5", "step-00000100.h5", "step-00000030.h5.part",
        "notes.h5", "step-x.h5", "step-.h5", "step--5.h5", "step-99999999999999999999.h5"})
    write_file_atomically(folder_ / name, "");
  EXPECT_EQ(iterations(), (std::vector<std::int64_t>{20, 100, 123456789}));
}

TEST_F(FolderTest, LatestIsWhatTheFileNames) {
  const std::filesystem::path older = save_step(10);
  const std::filesystem::path newer = save_step(20);
  EXPECT_EQ(find_latest(folder_)->path, newer);
  EXPECT_EQ(find_latest(folder_)->note, "");
  publish(older);
  EXPECT_EQ(find_latest(folder_)->path, older);
}

TEST_F(FolderTest, WithoutLatestTheNewestCompleteOneIsTaken) {
  save_step(10);
  const std::filesystem::path newest = save_step(20);
  write_file_atomically(folder_ / "step-00000030.h5", "damaged");
  write_file_atomically(folder_ / "step-00000040.h5.part", "unfinished");
  std::filesystem::remove(folder_ / "latest");
  const std::optional<Latest> found = find_latest(folder_);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, newest);
  EXPECT_NE(found->note.find("no file 'latest': using 'step-00000020.h5'"), std::string::npos)
      << found->note;
}

TEST_F(FolderTest, ADamagedLatestIsReplacedAndNamed) {
  const std::filesystem::path older = save_step(10);
  const std::filesystem::path newer = save_step(20);
  std::filesystem::resize_file(newer, 1000);
  const std::optional<Latest> found = find_latest(folder_);
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->path, older);
  EXPECT_NE(found->note.find(newer.string()), std::string::npos) << found->note;
  std::filesystem::remove(older);
  EXPECT_THROW(find_latest(folder_), DataError);
}

TEST_F(FolderTest, CheckpointsNewerThanADamagedLatestAreSuperseded) {
  const std::filesystem::path older = save_step(10);
  const std::filesystem::path damaged = save_step(20);
  const std::filesystem::path newer = save_step(30);
  publish(damaged);
  std::filesystem::resize_file(damaged, 1000);
  EXPECT_EQ(find_latest(folder_)->path, older);
  std::filesystem::remove(older);
  EXPECT_THROW(find_latest(folder_), DataError);
  EXPECT_TRUE(std::filesystem::exists(newer));
}

TEST_F(FolderTest, NewerStepsAreSuperseded) {
  const std::filesystem::path older = save_step(10);
  for (int time = 0; time < 2; ++time) {
    const std::filesystem::path newer = save_step(20);
    save_step(30);
    EXPECT_EQ(supersede_newer(older, 10), 2);
    EXPECT_EQ(find_latest(folder_)->path, older);
    EXPECT_EQ(iterations(), (std::vector<std::int64_t>{10}));
    EXPECT_TRUE(
        std::filesystem::exists(newer.string() + (time == 0 ? ".superseded" : ".superseded.2")));
  }
  // Earlier versions named them so.
  std::filesystem::copy(older, folder_ / "step-00000040.h5.left");
  EXPECT_EQ(find_latest(folder_)->path, older);
  remove_unfinished(folder_);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "step-00000030.h5.superseded"));
  EXPECT_EQ(supersede_newer(older, 10), 0);
}

TEST_F(FolderTest, ACopyUnderANewerNameIsNotNewerThanItself) {
  const std::filesystem::path older = save_step(10);
  const std::filesystem::path copy = step_path(folder_, 20);
  std::filesystem::copy(older, copy);
  save_step(30);
  EXPECT_EQ(supersede_newer(copy, 10), 1);
  EXPECT_EQ(iterations(), (std::vector<std::int64_t>{10, 20}));
  EXPECT_EQ(find_latest(folder_)->path, copy);
}

TEST_F(FolderTest, ALatestThatIsNoRegularFileIsAnError) {
  save_step(10);
  const std::filesystem::path latest = folder_ / "latest";
  std::filesystem::remove(latest);
  ASSERT_EQ(::mkfifo(latest.c_str(), 0600), 0);
  EXPECT_EQ(message_of<IoError>([&] { find_latest(folder_); }),
            "'" + latest.string() + "' is not a regular file but a FIFO");
  std::filesystem::remove(latest);
  std::filesystem::create_symlink("/dev/zero", latest);
  EXPECT_THROW(find_latest(folder_), IoError);
  std::filesystem::remove(latest);
  write_file_atomically(latest, std::string(5000, 'x'));
  EXPECT_THROW(find_latest(folder_), IoError);
}

TEST_F(FolderTest, ALatestWithoutANameInItIsReplaced) {
  const std::filesystem::path step = save_step(10);
  for (const char* text : {"\x80\x01\xff", "../checkpoints/step-00000010.h5\n",
                           "\n\nstep-00000010.h5", "step-00000010.h5 step-00000020.h5\n"}) {
    write_file_atomically(folder_ / "latest", text);
    const auto found = find_latest(folder_);
    ASSERT_TRUE(found);
    EXPECT_EQ(found->path, step);
    EXPECT_EQ(found->note, "'" + (folder_ / "latest").string() +
                               "' does not hold the name of a file: using 'step-00000010.h5', the "
                               "newest complete checkpoint");
  }
}

TEST_F(FolderTest, LatestIsPublishedBeforeNewerStepsAreRenamed) {
  const std::filesystem::path older = save_step(10);
  save_step(20);
  // What cannot be renamed keeps its name: the new one would be too long.
  const std::filesystem::path stays = folder_ / ("step-" + std::string(243, '0') + "30.h5");
  std::filesystem::copy(older, stays);
  EXPECT_THROW(supersede_newer(older, 10), IoError);
  EXPECT_EQ(find_latest(folder_)->path, older);
  std::filesystem::remove(stays);
  EXPECT_EQ(supersede_newer(older, 10), 0);
}

TEST_F(FolderTest, ALatestThatNamesNothingIsNotAFreshStart) {
  std::filesystem::create_directories(folder_);
  write_file_atomically(folder_ / "latest", "step-00000010.h5\n");
  EXPECT_THROW(find_latest(folder_), DataError);
}

TEST_F(FolderTest, LocatesWhatPeopleNameACheckpointBy) {
  const std::filesystem::path run = folder_;
  folder_ = run / "checkpoints";
  const std::filesystem::path older = save_step(10);
  const std::filesystem::path newer = save_step(20);
  EXPECT_EQ(locate(older).path, older);
  for (const auto& named : {run, folder_}) {
    EXPECT_EQ(locate(named).path, newer);
    EXPECT_EQ(locate(named).note, "");
  }
  std::filesystem::resize_file(newer, 1000);
  EXPECT_EQ(locate(run).path, older);
  EXPECT_NE(locate(run).note.find(newer.string()), std::string::npos);
  folder_ = run;
}

TEST_F(FolderTest, SaysWhereNoCheckpointIs) {
  const auto message_of = [](const std::filesystem::path& path) -> std::string {
    try {
      return locate(path).path.string();
    } catch (const IoError& error) {
      return error.what();
    }
  };
  const std::string folder = folder_.string();
  EXPECT_EQ(message_of(folder_), "there is no checkpoint '" + folder +
                                     "': name a run folder, or a file such as "
                                     "RUN/checkpoints/step-00001000.h5");
  std::filesystem::create_directories(folder_);
  EXPECT_EQ(message_of(folder_), "there is no checkpoint in '" + folder +
                                     "': expected files such as '" + folder + "/step-00001000.h5'");
}

TEST_F(FolderTest, RetentionKeepsNewestMilestonesAndLatest) {
  std::filesystem::create_directories(folder_);
  for (std::int64_t iteration = 10; iteration <= 80; iteration += 10)
    write_file_atomically(step_path(folder_, iteration), "");
  publish(step_path(folder_, 80));
  const auto is_milestone = [](const Step& step) { return step.iteration % 40 == 0; };
  EXPECT_TRUE(retain(folder_, std::nullopt, is_milestone).empty());
  const std::vector<std::filesystem::path> deleted = retain(folder_, 2, is_milestone);
  EXPECT_EQ(iterations(), (std::vector<std::int64_t>{40, 70, 80}));
  EXPECT_EQ(deleted.size(), 5u);
  EXPECT_EQ(deleted[0], step_path(folder_, 10));
  retain(folder_, 1);
  EXPECT_EQ(iterations(), (std::vector<std::int64_t>{80}));
}

TEST_F(FolderTest, RetentionPassesOverWhatCannotBeDeleted) {
  std::filesystem::create_directories(folder_);
  for (std::int64_t iteration = 20; iteration <= 40; iteration += 10)
    write_file_atomically(step_path(folder_, iteration), "");
  std::filesystem::create_directories(step_path(folder_, 10) / "something");
  try {
    retain(folder_, 1);
    ADD_FAILURE() << "a folder was deleted";
  } catch (const IoError& error) {
    EXPECT_NE(std::string(error.what()).find("cannot delete"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("step-00000010.h5"), std::string::npos);
  }
  EXPECT_EQ(iterations(), (std::vector<std::int64_t>{10, 40}));
}

TEST_F(FolderTest, RetentionCountsUpToLatest) {
  std::filesystem::create_directories(folder_);
  for (std::int64_t iteration = 10; iteration <= 80; iteration += 10)
    write_file_atomically(step_path(folder_, iteration), "");
  publish(step_path(folder_, 40));
  retain(folder_, 2);
  EXPECT_EQ(iterations(), (std::vector<std::int64_t>{30, 40, 50, 60, 70, 80}));
}

TEST_F(FolderTest, UnfinishedFilesAreRemoved) {
  std::filesystem::create_directories(folder_);
  write_file_atomically(folder_ / "step-00000010.h5", "");
  write_file_atomically(folder_ / "step-00000020.h5.part", "");
  write_file_atomically(folder_ / "step-00000020.h5.part.locktest.0", "");
  write_file_atomically(folder_ / "a.part.of.mine", "");
  remove_unfinished(folder_);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "a.part.of.mine"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "step-00000020.h5.part"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "step-00000020.h5.part.locktest.0"));
  EXPECT_TRUE(std::filesystem::exists(folder_ / "step-00000010.h5"));
}

}  // namespace
}  // namespace trireme::checkpoint
