// SPDX-License-Identifier: Apache-2.0
// Output files, which a reader always finds complete, even if the disk is full or another process writes to them.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "base/output_file.hpp"
#include "support/contract_helper.hpp"
#include "support/message_of.hpp"

namespace checkop::output_file_test {
namespace {

namespace fs = std::filesystem;

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// An empty folder for this test.
std::string fresh_folder() {
  const std::string folder =
      testing::TempDir() + testing::UnitTest::GetInstance()->current_test_info()->name() + "_files";
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

size_t files_in(const std::string& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

/// During its lifetime, files of this process may not grow beyond the given number of bytes.
class SizeLimit {
 public:
  explicit SizeLimit(rlim_t bytes) : handler_(signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~SizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_;
};

TEST(WriteFile, ReplacesTheFileAsAWhole) {
  const std::string path = fresh_folder() + "/report.json";
  write_file(path, "one");
  write_file(path, "two");
  EXPECT_EQ(content(path), "two");
  const std::string link = path + ".link";
  fs::create_symlink(path, link);
  write_file(link, "three");
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(content(path), "three");
  write_file("/dev/null", "nothing");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_NE(contract_test::error_of([] { write_file("/nowhere/at/all.json", "x"); }).find("/nowhere/at/all.json"),
            std::string::npos);
}

TEST(WriteFile, IsTriedBeforeThereIsAnythingToWrite) {
  const std::string folder = fresh_folder(), path = folder + "/report.json";
  require_writable(path);
  EXPECT_EQ(files_in(folder), 0u);
  write_file(path, "old");
  require_writable(path);
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(files_in(folder), 1u);
  require_writable("/dev/null");
  EXPECT_THROW(require_writable(folder), InputError);
  EXPECT_NE(contract_test::error_of([] {
              require_writable("/nowhere/at/all.json");
            }).find("/nowhere/at/all.json: cannot be opened: No such file or directory"),
            std::string::npos);
}

TEST(WriteFile, WithoutRoomTheOldFileStays) {
  const std::string folder = fresh_folder(), path = folder + "/report.json";
  write_file(path, "old");
  {
    const SizeLimit limit(100);
    EXPECT_THROW(write_file(path, std::string(101, 'x')), EnvironmentError);
  }
  EXPECT_EQ(content(path), "old");
  EXPECT_EQ(files_in(folder), 1u);
  EXPECT_THROW(write_file("/dev/full", "x"), EnvironmentError);
}

using Swap = GrowingFile::Swap;
class GrowingFileTest : public testing::TestWithParam<Swap> {};
INSTANTIATE_TEST_SUITE_P(By, GrowingFileTest, testing::Values(Swap::exchange, Swap::link, Swap::copy),
                         [](const auto& info) {
                           return info.param == Swap::exchange ? "Exchange"
                                  : info.param == Swap::link   ? "Link"
                                                               : "Copy";
                         });

TEST_P(GrowingFileTest, IsBodyAndTailAfterEveryPublish) {
  const std::string folder = fresh_folder(), path = folder + "/report.json";
  std::string body;
  {
    GrowingFile file(path, GetParam());
    for (int i = 0; i < 50; ++i) {
      // Gets shorter with i
      const std::string more = fmt::format("<{}>", i), tail(static_cast<size_t>(50 - i) * 3, ']');
      file.publish(more, tail);
      body += more;
      ASSERT_EQ(content(path), body + tail) << i;
    }
  }
  EXPECT_EQ(content(path), body + "]]]");
  EXPECT_EQ(files_in(folder), 1u) << "the spare file is still there";
}

TEST_P(GrowingFileTest, WithoutRoomTheLatestStaysAndCanBeGoneOnWith) {
  const std::string folder = fresh_folder(), path = folder + "/report.json";
  GrowingFile file(path, GetParam());
  file.publish("a", "]");
  file.publish("b", "]");
  {
    const SizeLimit limit(8);
    EXPECT_THROW(file.publish("0123456789", "]"), EnvironmentError);
  }
  EXPECT_EQ(content(path), "ab]");
  file.publish("c", "]");
  EXPECT_EQ(content(path), "abc]");
}

TEST_P(GrowingFileTest, SurvivesAReplacementByAnother) {
  const std::string folder = fresh_folder(), path = folder + "/report.json";
  GrowingFile file(path, GetParam());
  file.publish("a", "]");
  write_file(path, "another's");
  fs::copy_file(path, folder + "/witness");
  fs::create_hard_link(path, folder + "/other");
  file.publish("b", "]");
  file.publish("c", "]");
  EXPECT_EQ(content(path), "abc]");
  EXPECT_EQ(content(folder + "/other"), "another's") << "wrote into a file that is not its own";
  fs::remove(path);
  file.publish("d", "]");
  EXPECT_EQ(content(path), "abcd]");
}

TEST(GrowingFile, AReaderKeepsWhatItOpened) {
  const std::string path = fresh_folder() + "/report.json";
  GrowingFile file(path);
  file.publish("a", "]");
  std::ifstream reader(path);
  file.publish("b", "]");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(reader), {}), "a]");
}

TEST(GrowingFile, APathThatCannotBeWrittenIsTheUsersMistake) {
  GrowingFile file("/nowhere/at/all.json");
  EXPECT_EQ(message_of([&] { file.publish("a", "]"); }),
            "/nowhere/at/all.json: cannot be opened: No such file or directory; give a path that can be written");
}

TEST(GrowingFile, AFolderInItsPlaceIsAnError) {
  const std::string path = testing::TempDir() + "becomes_a_folder.json";
  std::filesystem::remove_all(path);
  GrowingFile file(path);
  std::filesystem::create_directory(path);
  EXPECT_EQ(message_of([&] { file.publish("a", "]"); }),
            path + ": cannot be replaced: Is a directory; give a path that can be written");
}

}  // namespace
}  // namespace checkop::output_file_test
