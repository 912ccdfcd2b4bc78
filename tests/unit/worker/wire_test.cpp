// SPDX-License-Identifier: Apache-2.0
// Messages between parent and worker: valid and invalid ones.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.hpp"
#include "worker/wire.hpp"

namespace checkop::wire_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

const auto kAlive = [] { return true; };

/// Two connected ends of a socket.
struct WireSocket : testing::Test {
  WireSocket() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    near = Descriptor(fds[0]);
    far = Descriptor(fds[1]);
  }

  void send(const json& body, const std::vector<int>& descriptors = {}, std::string_view bytes = {}) {
    send_message(near.get(), body, descriptors, Clock::now() + 10s, bytes);
  }
  Received receive(Clock::duration limit = 10s, const std::function<bool()>& is_alive = kAlive) {
    return receive_message(far.get(), message, Clock::now() + limit, is_alive);
  }
  /// The bytes of a message that holds `body`.
  std::string frame(const json& body) {
    send(body);
    std::string bytes(4096, '\0');
    bytes.resize(static_cast<size_t>(read(far.get(), bytes.data(), bytes.size())));
    return bytes;
  }
  /// Sends the bytes unchanged, together with `descriptors`.
  void send_raw(std::string bytes, const std::vector<int>& descriptors = {}) {
    iovec part{bytes.data(), bytes.size()};
    msghdr raw{};
    raw.msg_iov = &part;
    raw.msg_iovlen = 1;
    alignas(cmsghdr) char control[1024] = {};
    const size_t size = descriptors.size() * sizeof(int);
    if (size > 0) {
      raw.msg_control = control;
      raw.msg_controllen = CMSG_SPACE(size);
      cmsghdr* entry = CMSG_FIRSTHDR(&raw);
      entry->cmsg_level = SOL_SOCKET;
      entry->cmsg_type = SCM_RIGHTS;
      entry->cmsg_len = CMSG_LEN(size);
      std::memcpy(CMSG_DATA(entry), descriptors.data(), size);
    }
    ASSERT_EQ(sendmsg(near.get(), &raw, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }

  Descriptor near, far;
  Message message;
};

// The header as it travels: uint32 magic, uint32 descriptors, uint64 bytes of the body, uint64 bytes beside it.
constexpr size_t kDescriptorsAt = 4, kBodyBytesAt = 8, kBytesAt = 16, kHeaderBytes = 24;
constexpr uint64_t kMaxBody = uint64_t{64} << 20;

template <class T>
std::string patched(std::string bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(value));
  return bytes;
}

bool is_open(int fd) { return fcntl(fd, F_GETFD) >= 0; }

/// The text of the WireError thrown by `body`.
template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const WireError& e) {
    return e.what();
  }
  return "no error";
}

// --- messages

TEST_F(WireSocket, MessageArrivesAsItWasSent) {
  send({{"key", "value"}});
  ASSERT_EQ(receive(), Received::message);
  EXPECT_EQ(json::parse(message.body), (json{{"key", "value"}}));
  EXPECT_TRUE(message.descriptors.empty());
}

TEST_F(WireSocket, BytesBesideTheBodyArriveAsTheyAre) {
  const std::string bytes("a\0\xff}", 4);
  send("body", {}, bytes);
  ASSERT_EQ(receive(), Received::message);
  EXPECT_EQ(message.body, "\"body\"");
  EXPECT_EQ(message.bytes, bytes);
  send("next");
  ASSERT_EQ(receive(), Received::message);
  EXPECT_EQ(message.bytes, "");
}

TEST_F(WireSocket, MessageLargerThanTheSocketsBufferArrives) {
  const std::string text(8 << 20, 'x');
  std::thread sender([&] { send(text, {near.get()}); });
  const Received received = receive();
  sender.join();
  ASSERT_EQ(received, Received::message);
  EXPECT_EQ(message.body, '"' + text + '"');
  EXPECT_EQ(message.descriptors.size(), 1u);  // only with the first part
}

TEST(Wire, DumpIsOneLineOfUtf8) {
  const std::string text = dump({{"a", "x\ny"}, {"b", "\xff"}});
  EXPECT_EQ(text, "{\"a\":\"x\\ny\",\"b\":\"\xef\xbf\xbd\"}");
}

