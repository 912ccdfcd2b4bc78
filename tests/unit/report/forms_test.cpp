// SPDX-License-Identifier: Apache-2.0
// Formats generated from a JSON report: JUnit XML, Markdown, annotations.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.hpp"
#include "report/forms.hpp"
#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::report_forms_test {
namespace {

const std::string kTiny = "--op logp --device cpu --dtype fp32 --batch 1 --seq 2 --vocab 17 --check-grad ";
const std::string kMutants = fmt::format("--plugin {}/mutants.so ", kPluginFolder);

std::string content(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != std::string::npos; at += part.size()) ++n;
  return n;
}

ReadReport report_of(std::vector<Verdict> verdicts) {
  ReadReport report;
  report.suite_name = "suite";
  report.started = "2026-01-31T12:00:00Z";
  report.host = "host";
  report.command = "check_operator --op logp";
  report.device = "cpu";
  report.contract_path = "contracts/default.json";
  report.complete = true;
  report.planned = std::ssize(verdicts);
  report.exit_code = exit_code(verdicts);
  for (const Verdict verdict : verdicts) {
    ReadCase c;
    c.candidate = "mine", c.op = "logp", c.pass = "forward", c.dtype = "fp32", c.name = "logp-fp32-1x2x17";
    c.verdict = verdict;
    c.reason = is_good(verdict) ? "" : "logp[0,1] = <nan> & \"more\"";
    c.repeat = "check_operator --op logp --candidate mine";
    report.cases.push_back(c);
  }
  return report;
}

class JUnit : public testing::Test {
 protected:
  /// Writes the XML, runs the schema check, and returns the XML.
  std::string valid(const ReadReport& report) {
    const std::string xml = to_junit(report), path = testing::TempDir() + "junit_under_test.xml";
    std::ofstream(path, std::ios::binary) << xml;
    const std::string command =
        fmt::format("/usr/bin/python3 '{}/tests/support/validate_junit.py' '{}'", CHECKOP_SOURCE_DIR, path);
    EXPECT_EQ(std::system(command.c_str()), 0) << xml;
    return xml;
  }
};

TEST_F(JUnit, KeepsTheSchemaForEveryVerdict) {
  const auto all = all_verdicts();
  const std::string xml = valid(report_of({all.begin(), all.end()}));
  EXPECT_EQ(count(xml, "<failure "), 3u);  // fail, vacuous, xpass
  EXPECT_EQ(count(xml, "<error "), 3u);    // error, timeout, unsupported
  EXPECT_EQ(count(xml, "<skipped "), 1u);
  EXPECT_NE(xml.find("logp[0,1] = &lt;nan&gt; &amp; &quot;more&quot;"), std::string::npos) << xml;
}

TEST_F(JUnit, ARunThatDidNotEndOrCheckedNothingIsAnError) {
  ReadReport report = report_of({Verdict::pass});
  EXPECT_EQ(count(valid(report), "<error "), 0u);
  report.complete = false;
  report.planned = 9;
  EXPECT_NE(valid(report).find("1 of 9 checks ran"), std::string::npos);
  EXPECT_EQ(count(valid(report_of({})), "<error "), 1u);
}

TEST_F(JUnit, TheSchemaCheckCanFail) {
  const std::string xml = to_junit(report_of({Verdict::fail})), path = testing::TempDir() + "junit_broken.xml";
  const std::pair<std::string, std::string> breaks[] = {{"tests=\"1\"", "tests=\"2\""},
                                                        {"<failure type", "<failure kind"},
                                                        {"<system-err/>", ""},
                                                        {"12:00:00", "12:00:00Z"},
                                                        {"</testsuites>", ""}};
  for (const auto& [from, to] : breaks) {
    std::string broken = xml;
    ASSERT_NE(broken.find(from), std::string::npos) << from;
    broken.replace(broken.find(from), from.size(), to);
    std::ofstream(path) << broken;
    const std::string command =
        fmt::format("/usr/bin/python3 '{}/tests/support/validate_junit.py' '{}' 2>/dev/null", CHECKOP_SOURCE_DIR, path);
    EXPECT_NE(std::system(command.c_str()), 0) << from;
  }
}

