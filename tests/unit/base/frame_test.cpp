// SPDX-License-Identifier: Apache-2.0
// Messages, and bytes beside them.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>

#include "base/frame.hpp"

namespace checkop::frame_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

const auto kAlive = [] { return true; };

struct Ends {
  Ends() {
    int both[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, both) == 0) a = Descriptor(both[0]), b = Descriptor(both[1]);
  }
  Descriptor a, b;
};

TEST(Frame, WhatIsNotOursIsNoMessage) {
  const Ends ends;
  const std::string request = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  send_bytes(ends.a.get(), request.data(), request.size(), Clock::now() + 10s);
  Message message;
  EXPECT_THROW(receive_message(ends.b.get(), message, Clock::now() + 10s, kAlive), WireError);
}

TEST(Frame, BytesArriveAsTheyAreAndTheirEndIsSeen) {
  Ends ends;
  const std::string sent("a\0b", 3);
  send_bytes(ends.a.get(), sent.data(), sent.size(), Clock::now() + 10s);
  std::string received(3, 'x');
  EXPECT_EQ(receive_bytes(ends.b.get(), received.data(), 3, Clock::now() + 10s, kAlive), Received::message);
  EXPECT_EQ(received, sent);
  EXPECT_EQ(receive_bytes(ends.b.get(), received.data(), 1, Clock::now() + 10ms, kAlive), Received::late);
  ends.a = Descriptor();
  EXPECT_EQ(receive_bytes(ends.b.get(), received.data(), 1, Clock::now() + 10s, kAlive), Received::end);
}

}  // namespace
}  // namespace checkop::frame_test
