// SPDX-License-Identifier: Apache-2.0
// check_operator doctor: what is installed, what is missing, and how to get it.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "device/device.hpp"
#include "device/plugin.hpp"
#include "support/built.hpp"
#include "support/process.hpp"
#include "support/run_helper.hpp"

namespace checkop::doctor_test {
namespace {

using nlohmann::json;

json finding(const json& report, const std::string& name) {
  for (const json& each : report.at("findings"))
    if (each.at("name").get<std::string>().ends_with(name)) return each;
  return nullptr;
}

json doctor(const std::string& arguments = "") {
  return json::parse(run_program("doctor --json " + arguments).text, nullptr, /*allow_exceptions=*/false);
}

TEST(Doctor, NamesContractCasesAndEveryPluginWithAbiAndDigest) {
  const json report = doctor();
  ASSERT_TRUE(report.is_object());
  EXPECT_EQ(report.at("format"), "check_operator/doctor-1");
  EXPECT_TRUE(finding(report, "contracts/default.json").at("found"));
  EXPECT_NE(finding(report, "cases").at("value").get<std::string>().find("cases of suite smoke"), std::string::npos);
  for (const Operator* op : operators()) {
    const json plugin = finding(report, fmt::format("kernels/{}/native.so", op->name));
    ASSERT_TRUE(plugin.is_object()) << op->name;
    const auto value = plugin.at("value").get<std::string>();
    const std::string path = std::filesystem::path(kProgram).parent_path() / "kernels" / op->name / "native.so";
    EXPECT_NE(value.find(fmt::format("ABI {}, digest {}", CHECKOP_ABI_VERSION, file_digest(path))), std::string::npos)
        << value;
  }
}

TEST(Doctor, OfABuildWithoutCudaMissesNothingThatItNeeds) {
  if (built_with_cuda()) {
    EXPECT_TRUE(finding(doctor(), "driver").at("needed"));
    return;
  }
  expect_exit(run_program("doctor"), 0, "Nothing is missing that this build needs.");
  expect_exit(run_program("doctor"), 0, "get it with: cmake --preset cuda");
  EXPECT_FALSE(finding(doctor(), "driver").at("needed"));
}

TEST(Doctor, BrokenPluginIsMissingAndHidesNoOther) {
  const ProcessResult result =
      run_program("doctor --plugin " + test_plugin("other_abi") + " --plugin " + test_plugin("honest"));
  expect_exit(result, 5, "[ MISSING ]");
  expect_exit(result, 5, "Something is missing that this build needs (exit code 5).");
  const json report = doctor("--plugin " + test_plugin("other_abi") + " --plugin " + test_plugin("crashes_at_load") +
                             " --plugin " + test_plugin("honest"));
  EXPECT_EQ(report.at("ok"), false);
  EXPECT_FALSE(finding(report, "other_abi.so").at("found"));
  EXPECT_NE(finding(report, "other_abi.so").at("value").get<std::string>().find("ABI"), std::string::npos);
  EXPECT_NE(finding(report, "crashes_at_load.so").at("value").get<std::string>().find("killed by signal 11"),
            std::string::npos);
  EXPECT_TRUE(finding(report, "honest.so").at("found"));
}

TEST(Doctor, WhatIsMissingComesWithTheLineThatGetsIt) {
  const json report = doctor();
  for (const json& each : report.at("findings")) {
    if (each.at("found").get<bool>()) {
      EXPECT_TRUE(each.at("install").is_null()) << each;
    } else {
      EXPECT_FALSE(each.at("install").get<std::string>().empty()) << each;
    }
  }
}

TEST(Doctor, WritesAFileBesideTheText) {
  const std::string file = testing::TempDir() + "doctor.json";
  const ProcessResult result = run_program("doctor --json " + file);
  std::ifstream stream(file);
  const bool ok = json::parse(stream).at("ok");
  expect_exit(result, ok ? 0 : 5, "check_operator");
  EXPECT_TRUE(ok || built_with_cuda()) << result.text;
}

}  // namespace
}  // namespace checkop::doctor_test
