// SPDX-License-Identifier: Apache-2.0
// Times that candidates tell, and the judge's clock: the arithmetic, and processes that lie on a device that passes for
// a GPU (support/fake_guest.cpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "base/paths.hpp"
#include "case/inputs.hpp"
#include "run/bench.hpp"
#include "run/plugin_host.hpp"
#include "run/time_bound.hpp"
#include "support/built.hpp"
#include "support/device_helper.hpp"
#include "support/run_helper.hpp"
#include "tensor/tensor.hpp"

namespace checkop::bound_test {
namespace {

TEST(BenchBound, LaunchesOfAPassShareWhatIsAround) {
  const TimeBound one = time_bound_of({1, {1.52}, {0.5, 0.5, 0.5}});
  EXPECT_NEAR(one.ms, 1.02, 1e-12);
  EXPECT_NEAR(one.most_ms, 1.04, 1e-12);
  EXPECT_NEAR(one.least_ms, 0.9 * 1, 1e-12);
  const TimeBound ten = time_bound_of({10, {1.52}, {0.5, 0.5, 0.5}});
  EXPECT_NEAR(ten.ms, 0.102, 1e-12);
  EXPECT_NEAR(ten.most_ms, 0.104, 1e-12);
  EXPECT_NEAR(ten.least_ms, 0.9 * 0.1, 1e-12);
}

TEST(BenchBound, LeastPassCountsAndTheNoiseOfEmptyOnesIsAllowed) {
  const TimeBound bound = time_bound_of({1, {9, 1.72, 3}, {0.4, 0.4, 0.5, 0.6, 0.6}});  // q20 0.4, q80 0.6
  EXPECT_NEAR(bound.ms, 1.32, 1e-12);
  EXPECT_NEAR(bound.least_ms, 0.9 * 1, 1e-12);
}

TEST(BenchBound, BusyMachineShortensNoTimeByWhatItAddsToEmptyPasses) {
  EXPECT_NEAR(time_bound_of({1, {1.2, 1.9}, {0.9, 0.2, 0.8}}).ms, 1, 1e-12);
}

TEST(BenchBound, BusyMachineLengthensNoBoundByWhatItAddsToOwnPasses) {
  EXPECT_LT(time_bound_of({1, {0.7, 0.7}, {0.2, 0.4}}).least_ms, 0.3)
      << "0.3 ms of work, 0.2 ms around it and 0.2 more";
}

TEST(BenchBound, WritingBackIsAllowedWhereLaunchesFollowEachOther) {
  EXPECT_NEAR(time_bound_of({10, {1.52}, {0.5}, 0.03}).least_ms, 0.06, 1e-12);
}

TEST(BenchBound, TimesBelowABoundAreTheMostOfTheJudge) {
  std::vector<double> ms{0.5, 0.05, 0, 2};
  EXPECT_EQ(overrule(ms, {{0.4, 0.43, 0.45}, {0.1, 0.58, 0.6}}), 2);
  EXPECT_EQ(ms, (std::vector<double>{0.5, 0.6, 0.6, 2}));
  EXPECT_EQ(overrule(ms, {}), 0);
  EXPECT_EQ(overrule(ms, {{-1, 0, 0.02}}), 0) << "a bound within the noise is none";
}

TEST(BenchBound, NoiseHidesNoTimeThatIsFarTooShort) {
  const std::vector<TimeBound> noisy{time_bound_of({1, {1.5, 1.6}, {0.5, 0.9, 1.9}})};  // 1 ms; the spread is 1.4 ms
  EXPECT_LE(noisy[0].least_ms, 0);
  EXPECT_TRUE(noisy[0].is_lost);
  EXPECT_NEAR(contradicted({0.1, 0.2, 3}, noisy).value_or(0), 1, 1e-12);
  EXPECT_NEAR(contradicted({NAN, NAN, NAN}, noisy).value_or(0), 1, 1e-12);
  EXPECT_FALSE(contradicted({0.6, 0.6, 0.6}, noisy));
  std::vector<TimeBound> mixed = noisy;
  mixed.push_back(time_bound_of({10, {15}, {0.5, 0.5}}));
  EXPECT_FALSE(contradicted({0.1}, mixed)) << "the other bound overrules it";
  EXPECT_FALSE(contradicted({0.1}, {}));
  const TimeBound quiet = time_bound_of({1, {0.51}, {0.5, 0.51, 0.52}});  // a launch below what passes can show
  EXPECT_LE(quiet.least_ms, 0);
  EXPECT_FALSE(quiet.is_lost);
}

TEST(BenchBound, ATimeThatIsNoNumberIsTheJudges) {
  std::vector<double> ms{NAN};
  EXPECT_EQ(overrule(ms, {{0.1, 0.18, 0.2}}), 1);
  EXPECT_EQ(ms[0], 0.2);
}

// --- processes that lie ----------------------------------------------------------------------------------------------

/// Memory of the processor that passes for that of a GPU.
class FakeGpu : public DelegatingDevice {
 public:
  DeviceInfo info() const override {
    DeviceInfo info = DelegatingDevice::info();
    info.kind = "cuda";
    return info;
  }
  void flush_cache() override {  // of the processor, this would take longer than the launches
    if (is_busy && ++flushes_ % 3 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(60));
  }
  /// fill() and copy() skip the large memory with which the rate of a copy is measured.
  void fill(std::byte* device, uint64_t pattern, size_t width, size_t bytes) override {
    if (bytes < kCopied) DelegatingDevice::fill(device, pattern, width, bytes);
  }
  void copy(std::byte* to, const std::byte* from, size_t bytes) override {
    if (bytes < kCopied) DelegatingDevice::copy(to, from, bytes);
  }
  bool wait_until_alone(std::chrono::milliseconds) override { return is_alone; }