TEST_F(JUnit, CharactersWithoutAPlaceInXmlAreReplaced) {
  ReadReport report = report_of({Verdict::fail});
  report.cases[0].reason = "bell \a, two\nlines";
  EXPECT_NE(valid(report).find("bell ?, two&#10;lines"), std::string::npos);
}

TEST(Markdown, SaysTheVerdictFirstAndDefusesMarkup) {
  ReadReport report = report_of({Verdict::pass, Verdict::fail});
  report.cases[1].reason = "a|b *c* <script> @someone `code`";
  const std::string text = to_markdown(report);
  EXPECT_TRUE(text.starts_with("## check_operator: not passed, exit code 1\n\n1 of 2 checks did not pass: 1 fail"));
  EXPECT_NE(text.find("a&#124;b &#42;c&#42; &lt;script> &#64;someone &#96;code&#96;"), std::string::npos) << text;
  EXPECT_TRUE(to_markdown(report_of({Verdict::pass})).starts_with("## check_operator: passed\n\n1 check passed"));
}

TEST(Markdown, StaysBelowTheLimitAndSaysWhatIsLeftOut) {
  const ReadReport report = report_of(std::vector<Verdict>(5000, Verdict::fail));
  const std::string text = to_markdown(report, 20000);
  EXPECT_LE(text.size(), 20000u);
  const size_t listed = count(text, "<details>");
  EXPECT_GT(listed, 10u);
  EXPECT_NE(text.find(fmt::format("{} more did not pass", 5000 - listed)), std::string::npos);
  EXPECT_NE(text.find("| logp forward | mine | 5000 |"), std::string::npos) << "no table of candidates";
}

TEST(Github, AnnotatesAtMostTenTimes) {
  EXPECT_TRUE(github_annotations(report_of({Verdict::pass, Verdict::skipped, Verdict::xfail})).empty());
  const auto ten = github_annotations(report_of(std::vector<Verdict>(10, Verdict::fail)));
  EXPECT_EQ(ten.size(), 10u);
  EXPECT_EQ(ten.back().find("more checks"), std::string::npos);
  const auto many = github_annotations(report_of(std::vector<Verdict>(30, Verdict::fail)));
  EXPECT_EQ(many.size(), 10u);
  EXPECT_NE(many.back().find("21 more checks did not pass"), std::string::npos) << many.back();
  EXPECT_EQ(many.front(),
            "::error title=fail%3A logp/forward  mine  logp-fp32-1x2x17::logp[0,1] = <nan> & \"more\"%0Arepeat: "
            "check_operator --op logp --candidate mine");
  ReadReport stopped = report_of({Verdict::pass});
  stopped.complete = false;
  EXPECT_EQ(github_annotations(stopped).size(), 1u);
}

