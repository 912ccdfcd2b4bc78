// SPDX-License-Identifier: Apache-2.0
// A launch as the candidate sees it, and the handling of its status, its message and its damage.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <set>
#include <stdexcept>
#include <thread>

#include "run/stage.hpp"
#include "support/device_helper.hpp"

namespace checkop::stage_test {
namespace {

// --- an operator with everything that a call can contain: attributes, ids, an optional input, a scalar output

constexpr std::string_view kNames = "epsilonscale";  // no NUL after "eps"
constexpr std::array kAttrs{AttrSpec{kNames.substr(0, 3), 0.5, "smallest"}, AttrSpec{kNames.substr(7), 1, "factor"}};
constexpr std::array kInputs{TensorSpec{"x", "batch seq cols"},
                             TensorSpec{"ids", "batch seq", Fill::ids, "cols", DType::i64},
                             TensorSpec{"bias", "cols", Fill::normal, "", {}, true}};
constexpr std::array kOutputs{OutputSpec{{"y", "batch seq cols"}, Numerics::pointwise, ""},
                              OutputSpec{{"dbias", "cols", Fill::normal, "", {}, true}, Numerics::reduction, ""},
                              OutputSpec{{"sum", "", Fill::normal, "", DType::f32}, Numerics::reduction, ""}};
constexpr std::array kPasses{Pass{"forward", kInputs, kOutputs, nullptr}};
constexpr Operator kOperator{"example", "reduction", "", "batch seq", kAttrs, kPasses};

Case example(bool bias) {
  Case c;
  c.op = &kOperator;
  c.pass = kPasses.data();
  c.dtype = DType::bf16;
  c.dims = {{"batch", 2}, {"seq", 3}, {"cols", 5}};
  c.attrs = {0.25, -2};
  if (bias) c.optionals = {"bias"};
  return c;
}

/// A CPU device with a stream, and with errors that come late like a GPU's.
class TestDevice : public DelegatingDevice {
 public:
  void* stream() override { return this; }
  void synchronize(const std::string& what) override {
    waited_for.push_back(what);
    if (waited_for.size() == fail_at) throw DeviceError(what + ": illegal memory access", true);
  }

  std::vector<std::string> waited_for;
  size_t fail_at = 0;  ///< counted from 1
};

using Launch = checkop_status (*)(const checkop_call*);
using WorkspaceBytes = size_t (*)(const checkop_call*);

/// A device, a kernel and the stage that launches it.
struct Ran {
  explicit Ran(Launch launch, bool bias = true, WorkspaceBytes workspace = nullptr, const std::string& suffix = "")
      : kernel{sizeof(checkop_kernel), "mine", "example", "forward", CHECKOP_CPU, 0, 0, workspace, launch},
        stage(device, kernel, example(bias), suffix) {
    for (const TensorSpec& spec : kInputs) stage.inputs.push_back(stage.make_buffer("input", spec));
    stage.make_outputs_and_workspace();
  }

