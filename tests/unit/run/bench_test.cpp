// SPDX-License-Identifier: Apache-2.0
// Statistics of timings, and the protocol on the CPU device. No test checks how long anything takes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "case/inputs.hpp"
#include "run/bench.hpp"
#include "support/device_helper.hpp"
#include "support/run_helper.hpp"
#include "worker/wire.hpp"
#include "worker/worker.hpp"

namespace checkop::bench_test {
namespace {

// --- statistics ------------------------------------------------------------------------------------------------------

TEST(Quantile, TakesThePlaceBetweenTwoSamples) {
  const std::vector<double> samples{40, 10, 30, 20};  // in any order
  EXPECT_DOUBLE_EQ(quantile(samples, 0), 10);
  EXPECT_DOUBLE_EQ(quantile(samples, 0.5), 25);
  EXPECT_DOUBLE_EQ(quantile(samples, 0.2), 16);
  EXPECT_DOUBLE_EQ(quantile(samples, 1), 40);
  EXPECT_DOUBLE_EQ(quantile({7}, 0.8), 7);
}

TEST(Summary, HoldsMedianAndBothPercentiles) {
  std::vector<double> samples;
  for (int i = 100; i >= 0; --i) samples.push_back(i);
  const Summary summary = summarize(samples);
  EXPECT_DOUBLE_EQ(summary.median, 50);
  EXPECT_DOUBLE_EQ(summary.p20, 20);
  EXPECT_DOUBLE_EQ(summary.p80, 80);
}

TEST(PairedRatio, IsTheMedianOfRatiosAndNotTheRatioOfMedians) {
  // The clock halves for the last two pairs: the ratio stays 2 throughout.
  EXPECT_DOUBLE_EQ(paired_ratio({1, 1, 1, 2, 2}, {2, 2, 2, 4, 4}), 2);
  EXPECT_DOUBLE_EQ(paired_ratio({2, 2, 8}, {4, 6, 8}), 2);  // medians: 2 and 6
}

TEST(Distinct, MediansThatDifferByLessThanASpreadAreNot) {
  const Summary steady{1.00, 0.99, 1.01}, slower{1.05, 1.04, 1.06}, noisy{1.05, 0.98, 1.12};
  EXPECT_TRUE(is_distinct(steady, slower));
  EXPECT_TRUE(is_distinct(slower, steady));
  EXPECT_FALSE(is_distinct(steady, noisy));
  EXPECT_FALSE(is_distinct(noisy, steady));
  EXPECT_FALSE(is_distinct(steady, steady));
  EXPECT_FALSE(is_distinct({NAN, 1, 1}, steady));
}

// --- protocol --------------------------------------------------------------------------------------------------------

/// A CPU device that logs the order of its calls and whose clock is a counter.
class LoggingDevice : public DelegatingDevice {
 public:
  void flush_cache() override { log += 'f'; }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    log += 'c';
    DelegatingDevice::copy(to, from, bytes);
  }
  double time_ms(const std::function<void()>& enqueue, double cover_us, const std::function<void()>& prepare) override {
    prepare();
    covers.push_back(cover_us);
    log += '(';
    enqueue();
    log += ')';
    return static_cast<double>(++timed);
  }
  size_t cache_bytes() const override { return cache; }