TEST(Github, IsOnWhereTheVariableSaysSo) {
  const std::string summary = testing::TempDir() + "step_summary.md";
  const auto run = [&](const std::string& flags) {
    std::filesystem::remove(summary);
    // run_program() unsets the variable.
    const std::string program = fmt::format("cd '{}' && GITHUB_ACTIONS=true GITHUB_STEP_SUMMARY='{}' '{}' {} {} {}",
                                            CHECKOP_SOURCE_DIR, summary, kProgram, kTiny, kMutants, flags);
    std::FILE* pipe = popen(program.c_str(), "r");
    std::string text;
    char buffer[4096];
    while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
    pclose(pipe);
    return text;
  };
  EXPECT_NE(run("--candidate mutant-zeros").find("\n::error title=fail%3A logp/forward"), std::string::npos);
  EXPECT_NE(content(summary).find("## check_operator: not passed"), std::string::npos);
  EXPECT_EQ(run("--candidate mutant-zeros --no-github").find("::error"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(summary));
  const std::string json = run("--candidate mutant-zeros --json 2>/dev/null");
  EXPECT_EQ(nlohmann::json::parse(json)["exit_code"], 1) << "annotations stand in the JSON";
}

TEST(Forms, ARunWritesThem) {
  const std::string folder = testing::TempDir();
  const ProcessResult result = run_program(kTiny + kMutants + "--candidate native,mutant-zeros --junit " + folder +
                                           "run.xml --markdown " + folder + "run.md");
  EXPECT_EQ(result.code, 1) << result.text;
  EXPECT_EQ(count(content(folder + "run.xml"), "<failure "), 2u);
  EXPECT_NE(content(folder + "run.md").find("2 of 4 checks did not pass: 2 fail"), std::string::npos);
}

TEST(Html, HoldsTheReportAndNeedsNothingElse) {
  const std::string folder = testing::TempDir();
  run_program(kTiny + kMutants + "--candidate native,mutant-zeros --html " + folder + "run.html --json " + folder +
              "run.json");
  const std::string page = content(folder + "run.html");
  for (const char* mark : {"@VERDICT@", "@REPORT@"}) EXPECT_EQ(page.find(mark), std::string::npos) << mark;
  EXPECT_NE(page.find("<h1 id=\"verdict\">Not passed: 2 of 4 checks did not pass: 2 fail</h1>"), std::string::npos);
  for (const char* loads : {"src=", "href=", "@import", "url("})
    EXPECT_EQ(page.find(loads), std::string::npos) << loads;
  const std::string open = "<script type=\"application/json\" id=\"report\">";
  const size_t begin = page.find(open) + open.size();
  auto shown = nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  auto report = nlohmann::json::parse(std::ifstream(folder + "run.json"));
  for (auto& candidate : report["candidates"]) {
    for (auto& c : candidate["cases"]) {
      for (auto& output : c["outputs"]) output.erase("gold_rows");
    }
  }
  EXPECT_EQ(shown, report);
}

TEST(Html, WhatACandidateSaysCannotEndTheScript) {
  run_program(kTiny + "--candidate native --json " + testing::TempDir() + "said.json");
  auto report = nlohmann::json::parse(std::ifstream(testing::TempDir() + "said.json"));
  report["candidates"][0]["cases"][0]["message"] = "</script><script>alert(1)</script><!--";
  report["suite_name"] = "@REPORT@";
  const JsonValue json = JsonValue::parse(report.dump(), "report");
  const std::string page = to_html(read_report(json), json);
  EXPECT_EQ(page.find("alert(1)</script>"), std::string::npos);
  EXPECT_EQ(count(page, "</script>"), 2u);
  EXPECT_EQ(count(page, "<!--"), 1u) << "the page's own comment";
  EXPECT_EQ(count(page, "@REPORT@"), 1u) << "text of a report is no mark";
}

TEST(Forms, NoFileOfAnEarlierRunPassesForThisOnes) {
  const std::string xml = testing::TempDir() + "stale.xml";
  run_program(kTiny + "--candidate native --junit " + xml);
  EXPECT_EQ(count(content(xml), "<error "), 0u);
  const ProcessResult result = run_program(kTiny + "--candidate native --junit " + xml + " --arch-key sm90");
  EXPECT_EQ(result.code, 2) << "it was to end after its start";
  EXPECT_NE(content(xml).find("the run did not come to its end"), std::string::npos);
}

TEST(Forms, TwoReportsInOneFileAreRefused) {
  expect_exit(run_program(kTiny + "--json /tmp/one --junit /tmp/one"), 2, "--junit: another report goes to '/tmp/one'");
  expect_exit(run_program(kTiny + "--candidate native --junit /nowhere/x.xml"), 2, "/nowhere/x.xml: cannot be opened");
}

}  // namespace
}  // namespace checkop::report_forms_test
