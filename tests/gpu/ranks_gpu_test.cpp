// SPDX-License-Identifier: Apache-2.0
// One faulty rank of four, with a GPU each: the GPU counterpart of tests Ranks and Metadata. Needs four GPUs: run by
// `scripts/gpu.sh DIR ranks`.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop {
namespace {

ProcessResult run(const std::string& candidate, const std::string& more = "") {
  return run_program(
      fmt::format("--op tp_linear_logp --device cuda --dtype fp32 --batch 1 --seq 8 --hidden 5 --vocab 16 --with bias "
                  "--shard-bounds 0,3,7,12,16 --plugin {}/gpu_bad_ranks.so --candidate {} {}",
                  kPluginFolder, candidate, more));
}

struct BadRank {
  const char *candidate, *message;
};

class GpuMetadata : public testing::TestWithParam<BadRank> {};

TEST_P(GpuMetadata, OfOneRankIsOneErrorOnAll) {
  expect_exit(run(GetParam().candidate, "--check-grad"), 1, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    GpuRanks, GpuMetadata,
    testing::Values(BadRank{"gap", "rank 1 holds [4, 7) of the vocabulary: no rank holds [3, 4)"},
                    BadRank{"overlap",
                            "rank 1 holds [2, 6) of the vocabulary, which overlaps the part of the rank before it"},
                    BadRank{"empty", "rank 1 holds [3, 3) of the vocabulary, which is empty"},
                    BadRank{"other_total", "rank 1 has a vocabulary of 17, rank 0 has 16"},
                    BadRank{"ends_early", "the ranks hold [0, 15) of a vocabulary of 16"},
                    BadRank{"other_rows", "rank 1 has a row count of 7, rank 0 has 8"},
                    BadRank{"other_dtype", "rank 1 has dtype fp16, rank 0 has fp32"},
                    BadRank{"refuses_early",
                            "ranks 0, 1, 3: rank 2 has returned and takes part in no further "
                            "exchange; rank 2: no memory left"}),
    [](const auto& info) { return std::string(info.param.candidate); });

TEST(GpuRanks, ARankThatDiesEndsTheRun) { expect_exit(run("dies"), 4, "killed by signal 11"); }

// A quarter of the time limit, within which the communicator must be created too.
TEST(GpuRanks, ARankThatStallsEndsTheRun) {
  expect_exit(run("stalls", "--timeout-s 60"), 4, "rank 2 did not come to an exchange within 15 s");
}

TEST(GpuRanks, ARankThatDoesNotReturnEndsTheRun) {
  expect_exit(run("stalls_in_the_end", "--timeout-s 60"), 4, "rank 2: did not return");
}

}  // namespace
}  // namespace checkop
