// SPDX-License-Identifier: Apache-2.0
// A separate folder for each test process: they run in parallel, and some use the same file names.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <system_error>

namespace {

/// Sets testing::TempDir() from before the first test until the process ends.
class TempDir {
 public:
  TempDir() : path_((std::filesystem::temp_directory_path() / "checkop_tests.XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("no temporary folder " + path_);
    setenv("TEST_TMPDIR", path_.c_str(), 1);
  }
  ~TempDir() {
    std::error_code ignored;
    if (getpid() == owner_) std::filesystem::remove_all(path_, ignored);  // a forked child must not remove it
  }

 private:
  std::string path_;
  pid_t owner_ = getpid();
};

const TempDir temp_dir;

}  // namespace
