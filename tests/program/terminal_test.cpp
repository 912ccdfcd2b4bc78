// SPDX-License-Identifier: Apache-2.0
// The program on a terminal and in a pipe: progress, colours, completion, misspelled names.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "report/progress.hpp"
#include "support/built.hpp"
#include "support/process.hpp"

namespace checkop::terminal_test {
namespace {

const std::string kTwo = "--op logp --device cpu --candidate native --dtype fp32 --batch 1 --seq 2,3 --vocab 17 ";

/// The output of the program on a terminal with 60 columns.
std::string on_terminal(const std::string& arguments, const std::string& environment = "") {
  winsize size{};
  size.ws_row = 24, size.ws_col = 60;
  int terminal = -1;
  const pid_t pid = forkpty(&terminal, nullptr, nullptr, &size);
  if (pid == 0) {
    const std::string command = fmt::format("cd '{}' && env -u GITHUB_ACTIONS -u NO_COLOR TERM=xterm {} '{}' {}",
                                            CHECKOP_SOURCE_DIR, environment, kProgram, arguments);
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = read(terminal, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  close(terminal);
  waitpid(pid, nullptr, 0);
  return text;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Terminal, ShowsTheCheckThatRunsAndWipesItAway) {
  const std::string text = on_terminal(kTwo);
  EXPECT_TRUE(has(text, "\r\x1b[2K[ RUNNING  ] 0/2  logp/forward/native/logp-fp32-1x2x17\r\x1b[2K")) << text;
  EXPECT_TRUE(has(text, "[ RUNNING  ] 1/2  ")) << text;
  EXPECT_FALSE(has(text, "2/2")) << text;
  // No progress line is wider than the terminal.
  const size_t at = text.find("[ RUNNING  ] 1/2");
  EXPECT_LT(text.find('\r', at) - at, 60u);
}

TEST(Terminal, MutateShowsWhichCaseItTries) {
  const std::string text = on_terminal("mutate --op silu --pass forward --dtype fp32");
  EXPECT_TRUE(has(text, "\r\x1b[2K[ RUNNING  ] 0/")) << text;
  EXPECT_TRUE(has(text, "silu/forward/silu-fp32-")) << text;
  EXPECT_TRUE(has(text, "kill rate 1.0000")) << text;
}

TEST(Terminal, APipeGetsNeitherProgressNorColors) {
  const ProcessResult result = run_program(kTwo);
  EXPECT_EQ(result.code, 0);
  EXPECT_FALSE(has(result.text, "\x1b")) << result.text;
  EXPECT_FALSE(has(result.text, "RUNNING"));
}

TEST(Terminal, ColorsFollowTheFlagThenNoColor) {
  const std::string green = "\x1b[32m[       OK ]\x1b[0m";
  EXPECT_TRUE(has(on_terminal(kTwo), green));
  EXPECT_FALSE(has(on_terminal(kTwo, "NO_COLOR=1"), green));
  EXPECT_FALSE(has(on_terminal(kTwo, "TERM=dumb"), green));
  EXPECT_FALSE(has(on_terminal(kTwo + "--color never"), green));
  EXPECT_TRUE(has(on_terminal(kTwo + "--color always", "NO_COLOR=1"), green));
  EXPECT_TRUE(has(run_program(kTwo + "--color always").text, green));
  const std::string mutants = fmt::format("--plugin {}/mutants.so --candidate mutant-zeros ", kPluginFolder);
  EXPECT_TRUE(has(run_program("--op logp --device cpu --batch 1 --seq 2 --vocab 17 --color always " + mutants).text,
                  "\x1b[31m[  FAILED  ]\x1b[0m logp/forward"));
}

TEST(Terminal, ProgressSaysRateAndTimeLeft) {
  EXPECT_EQ(describe_progress(0, 10, 0, 1), "0/10");
  EXPECT_EQ(describe_progress(5, 10, 0.5, 2.5), "5/10  2.0 checks/s, 3 s left");
  EXPECT_EQ(describe_progress(200, 2600, 0.1, 20), "200/2600  10 checks/s, 3 min left");
  // By cost: one of ten checks is done, and it was nine tenths of the work.
  EXPECT_EQ(describe_progress(1, 10, 0.9, 90), "1/10  0.7 checks/min, 10 s left");
  EXPECT_EQ(describe_progress(1, 1000, 0.001, 36), "1/1000  1.7 checks/min, 10.0 h left");
}

/// bash's completions at the end of `line`.
std::string completions(const std::string& line) {
  const std::string command = fmt::format(
      "bash -c 'source <(\"{}\" completion bash); COMP_WORDS=({}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
      "_check_operator; echo \" ${{COMPREPLY[*]}} \"'",
      kProgram, line);
  std::FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  EXPECT_EQ(pclose(pipe), 0) << line;
  return text;
}

TEST(Completion, KnowsCommandsFlagsAndNames) {
  EXPECT_EQ(completions("check_operator be"), " bench \n");
  EXPECT_EQ(completions("check_operator contract ex"), " explain \n");
  EXPECT_EQ(completions("check_operator --dty"), " --dtype \n");
  EXPECT_EQ(completions("check_operator bench --base"), " --baseline \n");
  EXPECT_EQ(completions("check_operator --base"), "  \n") << "a flag of bench alone";
  EXPECT_EQ(completions("check_operator --op lo"), " logp \n");
  EXPECT_EQ(completions("check_operator --op silu,rms"), " silu,rms_norm \n");
  EXPECT_EQ(completions("check_operator show swi"), " swiglu \n");
  EXPECT_EQ(completions("check_operator import --sol"), " --solution \n");
  EXPECT_EQ(completions("check_operator report diff --allow"), " --allow-gone \n");
  EXPECT_TRUE(has(completions("check_operator --preset qwen3-"), " qwen3-8b "));
}

TEST(Completion, ScriptsAreReadWithoutErrors) {
  for (const char* shell : {"bash", "zsh"}) {
    const std::string script = testing::TempDir() + "completion." + shell;
    expect_exit(run_program(fmt::format("completion {} > {}", shell, script)), 0, "");
    EXPECT_EQ(std::system(fmt::format("bash -n {}", script).c_str()), 0);
  }
  expect_exit(run_program("completion zsh"), 0, "#compdef check_operator");
  expect_exit(run_program("completion zhs"), 2, "did you mean 'zsh'?");
}

TEST(Cli, NamesThatAreNearlyRightAreGuessed) {
  const std::pair<std::string, std::string> slips[] = {
      {"--dtpye fp32", "unknown flag '--dtpye'; did you mean '--dtype'?"},
      {"--dtpye=fp32", "unknown flag '--dtpye'; did you mean '--dtype'?"},
      {"bnech", "unknown argument 'bnech'; did you mean 'bench'?"},
      {"bench --repaets 3", "did you mean '--repeats'?"},
      {"contract explian", "did you mean 'explain'?"},
      {"--op logp --check accurcy", "did you mean 'accuracy'?"},
      {"--op logp --save-tensors x --save al", "did you mean 'all'?"},
      {"bench --timing brust", "did you mean 'burst'?"},
      {"--color alwys", "did you mean 'always'?"},
      {"--device gpu", "use auto, cpu, cuda"},
      {"--suite smok --device cpu", "did you mean 'smoke'?"},
      {"--op logp --dim vocba=7", "did you mean 'vocab'?"},
      {"--op logp --arch-key sm90a", "did you mean 'sm90'?"},
  };
  for (const auto& [arguments, part] : slips) expect_exit(run_program(arguments), 2, part);
}

}  // namespace
}  // namespace checkop::terminal_test
