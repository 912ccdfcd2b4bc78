// SPDX-License-Identifier: Apache-2.0
// Messages that arrive in parts or with further bytes.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

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

/// The bytes of a message with that body.
std::string message_of(const std::string& text) {
  const Ends ends;
  send_message(ends.a.get(), text, {}, Clock::now() + 10s);
  std::string bytes(4096, '\0');
  bytes.resize(static_cast<size_t>(read(ends.b.get(), bytes.data(), bytes.size())));
  return bytes;
}

TEST(Frame, AMessageIsTakenOnceItIsComplete) {
  const std::string whole = message_of("hello"), next = message_of("next");
  std::string received;
  for (const char byte : whole.substr(0, whole.size() - 1)) {
    received += byte;
    EXPECT_EQ(take_message(received, 100), std::nullopt);
  }
  received += whole.back() + next;
  EXPECT_EQ(take_message(received, 100), "\"hello\"");
  EXPECT_EQ(take_message(received, 100), "\"next\"");
  EXPECT_EQ(received, "");
}

TEST(Frame, WhatIsTooLongOrNotOursIsNoMessage) {
  std::string received = message_of("hello");
  EXPECT_THROW(take_message(received, 6), WireError);
  received = "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
  EXPECT_THROW(take_message(received, 1000), WireError);
  const Ends ends;
  send_message(ends.a.get(), "hello", {}, Clock::now() + 10s);
  Message message;
  EXPECT_THROW(receive_message(ends.b.get(), message, Clock::now() + 10s, kAlive, 6), WireError);
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