  bool is_alone = true;
  bool is_busy = false;  ///< with something else, in every third pass

 private:
  int flushes_ = 0;
  static constexpr size_t kCopied = size_t{1} << 30;
};

class BenchClaims : public testing::Test {
 protected:
  void SetUp() override { set_program_folder(std::string(kBuildFolder) + "/tests/fake_gpu"); }
  void TearDown() override { set_program_folder(""); }

  /// Burst times of the kernel of this name.
  BenchRun time(const std::string& name, size_t sets = 16) {
    PluginHosts hosts({test_plugin("claims")}, "", device_, {name});
    const auto found = std::find_if(hosts.candidates().begin(), hosts.candidates().end(),
                                    [&](const Candidate& each) { return each.name == name; });
    const Case c = matmul_case();
    BenchData data;
    data.outputs.resize(1);
    for (size_t set = 0; set < sets; ++set) {
      Case of_set = c;
      of_set.seed += set;
      data.inputs.push_back(make_inputs(of_set, 1));
      data.outputs[0].push_back(make_outputs(c));
    }
    const BenchResult result = bench_candidates(device_, {&*found}, c, data, {kLeastRepeats, true, false, 0});
    EXPECT_EQ(result.status, RunStatus::ok) << result.message;
    return result.runs.at(0);
  }

  FakeGpu device_;
};

constexpr double kWorkMs = 20;
// A busy machine may delay the way to a process and back by milliseconds in some passes, which makes a bound too high
// or hides a lie. So a test tries again.
constexpr int kAttempts = 5;

TEST_F(BenchClaims, HonestTimesAreTheCandidatesOwn) {
  BenchRun run;
  for (int i = 0; i < kAttempts && (i == 0 || run.overruled > 0); ++i) run = time("honest");
  ASSERT_EQ(run.status, RunStatus::ok) << run.message;
  EXPECT_EQ(run.overruled, 0);
  ASSERT_EQ(run.burst_ms.size(), static_cast<size_t>(kLeastRepeats));
  EXPECT_GE(quantile(run.burst_ms, 0), kWorkMs);
}

TEST_F(BenchClaims, LiesGiveTheTimeOfTheWork) {
  for (const char* name : {"stops_the_clock", "claims_no_time", "replays_by_content"}) {
    BenchRun run;
    for (int i = 0; i < kAttempts && run.overruled == 0; ++i) run = time(name);
    ASSERT_EQ(run.status, RunStatus::ok) << name << ": " << run.message;
    EXPECT_GT(run.overruled, 0) << name;
    EXPECT_GE(summarize(run.burst_ms).median, 0.9 * kWorkMs) << name;
  }
}

TEST_F(BenchClaims, FewDataSetsBoundTimesToo) {
  for (const size_t sets : {1, 2, 4}) {
    BenchRun run;
    for (int i = 0; i < kAttempts && run.overruled < kLeastRepeats; ++i) run = time("stops_the_clock", sets);
    ASSERT_EQ(run.status, RunStatus::ok) << sets << ": " << run.message;
    EXPECT_EQ(run.overruled, kLeastRepeats) << sets;
    EXPECT_GE(summarize(run.burst_ms).median, 0.9 * kWorkMs) << sets;
  }
}

TEST_F(BenchClaims, NoiseThatHidesALieLeavesNoTime) {
  device_.is_busy = true;
  const BenchRun run = time("claims_no_time", 1);
  EXPECT_EQ(run.status, RunStatus::failed);
  EXPECT_TRUE(run.message.starts_with("its process tells 1e-06 ms for a launch, the judge's clock ")) << run.message;
  EXPECT_NE(run.message.find("time it while nothing else runs"), std::string::npos) << run.message;
}

TEST_F(BenchClaims, WorkThatGoesOnBehindItsEndIsAFailure) {
  device_.is_alone = false;
  const BenchRun run = time("honest");
  EXPECT_EQ(run.status, RunStatus::failed);
  EXPECT_EQ(run.message, "its work on the device goes on after it said that all is done");
}

}  // namespace
}  // namespace checkop::bound_test