// --- invalid messages

TEST_F(WireSocket, BytesOfSomebodyElseAreNoMessage) {
  send_raw(patched(frame({}), 0, uint32_t{0x12345678}));
  EXPECT_EQ(error_of([&] { receive(); }), "malformed message: wrong magic number or too long");
}

TEST_F(WireSocket, FrameBeyondTheLimitIsRefusedBeforeItsBodyIsRead) {
  send_raw(patched(frame({}), kBodyBytesAt, kMaxBody + 1).substr(0, kHeaderBytes));
  EXPECT_EQ(error_of([&] { receive(); }), "malformed message: wrong magic number or too long");
}

TEST_F(WireSocket, BytesBeyondTheLimitAreRefused) {
  send_raw(patched(frame({}), kBytesAt, kMaxBody + 1));
  EXPECT_EQ(error_of([&] { receive(); }), "malformed message: wrong magic number or too long");
}

TEST_F(WireSocket, FrameOfTheLimitIsAwaited) {
  send_raw(patched(frame({}), kBodyBytesAt, kMaxBody).substr(0, kHeaderBytes));
  EXPECT_EQ(receive(10ms), Received::late);
}

TEST_F(WireSocket, MalformedJsonIsHandedOnAsItCame) {  // the caller that parses it knows who sent it
  send_raw(patched(frame("abc"), kHeaderBytes, '{'));
  ASSERT_EQ(receive(), Received::message);
  EXPECT_FALSE(json::accept(message.body));
}

// --- the other side disconnects

class WireCutAt : public WireSocket, public testing::WithParamInterface<size_t> {};
INSTANTIATE_TEST_SUITE_P(Bytes, WireCutAt, testing::Values(0, 1, kHeaderBytes - 1, kHeaderBytes, kHeaderBytes + 1));

TEST_P(WireCutAt, CloseBeforeTheLastByteIsTheEnd) {
  if (GetParam() > 0) send_raw(frame("abc").substr(0, GetParam()));
  near = Descriptor();
  EXPECT_EQ(receive(), Received::end);
}

TEST_F(WireSocket, MessageBeforeTheCloseArrives) {
  send("last words");
  near = Descriptor();
  EXPECT_EQ(receive(), Received::message);
  EXPECT_EQ(receive(), Received::end);
}

