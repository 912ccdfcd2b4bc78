// SPDX-License-Identifier: Apache-2.0
// How candidates are spread over processes.
#include "run/plugin_host.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>

#include "base/error.hpp"
#include "base/external_process.hpp"
#include "device/device.hpp"
#include "support/built.hpp"

namespace checkop::plugin_host_test {
namespace {

/// The process of each candidate.
std::map<std::string, const PluginHost*> spread(const PluginHosts& hosts) {
  std::map<std::string, const PluginHost*> processes;
  for (const Candidate& candidate : hosts.candidates()) processes[candidate.name] = PluginHost::of(*candidate.kernel);
  return processes;
}

class PluginHostsTest : public testing::Test {
 protected:
  PluginHosts start(const std::string& plugin, const std::vector<std::string>& timed) {
    return PluginHosts({test_plugin(plugin)}, folder_.path(), *device_, timed);
  }

  TempFolder folder_;
  std::unique_ptr<Device> device_ = open_cpu_device();
};

TEST_F(PluginHostsTest, EachTimedCandidateHasAProcess) {
  const PluginHosts hosts = start("bench_attacks", {"honest_slow", "replays_by_content"});
  auto processes = spread(hosts);
  EXPECT_NE(processes.at("honest_slow"), nullptr);
  EXPECT_NE(processes.at("replays_by_content"), nullptr);
  EXPECT_NE(processes.at("honest_slow"), processes.at("replays_by_content"));
  EXPECT_EQ(processes.at("computes_ahead"), processes.at("honest_slow")) << "which nobody times";
}

TEST_F(PluginHostsTest, CandidatesThatAreNotTimedShareOne) {
  const PluginHosts hosts = start("bench_attacks", {});
  auto processes = spread(hosts);
  EXPECT_NE(processes.at("honest_slow"), nullptr);
  EXPECT_EQ(processes.at("honest_slow"), processes.at("replays_by_content"));
}

TEST_F(PluginHostsTest, PluginThatRegistersLessAgainIsRefused) {
  try {
    start("registers_less_again", {"stays", "goes"});
    ADD_FAILURE() << "it was not refused";
  } catch (const InputError& e) {
    EXPECT_EQ(e.what(), test_plugin("registers_less_again") +
                            ": does not bring matmul/forward 'goes' when it is loaded again; let it register the same "
                            "kernels each time");
  }
}

}  // namespace
}  // namespace checkop::plugin_host_test