  TestDevice device;
  checkop_kernel kernel;
  Stage stage;
};

/// "STATUS: MESSAGE" of the Stopped thrown by `body`.
template <class Body>
std::string stopped_by(const Body& body) {
  try {
    body();
  } catch (const Stopped& stopped) {
    return std::string(to_string(stopped.status)) + ": " + stopped.message;
  }
  return "not stopped";
}

std::string status_of(Launch launch) {
  Ran ran(launch);
  return stopped_by([&] { ran.stage.launch(0); });
}

void say(const checkop_call* call, const char* text) { std::strncpy(call->message, text, call->message_bytes); }

checkop_status does_nothing(const checkop_call*) { return CHECKOP_OK; }

/// What the latest launch of `looks` observed, with the tensors' shapes and strides.
struct Seen {
  checkop_call call;
  std::vector<checkop_tensor> tensors;  ///< inputs, then outputs
  std::vector<Shape> shapes, strides;
  std::vector<std::pair<std::string, double>> attrs;
} seen;

checkop_status looks(const checkop_call* call) {
  seen = {*call, {}, {}, {}, {}};
  seen.tensors.assign(call->inputs, call->inputs + call->n_inputs);
  seen.tensors.insert(seen.tensors.end(), call->outputs, call->outputs + call->n_outputs);
  for (const checkop_tensor& tensor : seen.tensors) {
    seen.shapes.emplace_back(tensor.shape, tensor.shape + tensor.rank);
    seen.strides.emplace_back(tensor.strides, tensor.strides + tensor.rank);
  }
  for (int32_t i = 0; i < call->n_attrs; ++i) seen.attrs.emplace_back(call->attrs[i].name, call->attrs[i].value);
  return CHECKOP_OK;
}

// --- the call

TEST(Stage, TensorsComeInTheOrderOfThePassWithTheirShapes) {
  Ran(looks).stage.launch(0);
  EXPECT_EQ(seen.call.n_inputs, 3);
  EXPECT_EQ(seen.call.n_outputs, 3);
  EXPECT_EQ(seen.shapes, (std::vector<Shape>{{2, 3, 5}, {2, 3}, {5}, {2, 3, 5}, {5}, {}}));
}

TEST(Stage, StridesAreRowMajorAndInElements) {
  Ran(looks).stage.launch(0);
  EXPECT_EQ(seen.strides, (std::vector<Shape>{{15, 5, 1}, {3, 1}, {1}, {15, 5, 1}, {1}, {}}));
}

TEST(Stage, TypeIsTheCasesUnlessTheTensorHasItsOwn) {
  Ran(looks).stage.launch(0);
  EXPECT_EQ(seen.tensors[0].dtype, CHECKOP_BF16);
  EXPECT_EQ(seen.tensors[1].dtype, CHECKOP_I64);
  EXPECT_EQ(seen.tensors[5].dtype, CHECKOP_F32);
}

TEST(Stage, DataIsThatOfTheBuffers) {
  Ran ran(looks);
  ran.stage.launch(0);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen.tensors[i].data, static_cast<void*>(ran.stage.inputs[i]->data())) << i;
    EXPECT_EQ(seen.tensors[3 + i].data, static_cast<void*>(ran.stage.outputs[i]->data())) << i;
  }
}

TEST(Stage, ScalarHasRankZeroAndMemory) {
  Ran ran(looks);
  ran.stage.launch(0);
  EXPECT_EQ(seen.tensors[5].rank, 0);
  EXPECT_NE(seen.tensors[5].data, nullptr);
  EXPECT_EQ(ran.stage.outputs[2]->bytes(), 4u);
}

TEST(Stage, AbsentTensorsKeepTheirPlaceWithoutDataAndRank) {
  Ran ran(looks, /*bias=*/false);
  EXPECT_EQ(ran.stage.inputs[2], nullptr);
  EXPECT_EQ(ran.stage.outputs[1], nullptr);
  ran.stage.launch(0);
  ASSERT_EQ(seen.tensors.size(), 6u);
  for (const size_t absent : {2u, 4u}) {
    EXPECT_EQ(seen.tensors[absent].data, nullptr);
    EXPECT_EQ(seen.tensors[absent].rank, 0);
  }
}

TEST(Stage, AttributesHaveTheCasesValuesAndNamesThatEnd) {
  Ran(looks).stage.launch(0);
  EXPECT_EQ(seen.attrs, (std::vector<std::pair<std::string, double>>{{"eps", 0.25}, {"scale", -2}}));
}

TEST(Stage, CallIsOfThisVersionAndForOneRank) {
  Ran ran(looks);
  ran.stage.launch(0);
  EXPECT_EQ(seen.call.struct_size, sizeof(checkop_call));
  EXPECT_EQ(seen.call.message_bytes, 512u);
  EXPECT_EQ(seen.call.stream, ran.device.stream());
  EXPECT_EQ(seen.call.rank, 0);
  EXPECT_EQ(seen.call.world_size, 1);
  EXPECT_EQ(seen.call.comm, nullptr);
  EXPECT_EQ(seen.call.host_comm, nullptr);
}

TEST(Stage, WhatACandidateDoesToTheCallIsGoneWithTheNextLaunch) {
  Ran ran([](const checkop_call* call) {
    looks(call);
    const_cast<int64_t*>(call->inputs[0].shape)[0] = 99;
    const_cast<int64_t*>(call->inputs[0].strides)[0] = 99;
    const_cast<checkop_attr*>(call->attrs)[0] = {"other", 99};
    return CHECKOP_OK;
  });
  ran.stage.launch(0);
  ran.stage.launch(1);
  EXPECT_EQ(seen.shapes[0], (Shape{2, 3, 5}));
  EXPECT_EQ(seen.strides[0], (Shape{15, 5, 1}));
  EXPECT_EQ(seen.attrs[0], (std::pair<std::string, double>{"eps", 0.25}));
}

// --- memory