TEST_F(WireSocket, DeathOfTheOtherSideIsTheEndAlthoughTheSocketIsOpen) {
  const auto start = Clock::now();
  EXPECT_EQ(receive(60s, [] { return false; }), Received::end);
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_F(WireSocket, MessageSentBetweenTheWaitAndTheDeathArrives) {
  const auto die = [&] {
    send("last words");
    return false;
  };
  EXPECT_EQ(receive(10s, die), Received::message);
}

TEST_F(WireSocket, SendingToAClosedSocketIsAnErrorAndNoSignal) {
  far = Descriptor();
  EXPECT_EQ(error_of([&] { send(1); }), "send: Broken pipe");
}

// --- deadlines

TEST_F(WireSocket, SilenceIsLate) {
  const auto start = Clock::now();
  EXPECT_EQ(receive(50ms), Received::late);
  EXPECT_GE(Clock::now() - start, 50ms);
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST_F(WireSocket, SendingToOneWhoDoesNotReadEndsAtTheDeadline) {
  const auto start = Clock::now();
  const json body(std::string(8 << 20, 'x'));
  EXPECT_EQ(error_of([&] { send_message(near.get(), body, {}, Clock::now() + 50ms); }),
            "send: the other side does not read");
  EXPECT_LT(Clock::now() - start, 10s);
}

// --- descriptors

TEST_F(WireSocket, DescriptorsLeadToTheSameFile) {
  const Bytes bytes(16);
  send({}, {bytes.fd()});
  ASSERT_EQ(receive(), Received::message);
  ASSERT_EQ(message.descriptors.size(), 1u);
  EXPECT_NE(message.descriptors[0].get(), bytes.fd());
  ASSERT_EQ(pwrite(message.descriptors[0].get(), "hello", 5, 3), 5);
  EXPECT_EQ(std::memcmp(bytes.data() + 3, "hello", 5), 0);
}

TEST_F(WireSocket, DescriptorsKeepTheirOrder) {
  const Bytes small(1), large(2);
  send({}, {large.fd(), small.fd()});
  ASSERT_EQ(receive(), Received::message);
  ASSERT_EQ(message.descriptors.size(), 2u);
  EXPECT_EQ(lseek(message.descriptors[0].get(), 0, SEEK_END), 2);
  EXPECT_EQ(lseek(message.descriptors[1].get(), 0, SEEK_END), 1);
}

TEST_F(WireSocket, ReceivedDescriptorsCloseOnExec) {
  send({}, {near.get()});
  ASSERT_EQ(receive(), Received::message);
  EXPECT_EQ(fcntl(message.descriptors.at(0).get(), F_GETFD), FD_CLOEXEC);
}

TEST_F(WireSocket, DescriptorsStayWithTheirMessage) {
  send(1, {near.get()});
  send(2);
  ASSERT_EQ(receive(), Received::message);
  EXPECT_EQ(message.descriptors.size(), 1u);
  const int fd = message.descriptors.at(0).get();
  ASSERT_EQ(receive(), Received::message);
  EXPECT_TRUE(message.descriptors.empty());
  EXPECT_FALSE(is_open(fd));
}

TEST_F(WireSocket, AsManyDescriptorsAsAllowedArrive) {
  send({}, std::vector<int>(kMaxDescriptors, near.get()));
  ASSERT_EQ(receive(), Received::message);
  EXPECT_EQ(message.descriptors.size(), kMaxDescriptors);
}

TEST_F(WireSocket, MoreDescriptorsThanAllowedAreNotSent) {
  EXPECT_EQ(error_of([&] { send({}, std::vector<int>(kMaxDescriptors + 1, near.get())); }),
            "251 tensors in one message, at most 250 fit");
  EXPECT_EQ(receive(10ms), Received::late);
}

TEST_F(WireSocket, MoreDescriptorsThanAllowedAreNotTaken) {
  const std::string bytes = patched(frame({}), kDescriptorsAt, static_cast<uint32_t>(kMaxDescriptors + 1));
  send_raw(bytes, std::vector<int>(kMaxDescriptors + 1, near.get()));
  EXPECT_EQ(error_of([&] { receive(); }), "250 descriptors arrived of 251");
}

TEST_F(WireSocket, DescriptorsMustBeAsManyAsAnnounced) {
  send_raw(frame({}), {near.get()});
  EXPECT_EQ(error_of([&] { receive(); }), "1 descriptors arrived of 0");
  send_raw(patched(frame({}), kDescriptorsAt, uint32_t{1}));
  EXPECT_EQ(error_of([&] { receive(); }), "0 descriptors arrived of 1");
}

TEST_F(WireSocket, ClosedDescriptorIsNotSent) {
  EXPECT_EQ(error_of([&] { send({}, {-1}); }), "send: Bad file descriptor");
}

TEST(WireDescriptor, ClosesAtItsEnd) {
  const int fd = dup(STDERR_FILENO);
  { const Descriptor owner(fd); }
  EXPECT_FALSE(is_open(fd));
}

TEST(WireDescriptor, MoveLeavesOneOwner) {
  Descriptor first(dup(STDERR_FILENO));
  const int fd = first.get();
  {
    const Descriptor second(std::move(first));
    EXPECT_EQ(second.get(), fd);
    EXPECT_EQ(first.get(), -1);  // NOLINT(bugprone-use-after-move): this is the fact under test
  }
  EXPECT_FALSE(is_open(fd));
}

TEST(WireDescriptor, AssignmentClosesTheFormerFile) {
  Descriptor owner(dup(STDERR_FILENO));
  const int fd = owner.get();
  owner = Descriptor();
  EXPECT_FALSE(is_open(fd));
}

TEST(WireDescriptor, ReleasedFileStaysOpen) {
  int fd = -1;
  {
    Descriptor owner(dup(STDERR_FILENO));
    fd = owner.release();
  }
  EXPECT_TRUE(is_open(fd));
  close(fd);
}

// --- what the messages say

json sent_case() {
  Case c;
  c.op = find_operator("matmul");
  c.pass = find_pass(*c.op, "forward");
  return encode(c);
}

TEST(Wire, CaseOfAnUnknownOperatorOrPassIsAnError) {
  for (const auto& [key, value] : {std::pair{"op", "matmull"}, {"pass", "sideways"}}) {
    json sent = sent_case();
    sent[key] = value;
    const std::string error = error_of([&] { decode_case(sent); });
    EXPECT_EQ(error.find("a case of an unknown operator or pass: {"), 0u) << error;
  }
}

/// The keys of `whole` that `decode` does not need: without them it does not throw.
template <class Decode>
std::string needless_keys(const json& whole, const Decode& decode) {
  std::string needless;
  for (const auto& [key, value] : whole.items()) {
    json part = whole;
    part.erase(key);
    try {
      decode(part);
      needless += key + " ";
    } catch (const json::exception&) {
    }
  }
  return needless;
}

TEST(Wire, EveryKeyOfACaseAndOfAResultIsNeeded) {
  EXPECT_EQ(needless_keys(sent_case(), decode_case), "");
  EXPECT_EQ(needless_keys(encode(RunResult{}), decode_result), "");
}

TEST(Wire, DeviceSurvivesTheWayThereAndBack) {
  DeviceInfo device{"cuda", 3, "NVIDIA \"X\"", "sm90", 90, 132, uint64_t{1} << 40, "13.0", "12.4"};
  device.most_ranks = 4, device.ranks_limit = "there are 4";
  const DeviceInfo back = decode_device(json::parse(dump(encode(device))));
  EXPECT_EQ(encode(back), encode(device));
  EXPECT_EQ(back.memory_bytes, uint64_t{1} << 40);
}

/// An absent tensor, and `x` of int32 with the values 7, 8.
std::vector<Tensor> two_tensors() {
  std::vector<Tensor> tensors(1);
  tensors.emplace_back("x", DType::i32, Shape{2});
  tensors[1].set(0, 7);
  tensors[1].set(1, 8);
  return tensors;
}

/// The same in shared memory.
std::vector<Tensor> two_shared_tensors() {
  std::vector<Tensor> tensors = two_tensors();
  tensors[1].bytes.share();
  return tensors;
}

/// `tensors` as they arrive in this process, where the descriptors are duplicated instead of sent. The last `lost`
/// descriptors and bytes do not arrive.
std::vector<Tensor> arrived(const std::vector<Tensor>& tensors, Role role, size_t lost = 0) {
  TensorMemory sent;
  const json body = encode(tensors, role, sent);
  Message message;
  for (size_t i = 0; i + lost < sent.descriptors.size(); ++i)
    message.descriptors.emplace_back(dup(sent.descriptors[i]));
  message.bytes = sent.bytes.substr(0, sent.bytes.size() - std::min(sent.bytes.size(), lost));
  ArrivedMemory memory(std::move(message));
  return decode_tensors(json::parse(dump(body)), role, memory);
}

class WireTensors : public testing::TestWithParam<std::vector<Tensor> (*)()> {};
INSTANTIATE_TEST_SUITE_P(OwnAndShared, WireTensors, testing::Values(&two_tensors, &two_shared_tensors));

TEST_P(WireTensors, ArriveWithNameTypeShapeAndContent) {
  const auto back = arrived(GetParam()(), Role::input);
  ASSERT_EQ(back.size(), 2u);
  EXPECT_EQ(back[1].name, "x");
  EXPECT_EQ(back[1].dtype, DType::i32);
  EXPECT_EQ(back[1].shape, Shape{2});
  EXPECT_EQ(back[1].at(0), 7.0);
  EXPECT_EQ(back[1].at(1), 8.0);
}

TEST_P(WireTensors, AbsentOneStaysAbsentAndTakesNoMemory) {
  const auto back = arrived(GetParam()(), Role::input);
  EXPECT_EQ(back.at(0).name, "");
  EXPECT_EQ(back.at(0).bytes.data(), nullptr);
}

TEST(Wire, WritesToASharedOutputAreSeenOnTheOtherSide) {
  const auto tensors = two_shared_tensors();
  arrived(tensors, Role::output)[1].set(1, 99);
  EXPECT_EQ(tensors[1].at(1), 99.0);
}

TEST(Wire, OwnOutputsArriveAsZerosAndComeBackAsBytes) {
  auto tensors = two_tensors();
  auto back = arrived(tensors, Role::output);
  EXPECT_EQ(back[1].at(0), 0.0);
  back[1].set(1, 99);
  EXPECT_EQ(tensors[1].at(1), 8.0);
  const std::string bytes = own_bytes(back);
  take_own_bytes(bytes, tensors);
  EXPECT_EQ(tensors[1].at(0), 0.0);
  EXPECT_EQ(tensors[1].at(1), 99.0);
  EXPECT_EQ(error_of([&] { take_own_bytes(bytes.substr(1), tensors); }), "bytes of tensor 'x' are missing");
  EXPECT_EQ(error_of([&] { take_own_bytes(bytes + "x", tensors); }), "more bytes arrived than its tensors have");
  EXPECT_EQ(own_bytes(two_shared_tensors()), "");
}

std::vector<Tensor> four_own_tensors() {
  std::vector<Tensor> tensors;
  for (const char* name : {"a", "b", "c", "d"}) {
    tensors.emplace_back(name, DType::i32, Shape{10'000}).set(9'999, name[0]);
    EXPECT_EQ(tensors.back().bytes.fd(), -1);
  }
  return tensors;
}

TEST(Wire, InputsGoBesideTheMessageOnlyAsFarAsTheyFit) {
  const std::vector<Tensor> tensors = four_own_tensors();
  TensorMemory memory;
  encode(tensors, Role::input, memory);
  EXPECT_EQ(memory.bytes.size(), 80'000u);
  EXPECT_EQ(memory.descriptors.size(), 2u);
  const auto back = arrived(tensors, Role::input);
  ASSERT_EQ(back.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(back[i].at(9'999), tensors[i].at(9'999));
}

TEST(Wire, OutputsComeBackBesideTheMessageOnlyAsFarAsTheyFit) {
  std::vector<Tensor> tensors = four_own_tensors();
  share_most(tensors);
  EXPECT_EQ(own_bytes(tensors).size(), 80'000u);
  EXPECT_GE(tensors[3].bytes.fd(), 0);
  EXPECT_EQ(tensors[3].at(9'999), 'd');
}

TEST(WireDeathTest, SharedInputsCanNotBeWritten) {
  auto back = arrived(two_shared_tensors(), Role::input);
  EXPECT_DEATH(back[1].set(0, 1), "");
}

TEST(Wire, TensorWithoutMemoryIsAnError) {
  EXPECT_EQ(error_of([] { arrived(two_shared_tensors(), Role::input, 1); }), "no descriptor for tensor 'x'");
  EXPECT_EQ(error_of([] { arrived(two_tensors(), Role::input, 1); }), "bytes of tensor 'x' are missing");
}

TEST(Wire, NumbersThatNameNothingAreErrors) {
  EXPECT_EQ(error_of([] { decode_status(json(99)); }), "an answer with no known status");
  json result = encode(RunResult{});
  result["contexts"] = json::array({json::array({99, "", true, "", 0})});
  EXPECT_EQ(error_of([&] { decode_result(result); }), "a context of no known axis");
  TensorMemory memory;
  json sent = encode(two_tensors(), Role::input, memory);
  sent[1]["dtype"] = 99;
  ArrivedMemory none{Message()};
  EXPECT_EQ(error_of([&] { decode_tensors(sent, Role::input, none); }), "a tensor of no known dtype");
}

TEST(Wire, TensorLargerThanItsMemoryIsAnError) {
  auto tensors = two_shared_tensors();
  tensors[1].shape = {3};
  EXPECT_THROW(arrived(tensors, Role::input), InputError);
  tensors = two_tensors();
  tensors[1].shape = {3};
  EXPECT_EQ(error_of([&] { arrived(tensors, Role::input); }), "bytes of tensor 'x' are missing");
}

}  // namespace
}  // namespace checkop::wire_test
