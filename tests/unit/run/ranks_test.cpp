// SPDX-License-Identifier: Apache-2.0
// Cases divided among ranks: their parts, the exchange between ranks, and one faulty rank.
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "base/error.hpp"
#include "case/inputs.hpp"
#include "case/rank_parts.hpp"
#include "device/host_comm.hpp"
#include "judge/verdict.hpp"
#include "run/invariance/contexts.hpp"
#include "run/runner.hpp"
#include "support/gold_helper.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::ranks_test {
namespace {

using namespace std::chrono_literals;
using Bounds = std::vector<int64_t>;

/// Four ranks with parts of 3, 4, 5 and 4 columns.
Case uneven(std::string_view pass = "forward") {
  Case c = gold_case("tp_linear_logp", pass, DType::f32,
                     {{"batch", 1}, {"seq", 8}, {"hidden", 5}, {"vocab", 16}, {"world_size", 4}}, {"bias"});
  c.part_bounds = {0, 3, 7, 12, 16};
  return c;
}

Case shared(int64_t vocab, int64_t ranks, double segments = 0) {
  Case c =
      gold_case("tp_logp", "forward", DType::f32, {{"batch", 1}, {"seq", 4}, {"vocab", vocab}, {"world_size", ranks}});
  c.attrs[1] = segments;
  return c;
}

std::string refusal_of(const Case& c) {
  try {
    validate(c);
  } catch (const InputError& e) {
    return e.what();
  }
  return "";
}

TEST(Shards, PartsAreAsEvenAsTheyCanBeLongerOnesFirst) {
  EXPECT_EQ(part_bounds(shared(10, 4)), (Bounds{0, 3, 6, 8, 10}));
  EXPECT_EQ(part_bounds(shared(16, 4)), (Bounds{0, 4, 8, 12, 16}));
  EXPECT_EQ(part_bounds(uneven()), (Bounds{0, 3, 7, 12, 16}));
  EXPECT_TRUE(part_bounds(linear_logp_case("forward", false)).empty());
}

TEST(Shards, EveryNumberOfRanksCutsAtCanonicalSegments) {
  const Bounds segments = even_bounds(1031, 8);
  for (int64_t ranks = 1; ranks <= 8; ++ranks) {
    for (const int64_t bound : part_bounds(shared(1031, ranks, 8)))
      EXPECT_TRUE(std::binary_search(segments.begin(), segments.end(), bound)) << ranks << " " << bound;
  }
}

Case message(std::string_view op, std::string_view pass, int64_t leaves, int64_t numel, int64_t ranks, double order) {
  Case c = gold_case(op, pass, DType::f32, {{"leaves", leaves}, {"numel", numel}, {"world_size", ranks}});
  c.attrs.front() = order;
  return c;
}

TEST(Shards, ARankHasItsLeavesAndItsPartOfAMessage) {
  const Case c = message("reduce_scatter", "forward", 6, 5, 4, -1);
  const TensorSpec &x = c.pass->inputs[0], &y = c.pass->outputs[0].tensor;
  const std::vector<Shape> leaves{{2, 5}, {2, 5}, {1, 5}, {1, 5}}, parts{{2}, {1}, {1}, {1}};
  for (int64_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(shape_of(rank_case(c, rank), x), leaves[static_cast<size_t>(rank)]) << rank;
    EXPECT_EQ(shape_of(rank_case(c, rank), y), parts[static_cast<size_t>(rank)]) << rank;
  }
  EXPECT_EQ(shape_of(c, y), (Shape{5}));
  EXPECT_TRUE(is_divided(c, x) && is_divided(c, y));
  EXPECT_EQ(part_view(c, y).bounds, (Bounds{0, 2, 3, 4, 5}));
  const Case few = message("all_gather", "forward", 4, 3, 4, 0);
  EXPECT_EQ(shape_of(rank_case(few, 3), few.pass->inputs[0]), (Shape{0}));
  EXPECT_FALSE(is_divided(few, few.pass->outputs[0].tensor));  // every rank has all of it
}

TEST(Shards, NumbersOfRanksAreComparedInAnOrderAlone) {
  EXPECT_TRUE(compares_ranks(message("all_reduce", "forward", 8, 5, 4, 0)));
  EXPECT_TRUE(compares_ranks(message("all_reduce", "forward", 8, 5, 4, 1)));
  EXPECT_FALSE(compares_ranks(message("all_reduce", "forward", 8, 5, 4, -1)));
  EXPECT_FALSE(compares_ranks(message("all_reduce", "forward", 8, 5, 3, 0)));
  // In an order a rank's leaves are those of canonical segments.
  EXPECT_EQ(part_bounds(message("all_reduce", "forward", 6, 5, 4, 0)), (Bounds{0, 1, 3, 4, 6}));
}

TEST(Shards, WhatDoesNotTileIsRefused) {
  EXPECT_EQ(refusal_of(uneven()), "");
  const auto with = [](Bounds bounds) {
    Case c = uneven();
    c.part_bounds = std::move(bounds);
    return refusal_of(c);
  };
  EXPECT_EQ(with({0, 3, 7, 12}),
            "--shard-bounds: 0,3,7,12 has 4 bounds, 4 ranks have 5; give where each part begins and where the last one "
            "ends");
  EXPECT_NE(with({0, 3, 7, 12, 15}).find("goes from 0 to 15, vocab from 0 to 16"), std::string::npos);
  EXPECT_NE(with({1, 3, 7, 12, 16}).find("goes from 1 to 16"), std::string::npos);
  EXPECT_NE(with({0, 3, 3, 12, 16}).find("rank 1 would be empty"), std::string::npos);
  EXPECT_NE(with({0, 7, 3, 12, 16}).find("rank 1 would be empty"), std::string::npos);
  EXPECT_NE(refusal_of(shared(3, 4)).find("4 ranks share vocab=3"), std::string::npos);
  EXPECT_NE(refusal_of(shared(100, 65)).find("at most 64 ranks, got 65"), std::string::npos);
  EXPECT_NE(refusal_of(shared(100, 4, 3)).find("from 4 to 100, got 3"), std::string::npos);
  EXPECT_NE(refusal_of(shared(100, 4, 4.5)).find("got 4.5"), std::string::npos);
}

TEST(Shards, NamesAndFlagsTellOfThem) {
  EXPECT_EQ(case_name(shared(16, 4)), "tp_logp-fp32-1x4x16@4");
  EXPECT_EQ(case_name(uneven()), "tp_linear_logp-fp32-1x8x5x16@0-3-7-12-16+bias");
  EXPECT_NE(case_flags(uneven()).find("--world-size 4 --shard-bounds 0,3,7,12,16"), std::string::npos);
}

/// Runs body(comm) on every rank in a thread, and returns the results.
template <class Body>
std::vector<int> on_ranks(HostComm& comm, int32_t n, Body body) {
  std::vector<int> returned(static_cast<size_t>(n));
  std::vector<std::thread> threads;
  for (int32_t r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      returned[static_cast<size_t>(r)] = body(*comm.of(r));
      comm.leave(r);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return returned;
}

int gather(checkop_host_comm& comm, int32_t value, std::array<int32_t, 4>& all) {
  return comm.all_gather(&comm, &value, all.data(), sizeof(value));
}

TEST(HostComm, GathersInTheOrderOfRanksAgainAndAgain) {
  HostComm comm(4, 10s);
  const auto returned = on_ranks(comm, 4, [](checkop_host_comm& own) {
    for (int32_t round = 0; round < 200; ++round) {
      std::array<int32_t, 4> all{};
      if (gather(own, 10 * round + own.rank, all) != 0) return 1;
      for (int32_t r = 0; r < 4; ++r)
        if (all[static_cast<size_t>(r)] != 10 * round + r) return 2;
      if (own.barrier(&own) != 0) return 3;
    }
    return 0;
  });
  EXPECT_EQ(returned, (std::vector<int>{0, 0, 0, 0}));
  EXPECT_STREQ(comm.of(0)->error(comm.of(0)), "");
}

TEST(HostComm, ARankThatFailedIsKnownToThoseWhoWaitByOtherMeans) {
  HostComm comm(4, 60s);
  comm.leave(3);
  EXPECT_STREQ(comm.of(0)->error(comm.of(0)), "");  // it may have done its part already
  comm.leave(2, /*failed=*/true);
  for (const int32_t rank : {0, 1})
    EXPECT_STREQ(comm.of(rank)->error(comm.of(rank)), "rank 2 has returned and takes part in no further exchange");
  comm.break_off("a later reason");
  EXPECT_STREQ(comm.of(0)->error(comm.of(0)), "rank 2 has returned and takes part in no further exchange");
  EXPECT_NE(comm.of(0)->barrier(comm.of(0)), 0);
  HostComm other(2, 60s);
  other.break_off("a rank did not return");
  EXPECT_STREQ(other.of(1)->error(other.of(1)), "a rank did not return");
}

TEST(HostComm, NobodyWaitsForARankThatReturned) {
  HostComm comm(4, 60s);
  const auto start = std::chrono::steady_clock::now();
  const auto returned = on_ranks(comm, 4, [](checkop_host_comm& own) {
    std::array<int32_t, 4> all{};
    return own.rank == 2 ? 0 : gather(own, 1, all);
  });
  EXPECT_EQ(returned, (std::vector<int>{1, 1, 0, 1}));
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_STREQ(comm.of(0)->error(comm.of(0)), "rank 2 has returned and takes part in no further exchange");
}

TEST(HostComm, NobodyWaitsLongForARankThatStaysAway) {
  HostComm comm(4, 100ms);
  const auto returned = on_ranks(comm, 4, [](checkop_host_comm& own) {
    std::array<int32_t, 4> all{};
    if (own.rank == 2) std::this_thread::sleep_for(1s);
    return gather(own, 1, all);  // arriving late counts as not arriving
  });
  EXPECT_EQ(returned, (std::vector<int>{1, 1, 1, 1}));
  EXPECT_STREQ(comm.of(0)->error(comm.of(0)), "rank 2 did not come to an exchange within 0.1 s");
}

RunResult run_bad(const std::string& candidate, const Case& c, const RunChecks& checks = {}) {
  const auto device = open_cpu_device();
  std::vector<Tensor> outputs = make_outputs(c);
  return run_candidate(*device, find_candidate("bad_ranks", candidate, c.pass->name), c, make_inputs(c, 1), outputs,
                       checks);
}

struct BadRank {
  const char *candidate, *message;
};

class Metadata : public testing::TestWithParam<BadRank> {};

/// All ranks report the same error.
TEST_P(Metadata, OfOneRankIsOneErrorOnAll) {
  for (const char* pass : {"forward", "backward"}) {
    const RunResult result = run_bad(GetParam().candidate, uneven(pass));
    EXPECT_EQ(result.status, RunStatus::failed);
    EXPECT_EQ(result.message, GetParam().message);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ranks, Metadata,
    testing::Values(BadRank{"gap", "rank 1 holds [4, 7) of the vocabulary: no rank holds [3, 4)"},
                    BadRank{"overlap",
                            "rank 1 holds [2, 6) of the vocabulary, which overlaps the part of the rank before it"},
                    BadRank{"empty", "rank 1 holds [3, 3) of the vocabulary, which is empty"},
                    BadRank{"other_total", "rank 1 has a vocabulary of 17, rank 0 has 16"},
                    BadRank{"ends_early", "the ranks hold [0, 15) of a vocabulary of 16"},
                    BadRank{"other_rows", "rank 1 has a row count of 7, rank 0 has 8"},
                    BadRank{"other_dtype", "rank 1 has dtype fp16, rank 0 has fp32"},
                    BadRank{"id_of_nobody", "target_ids[0] = 16 is outside [0, 16)"},
                    BadRank{"exchanges_more", "rank 2 exchanges 16 bytes where rank 0 exchanges 8"}),
    [](const auto& info) { return std::string(info.param.candidate); });

TEST(Ranks, OtherIdsOnOneRankAreOneErrorOnAll) {
  const RunResult result = run_bad("other_ids", uneven());
  EXPECT_EQ(result.status, RunStatus::failed);
  EXPECT_TRUE(result.message.starts_with("rank 1 has target ids with hash ")) << result.message;
}

TEST(Ranks, ARankThatReturnsEarlyEndsTheLaunchOfAll) {
  const std::string others = "ranks 0, 1, 3: rank 2 has returned and takes part in no further exchange; rank 2: ";
  const RunResult refused = run_bad("refuses_early", uneven());
  EXPECT_EQ(refused.status, RunStatus::failed);
  EXPECT_EQ(refused.message, others + "no memory left");
  EXPECT_EQ(run_bad("throws_early", uneven()).message, others + "launch threw: no memory at all");
}

TEST(Ranks, TheHostsCommunicatorIsThereUnderItsOwnName) {
  const RunResult result = run_bad("wants_host_comm", uneven());
  EXPECT_EQ(result.status, RunStatus::ok) << result.message;
}

Judgment judged(const std::string& candidate, const Case& c) {
  const RunChecks checks;
  std::vector<Demands> demands(c.pass->outputs.size());
  return judge(c, run_bad(candidate, c), {}, demands, checks, /*accuracy=*/false);
}

TEST(Ranks, CopiesOfAnOutputMustHaveTheSameBits) {
  for (const char* pass : {"forward", "backward"}) {
    const Judgment judgment = judged("changes_a_copy", uneven(pass));
    EXPECT_EQ(judgment.verdict, Verdict::fail);
    EXPECT_EQ(judgment.kind, "ranks");
    const std::string output = std::string(pass) == "forward" ? "logp" : "dhidden";
    EXPECT_TRUE(judgment.reason.starts_with(output + ": rank 2 is the first that differs from rank 0: 1 of"))
        << judgment.reason;
  }
}

TEST(Ranks, EveryRanksMemoryIsWatched) {
  const Judgment unwritten = judged("leaves_an_element", uneven("backward"));
  EXPECT_EQ(unwritten.kind, "unwritten");
  EXPECT_NE(unwritten.reason.find("dlm_head_weight[7,0]: 1 element was never written"), std::string::npos)
      << unwritten.reason;
  const Judgment input = judged("changes_an_input", uneven("backward"));
  EXPECT_EQ(input.kind, "input");
  EXPECT_NE(input.reason.find("lm_head_weight of rank 3: 1 element changed, first at index 0"), std::string::npos)
      << input.reason;
  const Judgment guard = judged("writes_behind", uneven("backward"));
  EXPECT_EQ(guard.kind, "guard");
  EXPECT_NE(guard.reason.find("output 'dlm_head_weight' on rank 1: 1 element changed behind its end, first at +0"),
            std::string::npos)
      << guard.reason;
}

RunChecks all_ranks() {
  RunChecks checks;
  checks.determinism = false;
  checks.plan.all = true;
  checks.plan.axes = {Axis::ranks};
  return checks;
}

Case with_segments(std::string_view pass, double segments) {
  Case c = gold_case("tp_linear_logp", pass, DType::f32,
                     {{"batch", 2}, {"seq", 8}, {"hidden", 32}, {"vocab", 203}, {"world_size", 4}}, {"bias"});
  c.attrs[1] = segments;
  return c;
}

TEST(Ranks, TheirNumberIsAnAxisWhereBitsMustNotDependOnIt) {
  const auto device = open_cpu_device();
  const auto axis = [&](const Case& c) { return contexts_of(c, device->info(), all_ranks()).size(); };
  EXPECT_EQ(axis(with_segments("forward", 8)), 4u);  // 1, 2, 3 and 8 ranks instead of 4
  EXPECT_EQ(axis(with_segments("forward", 4)), 3u);
  EXPECT_EQ(axis(with_segments("forward", 0)), 0u);
  Case two = with_segments("forward", 8);
  two.dims["world_size"] = 2;
  EXPECT_EQ(axis(two), 0u);
  EXPECT_EQ(contexts_of(with_segments("forward", 8), device->info(), {}).front().axis, Axis::ranks);
}

TEST(Ranks, SumsInTheOrderOfRanksAreCaughtWhereTheyMustNotBe) {
  for (const char* pass : {"forward", "backward"}) {
    const Case c = with_segments(pass, 8);
    std::vector<Demands> demands(c.pass->outputs.size());
    const RunResult result = run_bad("ignores_segments", c, all_ranks());
    ASSERT_EQ(result.status, RunStatus::ok) << result.message;
    const Judgment judgment = judge(c, result, {}, demands, all_ranks(), /*accuracy=*/false);
    EXPECT_EQ(judgment.kind, "invariance") << judgment.reason;
    EXPECT_TRUE(judgment.reason.starts_with("the result depends on the number of ranks (ranks: 1 rank in place of 4)"))
        << judgment.reason;
  }
}

TEST(Ranks, CanonicalSegmentsMakeBitsIndependentOfTheirNumber) {
  for (const char* pass : {"forward", "backward"}) {
    for (const char* op : {"tp_logp", "tp_linear_logp"}) {
      const auto ran = run_program(fmt::format(
          "--op {} --pass {} --candidate native --device cpu --batch 1 --seq 24 {} --vocab 1031 --dtype fp32 "
          "--world-size 4 --canonical-segments 8 --check invariance --json",
          op, pass, std::string(op) == "tp_logp" ? "" : "--hidden 64"));
      ASSERT_EQ(ran.code, 0) << ran.text;
      EXPECT_NE(ran.text.find(R"("axis": "ranks")"), std::string::npos);
    }
  }
}

const std::string kBad = fmt::format(
    "--op tp_linear_logp --device cpu --batch 1 --seq 8 --hidden 5 --vocab 16 --shard-bounds 0,3,7,12,16 --plugin {} ",
    test_plugin("bad_ranks"));

/// Expects the run to end with exit code 4 and a report.
void expect_end(const std::string& candidate, const std::string& verdict, const std::string& reason) {
  const std::string report = testing::TempDir() + "ranks-" + candidate + ".json";
  std::filesystem::remove(report);
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult ran = run_program(kBad + "--candidate " + candidate + " --timeout-s 4 --json " + report);
  expect_exit(ran, 4, reason);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  std::ifstream file(report);
  const auto json = nlohmann::json::parse(file);
  EXPECT_NE(json.dump().find("\"verdict\":\"" + verdict + "\""), std::string::npos);
}

TEST(Ranks, ARankThatDiesEndsTheRun) { expect_end("dies", "error", "killed by signal 11"); }
TEST(Ranks, ARankThatStallsEndsTheRun) {
  expect_end("stalls", "timeout",
             "ranks 0, 1, 3: rank 2 did not come to an exchange within 1 s; rank 2: did not return");
}
TEST(Ranks, ARankThatDoesNotReturnEndsTheRun) {
  expect_end("stalls_in_the_end", "timeout", "ranks 0, 1, 3: ok; rank 2: did not return");
}

TEST(Ranks, TheReportTellsOfThePartsAndOfDifferences) {
  const ProcessResult ran = run_program(kBad + "--candidate changes_a_copy --json");
  EXPECT_EQ(ran.code, 1);
  const auto text = nlohmann::json::parse(ran.text).dump();
  EXPECT_NE(text.find(R"("shard_bounds":[0,3,7,12,16])"), std::string::npos);
  EXPECT_NE(text.find(R"("rank_differences":["logp: rank 2 is the first)"), std::string::npos);
  EXPECT_NE(text.find(R"("world_size":4)"), std::string::npos);
}

TEST(Ranks, FlagsThatMakeNoSenseAreRefused) {
  expect_exit(run_program("--op logp --shard-bounds 0,3"), 2, "no selected operator is tensor-parallel");
  expect_exit(run_program("--op logp --world-size 2"), 2, "no selected operator has it");
  expect_exit(run_program("--op tp_logp --vocab 16 --world-size 2 --shard-bounds 0,3,7,16"), 2,
              "4 bounds are those of 3 ranks");
  expect_exit(run_program("--op tp_logp --vocab 16 --shard-bounds 0,3,7"), 2, "goes from 0 to 7, vocab from 0 to 16");
}

TEST(Ranks, SavedCasesKeepTheirParts) {
  const std::string folder = testing::TempDir() + "saved-ranks";
  std::filesystem::remove_all(folder);
  EXPECT_EQ(run_program(kBad + "--candidate native --save all --save-tensors " + folder).code, 0);
  const std::string file = folder + "/native-forward-tp_linear_logp-fp32-1x8x5x16@0-3-7-12-16.safetensors";
  EXPECT_TRUE(std::filesystem::exists(file));
  expect_exit(run_program("--replay " + file), 0, "world_size=4 shard_bounds=0,3,7,12,16");
}

}  // namespace
}  // namespace checkop::ranks_test