TEST(Stage, OutputsArePoisonedDifferentlyInBothRuns) {
  Ran ran(does_nothing);
  for (const int run : {0, 1}) {
    ran.stage.launch(run);
    EXPECT_EQ(load_bits(DType::bf16, ran.stage.outputs[0]->data(), 29), ran.stage.poison_before(DType::bf16));
    EXPECT_EQ(load_bits(DType::f32, ran.stage.outputs[2]->data(), 0), ran.stage.poison_before(DType::f32));
    EXPECT_EQ(ran.stage.poison_before(DType::f32) == poison_of(DType::f32).output[0], run == 0);
  }
}

TEST(Stage, PoisonOfTheSecondRunIsAnotherEachTime) {
  Ran ran(does_nothing);
  std::set<uint64_t> seen;
  for (int times = 0; times < 8; ++times) {
    ran.stage.launch(1);
    EXPECT_TRUE(seen.insert(ran.stage.poison_before(DType::f32)).second) << times;
  }
}

TEST(Stage, PoisonIsThereBeforeTheLaunch) {
  Ran ran(does_nothing);
  ran.stage.launch(0);
  EXPECT_EQ(ran.device.waited_for, (std::vector<std::string>{"poison outputs", "run 1 of 'mine'"}));
}

TEST(Stage, WorkspaceHasTheSizeAskedForAndDiffersInBothRuns) {
  static unsigned char first = 0, last = 0;
  Ran ran(
      [](const checkop_call* call) {
        seen.call = *call;
        first = static_cast<unsigned char*>(call->workspace)[0];
        last = static_cast<unsigned char*>(call->workspace)[99];
        return CHECKOP_OK;
      },
      true, [](const checkop_call*) { return size_t{100}; });
  ran.stage.launch(0);
  EXPECT_EQ(seen.call.workspace_bytes, 100u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(seen.call.workspace) % 256, 0u);
  const int before = first;
  EXPECT_EQ(first, last);
  ran.stage.launch(1);
  EXPECT_NE(first, before);
}

TEST(Stage, WorkspaceOfZeroBytesIsNone) {
  Ran ran(looks, true, [](const checkop_call*) { return size_t{0}; });
  ran.stage.launch(0);
  EXPECT_EQ(ran.stage.workspace, nullptr);
  EXPECT_EQ(seen.call.workspace, nullptr);
  EXPECT_EQ(seen.call.workspace_bytes, 0u);
}

TEST(Stage, WorkspaceCanDependOnShapesAndAttributes) {
  const Ran ran(does_nothing, true, [](const checkop_call* call) {
    looks(call);
    return static_cast<size_t>(call->outputs[0].shape[2] * 8);
  });
  EXPECT_EQ(ran.stage.workspace->bytes(), 40u);
  EXPECT_EQ(seen.attrs.size(), 2u);
  EXPECT_EQ(seen.call.workspace, nullptr);
}

TEST(Stage, AbsurdWorkspaceStops) {
  EXPECT_EQ(stopped_by([] { Ran(looks, true, [](const checkop_call*) { return (size_t{1} << 48) + 1; }); }),
            "failed: workspace_bytes asked for 281474976710657 bytes");
}

TEST(Stage, ExceptionOfWorkspaceBytesStops) {
  EXPECT_EQ(
      stopped_by([] { Ran(looks, true, [](const checkop_call*) -> size_t { throw std::runtime_error("no size"); }); }),
      "failed: workspace_bytes threw: no size");
}

TEST(Stage, DamageOfEveryBufferIsFound) {
  Ran ran(
      [](const checkop_call* call) {
        static_cast<uint16_t*>(call->inputs[0].data)[30] = 1;
        static_cast<uint16_t*>(call->outputs[0].data)[-2] = 1;
        static_cast<unsigned char*>(call->workspace)[8] = 1;
        return CHECKOP_OK;
      },
      false, [](const checkop_call*) { return size_t{8}; }, " (alone)");
  ran.stage.launch(0);
  std::vector<std::string> violations;
  ran.stage.check_guards(violations);
  EXPECT_EQ(violations,
            (std::vector<std::string>{"input 'x' (alone): 1 element changed behind its end, first at +0",
                                      "output 'y' (alone): 1 element changed before its start, nearest at -2",
                                      "workspace (alone): 1 byte changed behind its end, first at +0"}));
}

