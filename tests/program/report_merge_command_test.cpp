// SPDX-License-Identifier: Apache-2.0
// check_operator report merge: refusals, reports from different machines, and output formats.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>

#include "support/built.hpp"
#include "support/process.hpp"
#include "support/report_merge_helper.hpp"

namespace checkop::report_merge_command_test {
namespace {

// --- not the shards of one run, or not all of them

class MergeCommand : public testing::Test {
 protected:
  static constexpr const char* kFlags = "--op silu --candidate native --batch 1 --seq 2,8,9 --hidden 33 --device cpu";

  static std::string shard(const std::string& name, int index, int total, const std::string& flags = kFlags) {
    const std::string file = report_path(name + ".json");
    run_program(fmt::format("{} --shard-index {} --total-shards {} --json {}", flags, index, total, file));
    return file;
  }
  /// A copy of `file` with a change.
  static std::string changed(const std::string& file, const std::function<void(json&)>& change) {
    json report = load_report(file);
    change(report);
    return write_text("changed.json", report.dump());
  }
  static void expect_refusal(const std::string& files, const std::string& sentence) {
    const ProcessResult result = run_program("report merge " + files);
    expect_exit(result, 2, sentence);
    EXPECT_EQ(std::count(result.text.begin(), result.text.end(), '\n'), 1) << result.text;
  }
};

TEST_F(MergeCommand, ReportsOfDifferentRunsAreRefused) {
  const std::string a = shard("a", 0, 2), b = shard("b", 1, 2), with_a = a + " ";
  expect_exit(run_program("report merge " + with_a + b), 0, "3 checks passed");
  const auto refuses = [&](const std::string& sentence, const std::function<void(json&)>& change) {
    expect_refusal(with_a + changed(b, change), sentence);
  };
  refuses("its version of check_operator is 0.0.9", [](json& r) { r["environment"]["version"] = "0.0.9"; });
  refuses("its contract is 0123456789abcdef", [](json& r) { r["contract"]["hash"] = "0123456789abcdef"; });
  refuses("native.so, by its digest, is 0123456789abcdef",
          [](json& r) { r["shard"]["plugins"][0]["digest"] = "0123456789abcdef"; });
  refuses("its list of devices is cuda:0", [](json& r) { r["shard"]["devices"] = {"cuda:0"}; });
  refuses("its cpu architecture is sm90, that of " + a + " is none",
          [](json& r) { r["candidates"][0]["device"]["arch_key"] = "sm90"; });
  refuses("its list of checks, by its digest, is 0123456789abcdef",
          [](json& r) { r["shard"]["digest"] = "0123456789abcdef"; });
  refuses("has check 0 of the run, which " + a + " has too",
          [&](json& r) { r["candidates"][0]["cases"][0]["whole"]["index"] = 0; });
  refuses("key 'whole' is missing", [](json& r) { r["candidates"][0]["cases"][0].erase("whole"); });
  refuses("candidates[0]: key 'op' is missing", [](json& r) { r["candidates"][0].erase("op"); });
  refuses("outputs[0].passed: expected true or false",
          [](json& r) { r["candidates"][0]["cases"][0]["outputs"][0]["passed"] = 1; });
  refuses("the shards have 2 of 3 checks", [](json& r) { r["candidates"][0]["cases"].erase(0); });
  expect_refusal(with_a + shard("c", 1, 2, std::string(kFlags) + " --seed 9"),
                 "was run with --seed=9, " + a + " was not");
  expect_refusal(shard("c", 1, 2, std::string(kFlags) + " --seed 9") + " " + a, "was run with --seed=9");
  expect_refusal(with_a + shard("c", 1, 2, "--suite smoke --op silu --filter '*-1x*' --device cpu"),
                 "was run with --suite=smoke, " + a + " was not");
  expect_refusal(with_a + shard("c", 1, 3), "its number of shards is 3, that of " + a + " is 2");
}

TEST_F(MergeCommand, ThreadsMayDiffer) {
  const std::string b = shard("b", 1, 2, std::string(kFlags) + " --threads 1");
  expect_exit(run_program("report merge " + shard("a", 0, 2) + " " + b), 0, "3 checks passed");
}

TEST_F(MergeCommand, EveryShardMustBeThereOnceUnlessPartial) {
  const std::string a = shard("a", 0, 3), b = shard("b", 1, 3), out = report_path("partial.json");
  expect_refusal(a + " " + b + " " + a, "is of shard 0 of 3, and so is " + a);
  expect_refusal(a + " " + b + " " + a + " --partial", "is of shard 0 of 3");
  expect_refusal(a + " " + b, "report merge: 1 of 3 shards is missing: 2; run it, or add --partial");
  expect_refusal(b, "report merge: 2 of 3 shards are missing: 0, 2");
  const ProcessResult partial = run_program(fmt::format("report merge {} {} --partial --json {}", a, b, out));
  expect_exit(partial, 4, "2 checks passed; the run did not come to its end, 2 of 3 checks ran");
  expect_exit(partial, 4, "[ WARNING  ] 1 of 3 shards is missing: 2");
  const json report = load_report(out);
  EXPECT_EQ(report["complete"], false);
  EXPECT_EQ(report["passed"], false);
  EXPECT_EQ(report["exit_code"], 4);
  EXPECT_EQ(report["planned"], 3);
}

TEST_F(MergeCommand, AKilledShardIsRefusedUnlessPartial) {
  const std::string flags = fmt::format(
      "--op matmul --batch 1 --seq 2,3 --k-dim 2 --n-dim 4 --candidate honest,sleeps --plugin {}/crashes.so --device "
      "cpu",
      kPluginFolder);
  const std::string killed = report_path("killed.json");
  // The report contains the first candidate's check while the second candidate sleeps.
  const std::string command = fmt::format(
      "cd '{}' && rm -f {} && {{ '{}' {} --shard-index 0 --total-shards 1 --json {} >/dev/null & pid=$!; "
      "for i in $(seq 600); do [ \"$(grep -c '\"verdict\":\"pass\"' {} 2>/dev/null)\" = 2 ] && break; sleep 0.1; done; "
      "kill -9 $pid; }}",
      CHECKOP_SOURCE_DIR, killed, kProgram, flags, killed, killed);
  ASSERT_EQ(std::system(command.c_str()), 0);
  ASSERT_EQ(load_report(killed)["complete"], false);
  expect_refusal(killed, killed + ": shard 0 of 1 did not come to its end");
  const ProcessResult partial = run_program("report merge " + killed + " --partial");
  expect_exit(partial, 4, "2 checks passed; the run did not come to its end, 2 of 4 checks ran");
}

TEST_F(MergeCommand, WhatIsNoShardIsRefused) {
  const std::string whole = report_path("whole.json"), a = shard("a", 0, 2), b = shard("b", 1, 2);
  run_program(fmt::format("{} --json {}", kFlags, whole));
  const std::string sentence = whole + ": is the report of a whole run, not of a shard";
  expect_refusal(whole + " " + whole, sentence);
  expect_refusal(a + " " + whole, sentence);
  run_program(fmt::format("report merge {} {} --json {}", a, b, whole));
  expect_refusal(whole, sentence);
  expect_refusal("contracts/default.json", "contracts/default.json: format");
  expect_refusal("missing.json", "missing.json: cannot be opened");
  expect_exit(run_program("report merge"), 2, "argument 'reports' is missing");
  expect_refusal(fmt::format("{} {} --json {} --html {}", a, b, report_path("x"), report_path("x")),
                 "another report goes to");
}

// --- machines and forms

TEST_F(MergeCommand, MachinesThatDifferAreToldApart) {
  const std::string a = shard("a", 0, 2), out = report_path("merged.json");
  const std::string b = changed(shard("b", 1, 2), [](json& report) {
    report["volatile"]["host"] = "another";
    report["environment"]["compiler"] = "another compiler";
    for (json& device : {std::ref(report["device"]), std::ref(report["candidates"][0]["device"])})
      device["name"] = "another CPU";
  });
  expect_exit(run_program(fmt::format("report merge {} {} --json {}", b, a, out)), 0, "3 checks passed");
  const json report = load_report(out), first = load_report(a), second = load_report(b);
  const json& candidate = report["candidates"].at(0);
  EXPECT_EQ(candidate["device"], first["device"]) << "that of the first check, wherever files stand";
  int others = 0;
  for (const json& c : candidate["cases"]) {
    const bool of_second = second["candidates"][0]["cases"].dump().find(c["case_name"]) != std::string::npos;
    EXPECT_EQ(c.contains("device"), of_second);
    EXPECT_EQ(c.value("device", first["device"]), of_second ? second["device"] : first["device"]);
    others += of_second ? 1 : 0;
  }
  EXPECT_EQ(others, 1);
  const json& shards = report["volatile"]["shards"];
  ASSERT_EQ(shards.size(), 2u);
  EXPECT_EQ(shards[0]["host"], first["volatile"]["host"]);
  EXPECT_EQ(shards[1]["host"], "another");
  EXPECT_EQ(shards[1]["environment"]["compiler"], "another compiler");
  EXPECT_EQ(shards[1]["device"]["name"], "another CPU");
  EXPECT_EQ(report["environment"], first["environment"]);
  EXPECT_EQ(report["volatile"]["host"], first["volatile"]["host"].get<std::string>() + ", another");
  EXPECT_DOUBLE_EQ(report["volatile"]["wall_ms"].get<double>(),
                   first["volatile"]["wall_ms"].get<double>() + second["volatile"]["wall_ms"].get<double>());
}

TEST_F(MergeCommand, CommandIsThatOfTheWholeRun) {
  const std::string flags = std::string(kFlags) + " --threads 1 --max-skip 3", out = report_path("merged.json");
  const std::string a = shard("a", 0, 2, flags), b = shard("b", 1, 2, flags);
  run_program(fmt::format("report merge {} {} --json {}", a, b, out));
  const std::string command = load_report(out)["command"];
  EXPECT_EQ(command,
            "check_operator --candidate=native --device=cpu --op=silu --batch=1 --hidden=33 --seq=2,8,9 --max-skip=3");
  expect_exit(run_program(command.substr(command.find(' ') + 1)), 0, "3 checks ran");
}

TEST_F(MergeCommand, AControlThatOneShardDidNotCatchIsNotCaught) {
  const std::string flags =
      "--candidate native --pass forward --dtype fp32 --check accuracy,invariance --suite "
      "smoke --op silu --filter '*-1x[13]x515' --device cpu";
  const std::string a = shard("a", 0, 2, flags), out = report_path("merged.json");
  ASSERT_EQ(load_report(a)["controls"].size(), 1u);
  const std::string b = changed(shard("b", 1, 2, flags), [](json& report) {
    report["controls"][0].update(json{{"caught", false}, {"reason", "its rows were the same"}});
    json& c = report["candidates"][0]["cases"][0];
    ASSERT_EQ(c["verdict"], "pass");
    c.update(json{{"verdict", "error"}, {"kind", "control"}, {"passed", false}, {"reason", "not caught"}});
  });
  EXPECT_EQ(run_program(fmt::format("report merge {} {} --json {}", a, b, out)).code, 4);
  const json report = load_report(out);
  ASSERT_EQ(report["controls"].size(), 1u);
  EXPECT_EQ(report["controls"][0]["caught"], false);
  EXPECT_EQ(verdicts_of_report(report), (Counts{{"error", 1}, {"pass", 1}}));
}

TEST_F(MergeCommand, WhatIsVacuousIsSoUnderAControlThatWasNotCaughtToo) {
  const std::string flags = "--candidate native --pass forward --dtype fp32 --device cpu --cases ";
  const auto void_it = [](json& report) {
    json& c = report["candidates"][0]["cases"][0];
    ASSERT_EQ(c["verdict"], "pass");
    c.update(json{{"verdict", "error"}, {"kind", "control"}, {"passed", false}, {"reason", "not caught"}});
  };
  const std::string a = shard("a", 0, 2, flags + cases_of_equal_rows(false)), out = report_path("merged.json");
  const std::string b = changed(shard("b", 1, 2, flags + cases_of_equal_rows(false)), void_it);
  EXPECT_EQ(run_program(fmt::format("report merge {} {} --json {}", a, b, out)).code, 1);
  EXPECT_EQ(verdicts_of_report(load_report(out)), (Counts{{"vacuous", 2}}))
      << "as the whole run asks for the control last";
}

TEST_F(MergeCommand, RunsUnderASanitizerAddUp) {
  const auto with_run = [](int errors, const std::string& summary) {
    return [=](json& report) {
      report["sanitizers"] = {{{"tool", "memcheck"}, {"summary", summary}, {"errors", errors}, {"checks", 2}}};
    };
  };
  const std::string a = shard("a", 0, 2), b = shard("b", 1, 2), out = report_path("merged.json");
  const auto merged = [&](int errors, const std::string& first, const std::string& second) {
    const std::string file = changed(a, with_run(errors, first)), other = report_path("other.json");
    std::ofstream(other) << load_report(file).dump();
    run_program(fmt::format("report merge {} {} --json {}", other, changed(b, with_run(1, second)), out));
    return load_report(out)["sanitizers"];
  };
  const json run{{"tool", "memcheck"}, {"summary", "1 error"}, {"errors", 2}, {"checks", 4}};
  EXPECT_EQ(merged(1, "1 error", "1 error"), json::array({run}));
  EXPECT_EQ(merged(2, "2 errors", "1 error")[0]["summary"], "2 errors; 1 error");
  EXPECT_EQ(merged(2, "2 errors", "")[0]["summary"], "") << "of one shard nothing is known";
}

TEST_F(MergeCommand, MergedReportsHaveAllForms) {
  const std::string flags = fmt::format(
      "--op logp --candidate native,mutant-zeros --plugin {}/mutants.so --batch 1 --seq 2,3 --vocab 17 --device cpu",
      kPluginFolder);
  const std::string a = shard("a", 0, 2, flags), b = shard("b", 1, 2, flags), out = report_path("merged.json"),
                    whole = report_path("whole.json");
  run_program(fmt::format("{} --json {}", flags, whole));
  const std::string forms = fmt::format("--junit {0}.xml --markdown {0}.md --html {0}.html", report_path("form"));
  const ProcessResult merged = run_program(fmt::format("report merge {} {} --json {} {}", a, b, out, forms));
  expect_exit(merged, 1, "[==========] 2 shards: 2 of 4 checks did not pass: 2 fail");
  EXPECT_NE(text_of_file(report_path("form.xml")).find("tests=\"4\" failures=\"2\" errors=\"0\""), std::string::npos);
  EXPECT_NE(text_of_file(report_path("form.md")).find("## check_operator: not passed, exit code 1"), std::string::npos);
  EXPECT_NE(text_of_file(report_path("form.html")).find("Not passed: 2 of 4 checks did not pass: 2 fail"),
            std::string::npos);
  expect_exit(run_program("report " + out), 0, "2 of 4 checks did not pass");
  const ProcessResult diff = run_program(fmt::format("report diff {} {}", whole, out));
  expect_exit(diff, 0, "not worse: 0 new failures, 0 headrooms lost beyond 1.5x, 0 checks gone");
  EXPECT_EQ(diff.text.find("NOTE"), std::string::npos) << diff.text;
  expect_exit(run_program(fmt::format("report diff {} {}", whole, a)), 1,
              "different run shards: a whole run, now shard 0 of 2");
  const ProcessResult to_stdout = run_program(fmt::format("report merge {} {} --json", a, b));
  EXPECT_EQ(to_stdout.code, 1);
  EXPECT_EQ(lasting_part(json::parse(to_stdout.text)), lasting_part(load_report(whole)));
}

TEST_F(MergeCommand, EveryFormOfAShardNamesIt) {
  const std::string forms = fmt::format("--junit {0}.xml --markdown {0}.md --html {0}.html", report_path("form"));
  const ProcessResult run = run_program(
      fmt::format("--op logp --candidate mutant-zeros --plugin {}/mutants.so --batch 1 --seq 2,3 --vocab 17 "
                  "--device cpu --shard-index 1 --total-shards 2 --github {}",
                  kPluginFolder, forms));
  expect_exit(run, 1, "[==========] 1 check of 1 candidate, shard 1 of 2; contract");
  expect_exit(run, 1, "::error title=fail%3A logp/forward  mutant-zeros  logp-fp32-1x2x17 (shard 1 of 2)::");
  EXPECT_NE(text_of_file(report_path("form.xml")).find("<testsuite name=\"check_operator, shard 1 of 2\""),
            std::string::npos);
  EXPECT_NE(text_of_file(report_path("form.md")).find("## check_operator, shard 1 of 2: not passed"),
            std::string::npos);
  EXPECT_NE(text_of_file(report_path("form.html")).find("1 of 1 check did not pass: 1 fail; shard 1 of 2"),
            std::string::npos);
}

}  // namespace
}  // namespace checkop::report_merge_command_test