  std::string log;
  std::vector<double> covers;
  size_t cache = 1;
  int timed = 0;
};

/// As many data sets as a small case has, and room for outputs.
BenchData bench_data(const Case& c, size_t candidates, size_t sets = 16) {
  BenchData data;
  data.outputs.resize(candidates);
  for (size_t set = 0; set < sets; ++set) {
    Case of_set = c;
    of_set.seed += set;
    data.inputs.push_back(make_inputs(of_set, 1));
    for (auto& outputs : data.outputs) outputs.push_back(make_outputs(c));
  }
  return data;
}

/// The device that the candidates below log to.
LoggingDevice* logging = nullptr;
/// The output buffer of each launch.
std::vector<const void*> outputs_of_a;

checkop_status note_a(const checkop_call* call) {
  logging->log += 'A';
  outputs_of_a.push_back(call->outputs[0].data);
  return CHECKOP_OK;
}
checkop_status note_b(const checkop_call*) {
  logging->log += 'B';
  return CHECKOP_OK;
}
checkop_status refuse(const checkop_call* call) {
  std::snprintf(call->message, call->message_bytes, "not today");
  return CHECKOP_UNSUPPORTED;
}
size_t hundred_bytes(const checkop_call*) { return 100; }

constexpr checkop_kernel kA{sizeof(checkop_kernel), "a", "matmul", "forward", CHECKOP_CPU, 0, 0, hundred_bytes, note_a};
constexpr checkop_kernel kB{sizeof(checkop_kernel), "b", "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, note_b};
constexpr checkop_kernel kRefuses{
    sizeof(checkop_kernel), "refuses", "matmul", "forward", CHECKOP_CPU, 0, 0, nullptr, refuse};
constexpr checkop_kernel kGpu{sizeof(checkop_kernel), "gpu", "matmul", "forward", CHECKOP_CUDA, 0, 0, nullptr, note_b};

class BenchProtocol : public testing::Test {
 protected:
  void SetUp() override {
    logging = &device_;
    outputs_of_a.clear();
  }

  BenchResult run(const std::vector<const checkop_kernel*>& kernels, const BenchPlan& plan) {
    std::vector<Candidate> candidates;
    for (const checkop_kernel* kernel : kernels)
      candidates.push_back({kernel->name, "matmul", "forward", "", "", kernel});
    std::vector<const Candidate*> pointers;
    for (const Candidate& candidate : candidates) pointers.push_back(&candidate);
    const Case c = matmul_case();
    data_ = bench_data(c, pointers.size());
    return bench_candidates(device_, pointers, c, data_, plan);
  }

  /// The log from the first burst launch on.
  std::string log_from(const std::string& part) const {
    const size_t at = device_.log.find(part);
    return at == std::string::npos ? "no " + part + " in " + device_.log : device_.log.substr(at);
  }

  LoggingDevice device_;
  BenchData data_;
};

TEST_F(BenchProtocol, CandidatesTakeTurnsEachBehindAFlush) {
  const BenchResult result = run({&kA, &kB}, {3, true, false, 0});
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(log_from("ccf(A)"), "ccf(A)ccf(B)ccf(A)ccf(B)ccf(A)ccf(B)") << "other data, and a flush, for each launch";
  ASSERT_EQ(result.runs.size(), 2u);
  EXPECT_EQ(result.runs[0].burst_ms.size(), 3u);
  // The counter shows the order: a pair's samples are taken one after the other.
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(result.runs[1].burst_ms[i], result.runs[0].burst_ms[i] + 1);
  EXPECT_TRUE(result.runs[0].sustained_ms.empty());
}

TEST_F(BenchProtocol, CandidatesAreWarmBeforeTheyAreTimed) {
  run({&kA, &kB}, {1, true, false, 0});
  const std::string before = device_.log.substr(0, device_.log.find("f(A)"));
  EXPECT_GE(std::count(before.begin(), before.end(), 'A'), 3);
  EXPECT_GE(std::count(before.begin(), before.end(), 'B'), 3);
  EXPECT_GE(device_.covers.back(), 40) << "the time to launch is not covered";
}

TEST_F(BenchProtocol, SustainedLaunchesAreBackToBackWithoutAFlush) {
  // The counter's launches last at least a millisecond: a 50 ms round is a few launches.
  const BenchResult result = run({&kA, &kB}, {1, false, true, 250});
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  const std::string log = log_from("(AA");
  EXPECT_EQ(log.find('f'), std::string::npos) << log;
  EXPECT_NE(log.find("A)(BB"), std::string::npos) << log;
  EXPECT_EQ(result.runs[0].sustained_ms.size(), static_cast<size_t>(kSustainedRounds));
  EXPECT_EQ(result.runs[1].sustained_ms.size(), static_cast<size_t>(kSustainedRounds));
  EXPECT_TRUE(result.runs[0].burst_ms.empty());
}

TEST_F(BenchProtocol, SustainedTimeIsThatOfOneLaunch) {
  const BenchResult result = run({&kA}, {1, false, true, 250});
  // A round of n launches takes as long as the counter says, which is less than 20; each launch takes a part of it.
  const std::string log = log_from("(AA");
  const auto round = static_cast<double>(log.find(')') - 1);
  EXPECT_GE(round, 2) << log;
  EXPECT_NEAR(result.runs[0].sustained_ms[0] * round, std::round(result.runs[0].sustained_ms[0] * round), 1e-9);
  EXPECT_LT(result.runs[0].sustained_ms[0], 20 / round);
}

TEST_F(BenchProtocol, SustainedLaunchesRotateOverMoreBuffersThanTheCacheHolds) {
  device_.cache = 80;  // inputs: 6*2 + 2*4 floats
  run({&kA}, {1, false, true, 250});
  EXPECT_EQ(std::set<const void*>(outputs_of_a.begin(), outputs_of_a.end()).size(), 3u);
  EXPECT_NE(outputs_of_a[outputs_of_a.size() - 1], outputs_of_a[outputs_of_a.size() - 2]);
  outputs_of_a.clear();
  device_.cache = size_t{1} << 40;
  run({&kA}, {1, false, true, 250});
  EXPECT_EQ(std::set<const void*>(outputs_of_a.begin(), outputs_of_a.end()).size(), 16u);
}

TEST_F(BenchProtocol, CopyIsFlushedAndCountedInBothDirections) {
  const BenchResult result = run({&kA}, {1, true, false, 0});
  EXPECT_EQ(device_.log.substr(0, 12), "f(c)f(c)f(c)");
  EXPECT_DOUBLE_EQ(result.copy_gbps, 2.0 * (64 << 20) / 4.0 / 1e6);  // 64 MiB on the CPU; the median of 1 to 7 ms
}

TEST_F(BenchProtocol, OneThatCannotRunDoesNotStopTheOthers) {
  const BenchResult result = run({&kRefuses, &kA, &kGpu}, {2, true, true, 1});
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(result.runs[0].status, RunStatus::unsupported);
  EXPECT_EQ(result.runs[0].message, "not today");
  EXPECT_TRUE(result.runs[0].burst_ms.empty());
  EXPECT_EQ(result.runs[1].status, RunStatus::ok);
  EXPECT_EQ(result.runs[1].burst_ms.size(), 2u);
  EXPECT_EQ(result.runs[2].status, RunStatus::unsupported);
  EXPECT_EQ(result.runs[2].message, "runs on a CUDA device, not on 'cpu'; use --device cuda");
}

TEST_F(BenchProtocol, WorkspaceIsCounted) {
  const BenchResult result = run({&kA, &kB}, {1, true, false, 0});
  EXPECT_EQ(result.runs[0].workspace_bytes, 100);
  EXPECT_EQ(result.runs[1].workspace_bytes, 0);
}

/// From the n-th time on refuses to time, like a lost device.
class LostDevice : public LoggingDevice {
 public:
  double time_ms(const std::function<void()>& enqueue, double cover_us, const std::function<void()>& prepare) override {
    if (timed == 9) throw DeviceError("wait for what is timed: illegal memory access", true);
    return LoggingDevice::time_ms(enqueue, cover_us, prepare);
  }
};

TEST(Bench, DeviceErrorIsTheResult) {
  LostDevice device;
  logging = &device;
  const Candidate a{"a", "matmul", "forward", "", "", &kA};
  const Case c = matmul_case();
  BenchData data = bench_data(c, 1);
  const BenchResult result = bench_candidates(device, {&a}, c, data, {20, true, false, 0});
  EXPECT_EQ(result.status, RunStatus::failed);
  EXPECT_NE(result.message.find("illegal memory access"), std::string::npos);
  EXPECT_TRUE(result.device_lost);
  EXPECT_TRUE(result.runs.empty());
}

// --- the wire and the worker -----------------------------------------------------------------------------------------

TEST(Bench, PlanAndResultSurviveTheWayThereAndBack) {
  const BenchPlan plan{33, false, true, 0.1};
  const BenchPlan plan_back = decode_plan(nlohmann::json::parse(dump(encode(plan))));
  EXPECT_EQ(plan_back.repeats, 33);
  EXPECT_FALSE(plan_back.burst);
  EXPECT_TRUE(plan_back.sustained);
  EXPECT_EQ(plan_back.sustained_ms, 0.1);
  BenchResult result;
  result.status = RunStatus::timeout;
  result.message = "text";
  result.runs = {{RunStatus::unsupported, "why", {1.0 / 3, 2}, {4}, 5, {{"cuda:1 name", 64, {1.5}, {1.0 / 9}}}}};
  result.runs[0].seen.message = "burst launch 7";
  result.runs[0].seen.outputs.resize(1);
  result.runs[0].seen.outputs[0].repeat = {8, 2, 3, 0x5, 0x6};
  result.runs[0].kept = {0, -1};
  result.runs[0].overruled = 3;
  result.copy_gbps = 1.0 / 7;
  result.device_lost = true;
  const BenchResult back = decode_bench(nlohmann::json::parse(dump(encode(result))));
  EXPECT_EQ(encode(back), encode(result));
  EXPECT_EQ(back.status, RunStatus::timeout);
  ASSERT_EQ(back.runs.size(), 1u);
  EXPECT_EQ(back.runs[0].status, RunStatus::unsupported);
  EXPECT_EQ(back.runs[0].burst_ms, (std::vector<double>{1.0 / 3, 2}));
  EXPECT_EQ(back.runs[0].workspace_bytes, 5);
  EXPECT_EQ(back.runs[0].overruled, 3);
  ASSERT_EQ(back.runs[0].ranks.size(), 1u);
  EXPECT_EQ(back.runs[0].ranks[0].device, "cuda:1 name");
  EXPECT_EQ(back.runs[0].ranks[0].sustained_ms, (std::vector<double>{1.0 / 9}));
  EXPECT_EQ(back.copy_gbps, 1.0 / 7);
  EXPECT_TRUE(back.device_lost);
}

BenchResult bench(Worker& worker, const std::vector<std::string>& candidates, int64_t limit_s = 60) {
  const Case c = matmul_case();
  BenchData data = bench_data(c, candidates.size());
  return worker.bench(candidates, c, data, {20, true, true, 1}, std::chrono::seconds(limit_s));
}

TEST(Bench, WorkerGivesTimesOfAllCandidates) {
  Worker worker({{test_plugin("honest")}, "cpu"});
  const BenchResult result = bench(worker, {"honest", "uses_workspace", "unsupported"});
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  ASSERT_EQ(result.runs.size(), 3u);
  EXPECT_EQ(result.runs[0].burst_ms.size(), 20u);
  EXPECT_EQ(result.runs[1].sustained_ms.size(), static_cast<size_t>(kSustainedRounds));
  EXPECT_EQ(result.runs[1].workspace_bytes, 100);
  EXPECT_EQ(result.runs[2].message, "k_dim must be a multiple of 64");
  EXPECT_GT(result.copy_gbps, 0);
}

TEST(Bench, CrashAndTimeLimitAreResultsAndTheNextTimingWorks) {
  Worker worker({{test_plugin("crashes")}, "cpu"});
  const BenchResult crash = bench(worker, {"honest", "segfaults"});
  ASSERT_EQ(crash.status, RunStatus::ok) << crash.message;
  ASSERT_EQ(crash.runs.size(), 2u);
  EXPECT_EQ(crash.runs[1].status, RunStatus::crashed);
  EXPECT_NE(crash.runs[1].message.find("Segmentation fault"), std::string::npos) << crash.runs[1].message;
  EXPECT_EQ(crash.runs[0].status, RunStatus::ok) << "which is in another process";
  EXPECT_EQ(bench(worker, {"sleeps"}, 1).status, RunStatus::timeout);
  EXPECT_EQ(bench(worker, {"honest"}).status, RunStatus::ok);
}

TEST(Bench, ExceptionOfACandidateIsItsFailure) {
  Worker worker({{test_plugin("failures")}, "cpu"});
  const BenchResult result = bench(worker, {"throws_exception"});
  ASSERT_EQ(result.status, RunStatus::ok) << result.message;
  EXPECT_EQ(result.runs[0].status, RunStatus::failed);
  EXPECT_NE(result.runs[0].message.find("launch threw"), std::string::npos) << result.runs[0].message;
}

// --- the CPU device --------------------------------------------------------------------------------------------------

TEST(CpuDevice, TimesWhatItIsGiven) {
  const auto device = open_cpu_device();
  int runs = 0;
  EXPECT_GE(device->time_ms([&] { ++runs; }, 0, [] {}), 0);
  EXPECT_EQ(runs, 1);
}

TEST(CpuDevice, CopiesWithinItself) {
  const auto device = open_cpu_device();
  const char text[] = "bits";
  char other[sizeof(text)] = {};
  device->copy(reinterpret_cast<std::byte*>(other), reinterpret_cast<const std::byte*>(text), sizeof(text));
  EXPECT_STREQ(other, text);
}

TEST(CpuDevice, KnowsACacheToFlush) {
  const auto device = open_cpu_device();
  EXPECT_GE(device->cache_bytes(), size_t{1} << 20);
  EXPECT_LE(device->cache_bytes(), size_t{64} << 20);
  device->flush_cache();
  device->flush_cache();  // reuses the existing buffer
}

}  // namespace
}  // namespace checkop::bench_test
