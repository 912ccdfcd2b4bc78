// SPDX-License-Identifier: Apache-2.0
// Sockets and processes that are asked line by line; candidates of --exec are tested in run/external_test.cpp.
#include "base/external_process.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <string>
#include <thread>

namespace checkop::external_process_test {
namespace {

/// Two connected sockets.
struct Ends {
  std::array<int, 2> ends{-1, -1};
  Ends() {
    signal(SIGPIPE, SIG_IGN);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) throw std::runtime_error("socketpair");
  }
  ~Ends() {
    for (const int end : ends) close(end);
  }
};

std::string read_some(int descriptor) {
  std::array<char, 100> block;
  const ssize_t n = read(descriptor, block.data(), block.size());
  return n > 0 ? std::string(block.data(), static_cast<size_t>(n)) : "";
}

void say(int descriptor, const std::string& text) {
  ASSERT_EQ(write(descriptor, text.data(), text.size()), std::ssize(text));
}

TEST(LineSocket, AnswersLineByLine) {
  const Ends pair;
  LineSocket socket(pair.ends[0]);
  std::thread other([&] {
    EXPECT_EQ(read_some(pair.ends[1]), "first\n");
    say(pair.ends[1], "an ");
    say(pair.ends[1], "answer\n");
    EXPECT_EQ(read_some(pair.ends[1]), "second\n");
    say(pair.ends[1], "another\n");
  });
  EXPECT_EQ(socket.request("first"), "an answer");
  EXPECT_EQ(socket.request("second"), "another");
  other.join();
}

TEST(LineSocket, LateAnswerToAnEarlierProcessIsThrownAway) {
  const Ends pair;
  say(pair.ends[1], "late\n");
  LineSocket socket(pair.ends[0]);
  std::thread other([&] {
    EXPECT_EQ(read_some(pair.ends[1]), "first\n");
    say(pair.ends[1], "answer\n");
  });
  EXPECT_EQ(socket.request("first"), "answer");
  other.join();
}

TEST(LineSocket, ClosedSocketEndsTheConversation) {
  Ends pair;
  LineSocket socket(pair.ends[0]);
  close(pair.ends[1]);
  pair.ends[1] = -1;
  try {
    socket.request("first");
    FAIL() << "no exception";
  } catch (const ProcessEnded& e) {
    EXPECT_STREQ(e.what(), "closed the socket before it answered");
  }
}

TEST(LineProcess, IsAskedNothingAfterItsEnd) {
  signal(SIGPIPE, SIG_IGN);
  const TempFolder folder;
  LineProcess process("sh -c 'exit 3'", folder.path() + "/stderr");
  siginfo_t end;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(process.id()), &end, WEXITED | WNOWAIT), 0);  // writing meets a closed pipe
  const auto error = [&] {
    try {
      process.request("first");
    } catch (const ProcessEnded& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(error(), "exited with code 3 before it answered");
  EXPECT_EQ(error(), "has ended already");
}

TEST(LineSocket, PipesAndClosedDescriptorsAreNoSockets) {
  const Ends pair;
  EXPECT_TRUE(LineSocket::is_socket(pair.ends[0]));
  std::array<int, 2> pipe_ends{-1, -1};
  ASSERT_EQ(pipe(pipe_ends.data()), 0);
  EXPECT_FALSE(LineSocket::is_socket(pipe_ends[0]));
  for (const int end : pipe_ends) close(end);
  EXPECT_FALSE(LineSocket::is_socket(pipe_ends[0]));
}

TEST(LineProcess, ASimpleCommandReplacesItsShell) {
  for (const char* command : {"python3 mine.py", "  python3 mine.py", "exec python3 mine.py", "python3 -c 'f(1); g(2)'",
                              "python3 -c \"f(1)\"", "./mine --name a\\;b", "a b='c d'"})
    EXPECT_TRUE(replaces_shell(command)) << command;
  for (const char* command :
       {"", "  ", "cd kernels && python3 mine.py", "A=1 python3 mine.py", "! mine", "mine | tee log", "mine > log",
        "(mine)", "mine &", "mine\nmine", "python3 -c 'f(1)", "'a' ; b"})
    EXPECT_FALSE(replaces_shell(command)) << command;
}

TEST(LineProcess, ACommandIsOneProcessWhetherItSaysExecOrNot) {
  const TempFolder folder;
  for (const char* command : {"sh -c 'echo $$'", "exec sh -c 'echo $$'", " sh -c 'echo $$; true'"}) {
    LineProcess process(command, folder.path() + "/stderr");
    EXPECT_EQ(process.next_line(), std::to_string(process.id())) << command;
  }
}

}  // namespace
}  // namespace checkop::external_process_test