TEST(Stage, DamageThatIsKnownIsNotReportedAgain) {
  Ran ran([](const checkop_call* call) {
    static_cast<float*>(call->outputs[2].data)[1] = 1;
    return CHECKOP_OK;
  });
  ran.stage.launch(0);
  std::vector<std::string> violations;
  ran.stage.check_guards(violations);
  ran.stage.check_guards(violations);
  EXPECT_EQ(violations.size(), 1u);
}

// --- status and message

TEST(Stage, MessageOfASuccessIsReturned) {
  Ran ran([](const checkop_call* call) {
    say(call, "plain loops");
    return CHECKOP_OK;
  });
  EXPECT_EQ(ran.stage.launch(0), "plain loops");
}

TEST(Stage, MessageDoesNotOutliveItsLaunch) {
  static bool first = true;
  Ran ran([](const checkop_call* call) {
    if (first) say(call, "only once");
    first = false;
    return CHECKOP_OK;
  });
  ran.stage.launch(0);
  EXPECT_EQ(ran.stage.launch(1), "");
}

TEST(Stage, MessageWithoutNulEndsWithItsMemory) {
  Ran ran([](const checkop_call* call) {
    std::memset(call->message, 'x', call->message_bytes);
    return CHECKOP_OK;
  });
  EXPECT_EQ(ran.stage.launch(0), std::string(512, 'x'));
}

TEST(Stage, EveryStatusButOkStops) {
  EXPECT_EQ(status_of(does_nothing), "not stopped");
  EXPECT_EQ(status_of([](const checkop_call*) { return CHECKOP_UNSUPPORTED; }),
            "unsupported: returned CHECKOP_UNSUPPORTED, no reason");
  EXPECT_EQ(status_of([](const checkop_call*) { return CHECKOP_FAILED; }),
            "failed: returned CHECKOP_FAILED, no reason");
  EXPECT_EQ(status_of([](const checkop_call*) { return static_cast<checkop_status>(3); }),
            "failed: launch returned 3, which is no checkop_status");
}

TEST(Stage, ReasonStandsInPlaceOfTheStatus) {
  EXPECT_EQ(status_of([](const checkop_call* call) {
              say(call, "cols must be even");
              return CHECKOP_UNSUPPORTED;
            }),
            "unsupported: cols must be even");
  EXPECT_EQ(status_of([](const checkop_call* call) {
              say(call, "why");
              return static_cast<checkop_status>(3);
            }),
            "failed: launch returned 3, which is no checkop_status: why");
}

TEST(Stage, ExceptionIsAFailureWithItsWords) {
  EXPECT_EQ(status_of([](const checkop_call*) -> checkop_status { throw std::runtime_error("oh"); }),
            "failed: launch threw: oh");
  EXPECT_EQ(status_of([](const checkop_call*) -> checkop_status { throw 5; }),
            "failed: launch threw something that is no std::exception");
}

TEST(Stage, FailureNamesTheSecondRunAndTheRows) {
  Ran ran([](const checkop_call*) { return CHECKOP_FAILED; }, true, nullptr, " (rows [0,1) alone)");
  EXPECT_EQ(stopped_by([&] { ran.stage.launch(1); }),
            "failed: second run: returned CHECKOP_FAILED, no reason (rows [0,1) alone)");
}

// --- the device

TEST(Stage, WorkIsAwaitedAfterAFailureToo) {
  for (const Launch launch : {Launch([](const checkop_call*) { return CHECKOP_FAILED; }),
                              Launch([](const checkop_call*) -> checkop_status { throw 5; })}) {
    Ran ran(launch);
    EXPECT_THROW(ran.stage.launch(0), Stopped);
    EXPECT_EQ(ran.device.waited_for.back(), "run 1 of 'mine'");
  }
}

TEST(Stage, DevicesErrorComesBeforeTheStatusAndHasTheCandidatesWords) {
  Ran ran([](const checkop_call* call) {
    say(call, "launch error");
    return CHECKOP_FAILED;
  });
  ran.device.fail_at = 2;
  try {
    ran.stage.launch(0);
    FAIL() << "no exception";
  } catch (const DeviceError& e) {
    EXPECT_STREQ(e.what(), "run 1 of 'mine': illegal memory access (launch error)");
    EXPECT_TRUE(e.sticky());
  }
}

TEST(Stage, TimeIsThatOfTheLaunch) {
  Ran ran([](const checkop_call*) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return CHECKOP_OK;
  });
  ran.stage.launch(0);
  EXPECT_GE(ran.stage.elapsed_ms, 5.0);
}

}  // namespace
}  // namespace checkop::stage_test
